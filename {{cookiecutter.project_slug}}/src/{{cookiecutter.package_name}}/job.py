"""A run put together: settings -> devices -> data -> model -> loop, from the flags up."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from . import task
from .data.bad_records import leave_out_bad
from .data.caching import in_memory, on_disk
from .data.listing import user_cache
from .data.pipeline import evaluation_batches, evaluation_count, training_batches
from .data.service import service_batches
from .data.sources import Splits
from .distribution import Devices, batch_warning, check_batch, choose_devices, choose_precision
from .errors import UserError
from .loop import Loop
from .model import build_optimizer, build_schedule
from .settings import Settings
from .staged_data import staged_data

BAD_RECORDS = "bad_records.json"


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
        classes = len(self.splits.classes)
        return functools.partial(task.decode_training, settings=self.settings, classes=classes)

    @property
    def decode_evaluation(self) -> Callable[..., Any]:
        classes = len(self.splits.classes)
        return functools.partial(task.decode_evaluation, settings=self.settings, classes=classes)

    def training_batches(self, step: int = 0, in_order: bool = True) -> tf.data.Dataset:
        """The batches from the one after `step` steps on; see `pipeline.training_batches`."""
        batch_size, seed = self.settings.batch_size, self.settings.seed
        address, train, decode = (
            self.settings.data_service,
            self.splits.train,
            self.decode_training,
        )
        start = step * batch_size
        if address:
            steps = self.steps - step
            return service_batches(train, decode, batch_size, seed, start, steps, address)
        threads = self.settings.host_threads
        hosts = self.devices.hosts
        return training_batches(
            train, decode, batch_size, seed, start, in_order, threads, hosts.index, hosts.count
        )

    @functools.cached_property
    def evaluation_batches(self) -> Any:
        """The validation split, distributed; iterated anew at every evaluation."""
        batch_size, hosts = self.settings.batch_size, self.devices.hosts
        batches = evaluation_batches(
            self.splits.validation, self.decode_evaluation, batch_size, hosts.index, hosts.count
        )
        return self.loop.distribute(batches)

    @property
    def evaluation_count(self) -> int:
        """How many batches the validation split makes."""
        return evaluation_count(self.splits.validation, self.settings.batch_size)

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

    def variables(self) -> list[tf.Variable]:
        """The variables of `tracked`, for the hosts to agree on."""
        kept = [*self.model.variables, *self.optimizer.variables]
        return [*(v.value for v in kept), *self.tracked()["seeds"], *self.loop.ema]

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
        classes = self.splits.classes
        policy, reason = choose_precision(s.precision, self.devices)
        lines = [
            f"devices    {self.devices}",
            f"precision  {policy}: {reason}; XLA {'on' if self.jit else 'off'}",
            f"data       {self.splits.name or s.data}: {train:,} to train, {held:,} to validate"
            + (f", {len(classes)} classes" if classes else "")
            + f"; augmentation: {s.augment}",
            f"model      {s.model}, {self.model.count_params():,} weights"
            + (f", {s.image_size}x{s.image_size} pixels" if s.image_size else ""),
            f"steps      {self.steps:,} of {s.batch_size} examples, {self._epochs():.3g} epochs",
        ]
        warning = batch_warning(s.batch_size, self.devices)
        return "\n".join(lines + ([f"warning    {warning}"] if warning else []))

    def _epochs(self) -> float:
        return self.steps * self.settings.batch_size / self.splits.train.count


def build(settings: Settings, run_path: Path, devices: Devices | None = None) -> Job:
    """Builds what the settings ask for, from the devices up.

    Args:
      settings: the flags.
      run_path: the run's directory, where the list of bad records is kept.
      devices: what it computes on, if that is chosen already.
    """
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    devices = devices or choose_devices(settings)
    on_gpu = devices.kind == "GPU"
    settings = task.fill_in(settings, on_gpu)
    if settings.augment == "auto":
        settings = dataclasses.replace(settings, augment="device" if on_gpu else "host")
    check_batch(settings.batch_size, devices.replicas, settings.accumulate)
    hosts = devices.hosts
    for chiefs_turn in (True, False):  # it looks for bad records, and the others leave out the same
        with hosts.together():
            if hosts.chief == chiefs_turn:
                splits = _open(settings, run_path)
                _check_hosts(settings, splits, hosts.count)
        hosts.copy_from_chief(run_path / BAD_RECORDS)
    return assemble(settings, devices, splits)


def assemble(settings: Settings, devices: Devices, splits: Splits) -> Job:
    """Makes the model and the loop of a job whose devices are chosen and whose data is open.

    Args:
      settings: the flags, no blanks left but those for the precision and XLA.
      devices: what it computes on.
      splits: its data.
    """
    precision, _ = choose_precision(settings.precision, devices)
    classes = len(splits.classes)
    total = settings.epochs * splits.train.count // settings.batch_size
    steps = settings.steps or max(1, total)
    jit = settings.jit == "on" or (settings.jit == "auto" and devices.kind == "GPU")
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
            agree=devices.hosts.least,
        )
    return Job(settings, devices, precision, jit, splits, model, schedule, optimizer, loop, steps)


def _check_hosts(settings: Settings, splits: Splits, hosts: int) -> None:
    """Raises `UserError` unless each of several hosts can have a share of what there is."""
    if hosts > 1 and settings.data_service:
        raise UserError(
            f"--data_service: {hosts} hosts would each get all of the records: leave the flag out"
        )
    if splits.validation.count < hosts:
        raise UserError(
            f"{splits.validation.count} records to validate for {hosts} hosts: some had none"
        )


def _open(settings: Settings, run_path: Path) -> Splits:
    """The data, staged, without what is bad and with the training part where `--cache` wants it."""
    opened = settings
    if settings.stage_to:
        opened = dataclasses.replace(settings, data=staged_data(settings.data, settings.stage_to))
    splits = task.open_splits(opened)
    if settings.bad_records == "skip":
        decode = functools.partial(
            task.decode_whole, settings=settings, classes=len(splits.classes)
        )
        kept = run_path / BAD_RECORDS
        splits = leave_out_bad(splits, decode, settings.bad_budget, kept)
    if settings.cache == "memory":
        return dataclasses.replace(splits, train=in_memory(splits.train))
    if settings.cache == "disk":
        directory, buffer_bytes = user_cache(settings.cache_dir), settings.shuffle_memory << 20
        train = on_disk(splits.train, settings.data, directory, buffer_bytes)
        return dataclasses.replace(splits, train=train)
    return splits
