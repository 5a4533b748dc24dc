"""Does it matter to the validation accuracy whether the host or the device augments?

Trains pairs that share the seed (weights, order, crops) and differ in --augment alone, by the
project's own command, on the synthetic photos. Run it by the Python of a generated project:

    build/demo/my-training-project/.venv/bin/python benchmarks/augmentation_metric.py \
        --package=my_training_project

A run of 500 steps took three minutes on one shared CPU core. What is done is kept: the same command
with the same --out goes on where it was stopped.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WAYS = ("host", "device")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", required=True, help="the generated project's package")
    parser.add_argument("--seeds", type=int, default=6, help="pairs of runs, two or more")
    parser.add_argument("--steps", type=int, default=500, help="of each run")
    parser.add_argument("--out", type=Path, help="where the runs are kept, and resumed from")
    parser.add_argument("--train", metavar="SEED,WAY", help=argparse.SUPPRESS)
    # What is left over goes to every run, such as --cache_dir or --data.
    options, flags = parser.parse_known_args()
    if options.train:
        raise SystemExit(train(options, flags))
    options.out = options.out or Path(tempfile.mkdtemp(prefix="augmentation-"))
    scores: dict[str, list[float]] = {way: [] for way in WAYS}
    print(f"{'seed':>4} {'host':>7} {'device':>7} {'device - host':>14}   runs in {options.out}")
    for seed in range(options.seeds):
        # The first of a pair alternates, so that neither way always has the busier half hour.
        for way in WAYS if seed % 2 == 0 else reversed(WAYS):
            scores[way].append(score(options, seed, way, flags))
        host, device = scores["host"][-1], scores["device"][-1]
        print(f"{seed:4} {host:7.4f} {device:7.4f} {device - host:+14.4f}", flush=True)
    statistics = importlib.import_module(f"{options.package}.benchmark.statistics")
    for way in WAYS:
        accuracy = statistics.mean_of(scores[way])
        print(f"{way}: {accuracy.mean:.4f} ({accuracy.low:.4f} to {accuracy.high:.4f})")
    pairs = zip(scores["device"], scores["host"], strict=True)
    difference = statistics.mean_of([device - host for device, host in pairs])
    print(
        f"device - host: {difference.mean:+.4f} "
        f"(95 % interval {difference.low:+.4f} to {difference.high:+.4f}, {options.seeds} pairs)"
    )


def score(options: argparse.Namespace, seed: int, way: str, flags: list[str]) -> float:
    """Trains in a process of its own, unless it is done; returns the last validation accuracy."""
    result = run_directory(options.out, seed, way) / "result.json"
    if not result.exists():
        arguments = ["--package", options.package, "--steps", str(options.steps)]
        arguments += ["--out", str(options.out), "--train", f"{seed},{way}", *flags]
        log = options.out / f"{way}-{seed}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as lines:
            command = [sys.executable, __file__, *arguments]
            code = subprocess.run(command, stdout=lines, stderr=lines, check=False).returncode
        if code:
            raise SystemExit(f"seed {seed}, {way}: exit code {code}, see {log}")
    return float(json.loads(result.read_text())["final"])


def run_directory(out: Path, seed: int, way: str) -> Path:
    return out / f"{way}-{seed}"


def train(options: argparse.Namespace, flags: list[str]) -> int:
    """One run of the project's command, with a backbone that learns the photos in 500 steps."""
    seed, way = options.train.split(",")
    importlib.import_module(f"{options.package}.runtime").start_tensorflow()
    model = importlib.import_module(f"{options.package}.model")
    model.BACKBONES["five_convolutions"] = model.Backbone(
        five_convolutions, scale=1 / 127.5, offset=-1.0
    )
    command = importlib.import_module(f"{options.package}.train")
    asked = {
        "data": "synthetic",
        "model": "five_convolutions",
        "image_size": 96,
        "batch_size": 64,
        "learning_rate": 3e-3,
        "steps": options.steps,
        "evaluate_steps": options.steps,
        "augment": way,
        "seed": seed,
        "run_dir": run_directory(options.out, seed, way),
    }
    return command.main([*(f"--{name}={value}" for name, value in asked.items()), *flags])


def five_convolutions(size: int) -> Any:
    """Convolutions with batch norm, 0.2 million weights and 12 million multiply-adds at 96 px."""
    from keras import Model, layers  # once the package has started TensorFlow, not before

    inputs = x = layers.Input((size, size, 3))
    for filters, strides in ((16, 2), (32, 2), (64, 2), (96, 2), (128, 1)):
        x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        # 0.9: Keras' 0.99 has not forgotten its first guess after a few hundred steps.
        x = layers.BatchNormalization(momentum=0.9)(x)
        x = layers.Activation("relu")(x)
    return Model(inputs, x, name="five_convolutions")


if __name__ == "__main__":
    main()
