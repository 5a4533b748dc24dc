"""What `--benchmark --scale` prints and draws, from what scaling.json holds."""

from collections.abc import Mapping
from typing import Any

from ..report.wording import times
from .bar_chart import Bar, chart
from .comparison import columns, spread

Document = Mapping[str, Any]


def screen(document: Document) -> str:
    """The series, what was lost, and the model."""
    xla = "on" if document["xla"] else "off"
    return "\n".join(
        [
            *_series(document),
            "",
            f"alike      {document['batch_per_replica']} examples a replica, "
            f"{document['precision']}, XLA {xla}, the counts in turn, {document['rounds']} times",
            *_sharing(document),
            "",
            *_model(document),
        ]
    )


def drawing(document: Document) -> str:
    """The series as an SVG: a bar a count, its interval, and the ideal."""
    one = document["series"][0]["examples_per_second"]["mean"]
    bars = []
    for row in document["series"]:
        rate, count = row["examples_per_second"], row["replicas"]
        words = f"{spread(rate)}/s"
        if row["efficiency"]:
            words += f", efficiency {spread(row['efficiency'], _percent)}"
        ends = (rate["mean"], rate["low"], rate["high"])
        ideal = one if document["shared"] else count * one
        name = "1 replica" if count == 1 else f"{count} replicas"
        bars.append(Bar(name, words, *ends, ideal=ideal))
    note = "examples a second, with the interval; the dashed mark is the ideal"
    return chart("The same work on more replicas", note, bars)


def _series(document: Document) -> list[str]:
    most = max(row["examples_per_second"]["mean"] for row in document["series"])
    table = [("replicas", "batch", "examples/s", "of each", "efficiency", "")]
    for row in document["series"]:
        rate, each = row["examples_per_second"], row["per_replica"]["mean"]
        efficiency = "" if row["replicas"] == 1 else f"none: {row['refused']}"
        if row["efficiency"]:
            efficiency = spread(row["efficiency"], _percent)
        bar = "#" * max(1, round(24 * rate["mean"] / most))
        counts = (str(row["replicas"]), str(row["batch_size"]))
        table.append((*counts, spread(rate), f"{each:,.0f}", efficiency, bar))
    return columns(table)


def _sharing(document: Document) -> list[str]:
    last = document["series"][-1]
    lost = last["lost"]
    if lost is None:
        return []
    whose = f"the ideal of {last['replicas']} replicas"
    if lost["mean"] <= 0:
        gained = spread(
            {"mean": 1 - lost["mean"], "low": 1 - lost["high"], "high": 1 - lost["low"]}, times
        )
        lines = [f"sharing    nothing is lost: {gained} {whose}"]
    else:
        low, high = (f"{100 * lost[end]:.0f}" for end in ("low", "high"))
        lines = [
            f"sharing    {_percent(lost['mean'])} of a step ({low} to {high}) beyond {whose}: "
            "communication, and input and host, which all share"
        ]
    wanted = document["batch_per_replica_under_goal"]
    if wanted and lost["mean"] > document["goal"]:
        lines.append(
            f"           under {_percent(document['goal'])} from about {wanted:,} examples a "
            "replica, if that cost stays and computing grows"
        )
    if document["shared"]:
        lines.append("           the replicas share the CPUs: the ideal is the rate of one")
    return lines


def _model(document: Document) -> list[str]:
    speeds = document["links"]["bytes_per_second"]
    links = ", ".join(f"{speed / 1e9:g} GB/s {link}" for link, speed in speeds.items())
    table = [("GPUs", "ring", "", "hierarchical", "")]
    for row in document["model"]:
        ring, hierarchical = (
            (f"{row[f'{kind}_ms']:.2f} ms", _percent(row[f"efficiency_{kind}"]))
            for kind in ("ring", "hierarchical")
        )
        table.append((str(row["gpus"]), *ring, *hierarchical))
    return [
        f"A model, not a measurement: {document['gradient_bytes'] / 1e6:,.2f} MB of gradients, "
        f"a step of {document['step_ms_of_one']:.2f} ms as here,",
        f"{links}, {document['gpus_of_a_host']} GPUs a host, nothing hidden behind computing:",
        *columns(table),
    ]


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"
