"""Comparisons: whose turn it is, what is called faster, worse or the same, and what is kept."""

import json
import math
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

import numpy as np
import pytest
import tensorflow as tf
from test_sources import write_folder

from {{cookiecutter.package_name}} import command_line, settings
from {{cookiecutter.package_name}} import compare as command
from {{cookiecutter.package_name}}.command_line import parse
from {{cookiecutter.package_name}}.data import images, pipeline
from {{cookiecutter.package_name}}.errors import RunFailed, UserError
from {{cookiecutter.package_name}}.experiments import (
    comparison,
    experiment,
    finished_runs,
    ladder,
    lane_child,
    lanes,
    ledger,
)
from {{cookiecutter.package_name}}.experiments import lane as one_lane
from {{cookiecutter.package_name}}.experiments.lane import Lane, LaneFailed
from {{cookiecutter.package_name}}.experiments.lanes import Lanes, Side
from {{cookiecutter.package_name}}.settings import CompareSettings, Settings

PACKAGE = settings.__package__
DIGITS = ["--data=digits", "--strategy=one_device"]


# ------------------------------------------------------------------------------ whose turn it is


class Scripted:
    """A way to train that notes its calls and gives what a function of the seed says."""

    def __init__(self, name, log, value=lambda seed: 0.9, speed=lambda now: 1000.0):
        self.name, self.log, self.value, self.speed = name, log, value, speed

    def train(self, seed):
        self.log.append((self.name, seed))
        return facts(value=self.value(seed), examples=3200)

    def rate(self):
        self.log.append((self.name, None))
        return facts(timed_examples=self.speed(len(self.log)), seconds=1.0)


def facts(**more):
    return {
        "batch_size": 32,
        "learning_rate": 0.003,
        "precision": "float32",
        "training_examples": 1438,
        "replicas": 1,
        "device": "CPU",
        "devices": ["/device:CPU:0"],
        "optimizer": "AdamW",
        "metric": "val_accuracy",
        "higher_is_better": True,
        "tensorflow": "2",
        "memory_peak_bytes": 1 << 30,
        "examples_per_second": 1000.0,
        **more,
    }


def test_both_of_a_pair_train_from_the_same_seed_and_pairs_take_turns_to_begin():
    log = []
    results = comparison.alternate(Scripted("A", log), Scripted("B", log), [7, 8, 9])
    trained = [entry for entry in log if entry[1] is not None]
    assert trained == [("A", 7), ("B", 7), ("B", 8), ("A", 8), ("A", 9), ("B", 9)]
    timed = "".join(name for name, seed in log if seed is None)
    assert timed == "ABBABAAB" + "BAABABBA" + "ABBABAAB"
    assert [len(rs) for rs in results] == [3, 3]


@pytest.mark.parametrize("drift", [lambda t: 1 - t / 100, lambda t: 1 - (t / 30) ** 2])
def test_a_machine_that_slows_down_favours_neither(drift):
    log = []
    a = Scripted("A", log, speed=lambda now: 1000 * drift(now))
    b = Scripted("B", log, speed=lambda now: 1500 * drift(now))
    rates = comparison.in_turn(a, b)
    assert rates[1]["examples_per_second"] / rates[0]["examples_per_second"] == pytest.approx(
        1.5, rel=1e-3
    )
    assert rates[0]["step_ms"] == pytest.approx(32000 / rates[0]["examples_per_second"])


def test_both_train_on_the_same_number_of_examples_whatever_the_batch():
    assert experiment._steps(28_760, [32, 64]) == [898, 449]
    assert experiment._steps(6_400, [100, 64]) == [64, 100]  # 6,400 is four times both
    assert experiment._steps(500, [32, 1024]) == [16, 1]  # the nearest there is


# ------------------------------------------------------------------------------------ the verdict


def results(rates, values, **more):
    return [
        facts(examples_per_second=rate, step_ms=32000 / rate, value=value, examples=3200, **more)
        for rate, value in zip(rates, values, strict=True)
    ]


def judged(speedup, gain, spread=0.001, **more):
    """A comparison whose B is `speedup` as fast and better by `gain`, each pair a little other."""
    rng = random.Random(1)
    rates = [1000 * rng.uniform(0.8, 1.2) for _ in range(5)]
    values = [0.9 + rng.uniform(-0.02, 0.02) for _ in range(5)]
    off = [-1, 0.5, 1, -0.5, 0]
    return comparison.compared(
        ("", "--x"),
        results(rates, values, **more),
        results(
            [r * speedup * (1 + 0.01 * o) for r, o in zip(rates, off, strict=True)],
            [v + gain + spread * o for v, o in zip(values, off, strict=True)],
            **more,
        ),
        tolerance=0.01,
    )


