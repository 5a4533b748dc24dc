"""Two finished runs compared by what they left: one sample each of the noise of training."""

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..benchmark.statistics import Estimate, mean_of
from ..errors import UserError
from .comparison import judge_metric, signed, verdict

BLOCKS = 5  # of consecutive log rows, each a repeat: rows themselves are correlated
WARM_PART = 0.1  # of a run's rows that are left out at its start
FEWEST_ROWS = 2 * BLOCKS


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """What a run's directory says of it.

    Attributes:
      path: of the directory.
      settings: as they were given.
      result: of result.json.
      rates: examples a second, of blocks of log rows in order.
    """

    path: Path
    settings: dict[str, Any]
    result: dict[str, Any]
    rates: list[float]


def compare_runs(path_a: Path, path_b: Path, tolerance: float) -> dict[str, Any]:
    """The comparison of two runs' directories, as comparison.json holds it.

    Raises:
      UserError: one of them holds no finished run, or one too short to tell a rate from.
    """
    a, b = _open(path_a, "A"), _open(path_b, "B")
    speedup = ratio_of_blocks(b.rates, a.rates)
    metric = a.result["metric"]
    difference, error = None, None
    if metric == b.result["metric"] and None not in (a.result["final"], b.result["final"]):
        difference = b.result["final"] - a.result["final"]
        error = _sampling_error(a.result, b.result)
    judged = judge_metric(
        None if difference is None or error is None else _around(difference, error),
        higher_is_better=a.result.get("higher_is_better", not metric.endswith("loss")),
        allowed=tolerance * abs(a.result["final"] or 0.0),
        metric=metric,
        how="one run each",
    )
    said = verdict(speedup, judged)
    if difference is not None and error is None:
        said["sentence"] = said["sentence"].replace(
            judged.words, f"{metric} {signed(difference)}, of which the noise is not known"
        )
    said["sentence"] += _caveat(a, b, error is not None)
    return {
        "schema": 1,
        "pairs": 0,
        "a": _side(a),
        "b": _side(b),
        "speedup": dataclasses.asdict(speedup),
        "metric_difference": None if difference is None else _interval(difference, error),
        "verdict": said,
        "different_flags": _different(a, b),
    }


def ratio_of_blocks(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Ratio of two rates measured at different times: Welch's interval of the logarithms.

    The degrees of freedom are the smaller sample's, which is never too narrow.
    """
    logs = [mean_of([math.log(value) for value in values]) for values in (above, below)]
    return _around(
        logs[0].mean - logs[1].mean,
        math.hypot(*(estimate.high - estimate.mean for estimate in logs)),
    ).map(math.exp)


def _open(path: Path, name: str) -> FinishedRun:
    if not path.is_dir():
        raise UserError(f"{name}={path} is no directory: give two runs, or two sets of flags")
    result_file, settings_file = path / "result.json", path / "settings.json"
    if not result_file.exists() or not settings_file.exists():
        raise UserError(f"{name}={path} holds no finished run: result.json is missing")
    try:
        result = json.loads(result_file.read_text(encoding="utf-8"))
        settings = json.loads(settings_file.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{name}={path}: result.json or settings.json is damaged") from None
    return FinishedRun(path, settings, result, _block_rates(path, name))


def _block_rates(path: Path, name: str) -> list[float]:
    rows = []
    log = path / "metrics.jsonl"
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # half a line that a kill left
        if "examples_per_second" in row:
            rows.append(row["examples_per_second"])
    rows = rows[max(1, round(WARM_PART * len(rows))) :]
    if len(rows) < FEWEST_ROWS:
        raise UserError(
            f"{name}={path} logged {len(rows)} lines after its warm-up; a rate takes {FEWEST_ROWS}"
        )
    borders = [round(block * len(rows) / BLOCKS) for block in range(BLOCKS + 1)]
    # Rows are of equally many examples: their times add up, not their rates.
    return [
        statistics.harmonic_mean(rows[borders[block] : borders[block + 1]])
        for block in range(BLOCKS)
    ]


def _sampling_error(a: dict[str, Any], b: dict[str, Any]) -> float | None:
    """Half the 95 % interval of the difference of two accuracies; None for another metric.

    Binomial, and as if each had been measured on examples of its own, which is too wide rather than
    too narrow.
    """
    variance = 0.0
    for run in (a, b):
        value, count = run["final"], run.get("validation_examples")
        if not run["metric"].endswith("accuracy") or not count or not 0 <= value <= 1:
            return None
        # Agresti and Coull's two successes and two failures: none wrong of ten is not certainty.
        part = (value * count + 2) / (count + 4)
        variance += part * (1 - part) / (count + 4)
    return 1.96 * math.sqrt(variance)


def _around(middle: float, half: float) -> Estimate:
    return Estimate(middle, middle - half, middle + half)


def _interval(middle: float, half: float | None) -> dict[str, float | None]:
    if half is None:
        return {"mean": middle, "low": None, "high": None}
    return {"mean": middle, "low": middle - half, "high": middle + half}


def _side(run: FinishedRun) -> dict[str, Any]:
    rate, result = mean_of(run.rates), run.result
    batch_size = result["examples_seen"] // max(1, result["last_step"])
    final = {"name": result["metric"], "mean": result["final"], "low": None, "high": None}
    return {
        "name": str(run.path),
        "examples_per_second": dataclasses.asdict(rate),
        "step_ms": dataclasses.asdict(rate.map(lambda value: 1000 * batch_size / value)),
        "metric": None if result["final"] is None else final,
        "examples": result["examples_seen"],
        "batch_size": batch_size,
    }


def _different(a: FinishedRun, b: FinishedRun) -> dict[str, list[Any]]:
    names = sorted((a.settings.keys() | b.settings.keys()) - {"run_dir"})
    pairs = {name: [a.settings.get(name), b.settings.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _caveat(a: FinishedRun, b: FinishedRun, sampled: bool) -> str:
    """What a comparison of two finished runs cannot know."""
    noise = "the interval of the metric is of the validation examples alone, " if sampled else ""
    lines = [
        f" These are one run each: {noise}not of other seeds, and the speeds are of different "
        "times; two sets of flags, run in turn, say more."
    ]
    seen = [run.result["examples_seen"] for run in (a, b)]
    if seen[0] != seen[1]:
        lines.append(f"They saw {seen[0]:,} and {seen[1]:,} examples.")
    different = [f"--{name}" for name in _different(a, b)]
    lines.append(f"Different flags: {', '.join(different) or 'none'}.")
    return " ".join(lines)
