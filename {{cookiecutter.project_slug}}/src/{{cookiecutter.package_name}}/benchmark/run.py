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
from ..command_line import to_flags, to_json
from ..durable import write_durably
from ..experiments import ledger
from ..job import Job, build
from ..report.page import html
from ..report.screen import screen
from ..run_directory import RunDirectory
from ..runtime import memory_limit, usable_cpus
from ..settings import Settings
from ..telemetry import GpuSampler
from .diagnosis import Diagnosis, diagnose
from .job_parts import JobParts
from .not_guilty import not_guilty
from .probes import Measured, Pace, step_times
from .statistics import Estimate, percentile, ratio_of, time_of


def benchmark(settings: Settings) -> int:
    """Measures, prints the verdict, writes benchmark.json and report.html; gives the exit code."""
    run = RunDirectory(settings)
    job = build(settings, run.path)
    print(job.describe(), flush=True)
    began = time.perf_counter()
    iterator = iter(job.loop.distribute(job.training_batches()))
    next(iterator)
    first_batch_s = time.perf_counter() - began
    del iterator
    sampler = GpuSampler(job.devices.names)
    parts = JobParts(job, sampler)
    more = ("input_any_order",) if job.settings.deterministic else ()
    diagnosis = diagnose(parts, Pace(), more)
    single = parts.probe("end_to_end")
    assert single, "every training has a probe of the whole"
    times = step_times(single)
    validation = job.loop.evaluate(job.evaluation_batches, job.evaluation_count) or {}
    measured = diagnosis.measured["end_to_end"]
    document: dict[str, Any] = {
        "schema": 1,
        "environment": environment(job),
        "settings": to_json(job.settings),
        "throughput": _throughput(job, measured, times),
        "startup": {"first_batch_s": first_batch_s, "first_step_s": measured.first_call_s},
        "probes": _probe_figures(diagnosis),
        "series": _series(measured, began),
        "step_times_ms": times,
        "parts": parts_of_a_step(diagnosis),
        "gpu": sampler.summary(),
        "gpu_absent": sampler.absent,
        "verdict": _verdict_figures(diagnosis),
        "order_slowdown": _order_slowdown(diagnosis.repeats),
        "predictions": _prediction_figures(diagnosis),
        "not_guilty": not_guilty(diagnosis, job.devices.kind, job.devices.replicas),
        "confirmations": [],
        "validation": {"metric": f"val_{task.METRIC}", "value": validation.get(task.METRIC)},
    }
    if settings.confirm:
        from ..experiments.experiment import confirm

        document["confirmations"] = confirm(job.settings, document["predictions"])
    write_durably(run.path / "benchmark.json", json.dumps(document, indent=1) + "\n")
    write_durably(run.path / "report.html", html(document))
    row = ledger.benchmark_row(document, to_flags(settings, ("run_dir", "benchmark", "confirm")))
    ledger.append(run.path.parent / ledger.NAME, row)
    print(screen(document), flush=True)
    for name in ("benchmark.json", "report.html"):
        print(run.path / name)
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


def parts_of_a_step(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Where a step's time goes: computing, host, waiting for input; in milliseconds that add up."""
    repeats, model = diagnosis.repeats, diagnosis.model
    whole = time_of(repeats["end_to_end"]).mean
    computing = min(whole, model.parts.device)
    beside_input = min(whole, max(computing, model.without_input()))
    # Each part's scatter is that of the probe that it comes from.
    spread = {name: time_of(values) for name, values in repeats.items()}
    rows = [
        ("computing", computing, spread["device"]),
        ("host between steps", beside_input - computing, spread["step_resident"]),
        ("waits for input", whole - beside_input, spread["end_to_end"]),
    ]
    return [
        {
            "name": name,
            "ms": ms,
            "low": max(0.0, ms - (of.mean - of.low)),
            "high": ms + (of.high - of.mean),
        }
        for name, ms, of in rows
    ]


def _throughput(job: Job, end_to_end: Measured, times: list[float]) -> dict[str, Any]:
    step = time_of(end_to_end.step_ms)
    rate = step.map(lambda ms: 1000 * job.settings.batch_size / ms)
    percentiles = {f"p{p}": percentile(times, p) for p in (10, 50, 90, 99)}
    return {
        "examples_per_second": dataclasses.asdict(rate),
        "step_ms": {"mean": step.mean, **percentiles},
    }


def _probe_figures(diagnosis: Diagnosis) -> dict[str, Any]:
    # The contract's probes that this branch did not need are null.
    names = ("end_to_end", "input", "input_from_memory", "step_resident", "device", "host", "feed")
    figures: dict[str, Any] = dict.fromkeys((*names, "device_2x_batch"))
    for name, repeats in diagnosis.repeats.items():
        figures[name] = _interval(time_of(repeats), "step_ms")
    return figures


def _series(measured: Measured, began: float) -> dict[str, list[float]]:
    """The end-to-end windows over the time since the first batch was asked for."""
    return {
        "seconds": [round(ended - began, 3) for ended, _ in measured.windows],
        "step_ms": [step_ms for _, step_ms in measured.windows],
    }


def _verdict_figures(diagnosis: Diagnosis) -> dict[str, Any]:
    verdict = diagnosis.verdict
    return {
        "cause": verdict.cause,
        "also": list(verdict.also),
        "confident": verdict.confident,
        "explanation": verdict.explanation,
        "device_busy_fraction": verdict.device_busy_fraction.mean,
        "ceiling_speedup": verdict.ceiling_speedup.mean,
    }


def _prediction_figures(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    return [
        {
            "change": prediction.change,
            "flags": prediction.flags,
            **_interval(prediction.speedup, "speedup"),
            "advice": prediction.advice,
        }
        for prediction in diagnosis.predictions
    ]


def _order_slowdown(repeats: dict[str, list[float]]) -> dict[str, float] | None:
    """How much slower the input is for keeping the order; None if that was not measured."""
    if "input_any_order" not in repeats:
        return None
    slowdown = ratio_of(repeats["input"], repeats["input_any_order"])
    return dataclasses.asdict(slowdown)


def _interval(estimate: Estimate, name: str) -> dict[str, float]:
    return {name: estimate.mean, "low": estimate.low, "high": estimate.high}
