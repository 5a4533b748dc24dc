"""`train --benchmark --scale=1,2,4`: what more replicas give, each with the batch that one had.

The counts take turns, each in a process of its own. An efficiency is said only where replicas have
devices of their own and compute alike; what larger clusters would cost is a model, and called one.
"""

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..benchmark.statistics import Estimate, mean_of, ratio_of
from ..command_line import to_flags
from ..durable import write_durably
from ..errors import UserError
from ..progress import Progress
from ..settings import Settings
from . import ledger
from .experiment import NO_TRAINING, output_directory
from .lane import Lane
from .scaling_report import drawing, screen

ROUNDS = 5  # in which the counts take turns
WINDOW_SECONDS = 1.0
GOAL = 0.10  # of a step: the most that sharing it should take
CLUSTERS = (8, 64, 512)  # GPUs of the model
HOST_GPUS = 8
# The model's links, in one direction: NVLink within a host, 100 Gbit/s between hosts.
BYTES_PER_SECOND = {"within a host": 200e9, "between hosts": 12.5e9}
LATENCY_S = {"within a host": 3e-6, "between hosts": 15e-6}


@dataclasses.dataclass(frozen=True)
class Count:
    """What so many replicas gave.

    Attributes:
      replicas: of the run.
      rates: examples a second over all of them, one a round.
      facts: of the lane that trained, see `lane_child.py`.
    """

    replicas: int
    rates: tuple[float, ...]
    facts: Mapping[str, Any]


def scale(settings: Settings) -> int:
    """Measures the series, prints it, writes scaling.json. Returns the exit code."""
    counts = counts_of(settings.scale)
    out = output_directory(settings.run_dir, "scaling")
    left_out = (*NO_TRAINING, "batch_size", "strategy", "logical_devices")
    flags = to_flags(settings, left_out)
    on_cpu = settings.logical_devices > 0
    each = settings.batch_size
    measured: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    with (
        Progress("scale", len(counts) * ROUNDS, "window") as progress,
        contextlib.ExitStack() as opened,
    ):
        lanes: dict[int, Lane] = {}
        for count in counts:
            # The first one tells the batch of a replica where no flag gives it.
            batch = [f"--batch_size={each * count}"] if each else []
            given = [*flags, *batch, *_devices(count, on_cpu)]
            lane = Lane(given, f"--scale, {count} replicas", _gpus(count, on_cpu))
            lanes[count] = opened.enter_context(lane)
            facts = lane.describe()
            check_devices(count, facts, on_cpu)
            each = each or facts["batch_size"]
        for turn in range(ROUNDS):
            for count in counts if turn % 2 == 0 else reversed(counts):
                answer = lanes[count].rate(WINDOW_SECONDS)
                measured[count].append(answer)
                rate = answer["examples_per_second"]
                progress.advance(1, f"replicas {count}: {rate:,.0f} examples/s")
    series = [
        Count(count, tuple(a["examples_per_second"] for a in answers), answers[-1])
        for count, answers in measured.items()
    ]
    document = findings(series, each, shared=on_cpu)
    out.mkdir(parents=True, exist_ok=True)
    write_durably(out / "scaling.json", json.dumps(document, indent=1) + "\n")
    ledger.append(out.parent / ledger.NAME, {"what": "scaling", "flags": flags, **document})
    write_durably(out / "scaling.svg", drawing(document))
    print(f"{screen(document)}\n{out / 'scaling.json'}\n{out / 'scaling.svg'}")
    return 0


def counts_of(words: str) -> list[int]:
    """The replica counts of --scale, 1 first.

    Raises:
      UserError: they are no rising whole numbers that begin with 1.
    """
    parts = words.split(",")
    counts = [int(part) for part in parts if part.strip().isdecimal()]
    rising = all(a < b for a, b in itertools.pairwise(counts))
    if len(counts) != len(parts) or len(counts) < 2 or counts[0] != 1 or not rising:
        raise UserError(f"--scale={words}: give rising replica counts that begin at 1: --scale=1,2")
    return counts


def check_devices(count: int, facts: Mapping[str, Any], on_cpu: bool) -> None:
    """Raises `UserError` unless a lane has the replicas that it should have."""
    if facts["device"] == "CPU" and not on_cpu:
        raise UserError(
            "--scale: TensorFlow sees no GPU here: add --logical_devices=1 to measure on the CPU "
            "what sharing a step takes"
        )
    if facts["replicas"] != count:
        raise UserError(f"--scale: {count} replicas wanted, {facts['replicas']} GPUs are here")


