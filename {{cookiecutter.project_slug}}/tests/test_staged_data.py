"""`--stage_to`: trained on the copy as on the original, wherever that lies."""

import fcntl
import json
import os

import numpy as np
import pytest
from conftest import losses, noise_jpeg
from servers import S3Bucket, moto, proxy, s3_environment

from {{cookiecutter.package_name}} import staged_data
from {{cookiecutter.package_name}}.data import shards
from {{cookiecutter.package_name}}.data.catalog import open_data
from {{cookiecutter.package_name}}.errors import UserError

FLAGS = {
    **{"model": "small_convnet", "image_size": 16, "batch_size": 8, "learning_rate": 0.01},
    **{"steps": 6, "strategy": "one_device", "cache": "none"},
}


@pytest.fixture
def photos(tmp_path):
    """A prepared data set of 64 JPEGs in four classes."""
    with shards.NewDirectory(tmp_path / "photos") as partial:
        splits = {
            split: [
                shards.write_shard(
                    partial / f"{split}-{shard}.tfrecord",
                    [shards.serialize(noise_jpeg(24, 24, i), i % 4) for i in range(shard, 64, 4)],
                )
                for shard in range(4)
            ]
            for split in ("train", "validation")
        }
        shards.write_manifest(partial, tuple("abcd"), splits, {"source": "noise"})
    return tmp_path / "photos"


@pytest.fixture
def scratch(tmp_path):
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def weights(run_dir):
    """Of the last evaluation, to the last digit: what training gave."""
    result = json.loads((run_dir / "result.json").read_text())
    return result["final"], losses(run_dir)


def test_a_staged_run_gives_the_same_and_its_settings_name_the_original(train, photos, scratch):
    code, plain = train("plain", data=f"records:{photos}", **FLAGS)
    assert code == 0
    code, staged = train("staged", data=f"records:{photos}", stage_to=scratch, **FLAGS)
    assert code == 0
    assert weights(plain) == weights(staged)
    assert json.loads((staged / "settings.json").read_text())["data"] == f"records:{photos}"
    assert len(list(scratch.glob("tfstage-*/*/data/train-*"))) == 4


def test_training_reads_the_copy_and_not_the_original(train, photos, scratch):
    assert train("first", data=f"records:{photos}", stage_to=scratch, **FLAGS)[0] == 0
    (copied,) = scratch.glob("tfstage-*/*/data")
    # As a network mount that hangs would: whoever reads a record of it finds none.
    for file in photos.glob("train-*"):
        times = file.stat()
        file.write_bytes(bytes(times.st_size))
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    code, second = train("second", data=f"records:{photos}", stage_to=scratch, **FLAGS)
    assert code == 0 and np.isfinite(losses(second)).all()
    assert open_data(f"records:{copied}").train.count == 64


def test_a_data_set_in_use_is_locked_against_removal(photos, scratch):
    staged_data.staged_data(f"records:{photos}", str(scratch))
    locks = [path for path in scratch.rglob("*") if path.is_file() and "lock" in str(path)]
    held = 0
    for path in locks:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held += 1
    assert held == 1, locks


def test_folders_and_tfds_directories_are_staged_too(tmp_path, scratch, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        for number in range(8):
            jpeg = noise_jpeg(24, 24, number)
            (tmp_path / "folder" / name / f"{number}.jpg").write_bytes(jpeg)
    data = staged_data.staged_data(f"folder:{tmp_path / 'folder'}", str(scratch))
    assert data.startswith(f"folder:{scratch}") and len(open_data(data).classes) == 2
    prepared = tmp_path / "tfds" / "tiny" / "1.0.0"
    prepared.mkdir(parents=True)
    (prepared / "dataset_info.json").write_text("{}")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    data = staged_data.staged_data("tfds:tiny", str(scratch))
    assert data.startswith(f"tfds:{scratch}")
    assert os.path.exists(f"{data.removeprefix('tfds:')}/dataset_info.json")


@pytest.mark.parametrize("data", ["digits", "synthetic", "records:"])
def test_data_that_lies_in_no_files_is_not_staged(data, scratch, train, capsys):
    code, _ = train(data=data, stage_to=scratch)
    assert code == 2
    assert "--stage_to copies records:, folder: or tfds: data" in capsys.readouterr().err


def test_a_url_says_that_it_must_be_staged_and_shows_no_secret():
    with pytest.raises(UserError, match="train with --stage_to=auto") as error:
        open_data("records:https://me:pass@host/photos?signature=abc")
    assert "pass" not in str(error.value) and "abc" not in str(error.value)


def test_only_data_on_another_disk_is_worth_staging(photos, scratch, monkeypatch):
    monkeypatch.setenv("TFSTAGE_SCRATCH", str(scratch))
    assert not staged_data.could_be_staged(f"records:{photos}")
    assert not staged_data.could_be_staged("digits")
    if os.stat("/dev/shm").st_dev != os.stat(scratch).st_dev:
        monkeypatch.setenv("TFSTAGE_SCRATCH", "/dev/shm")
        assert staged_data.could_be_staged(f"records:{photos}")
    assert staged_data.could_be_staged("records:s3://bucket/photos")


def test_from_s3_it_trains_to_the_same_weights(train, photos, scratch, monkeypatch):
    code, plain = train("plain", data=f"records:{photos}", **FLAGS)
    assert code == 0
    with moto() as port, proxy(port) as between:
        bucket = S3Bucket(between, "photos")
        for file in photos.iterdir():
            bucket.put(f"set/{file.name}", file.read_bytes())
        for name, value in s3_environment(between.url).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TFSTAGE_SCRATCH", str(scratch))
        flags = {"data": "records:s3://photos/set", "stage_to": "auto", **FLAGS}
        code, staged = train("staged", **flags)
        assert code == 0
        asked = len(between.gets)
        assert asked >= len(list(photos.iterdir()))
        code, again = train("again", **flags)
        assert code == 0
        # Of a second run nothing is read but the manifest, which says what the rest must be.
        assert all("manifest.json" in path for _, path, _ in between.gets[asked:])
    assert weights(plain) == weights(staged) == weights(again)
