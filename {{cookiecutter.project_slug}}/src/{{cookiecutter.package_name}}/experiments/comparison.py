"""Two ways to train, measured in turn: is B faster than A, and is its metric better or worse?

Nothing here starts a process or reads a file: results in, verdict out.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..benchmark.statistics import Estimate, mean_of, ratio_of
from ..report.wording import number, times

Result = dict[str, Any]  # a lane's answer, see `lane_child.Training.facts`
FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference"
BETTER, WORSE, SAME, NOT_MEASURED = "better", "worse", "same", "not measured"
TURNS = "ABBABAAB"  # the order of Thue and Morse: neither a drift nor a bent one favours A or B


class Trainer(Protocol):
    """One of the two ways to train."""

    def train(self, seed: int) -> Result:
        """Trains a fresh model from a seed and evaluates it."""

    def rate(self) -> Result:
        """Trains on for a window of time; `timed_examples` and `seconds` say how fast."""


def alternate(
    a: Trainer,
    b: Trainer,
    seeds: Sequence[int],
    advance: Callable[[str], object] = lambda note: None,
) -> tuple[list[Result], list[Result]]:
    """Trains A B, B A, A B, ..., both of a pair from the same seed, and times each pair in turn.

    Args:
      a, b: the two ways.
      seeds: one a pair.
      advance: told after each training, and after each pair's timing, what came out.

    Returns:
      For A and for B the results of `Trainer.train`, with `examples_per_second` and `step_ms`.
    """
    results: tuple[list[Result], list[Result]] = ([], [])
    for pair, seed in enumerate(seeds):
        trained = {}
        for name, side in [("A", a), ("B", b)][:: 1 if pair % 2 == 0 else -1]:
            trained[name] = side.train(seed)
            value = trained[name]["value"]
            came = "not measured" if value is None else f"{value:.4f}"
            advance(f"{name}, pair {pair + 1}: {trained[name]['metric']} {came}")
        timed = in_turn(a, b, TURNS if pair % 2 == 0 else TURNS[::-1])
        for kept, result, rates in zip(results, (trained["A"], trained["B"]), timed, strict=True):
            kept.append({**result, **rates})
        both = " and ".join(f"{rates['examples_per_second']:,.0f}" for rates in timed)
        advance(f"A and B, pair {pair + 1}: {both} examples/s")
    return results


def in_turn(a: Trainer, b: Trainer, turns: str = TURNS) -> tuple[Result, Result]:
    """The rates of two trainings that take turns of seconds: what slows both cancels.

    Args:
      a, b: the two ways.
      turns: whose turn it is, such as "ABBA".

    Returns:
      `examples_per_second` and `step_ms` of A and of B, over all turns of each.
    """
    windows: dict[str, list[Result]] = {"A": [], "B": []}
    for name in turns:
        windows[name].append((a if name == "A" else b).rate())
    return _rates(windows["A"]), _rates(windows["B"])


def compared(
    names: tuple[str, str],
    results_a: Sequence[Result],
    results_b: Sequence[Result],
    tolerance: float,
) -> dict[str, Any]:
    """The comparison as comparison.json holds it.

    Args:
      names: of A and B, such as their flags.
      results_a, results_b: pair by pair, at least two of each.
      tolerance: part of A's metric whose loss would not matter.
    """
    rates = [[r["examples_per_second"] for r in results] for results in (results_a, results_b)]
    speedup = ratio_of(rates[1], rates[0])
    difference, values_a = None, [r["value"] for r in results_a]
    values_b = [r["value"] for r in results_b]
    if None not in (*values_a, *values_b):
        difference = mean_of([b - a for a, b in zip(values_a, values_b, strict=True)])
    first = results_a[0]
    about_metric = judge_metric(
        difference,
        higher_is_better=first["higher_is_better"],
        allowed=tolerance * abs(mean_of(values_a).mean) if difference else 0.0,
        metric=first["metric"],
        how=f"these {len(results_a)} pairs",
    )
    return {
        "schema": 1,
        "pairs": len(results_a),
        "a": _side(names[0], results_a),
        "b": _side(names[1], results_b),
        "speedup": dataclasses.asdict(speedup),
        "metric_difference": dataclasses.asdict(difference) if difference else None,
        "verdict": verdict(speedup, about_metric),
    }


@dataclasses.dataclass(frozen=True)
class MetricJudgement:
    """What can be said of B's metric against A's.

    Attributes:
      word: better, worse, same or not measured.
      harmless: a loss that matters is excluded.
      words: the figures, as the end of a sentence about B.
    """

    word: str
    harmless: bool
    words: str


def judge_metric(
    difference: Estimate | None,
    *,
    higher_is_better: bool,
    allowed: float,
    metric: str,
    how: str,
) -> MetricJudgement:
    """Judges B's metric minus A's.

    Args:
      difference: with its interval; None if the metric was not measured.
      higher_is_better: which way the metric improves.
      allowed: a loss that would not matter.
      metric: its name.
      how: what it was measured with, such as "these 5 pairs".
    """
    if difference is None:
        return MetricJudgement(NOT_MEASURED, False, "the validation metric was not measured")
    gain = difference if higher_is_better else difference.map(lambda value: -value)
    figures = f"{metric} {signed(difference.mean)} ({signed(difference.low)} to "
    figures += f"{signed(difference.high)})"
    if gain.low > 0:
        return MetricJudgement(BETTER, True, figures)
    if gain.high < 0:
        return MetricJudgement(WORSE, False, figures)
    loss = max(0.0, -gain.low)
    if loss <= allowed:
        return MetricJudgement(SAME, True, f"the same metric: {figures}")
    unsure = f"a loss of up to {number(loss)} cannot be told from none with {how}: {figures}"
    return MetricJudgement(SAME, False, unsure)


def verdict(speedup: Estimate, metric: MetricJudgement) -> dict[str, Any]:
    """Words for both, and a sentence in which a gain bought with the metric is no gain."""
    speed = FASTER if speedup.low > 1 else SLOWER if speedup.high < 1 else NO_DIFFERENCE
    fast = f"{spread(dataclasses.asdict(speedup), times)} the examples/s of A"
    harmless_gain = speed == FASTER and metric.harmless
    better_for_nothing = speed == NO_DIFFERENCE and metric.word == BETTER
    if metric.word == WORSE:
        joint = "and worse" if speed == SLOWER else "but worse"
    elif metric.word == BETTER:
        joint = "but better" if speed == SLOWER else "and better"
    else:
        joint = "and" if metric.harmless else "but"
    head = "no difference in speed" if speed == NO_DIFFERENCE else speed
    head = f"{head}, {joint}" if metric.word in (BETTER, WORSE) else head
    tail = metric.words if metric.word in (BETTER, WORSE) else f"{joint} {metric.words}"
    sentence = f"B is {head}: {fast}, {tail}."
    if speed == NO_DIFFERENCE:
        sentence = f"{head[0].upper()}{head[1:]}: B has {fast}, {tail}."
    return {
        "speed": speed,
        "metric": metric.word,
        "improvement": harmless_gain or better_for_nothing,
        "sentence": sentence,
    }


def screen(comparison: dict[str, Any]) -> str:
    """The comparison as a small table, the verdict's sentence last."""
    a, b = comparison["a"], comparison["b"]
    table = [
        ("", "A", "B"),
        ("examples/s", *(spread(side["examples_per_second"]) for side in (a, b))),
        ("step, ms", *(spread(side["step_ms"]) for side in (a, b))),
    ]
    if a["metric"] and b["metric"]:
        values = [spread(side["metric"], "{:.4f}".format) for side in (a, b)]
        table.append((a["metric"]["name"], *values))
    lines = [f"A  {a['name'] or 'the defaults'}", f"B  {b['name'] or 'the defaults'}", ""]
    lines += columns(table)
    if comparison["pairs"]:
        lines.append(f"{comparison['pairs']} pairs in turn, {a['examples']:,} examples each time")
    return "\n".join([*lines, "", comparison["verdict"]["sentence"]])


