"""Charts as inline SVG: no script, no file beside them, legible at any width.

Places along the width are percentages, heights are pixels. So text keeps its size on a narrow
screen, and only lines are stretched, in an SVG of their own whose strokes do not scale.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from ..benchmark.statistics import Estimate
from .wording import is_number, number

BINS = 32


def svg(title: str, description: str, height: float, body: str) -> str:
    """A chart of full width and `height` pixels, with what a screen reader says of it."""
    return (
        f'<svg role="img" width="100%" height="{height:g}"><title>{escape(title)}</title>'
        f"<desc>{escape(description)}</desc>{body}</svg>"
    )


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Words at x percent and y pixels."""
    return (
        f'<text x="{x:.2f}%" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'
    )


def rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line, x in percent and y in pixels."""
    return f'<line x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}" class="{kind}"></line>'


def over_time(
    title: str,
    seconds: Sequence[Any],
    values: Sequence[Any],
    unit: str,
    *,
    top: float,
    height: int = 190,
    ticks: int = 4,
    level: float | None = None,
) -> str:
    """A line over time, from zero to `top`; what is above is drawn at the top edge, and counted.

    Args:
      title: what it shows.
      seconds, values: the points; one that is not a number breaks the line.
      unit: of the values.
      top: where the axis ends.
      height: of the chart in pixels.
      ticks: about how many values are marked on the axis.
      level: a value to draw a line at, labelled as the mean.
    """
    points = [
        (s, v) if is_number(s) and is_number(v) else None
        for s, v in zip(seconds, values, strict=False)
    ]
    known = [point for point in points if point]
    if not known:
        return f"<p>{escape(title)}: nothing was sampled.</p>"
    upper, lower = 16.0, height - 22.0
    start, end = known[0][0], max(known[-1][0], known[0][0])
    span = end - start or 1.0

    def x(second: float) -> float:
        return 100 * (second - start) / span if end > start else 50.0

    def y(value: float) -> float:
        return lower - (lower - upper) * min(max(value / top, 0.0), 1.0)

    marks = nice_ticks(0, top, ticks) if ticks > 1 else [0.0, top]
    body = [
        *(rule(0, y(m), 100, y(m), "grid" if m else "axis") for m in marks),
        _seconds(start, end, x, height - 6, ticks),
    ]
    if ticks == 1:  # a small chart: its one value has room above the line
        body.append(text(0, y(top) - 4, f"{top:,.6g} {unit}"))
    if level is not None and 0 < level <= top:
        body.append(rule(0, y(level), 100, y(level), "level"))
    body.append(_line(points, x, y, upper, lower))
    if len(known) <= 40:
        body += [
            f'<circle cx="{x(s):.2f}%" cy="{y(v):.1f}" r="2.2" class="dot"></circle>'
            for s, v in known
        ]
    above = [v for _, v in known if v > top]
    if above:
        body.append(text(100, 10, f"{len(above)} above, up to {number(max(above))} {unit}", "end"))
    if level is not None and 0 < level <= top:
        body.append(text(100, y(level) - 5, f"mean {number(level)} {unit}", "end", "strong"))
    means = [v for _, v in known]
    description = (
        f"{len(known)} values over {number(end - start)} s, from {number(min(means))} to "
        f"{number(max(means))} {unit}, {number(sum(means) / len(means))} on average."
    )
    chart = svg(title, description, height, "".join(body))
    return chart if ticks == 1 else f'<div class="plot">{_gutter(marks, y, height)}{chart}</div>'


def histogram(
    title: str, values: Sequence[float], unit: str, marks: Sequence[tuple[str, float]]
) -> str:
    """How often each value came, and where the percentiles lie.

    Args:
      title: what it shows.
      values: one or more numbers.
      unit: of the values.
      marks: (name, value) in order of importance; one that has no room keeps its line only.
    """
    height, upper, lower = 190, 34.0, 168.0
    ordered = sorted(values)
    # A stall a hundred times longer than a step would squeeze all others into one bin.
    most = min(ordered[-1], 4 * ordered[len(ordered) // 2])
    least = min(ordered[0], most)
    margin = 0.05 * (most - least) or 0.05 * most or 1.0
    start, end = max(0.0, least - margin), most + margin
    width = (end - start) / BINS
    counts = [0] * BINS
    for value in ordered:
        if value <= most:
            counts[min(int((value - start) / width), BINS - 1)] += 1
    body = []
    for column, count in enumerate(counts):
        tall = (lower - upper) * count / max(counts)
        body.append(
            f'<rect x="{100 * column / BINS:.3f}%" y="{lower - tall:.1f}" '
            f'width="{100 / BINS:.3f}%" height="{tall:.1f}" class="bin"></rect>'
        )
    body.append(rule(0, lower, 100, lower, "axis"))
    for tick in nice_ticks(start, end, 5):
        place = 100 * (tick - start) / (end - start)
        body.append(text(place, height - 6, f"{tick:,.6g}", anchor_at(place)))
    taken: list[float] = []
    for name, value in marks:
        place = 100 * (value - start) / (end - start)
        if 0 <= place <= 100:
            body.append(rule(place, 20, place, lower, "level"))
            if all(abs(place - other) > 8 for other in taken):
                body.append(text(place, 14, name, anchor_at(place), "strong"))
                taken.append(place)
    beyond = len(ordered) - sum(counts)
    if beyond:
        words = f"{beyond} longer, up to {number(ordered[-1])} {unit}"
        body.append(text(100, lower - 8, words, "end"))
    description = (
        f"{len(ordered)} values from {number(ordered[0])} to {number(ordered[-1])} {unit}."
    )
    return svg(title, description, height, "".join(body))


def bar(title: str, figure: Estimate, most: float) -> str:
    """A bar from zero with the interval of its end, on an axis that ends at `most`."""

    def place(value: float) -> float:
        return 100 * min(max(value / most, 0.0), 1.0)

    body = [f'<rect x="0" y="5" width="{place(figure.mean):.2f}%" height="10" class="bin"></rect>']
    if not (math.isnan(figure.low) or math.isnan(figure.high)):
        body.append(rule(place(figure.low), 10, place(figure.high), 10, "whisker"))
    return svg(title, f"{number(figure.mean)} ms", 20, "".join(body))


def nice_ticks(low: float, high: float, about: int) -> list[float]:
    """Round values between two, 1, 2 or 5 times a power of ten apart."""
    if not high > low:
        return [low]
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [step * k for k in range(first, math.floor(high / step + 1e-9) + 1)]


def nice_top(value: float) -> float:
    """A round value not below another, for the end of an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * m for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if power * m >= value)


