"""--bad_records: what is damaged is named, left out within a budget, and never lost unsaid."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from conftest import noise_jpeg
from test_sources import indices, labels, write_folder, write_raw, write_records

from {{cookiecutter.package_name}} import command_line, settings, task
from {{cookiecutter.package_name}}.data import bad_records, pipeline
from {{cookiecutter.package_name}}.data.catalog import open_data
from {{cookiecutter.package_name}}.data.records import HEADER
from {{cookiecutter.package_name}}.errors import UserError

DECODE = functools.partial(
    task.decode_whole, settings=command_line.parse(settings.Settings, []), classes=100
)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def numbers(source):
    return [bad.number for bad in bad_records.find_bad(source, DECODE, "train")]


def test_good_records_are_all_kept(tmp_path):
    for source in (
        open_data(f"records:{write_records(tmp_path / 'records')}").train,
        open_data(f"folder:{write_folder(tmp_path / 'folder')}").train,
        open_data(f"records:{write_raw(tmp_path / 'raw')}").train,
    ):
        assert bad_records.find_bad(source, DECODE, "train") == []


def test_flipped_bytes_in_several_records_lose_these_records_and_no_other(tmp_path):
    directory = write_records(tmp_path)
    first, second = directory / "train-0.tfrecord", directory / "train-1.tfrecord"
    for path, bad in [(first, (5, 39)), (second, (0,))]:
        taken = lengths(path)
        for number in bad:
            flip(path, sum(taken[:number]) + HEADER + 100)
    source = open_data(f"records:{directory}").train
    assert numbers(source) == [5, 39, 40]
    [*_, last] = bad_records.find_bad(source, DECODE, "train")
    assert last.location == f"{second}, record 0" and "checksum" in last.reason
    kept = source.without([5, 39, 40])
    assert kept.count == 97
    assert sorted(labels(kept, kept.shuffled(0, 0), 97)) == sorted(set(range(100)) - {5, 39, 40})


def lengths(path):
    """The bytes that each record of a TFRecord file takes, with its frame."""
    return [len(record.numpy()) + 16 for record in tf.data.TFRecordDataset(str(path))]


def test_what_lies_behind_a_damaged_length_is_lost_and_counted(tmp_path):
    path = write_records(tmp_path) / "train-1.tfrecord"
    flip(path, sum(lengths(path)[:30]) + 2)
    source = open_data(f"records:{tmp_path}").train
    assert numbers(source) == list(range(70, 77))


@pytest.mark.parametrize("manifest", [True, False])
def test_a_file_that_is_cut_short_loses_what_is_missing(tmp_path, manifest):
    path = write_records(tmp_path, manifest=manifest) / "train-1.tfrecord"
    path.write_bytes(path.read_bytes()[: sum(lengths(path)[:35]) + 20])
    source = open_data(f"records:{tmp_path}", tolerant=True).train
    assert numbers(source) == ([75, 76] if manifest else [75])
    if manifest:  # cut between two records: nothing but the manifest tells
        path.write_bytes(path.read_bytes()[:-20])
        assert numbers(open_data(f"records:{tmp_path}", tolerant=True).train) == [75, 76]


def test_images_that_do_not_decode_to_their_last_row_are_bad(tmp_path):
    directory = write_folder(tmp_path)
    broken = {"cat/3.jpg": b"no image", "dog/7.jpg": noise_jpeg(40, 50, 1)[:-200], "dog/8.jpg": b""}
    for name, content in broken.items():
        (directory / name).write_bytes(content)
    source = open_data(f"folder:{directory}").train
    bad = bad_records.find_bad(source, DECODE, "train")
    assert {record.location for record in bad} == {str(directory / name) for name in broken}
    kept = source.without([record.number for record in bad])
    whole = indices(kept, kept.in_order(), 99)
    assert len(whole) == source.count - 3
    assert not {path for path, _ in whole} & {record.location for record in bad}
    (directory / "cat" / "0.jpg").unlink()  # listed, and gone when it is read
    bad = bad_records.find_bad(source, DECODE, "train")
    assert str(directory / "cat" / "0.jpg") in {r.location for r in bad} and len(bad) == 4


def test_a_label_that_is_no_class_is_bad(tmp_path):
    source = open_data(f"records:{write_records(tmp_path)}").train
    few = functools.partial(DECODE.func, **{**DECODE.keywords, "classes": 98})
    bad = bad_records.find_bad(source, few, "train")
    assert [record.number for record in bad] == [98, 99]
    assert bad[0].reason == "label 98 is none of the classes 0 to 97"


def test_a_flipped_pixel_of_a_raw_record_is_named_before_it_is_trained_on(tmp_path):
    path = write_raw(tmp_path) / "train-2.raw"
    flip(path, 4 * 8 * 8 * 3 + 17)
    source = open_data(f"records:{tmp_path}").train
    assert numbers(source) == [81]

    def read(records, index):
        return records["pixels"], records["label"]

    batches = pipeline.training_batches(source, read, 20, 0)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(batches.take(5))
    found = str(pipeline.explain_bad_record(source, read, 0, 0, 100))
    assert "train-2.raw, record 4: cannot be decoded (its pixels are not those that" in found
    resumed = pipeline.training_batches(source, read, 20, 0, start=40)
    with pytest.raises(tf.errors.InvalidArgumentError):  # also where a run goes on in mid-epoch
        list(resumed.take(8))


def test_more_bad_records_than_the_budget_are_an_error_that_names_some():
    source = open_data("digits").train
    bad = [bad_records.BadRecord(number, f"record {number}", "bad") for number in range(20)]
    assert bad_records.leave_out(source, bad, 0.02).count == 1418
    with pytest.raises(UserError, match=r"20 of 1,438 records are bad, .* allows 14: record 0"):
        bad_records.leave_out(source, bad, 0.01)


def test_a_run_leaves_bad_records_out_and_goes_on_with_the_same_ones(train, tmp_path, capfd):
    data = write_records(tmp_path / "data")
    path = data / "train-1.tfrecord"
    flip(path, sum(lengths(path)[:7]) + 50)
    asked = {"data": f"records:{data}", "model": "small_convnet", "image_size": 16}
    asked |= {"batch_size": 8, "evaluate_steps": 4}
    code, _ = train("refused", steps=13, **asked)
    err = capfd.readouterr().err
    assert code == 2 and "train-1.tfrecord: record 7" in err and "--bad_records=skip" in err
    code, run = train("skipped", steps=8, bad_records="skip", **asked)
    out = capfd.readouterr().out
    assert code == 0 and "left out 1 of 100 records" in out and "99 to train" in out
    [bad] = json.loads((run / "bad_records.json").read_text())["train"]
    assert bad["number"] == 47
    path.unlink()  # were the records checked once more, all of the file would be found missing
    np.testing.assert_equal(json.loads((run / "result.json").read_text())["last_step"], 8)
    code, _ = train("poor", steps=8, bad_records="skip", bad_budget=0.001, **asked)
    assert code == 2
