"""The ladder as one SVG file: a bar a rung, with its interval; light and dark, no script.

A bar is the product of the gains up to there. Rates would not do: rungs are measured at different
times, and only the two of a pair see the machine alike.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..report.wording import times
from .comparison import SLOWER, spread

WIDTH, ROW, LEFT, BARS = 860, 34, 170, 420  # pixels: bars end at LEFT + BARS, words follow
STYLE = (
    ":root{--paper:#fff;--ink:#1b1f24;--muted:#5b6570;--bar:#3b73b9;--worse:#b3541e}"
    "@media (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e6e9ec;--muted:#9aa5b1;"
    "--bar:#6ea3e0;--worse:#e08a55}}"
    "text{font:13px system-ui,sans-serif;fill:var(--ink)}.muted{fill:var(--muted)}"
    ".paper{fill:var(--paper)}.bar{fill:var(--bar)}.worse{fill:var(--worse)}"
    "line{stroke:var(--ink);stroke-width:1.5}"
)


def chart(rows: Sequence[Mapping[str, Any]]) -> str:
    """A self-contained SVG.

    Args:
      rows: the rungs as ladder.json holds them, each measured with those above it on.
    """
    most = 1.25 * max((row["in_all"] for row in rows if not row["absent"]), default=1.0)
    height = ROW * (len(rows) + 1) + 10
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>What each practice gives on this machine</title>",
        f"<desc>{escape(_description(rows))}</desc><style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text x="{LEFT}" y="22" class="muted">times as fast as plain, each practice added to '
        "those above it; the line is its own gain's interval</text>",
    ]
    for place, row in enumerate(rows, 1):
        body.append(_bar(row, place * ROW, most))
    return "".join([*body, "</svg>\n"])


def _bar(row: Mapping[str, Any], top: int, most: float) -> str:
    middle = top + ROW // 2
    name = f'<text x="{LEFT - 10}" y="{middle + 5}" text-anchor="end">{escape(row["name"])}</text>'
    if row["absent"]:
        words = escape(_short(f"does not apply here: {row['absent']}"))
        return f'{name}<text x="{LEFT}" y="{middle + 5}" class="muted">{words}</text>'
    end = BARS * row["in_all"] / most
    kind = "worse" if row.get("speed") == SLOWER else "bar"
    bar = f'<rect class="{kind}" x="{LEFT}" y="{top + 7}" width="{end:.1f}" height="20"/>'
    words = f"{times(row['in_all'])}"
    if "speedup" in row:
        gain = row["speedup"]
        low, high = (min(BARS, end * gain[side] / gain["mean"]) for side in ("low", "high"))
        bar += f'<line x1="{LEFT + low:.1f}" y1="{middle}" x2="{LEFT + high:.1f}" y2="{middle}"/>'
        words += f", gave {spread(gain, times)}"
    return f'{name}{bar}<text x="{LEFT + BARS + 12}" y="{middle + 5}">{words}</text>'


def _description(rows: Sequence[Mapping[str, Any]]) -> str:
    measured = [row for row in rows if not row["absent"]]
    return "; ".join(f"{row['name']} {times(row['in_all'])}" for row in measured)


def _short(words: str, most: int = 95) -> str:
    return words if len(words) <= most else words[: most - 3] + "..."
