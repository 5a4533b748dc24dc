"""The report's section on the GPUs: what was sampled on each card, over time."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from . import charts
from .wording import gibibytes, held_back, is_number, number, why_no_gpu

# Key of the series, its name, the unit drawn, and what a unit is in the series' own.
TRENDS = (
    ("utilization", "utilisation", "%", 1),
    ("power_w", "power", "W", 1),
    ("sm_clock_mhz", "SM clock", "MHz", 1),
    ("memory_bytes", "memory", "GiB", 2**30),
    ("temperature_c", "temperature", "°C", 1),
)

STEADY = 0.05  # of its mean, a minute: smaller trends of the utilisation are not worth a word


def gpu_section(document: Mapping[str, Any]) -> str:
    """One block a card, its charts on the axes that all cards share."""
    cards = document.get("gpu") or []
    if not cards:
        return f"<section><h2>GPU</h2><p>{escape(why_no_gpu(document))}</p></section>"
    tops = {key: _top(cards, key, scale) for key, _, _, scale in TRENDS}
    blocks = [_card(place, card, tops) for place, card in enumerate(cards)]
    heading = "GPU" if len(cards) == 1 else "GPUs"
    return f"<section><h2>{heading}</h2>{''.join(blocks)}</section>"


def _card(place: int, card: Mapping[str, Any], tops: Mapping[str, float]) -> str:
    series = card.get("series") or {}
    seconds = series.get("seconds") or []
    minis = []
    for key, name, unit, scale in TRENDS:
        values = [v / scale if is_number(v) else None for v in series.get(key) or ()]
        known = [v for v in values if v is not None]
        if known:
            title = f"GPU {place}: {name}"
            chart = charts.over_time(
                title, seconds, values, unit, top=tops[key], height=104, ticks=1
            )
            mean = f"{number(sum(known) / len(known))} {unit}"
            minis.append(
                f"<figure><figcaption>{name} <b>{escape(mean)}</b></figcaption>{chart}</figure>"
            )
    return (
        f'<div class="card"><h3>GPU {place} · {escape(str(card.get("name") or "unnamed"))}</h3>'
        f'<p>{escape(_summary(card))}</p><div class="minis">{"".join(minis)}</div></div>'
    )


def _summary(card: Mapping[str, Any]) -> str:
    words = []
    if is_number(card.get("utilization_mean")):
        words.append(f"busy {card['utilization_mean']:.0f} % of the time{_trend(card)}")
    if is_number(card.get("memory_peak_bytes")):
        words.append(f"peak memory {gibibytes(card['memory_peak_bytes'])}")
    if is_number(card.get("power_mean_w")):
        words.append(f"{number(card['power_mean_w'])} W on average")
    words += [more for more in (held_back(card), str(card.get("note") or "")) if more]
    return " · ".join(words)


def _trend(card: Mapping[str, Any]) -> str:
    """How the utilisation changes, which is a part of its mean a minute."""
    trend = card.get("utilization_trend")
    if not is_number(trend):
        return ""
    if abs(trend) < STEADY:
        return ", steadily"
    return f", {'rising' if trend > 0 else 'falling'} by {100 * abs(trend):.0f} % of that a minute"


def _top(cards: Sequence[Mapping[str, Any]], key: str, scale: float) -> float:
    """Where the axis of a trend ends, for all cards alike."""
    if key == "utilization":
        return 100.0
    values = [
        v / scale for c in cards for v in (c.get("series") or {}).get(key) or () if is_number(v)
    ]
    return charts.nice_top(max(values, default=1.0))
