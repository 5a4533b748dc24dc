"""Checkpoints: whole or not at all, checked before they are trusted, the best one kept."""

import errno
import json
import os
import resource
import threading
import zlib

import pytest
import tensorflow as tf

from {{cookiecutter.package_name}} import checkpoints as module
from {{cookiecutter.package_name}} import durable
from {{cookiecutter.package_name}}.checkpoints import Checkpoints
from {{cookiecutter.package_name}}.durable import Following, fingerprint, write_durably
from {{cookiecutter.package_name}}.errors import RunFailed


@pytest.fixture
def saved(tmp_path):
    """Three checkpoints at steps 1, 2, 3 of a variable that holds the step."""
    value = tf.Variable(0)
    checkpoints = Checkpoints(tmp_path / "checkpoints", {"value": value})
    for step in (1, 2, 3):
        value.assign(step)
        checkpoints.save(step, {"step": step})
    value.assign(0)
    return checkpoints, value


def test_the_newest_is_restored_with_its_state(saved):
    checkpoints, value = saved
    restored = checkpoints.restore()
    assert restored.state == {"step": 3} and int(value) == 3
    assert restored.path.name == "ckpt-00000003"


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: flip(next(path.glob("tensors.data*"))),
        lambda path: flip(path / "tensors.index"),
        lambda path: next(path.glob("tensors.data*")).write_bytes(b""),
        lambda path: (path / "tensors.index").unlink(),
        lambda path: (path / "state.json").unlink(),
        lambda path: (path / "state.json").write_text('{"files": {'),
        lambda path: (path / "state.json").write_text(""),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(saved, harm, capsys):
    checkpoints, value = saved
    harm(checkpoints.paths()[-1])
    assert checkpoints.restore().state == {"step": 2}
    assert int(value) == 2
    out = capsys.readouterr().out
    assert "ckpt-00000003 is damaged" in out


def test_training_never_starts_again_from_nothing_by_itself(saved):
    checkpoints, _ = saved
    for path in checkpoints.paths():
        (path / "state.json").unlink()
    with pytest.raises(RunFailed, match="all 3 checkpoints are damaged"):
        checkpoints.restore()


def test_there_is_nothing_to_restore_at_first(tmp_path):
    assert Checkpoints(tmp_path, {"value": tf.Variable(0)}).restore() is None


def test_the_newest_three_and_the_best_are_kept(tmp_path):
    value = tf.Variable(0)
    checkpoints = Checkpoints(tmp_path, {"value": value})
    for step in range(1, 8):
        checkpoints.save(step, {}, best=step in (1, 2))
    assert [path.name for path in checkpoints.paths()] == [
        f"ckpt-{step:08d}" for step in (2, 5, 6, 7)
    ]


def test_litter_of_a_killed_save_is_removed_and_never_read(tmp_path):
    checkpoints = Checkpoints(tmp_path, {"value": tf.Variable(5)})
    checkpoints.save(1, {"step": 1})
    litter = tmp_path / ".partial-1-2"
    litter.mkdir()
    (litter / "state.json").write_text(json.dumps({"step": 2, "state": {}, "files": {}}))
    again = Checkpoints(tmp_path, {"value": tf.Variable(0)})
    assert not litter.exists()
    assert again.restore().state == {"step": 1}


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    Checkpoints(tmp_path, {"value": tf.Variable(5)}).save(1, {})
    other = Checkpoints(tmp_path, {"value": tf.Variable(5), "more": tf.Variable(1)})
    with pytest.raises(AssertionError):
        other.restore()


def test_files_are_synchronised_before_they_get_their_name(tmp_path, monkeypatch):
    events, real_rename = [], module.os.rename
    monkeypatch.setattr(module, "sync", lambda path: events.append(f"sync {path.name}"))
    monkeypatch.setattr(
        module.os, "rename", lambda a, b: (events.append("rename"), real_rename(a, b))
    )
    Checkpoints(tmp_path / "c", {"value": tf.Variable(5)}).save(1, {})
    before = events[: events.index("rename")]
    assert any("tensors.data" in event for event in before)
    assert any("tensors.index" in event for event in before)
    assert "sync state.json" in before
    assert events[-1] == "sync c"


def test_a_growing_file_is_synchronised_and_hashed_before_it_is_whole(tmp_path, monkeypatch):
    synced, begun = threading.Semaphore(0), []
    real_sync, real_checksum = durable.sync, durable._checksum
    monkeypatch.setattr(durable, "sync", lambda path: (real_sync(path), synced.release()))
    monkeypatch.setattr(
        durable,
        "_checksum",
        lambda path, start: (begun.append(start), real_checksum(path, start))[1],
    )
    with Following(tmp_path) as following, open(tmp_path / "file", "wb", buffering=0) as file:
        for _ in range(3):
            file.write(os.urandom(5000))
            assert synced.acquire(timeout=10) and synced.acquire(timeout=10)
        os.rename(tmp_path / "file", tmp_path / "renamed")
    assert (0, 0) in begun and any(count == 5000 for count, _ in begun)  # nothing twice
    expected = [15000, zlib.crc32((tmp_path / "renamed").read_bytes())]
    begun.clear()
    assert (
        following.fingerprint(tmp_path / "renamed") == expected == fingerprint(tmp_path / "renamed")
    )
    assert begun[0][0] == 15000


def test_what_the_disk_says_of_a_growing_file_is_not_lost(tmp_path, monkeypatch):
    said = threading.Event()

    def fail(path):
        said.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "sync", fail)
    with pytest.raises(OSError, match="Input/output"), Following(tmp_path):
        (tmp_path / "file").write_bytes(b"1")
        assert said.wait(10)


def test_a_file_that_cannot_be_synchronised_is_no_checkpoint(tmp_path, monkeypatch):
    def fail(path):
        if path.name.startswith("tensors.data"):
            raise OSError(errno.EIO, "Input/output error")

    checkpoints = Checkpoints(tmp_path / "c", {"value": tf.Variable(1)})
    monkeypatch.setattr(module, "sync", fail)
    with pytest.raises(RunFailed, match=r"cannot be saved .*Input/output error"):
        checkpoints.save(1, {})
    assert checkpoints.paths() == []


def test_a_disk_that_fills_up_leaves_the_old_checkpoints(tmp_path, capsys):
    value = tf.Variable(tf.zeros([100_000]))
    checkpoints = Checkpoints(tmp_path, {"value": value})
    checkpoints.save(1, {"step": 1})
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, unlimited[1]))  # half of what is written
    try:
        with pytest.raises(RunFailed, match=r"ckpt-00000002: cannot be saved .*ckpt-00000001"):
            checkpoints.save(2, {"step": 2})
        # Where there will be another, the training goes on.
        checkpoints.save(2, {"step": 2}, needed=False)
        (line,) = capsys.readouterr().err.splitlines()
        assert "ckpt-00000002: cannot be saved" in line and line.endswith("training goes on")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-00000001"]
    assert checkpoints.restore().state == {"step": 1}
    checkpoints.save(2, {"step": 2})
    assert checkpoints.restore().state == {"step": 2}


def test_a_small_file_is_replaced_whole(tmp_path):
    path = tmp_path / "result.json"
    write_durably(path, "one")
    write_durably(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
