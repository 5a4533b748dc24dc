"""`train --benchmark`: builds the job, measures it whole and in parts, and says what limits it."""

import dataclasses
import json
import os
import platform
import resource
import time
from typing import Any

import keras
import tensorflow as tf

from .. import task
from ..data.caching import in_memory
from ..data.pipeline import examples_ahead, training_batches
from ..data.sources import first_records
from ..durable import write_durably
from ..job import Job, build
from ..run_directory import RunDirectory
from ..runtime import memory_limit, usable_cpus
from ..settings import Settings, to_json
from .cause import Verdict, find_cause
from .probes import Measured, Probe, measure, step_times
from .statistics import Estimate, mean_of, percentile, ratio_of

MEMORY_BATCHES = 4  # whose records the probe of the input from memory goes round


def benchmark(settings: Settings) -> int:
    """Measures, prints the verdict and writes benchmark.json. Returns the exit code."""
    run = RunDirectory(settings)
    job = build(settings, run.path)
    print(job.describe(), flush=True)
    probes, first_batch_s = _probes(job)
    measured = measure(probes)
    times = step_times(probes[0])
    repeats = {name: result.step_ms for name, result in measured.items()}
    verdict = find_cause(
        repeats["end_to_end"],
        repeats["input"],
        repeats["input_from_memory"],
        repeats["step_resident"],
        job.devices.kind,
    )
    validation = job.loop.evaluate(job.evaluation_batches, job.evaluation_count) or {}
    document = {
        "schema": 1,
        "environment": environment(job),
        "settings": to_json(job.settings),
        "throughput": _throughput(job, measured["end_to_end"], times),
        "startup": {
            "first_batch_s": first_batch_s,
            "first_step_s": measured["end_to_end"].first_call_s,
        },
        "probes": _probe_figures(measured),
        "gpu": [],
        "verdict": _verdict_figures(verdict),
        "order_slowdown": _order_slowdown(repeats),
        "predictions": [],
        "validation": {"metric": f"val_{task.METRIC}", "value": validation.get(task.METRIC)},
    }
    write_durably(run.path / "benchmark.json", json.dumps(document, indent=1) + "\n")
    print(_screen(job, document, verdict), flush=True)
    print(run.path / "benchmark.json")
    return 0


def environment(job: Job) -> dict[str, Any]:
    """What the figures hold for: versions, devices, CPUs, memory; no names, users or variables."""
    build_info = tf.sysconfig.get_build_info()
    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "cuda": build_info.get("cuda_version"),
        "cudnn": build_info.get("cudnn_version"),
        "platform": platform.platform(),
        "cpus": usable_cpus(),
        "cpus_of_machine": os.cpu_count(),
        "memory_bytes": memory_limit(),
        "memory_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "devices": list(job.devices.names),
        "precision": job.precision,
        "xla": job.jit,
    }


def _probes(job: Job) -> tuple[list[Probe], float]:
    """The probes, and the seconds that the first batch took to come."""
    loop, batch_size = job.loop, job.settings.batch_size
    began = time.perf_counter()
    whole = iter(loop.distribute(job.training_batches()))
    batch = next(whole)
    first_batch_s = time.perf_counter() - began
    alone = iter(loop.distribute(job.training_batches()))
    sample = first_records(job.splits.train, MEMORY_BATCHES * batch_size)
    from_memory = training_batches(
        in_memory(sample), job.decode_training, batch_size, job.settings.seed
    )
    remembered = iter(loop.distribute(from_memory))
    ahead = -(-examples_ahead(batch_size) // batch_size)
    probes = [
        Probe("end_to_end", lambda steps: loop.train(whole, steps), ahead),
        Probe("input", lambda steps: loop.consume(alone, steps), ahead),
        Probe("input_from_memory", lambda steps: loop.consume(remembered, steps), ahead),
        Probe("step_resident", lambda steps: loop.train_resident(batch, steps)),
    ]
    if job.settings.deterministic:
        any_order = iter(loop.distribute(job.training_batches(in_order=False)))
        probes.append(Probe("input_any_order", lambda steps: loop.consume(any_order, steps), ahead))
    return probes, first_batch_s


def _throughput(job: Job, end_to_end: Measured, times: list[float]) -> dict[str, Any]:
    step = mean_of(end_to_end.step_ms)
    rate = step.map(lambda ms: 1000 * job.settings.batch_size / ms)
    percentiles = {f"p{p}": percentile(times, p) for p in (10, 50, 90, 99)}
    return {
        "examples_per_second": dataclasses.asdict(rate),
        "step_ms": {"mean": step.mean, **percentiles},
    }


def _probe_figures(measured: dict[str, Measured]) -> dict[str, Any]:
    # The contract's probes that this form does not run stay null.
    names = ("end_to_end", "input", "input_from_memory", "step_resident")
    later = ("device", "host", "feed", "device_2x_batch")
    figures: dict[str, Any] = dict.fromkeys(later)
    for name in names:
        step = mean_of(measured[name].step_ms)
        figures[name] = {"step_ms": step.mean, "low": step.low, "high": step.high}
    return figures


def _order_slowdown(repeats: dict[str, list[float]]) -> dict[str, float] | None:
    """How much slower the input is for keeping the order; None if that was not measured."""
    if "input_any_order" not in repeats:
        return None
    slowdown = ratio_of(repeats["input"], repeats["input_any_order"])
    return dataclasses.asdict(slowdown)


def _verdict_figures(verdict: Verdict) -> dict[str, Any]:
    return {
        "cause": verdict.cause,
        "also": list(verdict.also),
        "confident": verdict.confident,
        "explanation": verdict.explanation,
        "device_busy_fraction": verdict.device_busy_fraction.mean,
        "ceiling_speedup": verdict.ceiling_speedup.mean,
    }


def _screen(job: Job, document: dict[str, Any], verdict: Verdict) -> str:
    """The result in a screenful, the verdict first."""
    rate = Estimate(**document["throughput"]["examples_per_second"])
    step = document["throughput"]["step_ms"]
    startup, validation = document["startup"], document["validation"]
    lines = [
        "",
        f"VERDICT    {verdict.cause}{'' if verdict.confident else ' (not certain)'}",
        *_wrapped(verdict.explanation, 88),
        "",
        f"throughput {rate.mean:,.0f} examples/s ({rate.low:,.0f}-{rate.high:,.0f})",
        f"step       {step['mean']:.3g} ms on average; one at a time: "
        + ", ".join(f"{name} {step[name]:.3g}" for name in ("p10", "p50", "p90", "p99")),
        f"start-up   first batch after {startup['first_batch_s']:.1f} s, first step "
        f"{startup['first_step_s']:.1f} s",
        f"memory     peak {document['environment']['memory_peak_bytes'] / 2**30:.1f} GiB",
        "GPU        none used: no utilisation to report"
        if job.devices.kind == "CPU"
        else "GPU        utilisation is not sampled yet",
    ]
    if document["order_slowdown"]:
        cost = Estimate(**document["order_slowdown"])
        lines.append(
            "order      the same batches in the same order always: the input takes "
            f"{cost.mean:.2f}x ({cost.low:.2f}-{cost.high:.2f}) as long"
        )
    if validation["value"] is not None:
        lines.append(
            f"{validation['metric']} {validation['value']:.4f} after the steps of this benchmark: "
            "watch it when you change something"
        )
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return ["           " + line for line in lines]
