"""The result of a benchmark in a terminal screenful, the verdict first."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from .wording import (
    DASH,
    INFINITY,
    cause_title,
    change_of,
    estimate,
    first_to_try,
    flags_text,
    gibibytes,
    held_back,
    inside,
    interval,
    is_number,
    number,
    percent,
    ranked,
    shares,
    times,
    why_no_gpu,
    why_no_predictions,
)

LINES, COLUMNS = 24, 100
MARGIN = 11  # columns of the names before the text
MOST_PREDICTIONS = 4
MOST_CONFIRMATIONS = 2
MOST_NOT_GUILTY = 2


def screen(document: Mapping[str, Any]) -> str:
    """The verdict and its figures in at most 24 lines of 100 columns; report.html has the rest.

    Args:
      document: what benchmark.json holds. Only "verdict" is needed.
    """
    lines = [
        "",
        *_verdict(document["verdict"]),
        "",
        *_predictions(document),
        *_confirmations(document),
        *_throughput(document),
        *_parts(document),
        *_startup(document),
        *_gpu(document),
        *_order(document),
        *_validation(document),
        *_not_guilty(document),
    ]
    return "\n".join(lines[:LINES])


def _verdict(verdict: Mapping[str, Any]) -> list[str]:
    doubts = [] if verdict.get("confident") else ["not certain"]
    doubts += [f"also {', '.join(verdict['also'])}"] if verdict.get("also") else []
    title = inside(cause_title(verdict["cause"]))
    title = title if title.startswith(verdict["cause"]) else f"{verdict['cause']}: {title}"
    head = title + (f" ({'; '.join(doubts)})" if doubts else "")
    explanation = _lines("", str(verdict.get("explanation") or ""), 5)
    return _lines("VERDICT", head, 2) + explanation


def _predictions(document: Mapping[str, Any]) -> list[str]:
    first = first_to_try(document)
    lines: list[str] = []
    best = first[0] if first else None
    rows = ranked(document.get("predictions"))
    rows.sort(key=lambda row: row[0] is not best)  # stable: the others stay in their order
    for prediction, gain in rows[:MOST_PREDICTIONS]:
        name = "TRY FIRST" if prediction is best else "" if lines else "predicted"
        what = flags_text(prediction.get("flags")) or change_of(prediction)
        lines += _lines(name, f"{times(gain.mean):>6} {interval(gain, times):<13} {what}", 1)
    return lines or _lines("predicted", why_no_predictions(document), 2)


def _confirmations(document: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for row in (document.get("confirmations") or [])[:MOST_CONFIRMATIONS]:
        predicted, obtained = estimate(row.get("predicted")), estimate(row.get("speedup"))
        words = [change_of(row)]
        words += [f"predicted {times(predicted.mean)}"] if predicted else []
        words += (
            [f"obtained {times(obtained.mean)} {interval(obtained, times)}"] if obtained else []
        )
        metric = (row.get("verdict") or {}).get("metric")
        words += [f"metric {metric}"] if metric else []
        lines += _lines("" if lines else "confirmed", ", ".join(words), 1)
    if not lines and (document.get("settings") or {}).get("confirm"):
        return _lines("confirmed", "Nothing was tried: no flag is sure to give a gain here.", 1)
    return lines


def _throughput(document: Mapping[str, Any]) -> list[str]:
    throughput = document.get("throughput") or {}
    rate, step = estimate(throughput.get("examples_per_second")), throughput.get("step_ms") or {}
    lines = []
    if rate:
        lines += _lines("throughput", f"{number(rate.mean)} examples/s {interval(rate)}", 1)
    singles = [
        f"{p} {number(step[p])}" for p in ("p10", "p50", "p90", "p99") if is_number(step.get(p))
    ]
    if is_number(step.get("mean")):
        words = f"{number(step['mean'])} ms on average"
        words += f"; one at a time: {', '.join(singles)}" if singles else ""
        lines += _lines("step", words, 1)
    return lines


def _parts(document: Mapping[str, Any]) -> list[str]:
    words = [f"{part['name']} {percent(share)}" for part, share in shares(document.get("parts"))]
    return _lines("goes to", ", ".join(words), 2)


def _startup(document: Mapping[str, Any]) -> list[str]:
    startup = document.get("startup") or {}
    names = (("first_batch_s", "first batch after"), ("first_step_s", "first step"))
    words = [f"{name} {startup[key]:.1f} s" for key, name in names if is_number(startup.get(key))]
    peak = (document.get("environment") or {}).get("memory_peak_bytes")
    words += [f"peak memory of the host {gibibytes(peak)}"] if is_number(peak) else []
    return _lines("start-up", ", ".join(words), 1)


def _gpu(document: Mapping[str, Any]) -> list[str]:
    cards = document.get("gpu") or []
    if not cards:
        return _lines("GPU", why_no_gpu(document), 1)
    words = [f"{len(cards)} x {cards[0].get('name')}"]
    for key, what, unit in (("utilization_mean", "busy", "%"), ("power_mean_w", "", "W")):
        words += _spread([card.get(key) for card in cards], what, unit)
    peaks = [
        card["memory_peak_bytes"] for card in cards if is_number(card.get("memory_peak_bytes"))
    ]
    words += [f"peak memory {gibibytes(max(peaks))}"] if peaks else []
    held = [held_back(card) for card in cards]
    words += list(dict.fromkeys(one for one in held if "never" not in one and one))[:1]
    return _lines("GPU", ", ".join(words), 2)


def _spread(values: Sequence[Any], what: str, unit: str) -> list[str]:
    """The least and the greatest of the cards' figures, once if they are written alike."""
    known = [value for value in values if is_number(value)]
    if not known:
        return []
    ends = dict.fromkeys(f"{value:.0f}" for value in (min(known), max(known)))
    return [f"{what} {'-'.join(ends)} {unit}".strip()]


def _order(document: Mapping[str, Any]) -> list[str]:
    cost = estimate(document.get("order_slowdown"))
    if not cost:
        return []
    words = "the same batches in the same order always: the input takes "
    return _lines("order", f"{words}{times(cost.mean)} {interval(cost, times)} as long", 1)


def _validation(document: Mapping[str, Any]) -> list[str]:
    validation = document.get("validation") or {}
    if not is_number(validation.get("value")):
        return []
    words = (
        f"{validation.get('metric')} {validation['value']:.4f} after the steps of this benchmark"
    )
    return _lines("metric", f"{words}: watch it when you change something", 1)


def _not_guilty(document: Mapping[str, Any]) -> list[str]:
    sentences = (document.get("not_guilty") or [])[:MOST_NOT_GUILTY]
    return [line for one in sentences for line in _lines("not guilty", str(one), 1)]


def _lines(name: str, words: str, most: int) -> list[str]:
    """Words beside their name, in at most so many lines; none for no words."""
    # Not every terminal shows these, and a control character in a path would be obeyed.
    words = words.replace(DASH, "-").replace(INFINITY, "inf")
    words = "".join(one if one.isprintable() else " " for one in words)
    lines = textwrap.wrap(words, COLUMNS - MARGIN, max_lines=most, placeholder=" ...")
    return [f"{name if place == 0 else '':<{MARGIN}}{line}" for place, line in enumerate(lines)]
