"""The verdict and the predictions, from rates that are made up: no noise but what is put in."""

import dataclasses
import math
import random

import pytest

from {{cookiecutter.package_name}}.benchmark.candidates import Facts
from {{cookiecutter.package_name}}.benchmark.cause import find_cause
from {{cookiecutter.package_name}}.benchmark.remedies import REMEDIES, predict
from {{cookiecutter.package_name}}.benchmark.statistics import estimate_of
from {{cookiecutter.package_name}}.benchmark.step_model import Parts, fit


def step(parts, waits, exposed):
    """A step by the model's own words: what fit must find again."""
    host = parts.host + parts.copy

    def joined(host):
        return max(host, parts.device) + waits * min(host, parts.device)

    beside, in_turn = max(parts.input, joined(host)), joined(host + parts.input)
    return beside + exposed * (in_turn - beside)


@pytest.mark.parametrize("waits", [0.0, 1.0])
@pytest.mark.parametrize("exposed", [0.0, 0.5, 1.0])
def test_the_model_finds_how_far_parts_overlap_and_foretells_a_change(waits, exposed):
    parts = Parts(input=18.0, host=6.0, copy=2.0, device=12.0)
    resident = max(6.0, 12.0) + waits * min(6.0, 12.0)
    model = fit(step(parts, waits, exposed), resident, parts)
    assert (model.waits, model.residual) == pytest.approx((waits, 1.0))
    assert model.exposed == pytest.approx(exposed)
    for change in ({"input": 3.0}, {"device": 4.0}, {"host": 0.2}, {"copy": 0.0}):
        changed = dataclasses.replace(parts, **change)
        assert model.step(**change) == pytest.approx(step(changed, waits, exposed))


def test_a_host_that_takes_no_time_leaves_open_whether_it_waits_until_the_input_shows_it():
    beside = fit(20.0, 20.0, Parts(input=18.0, host=0.01, copy=0.0, device=20.0))
    in_turn = fit(38.0, 20.0, Parts(input=18.0, host=0.01, copy=0.0, device=20.0))
    assert beside.exposed == 0 and beside.step(device=10.0) == pytest.approx(18.0)
    assert in_turn.exposed == pytest.approx(1, abs=0.01)
    assert in_turn.step(device=10.0) == pytest.approx(28.0, rel=0.01)


def test_what_the_parts_cannot_explain_stays_a_residual():
    model = fit(60.0, 20.0, Parts(input=18.0, host=0.01, copy=0.0, device=20.0))
    assert model.residual == pytest.approx(60 / 38, rel=0.01)


def test_an_input_that_costs_more_than_its_own_time_is_not_laid_to_the_host():
    model = fit(80.0, 50.0, Parts(input=16.0, host=0.01, copy=0.0, device=50.0))
    assert model.residual == pytest.approx(80 / 66, rel=0.01)  # more than in turn: seen still
    assert model.without_input() == pytest.approx(50.01)
    assert model.step() == pytest.approx(80.0)


def test_an_input_alone_that_seems_slower_than_the_whole_does_not_make_the_device_faster():
    model = fit(44.0, 26.0, Parts(input=53.0, host=0.01, copy=0.0, device=26.0))
    assert model.residual == pytest.approx(44 / 53)  # it is still seen that they do not fit
    assert model.without_input() == pytest.approx(26.0)
    assert model.step() == pytest.approx(44.0)


def test_the_interval_of_a_function_covers_its_truth_as_often_as_it_says():
    rng, covered = random.Random(2), 0
    for _ in range(400):
        rounds = [rng.gauss(1, 0.1) for _ in range(5)]  # what slows a round slows both
        repeats = {
            name: [ms * r * rng.gauss(1, 0.03) for r in rounds]
            for name, ms in (("a", 60.0), ("b", 20.0))
        }
        estimate = estimate_of(lambda m: m["a"] / max(m["b"], 10.0), repeats)
        covered += estimate.low <= 3.0 <= estimate.high
        assert estimate.high / estimate.low < 1.3  # the rounds' 10 % has cancelled
    assert 0.90 < covered / 400 < 0.98


