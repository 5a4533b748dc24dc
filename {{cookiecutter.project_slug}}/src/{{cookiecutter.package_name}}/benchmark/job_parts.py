"""A job taken apart for the benchmark: its input, its host and its device, each alone."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from ..data.caching import in_memory
from ..data.indexed import Indexed
from ..data.pipeline import Decode, examples_ahead, training_batches
from ..data.sources import Source, first_records
from ..job import Job, assemble
from ..loop import CallPace, Loop
from ..staged_data import could_be_staged
from ..telemetry import GpuSampler, harmful_reasons
from ..training import call, start_callbacks
from .candidates import Facts
from .probes import Probe
from .python_input import uses_python, without_python

MEMORY_BATCHES = 4  # whose records the probes with records in memory go round
HELD_BACK = 0.1  # of the samples in which a clock was held back, to count
QUICK = 0.2  # of a window: for steps that compute nothing
SMALL_MODEL = 200_000  # weights; XLA takes minutes to compile larger ones for a CPU


class JobParts:
    """A `Workload`: one job that trains, and a twin whose weights the other probes may spoil."""

    def __init__(self, job: Job, sampler: GpuSampler) -> None:
        """Makes the first batch.

        Args:
          job: what trains, and is evaluated afterwards.
          sampler: watches the GPUs while the whole is timed.
        """
        self.job, self.twin = job, assemble(job.settings, job.devices, job.splits)
        self.batch_size = job.settings.batch_size
        self._sampler, self._step = sampler, 0
        self._made: dict[str, Probe | None] = {}
        self._pace = CallPace(job.settings.steps_per_call)
        self._callbacks = start_callbacks(job)
        self._batch_on_host = next(iter(job.training_batches()))
        again = tf.data.Dataset.from_tensors(self._batch_on_host).repeat()
        self._fed = again
        self._batch = next(iter(job.loop.distribute(again)))
        ahead = examples_ahead(self.batch_size, job.settings.host_threads)
        self._ahead = self._steps(ahead)
        self._read_ahead = self._steps(ahead + job.splits.train.read_ahead)

    @property
    def steps_per_call(self) -> int:
        return self._pace.steps

    @property
    def half_precision(self) -> str:
        capability = self.job.devices.compute_capability
        return "mixed_bfloat16" if not capability or capability[0] >= 8 else "mixed_float16"

    @property
    def nearer(self) -> str:
        s = self.job.settings
        staged = s.stage_to or not could_be_staged(s.data)
        return "--cache=memory" if staged else "--stage_to=auto"

    def facts(self) -> Facts:
        train, data = self.job.splits.train, self.job.settings.data
        files = train.files()
        return Facts(
            device=self.job.devices.kind,
            throttled=self._held_back(),
            python_source=uses_python(train.in_order()),
            where=str(Path(files[0]).parent) if files else f"--data={data}",
        )

    def _held_back(self) -> tuple[str, ...]:
        reasons = harmful_reasons(self._sampler.summary())
        return tuple(name for name, part in reasons.items() if part > HELD_BACK)

    def probe(self, name: str) -> Probe | None:
        """The probe of that name; see `diagnosis` for what each runs. Made once: it stays warm."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Probe | None:
        if name == "end_to_end":
            iterator = iter(self.job.loop.distribute(self.job.training_batches()))
            train = functools.partial(self._train, iterator)
            skip = functools.partial(self.job.loop.consume, iterator)
            return Probe(name, train, self._read_ahead, skip, self._call, beside=self._sampler)
        if name.startswith("input"):
            return self._input(name)
        if name == "step_resident":
            resident = functools.partial(self.twin.loop.train_resident, self._batch)
            return Probe(name, self._in_calls(resident), call=self._call)
        if name == "host" or (name == "host_without_callbacks" and self._callbacks.callbacks):
            idle = self._in_calls(
                functools.partial(self.twin.loop.idle, self._batch), called_back=name == "host"
            )
            return Probe(name, idle, call=self._call, part=QUICK)
        if name == "feed":
            fed = iter(self.twin.loop.distribute(self._fed))
            feed = self._in_calls(functools.partial(self.twin.loop.feed, fed))
            return Probe(name, feed, call=self._call, part=QUICK)
        if name.startswith("device"):
            return self._device(name)
        return None

    def _train(self, iterator: Any, steps: int) -> None:
        """As training calls it, its callbacks too."""

        def train(count: int) -> Any:
            losses = call(self.job, iterator, self._pace, self._step, count, "a benchmark has none")
            self._step += count
            return losses

        self._run_calls(train, self._callbacks, steps)

    def _steps(self, examples: int) -> int:
        return -(-examples // self.batch_size)

    def _call(self) -> int:
        return self._pace.steps

    def _in_calls(
        self, run: Callable[[int], Any], called_back: bool = True
    ) -> Callable[[int], None]:
        callbacks = self._callbacks if called_back else None
        return functools.partial(self._run_calls, run, callbacks)

    def _run_calls(self, run: Callable[[int], Any], callbacks: Any, steps: int) -> None:
        call = self._pace.steps  # for the whole window, which is of whole calls
        while steps:
            count = min(call, steps)
            self._pace.take(count)
            losses = run(count)
            if callbacks:
                loss = 0.0 if losses is None else float(losses[-1])
                callbacks.on_train_batch_end(self._step - 1, {"loss": loss})
            steps -= count

    def _input(self, name: str) -> Probe | None:
        job = self.job
        if job.settings.data_service and name != "input":
            return None  # another machine's work cannot be taken apart from here
        source, decode = job.splits.train, job.decode_training
        make: Callable[[], tf.data.Dataset | None] = {
            "input": job.training_batches,
            "input_any_order": lambda: job.training_batches(in_order=False),
            "input_from_memory": lambda: self._batches(self._remembered, decode),
            "input_without_decode": lambda: self._batches(source, self._constant),
            "input_bare": lambda: self._batches(self._remembered, self._constant),
            "input_without_python": self._without_python,
        }[name]
        batches = make()
        if batches is None:
            return None
        iterator = iter(job.loop.distribute(batches))
        reads = name not in ("input_from_memory", "input_bare")
        ahead = self._read_ahead if reads else self._ahead
        return Probe(name, lambda steps: job.loop.consume(iterator, steps), ahead)

    def _batches(self, source: Source, decode: Decode) -> tf.data.Dataset:
        s = self.job.settings
        return training_batches(source, decode, s.batch_size, s.seed, threads=s.host_threads)

    @functools.cached_property
    def _remembered(self) -> Indexed:
        """The records of a few batches, in memory."""
        return in_memory(first_records(self.job.splits.train, MEMORY_BATCHES * self.batch_size))

    def _constant(self, records: Any, index: tf.Tensor) -> tuple[Any, Any]:
        """What decoding gives, without decoding."""
        count = index.shape[0]
        features, labels, _ = self._batch_on_host
        # The records must still be read, though nothing is made of them: TensorFlow leaves out what
        # only a control dependency asks for, unless it can fail.
        total = tf.add_n([_first(tensor) for tensor in tf.nest.flatten(records)])
        with tf.control_dependencies([tf.debugging.assert_greater(total, tf.int64.min)]):
            return tf.nest.map_structure(lambda t: tf.identity(t[:count]), (features, labels))

    def _without_python(self) -> tf.data.Dataset | None:
        def make() -> tf.data.Dataset:
            return self._batches(self.job.splits.train, self.job.decode_training)

        return without_python(make) if uses_python(make()) else None

    def _device(self, name: str) -> Probe | None:
        loop, batch = self.twin.loop, self._batch
        job, on_gpu = self.twin, self.twin.devices.kind == "GPU"
        if name == "device_2x_batch":
            batch = self._doubled()
        elif name == "device_xla":
            small = job.model.count_params() < SMALL_MODEL
            if job.jit or not (on_gpu or small):
                return None
            loop = self._variant(jit="on")
        elif name == "device_mixed_precision":
            if not on_gpu or job.precision != "float32":
                return None
            loop = self._variant(precision=self.half_precision)
        elif name == "device_one_replica":
            if job.devices.replicas == 1:
                return None
            loop, batch = self._one_replica()
        elif name != "device":
            return None
        try:
            loop.train_resident(batch, 1)
        except tf.errors.ResourceExhaustedError:
            return None  # it does not fit beside what is there
        return Probe(name, functools.partial(loop.train_resident, batch))

    def _variant(self, **changes: Any) -> Loop:
        settings = dataclasses.replace(self.job.settings, **changes)
        return assemble(settings, self.job.devices, self.job.splits).loop

    def _doubled(self) -> Any:
        """A batch twice as large, on the devices."""

        def twice(*tensors: Any) -> Any:
            return tf.nest.map_structure(lambda t: tf.concat([t, t], axis=0), tensors)

        return tf.function(lambda: self.job.devices.strategy.run(twice, self._batch))()

    def _one_replica(self) -> tuple[Loop, Any]:
        """The first replica alone, on its part of the batch."""
        devices = self.job.devices
        each = self.batch_size // devices.replicas
        alone = dataclasses.replace(
            devices, strategy=tf.distribute.get_strategy(), names=devices.names[:1]
        )
        settings = dataclasses.replace(self.job.settings, batch_size=each)
        with tf.device(alone.names[0]):
            batch = tf.nest.map_structure(lambda t: tf.identity(t[:each]), self._batch_on_host)
        return assemble(settings, alone, self.job.splits).loop, batch


def _first(tensor: tf.Tensor) -> tf.Tensor:
    """An int64 scalar of what a tensor holds, at hardly any cost."""
    numbers = tf.strings.length(tensor) if tensor.dtype == tf.string else tensor
    return tf.cast(tf.reshape(numbers, [-1])[0], tf.int64)
