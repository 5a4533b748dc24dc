"""The result as a picture: rates on a logarithmic axis, and how they grow where measured."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no window, and none needed
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

COLOURS = {"peer": "#8a8f98", "limit": "#c98a00", "ours": "#0f766e"}
MEANINGS = {"peer": "peers", "limit": "limits of the hardware", "ours": "this project"}


def draw(document: dict[str, Any], path: Path) -> None:
    """Draws the result of `input.py` as a PNG."""
    rows = [row for row in [*document["rows"].values()][-1] if not row["error"]]
    scaling = [(name, points) for name, points in document["scaling"].items() if points]
    if len(document["rows"]) > 1:
        scaling.insert(0, ("cores", by_cores(document["rows"])))
    height = 0.34 * max(4, len(rows)) + 1.4
    figure = plt.figure(figsize=(11, height + (3.4 if scaling else 0)), layout="constrained")
    grid = figure.add_gridspec(
        1 + bool(scaling), 12, height_ratios=[height, 3.4][: 1 + bool(scaling)]
    )
    bars(figure.add_subplot(grid[0, :]), rows, document)
    each = 12 // max(1, len(scaling))
    for number, (name, points) in enumerate(scaling):
        axes = figure.add_subplot(grid[1, number * each : (number + 1) * each])
        curves(axes, name, points)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def bars(axes: Axes, rows: list[dict[str, Any]], document: dict[str, Any]) -> None:
    """A dot and an interval for each contender; the slowest lowest."""
    ordered = sorted(rows, key=lambda row: row["per_second"]["median"])
    rates = [row["per_second"]["median"] for row in rows] or [1.0]
    low, high = min(rates) / 2, max(rates) * 2  # a wider interval is cut off there
    for place, row in enumerate(ordered):
        rate, colour = row["per_second"], COLOURS[row["kind"]]
        end = max(min(rate["high"], high), rate["median"])
        axes.hlines(place, low, rate["median"], color=colour, alpha=0.25, linewidth=5)
        axes.hlines(place, max(rate["low"], low), end, color=colour, linewidth=1.6)
        axes.plot(rate["median"], place, "o", color=colour, markersize=7)
        label = f"{rate['median']:,.0f}   ({row['per_cpu_second']['median']:,.0f} a CPU-second)"
        axes.text(end * 1.1, place, label, va="center", fontsize=8, color="#333333")
    axes.set_xscale("log")
    axes.set_xlim(low, high * 6)
    axes.set_ylim(-0.7, len(ordered) - 0.3)
    axes.set_yticks(range(len(ordered)), [row["name"] for row in ordered], fontsize=9)
    for tick, row in zip(axes.get_yticklabels(), ordered, strict=True):
        tick.set_color(COLOURS[row["kind"]])
    for kind, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, label=MEANINGS[kind])
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    axes.grid(axis="x", color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("images per second (logarithmic), median and 95 % interval")
    env = document["environment"]
    axes.set_title(
        f"Input alone, {[*document['rows']][-1]} ({env['processor']}), {document['photos']}, "
        f"batch {document['batch_size']}, {document['image_size']} pixels",
        loc="left",
        fontsize=10,
    )


def curves(axes: Axes, name: str, points: list[dict[str, Any]]) -> None:
    """Rate against one thing that grows, a line for each contender."""
    names = dict.fromkeys(point["name"] for point in points if not point["error"])
    highest = max([p["per_second"]["median"] for p in points if not p["error"]], default=1.0)
    for contender in names:
        own = [p for p in points if p["name"] == contender and not p["error"]]
        rates = [p["per_second"]["median"] for p in own]
        axes.plot([p["at"] for p in own], rates, "o-", label=contender)
    at = sorted({point["at"] for point in points})
    axes.set_xscale("log")
    axes.set_xticks(at, [f"{value:,}" for value in at])
    axes.minorticks_off()
    axes.set_ylim(0, 1.25 * highest)
    axes.set_xlabel(name)
    axes.set_ylabel("images/s")
    axes.grid(color="#e5e5e5", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)


def by_cores(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The contenders that are worth a line, at each number of cores."""
    shown = ("torchvision PIL", "DALI CPU", "originals, host", "prepared, device")
    return [
        row | {"at": int(cores.split()[0])}
        for cores, each in rows.items()
        for row in each
        if row["name"] in shown
    ]
