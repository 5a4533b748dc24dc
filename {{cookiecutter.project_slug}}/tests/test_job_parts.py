"""A job taken apart: each probe runs the part that it names, and only that."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from {{cookiecutter.package_name}} import task
from {{cookiecutter.package_name}}.benchmark import python_input
from {{cookiecutter.package_name}}.benchmark.job_parts import JobParts
from {{cookiecutter.package_name}}.data.indexed import Indexed
from {{cookiecutter.package_name}}.job import build
from {{cookiecutter.package_name}}.settings import Settings
from {{cookiecutter.package_name}}.telemetry import GpuSampler

INPUTS = ("input", "input_from_memory", "input_without_decode", "input_bare")


@pytest.fixture
def make_parts(tmp_path):
    def make(**changes):
        given = {"data": "digits", "strategy": "one_device", **changes}
        job = build(Settings(**given), tmp_path)
        return JobParts(job, GpuSampler(job.devices.names))

    return make


def weights(job):
    return [w.copy() for w in job.model.get_weights()]


def test_only_the_whole_trains_the_model_that_is_evaluated(make_parts):
    parts = make_parts()
    before = weights(parts.job)
    others = (*INPUTS, "step_resident", "device", "device_2x_batch", "device_xla", "host", "feed")
    for name in others:
        parts.probe(name).run(3)
    assert all(map(np.array_equal, before, weights(parts.job)))
    assert not all(map(np.array_equal, before, weights(parts.twin)))
    parts.probe("end_to_end").run(3)
    assert not all(map(np.array_equal, before, weights(parts.job)))


def test_the_whole_is_called_as_training_calls_it_and_its_callbacks_too(make_parts, monkeypatch):
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((batch, logs["loss"]))

    monkeypatch.setattr(task, "make_callbacks", lambda settings: [Watch()])
    parts = make_parts(steps_per_call=4)
    calls = []
    train = parts.job.loop.train
    parts.job.loop.train = lambda it, steps: calls.append(steps) or train(it, steps)
    parts.probe("end_to_end").run(10)
    assert calls == [4, 4, 2] and [batch for batch, _ in seen] == [3, 7, 9]
    assert all(np.isfinite(loss) and loss > 0 for _, loss in seen)
    parts.probe("host").run(4)
    parts.probe("step_resident").run(4)
    assert len(seen) == 5
    parts.probe("host_without_callbacks").run(4)
    parts.probe("device").run(4)
    assert len(seen) == 5


def test_there_is_no_probe_for_a_part_that_the_job_has_not(make_parts):
    parts = make_parts()
    for name in ("host_without_callbacks", "input_without_python", "end_to_end_prefetched"):
        assert parts.probe(name) is None
    assert parts.probe("device_one_replica") is None
    assert parts.probe("device_mixed_precision") is None  # a CPU gains nothing from it


def with_source(parts, source):
    splits = dataclasses.replace(parts.job.splits, train=source)
    parts.job = dataclasses.replace(parts.job, splits=splits)


def noting(calls, tensor):
    """The same tensor by way of Python, which TensorFlow leaves out where nothing needs it."""

    def note(value):
        calls.append(1)
        return value

    noted = tf.numpy_function(note, [tensor], tensor.dtype, stateful=False)
    return tf.ensure_shape(noted, tensor.shape)


def test_the_input_without_decoding_reads_every_record_and_decodes_none(make_parts, monkeypatch):
    read, decoded = [], []
    original = task.decode_training

    def decode(records, index, settings, classes):
        features, labels = original(records, index, settings, classes)
        return features, noting(decoded, labels)

    monkeypatch.setattr(task, "decode_training", decode)
    parts = make_parts()
    source = parts.job.splits.train

    def watched(*elements):
        records = source.read(*elements)
        return {**records, "label": noting(read, records["label"])}

    with_source(parts, dataclasses.replace(source, read=watched))
    probe = parts.probe("input_without_decode")
    read.clear(), decoded.clear()
    probe.run(20)
    assert len(read) >= 20 and not decoded
    parts.probe("input").run(20)
    assert len(decoded) >= 20


def test_records_in_memory_are_read_from_where_they_lie_but_once(make_parts):
    parts, loaded = make_parts(), []
    source = parts.job.splits.train
    on_disk = Indexed(
        source.count, lambda index, _: source.read(index), lambda index: noting(loaded, index)
    )
    with_source(parts, on_disk)
    probe = parts.probe("input_from_memory")
    once = len(loaded)
    probe.run(20)
    assert 0 < once == len(loaded)
    parts.probe("input").run(20)
    assert len(loaded) > once


def test_a_doubled_batch_is_twice_the_batch(make_parts):
    parts = make_parts()
    features, labels, index = parts._doubled()
    assert len(index) == len(labels) == 2 * parts.batch_size
    assert features.shape[0] == 2 * parts.batch_size


def test_on_two_replicas_one_alone_takes_its_part_of_the_batch(make_parts):
    parts = make_parts(strategy="mirrored", logical_devices=2)
    loop, (_, labels, _) = parts._one_replica()
    assert loop.strategy.num_replicas_in_sync == 1 and len(labels) == parts.batch_size // 2
    for name in ("device_one_replica", "device_2x_batch", "feed", "host", "end_to_end"):
        parts.probe(name).run(2)


def python_square(number):
    return np.int64(number) ** 2


def test_python_in_an_input_is_found_wherever_it_is_called_from():
    numbers = tf.data.Dataset.range(8)

    def through_python(number):
        return tf.numpy_function(python_square, [number], tf.int64)

    def generate():
        yield 1

    made = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64))
    assert not python_input.uses_python(numbers.map(lambda n: n * n).shuffle(4).batch(2))
    assert python_input.uses_python(numbers.map(through_python).batch(2))
    assert python_input.uses_python(made.batch(2).prefetch(1))


@pytest.mark.parametrize("function", ["numpy_function", "py_function"])
def test_without_python_a_pipeline_gives_what_python_gave_the_first_time(function):
    calls = []

    def work(number):
        calls.append(int(number))
        return np.int64(number) + 100

    def make():
        def through_python(number):
            return number, getattr(tf, function)(work, [number], tf.int64)

        return tf.data.Dataset.range(5).map(through_python)

    before = (tf.numpy_function, tf.py_function)
    replayed = python_input.without_python(make)
    calls.clear()
    assert [(int(n), int(v)) for n, v in replayed] == [(n, 100) for n in range(5)]
    assert calls == [] and before == (tf.numpy_function, tf.py_function)
    assert [(int(n), int(v)) for n, v in make()] == [(n, n + 100) for n in range(5)]


def test_python_that_cannot_be_replayed_is_said_not_guessed():
    hidden = tf.numpy_function  # taken by another name before anybody could stand in for it

    def make():
        return tf.data.Dataset.range(3).map(lambda n: hidden(python_square, [n], tf.int64))

    assert python_input.without_python(make) is None


def test_the_facts_say_where_records_lie_and_whether_python_makes_them(make_parts):
    facts = make_parts().facts()
    assert (facts.device, facts.python_source, facts.where) == ("CPU", False, "--data=digits")
