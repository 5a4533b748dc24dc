"""The training loop beside Keras `fit` and a bare compiled loop, at three sizes of a step.

    build/demo/my-training-project/.venv/bin/python benchmarks/loop.py

The same model, optimizer and batches for all, in one process, one at a time, in alternating rounds.
The clock of `fit` starts after its first call, so that it does not pay for making its iterator.
"""

import argparse
import dataclasses
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from photo_sets import IN_PLACE, PACKAGE

CLASSES = 10
CALLS_A_WINDOW = 10  # of `fit` with many steps in each
# name: (examples, features of each layer, layers), for steps of about 0.5, 5 and 50 ms on two CPUs
SIZES = {"0.5 ms": (32, 128, 2), "5 ms": (64, 640, 4), "50 ms": (256, 1536, 4)}
# what, against, at most this ratio of times: issue 6, "Done when"
TARGETS = (
    ("ours", "fit, same steps", 1.0),
    ("ours", "fit", 1.0),
    ("ours", "bare", 1.03),
)


@dataclasses.dataclass
class Contender:
    """Something that trains: `run` makes at least so many steps and returns (steps, seconds)."""

    name: str
    run: Callable[[int], tuple[int, float]]
    step_ms: list[float] = dataclasses.field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="of all contenders in turn")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a window, about")
    parser.add_argument("--only", default="", help="one of the sizes: " + ", ".join(SIZES))
    parser.add_argument("--out", type=Path, help="a JSON file for every window")
    options = parser.parse_args()
    # Before TensorFlow starts its devices: the CPU as two, for what distribution itself costs.
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    document = {}
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # two of them would mix up keys
    with Package() as ours:
        for size in [options.only] if options.only else SIZES:
            contenders = make(ours, mirrored, *SIZES[size])
            document[size] = {c.name: c.step_ms for c in measured(contenders, options, size)}
            show(ours, size, document[size])
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n")


class Package:
    """The generated package, imported where it lies in the template."""

    def __enter__(self) -> "Package":
        self._directory = tempfile.TemporaryDirectory()
        (Path(self._directory.name) / IN_PLACE).symlink_to(PACKAGE)
        sys.path.insert(0, self._directory.name)
        return self

    def __exit__(self, *error: object) -> None:
        sys.path.remove(self._directory.name)
        self._directory.cleanup()

    def module(self, name: str) -> Any:
        return importlib.import_module(f"{IN_PLACE}.{name}")


