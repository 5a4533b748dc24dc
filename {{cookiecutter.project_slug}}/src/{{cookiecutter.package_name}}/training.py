"""Training: what happens between the steps, and how a run ends and goes on."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from . import task
from .checkpoints import Checkpoints
from .data.pipeline import examples_ahead, explain_bad_record
from .errors import TERMINATED, NotFinite, RunFailed
from .job import Job, build
from .loop import CallPace, require_finite
from .profiling import Profile, check_window, parse_window
from .progress import Progress
from .run_directory import RunDirectory
from .settings import Settings
from .telemetry import GpuSampler

# What TensorFlow raises at a record that is bad, damaged, missing, or gone with its file.
BAD_DATA = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
)
LOG_LINES = 200  # in metrics.jsonl over a whole run: enough for a curve, few enough to read


@dataclasses.dataclass
class State:
    """Where a run stands: what a checkpoint keeps beside the tensors."""

    step: int = 0
    seconds: float = 0.0  # of training and evaluation, over all restarts
    best: float | None = None  # validation metric
    best_step: int = 0
    evaluated: int = 0  # the last step after which there was an evaluation
    validation: dict[str, float] | None = None  # the latest
    window: list[float] = dataclasses.field(default_factory=list)  # losses since the last log line


class Stop:
    """SIGTERM, as schedulers send it: the loop asks `stop()` and ends at the next call.

    Until `hold` is called there is nothing to save and the process ends at once.
    """

    def __init__(self) -> None:
        self._asked = self._held = False
        signal.signal(signal.SIGTERM, self._receive)

    def hold(self) -> None:
        self._held = True

    def __call__(self) -> bool:
        return self._asked

    def _receive(self, number: int, frame: object) -> None:
        self._asked = True
        if not self._held:
            raise SystemExit(TERMINATED)


def train(settings: Settings) -> int:
    """Trains to the end or to SIGTERM, resuming what the run holds. Returns the exit code."""
    stop = Stop()
    profiled = parse_window(settings.profile)
    run = RunDirectory(settings)
    job = build(settings, run.path)
    check_window(profiled, job.steps)
    print(job.describe(), flush=True)
    checkpoints = Checkpoints(run.checkpoints, job.tracked())
    state = State()
    restored = checkpoints.restore()
    if restored:
        state = State(**restored.state)
        print(f"resuming {run.path} after step {state.step:,} of {job.steps:,}", flush=True)
    run.rewind(state.step)
    stop.hold()
    reason = "failed"
    try:
        with Profile(profiled, run.path / "events", state.step) as profile:
            reason = _fit(job, run, checkpoints, state, stop, profile)
    except NotFinite:
        reason = "nan_loss"
        raise
    finally:
        run.finish(_result(job, state, reason))
    print(_summary(run, job, state, reason), flush=True)
    return TERMINATED if reason == "terminated" else 0


def _fit(
    job: Job,
    run: RunDirectory,
    checkpoints: Checkpoints,
    state: State,
    stop: Stop,
    profile: Profile,
) -> str:
    """Runs the steps and evaluations that are left; returns why it ended."""
    borders = job.evaluation_steps()
    epoch = sum(step <= state.evaluated for step in borders)
    usual_pace = CallPace(job.settings.steps_per_call)
    callbacks = start_callbacks(job, epoch)
    iterator = iter(job.loop.distribute(job.training_batches(state.step)))
    saved_at = time.monotonic()
    with (
        Progress("train", job.steps, "step", state.step) as progress,
        GpuSampler(job.devices.names) as gpus,
    ):
        if gpus.absent and job.devices.kind == "GPU":
            progress.say(f"no figures of the GPUs in the log: {gpus.absent}")
        while epoch < len(borders) and not stop() and not job.model.stop_training:
            left = borders[epoch] - state.step
            if left:
                pace = profile.pace(state.step, usual_pace)
                steps = pace.take(profile.cut(state.step, left))
                with profile.step(state.step):
                    losses = _call(job, run, checkpoints, state, iterator, pace, steps, gpus)
                callbacks.on_train_batch_end(state.step - 1, {"loss": float(losses[-1])})
                rate = steps * job.settings.batch_size / pace.seconds
                progress.advance(steps, f"loss {losses[-1]:.4f}, {rate:,.0f} examples/s")
            elif _evaluate(job, run, checkpoints, state, stop):
                callbacks.on_epoch_end(epoch, _named(state))
                epoch, saved_at = epoch + 1, time.monotonic()
                if epoch < len(borders):
                    callbacks.on_epoch_begin(epoch)
            if time.monotonic() - saved_at > job.settings.checkpoint_seconds:
                checkpoints.save(state.step, dataclasses.asdict(state))
                saved_at = time.monotonic()
    callbacks.on_train_end()
    if epoch == len(borders):
        return "completed"
    checkpoints.save(state.step, dataclasses.asdict(state))
    return "terminated" if stop() else "stopped_by_callback"


def start_callbacks(job: Job, epoch: int = 0) -> keras.callbacks.CallbackList:
    """The task's callbacks, told that training and its epoch begin."""
    job.model.optimizer, job.model.stop_training = job.optimizer, False  # where callbacks look
    callbacks = keras.callbacks.CallbackList(task.make_callbacks(job.settings), model=job.model)
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(epoch)
    return callbacks


