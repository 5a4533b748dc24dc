"""`--find_batch_size`: what fits, what is fast, and what else must change with the batch."""

import json
import resource
import signal

import pytest

from {{cookiecutter.package_name}} import train as command
from {{cookiecutter.package_name}}.benchmark.statistics import Estimate
from {{cookiecutter.package_name}}.errors import RunFailed, UserError
from {{cookiecutter.package_name}}.experiments import batch_size
from {{cookiecutter.package_name}}.experiments.batch_size import Job, Trial
from {{cookiecutter.package_name}}.experiments.ledger import read
from {{cookiecutter.package_name}}.progress import Progress

GIB = 1 << 30
DIGITS = ["--data=digits", "--strategy=one_device"]
JOB = Job(
    batch_size=32,
    learning_rate=0.003,
    unit=1,
    most=1438,
    optimizer="AdamW",
    metric="val_accuracy",
    on_cpu=True,
)


def rated(size, rate, memory=GIB):
    return Trial(size, Estimate(rate, rate * 0.98, rate * 1.02), memory)


def searched(attempt, job=JOB, limit=1 << 50, **more):
    tried = []

    def noted(size):
        tried.append(size)
        return attempt(size)

    with Progress("test", 10, "trial") as progress:
        trials = batch_size.search(noted, job, progress, limit, **more)
    return trials, tried


def saturating(size):
    """Fixed cost and cost an example: 95 % of the best rate from 19 times their ratio on."""
    return rated(size, 1000 * size / (size + 20))


# ------------------------------------------------------------------------------------- the search


def test_it_doubles_up_to_the_training_split_and_looks_below_the_knee():
    trials, tried = searched(saturating)
    assert tried == [8, 16, 32, 64, 128, 256, 512, 1024, 384]
    assert [trial.batch_size for trial in trials] == sorted(tried)
    assert batch_size.knee(trials).batch_size == 384  # 0.951 of the best; 256 has 0.928 / 0.981


def test_it_stops_where_nothing_fits_any_more_and_looks_between():
    trials, tried = searched(
        lambda size: saturating(size) if size < 200 else Trial(size, None, failure="out of memory")
    )
    assert tried == [8, 16, 32, 64, 128, 256, 96, 192]
    document = batch_size.advice(trials, JOB, [])
    assert document["largest"] == 192 and document["largest_is_a_limit"]
    screen = batch_size.screen(document)
    assert "does not fit: out of memory" in screen and "the largest that fits is 192" in screen


def test_it_stops_where_more_is_surely_slower():
    trials, tried = searched(lambda size: rated(size, size if size <= 64 else 6400 / size))
    assert tried == [8, 16, 32, 64, 128, 48]
    document = batch_size.advice(trials, JOB, [])
    assert document["knee"] == 64 and not document["largest_is_a_limit"]
    assert "the largest tried is 128" in batch_size.screen(document)


def test_a_noisy_dip_does_not_stop_it():
    def noisy(size):
        trial = saturating(size)
        wide = Estimate(trial.rate.mean * 0.8, trial.rate.mean * 0.5, trial.rate.mean * 1.1)
        return Trial(size, wide, GIB) if size == 64 else trial

    assert 1024 in searched(noisy)[1]


def test_every_batch_is_a_multiple_of_replicas_and_parts():
    job = Job(48, 0.003, 6, 1438, "AdamW", "val_accuracy", True)
    _, tried = searched(saturating, job)
    assert tried[:5] == [48, 96, 192, 384, 768] and all(size % 6 == 0 for size in tried)


def test_a_split_smaller_than_the_first_batch_is_tried_whole_and_no_further():
    job = Job(4, 0.003, 1, 6, "AdamW", "val_accuracy", True)
    assert searched(saturating, job)[1] == [6]
    with pytest.raises(UserError, match="the training split has 6 examples: no batch of 8"):
        searched(saturating, Job(8, 0.003, 8, 6, "AdamW", "val_accuracy", True))


