"""Whole runs: kills, signals, damage and mistakes, each with the end it should have."""

import errno
import functools
import json
import random
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from conftest import losses, rows
from test_sources import write_folder, write_records

from {{cookiecutter.package_name}} import command_line, settings, task, training
from {{cookiecutter.package_name}} import job as jobs
from {{cookiecutter.package_name}} import run_directory as directories

PACKAGE = settings.__package__
KILLED = {"steps": 150, "evaluate_steps": 10, "dropout": 0.2, "ema": 0.9}
KILLED |= {"strategy": "one_device", "data": "digits"}


def start(run_dir, **flags):
    """Trains in a process of its own."""
    arguments = [f"--{name}={value}" for name, value in {"run_dir": run_dir, **flags}.items()]
    return subprocess.Popen(
        [sys.executable, "-m", f"{PACKAGE}.train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def newest_checkpoint(run_dir):
    return max((run_dir / "checkpoints").glob("ckpt-*"), default=None)


def tensors(run_dir):
    """Every array of a run's last checkpoint, by name."""
    reader = tf.train.load_checkpoint(str(newest_checkpoint(run_dir) / "tensors"))
    names = set(reader.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    return {name: reader.get_tensor(name) for name in names}


def assert_same_weights(run_dir, other):
    expected, got = tensors(other), tensors(run_dir)
    assert expected.keys() == got.keys()
    assert len(expected) > 20  # weights, both of Adam's moments, counters and, if used, averages
    for name, value in expected.items():
        assert np.array_equal(value, got[name]), name


def wait_for(condition, process, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def test_killed_twice_the_weights_are_the_same_bit_for_bit(train, tmp_path):
    """A hundred times: test_interruptions.py."""
    _, unbroken = train("unbroken", **KILLED)
    broken, rng = tmp_path / "broken", random.Random(2)
    for _ in range(2):
        before = newest_checkpoint(broken)
        process = start(broken, steps_per_call=3, **KILLED)
        # Anywhere from the start of TensorFlow to two checkpoints after the one it resumed from.
        moment = rng.random()
        if moment < 0.3:
            time.sleep(8 * moment)
        else:
            wait_for(lambda before=before: newest_checkpoint(broken) not in (None, before), process)
            time.sleep(0.3 * rng.random())
        process.kill()
        process.wait()
    assert train("broken", steps_per_call=3, **KILLED)[0] == 0
    assert_same_weights(broken, unbroken)
    assert losses(broken) == losses(unbroken)
    assert [row["val_loss"] for row in rows(broken, "val_loss")] == [
        row["val_loss"] for row in rows(unbroken, "val_loss")
    ]


def test_sigterm_saves_exits_143_and_the_run_goes_on(train, tmp_path, capfd):
    asked = {**KILLED, "evaluate_steps": 1000}
    _, unbroken = train("unbroken", **asked)
    broken = tmp_path / "broken"
    process = start(broken, steps_per_call=1, **asked)
    wait_for((broken / "metrics.jsonl").exists, process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert process.returncode == 143, out
    result = json.loads((broken / "result.json").read_text())
    assert result["exit_reason"] == "terminated"
    assert 0 < result["last_step"] < KILLED["steps"]
    assert newest_checkpoint(broken).name == f"ckpt-{result['last_step']:08d}"
    assert train("broken", **asked)[0] == 0
    assert f"after step {result['last_step']}" in capfd.readouterr().out
    assert_same_weights(broken, unbroken)


def test_sigterm_before_the_first_step_exits_143_at_once(tmp_path):
    process = start(tmp_path / "run", **KILLED)
    wait_for((tmp_path / "run" / "settings.json").exists, process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 143, out
    assert "Traceback" not in out
    assert not (tmp_path / "run" / "result.json").exists()  # nothing was begun, nothing is told


def test_an_evaluation_that_sigterm_cut_short_is_made_up_for(train, monkeypatch):
    evaluate = training._evaluate
    cut = iter([True, False])

    def interrupted(job, run, checkpoints, state, stop):
        if next(cut, False):
            stop._receive(signal.SIGTERM, None)
        return evaluate(job, run, checkpoints, state, stop)

    monkeypatch.setattr(training, "_evaluate", interrupted)
    asked = {"steps": 20, "evaluate_steps": 10, "strategy": "one_device"}
    code, run_dir = train(**asked)
    assert code == 143
    assert rows(run_dir, "val_loss") == []
    code, _ = train(**asked)
    assert code == 0
    assert [row["step"] for row in rows(run_dir, "val_loss")] == [10, 20]


@pytest.fixture
def poison(monkeypatch):
    """Makes the inputs at these positions of the training NaN, as a bad record would."""
    prepare = task.prepare_training

    def poisoned_by(*positions):
        def prepared(features, labels, index, **others):
            inputs, targets = prepare(features, labels, index, **others)
            bad = tf.reduce_any(index[:, None] == tf.constant(positions, tf.int64), axis=1)
            return tf.where(bad[:, None, None, None], float("nan"), inputs), targets

        monkeypatch.setattr(task, "prepare_training", prepared)

    return poisoned_by


POISONED = {"steps": 40, "evaluate_steps": 10, "batch_size": 32, "dropout": 0.2, "nan_budget": 2}


@pytest.mark.parametrize("where", [{"strategy": "one_device"}, {"logical_devices": 2}])
def test_a_batch_without_a_finite_loss_is_left_out_and_named(
    train, poison, capfd, monkeypatch, where
):
    poison(32 * 12 + 5, 32 * 33)  # in the 13th step and the 34th
    code, run_dir = train(**POISONED, **where)
    assert code == 0
    result = json.loads((run_dir / "result.json").read_text())
    assert result["steps_left_out"] == [13, 34] and result["last_step"] == 40
    assert "not finite at step 34" in capfd.readouterr().out
    assert np.isfinite(losses(run_dir)).all()
    assert [row["step"] for row in rows(run_dir, "val_loss")] == [10, 20, 30, 40]
    logged = [row["step"] for row in rows(run_dir)]
    assert logged == sorted(set(logged)) and not {13, 34} & set(logged)
    # The weights are those of a run that knew from the start which batches to leave out.
    knowing = functools.partial(training.State, left_out=[13, 34])
    monkeypatch.setattr(training, "State", knowing)
    assert train("knowing", **POISONED, **where)[0] == 0
    assert_same_weights(run_dir, run_dir.parent / "knowing")


def test_too_many_batches_without_a_finite_loss_end_the_run_at_its_last_checkpoint(
    train, poison, capfd
):
    poison(32 * 12, 32 * 14, 32 * 16)
    code, run_dir = train(**POISONED, strategy="one_device")
    assert code == 1
    assert "at step 17" in capfd.readouterr().err
    assert newest_checkpoint(run_dir).name == "ckpt-00000010"
    numbers = [value for value in tensors(run_dir).values() if value.dtype.kind == "f"]
    assert numbers and all(np.isfinite(value).all() for value in numbers)


def test_a_run_that_ended_without_a_finite_loss_goes_on_as_its_message_says(train, poison, capfd):
    poison(32 * 12)
    flags = {**POISONED, "strategy": "one_device"}
    assert train(**{**flags, "nan_budget": 0})[0] == 1
    assert "--nan_budget=3" in capfd.readouterr().err
    code, run_dir = train(**{**flags, "nan_budget": 3})
    assert code == 0
    assert json.loads((run_dir / "result.json").read_text())["steps_left_out"] == [13]


def test_a_log_that_cannot_be_written_does_not_end_the_training(train, monkeypatch, capfd):
    def full(path, line):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(directories, "_append", full)
    code, run_dir = train(steps=20, evaluate_steps=10, strategy="one_device")
    assert code == 0 and not (run_dir / "metrics.jsonl").exists()
    assert capfd.readouterr().err.count("no more log") == 1


def test_a_log_line_is_whole_or_not_there(tmp_path):
    path = tmp_path / "metrics.jsonl"
    directories._append(path, b'{"step": 1}\n')
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, unlimited[1]))  # room for 4 bytes more
    try:
        with pytest.raises(OSError, match=r"metrics\.jsonl"):
            directories._append(path, b'{"step": 2}\n')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    directories._append(path, b'{"step": 3}\n')
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_a_run_on_two_replicas_goes_on_on_one(train):
    asked = {"steps": 20, "evaluate_steps": 10}
    _, whole = train("whole", strategy="one_device", **asked)
    _, moved = train("moved", strategy="mirrored", logical_devices=2, **asked)
    newest = newest_checkpoint(moved)
    assert newest.name == "ckpt-00000020"
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()  # as if it had been killed after step 10
    code, _ = train("moved", strategy="one_device", **asked)
    assert code == 0
    np.testing.assert_allclose(losses(moved), losses(whole), atol=1e-5)


def test_two_trainings_are_the_same(train):
    _, first = train("first", steps=30, strategy="one_device")
    _, second = train("second", steps=30, strategy="one_device")
    assert losses(first) == losses(second)
    assert_same_weights(first, second)


def test_a_finished_run_is_left_as_it_is(train):
    _, run_dir = train(steps=10, strategy="one_device")
    before = tensors(run_dir), (run_dir / "metrics.jsonl").read_text()
    code, _ = train(steps=10, strategy="one_device")
    assert code == 0
    assert (run_dir / "metrics.jsonl").read_text() == before[1]
    assert json.loads((run_dir / "result.json").read_text())["exit_reason"] == "completed"


def test_the_files_of_a_run_hold_what_the_contract_names(train):
    code, run_dir = train(steps=20, evaluate_steps=10, strategy="one_device")
    assert code == 0
    assert [row["step"] for row in rows(run_dir)] == list(range(1, 21))
    keys = {"step", "epoch", "loss", "learning_rate", "examples_per_second", "step_ms"}
    assert all(row.keys() == keys for row in rows(run_dir))
    assert [row["step"] for row in rows(run_dir, "val_accuracy")] == [10, 20]
    assert all("val_loss" in row for row in rows(run_dir, "val_accuracy"))
    result = json.loads((run_dir / "result.json").read_text())
    assert result["last_step"] == 20 and result["examples_seen"] == 640
    assert result["final"] == rows(run_dir, "val_accuracy")[-1]["val_accuracy"]
    assert result["best"] == max(row["val_accuracy"] for row in rows(run_dir, "val_accuracy"))
    assert result["exit_reason"] == "completed" and result["seconds"] > 0
    assert json.loads((run_dir / "settings.json").read_text())["steps"] == 20
    assert any((run_dir / "events").iterdir())


@pytest.mark.parametrize(
    ("write", "kind", "augment"),
    [
        (write_folder, "folder", "host"),
        (write_records, "records", "device"),
        (write_records, "records", "none"),
    ],
)
def test_every_kind_of_data_trains_and_resumes(train, tmp_path, write, kind, augment):
    asked = {"data": f"{kind}:{write(tmp_path / kind)}", "model": "small_convnet"}
    asked |= {"image_size": 32, "batch_size": 4, "augment": augment, "strategy": "one_device"}
    asked |= {"steps": 6, "evaluate_steps": 3}
    code, whole = train("whole", **asked)
    assert code == 0
    _, resumed = train("resumed", **asked)
    newest = newest_checkpoint(resumed)
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    assert train("resumed", **asked)[0] == 0
    assert losses(resumed) == losses(whole)
    assert_same_weights(resumed, whole)


def corrupt(tmp_path):
    directory = write_folder(tmp_path / "photos")
    (directory / "dog" / "7.jpg").write_bytes(b"\xff\xd8\xff no photo")
    return f"folder:{directory}"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (lambda _: {"data": "folder:/no/such/place"}, "no directory /no/such/place"),
        (lambda _: {"data": "nonsense"}, "give digits, synthetic"),
        (lambda path: {"data": f"folder:{path}"}, "no JPEG or PNG"),
        (lambda path: {"data": f"records:{path}"}, "no *.tfrecord* file"),
        (lambda path: {"data": corrupt(path), "batch_size": 4}, "dog/7.jpg: cannot be decoded"),
        (lambda _: {"model": "alexnet"}, "no such backbone"),
        (lambda _: {"batch_size": 33, "accumulate": 2}, "the nearest: 32 or 34"),
        (
            lambda _: {"batch_size": 33, "strategy": "mirrored", "logical_devices": 2},
            "does not divide among 2 replicas: the nearest: 32 or 34",
        ),
        (lambda _: {"strategy": "mirrored", "logical_devices": 0}, "sees no GPU"),
        (lambda _: {"run_dir": "/dev/null"}, "is a file"),
        (lambda _: {"run_dir": "/proc/nothing/here"}, "cannot be made"),
        (lambda _: {"image_size": 8, "model": "resnet50"}, "does not suit"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(train, tmp_path, capfd, flags, expected):
    asked = {"steps": 5, "image_size": 32, "model": "small_convnet", "strategy": "one_device"}
    code, _ = train(**{**asked, **flags(tmp_path)})
    error = capfd.readouterr().err
    assert code == 2
    assert expected in error
    lines = [line for line in error.splitlines() if line.startswith("train:")]
    assert len(lines) == 1
    assert "Traceback" not in error


def test_gpus_that_are_asked_for_and_not_there_are_an_error(train, capfd, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert train(steps=5)[0] == 2
    assert "sees no GPU" in capfd.readouterr().err


def test_other_settings_are_refused_with_what_differs(train, capfd):
    train(steps=5, strategy="one_device")
    code, _ = train(steps=5, strategy="one_device", learning_rate=0.5)
    assert code == 2
    assert "--learning_rate was 0.0, is 0.5" in capfd.readouterr().err


def test_two_processes_do_not_share_a_run(train, capfd, tmp_path):
    from {{cookiecutter.package_name}}.run_directory import RunDirectory

    asked = command_line.parse(
        settings.Settings, ["--data=digits", f"--run_dir={tmp_path / 'run'}"]
    )
    held = RunDirectory(asked)
    code, _ = train()
    assert code == 2
    assert "in use by another process" in capfd.readouterr().err
    del held


def test_a_half_written_log_line_is_dropped_on_resume(train):
    _, run_dir = train(steps=10, strategy="one_device")
    whole = (run_dir / "metrics.jsonl").read_text()
    (run_dir / "metrics.jsonl").write_text(whole + '{"step": 11, "lo')
    assert train(steps=10, strategy="one_device")[0] == 0
    assert (run_dir / "metrics.jsonl").read_text() == whole


def test_steps_and_evaluations_follow_the_epochs(tmp_path):
    data = f"--data=records:{write_records(tmp_path)}"
    asked = command_line.parse(
        settings.Settings,
        [data, "--epochs=3", "--batch_size=32", "--model=small_convnet", "--image_size=16"],
    )
    job = jobs.build(asked, tmp_path)
    assert job.steps == 9  # 300 examples in whole batches
    assert job.evaluation_steps() == [4, 7, 9]  # as soon as 100 and 200 have been seen, and last


def test_the_policy_that_is_printed_says_why(train, capfd):
    train(steps=2, strategy="one_device")
    out = capfd.readouterr().out
    assert "float32: a CPU gains nothing from less" in out
    assert "one device" in out
