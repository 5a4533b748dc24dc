"""Sources: every example once an epoch, the same order after any restart, damage named."""

import collections
import dataclasses
import json
import os
import time

import numpy as np
import pytest
import tensorflow as tf
from conftest import noise_jpeg

from {{cookiecutter.package_name}}.data import caching, raw, records, shards
from {{cookiecutter.package_name}}.data.caching import in_memory, on_disk
from {{cookiecutter.package_name}}.data.catalog import open_data
from {{cookiecutter.package_name}}.data.sharded import Piece, Shards, split_tail
from {{cookiecutter.package_name}}.data.sources import as_tuple
from {{cookiecutter.package_name}}.errors import UserError


def write_records(directory, train=(40, 37, 23), validation=(11,), manifest=True, side=0):
    """A small data set of TFRecord shards; each label is its record's number in the split.

    With a side the images are squares of it, as `prepare` writes them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    image, splits = noise_jpeg(side or 24, side or 32, 0), {}
    aspect = 1.5 if side else None
    for split, counts in {"train": train, "validation": validation}.items():
        first, splits[split] = 0, []
        for number, count in enumerate(counts):
            path = directory / f"{split}-{number}.tfrecord"
            serialized = [shards.serialize(image, first + i, aspect) for i in range(count)]
            splits[split].append(shards.write_shard(path, serialized))
            first += count
    if manifest:
        classes = [str(label) for label in range(sum(train))]
        shards.write_manifest(directory, classes, splits, {"source": "test"}, size=side or None)
    return directory


def write_folder(directory, classes=("cat", "dog"), images=12, splits=("",)):
    for split in splits:
        for label, name in enumerate(classes):
            (directory / split / name).mkdir(parents=True)
            for i in range(images):
                jpeg = noise_jpeg(40, 50, 100 * label + i)
                (directory / split / name / f"{i}.jpg").write_bytes(jpeg)
    return directory


def first_records(source, elements, count):
    """The first `count` records, or all where there are fewer."""
    [batch] = elements.take(count).batch(count)
    return source.read(*as_tuple(batch))


def labels(source, elements, count):
    return first_records(source, elements, count)["label"].numpy().tolist()


def indices(source, elements, count):
    found = first_records(source, elements, count)
    paths = [path.decode() for path in found["source_file"].numpy()]
    return list(zip(paths, found["source_index"].numpy().tolist(), strict=True))


def write_raw(directory, counts=(40, 37, 23), validation=11, size=8):
    """A small raw data set; each label is its record's number in the split, each pixel too."""
    directory.mkdir(parents=True, exist_ok=True)
    splits = {}
    for split, numbers in {"train": counts, "validation": (validation,)}.items():
        first, splits[split] = 0, []
        for number, count in enumerate(numbers):
            path = directory / f"{split}-{number}.raw"
            examples = (
                (np.full((size, size, 3), first + i, np.uint8), first + i, 1.5)
                for i in range(count)
            )
            splits[split].append(raw.write_raw_shard(path, examples))
            first += count
    classes = [str(label) for label in range(sum(counts))]
    made = {"source": "test"}
    shards.write_manifest(directory, classes, splits, made, format="raw", size=size)
    return directory


KINDS = ["records", "raw", "digits", "folder", "folder in memory", "folder on disk"]


@pytest.fixture(params=[*KINDS, "records in memory", "records on disk", "some records"])
def source(request, tmp_path):
    if request.param == "raw":
        return open_data(f"records:{write_raw(tmp_path)}").train
    if request.param == "digits":
        return open_data("digits").train
    if request.param.startswith("folder"):
        opened = open_data(f"folder:{write_folder(tmp_path / 'data')}").train
    else:
        opened = open_data(f"records:{write_records(tmp_path / 'data')}").train
    if request.param.endswith("memory"):
        return in_memory(opened)
    if request.param.endswith("disk"):
        return on_disk(opened, "test", tmp_path / "cache", buffer_bytes=1 << 20)
    return opened.without([0, 39, 40, 57]) if request.param == "some records" else opened


