"""The report's sections on gains: what each change is predicted to give, and what it gave."""

from collections.abc import Mapping
from html import escape
from typing import Any

from ..benchmark.statistics import Estimate
from .markup import four_places, section, table, with_interval
from .ratio_chart import RatioScale, ratio_axis, ratio_scale, whisker
from .wording import (
    change_of,
    estimate,
    flags_text,
    interval,
    is_number,
    ranked,
    times,
    why_no_predictions,
)


def predictions_section(document: Mapping[str, Any]) -> str:
    """A dot and whisker for each prediction, or why there is none."""
    rows = ranked(document.get("predictions"))
    ceiling = document["verdict"].get("ceiling_speedup")
    ceiling = ceiling if is_number(ceiling) and ceiling > 0 else None
    heading = "What each change would give"
    if not rows:
        return section(heading, f"<p>{why_no_predictions(document)}</p>")
    scale = ratio_scale([gain for _, gain in rows], [ceiling] if ceiling else [])
    items = []
    for prediction, gain in rows:
        flags, advice = flags_text(prediction.get("flags")), str(prediction.get("advice") or "")
        about = f"<p><code>{escape(flags)}</code></p>" if flags else ""
        about += f"<p>{escape(advice)}</p>" if advice else ""
        items.append(_gain(change_of(prediction), about, gain, scale, ceiling))
    notes = ["Predicted speed-up over the job as it is; a hollow dot cannot be told from none."]
    if ceiling:
        notes.append(f"No change of the input can give more than the ceiling, {times(ceiling)}.")
    return section(
        heading,
        f'<ol class="gains">{"".join(items)}{_scale_item(scale, ceiling)}</ol>'
        f'<p class="note">{" ".join(notes)}</p>',
    )


def confirmations_section(document: Mapping[str, Any]) -> str:
    """What changes gave, below what was predicted of them; nothing if none was tried."""
    items, scales = [], []
    rows = document.get("confirmations") or []
    for row in rows:
        scales += [
            one for one in (estimate(row.get("predicted")), estimate(row.get("speedup"))) if one
        ]
    scale = ratio_scale(scales)
    for row in rows:
        predicted, obtained = estimate(row.get("predicted")), estimate(row.get("speedup"))
        sentence = (row.get("verdict") or {}).get("sentence")
        about = f"<p>{escape(str(sentence))}</p>" if sentence else ""
        if predicted:
            items.append(_gain(f"{change_of(row)}: predicted", "", predicted, scale, None))
        if obtained:
            items.append(_gain(f"{change_of(row)}: obtained", about, obtained, scale, None))
    if not rows:
        return ""
    tables = "".join(_sides(row) for row in rows)
    chart = f'<ol class="gains">{"".join(items)}{_scale_item(scale, None)}</ol>' if items else ""
    return section("Predicted and obtained", chart + tables)


def _sides(row: Mapping[str, Any]) -> str:
    """The two sides of a controlled comparison, with the metric of both."""
    lines, names = [], []
    for side in ("a", "b"):
        figures = row.get(side) or {}
        rate, metric = estimate(figures.get("examples_per_second")), estimate(figures.get("metric"))
        names.append(str((figures.get("metric") or {}).get("name") or ""))
        lines.append(
            f'<tr><th scope="row"><code>{escape(str(figures.get("name") or side))}</code></th>'
            f'<td class="number">{with_interval(rate)}</td>'
            f'<td class="number">{with_interval(metric, four_places)}</td></tr>'
        )
    metric_name = next((name for name in names if name), "metric")
    return table((change_of(row), "examples/s", metric_name), lines, numbers=2)


def _gain(title: str, about: str, gain: Estimate, scale: RatioScale, ceiling: float | None) -> str:
    """A line of a chart of ratios; `about` is markup."""
    return (
        f"<li><div><h3>{escape(title)}</h3>{about}</div>"
        f'<div class="chart">{whisker(title, gain, scale, ceiling)}</div>'
        f'<div class="value"><b>{times(gain.mean)}</b><small>{interval(gain, times)}</small></div>'
        "</li>"
    )


def _scale_item(scale: RatioScale, ceiling: float | None) -> str:
    axis = ratio_axis(scale, ceiling)
    return f'<li class="scale" aria-hidden="true"><div class="chart">{axis}</div></li>'