def test_what_would_surely_exceed_the_memory_limit_is_not_tried():
    def growing(size):
        return rated(size, float(size), GIB + size * GIB // 64)

    trials, tried = searched(growing, limit=4 * GIB)
    assert tried == [8, 16, 32, 64, 128, 96, 192]  # 192 takes 4 GiB, 256 would take 5
    refused = next(trial for trial in trials if trial.batch_size == 256)
    assert refused.failure == "not tried: it would take about 5.0 GiB of 4.0 GiB"
    assert "not tried" in batch_size.screen(batch_size.advice(trials, JOB, []))
    on_gpu = Job(32, 0.003, 1, 1438, "AdamW", "val_accuracy", False)
    assert 1024 in searched(growing, on_gpu, limit=4 * GIB)[1]  # whose memory is another


def test_no_trial_begins_after_the_time_is_up():
    assert searched(saturating, total_s=0)[1] == [8]


def test_if_nothing_fits_that_is_the_error():
    with pytest.raises(RunFailed, match="no batch fits: not done within 9 s"):
        searched(lambda size: Trial(size, None, failure="not done within 9 s"))


# ------------------------------------------------------------------------------------- the advice


@pytest.mark.parametrize(
    ("optimizer", "rule", "rate"),
    [("AdamW", "square root", 0.006), ("LAMB", "square root", 0.006), ("SGD", "linear", 0.012)],
)
def test_the_learning_rate_follows_the_batch_by_the_optimizers_rule(optimizer, rule, rate):
    job = Job(32, 0.003, 1, 1438, optimizer, "val_accuracy", True)
    assert batch_size.learning_rate(job, 128) == (pytest.approx(rate), rule)


def test_the_advice_has_the_number_and_the_command_that_checks_it():
    flags = ["--data=digits", "--learning_rate=0.003", "--model=small_convnet"]
    document = batch_size.advice([saturating(32), saturating(128)], JOB, flags)
    assert document["knee"] == 128 and document["rule"] == "square root"
    assert document["compare"].endswith(
        '.compare "--batch_size=32 --learning_rate=0.003" '
        '"--batch_size=128 --learning_rate=0.006" '
        '--common="--data=digits --model=small_convnet"'
    )
    screen = batch_size.screen(document)
    assert "val_accuracy can fall" in screen and document["compare"] in screen
    assert "--learning_rate=0.006" in screen
    bars = [line.count("#") for line in screen.splitlines()[1:3]]
    assert bars == [round(40 * (32 / 52) / (128 / 148)), 40]


def test_the_batch_it_has_needs_no_check():
    document = batch_size.advice([saturating(32)], JOB, [])
    assert document["knee"] == 32 and "can fall" not in batch_size.screen(document)


# ---------------------------------------------------------------------- trials in real processes


def test_a_trial_ended_by_a_signal_does_not_fit():
    trial = batch_size.try_batch(DIGITS, 32, started=lambda lane: lane.process.kill())
    assert trial.rate is None
    assert trial.failure.startswith("its process was ended by SIGKILL, as the kernel does")


def test_a_trial_that_crashes_does_not_fit():
    def crash(lane):
        lane.process.send_signal(signal.SIGABRT)

    trial = batch_size.try_batch(DIGITS, 32, started=crash)
    assert trial.rate is None and "SIGABRT" in trial.failure


def test_a_trial_that_takes_too_long_does_not_fit():
    trial = batch_size.try_batch(DIGITS, 32, limit_s=0.2)
    assert trial == Trial(32, None, failure="not done within 0 s")


def test_a_trial_that_runs_out_of_memory_does_not_fit_and_harms_nothing():
    def limit(lane):
        lane.describe()  # TensorFlow has started, and what it takes is not the batch's
        with open(f"/proc/{lane.process.pid}/status") as file:
            status = dict(line.split(":", 1) for line in file)
        allowed = int(status["VmData"].split()[0]) * 1024 + (100 << 20)
        resource.prlimit(lane.process.pid, resource.RLIMIT_DATA, (allowed, allowed))

    flags = [*DIGITS, "--image_size=64", "--augment=device"]
    trial = batch_size.try_batch(flags, 1024, started=limit)
    assert trial.rate is None and trial.failure


def test_a_trial_that_cannot_work_is_an_error_and_not_a_batch_that_does_not_fit(capsys):
    code = command.main(["--find_batch_size", "--data=digits", "--model=no_such_model"])
    captured = capsys.readouterr()
    assert code == 2 and "no_such_model" in captured.err and captured.err.count("\n") == 1


@pytest.mark.slow
def test_the_command_searches_and_keeps_what_it_found(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(batch_size, "WINDOW_SECONDS", 0.2)
    out = tmp_path / "runs" / "b"
    assert command.main(["--find_batch_size", f"--run_dir={out}", *DIGITS]) == 0
    document = json.loads((out / "batch_size.json").read_text())
    sizes = [trial["batch_size"] for trial in document["trials"]]
    assert sizes[0] == 8 and max(sizes) <= 1438 and document["knee"] in sizes
    assert all(trial["memory"] > 0 for trial in document["trials"] if trial["rate"])
    (line,) = read(out.parent / "ledger.jsonl")
    assert line["what"] == "batch_size" and line["knee"] == document["knee"]
    assert "knee" in capsys.readouterr().out
