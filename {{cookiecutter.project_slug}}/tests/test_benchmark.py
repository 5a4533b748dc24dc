"""The benchmark: honest intervals, the right cause or `undecided`, and the contract's JSON."""

import json
import math
import random
import statistics as exact

import pytest
import tensorflow as tf

from {{cookiecutter.package_name}}.benchmark import probes, statistics
from {{cookiecutter.package_name}}.benchmark.cause import find_cause


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
    clock = Clock(monkeypatch, lambda step: 3000 if step == 0 else max(20, 40 - step / 5))
    measured = probes.measure([clock.probe], repeats=5)["a"]
    assert measured.first_call_s == pytest.approx(3)
    assert measured.step_ms == pytest.approx([20] * 5, rel=0.02)
    assert measured.steps == pytest.approx(1000 * probes.WINDOW_SECONDS / 20, abs=1)


def test_what_was_ready_before_the_clock_started_does_not_count(monkeypatch):
    clock, last = Clock(monkeypatch, lambda step: 20), []

    def run(name, steps):
        # While the other probe ran, the pipeline has made two batches, which now cost nothing.
        ready = 2 if last and last[-1] != name else 0
        last.append(name)
        clock.run(max(0, steps - ready))

    pair = [probes.Probe(name, lambda steps, name=name: run(name, steps), 3) for name in "ab"]
    measured = probes.measure(pair, repeats=3)
    assert measured["a"].step_ms == pytest.approx([20] * 3)


def test_probes_take_turns_forwards_and_backwards(monkeypatch):
    order, clock = [], Clock(monkeypatch, lambda step: 100)
    names = [
        probes.Probe(name, lambda steps, name=name: (order.append(name), clock.run(steps)))
        for name in "abc"
    ]
    probes.measure(names, repeats=2)
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert "".join(turns) == "abc" + "abc" + "ba"  # the last of one round is the first of the next


def test_single_steps_are_timed_apart(monkeypatch):
    clock = Clock(monkeypatch, lambda step: 1 + step)
    times = probes.step_times(clock.probe, seconds=0.05, least=3)
    assert times[:3] == pytest.approx([1, 2, 3]) and set(clock.calls) == {1}


def around(ms, spread=0.01):
    return [ms * (1 + spread * k) for k in (-1, 0.5, 1, -0.5, 0)]


@pytest.mark.parametrize(
    ("end_to_end", "alone", "memory", "step", "cause"),
    [
        (20.3, 6, 6, 20, "device"),
        (60, 60, 10, 20, "storage"),
        (55, 55, 54, 20, "decode"),
        (40, 20, 20, 21, "contention"),
        (31, 30, 30, 20, "decode"),
        (41, 40, 36, 20, "undecided"),
    ],
)
def test_each_cause_is_told_from_its_rates(end_to_end, alone, memory, step, cause):
    verdict = find_cause(
        around(end_to_end), around(alone), around(memory, 0.05), around(step), "GPU"
    )
    assert verdict.cause == cause
    assert verdict.device_busy_fraction.mean == pytest.approx(step / end_to_end, rel=0.01)
    assert verdict.ceiling_speedup.mean == pytest.approx(end_to_end / step, rel=0.01)
    assert verdict.confident == (cause != "undecided")
    assert "ms" in verdict.explanation


def test_scattered_figures_are_undecided():
    noisy = [18.0, 30.0, 22.0, 17.0, 28.0]
    verdict = find_cause(noisy, around(10), around(10), around(20), "CPU")
    assert (verdict.cause, verdict.confident) == ("undecided", False)


def test_the_figures_that_decided_are_in_the_sentence():
    verdict = find_cause(around(60), around(60), around(10), around(20), "GPU")
    assert "67 %" in verdict.explanation and "3.00x" in verdict.explanation
    assert verdict.explanation.count("ms (") == 4


def test_a_benchmark_writes_the_contracts_json(train, monkeypatch, capfd):
    monkeypatch.setattr(probes, "WINDOW_SECONDS", 0.1)
    monkeypatch.setattr(probes, "WARM_WINDOW_SECONDS", 0.05)
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
    assert document["probes"].keys() == names | {"device_2x_batch"}
    measured = [figures for figures in document["probes"].values() if figures]
    assert len(measured) == 4
    assert all(f["low"] <= f["step_ms"] <= f["high"] for f in measured)
    assert document["gpu"] == [] and document["predictions"] == []
    verdict = document["verdict"]
    assert verdict.keys() == {
        "cause",
        "also",
        "confident",
        "explanation",
        "device_busy_fraction",
        "ceiling_speedup",
    }
    assert verdict["cause"] in ("device", "contention", "decode", "storage", "undecided")
    assert document["validation"]["metric"] == "val_accuracy"
    assert 0 <= document["validation"]["value"] <= 1
    assert document["settings"]["batch_size"] == 32  # what was filled in, not the blank
    out = capfd.readouterr().out
    assert "VERDICT" in out and verdict["cause"] in out and "examples/s" in out
    assert not (run_dir / "checkpoints").exists()  # a measurement leaves nothing to resume


def test_a_deterministic_benchmark_says_what_keeping_the_order_costs(train, monkeypatch, capfd):
    monkeypatch.setattr(probes, "WINDOW_SECONDS", 0.1)
    monkeypatch.setattr(probes, "WARM_WINDOW_SECONDS", 0.05)
    # It holds for the whole process, the other tests' too.
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    code, run_dir = train(benchmark=True, strategy="one_device", deterministic=True)
    assert code == 0
    slowdown = json.loads((run_dir / "benchmark.json").read_text())["order_slowdown"]
    assert 0 < slowdown["low"] <= slowdown["mean"] <= slowdown["high"]
    assert "the same order always" in capfd.readouterr().out
