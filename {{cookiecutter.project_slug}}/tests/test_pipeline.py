"""The pipeline: what is batched, in which order, and what is said when a record is bad."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from conftest import noise_jpeg
from test_sources import write_folder, write_raw, write_records

from {{cookiecutter.package_name}} import command_line, settings, task
from {{cookiecutter.package_name}}.data import pipeline
from {{cookiecutter.package_name}}.data.catalog import open_data


@pytest.fixture
def photos(tmp_path):
    return open_data(f"folder:{write_folder(tmp_path / 'photos')}")


@pytest.fixture
def decode():
    asked = command_line.parse(settings.Settings, ["--augment=host", "--image_size=16"])
    return functools.partial(task.decode_training, settings=asked, classes=100)


def read_label(records, index):
    return records["source_index"], records["label"]


def test_batches_cross_epochs_and_drop_nothing(tmp_path):
    source = open_data(f"records:{write_records(tmp_path)}").train
    batches = pipeline.training_batches(source, read_label, 16, seed=1)
    seen, positions = [], []
    for _, labels, index in batches.take(25):  # 400 examples: 4 epochs of 100
        assert labels.shape == (16,)
        seen += labels.numpy().tolist()
        positions += index.numpy().tolist()
    assert positions == list(range(400))
    for epoch in range(4):
        assert sorted(seen[epoch * 100 : (epoch + 1) * 100]) == list(range(100))


def test_a_resumed_pipeline_gives_the_same_pixels(photos, decode):
    def batches(start):
        return pipeline.training_batches(photos.train, decode, 5, seed=2, start=start)

    whole = list(batches(0).take(9))
    resumed = list(batches(20).take(5))
    for expected, got in zip(whole[4:], resumed, strict=True):
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_array_equal(a, b)


def test_pixels_travel_as_uint8_of_one_static_shape(photos, decode):
    features, labels, index = pipeline.training_batches(photos.train, decode, 4, 0).element_spec
    assert (features.dtype, features.shape) == (tf.uint8, (4, 16, 16, 3))
    assert (labels.shape, index.dtype) == ((4,), tf.int64)


@pytest.mark.parametrize("batch_size", [1, 4, 10, 11, 12, 64])
def test_evaluation_holds_each_example_once_and_pads_the_rest(tmp_path, batch_size):
    source = open_data(f"records:{write_records(tmp_path)}").validation
    batches = pipeline.evaluation_batches(source, read_label, batch_size)
    assert int(batches.cardinality()) == -(-11 // batch_size)
    seen, weight = [], 0.0
    for _, labels, weights in batches:
        assert labels.shape == weights.shape == (batch_size,)
        seen += labels.numpy()[weights.numpy() == 1].tolist()
        weight += float(tf.reduce_sum(weights))
    assert seen == list(range(11))
    assert weight == 11


@pytest.mark.parametrize("content", [b"", b"no image at all", noise_jpeg(40, 50, 1)[:300]])
def test_an_image_that_cannot_be_decoded_is_named(tmp_path, decode, content):
    directory = write_folder(tmp_path / "photos")
    bad = directory / "dog" / "7.jpg"
    bad.write_bytes(content)
    source = open_data(f"folder:{directory}").train
    batches = pipeline.training_batches(source, decode, 4, 0)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(batches.take(10))
    found = pipeline.explain_bad_record(source, decode, 0, 0, 40)
    assert str(bad) in str(found) and "cannot be decoded" in str(found)


def test_a_flipped_byte_in_a_shard_is_named(tmp_path, decode):
    path = write_records(tmp_path) / "train-1.tfrecord"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    source = open_data(f"records:{tmp_path}").train
    with pytest.raises(tf.errors.DataLossError):
        list(source.shuffled(0, 0).take(100))
    found = pipeline.explain_bad_record(source, decode, 0, 0, 200)
    assert "train-1.tfrecord" in str(found)


def test_a_label_that_is_no_class_is_named(tmp_path, decode):
    source = open_data(f"records:{write_records(tmp_path)}").train
    few = functools.partial(decode.func, **{**decode.keywords, "classes": 99})
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(pipeline.training_batches(source, few, 4, 0).take(25))
    found = str(pipeline.explain_bad_record(source, few, 0, 0, 100))
    assert "train-2.tfrecord, record 22" in found and "label" in found and "99" in found


def test_nothing_is_blamed_when_every_record_decodes(photos, decode):
    assert pipeline.explain_bad_record(photos.train, decode, 0, 0, 40) is None


@pytest.mark.parametrize("augment", ["host", "device", "none"])
@pytest.mark.parametrize("kind", ["records", "prepared", "raw", "folder"])
def test_every_example_is_decoded_once_an_epoch_wherever_it_is_cropped(tmp_path, kind, augment):
    if kind == "folder":
        opened = open_data(f"folder:{write_folder(tmp_path)}")
    elif kind == "raw":
        opened = open_data(f"records:{write_raw(tmp_path, size=24)}")
    else:
        opened = open_data(f"records:{write_records(tmp_path, side=24 * (kind == 'prepared'))}")
    source, n = opened.train, opened.train.count
    asked = command_line.parse(settings.Settings, [f"--augment={augment}", "--image_size=16"])

    def decode(records, index):
        features, _ = task.decode_training(records, index, settings=asked, classes=100)
        return features, records["source_index"] + 1000 * records["label"]

    seen = []
    for features, names, _ in pipeline.training_batches(source, decode, 10, 3).take(2 * n // 10):
        for tensor in tf.nest.flatten(features):
            assert tensor.shape[0] == 10
        seen += names.numpy().tolist()
    first, second = seen[:n], seen[n : 2 * n]
    if kind == "folder":  # a file is the record: only its class tells
        assert sorted(first) == sorted(second[: len(first)]) or len(second) < n
    else:
        assert len(set(first)) == n and set(second) <= set(first)
        assert len(set(second)) == len(second)


@pytest.mark.parametrize("batch_size", [128, 192, 250, 257])
def test_a_large_batch_is_decoded_in_parts_and_joined_in_order(tmp_path, batch_size):
    source = open_data(f"records:{write_records(tmp_path)}").train
    whole = pipeline.training_batches(source, read_label, 1, seed=1).take(2 * batch_size)
    expected = [int(labels[0]) for _, labels, _ in whole]
    seen = []
    for _, labels, index in pipeline.training_batches(source, read_label, batch_size, 1).take(2):
        assert labels.shape == (batch_size,)
        np.testing.assert_array_equal(index, len(seen) + np.arange(batch_size))
        seen += labels.numpy().tolist()
    assert seen == expected


def test_raw_records_are_verified_the_first_time_they_are_read_and_only_then(tmp_path, monkeypatch):
    wanted = []
    monkeypatch.setattr(
        pipeline, "intact", lambda records: wanted.append(1) or tf.ones_like(records["label"]) > 0
    )
    source = open_data(f"records:{write_raw(tmp_path)}").train
    checks = []

    def verified(records, needed):
        tf.py_function(lambda flag: checks.append(bool(flag)), [needed], [])
        return original(records, needed)

    original = pipeline._verified
    monkeypatch.setattr(pipeline, "_verified", verified)
    list(pipeline.training_batches(source, read_label, 10, 0, start=30).take(25))
    # From 30 on, the second epoch is the first that holds every record.
    assert checks[:17] == [True] * 17 and checks[17:25] == [False] * 8
    assert wanted
