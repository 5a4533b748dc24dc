"""The result: rows with ratios and intervals, the issue's targets, and a table on screen."""

import dataclasses
import importlib.util
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from measuring import Result
from photo_sets import PACKAGE

PIL, KERAS, DALI = "torchvision PIL", "image_dataset_from_directory", "DALI CPU"
DEVICE_PART = "device part, on this CPU"
PREPARED, RAW, ORIGINALS = "prepared, device", "raw, device", "originals, host"
RATE, CPU = "per_second", "per_cpu_second"
# above, below, what of them, at least this ratio: issue 3, "Done when"
TARGETS = (
    (PREPARED, PIL, RATE, 5.0),
    (PREPARED, f"{KERAS} + Keras layers", RATE, 2.8),
    (PREPARED, f"{KERAS}, no layers", RATE, 2.8),
    (RAW, PIL, RATE, 9.0),
    (ORIGINALS, DALI, RATE, 1.5),
    (ORIGINALS, f"{DALI}, uint8", RATE, 1.5),
    (ORIGINALS, PIL, RATE, 1.7),
    (PREPARED, "libjpeg-turbo, prepared", CPU, 0.9),
    (RAW, "read + copy, raw", RATE, 0.8),
    (RAW, "read + copy, raw", CPU, 0.8),
    ("prepare, whole command", "Pillow decode + resize + encode", RATE, 1.2),
)


