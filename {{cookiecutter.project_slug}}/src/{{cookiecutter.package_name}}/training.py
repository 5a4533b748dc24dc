"""Training: what happens between the steps, and how a run ends and goes on."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from . import task
from .checkpoints import Checkpoints
from .command_line import to_json
from .data.pipeline import examples_ahead, explain_bad_record
from .distribution import Devices, choose_cluster, choose_devices
from .errors import TERMINATED, NotFinite, RunFailed
from .job import Job, build
from .loop import CallPace, require_finite
from .profiling import Profile, check_window, parse_window
from .progress import Progress
from .run_directory import RunDirectory
from .settings import Settings
from .signals import Stop
from .state import State, result_of, summary_of
from .telemetry import GpuSampler
from .watchdog import Watchdog

# What TensorFlow raises at a record that is bad, damaged, missing, or gone with its file.
BAD_DATA = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
)
HOSTS_OWN = ("run_dir", "cache_dir", "host_threads", "stall_seconds")  # a host's own affair
LOG_LINES = 200  # in metrics.jsonl over a whole run: enough for a curve, few enough to read


def train(settings: Settings) -> int:
    """Trains to the end or to SIGTERM, resuming what the run holds. Returns the exit code."""
    profiled = parse_window(settings.profile)
    # Before SIGTERM is caught: it must end a host that waits for the others.
    devices = choose_devices(settings, choose_cluster(settings.strategy))
    with devices.hosts.noticing_absence():
        return _train(settings, devices, profiled)


def _train(settings: Settings, devices: Devices, profiled: range) -> int:
    hosts, state = devices.hosts, State()
    watchdog = Watchdog("train", settings.stall_seconds, lambda: _stalled(state))
    stop = Stop(watchdog)
    hosts.require_same(to_json(settings), HOSTS_OWN)
    with hosts.together():
        run = RunDirectory(settings, hosts.chief)
    job = build(settings, run.path, devices)
    check_window(profiled, job.steps)
    hosts.say(job.describe())
    checkpoints = Checkpoints(run.checkpoints, job.tracked(), chief=hosts.chief)
    if _resume(job, checkpoints, state):
        hosts.say(f"resuming {run.path} after step {state.step:,} of {job.steps:,}")
    elif settings.nan_budget:
        checkpoints.save(0, dataclasses.asdict(state))  # to go back to
    run.rewind(state.step)
    stop.hold()
    reason = "failed"
    try:
        with watchdog, Profile(profiled, run.path / "events", state.step, hosts.least) as profile:
            while reason == "failed":
                try:
                    reason = _fit(job, run, checkpoints, state, stop, profile)
                except NotFinite as error:
                    _go_back(job, run, checkpoints, state, error)
    except NotFinite:
        reason = "nan_loss"
        raise
    finally:
        run.finish(result_of(job, state, reason))
    hosts.say(summary_of(run.path, job, state, reason))
    return TERMINATED if reason == "terminated" else 0


def _go_back(
    job: Job, run: RunDirectory, checkpoints: Checkpoints, state: State, error: NotFinite
) -> None:
    """Restores the last checkpoint, to leave out the batch without a finite loss this time.

    Raises:
      NotFinite: the same, if too many have been left out.
    """
    left_out, most = [*state.left_out, error.step], job.settings.nan_budget
    if len(left_out) > most:
        raise error
    _resume(job, checkpoints, state)
    state.left_out = left_out
    run.rewind(state.step)
    job.devices.hosts.say(
        f"the loss is not finite at step {error.step:,}: leaving its batch out, {len(left_out)} of "
        f"at most {most}, and going on after step {state.step:,}"
    )


def _resume(job: Job, checkpoints: Checkpoints, state: State) -> bool:
    """Restores the newest checkpoint, on all hosts from the chief's; False if there is none."""
    hosts = job.devices.hosts
    with hosts.together():
        restored = checkpoints.restore()
    values = json.loads(hosts.texts(json.dumps(restored.state if restored else {}))[0])
    for name, value in values.items():
        setattr(state, name, value)
    if values:
        hosts.follow_chief(job.variables())
    return bool(values)


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
    hosts = job.devices.hosts
    usual_pace = CallPace(job.settings.steps_per_call, hosts.least)
    callbacks = start_callbacks(job, epoch)
    iterator = iter(job.loop.distribute(job.training_batches(state.step)))
    saved_at = time.monotonic()
    with (
        Progress("train", job.steps, "step", state.step, quiet=not hosts.chief) as progress,
        GpuSampler(job.devices.names) as gpus,
    ):
        if gpus.absent and job.devices.kind == "GPU":
            progress.say(f"no figures of the GPUs in the log: {gpus.absent}")
        while epoch < len(borders):
            left = borders[epoch] - state.step
            if left and state.step + 1 in state.left_out:
                job.loop.consume(iterator, 1)
                state.step += 1
                progress.advance(1)
            elif left:
                left = min([left, *(out - 1 - state.step for out in state.ahead())])
                pace = profile.pace(state.step, usual_pace)
                ended = stop() or job.model.stop_training
                steps = pace.take(profile.cut(state.step, left), ended)
                if not steps:
                    break
                with profile.step(state.step):
                    losses = _call(job, run, checkpoints, state, iterator, pace, steps, gpus)
                callbacks.on_train_batch_end(state.step - 1, {"loss": float(losses[-1])})
                rate = steps * job.settings.batch_size / pace.seconds
                progress.advance(steps, f"loss {losses[-1]:.4f}, {rate:,.0f} examples/s")
            elif hosts.any(job.model.stop_training):
                break
            elif _evaluate(job, run, checkpoints, state, stop):
                callbacks.on_epoch_end(epoch, state.named())
                epoch, saved_at = epoch + 1, time.monotonic()
                if epoch < len(borders):
                    callbacks.on_epoch_begin(epoch)
            else:
                break
            if time.monotonic() - saved_at > job.settings.checkpoint_seconds:
                checkpoints.save(state.step, dataclasses.asdict(state), needed=False)
                saved_at = time.monotonic()
    callbacks.on_train_end()
    if epoch < len(borders):
        with hosts.together():
            checkpoints.save(state.step, dataclasses.asdict(state))
    terminated = hosts.any(stop())  # asked of all in any case: none leaves while the chief writes
    if epoch == len(borders):
        return "completed"
    return "terminated" if terminated else "stopped_by_callback"


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
    run.log({"step": state.step, "epoch": _epoch(job, state.step), **state.named()})
    needed = state.step == job.steps
    checkpoints.save(state.step, dataclasses.asdict(state), better, needed)
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


def _stalled(state: State) -> str:
    return (
        f"after step {state.step:,} the input, a device or another host does not answer; start "
        "the same command again to resume, with --stall_seconds=0 to wait for ever"
    )