def rates(scatter=0.01, **ms):
    """Five rounds of each probe around these milliseconds; host and resident where not given."""
    ms = {"host": 0.05, "feed": 0.05, **ms}
    ms.setdefault("step_resident", max(ms["device"], ms["host"]))
    ms.setdefault("input_from_memory", ms["input"])
    orders = [(-1, 0.5, 1, -0.5, 0), (0.5, -1, 0, 1, -0.5), (1, 0, -0.5, -1, 0.5)]
    return {
        name: [value * (1 + scatter * k) for k in orders[place % 3]]
        for place, (name, value) in enumerate(ms.items())
    }


def diagnosed(facts=None, **ms):
    repeats = rates(**ms)
    predictions = predict(repeats, 32, 1, "mixed_bfloat16")
    return find_cause(repeats, predictions, facts or Facts()), {p.change: p for p in predictions}


FAST = {"input": 5.0, "device_2x_batch": 40.0, "device_xla": 20.0}
CASES = {
    "storage": dict(end_to_end=60, input=60, input_from_memory=10, input_without_decode=58),
    "decode": dict(end_to_end=55, input=55, input_from_memory=54, input_without_decode=8),
    "python_input": dict(
        end_to_end=50, input=50, input_without_decode=50, input_without_python=3
    ),
    "no_overlap": dict(
        end_to_end=38, input=18, input_without_decode=0.5, end_to_end_prefetched=20
    ),
    "contention": dict(end_to_end=38, input=18, input_without_decode=0.5),
    "input_co_limited": dict(
        end_to_end=40, input=40, input_from_memory=38, input_without_decode=39, input_bare=0.5
    ),
    "host_per_step": dict(end_to_end=4.6, device=0.6, host=4.0, step_resident=4.6, input=0.1),
    "launch": dict(
        end_to_end=14, device=14, input=3, device_2x_batch=16, device_xla=3.5,
        device_mixed_precision=13,
    ),
    "small_batch": dict(
        end_to_end=12, device=12, input=3, device_2x_batch=14, device_xla=12,
        device_mixed_precision=11.5,
    ),
    "device": dict(
        end_to_end=40.2, device=40, input=5, device_2x_batch=80, device_xla=39,
        device_mixed_precision=20,
    ),
    "healthy": dict(
        end_to_end=25.1, device=25, input=10, device_2x_batch=50, device_xla=25,
        device_mixed_precision=25,
    ),
    "communication": dict(
        end_to_end=45, device=45, input=5, device_2x_batch=60, device_xla=45,
        device_mixed_precision=38, device_one_replica=15,
    ),
    "host_to_device_copy": dict(
        end_to_end=16, device=12, input=3, feed=16, device_2x_batch=24, device_xla=12,
        device_mixed_precision=8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", CASES)
def test_each_cause_is_told_from_its_rates(cause):
    verdict, _ = diagnosed(**{"device": 20.0, **CASES[cause]})
    assert (verdict.cause, verdict.confident) == (cause, True)
    assert "ms (" in verdict.explanation


def test_records_made_by_python_code_are_no_storage():
    verdict, _ = diagnosed(Facts(python_source=True), **{"device": 20.0, **CASES["storage"]})
    assert verdict.cause == "python_input"


def test_heat_is_named_if_the_driver_says_so_and_the_device_is_slower_than_it_was_cold():
    hot = {"end_to_end": 43.5, "device": 43.5, "device_cold": 30.0, **FAST}
    throttled = Facts(throttled=("sw_thermal_slowdown",))
    verdict, predictions = diagnosed(throttled, **hot)
    assert verdict.cause == "throttled" and "sw_thermal_slowdown" in verdict.explanation
    assert predictions["cool"].speedup.mean == pytest.approx(1.45, rel=0.01)
    assert diagnosed(throttled, **{**hot, "device_cold": 43.0})[0].cause != "throttled"
    assert diagnosed(Facts(), **hot)[0].cause != "throttled"


def test_two_causes_that_weigh_alike_are_undecided_and_both_named():
    # Decoding and reading in turn, half of the time each.
    verdict, _ = diagnosed(
        scatter=0.05, device=20.0, end_to_end=60, input=60, input_from_memory=31,
        input_without_decode=30, input_bare=1,
    )  # fmt: skip
    assert (verdict.cause, verdict.confident) == ("undecided", False)
    assert {"storage", "decode"} <= set(verdict.also)


def test_scattered_figures_are_undecided():
    repeats = rates(device=20.0, end_to_end=22.0, input=10.0)
    repeats["end_to_end"] = [18.0, 30.0, 22.0, 17.0, 28.0]
    predictions = predict(repeats, 32, 1, "mixed_bfloat16")
    assert find_cause(repeats, predictions, Facts()).cause == "undecided"


def test_a_cause_that_may_be_nothing_but_may_be_the_greater_leaves_it_undecided():
    """Rounds of a training with Python beside its host's work, some beside a busy neighbour."""
    repeats = rates(
        device=12.7, end_to_end=34.5, input=23.4, input_from_memory=18.8, step_resident=22.6,
        host=10.4, feed=10.4, input_without_decode=25.5, input_without_python=0.05, input_bare=24,
    )  # fmt: skip
    repeats["input"] = [15.1, 55.6, 15.0, 16.0, 15.6]
    repeats["end_to_end"] = [31.0, 30.5, 33.0, 37.0, 41.0]
    predictions = predict(repeats, 32, 1, "mixed_bfloat16")
    gains = {p.change: p.speedup for p in predictions}
    assert gains["steps_per_call"].low < 1 and gains["native_map"].low > 1.08
    assert gains["steps_per_call"].high > gains["native_map"].mean
    verdict = find_cause(repeats, predictions, Facts())
    assert verdict.cause == "undecided" and not verdict.confident
    assert {"python_input", "host_per_step"} <= set(verdict.also)


def test_parts_that_do_not_explain_the_whole_are_undecided_and_nothing_is_predicted():
    verdict, predictions = diagnosed(device=20.0, end_to_end=90, input=18.0)
    assert verdict.cause in ("undecided", "contention") and predictions == {}
    faster_than_its_parts, predictions = diagnosed(device=20.0, end_to_end=30, input=60.0)
    assert faster_than_its_parts.cause == "undecided" and predictions == {}
    assert "do not add up" in faster_than_its_parts.explanation


def test_predictions_say_what_the_change_gives():
    _, found = diagnosed(device=20.0, **CASES["storage"])
    assert found["stage"].speedup.mean == pytest.approx(3.0, rel=0.02)
    assert found["stage"].flags == "--cache=memory"
    assert found["stage"].speedup.low < 3.0 < found["stage"].speedup.high
    _, found = diagnosed(**CASES["host_per_step"])
    assert found["steps_per_call"].speedup.mean == pytest.approx(4.6 / (0.6 + 4 / 32), rel=0.03)
    assert found["steps_per_call"].flags == "--steps_per_call=32"
    _, found = diagnosed(**CASES["small_batch"])
    assert found["double_batch"].speedup.mean == pytest.approx(24 / 14, rel=0.02)
    assert found["double_batch"].flags == "--batch_size=64"


def test_a_pair_is_named_where_neither_of_the_two_gives_anything_alone():
    balanced = dict(
        end_to_end=20, device=20, input=19.5, input_from_memory=2, input_without_decode=19,
        device_2x_batch=40, device_xla=20, device_mixed_precision=10,
    )  # fmt: skip
    _, found = diagnosed(**balanced)
    assert found["stage"].speedup.mean < 1.05 and found["precision"].speedup.mean < 1.05
    assert found["stage+precision"].speedup.mean == pytest.approx(2.0, rel=0.03)
    assert found["stage+precision"].flags == "--cache=memory --precision=mixed_bfloat16"


def test_every_remedy_that_is_a_flag_names_one_that_exists():
    from {{cookiecutter.package_name}}.settings import Settings

    names = {field.name for field in dataclasses.fields(Settings)}
    filled = {"batch_size": 64, "steps": 32, "precision": "mixed_bfloat16"}
    filled["nearer"] = "--stage_to=auto"
    given = [remedy.flags.format(**filled) for remedy in REMEDIES.values() if remedy.flags]
    assert given and all(flag[2:].partition("=")[0] in names for flag in given)


def test_the_ceiling_is_what_no_change_of_the_input_can_exceed():
    verdict, predictions = diagnosed(device=20.0, **CASES["decode"])
    assert verdict.ceiling_speedup.mean == pytest.approx(55 / 20, rel=0.02)
    assert verdict.device_busy_fraction.mean == pytest.approx(20 / 55, rel=0.02)
    inputs = ("stage", "prepare", "native_map", "stage+prepare")
    best = max(predictions[c].speedup.mean for c in inputs if c in predictions)
    assert best <= verdict.ceiling_speedup.mean * 1.01
    assert not math.isinf(verdict.ceiling_speedup.high)