def _statistics() -> Any:
    """The package's own statistics, so that there is one way to make an interval."""
    path = PACKAGE / "benchmark" / "statistics.py"
    spec = importlib.util.spec_from_file_location("interval_statistics", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


intervals = _statistics()


def rows_of(results: Sequence[Result], against: str) -> list[dict[str, Any]]:
    """A row for each contender; one that failed has its reason instead of figures.

    Args:
      results: what was measured.
      against: the contender that ratios are taken to, where it was measured.
    """
    base = next((r for r in results if r.contender.name == against and not r.error), None)
    rows = []
    for result in results:
        row: dict[str, Any] = {
            "name": result.contender.name,
            "kind": result.contender.kind,
            "options": result.contender.options,
            "gives": result.gives,
            "error": result.error,
            "windows": result.windows,
        }
        if not result.error:
            row |= {
                RATE: figures(result.per_second),
                CPU: figures(result.per_cpu_second),
                "ratio": ratio(result.per_second, base.per_second) if base else None,
                "cpus": sum(w["cpu_seconds"] for w in result.windows)
                / sum(w["seconds"] for w in result.windows),
                "peak_bytes": max(result.memory),
                # Of the last round to the second: the first may still have been filling buffers.
                "memory_growth": result.memory[-1] / result.memory[min(1, len(result.memory) - 1)],
            }
        rows.append(row)
    return rows


def done_when(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Issue 3's ratios, each with what was measured; without figures where a part failed."""
    by_name = {result.contender.name: result for result in results}
    verdicts = []
    for above, below, what, least in TARGETS:
        verdict: dict[str, Any] = {"above": above, "below": below, "what": what, "target": least}
        pair = [by_name[name] for name in (above, below) if name in by_name]
        if len(pair) < 2 or any(result.error for result in pair):
            verdict["met"] = None
        else:
            verdict |= ratio(*(getattr(result, what) for result in pair))
            verdict["met"] = verdict["median"] >= least
        verdicts.append(verdict)
    return verdicts


def figures(rounds: Sequence[float]) -> dict[str, float]:
    """Median, geometric mean and 95 % interval of a rate."""
    return ratio(rounds, [1.0] * len(rounds))


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Median ratio of rounds, pair by pair; geometric mean with its 95 % interval."""
    pairs = [a / b for a, b in zip(above, below, strict=True)]
    return {
        "median": statistics.median(pairs),
        **dataclasses.asdict(intervals.ratio_of(above, below)),
    }


def markdown(document: dict[str, Any]) -> str:
    """The whole result as Markdown, which is also what the screen shows."""
    env = document["environment"]
    parts = [
        f"{env['cpus']} CPU cores ({env['processor']}), {document['photos']}; "
        f"batch {document['batch_size']}, {document['image_size']} pixels, "
        f"{document['rounds']} rounds of {document['seconds']:g} s. "
        f"{', '.join(f'{name} {version}' for name, version in env['versions'].items())}."
    ]
    for cores, rows in document["rows"].items():
        parts.append(table(rows, f"on {cores}", document["against"]))
    parts.append(done_table(document["done_when"]))
    if document["device"]:
        parts.append(device_lines(document["device"], rows))
    for name, rows in document["scaling"].items():
        parts.append(scaling_table(name, rows))
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[dict[str, Any]], where: str, against: str) -> str:
    titles = [where, "images/s", "", "per CPU-s", "CPUs", f"x {against}", "", "memory", "gives"]
    cells = []
    for row in rows:
        if row["error"]:
            cells.append([f"{row['kind']}: {row['name']}", "none: see below", *[""] * 7])
            continue
        rate, times = row[RATE], row["ratio"]
        cells.append(
            [
                f"{row['kind']}: {row['name']}",
                f"{rate['median']:,.0f}",
                f"{rate['low']:,.0f}-{rate['high']:,.0f}",
                f"{row[CPU]['median']:,.0f}",
                f"{row['cpus']:.2f}",
                f"{times['median']:.2f}" if times else "",
                f"{times['low']:.2f}-{times['high']:.2f}" if times else "",
                f"{row['peak_bytes'] / 2**20:,.0f} MiB",
                row["gives"],
            ]
        )
    reasons = [f"- {row['name']}: {row['error']}" for row in rows if row["error"]]
    return "\n".join([aligned(titles, cells), *(["", *reasons] if reasons else [])])


def done_table(verdicts: Sequence[dict[str, Any]]) -> str:
    names = {RATE: "images/s", CPU: "images per CPU-s"}
    cells = []
    for v in verdicts:
        met = {True: "yes", False: "no", None: "not measured"}[v["met"]]
        seen = v["met"] is not None
        cells.append(
            [
                f"{v['above']} / {v['below']}",
                names[v["what"]],
                f"{v['target']:.2f}",
                f"{v['median']:.2f}" if seen else "",
                f"{v['low']:.2f}-{v['high']:.2f}" if seen else "",
                met,
            ]
        )
    return aligned(["done when", "of", "at least", "median", "95 %", "met"], cells)


def device_lines(device: dict[str, float], rows: Sequence[dict[str, Any]]) -> str:
    """What device augmentation asks of the device, so that no host figure stands alone."""
    share = device["augmentation"] / device["resnet50"]
    said = (
        f"Of the device, augmentation asks {device['augmentation'] / 1e9:.3f} GFLOP an image, "
        f"{100 * share:.2f} % of ResNet-50's training step ({device['resnet50'] / 1e9:.1f} GFLOP)"
    )
    row = next((row for row in rows if row["name"] == DEVICE_PART and not row["error"]), None)
    if row:
        said += f"; were this CPU the device, {1000 / row[CPU]['median']:.2f} CPU-ms an image"
    return f"{said}."


def scaling_table(name: str, rows: Sequence[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        figures_ = [row["error"], "", ""]
        if not row["error"]:
            memory = f"{row['peak_bytes'] / 2**20:,.0f} MiB"
            rates = [f"{row[what]['median']:,.0f}" for what in (RATE, CPU)]
            figures_ = [*rates, memory]
        cells.append([row["name"], f"{row['at']:,}", *figures_])
    return aligned([name, "at", "images/s", "per CPU-s", "memory"], cells)


def aligned(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose source is a table too."""
    widths = [max(len(row[c]) for row in [titles, *cells]) for c in range(len(titles))]
    lines = []
    for row in [titles, ["-" * width for width in widths], *cells]:
        padded = [
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(padded)} |")
    return "\n".join(lines)
