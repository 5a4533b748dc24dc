"""The benchmark: honest intervals, the right cause or `undecided`, and the contract's JSON."""

import dataclasses
import functools
import json
import math
import random
import statistics as exact

import pytest
import tensorflow as tf

from {{cookiecutter.package_name}}.benchmark import probes, run, statistics
from {{cookiecutter.package_name}}.experiments import ledger


def test_the_interval_of_a_mean_is_students():
    estimate = statistics.mean_of([10.0, 12.0, 11.0, 13.0, 9.0])
    half = 2.776 * exact.stdev([10, 12, 11, 13, 9]) / math.sqrt(5)
    assert estimate.mean == 11
    assert estimate.high - 11 == pytest.approx(half) and 11 - estimate.low == pytest.approx(half)


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng, covered = random.Random(1), 0
    for _ in range(400):
        estimate = statistics.mean_of([rng.gauss(20, 2) for _ in range(5)])
        covered += estimate.low <= 20 <= estimate.high
    assert 0.92 < covered / 400 < 0.98


def test_a_ratio_cancels_what_slows_both():
    slow_minutes = [1.0, 3.0, 1.5, 2.0, 1.0]
    ratio = statistics.ratio_of([20 * s for s in slow_minutes], [10 * s for s in slow_minutes])
    assert ratio.low == pytest.approx(2) and ratio.high == pytest.approx(2)


def test_percentiles_are_percentiles():
    values = [float(v) for v in range(1, 102)]
    random.Random(0).shuffle(values)
    assert [statistics.percentile(values, p) for p in (10, 50, 90, 99)] == [11, 51, 91, 100]
    assert statistics.percentile([5.0], 99) == 5


class Clock:
    """A probe whose steps take the time a list says, on a clock of their own."""

    def __init__(self, monkeypatch, ms):
        self.now, self.calls, self.ms = 0.0, [], ms
        monkeypatch.setattr(probes.time, "perf_counter", lambda: self.now)
        self.probe = probes.Probe("a", self.run)

    def run(self, steps):
        first = sum(self.calls)
        self.calls.append(steps)
        for step in range(first, first + steps):
            self.now += self.ms(step) / 1000


def test_warm_up_lasts_until_the_rate_stops_trending(monkeypatch):
    clock = Clock(monkeypatch, lambda step: 3000 if step == 0 else max(20, 40 - step / 2))
    pace = probes.Pace(window_s=2.0)
    measured = probes.measure([clock.probe], pace)["a"]
    assert measured.first_call_s == pytest.approx(3)
    assert measured.step_ms == pytest.approx([20] * 5, rel=0.02)
    assert measured.steps == pytest.approx(1000 * pace.window_s / 20, rel=0.05)
    assert len(measured.windows) > 5 and measured.windows[0][1] > measured.windows[-1][1]