@pytest.mark.parametrize(
    ("speedup", "gain", "speed", "metric", "improvement"),
    [
        (1.5, 0.0, "faster", "same", True),
        (1.5, 0.02, "faster", "better", True),
        (1.5, -0.02, "faster", "worse", False),
        (0.7, 0.0, "slower", "same", False),
        (0.7, 0.02, "slower", "better", False),
        (0.7, -0.02, "slower", "worse", False),
        (1.0, 0.0, "no difference", "same", False),
        (1.0, 0.02, "no difference", "better", True),
        (1.0, -0.02, "no difference", "worse", False),
    ],
)
def test_speed_and_metric_are_judged_apart(speedup, gain, speed, metric, improvement):
    verdict = judged(speedup, gain)["verdict"]
    assert (verdict["speed"], verdict["metric"]) == (speed, metric)
    assert verdict["improvement"] is improvement


def test_faster_but_worse_is_called_that():
    sentence = judged(1.9, -0.05)["verdict"]["sentence"]
    assert sentence.startswith("B is faster, but worse: 1.90x (")
    assert "val_accuracy -0.0500 (-0.05" in sentence


def test_a_metric_that_got_worse_by_more_than_its_noise_is_never_an_improvement():
    rng = random.Random(2)
    for _ in range(500):
        spread = 10 ** rng.uniform(-4, -1)
        # 2.776 / sqrt(5) standard deviations of this spread (0.79) are its noise.
        loss = -spread * rng.uniform(0.99, 20)
        verdict = judged(rng.uniform(1.1, 10), loss, spread)["verdict"]
        assert verdict["metric"] == "worse" and not verdict["improvement"]
        assert "but worse" in verdict["sentence"]


def test_of_a_metric_too_noisy_to_exclude_a_loss_nothing_is_promised():
    verdict = judged(1.5, 0.0, spread=0.05)["verdict"]
    assert (verdict["metric"], verdict["improvement"]) == ("same", False)
    assert (
        "a loss of up to 0.0491 cannot be told from none with these 5 pairs"
        in (verdict["sentence"])
    )


def test_a_loss_is_better_when_it_is_lower():
    better = judged(1.5, -0.02, higher_is_better=False, metric="val_loss")["verdict"]
    worse = judged(1.5, 0.02, higher_is_better=False, metric="val_loss")["verdict"]
    assert (better["metric"], better["improvement"]) == ("better", True)
    assert (worse["metric"], worse["improvement"]) == ("worse", False)


def test_a_metric_that_was_not_measured_is_called_that():
    pair = [results([1000.0, 1010.0], [None, None]), results([2000.0, 2010.0], [None, None])]
    document = comparison.compared(("", "--x"), *pair, tolerance=0.01)
    assert document["metric_difference"] is None and document["a"]["metric"] is None
    assert document["verdict"]["metric"] == "not measured"
    assert not document["verdict"]["improvement"]
    assert "val_" not in comparison.screen(document)


def test_the_comparison_has_the_contracts_names():
    document = judged(1.5, 0.0)
    assert document["schema"] == 1 and document["pairs"] == 5
    for side in ("a", "b"):
        assert document[side]["metric"].keys() == {"name", "mean", "low", "high"}
        for figure in ("examples_per_second", "step_ms"):
            assert document[side][figure].keys() == {"mean", "low", "high"}
    assert document["speedup"]["low"] < 1.5 < document["speedup"]["high"]
    assert document["metric_difference"].keys() == {"mean", "low", "high"}
    json.dumps(document, allow_nan=False)
    assert comparison.screen(document).splitlines()[-1] == document["verdict"]["sentence"]


# ---------------------------------------------------------------------------- arguments and flags


@pytest.mark.parametrize(
    ("argv", "own", "sides"),
    [
        (["--batch_size=32", "--batch_size=64"], [], ["--batch_size=32", "--batch_size=64"]),
        (["", "--jit=on", "--pairs=7"], ["--pairs=7"], ["", "--jit=on"]),
        (["--pairs", "7", "a", "b"], ["--pairs", "7"], ["a", "b"]),
        (["--json", "a", "--nojson", "b"], ["--json", "--nojson"], ["a", "b"]),
        (["--common=--steps=9 --ema=0.9", "", "--jit=on"], ["--common=--steps=9 --ema=0.9"], 2),
        (["--jit=off --steps=40", "--jit=on"], [], ["--jit=off --steps=40", "--jit=on"]),
        (["--noladder_x", "--nofused_decode"], [], ["--noladder_x", "--nofused_decode"]),
    ],
)
def test_flags_of_the_command_are_told_from_sets_of_flags(argv, own, sides):
    found = command.split(argv)
    assert found[0] == own
    assert found[1] == sides if isinstance(sides, list) else len(found[1]) == sides