def columns(table: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, its columns aligned."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    pairs = [zip(row, widths, strict=True) for row in table]
    return ["  ".join(cell.ljust(width) for cell, width in row).rstrip() for row in pairs]


def spread(figures: Mapping[str, Any], write: Callable[[float], str] = number) -> str:
    """A figure with its interval, such as 1.34x (1.30-1.38), if it has one."""
    mean, low, high = (figures.get(name) for name in ("mean", "low", "high"))
    if mean is None or low is None or high is None:
        return "not known" if mean is None else write(mean)
    return f"{write(mean)} ({write(low).removesuffix('x')}-{write(high).removesuffix('x')})"


def signed(value: float) -> str:
    """Four decimals with their sign, or as many as it takes."""
    return f"{value:+.4f}" if abs(value) >= 1e-4 or value == 0 else f"{value:+.1e}"


def _side(name: str, results: Sequence[Result]) -> dict[str, Any]:
    values = [r["value"] for r in results]
    metric = None
    if None not in values:
        metric = {"name": results[0]["metric"], **dataclasses.asdict(mean_of(values))}
    return {
        "name": name,
        "examples_per_second": _estimate(results, "examples_per_second"),
        "step_ms": _estimate(results, "step_ms"),
        "metric": metric,
        "examples": results[0].get("examples"),
        "batch_size": results[0].get("batch_size"),
    }


def rate_estimate(values: Sequence[float]) -> dict[str, float]:
    """Mean and interval of what cannot be below zero."""
    estimate = mean_of(values)
    return {"mean": estimate.mean, "low": max(0.0, estimate.low), "high": estimate.high}


def _rates(windows: Sequence[Result]) -> Result:
    seconds = sum(window["seconds"] for window in windows)
    rate = sum(window["timed_examples"] for window in windows) / seconds
    return {"examples_per_second": rate, "step_ms": 1000 * windows[0]["batch_size"] / rate}


def _estimate(results: Sequence[Result], key: str) -> dict[str, float]:
    return rate_estimate([r[key] for r in results])
