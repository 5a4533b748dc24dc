"""A training whose parts take the time that a scenario says: real time, with no GPU.

The input is a real tf.data pipeline: storage sleeps in native code, decoding is real JPEG work, and
Python a real loop that holds the GIL. The accelerator is a time-line: a step starts when the one
before it is done, and the host goes on as long as the queue has room.
"""

import dataclasses
import functools
import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from {{cookiecutter.package_name}}.benchmark.candidates import Facts
from {{cookiecutter.package_name}}.benchmark.probes import Pace, Probe, measure
from {{cookiecutter.package_name}}.benchmark.remedies import MORE_STEPS

MERGE = 8  # kernels that XLA makes one of, where a scenario does not say what fusing gives


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What each part of a step takes; milliseconds a batch. The fields are the contract's.

    `storage_spread`, `slow_every` and `drift` are ours: log-normal storage (sigma), every n-th
    batch from a shard ten times as slow, and the part by which storage slows down a minute.
    """

    name: str = ""
    batch_size: int = 32
    storage_ms: float = 0
    storage_kind: str = "latency"
    decode_ms: float = 0
    python_ms: float = 0
    prefetch: bool = True
    host_ms: float = 0
    callback_ms: float = 0
    launch_ms: float = 0
    device_ms: float = 20
    device_fixed_ms: float = 0
    communication_ms: float = 0
    copy_ms: float = 0
    queue_depth: int = 1
    precision_factor: float = 2.0
    fusion_factor: float = 1.0
    throttle: Any = None
    truth: dict[str, Any] = dataclasses.field(default_factory=dict)
    storage_spread: float = 0
    slow_every: int = 0
    drift: float = 0
    steps_per_call: int = 1

    def device_step_ms(self) -> float:
        """A step of the device, cool, with its launches and what it says to other replicas."""
        launch, compute = self.launch_ms, self.device_fixed_ms + self.device_ms
        return launch + compute + self.communication_ms

    def changed(self, change: str) -> "Scenario":
        """The same training with one remedy applied, or several joined by "+"."""
        scenario = self
        for one in change.split("+"):
            scenario = dataclasses.replace(scenario, **CHANGES[one](scenario))
        return scenario


def load(path: Path) -> Scenario:
    """Reads a scenario file; a key it does not know is an error, not a part that goes missing."""
    return Scenario(**json.loads(path.read_text()))


def _fused(scenario: Scenario) -> dict[str, Any]:
    if scenario.fusion_factor == 1:
        return {"launch_ms": scenario.launch_ms / MERGE}
    parts = ("launch_ms", "device_ms", "device_fixed_ms")
    return {part: getattr(scenario, part) / scenario.fusion_factor for part in parts}


CHANGES: dict[str, Callable[[Scenario], dict[str, Any]]] = {
    "stage": lambda s: {"storage_ms": 0, "drift": 0},
    "prepare": lambda s: {"decode_ms": 0},
    "native_map": lambda s: {"python_ms": 0},
    "prefetch": lambda s: {"prefetch": True},
    "steps_per_call": lambda s: {"steps_per_call": s.steps_per_call * MORE_STEPS},
    "callbacks": lambda s: {"callback_ms": 0},
    "jit": _fused,
    "precision": lambda s: {"device_ms": s.device_ms / s.precision_factor},
    "double_batch": lambda s: {
        part: 2 * getattr(s, part)
        for part in ("batch_size", "storage_ms", "decode_ms", "python_ms", "copy_ms", "device_ms")
    },
    "hide_communication": lambda s: {"communication_ms": 0},
    "cool": lambda s: {"throttle": None},
    "copy": lambda s: {"copy_ms": 0},
}


class Accelerator:
    """A device with a queue: `depth` steps may wait while one runs; 0: the host waits for each."""

    def __init__(self, scenario: Scenario) -> None:
        self._depth, self._free = scenario.queue_depth, 0.0
        self._running: deque[float] = deque()
        throttle = scenario.throttle or {}
        if isinstance(throttle, (int, float)):
            throttle = {"factor": throttle}
        self._factor = float(throttle.get("factor", 1.0))
        self._after = float(throttle.get("after_s", 0.0))
        self.reasons = tuple(throttle.get("reasons", ("sw_thermal_slowdown",))) if throttle else ()
        self._first: float | None = None

    def submit(self, ms: float) -> None:
        now = time.perf_counter()
        self._first = now if self._first is None else self._first
        slow = self._factor if now - self._first >= self._after else 1.0
        self._free = max(now, self._free) + ms * slow / 1000
        self._running.append(self._free)
        while len(self._running) > self._depth:
            _sleep_until(self._running.popleft())

    def wait(self) -> None:
        _sleep_until(self._free)
        self._running.clear()


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)


class SimulatedTraining:
    """A `Workload` for the benchmark."""

    half_precision, nearer = "mixed_bfloat16", "--stage_to=auto"

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.accelerator = scenario, Accelerator(scenario)
        self.batch_size, self.steps_per_call = scenario.batch_size, scenario.steps_per_call

    def facts(self) -> Facts:
        return Facts("GPU", self.accelerator.reasons, where="/data")

    def probe(self, name: str) -> Probe | None:
        s = self.scenario
        if name == "end_to_end":
            return self._trains(name, s)
        if name == "end_to_end_prefetched":
            return None if s.prefetch else self._trains(name, s.changed("prefetch"))
        for probe, changes in INPUTS.items():
            if name == probe:
                return self._consumes(name, s.changed(changes) if changes else s)
        if name == "host_without_callbacks":
            if not s.callback_ms:
                return None
            return self._steps(name, s.changed("callbacks"), s.steps_per_call, computes=False)
        if name == "step_resident":
            return self._steps(name, s, s.steps_per_call)
        if name in ("host", "feed"):
            return self._steps(name, s, s.steps_per_call, computes=False, copies=name == "feed")
        if name == "device_one_replica" and not s.communication_ms:
            return None
        changed = s.changed(DEVICES[name]) if DEVICES[name] else s
        bare = dataclasses.replace(changed, callback_ms=0)
        return self._steps(name, bare, MORE_STEPS)

    def _trains(self, name: str, scenario: Scenario) -> Probe:
        iterator = iter(batches(scenario))
        return Probe(name, functools.partial(self._run, scenario, iterator), AHEAD)

    def _run(self, scenario: Scenario, iterator: Any, steps: int) -> None:
        for step in range(steps):
            self._host(scenario, step, scenario.steps_per_call)
            next(iterator)
            time.sleep(scenario.copy_ms / 1000)
            self.accelerator.submit(scenario.device_step_ms())
            self._callback(scenario, step, steps, scenario.steps_per_call)
        self.accelerator.wait()

    def _consumes(self, name: str, scenario: Scenario) -> Probe | None:
        iterator = iter(batches(scenario))
        return Probe(name, lambda steps: [next(iterator) for _ in range(steps)], AHEAD)

    def _steps(
        self,
        name: str,
        scenario: Scenario,
        steps_per_call: int,
        computes: bool = True,
        copies: bool = False,
    ) -> Probe:
        def run(steps: int) -> None:
            for step in range(steps):
                self._host(scenario, step, steps_per_call)
                if copies:
                    time.sleep(scenario.copy_ms / 1000)
                self.accelerator.submit(scenario.device_step_ms() if computes else 0.0)
                self._callback(scenario, step, steps, steps_per_call)
            self.accelerator.wait()

        return Probe(name, run)

    def _host(self, scenario: Scenario, step: int, steps_per_call: int) -> None:
        if step % steps_per_call == 0 and scenario.host_ms:
            time.sleep(scenario.host_ms / 1000)

    def _callback(self, scenario: Scenario, step: int, steps: int, steps_per_call: int) -> None:
        last = step % steps_per_call == steps_per_call - 1 or step == steps - 1
        if last and scenario.callback_ms:
            time.sleep(scenario.callback_ms / 1000)


AHEAD = 8  # batches: three stages of two, and what is in their hands
INPUTS = {
    "input": "",
    "input_from_memory": "stage",
    "input_without_decode": "prepare",
    "input_without_python": "native_map",
    "input_bare": "stage+prepare",
}
DEVICES = {
    "device": "",
    "device_2x_batch": "double_batch",
    "device_xla": "jit",
    "device_mixed_precision": "precision",
    "device_one_replica": "hide_communication",
}


def batches(scenario: Scenario) -> tf.data.Dataset:
    """The input: stages in a row, each a batch ahead of the next unless `prefetch` is off."""

    def ahead(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.prefetch(2) if scenario.prefetch else dataset

    dataset = tf.data.Dataset.range(1 << 40)
    if scenario.storage_ms:
        dataset = ahead(_stored(dataset, scenario))
    if scenario.decode_ms:
        jpeg = tf.constant(_jpeg(round(scenario.decode_ms * _rows_a_ms())))

        def decode(number: tf.Tensor) -> tf.Tensor:
            pixels = tf.io.decode_jpeg(jpeg, channels=3)
            # The image must be used, or TensorFlow would not decode it.
            return number + tf.cast(pixels[0, 0, 0], tf.int64) // 256

        dataset = ahead(dataset.map(decode))
    if scenario.python_ms:
        turns = round(scenario.python_ms * _turns_a_ms())

        def loop(number: Any) -> Any:
            return number + np.int64(_count(turns) < 0)

        dataset = ahead(dataset.map(lambda n: tf.numpy_function(loop, [n], tf.int64)))
    options = tf.data.Options()
    # What is not written here must not be added: prefetch, parallel maps, tuning.
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 4
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


def _stored(dataset: tf.data.Dataset, scenario: Scenario) -> tf.data.Dataset:
    if not (scenario.storage_spread or scenario.slow_every or scenario.drift):
        return _Slept(dataset, scenario.storage_ms)
    rng, began = np.random.default_rng(0), time.perf_counter()
    centre = math.exp(-(scenario.storage_spread**2) / 2)  # so that the mean stays storage_ms

    def read(number: Any) -> Any:
        ms = scenario.storage_ms * centre * math.exp(rng.normal(0, scenario.storage_spread))
        if scenario.slow_every:
            ms *= (10 if number % scenario.slow_every == 0 else 1) / (1 + 9 / scenario.slow_every)
        minutes = (time.perf_counter() - began) / 60
        time.sleep(ms * (1 + scenario.drift * minutes) / 1000)
        return number

    return dataset.map(lambda n: tf.ensure_shape(tf.numpy_function(read, [n], tf.int64), []))


class _Slept(tf.data.Dataset):
    """`dataset`, each element `ms` later, asleep in native code."""

    def __init__(self, dataset: tf.data.Dataset, ms: float) -> None:
        self._input = dataset
        variant = tf.raw_ops.SleepDataset(
            input_dataset=dataset._variant_tensor,
            sleep_microseconds=tf.constant(round(1000 * ms), tf.int64),
            output_types=[tf.int64],
            output_shapes=[[]],
        )
        super().__init__(variant)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._input]

    @property
    def element_spec(self) -> tf.TensorSpec:
        return tf.TensorSpec([], tf.int64)


def _count(turns: int) -> int:
    total = 0
    for turn in range(turns):
        total += turn & 1
    return total


@functools.cache
def _turns_a_ms() -> float:
    return 20_000 / (1000 * _seconds_of(lambda: _count(20_000)))


ROW = 512  # pixels


@functools.cache
def _jpeg(rows: int) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, [max(1, rows), ROW, 3], np.uint8)
    return bytes(tf.io.encode_jpeg(noise, quality=60).numpy())


@functools.cache
def _rows_a_ms() -> float:
    jpeg = tf.constant(_jpeg(1000))
    return 1000 / (1000 * _seconds_of(lambda: tf.io.decode_jpeg(jpeg, channels=3).numpy()))


def _seconds_of(work: Callable[[], Any], seconds: float = 1.0) -> float:
    """The mean over so long that a CPU's speed of a moment does not pass for its own."""
    work()  # the first one also makes room
    began, times = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        work()
        times += 1
    return (time.perf_counter() - began) / times


def true_speedup(scenario: Scenario, changes: Sequence[str], pace: Pace) -> dict[str, list[float]]:
    """The oracle: the same simulator with each change made, measured side by side, in turn.

    Returns:
      for "" (no change) and each change, milliseconds an example, round by round.
    """
    variants = {"": scenario, **{change: scenario.changed(change) for change in changes}}
    probes = []
    for change, variant in variants.items():
        probe = SimulatedTraining(variant).probe("end_to_end")
        probes.append(dataclasses.replace(probe, name=change))
    measured = measure(probes, pace, "oracle")
    return {
        change: [ms / variants[change].batch_size for ms in result.step_ms]
        for change, result in measured.items()
    }
