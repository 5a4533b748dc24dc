"""The benchmark in real time on trainings whose truth is known: see `simulator.py`.

    python -m pytest tests/test_scenarios.py --scenarios=DIR     all files of a directory
    make test-all                                                all files of tests/scenarios

Each takes a minute or two, and wants a machine that is not much busier than with itself.
"""

import math
from pathlib import Path

import pytest
import simulator

from {{cookiecutter.package_name}}.benchmark.diagnosis import diagnose
from {{cookiecutter.package_name}}.benchmark.probes import Pace
from {{cookiecutter.package_name}}.benchmark.statistics import ratio_of

OURS = Path(__file__).with_name("scenarios")
QUICK = ("01_storage", "11_small_batch")  # run by make test too
PACE = Pace(most_repeats=6, window_s=0.5)
# (scenario, log of predicted / obtained, whether the interval covers it)
foretold: list[tuple[str, float, bool]] = []


def pytest_generate_tests(metafunc):
    if "path" not in metafunc.fixturenames:
        return
    given = metafunc.config.getoption("scenarios")
    files = sorted(Path(given or OURS).glob("*.json"))
    assert files, f"--scenarios={given}: no *.json in it"
    long = [] if given else [pytest.mark.real_time]
    metafunc.parametrize(
        "path",
        [pytest.param(f, id=f.stem, marks=[] if f.stem in QUICK else long) for f in files],
    )


def test_the_cause_is_right_and_what_its_remedy_gives_is_foretold(path, record_property):
    scenario = simulator.load(path)
    truth = scenario.truth
    found = diagnose(simulator.SimulatedTraining(scenario), PACE)
    verdict = found.verdict
    record_property("verdict", verdict.cause)
    assert verdict.cause in truth["cause"], verdict.explanation
    if not truth.get("best_change"):
        return
    change = verdict.change
    assert set(change.split("+")) & {part for b in truth["best_change"] for part in b.split("+")}
    (prediction,) = [p.speedup for p in found.predictions if p.change == change]
    oracle = simulator.true_speedup(scenario, [change], PACE)
    obtained = ratio_of(oracle[""], oracle[change])
    error = math.log(prediction.mean / obtained.mean)
    # The oracle scatters too: what the difference of the two may be, at 95 %.
    halves = [math.log(e.high / e.low) / 2 for e in (prediction, obtained)]
    covered = abs(error) <= math.hypot(*halves)
    foretold.append((scenario.name, error, covered))
    record_property("predicted", prediction.mean)
    record_property("obtained", obtained.mean)
    assert abs(error) < math.log(1.2), f"{change}: predicted {prediction}, came {obtained}"


def test_over_all_scenarios_predictions_are_close_and_intervals_cover():
    if len(foretold) < 10:
        pytest.skip(f"{len(foretold)} predictions in this run: run all scenarios together")
    errors = sorted(abs(error) for _, error, _ in foretold)
    assert errors[len(errors) // 2] < math.log(1.1)
    assert sum(covered for _, _, covered in foretold) >= 0.9 * len(foretold), foretold


def test_a_scenario_file_with_an_unknown_part_is_refused(tmp_path):
    path = tmp_path / "typo.json"
    path.write_text('{"name": "x", "storge_ms": 10}')
    with pytest.raises(TypeError, match="storge_ms"):
        simulator.load(path)


@pytest.mark.parametrize("change", simulator.CHANGES)
def test_every_change_takes_something_away(change):
    busy = simulator.Scenario(
        storage_ms=8, decode_ms=8, python_ms=8, prefetch=False, host_ms=8, callback_ms=8,
        launch_ms=8, device_fixed_ms=8, communication_ms=8, copy_ms=8, throttle=1.5,
    )  # fmt: skip
    assert busy.changed(change) != busy
    other = {"precision": "device_ms", "jit": "launch_ms"}.get(change)
    if other:
        assert getattr(busy.changed(change), other) < getattr(busy, other)


def test_the_accelerator_is_a_queue():
    ahead = simulator.Accelerator(simulator.Scenario(queue_depth=1))
    waits = simulator.Accelerator(simulator.Scenario(queue_depth=0))
    clock = simulator.time.perf_counter

    def host_ms(device):
        began = clock()
        device.submit(30.0)
        return 1000 * (clock() - began)

    assert host_ms(ahead) < 15 and host_ms(waits) >= 29.9
    began = clock()
    for _ in range(4):
        ahead.submit(10.0)
    ahead.wait()
    assert 1000 * (clock() - began) >= 39.9  # one after the other, however far ahead the host is