def test_every_epoch_holds_every_example_once_in_another_order(source):
    n = source.count
    seen = indices(source, source.shuffled(7, 0), 3 * n)
    epochs = [seen[i * n : (i + 1) * n] for i in range(3)]
    stored = sorted(indices(source, source.in_order(), 2 * n))
    assert len(stored) == n
    assert all(sorted(epoch) == stored for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert indices(source, source.shuffled(8, 0), n) != epochs[0]


def test_an_epoch_for_a_data_service_holds_every_record_once_with_its_number(source):
    by_number = indices(source, source.in_order(), source.count)
    found = {}
    for epoch in range(2):
        numbers, order = [], []
        for number, elements in source.epoch(5, epoch).batch(7):
            records = source.read(*as_tuple(elements))
            numbers += number.numpy().tolist()
            paths = [path.decode() for path in records["source_file"].numpy()]
            order += list(zip(paths, records["source_index"].numpy().tolist(), strict=True))
        assert sorted(numbers) == list(range(source.count))
        assert order == [by_number[number] for number in numbers]
        found[epoch] = numbers
    assert found[0] != found[1]


def test_leaving_records_out_leaves_all_others_in_their_order(source):
    whole = indices(source, source.in_order(), source.count)
    rest = source.without([1, 2, source.count - 1])
    assert indices(rest, rest.in_order(), source.count) == [whole[0], *whole[3:-1]]
    shuffled = indices(rest, rest.shuffled(0, 0), rest.count)
    assert sorted(shuffled) == sorted([whole[0], *whole[3:-1]])
    if source.files():  # what is held in memory has a number and no file
        assert [rest.location(n) for n in (0, 1)] == [source.location(n) for n in (0, 3)]


@pytest.mark.parametrize("start", [1, 30, 105])
def test_a_restart_anywhere_goes_on_as_if_nothing_had_happened(source, start):
    whole = indices(source, source.shuffled(3, 0), start + 25)
    assert indices(source, source.shuffled(3, start), 25) == whole[start:]


@pytest.mark.parametrize("hosts", [2, 3, 7])
def test_shares_of_hosts_are_even_and_cover_everything_once(source, hosts):
    shares = [source.share(host, hosts) for host in range(hosts)]
    counts = [share.count for share in shares]
    assert max(counts) - min(counts) <= 1
    seen = [row for share in shares for row in indices(share, share.in_order(), share.count)]
    assert seen == indices(source, source.in_order(), source.count)


def test_a_small_shuffle_buffer_still_loses_nothing(tmp_path):
    opened = records.open_records(str(write_records(tmp_path)), buffer_bytes=2_000)
    assert opened.train.buffer < 10
    assert sorted(labels(opened.train, opened.train.shuffled(0, 0), 100)) == list(range(100))


def test_readers_hold_no_more_than_they_say(tmp_path):
    write_records(tmp_path, train=(900,) * 6)
    train = dataclasses.replace(open_data(f"records:{tmp_path}").train, buffer=1)
    held = train.read_ahead
    assert held < train.count / 2
    elements = iter(train.shuffled(0, 0))
    next(elements)
    time.sleep(0.5)  # in which the readers fill what they have
    for piece in train.pieces:
        with open(piece.path, "r+b") as file:
            file.write(bytes(os.path.getsize(piece.path)))
    whole = 0
    with pytest.raises(tf.errors.DataLossError):
        for _ in elements:
            whole += 1
    assert 0.5 * held < whole <= held


def test_records_without_a_manifest_are_measured_and_split_by_name(tmp_path, capsys):
    opened = open_data(f"records:{write_records(tmp_path, manifest=False)}")
    assert (opened.train.count, opened.validation.count) == (100, 11)
    assert len(opened.classes) == 100
    for path in tmp_path.glob("validation*"):
        path.unlink()
    opened = open_data(f"records:{tmp_path}")
    assert (opened.train.count, opened.validation.count) == (90, 10)
    assert "held out" in capsys.readouterr().out


def test_holding_out_the_tail_never_shares_a_record():
    head, tail = split_tail([Piece("a", 0, 10), Piece("b", 5, 1), Piece("c", 2, 2)], 0.1)
    spans = collections.Counter(
        (piece.path, index)
        for piece in head + tail
        for index in range(piece.skip, piece.skip + piece.take)
    )
    assert set(spans.values()) == {1}
    assert len(spans) == 13


@pytest.mark.parametrize("cut", [1, 20])
def test_a_truncated_shard_is_named_with_its_record(tmp_path, cut):
    path = write_records(tmp_path, manifest=False) / "train-1.tfrecord"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(UserError, match=r"train-1.tfrecord: record 36 is cut short"):
        open_data(f"records:{tmp_path}")


def test_a_shard_that_the_manifest_does_not_know_as_it_is_is_named(tmp_path):
    path = write_records(tmp_path) / "train-1.tfrecord"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(UserError, match=r"train-1.tfrecord: \d+ bytes, manifest.json says"):
        open_data(f"records:{tmp_path}")
    path.unlink()
    with pytest.raises(UserError, match=r"train-1.tfrecord: listed in manifest.json but missing"):
        open_data(f"records:{tmp_path}")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="not a manifest"):
        open_data(f"records:{tmp_path}")


