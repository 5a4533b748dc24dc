"""Does `--benchmark` measure what plain training does? Both in turn, the ratio with its interval.

    build/demo/my-training-project/.venv/bin/python benchmarks/disturbance.py \
        --package=my_training_project --data=digits

What is compared is the rate of plain training, from its log, and the rate that the benchmark gives
for the same flags. The bar is 2 %.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", required=True, help="the generated project's package")
    parser.add_argument("--pairs", type=int, default=5, help="of runs in turn, two or more")
    parser.add_argument("--steps", type=int, default=2000, help="of each plain training")
    # What is left over goes to both, such as --data.
    options, flags = parser.parse_known_args()
    rates: dict[str, list[float]] = {"plain": [], "benchmark": []}
    print(f"{'pair':>4} {'plain':>9} {'benchmark':>9}   examples/s")
    for pair in range(options.pairs):
        # The first of a pair alternates, so that neither always has the busier minutes.
        for way in list(rates) if pair % 2 == 0 else reversed(list(rates)):
            rates[way].append(rate(options, way, flags))
        print(f"{pair:4} {rates['plain'][-1]:9,.0f} {rates['benchmark'][-1]:9,.0f}", flush=True)
    ratio_of = importlib.import_module(f"{options.package}.benchmark.statistics").ratio_of
    ratio = ratio_of(rates["benchmark"], rates["plain"])
    print(f"benchmark / plain: {ratio.mean:.3f} ({ratio.low:.3f}-{ratio.high:.3f}, 95 %)")


def rate(options: argparse.Namespace, way: str, flags: list[str]) -> float:
    """Examples a second of one run in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", f"{options.package}.train", f"--run_dir={directory}/run"]
        command += [*flags, f"--steps={options.steps}", f"--evaluate_steps={options.steps}"]
        command += ["--benchmark"] if way == "benchmark" else []
        subprocess.run(command, check=True, capture_output=True)
        run = Path(directory) / "run"
        if way == "benchmark":
            document = json.loads((run / "benchmark.json").read_text())
            return float(document["throughput"]["examples_per_second"]["mean"])
        return steady(list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines())))


def steady(rows: list[dict[str, Any]]) -> float:
    """The mean rate of a log's second half: by time, so the harmonic mean of equal stretches."""
    logged = [row["examples_per_second"] for row in rows if "examples_per_second" in row]
    return statistics.harmonic_mean(logged[len(logged) // 2 :])


if __name__ == "__main__":
    main()
