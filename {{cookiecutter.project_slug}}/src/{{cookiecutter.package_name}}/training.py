"""The whole story: settings -> devices -> data -> model -> loop, and what is done between steps."""

import contextlib
import dataclasses
import functools
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from . import task
from .checkpoints import Checkpoints
from .data.caching import in_memory
from .data.pipeline import AHEAD, evaluation_batches, explain_bad_record, training_batches
from .data.sources import Splits
from .distribution import Devices, batch_warning, check_batch, choose_devices, choose_precision
from .errors import TERMINATED, RunFailed
from .loop import CallPace, Loop, require_finite
from .model import build_optimizer, build_schedule
from .progress import Progress
from .run_directory import RunDirectory
from .settings import Settings

LOG_LINES = 200  # in metrics.jsonl over a whole run: enough for a curve, few enough to read


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything a run is made of; `settings` has no blanks left."""

    settings: Settings
    devices: Devices
    precision: str
    jit: bool
    splits: Splits
    model: keras.Model
    schedule: Callable[[int], Any]
    optimizer: keras.optimizers.Optimizer
    loop: Loop
    steps: int

    @property
    def decode_training(self) -> Callable[..., Any]:
        return functools.partial(task.decode_training, settings=self.settings)

    @property
    def decode_evaluation(self) -> Callable[..., Any]:
        return functools.partial(task.decode_evaluation, settings=self.settings)

    def training_batches(self, step: int = 0) -> tf.data.Dataset:
        """The batches from the one after `step` steps on."""
        batch_size, seed = self.settings.batch_size, self.settings.seed
        start = step * batch_size
        return training_batches(self.splits.train, self.decode_training, batch_size, seed, start)

    @functools.cached_property
    def evaluation_batches(self) -> Any:
        """The validation split, distributed; iterated anew at every evaluation."""
        batch_size = self.settings.batch_size
        batches = evaluation_batches(self.splits.validation, self.decode_evaluation, batch_size)
        return self.loop.distribute(batches)

    @property
    def evaluation_count(self) -> int:
        """How many batches the validation split makes."""
        return -(-self.splits.validation.count // self.settings.batch_size)

    def tracked(self) -> dict[str, Any]:
        """What a checkpoint must hold for the next step to come out the same, bit for bit."""
        layers = self.model._flatten_layers()
        variables = {v.path: v.value for layer in layers for v in layer.variables}
        # Keras leaves the state of drop-out's seed generators out of a checkpoint of the model.
        seeds = [value for path, value in sorted(variables.items()) if "seed_generator" in path]
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "seeds": seeds,
            "ema": self.loop.ema,
        }

    def evaluation_steps(self) -> list[int]:
        """The steps after which to evaluate, in order; the last step is always among them."""
        every = self.settings.evaluate_steps
        if every:
            borders = list(range(every, self.steps, every))
        else:
            count, batch_size = self.splits.train.count, self.settings.batch_size
            epochs = self.steps * batch_size // count
            borders = [-(-epoch * count // batch_size) for epoch in range(1, epochs + 1)]
        return sorted({step for step in borders if 0 < step < self.steps} | {self.steps})

    def describe(self) -> str:
        """What will run, in a few lines: nothing that was chosen automatically stays unsaid."""
        s, train, held = self.settings, self.splits.train.count, self.splits.validation.count
        policy, reason = choose_precision(s.precision, self.devices)
        lines = [
            f"devices    {self.devices}",
            f"precision  {policy}: {reason}; XLA {'on' if self.jit else 'off'}",
            f"data       {s.data}: {train:,} to train, {held:,} to validate, "
            f"{len(self.splits.classes)} classes; augmentation: {s.augment}",
            f"model      {s.model}, {self.model.count_params():,} weights, "
            f"{s.image_size}x{s.image_size} pixels",
            f"steps      {self.steps:,} of {s.batch_size} examples, {self._epochs():.3g} epochs",
        ]
        warning = batch_warning(s.batch_size, self.devices)
        return "\n".join(lines + ([f"warning    {warning}"] if warning else []))

    def _epochs(self) -> float:
        return self.steps * self.settings.batch_size / self.splits.train.count


@dataclasses.dataclass
class State:
    """Where a run stands: what a checkpoint keeps beside the tensors."""

    step: int = 0
    seconds: float = 0.0  # of training and evaluation, over all restarts
    best: float | None = None  # validation metric
    best_step: int = 0
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


def build(settings: Settings) -> Job:
    """Builds what the settings ask for, from the devices up."""
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    devices = choose_devices(settings.strategy, settings.logical_devices)
    on_gpu = devices.kind == "GPU"
    settings = task.fill_in(settings, on_gpu)
    if settings.augment == "auto":
        settings = dataclasses.replace(settings, augment="device" if on_gpu else "host")
    check_batch(settings.batch_size, devices.replicas, settings.accumulate)
    precision, _ = choose_precision(settings.precision, devices)
    splits = task.open_splits(settings)
    if settings.cache == "memory":
        splits = dataclasses.replace(splits, train=in_memory(splits.train))
    classes = len(splits.classes)
    total = settings.epochs * splits.train.count // settings.batch_size
    steps = settings.steps or max(1, total)
    jit = settings.jit == "on" or (settings.jit == "auto" and on_gpu)
    schedule = build_schedule(steps, settings.learning_rate, settings.warmup)
    with devices.strategy.scope():
        model = task.make_model(settings, classes, precision)
        optimizer = build_optimizer(model, schedule, settings.weight_decay, precision)
        loop = Loop(
            devices.strategy,
            model,
            optimizer,
            loss=task.loss,
            metrics=task.make_metrics(),
            prepare_training=functools.partial(
                task.prepare_training, settings=settings, classes=classes
            ),
            prepare_evaluation=lambda features, labels, _: task.prepare_evaluation(
                features, labels, classes
            ),
            batch_size=settings.batch_size,
            accumulate=settings.accumulate,
            ema=settings.ema,
            jit=jit,
        )
    return Job(settings, devices, precision, jit, splits, model, schedule, optimizer, loop, steps)


def train(settings: Settings) -> int:
    """Trains to the end or to SIGTERM, resuming what the run holds. Returns the exit code."""
    stop = Stop()
    run = RunDirectory(settings)
    job = build(settings)
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
        reason = _fit(job, run, checkpoints, state, stop)
    except RunFailed:
        reason = "nan_loss"
        raise
    finally:
        run.finish(_result(job, state, reason))
    print(_summary(run, job, state, reason), flush=True)
    return TERMINATED if reason == "terminated" else 0


def _fit(job: Job, run: RunDirectory, checkpoints: Checkpoints, state: State, stop: Stop) -> str:
    """Runs the steps that are left; returns why it ended."""
    borders = [step for step in job.evaluation_steps() if step > state.step]
    pace = CallPace(job.settings.steps_per_call)
    job.model.optimizer, job.model.stop_training = job.optimizer, False  # where callbacks look
    callbacks = keras.callbacks.CallbackList(task.make_callbacks(job.settings), model=job.model)
    callbacks.on_train_begin()
    iterator = iter(job.loop.distribute(job.training_batches(state.step)))
    saved_at = time.monotonic()
    with Progress("train", job.steps, "step", state.step) as progress:
        while borders and not stop() and not job.model.stop_training:
            began = time.monotonic()
            steps = min(pace.steps, borders[0] - state.step)
            start = state.step * job.settings.batch_size
            ahead = (steps + 2 * AHEAD) * job.settings.batch_size
            with _naming_bad_records(job, start, ahead), pace:
                losses = job.loop.train(iterator, steps)
            require_finite(losses, state.step + 1, checkpoints.newest())
            seconds = time.monotonic() - began
            state.seconds += seconds
            _log_steps(job, run, state, losses, seconds)
            rate = steps * job.settings.batch_size / seconds
            progress.advance(steps, f"loss {losses[-1]:.4f}, {rate:,.0f} examples/s")
            callbacks.on_train_batch_end(state.step - 1, {"loss": float(losses[-1])})
            if state.step == borders[0]:
                if not _evaluate(job, run, checkpoints, state, stop):
                    break
                callbacks.on_epoch_end(len(job.evaluation_steps()) - len(borders), _named(state))
                borders.pop(0)
                saved_at = time.monotonic()
            elif time.monotonic() - saved_at > job.settings.checkpoint_seconds:
                checkpoints.save(state.step, dataclasses.asdict(state))
                saved_at = time.monotonic()
    callbacks.on_train_end()
    if not borders:
        return "completed"
    checkpoints.save(state.step, dataclasses.asdict(state))
    return "terminated" if stop() else "stopped_by_callback"


def _evaluate(
    job: Job, run: RunDirectory, checkpoints: Checkpoints, state: State, stop: Stop
) -> bool:
    """Evaluates, logs and saves; False if SIGTERM cut it short."""
    began = time.monotonic()
    with _naming_bad_records(job, None, job.splits.validation.count):
        values = job.loop.evaluate(job.evaluation_batches, job.evaluation_count, stop)
    state.seconds += time.monotonic() - began
    if values is None:
        return False
    state.validation = values
    metric = values[task.METRIC]
    sign = 1 if task.HIGHER_IS_BETTER else -1
    better = state.best is None or sign * metric > sign * state.best
    if better:
        state.best, state.best_step = metric, state.step
    run.log({"step": state.step, "epoch": _epoch(job, state.step), **_named(state)})
    checkpoints.save(state.step, dataclasses.asdict(state), best=better)
    return True


def _log_steps(
    job: Job, run: RunDirectory, state: State, losses: np.ndarray, seconds: float
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
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
        splits, seed = job.splits, job.settings.seed
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