def test_where_repeats_scatter_there_are_more_of_them(monkeypatch):
    # Steady while it warms up; then one window is fast, the next one slow.
    clock = Clock(monkeypatch, lambda step: (10, 40)[(step - 38) // 5 % 2] if step >= 38 else 20)
    pace = probes.Pace(repeats=3, most_repeats=6, window_s=0.1)
    assert len(probes.measure([clock.probe], pace)["a"].step_ms) == 6
    calm = Clock(monkeypatch, lambda step: 20)
    assert len(probes.measure([calm.probe], pace)["a"].step_ms) == 3


def test_what_was_ready_before_the_clock_started_does_not_count(monkeypatch):
    clock, last = Clock(monkeypatch, lambda step: 20), []

    def run(name, steps):
        # While the other probe ran, the pipeline has made two batches, which now cost nothing.
        ready = 2 if last and last[-1] != name else 0
        last.append(name)
        clock.run(max(0, steps - ready))

    pair = [probes.Probe(name, lambda steps, name=name: run(name, steps), 3) for name in "ab"]
    measured = probes.measure(pair, probes.Pace(repeats=3))
    assert measured["a"].step_ms == pytest.approx([20] * 3)


def test_what_was_ready_may_be_skipped_more_quickly(monkeypatch):
    clock, skipped = Clock(monkeypatch, lambda step: 20), []
    probe = dataclasses.replace(clock.probe, ahead=3, skip=skipped.append)
    measured = probes.measure([probe], probes.Pace(repeats=3))["a"]
    assert skipped == [3] * 4 and clock.calls[-2:] == [1, measured.steps]  # warm-up's and three


def test_a_pipeline_that_fills_up_again_does_not_slow_down_the_next_probe(monkeypatch):
    clock = Clock(monkeypatch, lambda step: 20)
    full_at = 0.0  # when the input's three batches, 20 ms each, are there again

    def sleep(seconds):
        clock.now += seconds

    def take(steps):
        nonlocal full_at
        clock.run(steps)
        full_at = clock.now + 3 * 0.02

    def compute(steps):
        begun = clock.now
        clock.run(steps)
        clock.now += max(0.0, full_at - begun)  # while the input works, the CPUs are its

    monkeypatch.setattr(probes.time, "sleep", sleep)
    pair = [probes.Probe("input", take, 3), probes.Probe("device", compute)]
    measured = probes.measure(pair, probes.Pace(repeats=3, window_s=0.2))
    assert measured["device"].step_ms == pytest.approx([20] * 3)


def test_a_window_is_of_whole_calls_as_a_training_is(monkeypatch):
    # A call costs 200 ms beside its steps: in one of a single step it would cost that for each.
    clock = Clock(monkeypatch, lambda step: 10)
    run = clock.run

    def called(steps):
        run(steps)
        clock.now += 0.2 * -(-steps // 20)

    probe = dataclasses.replace(clock.probe, run=called, call=lambda: 20, part=0.2)
    measured = probes.measure([probe], probes.Pace(repeats=3))["a"]
    assert measured.step_ms == pytest.approx([20] * 3)
    assert all(steps % 20 == 0 for steps in clock.calls[2:])


def test_probes_take_turns_forwards_and_backwards(monkeypatch):
    order, clock = [], Clock(monkeypatch, lambda step: 100)
    names = [
        probes.Probe(name, lambda steps, name=name: (order.append(name), clock.run(steps)))
        for name in "abc"
    ]
    probes.measure(names, probes.Pace(repeats=2))
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert "".join(turns) == "abc" + "abc" + "ba"  # the last of one round is the first of the next


def test_single_steps_are_timed_apart(monkeypatch):
    clock = Clock(monkeypatch, lambda step: 1 + step)
    times = probes.step_times(clock.probe, seconds=0.05, least=3)
    assert times[:3] == pytest.approx([1, 2, 3]) and set(clock.calls) == {1}


CAUSES = {
    *("gpu_not_visible", "throttled", "storage", "decode", "python_input", "no_overlap"),
    *("contention", "input_co_limited", "communication", "host_to_device_copy", "host_per_step"),
    *("launch", "small_batch", "device_compute", "device_memory", "device", "healthy"),
    "undecided",
}


def test_a_benchmark_writes_the_contracts_json(train, monkeypatch, capfd):
    monkeypatch.setattr(run, "Pace", functools.partial(probes.Pace, 2, 2, 0.1, 0.05))
    code, run_dir = train(benchmark=True, strategy="one_device")
    assert code == 0
    document = json.loads((run_dir / "benchmark.json").read_text())
    assert document["schema"] == 1
    assert document["throughput"].keys() == {"examples_per_second", "step_ms"}
    rate = document["throughput"]["examples_per_second"]
    assert 0 < rate["low"] <= rate["mean"] <= rate["high"]
    assert document["throughput"]["step_ms"].keys() == {"mean", "p10", "p50", "p90", "p99"}
    assert document["startup"].keys() == {"first_batch_s", "first_step_s"}
    names = {"end_to_end", "input", "input_from_memory", "step_resident", "device", "host", "feed"}
    assert names | {"device_2x_batch"} <= document["probes"].keys()
    measured = [name for name, figures in document["probes"].items() if figures]
    assert names <= set(measured)
    for name in measured:
        figures = document["probes"][name]
        assert figures["low"] <= figures["step_ms"] <= figures["high"]
    assert document["gpu"] == [] and document["gpu_absent"] == "the run computes on the CPU"
    for prediction in document["predictions"]:
        assert {"change", "flags", "speedup", "low", "high"} <= prediction.keys()
        assert 0 < prediction["low"] <= prediction["speedup"] <= prediction["high"]
    parts = [part["ms"] for part in document["parts"]]
    assert sum(parts) == pytest.approx(document["throughput"]["step_ms"]["mean"])
    assert min(parts) >= 0
    assert len(document["series"]["seconds"]) == len(document["series"]["step_ms"]) > 4
    verdict = document["verdict"]
    assert verdict.keys() == {
        "cause",
        "also",
        "confident",
        "explanation",
        "device_busy_fraction",
        "ceiling_speedup",
    }
    assert verdict["cause"] in CAUSES
    assert document["validation"]["metric"] == "val_accuracy"
    assert 0 <= document["validation"]["value"] <= 1
    assert document["settings"]["batch_size"] == 32  # what was filled in, not the blank
    out = capfd.readouterr().out
    assert "VERDICT" in out and verdict["cause"] in out and "examples/s" in out
    assert not (run_dir / "checkpoints").exists()  # a measurement leaves nothing to resume
    assert verdict["explanation"][:40] in (run_dir / "report.html").read_text()
    (line,) = ledger.read(run_dir.parent / "ledger.jsonl")
    assert (line["what"], line["verdict"]) == ("benchmark", verdict["cause"])
    assert line["examples_per_second"] == rate


def test_a_deterministic_benchmark_says_what_keeping_the_order_costs(train, monkeypatch, capfd):
    monkeypatch.setattr(run, "Pace", functools.partial(probes.Pace, 2, 2, 0.1, 0.05))
    # It holds for the whole process, the other tests' too.
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    code, run_dir = train(benchmark=True, strategy="one_device", deterministic=True)
    assert code == 0
    slowdown = json.loads((run_dir / "benchmark.json").read_text())["order_slowdown"]
    assert 0 < slowdown["low"] <= slowdown["mean"] <= slowdown["high"]
    assert "the same order always" in capfd.readouterr().out
