"""`train --find_batch_size`: the batch by examples a second, not only by what fits.

Each trial is a process of its own. One that runs out of memory, is ended by a signal or answers too
late has a batch that does not fit, and takes nothing else down with it.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..benchmark.statistics import Estimate, mean_of
from ..command_line import to_flags
from ..durable import write_durably
from ..errors import RunFailed, UserError
from ..progress import Progress
from ..report.wording import gibibytes
from ..runtime import memory_limit
from ..settings import Settings
from . import ledger
from .comparison import columns, spread
from .experiment import NO_TRAINING, output_directory
from .lane import Lane, LaneFailed

FIRST = 8  # examples a replica of the first trial
WINDOWS = 3  # of a trial; their spread says how far its rate is to be trusted
WINDOW_SECONDS = 1.0
TRIAL_SECONDS = 120.0  # that a trial may take, start of TensorFlow and compilation included
TOTAL_SECONDS = 240.0  # after which no new trial is begun
KNEE = 0.95  # of the best rate: the smallest batch that reaches it is recommended
FALLING = 0.95  # a rate surely below this part of the best ends the search upwards
# Adaptive optimizers divide a gradient by its own size: their rate grows with the root of the batch
# (Malladi and others 2022, arXiv 2205.10287); SGD's with the batch (Goyal and others 2017,
# arXiv 1706.02677).
ADAPTIVE = ("adam", "adagrad", "rmsprop", "lamb", "lion", "nadam")


@dataclasses.dataclass(frozen=True)
class Trial:
    """One batch size, and what came of it.

    Attributes:
      batch_size: examples of a global batch.
      rate: examples a second; None if it does not fit.
      memory: bytes at the peak; 0 if it does not fit.
      failure: why it does not fit, in words; "" if it does.
    """

    batch_size: int
    rate: Estimate | None
    memory: int = 0
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class Job:
    """What is known of the training before any trial.

    Attributes:
      batch_size, learning_rate: what it would use.
      unit: every batch is a multiple of it: replicas times accumulated parts.
      most: examples of the training split.
      optimizer: its class.
      metric: what to watch.
      on_cpu: True if batches lie in the host's memory.
    """

    batch_size: int
    learning_rate: float
    unit: int
    most: int
    optimizer: str
    metric: str
    on_cpu: bool


def find_batch_size(settings: Settings) -> int:
    """Searches, prints curve and advice, writes batch_size.json. Returns the exit code."""
    out = output_directory(settings.run_dir, "batch-size")
    flags = to_flags(settings, (*NO_TRAINING, "batch_size"))
    given = [f"--batch_size={settings.batch_size}"] if settings.batch_size else []
    with Lane([*flags, *given], "find_batch_size") as lane:
        job = describe(lane.describe(), settings.accumulate)
    with Progress("find_batch_size", _expected(job), "trial") as progress:
        trials = search(lambda size: try_batch(flags, size), job, progress)
    document = advice(trials, job, flags)
    out.mkdir(parents=True, exist_ok=True)
    write_durably(out / "batch_size.json", json.dumps(document, indent=1) + "\n")
    ledger.append(out.parent / ledger.NAME, {"what": "batch_size", "flags": flags, **document})
    print(screen(document))
    print(out / "batch_size.json")
    return 0


def describe(facts: dict[str, Any], accumulate: int) -> Job:
    """The job that a lane's facts describe."""
    return Job(
        batch_size=facts["batch_size"],
        learning_rate=facts["learning_rate"],
        unit=facts["replicas"] * accumulate,
        most=facts["training_examples"],
        optimizer=facts["optimizer"],
        metric=facts["metric"],
        on_cpu=facts["device"] == "CPU",
    )


