"""Bars with intervals as one SVG file: light and dark, no script."""

import dataclasses
from collections.abc import Sequence
from html import escape

WIDTH, ROW, LEFT, LONGEST = 860, 34, 170, 420  # pixels: bars end at LEFT + LONGEST, words follow
STYLE = (
    ":root{--paper:#fff;--ink:#1b1f24;--muted:#5b6570;--bar:#3b73b9;--worse:#b3541e}"
    "@media (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e6e9ec;--muted:#9aa5b1;"
    "--bar:#6ea3e0;--worse:#e08a55}}"
    "text{font:13px system-ui,sans-serif;fill:var(--ink)}.muted{fill:var(--muted)}"
    ".paper{fill:var(--paper)}.bar{fill:var(--bar)}.worse{fill:var(--worse)}"
    "line{stroke:var(--ink);stroke-width:1.5}.ideal{stroke:var(--muted);stroke-dasharray:3 3}"
)


@dataclasses.dataclass(frozen=True)
class Bar:
    """One row.

    Attributes:
      name: to the left of it.
      words: to the right of it; with no value, in its place.
      value: its length, in any unit that all bars share; None draws no bar.
      low, high: its interval, if it has one.
      ideal: where a dashed mark stands, if one does.
      worse: coloured as a loss.
    """

    name: str
    words: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    ideal: float | None = None
    worse: bool = False


def chart(title: str, note: str, bars: Sequence[Bar]) -> str:
    """A self-contained SVG.

    Args:
      title: read out for who cannot see it.
      note: the line above the bars, that says what they show.
      bars: from top to bottom.
    """
    ends = [end for bar in bars for end in (bar.value, bar.high, bar.ideal) if end is not None]
    scale = LONGEST / max(ends, default=1.0)
    height = ROW * (len(bars) + 1) + 10
    told = "; ".join(f"{bar.name}: {bar.words}" for bar in bars)
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{escape(title)}</title><desc>{escape(told)}</desc><style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
            f'<text x="{LEFT}" y="22" class="muted">{escape(note)}</text>',
            *(_row(bar, place * ROW, scale) for place, bar in enumerate(bars, 1)),
            "</svg>\n",
        ]
    )


def _row(bar: Bar, top: int, scale: float) -> str:
    middle = top + ROW // 2
    name = f'<text x="{LEFT - 10}" y="{middle + 5}" text-anchor="end">{escape(bar.name)}</text>'
    if bar.value is None:
        words = escape(_short(bar.words))
        return f'{name}<text x="{LEFT}" y="{middle + 5}" class="muted">{words}</text>'
    kind = "worse" if bar.worse else "bar"
    length = scale * bar.value
    drawn = f'<rect class="{kind}" x="{LEFT}" y="{top + 7}" width="{length:.1f}" height="20"/>'
    if bar.low is not None and bar.high is not None:
        low, high = (LEFT + scale * end for end in (bar.low, bar.high))
        drawn += f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}"/>'
    if bar.ideal is not None:
        mark = LEFT + scale * bar.ideal
        drawn += f'<line class="ideal" x1="{mark:.1f}" y1="{top + 3}" x2="{mark:.1f}"'
        drawn += f' y2="{top + 31}"/>'
    words = f'<text x="{LEFT + LONGEST + 12}" y="{middle + 5}">{escape(bar.words)}</text>'
    return f"{name}{drawn}{words}"


def _short(words: str, most: int = 95) -> str:
    return words if len(words) <= most else words[: most - 3] + "..."