def test_records_without_an_image_name_what_they_have(tmp_path):
    feature = {"text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a"]))}
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    with tf.io.TFRecordWriter(str(tmp_path / "train.tfrecord")) as writer:
        writer.write(example.SerializeToString())
    with pytest.raises(UserError, match=r"no image among its features \(text\)"):
        open_data(f"records:{tmp_path}")


def test_a_folder_counts_and_names_what_it_leaves_aside(tmp_path, capsys):
    write_folder(tmp_path, splits=("train", "val"))
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "dog" / "photo.webp").write_bytes(b"RIFF")
    opened = open_data(f"folder:{tmp_path}")
    assert (opened.train.count, opened.validation.count) == (24, 24)
    assert opened.classes == ("cat", "dog")
    out = capsys.readouterr().out
    assert "1 .txt" in out and "1 .webp" in out and "notes.txt" in out


def test_a_folder_holds_the_same_images_out_every_time(tmp_path):
    write_folder(tmp_path)
    first, second = (open_data(f"folder:{tmp_path}") for _ in range(2))
    held = indices(first.validation, first.validation.in_order(), 99)
    assert held == indices(second.validation, second.validation.in_order(), 99)
    assert len(held) >= 2
    assert not set(held) & set(indices(first.train, first.train.in_order(), 99))
    for i in range(40):
        (tmp_path / "cat" / f"more{i}.jpg").write_bytes(noise_jpeg(8, 8, i))
    more = open_data(f"folder:{tmp_path}").validation
    grown = indices(more, more.in_order(), 99)
    low = {row for row in held if "dog" in row[0]}
    assert low <= set(grown) and 3 < len(grown) < 12


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("nothing", "give digits, synthetic"),
        ("records:", "give digits, synthetic"),
        ("records:/no/such/place", "no directory /no/such/place"),
        ("folder:/no/such/place", "no directory /no/such/place"),
        ("synthetic:many", "give a number of photos"),
        ("tfds:no_such_data_set", "tfds build no_such_data_set"),
    ],
)
def test_a_wrong_data_set_is_named(data, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match=expected):
        open_data(data)


def test_empty_and_one_class_folders_are_refused(tmp_path):
    for kind in ("folder", "records"):
        with pytest.raises(UserError, match="no "):
            open_data(f"{kind}:{tmp_path}")
    write_folder(tmp_path, classes=("cat",))
    with pytest.raises(UserError, match=r"one class alone \(cat\)"):
        open_data(f"folder:{tmp_path}")