def test_no_flag_of_the_command_is_a_flag_of_training():
    names = CompareSettings.__dataclass_fields__.keys()
    assert not names & Settings.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["", "--bach_size=8"], "Did you mean: batch_size"),
        (["--precision=float8", ""], "auto|float32"),
        (["", "digits"], "no directory"),
        (["runs/none", ""], "no directory"),
        (["", ""], "the same"),
        ([""], "give A and B"),
        (["", "--jit=on", "--steps=3"], "unexpected argument"),
        (["--seed=1", "--seed=2"], "--seed differs"),
        (["", "--benchmark"], "--benchmark is not for a training"),
        (['--data="x', ""], "No closing quotation"),
        (["", "--jit=on", "--pairs=1"], "pairs"),
        (["--ladder", "", ""], "--ladder takes no A and B"),
        (["--ladder", "--common=--bach_size=8"], "Did you mean: batch_size"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2_before_anything_starts(
    argv, expected, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lanes, "Lane", None)  # starting one would fail
    try:
        code = command.main(argv)
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    assert code == 2 and expected in captured.err
    assert captured.out == "" and captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_never_imports_tensorflow():
    code = (
        f"import sys\nfrom {PACKAGE} import compare\n"
        "try:\n    compare.main(['--help'])\n"
        "except SystemExit as end:\n"
        "    sys.exit(end.code or 3 * ('tensorflow' in sys.modules or 'numpy' in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--ladder" in done.stdout and "A B" in done.stdout


def test_settings_become_the_flags_they_came_from():
    flags = ["--batch_size=8", "--fused_decode=false", "--deterministic=true", "--ema=0.5"]
    made = parse(Settings, flags)
    assert sorted(command_line.to_flags(made)) == sorted(flags)
    assert parse(Settings, command_line.to_flags(made)) == made
    assert command_line.to_flags(made, ["ema", "deterministic", "fused_decode"]) == flags[:1]


# ------------------------------------------------------------------------------------------ lanes


@pytest.fixture
def small(monkeypatch):
    """Turns that take no time worth noting."""
    monkeypatch.setattr(lanes, "TURN_SECONDS", 0.05)
    monkeypatch.setattr(lanes, "WARM_SECONDS", 0.05)


def test_a_lane_trains_again_and_again_and_the_same_seed_gives_the_same_metric():
    with Lane(DIGITS, "A") as lane:
        first, again = lane.train(1, 40), lane.train(1, 40)
        assert (first["batch_size"], first["training_examples"]) == (32, 1438)
        assert (first["examples"], first["metric"]) == (1280, "val_accuracy")
        assert first["value"] == again["value"] > 0.3  # by chance it would be 0.1
        timed = lane.rate(0.2)
        assert timed["seconds"] >= 0.2 and timed["timed_examples"] % 32 == 0
        rate = timed["timed_examples"] / timed["seconds"]
        assert timed["examples_per_second"] == pytest.approx(rate)
    assert lane.process.poll() is not None


def test_a_lane_that_is_killed_is_a_clear_line():
    with Lane(DIGITS, "--batch_size=4") as lane:
        lane.process.kill()
        with pytest.raises(LaneFailed, match=r"--batch_size=4: .*SIGKILL, as the kernel") as failed:
            lane.describe()
    assert failed.value.why == "signal"
    assert isinstance(failed.value, RunFailed)  # the command ends with one line, no traceback


def test_a_lane_that_takes_too_long_is_ended():
    with Lane(DIGITS, "A") as lane:
        with pytest.raises(LaneFailed, match="A: no answer within 0 s") as failed:
            lane.rate(1.0, limit_s=0.1)
        assert failed.value.why == "time"
        assert lane.process.wait(10) == -signal.SIGKILL


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A shell script in place of a lane's process; its third argument is where answers go."""

    def put(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(one_lane.sys, "executable", str(path))

    return put


def test_a_flag_that_cannot_work_is_the_users_error_in_the_sides_name(stand_in):
    refusal = '{"error": "no such model", "kind": "usage"}'
    stand_in(f"read line; echo '{refusal}' >/proc/self/fd/$3; exec sleep 60")
    with Lane(DIGITS, "--model=x") as lane, pytest.raises(UserError) as refused:
        lane.describe()
    assert str(refused.value) == "--model=x: no such model"


def test_a_lane_that_ends_by_itself_leaves_its_last_words(stand_in):
    stand_in("echo '  @ 0x7f0 frame' >&2; echo disk on fire >&2; exit 3")
    with Lane(DIGITS, "A") as lane, pytest.raises(LaneFailed) as failed:
        lane.process.wait()
        lane.describe()
    expected = "A: its process ended with exit code 3; its last words: disk on fire"
    assert str(failed.value) == expected


def test_a_killed_parent_leaves_no_lane_behind():
    code = (
        f"from {PACKAGE}.experiments.lane import Lane\n"
        f"lane = Lane({DIGITS}, 'A')\nlane.describe()\n"
        "print(lane.process.pid, lane._directory, flush=True)\nlane.rate(1000.0)\n"
    )
    run = [sys.executable, "-c", code]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as parent:
        pid, directory = parent.stdout.readline().split()
        time.sleep(0.5)  # it is in the middle of its training
        parent.kill()
    end = time.monotonic() + 30
    while alive(int(pid)) or os.path.exists(directory):
        assert time.monotonic() < end, "the lane goes on"
        time.sleep(0.05)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UserError("x"), "usage"),
        (RunFailed("x"), "failed"),
        (MemoryError("x"), "memory"),
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), "memory"),
        (tf.errors.InternalError(None, None, "CUDA out of memory"), "memory"),
    ],
)
def test_what_training_raises_becomes_an_answer(error, kind):
    class Child:
        def answer(self, request):
            raise error

    class Answers(list):
        write, flush = list.append, lambda self: None

    requests, answers = queue.Queue(), Answers()
    requests.put('{"do": "rate"}')
    requests.put("")  # no JSON: ends the endless loop
    with pytest.raises(ValueError):
        lane_child._serve(Child(), requests, answers)
    assert json.loads(answers[0])["kind"] == kind