def call(
    job: Job, iterator: Any, pace: CallPace, step: int, steps: int, last_good: str
) -> np.ndarray:
    """One call of the loop, timed by `pace`; returns its losses, float32 [steps].

    Args:
      job: whose loop it is.
      iterator: over its distributed training batches.
      pace: what times it.
      step: how many steps were made before.
      steps: how many to make.
      last_good: a checkpoint's path, or words for none, for the message if the loss is not finite.

    Raises:
      NotFinite: the loss has become NaN or infinite.
      UserError: a record is bad; the message names it.
    """
    batch_size = job.settings.batch_size
    ahead = steps * batch_size + examples_ahead(batch_size, job.settings.host_threads)
    with _naming_bad_records(job, step * batch_size, ahead), pace:
        losses = job.loop.train(iterator, steps)
    require_finite(losses, step + 1, last_good)
    return losses


def evaluate(job: Job, stop: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
    """The loss and the metrics of the validation split; None if `stop` cut it short."""
    with _naming_bad_records(job, None, job.splits.validation.count):
        return job.loop.evaluate(job.evaluation_batches, job.evaluation_count, stop)


def _call(
    job: Job,
    run: RunDirectory,
    checkpoints: Checkpoints,
    state: State,
    iterator: Any,
    pace: CallPace,
    steps: int,
    gpus: GpuSampler,
) -> np.ndarray:
    """One call of the loop, counted and logged; returns its losses."""
    losses = call(job, iterator, pace, state.step, steps, checkpoints.newest())
    state.seconds += pace.seconds
    _log_steps(job, run, state, losses, pace.seconds, gpus)
    return losses


def _evaluate(
    job: Job, run: RunDirectory, checkpoints: Checkpoints, state: State, stop: Stop
) -> bool:
    """Evaluates, logs and saves; False if SIGTERM cut it short."""
    began = time.monotonic()
    values = evaluate(job, stop)
    state.seconds += time.monotonic() - began
    if values is None:
        return False
    state.validation, state.evaluated = values, state.step
    metric = values[task.METRIC]
    sign = 1 if task.HIGHER_IS_BETTER else -1
    better = state.best is None or sign * metric > sign * state.best
    if better:
        state.best, state.best_step = metric, state.step
    run.log({"step": state.step, "epoch": _epoch(job, state.step), **_named(state)})
    checkpoints.save(state.step, dataclasses.asdict(state), best=better)
    return True


def _log_steps(
    job: Job,
    run: RunDirectory,
    state: State,
    losses: np.ndarray,
    seconds: float,
    gpus: GpuSampler,
) -> None:
    """Counts the steps of one call, and logs the mean loss wherever a log line is due."""
    every = max(1, job.steps // LOG_LINES)
    step_seconds = seconds / len(losses)
    for value in losses.tolist():
        state.step += 1
        state.window.append(value)
        if state.step % every == 0 or state.step == job.steps:
            row = {
                "step": state.step,
                "epoch": _epoch(job, state.step),
                "loss": float(np.mean(state.window)),
                "learning_rate": float(job.schedule(state.step - 1)),
                "examples_per_second": job.settings.batch_size / step_seconds,
                "step_ms": 1000 * step_seconds,
                **gpus.latest(),
            }
            state.window = []
            run.log(row)


@contextlib.contextmanager
def _naming_bad_records(job: Job, start: int | None, ahead: int) -> Iterator[None]:
    """Turns an error of the data into one line that names file and record.

    Args:
      job: whose data it is.
      start: the first training position the block reads; None for the validation split.
      ahead: how many positions it can have read from there.
    """
    try:
        yield
    except BAD_DATA as error:
        splits, seed = job.splits, job.settings.seed
        if start is not None and job.settings.data_service:
            raise RunFailed(f"--data_service: {error.message.splitlines()[0]}") from error
        if start is None:
            found = explain_bad_record(splits.validation, job.decode_evaluation, None, 0, ahead)
        else:
            found = explain_bad_record(splits.train, job.decode_training, seed, start, ahead)
        if found:
            raise found from error
        raise


def _epoch(job: Job, step: int) -> float:
    return step * job.settings.batch_size / job.splits.train.count


def _named(state: State) -> dict[str, float]:
    return {f"val_{name}": value for name, value in (state.validation or {}).items()}


def _result(job: Job, state: State, reason: str) -> dict[str, Any]:
    final = (state.validation or {}).get(task.METRIC)
    return {
        "schema": 1,
        "last_step": state.step,
        "metric": f"val_{task.METRIC}",
        "final": final,
        "best": state.best,
        "best_step": state.best_step,
        "higher_is_better": task.HIGHER_IS_BETTER,
        "validation_examples": job.splits.validation.count,
        "examples_seen": state.step * job.settings.batch_size,
        "seconds": round(state.seconds, 3),
        "exit_reason": reason,
    }


def _summary(run: RunDirectory, job: Job, state: State, reason: str) -> str:
    result = _result(job, state, reason)
    score = "not evaluated"
    if result["final"] is not None:
        score = f"val_{task.METRIC} {result['final']:.4f}"
        score += f", best {state.best:.4f} at step {state.best_step:,}"
    return (
        f"{reason}: {score}; {state.step:,} steps, {result['examples_seen']:,} examples, "
        f"{state.seconds:.1f} s\n{run.path}"
    )