def try_batch(
    flags: Sequence[str],
    batch_size: int,
    limit_s: float = TRIAL_SECONDS,
    started: Callable[[Lane], object] = lambda lane: None,
) -> Trial:
    """Trains with a batch in a new process; what does not fit is no error.

    Args:
      flags: of the training, without --batch_size.
      batch_size: to try.
      limit_s: seconds after which it counts as not fitting.
      started: told of the process before it is asked for anything.
    """
    end = time.monotonic() + limit_s
    with Lane([*flags, f"--batch_size={batch_size}"], f"--batch_size={batch_size}") as lane:
        started(lane)
        try:
            answers = [
                lane.rate(WINDOW_SECONDS, max(0.1, end - time.monotonic())) for _ in range(WINDOWS)
            ]
        except LaneFailed as error:
            if error.why not in ("memory", "signal", "time"):
                raise
            kind = {"memory": "out of memory", "time": f"not done within {limit_s:.0f} s"}
            failure = kind.get(error.why, str(error).partition(": ")[2])
            return Trial(batch_size, None, failure=failure)
    rate = mean_of([answer["examples_per_second"] for answer in answers])
    return Trial(batch_size, rate, answers[-1]["memory_peak_bytes"])


def search(
    attempt: Callable[[int], Trial],
    job: Job,
    progress: Progress,
    limit: int | None = None,
    total_s: float = TOTAL_SECONDS,
) -> list[Trial]:
    """Doubles the batch until it does not fit or is slower, then looks between; smallest first.

    Args:
      attempt: batch size -> trial.
      job: what is trained.
      progress: advances by one a trial.
      limit: bytes of memory that a trial on a CPU may take; None for what this process may use.
      total_s: seconds after which no new trial is begun.
    """
    end = time.monotonic() + total_s
    trials: dict[int, Trial] = {}
    limit = memory_limit() if limit is None else limit

    def tried(size: int) -> Trial:
        if size not in trials:
            needed = expected_memory(list(trials.values()), size) if job.on_cpu else 0
            if needed > limit:
                words = f"not tried: it would take about {gibibytes(needed)} of {gibibytes(limit)}"
                trials[size] = Trial(size, None, failure=words)
            else:
                trials[size] = attempt(size)
            rate = trials[size].rate
            said = f"{rate.mean:,.0f} examples/s" if rate else trials[size].failure
            progress.advance(1, f"batch {size}: {said}")
        return trials[size]

    size = min(FIRST * job.unit, job.most // job.unit * job.unit)
    if size == 0:
        raise UserError(f"the training split has {job.most} examples: no batch of {job.unit}")
    while size <= job.most and (size == FIRST * job.unit or time.monotonic() < end):
        trial = tried(size)
        if trial.rate is None or _falls(trial.rate, list(trials.values())):
            break
        size *= 2
    for size in _between(list(trials.values()), job.unit):
        if time.monotonic() < end:
            tried(size)
    return [trials[size] for size in sorted(trials)]


def expected_memory(trials: Sequence[Trial], size: int) -> int:
    """Bytes that a batch will take, along the line through the two largest that fit; 0: unknown."""
    known = sorted((t for t in trials if t.memory), key=lambda trial: trial.batch_size)[-2:]
    if len(known) < 2 or size <= known[1].batch_size:
        return 0
    slope = (known[1].memory - known[0].memory) / (known[1].batch_size - known[0].batch_size)
    return round(known[1].memory + max(0.0, slope) * (size - known[1].batch_size))


def knee(trials: Sequence[Trial]) -> Trial:
    """The smallest batch within 5 % of the best rate.

    Raises:
      RunFailed: not one fits.
    """
    rated = [(trial, trial.rate) for trial in trials if trial.rate]
    if not rated:
        raise RunFailed(f"no batch fits: {'; '.join(trial.failure for trial in trials)}")
    best = max(rate.mean for _, rate in rated)
    return next(trial for trial, rate in rated if rate.mean >= KNEE * best)


def learning_rate(job: Job, batch_size: int) -> tuple[float, str]:
    """The learning rate for another batch, and the rule it follows."""
    factor = batch_size / job.batch_size
    if any(name in job.optimizer.lower() for name in ADAPTIVE):
        return job.learning_rate * math.sqrt(factor), "square root"
    return job.learning_rate * factor, "linear"


def advice(trials: Sequence[Trial], job: Job, flags: Sequence[str]) -> dict[str, Any]:
    """What batch_size.json holds."""
    best, fitting = knee(trials), [trial for trial in trials if trial.rate]
    rate, rule = learning_rate(job, best.batch_size)
    largest = fitting[-1].batch_size
    proven = any(trial.rate is None and trial.batch_size > largest for trial in trials)
    new = f"--batch_size={best.batch_size} --learning_rate={rate:.4g}"
    old = f"--batch_size={job.batch_size} --learning_rate={job.learning_rate:.4g}"
    common = " ".join(flag for flag in flags if not flag.startswith("--learning_rate="))
    package = (__package__ or "").rpartition(".")[0]
    command = f'python -m {package}.compare "{old}" "{new}"'
    return {
        "schema": 1,
        "trials": [dataclasses.asdict(trial) for trial in trials],
        "knee": best.batch_size,
        "largest": largest,
        "largest_is_a_limit": proven,
        "training_examples": job.most,
        "was": {"batch_size": job.batch_size, "learning_rate": job.learning_rate},
        "learning_rate": rate,
        "rule": rule,
        "optimizer": job.optimizer,
        "metric": job.metric,
        "compare": command + (f" --common={json.dumps(common)}" if common else ""),
    }


def screen(document: dict[str, Any]) -> str:
    """The curve and the advice."""
    trials = document["trials"]
    most = max(trial["rate"]["mean"] for trial in trials if trial["rate"])
    table = [("batch", "examples/s", "")]
    for trial in trials:
        if trial["rate"]:
            bar = "#" * max(1, round(40 * trial["rate"]["mean"] / most))
            table.append((str(trial["batch_size"]), spread(trial["rate"]), bar))
        else:
            words = trial["failure"]
            words = words if words.startswith("not tried") else f"does not fit: {words}"
            table.append((str(trial["batch_size"]), "", words))
    largest = f"the largest that fits is {document['largest']:,}"
    if not document["largest_is_a_limit"]:
        largest = f"the largest tried is {document['largest']:,}, and it fits"
        if 2 * document["largest"] > document["training_examples"]:
            largest += f"; {document['training_examples']:,} are all there are to train on"
    was = document["was"]
    lines = [
        *columns(table),
        "",
        f"knee       {document['knee']:,}, the smallest batch within 5 % of the best rate",
        f"memory     {largest}",
        f"rate       with --batch_size={document['knee']} try "
        f"--learning_rate={document['learning_rate']:.4g}: the {document['rule']} rule for "
        f"{document['optimizer']}, from {was['learning_rate']:.4g} at {was['batch_size']}",
    ]
    if document["knee"] != was["batch_size"]:
        lines += [
            f"check      a larger batch makes fewer steps of the same examples: "
            f"{document['metric']} can fall. Measure it:",
            f"           {document['compare']}",
        ]
    return "\n".join(lines)


def _falls(rate: Estimate, trials: Sequence[Trial]) -> bool:
    """True if a rate is surely below the best one by more than `FALLING` allows."""
    best = max((trial.rate for trial in trials if trial.rate), key=lambda one: one.mean)
    return rate.high < FALLING * best.mean


def _between(trials: Sequence[Trial], unit: int) -> list[int]:
    """Sizes worth a trial after the doubling: below the knee, and below the first that failed."""
    sizes = []
    best = knee(trials).batch_size
    fitting = [trial.batch_size for trial in trials if trial.rate]
    if best // 2 in fitting:
        sizes.append(best * 3 // 4)
    failed = [trial.batch_size for trial in trials if not trial.rate]
    if failed:
        sizes.append(failed[0] * 3 // 4)
    return [size // unit * unit for size in sizes if size // unit * unit not in fitting]


def _expected(job: Job) -> int:
    """Trials that a search takes if everything fits."""
    return max(1, math.floor(math.log2(max(1, job.most / (FIRST * job.unit)))) + 1) + 1