def make(
    ours: Package, mirrored: tf.distribute.Strategy, batch_size: int, width: int, layers: int
) -> list[Contender]:
    """The contenders for one size, each with a model of its own."""
    rng = np.random.default_rng(0)
    features = tf.constant(rng.normal(size=[batch_size, width]), tf.float32)
    labels = tf.one_hot(rng.integers(0, CLASSES, batch_size), CLASSES)
    index = tf.range(batch_size, dtype=tf.int64)

    def batches(*parts: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(parts).repeat().prefetch(2)

    def model() -> keras.Model:
        keras.utils.set_random_seed(0)
        hidden = [keras.layers.Dense(width, "relu") for _ in range(layers)]
        built = keras.Sequential([keras.Input([width]), *hidden, keras.layers.Dense(CLASSES)])
        built.build([None, width])
        return built

    made = {}
    for name, strategy in (
        ("ours", tf.distribute.get_strategy()),
        ("ours, two replicas", mirrored),
    ):
        with strategy.scope():
            made[name] = _ours(ours, strategy, model(), batches(features, labels, index))
    return [
        *(Contender(name, run) for name, run in made.items()),
        Contender("bare", _bare(model(), batches(features, labels))),
        Contender("fit", _fit(model(), batches(features, labels), 1)),
        Contender("fit, same steps", _fit(model(), batches(features, labels), 0)),
    ]


def _ours(
    ours: Package, strategy: tf.distribute.Strategy, model: keras.Model, batches: tf.data.Dataset
) -> Callable[[int], tuple[int, float]]:
    loop_of = ours.module("loop")
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    loop = loop_of.Loop(
        strategy,
        model,
        optimizer,
        loss=tf.nn.softmax_cross_entropy_with_logits,
        metrics=[],
        prepare_training=lambda features, labels, index: (features, labels),
        prepare_evaluation=lambda features, labels, weights: (features, labels),
        batch_size=batches.element_spec[0].shape[0],
    )
    iterator, pace = iter(loop.distribute(batches)), loop_of.CallPace(0)

    def run(steps: int) -> tuple[int, float]:
        done, began = 0, time.perf_counter()
        while done < steps:
            taken = pace.take(steps)
            with pace:
                loop.train(iterator, taken)
            done += taken
        return done, time.perf_counter() - began

    return run


def _bare(model: keras.Model, batches: tf.data.Dataset) -> Callable[[int], tuple[int, float]]:
    """What the step costs: one call of a compiled loop for the whole window."""
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    iterator = iter(batches)

    @tf.function(reduce_retracing=True)
    def call(steps: tf.Tensor) -> tf.Tensor:
        last = tf.constant(0.0)
        for _ in tf.range(steps):
            features, labels = next(iterator)
            with tf.GradientTape() as tape:
                losses = tf.nn.softmax_cross_entropy_with_logits(
                    labels, model(features, training=True)
                )
                loss = tf.reduce_mean(losses)
            weights = model.trainable_variables
            gradients = tape.gradient(loss, [weight.value for weight in weights])
            optimizer.apply(gradients, weights)
            last = loss
        return last

    def run(steps: int) -> tuple[int, float]:
        began = time.perf_counter()
        call(tf.constant(steps)).numpy()
        return steps, time.perf_counter() - began

    return run


class _Clock(keras.callbacks.Callback):
    """Times an epoch from the end of its first call."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.first: tuple[int, float] | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.last = batch + 1, time.perf_counter()
        self.first = self.first or self.last


def _fit(
    model: keras.Model, batches: tf.data.Dataset, steps_a_call: int
) -> Callable[[int], tuple[int, float]]:
    """Keras `fit`; `steps_a_call` 0: as many as fill a fifth of a second, as ours does."""

    def compiled(steps: int) -> int:
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, steps_per_execution=steps, jit_compile=False)
        return steps

    clock, current = _Clock(), compiled(steps_a_call or 1)

    def run(steps: int) -> tuple[int, float]:
        nonlocal current
        if not steps_a_call and current == 1:
            current = compiled(max(1, steps // CALLS_A_WINDOW))
        calls = max(2, -(-steps // current)) + 1
        model.fit(batches, steps_per_epoch=calls * current, epochs=1, verbose=0, callbacks=[clock])
        assert clock.first
        return clock.last[0] - clock.first[0], clock.last[1] - clock.first[1]

    return run


def measured(
    contenders: list[Contender], options: argparse.Namespace, size: str
) -> Iterator[Contender]:
    """Times all of them, in alternating rounds."""
    bare = next(c for c in contenders if c.name == "bare")
    bare.run(3)
    steps, seconds = bare.run(20)
    steps = max(10, round(steps * options.seconds / seconds))
    for contender in contenders:
        contender.run(steps)  # compiles, and finds its pace
    for turn in range(options.rounds):
        for contender in contenders if turn % 2 == 0 else reversed(contenders):
            done, seconds = contender.run(steps)
            contender.step_ms.append(1000 * seconds / done)
        print(f"{size}: round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    yield from contenders


def show(ours: Package, size: str, step_ms: dict[str, list[float]]) -> None:
    """A row for each contender, and the targets."""
    statistics = ours.module("benchmark.statistics")
    print(f"\n{size:<20} {'ms a step':>10}   time / bare")
    for name, values in step_ms.items():
        ratio = statistics.ratio_of(values, step_ms["bare"])
        mean = sum(values) / len(values)
        print(f"{name:<20} {mean:10.3f}   {ratio.mean:.3f} ({ratio.low:.3f}-{ratio.high:.3f})")
    targets = [*TARGETS, ("ours", "fit", 1 / 1.3)] if size == next(iter(SIZES)) else TARGETS
    for name, against, most in targets:
        ratio = statistics.ratio_of(step_ms[name], step_ms[against])
        met = "met" if ratio.high <= most else "missed" if ratio.low > most else "undecided"
        print(
            f"{name} / {against}: {ratio.mean:.3f} ({ratio.low:.3f}-{ratio.high:.3f}), "
            f"at most {most:.3f}: {met}"
        )


if __name__ == "__main__":
    main()