def _gutter(marks: Sequence[float], y: Any, height: float) -> str:
    """The values of the grid lines, beside the chart."""
    words = "".join(text(100, y(mark) + 4, f"{mark:,.6g}", "end") for mark in marks)
    return f'<svg width="100%" height="{height:g}" aria-hidden="true">{words}</svg>'


def _seconds(start: float, end: float, x: Any, baseline: float, ticks: int) -> str:
    marks = nice_ticks(start, end, ticks + 1) if ticks > 1 else [start, end]
    words = [f"{mark:,.6g}" for mark in marks]
    words[-1] += " s"
    pairs = zip(marks, words, strict=True)
    return "".join(text(x(m), baseline, word, anchor_at(x(m))) for m, word in pairs)


def _line(points: Sequence[Any], x: Any, y: Any, upper: float, lower: float) -> str:
    """Polylines through the points, one for each stretch without a gap."""
    stretches: list[list[str]] = [[]]
    for point in points:
        if point is None:
            stretches.append([])
        else:
            share = 100 * (y(point[1]) - upper) / (lower - upper)
            stretches[-1].append(f"{x(point[0]):.2f},{share:.2f}")
    lines = [
        f'<polyline points="{" ".join(stretch)}" vector-effect="non-scaling-stroke"></polyline>'
        for stretch in stretches
        if len(stretch) > 1
    ]
    return (
        f'<svg x="0" y="{upper:g}" width="100%" height="{lower - upper:g}" viewBox="0 0 100 100" '
        f'preserveAspectRatio="none" overflow="visible" class="line">{"".join(lines)}</svg>'
    )


def anchor_at(place: float) -> str:
    """How a label is anchored at a percentage of the width: at an edge, so that it stays inside."""
    return "start" if place < 6 else "end" if place > 94 else "middle"