def test_steady_training_is_counted_after_what_was_made_ahead(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(lane_child.time, "perf_counter", lambda: now[0])
    clock = lane_child.SteadyClock(skip=96)

    def call(examples, seconds):
        now[0] += seconds
        clock.count(examples)

    call(32, 30.0)  # compiles
    for _ in range(2):
        call(32, 0.001)  # was ready
    call(32, 0.5)
    call(64, 1.0)
    assert (clock.examples, clock.seconds) == (96, pytest.approx(1.5))
    clock.pause()
    now[0] += 60
    for _ in range(3):
        call(32, 0.001)
    call(32, 0.5)
    assert (clock.examples, clock.seconds) == (128, pytest.approx(2.0))


class FakeLane:
    """A lane without a process: its rate and metric are functions of its flags."""

    open, most, log = 0, 0, []
    speed = staticmethod(lambda flags: 1000.0)
    value = staticmethod(lambda flags, seed: 0.9 + 0.001 * seed)
    facts: dict = {}  # noqa: RUF012
    both_fit = True

    def __init__(self, flags, name):
        self.flags, self.name = list(flags), name
        cls = FakeLane
        cls.open, cls.most = cls.open + 1, max(cls.most, cls.open + 1)
        cls.log.append(("open", name))

    def rate(self, seconds, limit_s=None):
        if not FakeLane.both_fit and FakeLane.open > 1:
            raise LaneFailed(f"{self.name}: out of memory", "memory")
        given = parse(Settings, self.flags)
        rate = FakeLane.speed(given)
        return facts(
            examples_per_second=rate,
            timed_examples=rate * seconds,
            seconds=seconds,
            batch_size=given.batch_size or 32,
            **FakeLane.facts,
        )

    describe = lambda self: self.rate(1.0)  # noqa: E731

    def train(self, seed, steps):
        given = parse(Settings, self.flags)
        batch_size = given.batch_size or 32
        FakeLane.log.append(("train", self.name, seed, steps * batch_size))
        value = FakeLane.value(given, seed)
        return facts(value=value, examples=steps * batch_size, batch_size=batch_size)

    def close(self):
        FakeLane.open -= 1


@pytest.fixture
def fake(monkeypatch, small):
    monkeypatch.setattr(lanes, "Lane", FakeLane)
    for name, value in {"open": 0, "most": 0, "log": [], "facts": {}, "both_fit": True}.items():
        monkeypatch.setattr(FakeLane, name, value)
    return monkeypatch


def test_where_two_processes_do_not_fit_they_run_one_at_a_time(fake, tmp_path):
    fake.setattr(FakeLane, "both_fit", False)
    fake.chdir(tmp_path)
    assert command.main(["", "--batch_size=64", "--pairs=3", "--examples=640"]) == 0
    assert FakeLane.open == 0
    last = [entry for entry in FakeLane.log if entry[0] == "train"]
    assert [seed for _, _, seed, _ in last] == [0, 0, 1, 1, 2, 2]
    assert {examples for *_, examples in last} == {640}


def test_no_more_than_two_processes_are_open(fake):
    opened = Lanes()
    for name in "abcab":
        opened.facts(Side(name, ()))
    assert FakeLane.most == 2 and FakeLane.open == 2
    assert [name for _, name in FakeLane.log] == ["a", "b", "c", "a", "b"]
    opened.close()
    assert FakeLane.open == 0


# ------------------------------------------------------------------------ the command and its files


def test_the_command_writes_its_result_and_a_line_of_the_ledger(fake, tmp_path, capsys):
    fake.setattr(FakeLane, "speed", staticmethod(lambda s: 2000.0 if s.jit == "on" else 1000.0))
    out = tmp_path / "runs" / "c"
    argv = ["", "--jit=on", "--common=--data=digits", f"--out={out}", "--pairs=3"]
    assert command.main(argv) == 0
    document = json.loads((out / "comparison.json").read_text())
    assert document["speedup"]["mean"] == pytest.approx(2)
    assert document["seeds"] == [0, 1, 2] and document["a"]["examples"] == 20_000
    (line,) = ledger.read(out.parent / "ledger.jsonl")
    assert (line["what"], line["flags"]) == ("comparison", ["", "--jit=on"])
    assert line["tensorflow"] == "2"
    assert line["verdict"] == document["verdict"]["sentence"] and "when" in line
    screen = capsys.readouterr().out
    assert "B  --jit=on" in screen and "B is faster: 2.00x" in screen
    assert command.main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["speed"] == "faster"
    assert len(ledger.read(out.parent / "ledger.jsonl")) == 2


def test_a_training_is_cut_to_what_takes_twenty_seconds(fake, tmp_path):
    fake.setattr(FakeLane, "speed", staticmethod(lambda s: 100.0 if s.batch_size else 64.0))
    assert command.main(["", "--batch_size=64", "--pairs=3", f"--out={tmp_path / 'c'}"]) == 0
    trained = {examples for kind, *_, examples in FakeLane.log if kind == "train"}
    assert trained == {20 * 64}


def test_the_ledger_keeps_whole_lines_of_many_writers(tmp_path):
    path = tmp_path / "runs" / "ledger.jsonl"
    code = (
        f"import pathlib, sys\nfrom {PACKAGE}.experiments import ledger\nfor n in range(50):\n"
        "    row = {'who': sys.argv[2], 'n': n, 'long': 'x' * 9000}\n"
        "    ledger.append(pathlib.Path(sys.argv[1]), row)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, path, who]) for who in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    rows = ledger.read(path)
    assert len(rows) == 150
    assert [row["n"] for row in rows if row["who"] == "b"] == list(range(50))


def test_half_a_line_of_the_ledger_costs_no_other(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger.append(path, {"n": 1})
    path.write_text(path.read_text() + '{"n": 2, "fla')
    assert [row["n"] for row in ledger.read(path)] == [1]
    ledger.append(path, {"n": 3})
    assert [row["n"] for row in ledger.read(path)] == [1, 3]


# ------------------------------------------------------------------------------ two finished runs


def write_run(path, rate, final, *, metric="val_accuracy", count=1000, seconds_of_first=30, **more):
    path.mkdir()
    rng = random.Random(str(path))
    rates = [32 / seconds_of_first] * 3 + [rate * rng.uniform(0.95, 1.05) for _ in range(60)]
    lines = [json.dumps({"step": i, "examples_per_second": r}) for i, r in enumerate(rates)]
    (path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 9, "exa']))
    given = {"batch_size": 32, "run_dir": str(path), **more}
    (path / "settings.json").write_text(json.dumps(given))
    result = {"metric": metric, "final": final, "validation_examples": count, "last_step": 100}
    result |= {"examples_seen": 3200, "higher_is_better": not metric.endswith("loss")}
    (path / "result.json").write_text(json.dumps(result))
    return path


def runs(tmp_path, a, b, **more):
    a, b = write_run(tmp_path / "a", *a, **more), write_run(tmp_path / "b", *b, jit="on", **more)
    return finished_runs.compare_runs(a, b, 0.01)


def test_two_runs_are_compared_without_their_warm_up(tmp_path):
    document = runs(tmp_path, (1000, 0.9), (1500, 0.8))
    assert document["speedup"]["low"] < 1.5 < document["speedup"]["high"]
    assert document["speedup"]["mean"] == pytest.approx(1.5, rel=0.03)
    verdict = document["verdict"]
    assert (verdict["speed"], verdict["metric"]) == ("faster", "worse")
    assert "one run each" in verdict["sentence"] and "--jit" in verdict["sentence"]
    assert document["different_flags"] == {"jit": [None, "on"]}


def test_the_validation_sets_size_bounds_what_two_accuracies_say(tmp_path):
    document = runs(tmp_path, (1000, 0.9), (1500, 0.89), count=359)
    difference = document["metric_difference"]
    half = 1.96 * math.sqrt(0.9 * 0.1 / 359 + 0.89 * 0.11 / 359)
    assert difference["high"] - difference["mean"] == pytest.approx(half, rel=0.05)
    assert document["verdict"]["metric"] == "same" and not document["verdict"]["improvement"]
    assert "cannot be told from none with one run each" in document["verdict"]["sentence"]


def test_a_loss_of_one_run_has_no_noise_to_judge_it_by(tmp_path):
    document = runs(tmp_path, (1000, 0.5), (1500, 0.4), metric="val_loss")
    assert document["metric_difference"] == {"mean": pytest.approx(-0.1), "low": None, "high": None}
    assert document["verdict"]["metric"] == "not measured"
    assert "the noise is not known" in document["verdict"]["sentence"]
    comparison.screen(document)


def test_real_runs_are_compared(train, tmp_path, capsys):
    assert train("a", steps=60, strategy="one_device")[0] == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name, key, value in (("result", "examples_seen", 3840), ("settings", "batch_size", 64)):
        file = tmp_path / "b" / f"{name}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    out = tmp_path / "c"
    assert command.main([str(tmp_path / "a"), str(tmp_path / "b"), f"--out={out}"]) == 0
    document = json.loads((out / "comparison.json").read_text())
    assert document["different_flags"] == {"batch_size": [0, 64]}
    assert document["metric_difference"]["low"] is not None
    assert "They saw 1,920 and 3,840 examples" in document["verdict"]["sentence"]
    assert "val_accuracy" in capsys.readouterr().out


def test_what_is_no_finished_run_is_named(tmp_path, capsys):
    write_run(tmp_path / "a", 1000, 0.9)
    (tmp_path / "b").mkdir()
    assert command.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert f"B={tmp_path / 'b'} holds no finished run" in capsys.readouterr().err
    (tmp_path / "b" / "settings.json").write_text("{")
    (tmp_path / "b" / "result.json").write_text("{")
    assert command.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "damaged" in capsys.readouterr().err
    assert command.main([str(tmp_path / "a"), "--jit=on"]) == 2
    assert "no directory" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- confirm


def prediction(change, flags, speedup, spread=0.02):
    return {
        "change": change,
        "flags": flags,
        "speedup": speedup,
        "low": speedup - spread,
        "high": speedup + spread,
    }


PREDICTIONS = [
    prediction("jit", "--jit=on", 1.2),
    prediction("stage", "", 9.0),  # no flag does it
    prediction("precision", ["--precision=mixed_bfloat16"], 1.04),  # not worth the minutes
    prediction("cache", "--cache=memory", 1.5, spread=0.6),  # might be a loss
    prediction("steps_per_call", ["--steps_per_call=50"], 1.4),
    prediction("double_batch", "--batch_size=64", 1.1),
    prediction("steps_per_call+jit", "--steps_per_call=50 --jit=on", 1.7),
]


def speed_of(given):
    faster = 1.5 if given.steps_per_call == 50 else 1.0
    return 1000 * faster * (1.25 if given.jit == "on" else 1.0)


def test_the_best_remedies_that_are_flags_are_tried_beside_what_was_predicted(fake):
    fake.setattr(FakeLane, "speed", staticmethod(speed_of))
    asked = parse(Settings, ["--data=digits", "--benchmark", "--confirm", "--run_dir=x"])
    done = experiment.confirm(asked, PREDICTIONS[:6], pairs=3)
    assert [one["change"] for one in done] == ["steps_per_call", "jit", "steps_per_call+jit"]
    assert [one["speedup"]["mean"] for one in done] == pytest.approx([1.5, 1.25, 1.875])
    assert done[0]["predicted"] == {"mean": 1.4, "low": 1.38, "high": 1.42}
    assert done[2]["predicted"] is None
    line = experiment.confirmation_line(done[0])
    assert line.startswith("--steps_per_call=50: predicted 1.40x (1.38-1.42), came 1.50x")
    assert FakeLane.most == 2 and FakeLane.open == 0
    assert all("--benchmark" not in str(entry) for entry in FakeLane.log)


def test_a_remedy_that_costs_the_metric_is_not_combined(fake):
    fake.setattr(FakeLane, "speed", staticmethod(speed_of))
    value = staticmethod(lambda given, seed: 0.9 - 0.1 * (given.jit == "on") + 0.001 * seed)
    fake.setattr(FakeLane, "value", value)
    done = experiment.confirm(parse(Settings, ["--data=digits"]), PREDICTIONS[:6], pairs=3)
    assert [one["verdict"]["metric"] for one in done] == ["same", "worse"]
    assert experiment.confirmation_line(done[1]).endswith("; metric worse")


def test_a_predicted_pair_is_not_tried_twice(fake):
    fake.setattr(FakeLane, "speed", staticmethod(speed_of))
    done = experiment.confirm(parse(Settings, ["--data=digits"]), PREDICTIONS, pairs=3)
    assert [one["change"] for one in done] == ["steps_per_call+jit", "steps_per_call"]
    assert done[0]["predicted"]["mean"] == 1.7


def test_nothing_worth_trying_starts_nothing(fake):
    assert experiment.confirm(parse(Settings, []), PREDICTIONS[1:4]) == []
    assert FakeLane.log == []


# ----------------------------------------------------------------------------------------- ladder


def ladder_speed(given):
    gains = [given.host_threads != 1, given.steps_per_call != 1, given.batch_size == 64]
    gains += [given.jit == "on", given.fused_decode, given.cache == "memory"]
    slower = 0.5 if given.augment == "device" else 1.0
    return 100 * slower * 1.5 ** sum(gains)


def test_every_practice_is_a_rung_measured_or_said_why_not(fake, tmp_path, capsys):
    fake.setattr(FakeLane, "speed", staticmethod(ladder_speed))
    out = tmp_path / "l"
    argv = ["--ladder", "--common=--data=digits", f"--out={out}", "--pairs=3"]
    assert command.main(argv) == 0
    document = json.loads((out / "ladder.json").read_text())
    rungs = {row["name"]: row for row in document["rungs"]}
    assert list(rungs) == [
        "plain",
        "parallel map",
        "fused decode",
        "prepared data",
        "device augmentation",
        "cache",
        "mixed precision",
        "XLA",
        "more steps a call",
        "double batch",
    ]
    absent = [name for name, row in rungs.items() if row["absent"]]
    assert absent == ["fused decode", "prepared data", "cache", "mixed precision"]
    for name in ("parallel map", "XLA", "more steps a call", "double batch"):
        assert rungs[name]["speedup"]["mean"] == pytest.approx(1.5)
    assert rungs["device augmentation"]["speed"] == "slower"
    assert document["all"]["speedup"]["mean"] == pytest.approx(0.5 * 1.5**4)
    assert FakeLane.most == 2 and FakeLane.open == 0
    screen = capsys.readouterr().out
    assert "does not apply here: a CPU gains nothing from it" in screen
    assert "Leave off here: device augmentation." in screen
    drawing = xml.parse(out / "ladder.svg").getroot()
    words = " ".join(drawing.itertext())
    assert all(name in words for name in rungs)
    (line,) = ledger.read(tmp_path / "ledger.jsonl")
    assert line["what"] == "ladder" and line["rungs"]["XLA"]["mean"] == pytest.approx(1.5)


def test_a_rung_that_fails_is_left_off_and_said(fake, tmp_path):
    def speed(given):
        if given.jit == "on":
            raise LaneFailed("XLA: cannot compile", "failed")
        return ladder_speed(given)

    fake.setattr(FakeLane, "speed", staticmethod(speed))
    out = tmp_path / "l"
    assert command.main(["--ladder", "--common=--data=digits", f"--out={out}", "--pairs=3"]) == 0
    rungs = {row["name"]: row for row in json.loads((out / "ladder.json").read_text())["rungs"]}
    assert rungs["XLA"]["absent"] == "XLA: cannot compile"
    assert rungs["more steps a call"]["speedup"]["mean"] == pytest.approx(1.5)


def test_the_ladder_prepares_the_data_it_compares(fake, tmp_path):
    fake.setattr(FakeLane, "speed", staticmethod(ladder_speed))
    write_folder(tmp_path / "photos", images=4)
    out = tmp_path / "l"
    common = f"--common=--data=folder:{tmp_path / 'photos'} --image_size=16"
    assert command.main(["--ladder", common, f"--out={out}", "--pairs=3"]) == 0
    rungs = {row["name"]: row for row in json.loads((out / "ladder.json").read_text())["rungs"]}
    assert not rungs["prepared data"]["absent"]
    assert (out / "prepared" / "manifest.json").exists()
    assert rungs["prepared data"]["flags"] == [f"--data=records:{out / 'prepared'}"]


def test_what_a_gpu_can_or_cannot_is_a_rung_of_its_own(tmp_path):
    gpu = facts(device="GPU", batch_size=1024)
    rungs = {rung.name: rung for rung in ladder.rungs(parse(Settings, []), gpu, tmp_path)}
    assert rungs["mixed precision"].absent == ""
    assert rungs["double batch"].absent.startswith("2048 examples are more")


# ---------------------------------------------------------------------- what the ladder turns off


def test_the_number_of_host_threads_changes_no_bit(tmp_path):
    def batches(threads):
        from {{cookiecutter.package_name}}.data.digits import open_digits

        source = open_digits().train

        def decode(records, index):
            shift = tf.cast(index % 7, tf.uint8)[:, tf.newaxis, tf.newaxis, tf.newaxis]
            return images.crops(records, 8) + shift, records["label"]

        made = pipeline.training_batches(source, decode, 48, seed=3, start=1400, threads=threads)
        return list(made.take(6).as_numpy_iterator())

    expected = batches(0)
    for threads in (1, 2, 5):
        for batch, other in zip(batches(threads), expected, strict=True):
            for got, wanted in zip(batch, other, strict=True):
                assert np.array_equal(got, wanted)


def test_a_run_goes_on_with_other_threads_but_not_with_other_pixels():
    saved = command_line.to_json(parse(Settings, []))
    command_line.refuse_changes(parse(Settings, ["--host_threads=1"]), saved, "here")
    with pytest.raises(UserError, match="--fused_decode was True, is False"):
        command_line.refuse_changes(parse(Settings, ["--fused_decode=false"]), saved, "here")


def test_decoding_all_of_an_image_differs_from_its_part_at_the_edges_alone():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, [96, 96, 3], dtype=np.uint8)
    encoded = tf.io.encode_jpeg(pixels, quality=90)
    records = {"image": tf.stack([encoded])}

    def box(aspect):
        return tf.constant([[0.25, 0.25, 0.5, 0.5]])

    whole = images.crops(records, 48, box, fused=False)[0].numpy()
    part = images.crops(records, 48, box, fused=True)[0].numpy()
    exact = tf.io.decode_jpeg(encoded, channels=3)[24:72, 24:72].numpy()
    assert np.array_equal(whole, exact)
    assert np.array_equal(whole[2:-2, 2:-2], part[2:-2, 2:-2])
    # What makes it no free setting: colours at the edge are made without their neighbours.
    assert not np.array_equal(whole, part)


def test_squares_decoded_whole_have_the_rows_that_the_crop_needs():
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 255, [64, 64, 3], dtype=np.uint8)
    encoded = tf.io.encode_jpeg(pixels, quality=95)
    records = {"image": tf.stack([encoded]), "side": tf.constant(64), "aspect": tf.ones([1])}

    def box(aspect):
        return tf.constant([[0.25, 0.25, 0.25, 0.5]])

    whole = images.squares(records, 64, box, fused=False)[0][0].numpy()
    assert np.array_equal(whole, tf.io.decode_jpeg(encoded, channels=3).numpy())
    part = images.squares(records, 64, box)[0][0].numpy()
    assert np.array_equal(whole[16:32], part[16:32]) and not part[40:].any()


# ------------------------------------------------------- a batch so large that the metric suffers


class TrainedHere:
    """Trains in this process; how fast it claims to be is given."""

    def __init__(self, path, rate, steps, *flags):
        self.child = lane_child.Child(parse(Settings, [*DIGITS, *flags]), path)
        self.claimed, self.steps = rate, steps

    def train(self, seed):
        request = {"do": "train", "seed": seed, "steps": self.steps}
        return self.child.answer(request)

    def rate(self):
        batch_size = self.child._settings.batch_size
        return {"timed_examples": self.claimed, "seconds": 1.0, "batch_size": batch_size}


def test_a_batch_so_large_that_it_hurts_is_no_improvement(tmp_path):
    """2,048 examples for both: 64 steps of 32, or two of 1,024, claimed to be three times as fast.

    That large batches are faster is true of most machines; how much, not of a busy one.
    """
    small = TrainedHere(tmp_path, 1000.0, 64, "--batch_size=32")
    large = TrainedHere(tmp_path, 3000.0, 2, "--batch_size=1024")
    trained = comparison.alternate(small, large, [0, 1, 2])
    assert {result["examples"] for side in trained for result in side} == {2048}
    document = comparison.compared(("", "--batch_size=1024"), *trained, tolerance=0.01)
    verdict = document["verdict"]
    assert (verdict["speed"], verdict["metric"]) == ("faster", "worse")
    assert not verdict["improvement"]
    assert verdict["sentence"].startswith("B is faster, but worse: 3.00x")


@pytest.mark.slow
def test_the_command_compares_two_real_sets_of_flags(tmp_path, capsys, small):
    out = tmp_path / "c"
    flags = ["--batch_size=16", "--batch_size=512", "--common=" + " ".join(DIGITS)]
    assert command.main([*flags, f"--out={out}", "--pairs=3", "--examples=2048"]) == 0
    document = json.loads((out / "comparison.json").read_text())
    assert (document["a"]["examples"], document["b"]["examples"]) == (2048, 2048)
    assert document["verdict"]["metric"] == "worse" and not document["verdict"]["improvement"]
    assert document["verdict"]["sentence"] in capsys.readouterr().out
