"""Pieces of HTML that several sections of the report are made of. They escape what they are given,
but for arguments that are markup, which say so."""

from collections.abc import Callable, Sequence
from html import escape

from ..benchmark.statistics import Estimate
from .wording import DASH, interval, is_number, number


def section(heading: str, body: str) -> str:
    """A section; `body` is markup."""
    return f"<section><h2>{escape(heading)}</h2>{body}</section>"


def figure(caption: str, chart: str) -> str:
    """A chart, which is markup, under its caption."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart}</figure>"


def table(heads: Sequence[str], rows: Sequence[str], numbers: int) -> str:
    """A table whose last `numbers` columns hold figures; `rows` are markup."""
    cells = []
    for place, head in enumerate(heads):
        kind = ' class="number"' if place >= len(heads) - numbers else ""
        cells.append(f'<th scope="col"{kind}>{escape(head)}</th>')
    return f"<table><thead><tr>{''.join(cells)}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def with_interval(one: Estimate | None, write: Callable[[float], str] = number) -> str:
    """A figure and its interval, or a dash."""
    return f"{write(one.mean)} <small>{interval(one, write)}</small>" if one else DASH


def four_places(value: float) -> str:
    """A metric: three digits would hide what a change does to it."""
    return f"{value:.4f}" if is_number(value) and abs(value) < 10 else number(value)