def test_a_prepared_tfds_data_set_is_read_without_the_network(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    class Tiny(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
                "label": tfds.features.ClassLabel(num_classes=5),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, manager):
            return {"train": self._generate_examples(20), "test": self._generate_examples(6)}

        def _generate_examples(self, count):
            for i in range(count):
                image = np.full((20, 30, 3), 10 * i, np.uint8)
                yield i, {"image": image, "label": i % 5}

    Tiny(data_dir=str(tmp_path)).download_and_prepare()
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    opened = open_data("tfds:tiny")
    assert isinstance(opened.train, Shards)
    assert (opened.train.count, opened.validation.count) == (20, 6)
    assert len(opened.classes) == 5
    record = first_records(opened.train, opened.train.in_order(), 1)
    assert tf.io.decode_jpeg(record["image"][0]).shape == (20, 30, 3)
    found = labels(opened.train, opened.train.shuffled(0, 0), 20)
    assert sorted(found) == sorted(i % 5 for i in range(20))
    halves = [opened.train.share(host, 2) for host in range(2)]
    assert [half.count for half in halves] == [10, 10]


def test_synthetic_photos_are_made_once_and_kept(tmp_path):
    opened = open_data("synthetic:30", str(tmp_path))
    assert (opened.train.count, opened.validation.count) == (20, 10)
    made = sorted(tmp_path.rglob("*.tfrecord"))
    assert made and not list(tmp_path.glob(".*partial*"))
    times = [path.stat().st_mtime_ns for path in made]
    open_data("synthetic:30", str(tmp_path))
    assert times == [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*.tfrecord"))]
    manifest = json.loads(next(tmp_path.rglob("manifest.json")).read_text())
    assert sum(s["records"] for s in manifest["splits"]["train"]) == 20


def test_another_seed_is_not_the_same_order_an_epoch_later(tmp_path):
    # One file, all of it in the buffer: the order is the shuffle's alone.
    source = open_data(f"records:{write_records(tmp_path, train=(60,))}").train
    second_epoch = labels(source, source.shuffled(0, 60), 60)
    assert labels(source, source.shuffled(1, 0), 60) != second_epoch


def test_the_disk_cache_holds_what_was_copied_and_is_made_anew_when_the_data_change(tmp_path):
    directory = write_folder(tmp_path / "photos")
    opened = open_data(f"folder:{directory}").train

    def cached():
        return on_disk(opened, "folder:photos", tmp_path / "cache", buffer_bytes=1 << 20)

    def contents(source):
        found = first_records(source, source.in_order(), source.count)
        return list(zip(found["image"].numpy(), found["label"].numpy(), strict=True))

    assert contents(cached()) == contents(opened)
    [copy] = (tmp_path / "cache").glob("*/train-00000.tfrecord")
    written = copy.stat().st_mtime_ns
    cached()
    assert copy.stat().st_mtime_ns == written
    (directory / "cat" / "0.jpg").write_bytes(noise_jpeg(20, 20, 9))
    (directory / "dog" / "0.jpg").write_bytes(noise_jpeg(20, 20, 9))
    assert contents(cached()) == contents(opened)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_disk_cache_without_room_or_use_is_refused(tmp_path, monkeypatch):
    opened = open_data(f"records:{write_records(tmp_path / 'data')}").train
    usage = collections.namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10))
    with pytest.raises(UserError, match=r"--cache=disk: the records take .* free some"):
        on_disk(opened, "records:data", tmp_path / "cache", 1 << 20)
    assert not list((tmp_path / "cache").iterdir())
    for useless in (open_data("digits"), open_data(f"records:{write_raw(tmp_path / 'raw')}")):
        with pytest.raises(UserError, match="--cache=disk"):
            on_disk(useless.train, "useless", tmp_path / "cache", 1 << 20)


def test_a_memory_cache_that_does_not_fit_is_refused(tmp_path, monkeypatch):
    opened = open_data(f"records:{write_records(tmp_path)}").train
    monkeypatch.setattr(caching, "memory_available", lambda: 1e5)
    with pytest.raises(UserError, match=r"--cache=memory: the records take .* free"):
        in_memory(opened)


def test_a_file_that_was_cut_while_in_use_ends_the_epoch_with_an_error(tmp_path):
    path = write_records(tmp_path) / "train-0.tfrecord"
    source = open_data(f"records:{tmp_path}").train
    content, size = path.read_bytes(), path.stat().st_size // 40
    path.write_bytes(content[: 30 * size + 100])
    with pytest.raises((tf.errors.DataLossError, tf.errors.FailedPreconditionError)):
        indices(source, source.shuffled(0, 0), 100)


def test_a_raw_shard_of_another_length_is_named(tmp_path):
    path = write_raw(tmp_path) / "train-1.raw"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"train-1.raw: \d+ bytes, manifest.json says"):
        open_data(f"records:{tmp_path}")