def findings(series: Sequence[Count], each: int, shared: bool) -> dict[str, Any]:
    """What scaling.json holds.

    Args:
      series: one replica first.
      each: examples of a replica's batch.
      shared: True if all replicas are on the same CPUs; the ideal then is one's rate, not n times.
    """
    one = series[0]
    rows = [_row(count, one, shared) for count in series]
    step_s = each / mean_of(one.rates).mean
    largest = rows[-1]
    return {
        "schema": 1,
        "batch_per_replica": each,
        "precision": one.facts["precision"],
        "xla": one.facts["xla"],
        "devices": one.facts["device"],
        "shared": shared,
        "gradient_bytes": one.facts["gradient_bytes"],
        "step_ms_of_one": 1000 * step_s,
        "rounds": len(one.rates),
        "series": rows,
        "goal": GOAL,
        "batch_per_replica_under_goal": enough(each, largest["lost"]),
        "links": {"bytes_per_second": BYTES_PER_SECOND, "latency_s": LATENCY_S},
        "gpus_of_a_host": HOST_GPUS,
        "model": [
            {"gpus": gpus, **predicted(gpus, one.facts["gradient_bytes"], step_s)}
            for gpus in CLUSTERS
        ],
    }


def _row(count: Count, one: Count, shared: bool) -> dict[str, Any]:
    total = mean_of(count.rates)
    row = {
        "replicas": count.replicas,
        "batch_size": count.facts["batch_size"],
        "examples_per_second": dataclasses.asdict(total),
        "per_replica": dataclasses.asdict(total.map(lambda rate: rate / count.replicas)),
        "efficiency": None,
        "lost": None,
        "refused": "",
    }
    if count is one:
        return row
    unlike = [name for name in ("precision", "xla") if count.facts[name] != one.facts[name]]
    each = one.facts["batch_size"]
    if count.facts["batch_size"] != count.replicas * each:
        unlike.append("batch of a replica")
    if unlike:
        return row | {"refused": f"not alike: {', '.join(unlike)}"}
    gain = ratio_of(count.rates, one.rates)
    ideal = 1 if shared else count.replicas
    row["lost"] = dataclasses.asdict(_lost(gain, ideal))
    if shared:
        return row | {"refused": "the replicas share the CPUs"}
    return row | {"efficiency": dataclasses.asdict(gain.map(lambda g: g / count.replicas))}


def _lost(gain: Estimate, ideal: float) -> Estimate:
    """The part of a step beyond what computing alone would take; the interval turns round."""
    mean, low, high = (1 - g / ideal for g in (gain.mean, gain.high, gain.low))
    return Estimate(mean, low, high)


def enough(each: int, lost: Mapping[str, float] | None) -> int | None:
    """Examples a replica at which sharing takes `GOAL` of a step, its cost the same at any batch.

    Computing time is taken to grow with the batch. None where nothing was lost, or all unknown.
    """
    if lost is None or lost["low"] <= 0:
        return None
    part = lost["mean"]
    wanted = each * (part / (1 - part)) * ((1 - GOAL) / GOAL)
    return round(wanted)


def predicted(gpus: int, gradient_bytes: int, step_s: float) -> dict[str, float]:
    """Milliseconds of an all-reduce and the efficiency left, if nothing of it is hidden.

    A ring moves 2 (n - 1) / n of the bytes over its slowest link in 2 (n - 1) messages (Patarasuk
    and Yuan 2009, doi 10.1016/j.jpdc.2008.09.002). The hierarchical one does so within each host,
    and between hosts with one message ring of hosts (Jia and others 2018, arXiv 1807.11205).
    """
    hosts = max(1, gpus // HOST_GPUS)
    inside = _ring(min(gpus, HOST_GPUS), gradient_bytes, "within a host")
    ring = _ring(gpus, gradient_bytes, "between hosts" if hosts > 1 else "within a host")
    hierarchical = inside + _ring(hosts, gradient_bytes, "between hosts")
    return {
        "ring_ms": 1000 * ring,
        "hierarchical_ms": 1000 * hierarchical,
        "efficiency_ring": step_s / (step_s + ring),
        "efficiency_hierarchical": step_s / (step_s + hierarchical),
    }


def _ring(members: int, size: int, link: str) -> float:
    share = 2 * (members - 1) / members * size / BYTES_PER_SECOND[link]
    return share + 2 * (members - 1) * LATENCY_S[link]


def _devices(count: int, on_cpu: bool) -> list[str]:
    strategy = "--strategy=" + ("one_device" if count == 1 else "mirrored")
    return [strategy, *([f"--logical_devices={count}"] if on_cpu else [])]


def _gpus(count: int, on_cpu: bool) -> dict[str, str]:
    """The environment that shows a process the first GPUs only."""
    if on_cpu:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[:count])}
