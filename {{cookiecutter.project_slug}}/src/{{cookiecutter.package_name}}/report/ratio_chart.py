"""Speed-ups with their intervals on a logarithmic axis, as inline SVG."""

import dataclasses
import math
from collections.abc import Sequence

from ..benchmark.statistics import Estimate
from .charts import anchor_at, rule, svg, text
from .wording import is_number, times

# Ticks of an axis of ratios: these first, then, where there is room, those.
FIRST_RATIOS = (0.01, 0.1, 0.5, 2, 10, 100)
MORE_RATIOS = (0.02, 0.05, 0.2, 0.8, 0.9, 1.1, 1.25, 1.5, 3, 4, 5, 6, 8, 20, 50, 200, 500)


@dataclasses.dataclass(frozen=True)
class RatioScale:
    """A logarithmic axis of speed-ups: twice as fast and twice as slow are equally far from 1."""

    low: float
    high: float

    def place(self, ratio: float) -> float:
        """Where a ratio lies, in percent of the width; the edges take what is beyond them."""
        if math.isnan(ratio) or ratio <= self.low:
            return 0.0
        if ratio >= self.high:
            return 100.0
        return 100 * math.log(ratio / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """1 and the round ratios that have room beside it."""
        chosen = [1.0]
        for ratio in (*FIRST_RATIOS, *MORE_RATIOS):
            near = min(abs(self.place(ratio) - self.place(other)) for other in chosen)
            if self.low < ratio < self.high and near > 12:
                chosen.append(ratio)
        return sorted(chosen)


def ratio_scale(figures: Sequence[Estimate], others: Sequence[float] = ()) -> RatioScale:
    """A scale that shows all figures; an interval far beyond them is cut off at the edge."""
    sizes = [f.mean for f in figures] + list(others) + [1.0]
    means = [size for size in sizes if is_number(size) and size > 0]
    ends = [e for f in figures for e in (f.low, f.high) if is_number(e) and e > 0]
    low = min(means + [max(end, min(means) / 2) for end in ends])
    high = max(means + [min(end, max(means) * 2) for end in ends])
    return RatioScale(min(low, 1.0) / 1.1, max(high * 1.1, 1.3))


def whisker(title: str, figure: Estimate, scale: RatioScale, ceiling: float | None) -> str:
    """A dot with its interval on the ratio axis; hollow if the interval has 1 in it.

    The lines of 1 and of the ceiling overflow; the style sheet cuts them off at the row's edges.
    """
    middle = 15
    # NaN ends fail the comparison: of what has no interval nothing is claimed.
    sure = figure.low > 1 or figure.high < 1
    left, right = scale.place(figure.low), scale.place(figure.high)
    body = [rule(scale.place(1), -300, scale.place(1), 330, "one")]
    if ceiling is not None:
        body.append(rule(scale.place(ceiling), -300, scale.place(ceiling), 330, "ceiling"))
    kind = "sure" if sure else "unsure"
    if not (math.isnan(figure.low) or math.isnan(figure.high)):
        body.append(rule(left, middle, right, middle, f"whisker {kind}"))
        body += [_arrow(100, 1, middle, kind)] if figure.high > scale.high else []
        body += [_arrow(0, -1, middle, kind)] if figure.low < scale.low else []
    body.append(
        f'<circle cx="{scale.place(figure.mean):.2f}%" cy="{middle}" r="5" class="{kind}"></circle>'
    )
    description = f"{times(figure.mean)}, between {times(figure.low)} and {times(figure.high)}."
    return svg(title, description, 30, "".join(body))


def ratio_axis(scale: RatioScale, ceiling: float | None) -> str:
    """The axis under a column of whiskers."""
    body = []
    for tick in scale.ticks():
        kind = "strong" if tick == 1 else ""
        body.append(rule(scale.place(tick), 0, scale.place(tick), 4, "axis"))
        body.append(text(scale.place(tick), 18, f"{tick:g}x", anchor_at(scale.place(tick)), kind))
    body.append(rule(0, 0, 100, 0, "axis"))
    if ceiling is not None:
        place = scale.place(ceiling)
        body.append(rule(place, 0, place, 24, "ceiling"))
        words = f"ceiling {times(ceiling)}"
        body.append(text(place, 36, words, "end" if place > 60 else "start", "ceiling"))
    return svg("Axis of speed-ups", "Ratio to the job as it is.", 42, "".join(body))


def _arrow(x: float, direction: int, y: float, kind: str) -> str:
    """Says that an interval goes on beyond the edge."""
    return (
        f'<svg x="{x}%" y="{y:g}" overflow="visible"><path class="arrow {kind}" '
        f'd="M{-7 * direction},-4 L0,0 L{-7 * direction},4"></path></svg>'
    )
