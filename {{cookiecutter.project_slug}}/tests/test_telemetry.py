"""What the GPU sampler tells, with NVIDIA's real binding on a stand-in for its driver.

The stand-in is compiled here; what it answers was recorded as NVML documents it. Each test samples
in a process of its own, since the libraries are found when a process first asks for them.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import rows

from {{cookiecutter.package_name}} import nvml, telemetry

PACKAGE = telemetry.__package__
GIB = 2**30
UUIDS = [f"{digit}1234567-89ab-cdef-0123-456789abcdef" for digit in "abc"]
BUSES = ["0000:18:00.0", "0000:41:00.0", "0000:81:00.0"]
CARD = {
    "name": "NVIDIA H200",
    "utilization": 97,
    "memory_utilization": 41,
    "memory_total": 140 * GIB,
    "memory_used": 12 * GIB,
    "power_mw": 512_300,
    "power_limit_mw": 700_000,
    "sm_clock": 1_755,
    "sm_clock_max": 1_980,
    "memory_clock": 3_201,
    "memory_clock_max": 3_201,
    "temperature": 61,
    "temperature_slowdown": 87,
    "reasons": 0,
    "power_violation": 0,
    "thermal_violation": 0,
    "gen": 4,
    "gen_max": 5,
    "width": 8,
    "width_max": 16,
    "tx_kb": 1_500,
    "rx_kb": 2_500,
}
# What a script below may use; its last line is printed as JSON.
PROLOGUE = """
import json, os, sys, time
from pathlib import Path
from PACKAGE import telemetry
from PACKAGE.telemetry import GpuSampler, harmful_reasons
telemetry.PERIOD = 0.02
answers = Path(os.environ["FAKE_DRIVER"])

def driver(text):
    Path(f"{answers}.new").write_text(text)
    os.replace(f"{answers}.new", answers)

def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)

def more(sampler, count, card=0):  # waits for so many more samples of a card
    seen = sampler.summary()[card]["samples"]
    until(lambda: sampler.summary()[card]["samples"] >= seen + count)
"""


def answers(*cards, cuda=None):
    """The driver's answers: NVML's cards in its order, and CUDA's list (None: the same)."""
    lines = [f"{n} {key} {value}" for n, card in enumerate(cards) for key, value in card.items()]
    cuda = range(len(cards)) if cuda is None else cuda
    shown = [n if isinstance(n, str) else f"{UUIDS[n]}/{BUSES[n]}" for n in cuda]
    return "\n".join(lines + [f"cuda {n} {device}" for n, device in enumerate(shown)]) + "\n"


def card(number=0, **changes):
    """A card's answers; what is changed to None is left out."""
    whole = {**CARD, "uuid": f"GPU-{UUIDS[number]}", "pci": BUSES[number], **changes}
    return {key: value for key, value in whole.items() if value is not None}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Compiles the stand-in: its directory, for a "new" driver and an "old"; "no" has none."""
    built = {"no": tmp_path_factory.mktemp("no")}
    (built["no"] / "libcuda.so.1").touch()  # found before a real one, and no library
    for age, options in {"new": [], "old": ["-DOLD_DRIVER"]}.items():
        directory = tmp_path_factory.mktemp(age)
        source = Path(__file__).with_name("fake_driver.c")
        command = ["gcc", "-shared", "-fPIC", "-O1", *options, "-o"]
        try:
            subprocess.run([*command, directory / "libnvidia-ml.so.1", source], check=True)
        except FileNotFoundError:
            pytest.skip("gcc, which compiles the stand-in for NVIDIA's driver, is not here")
        (directory / "libcuda.so.1").symlink_to("libnvidia-ml.so.1")
        built[age] = directory
    return built


@pytest.fixture
def sample(libraries, tmp_path):
    """Runs a script beside the stand-in; returns what its last line is worth."""

    def run(script, driver="", age="new", **variables):
        (tmp_path / "answers").write_text(driver)
        *lines, last = textwrap.dedent(script).strip("\n").splitlines()
        code = [PROLOGUE.replace("PACKAGE", PACKAGE), *lines, f"print(json.dumps({last}))"]
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(libraries[age]),
            "FAKE_DRIVER": str(tmp_path / "answers"),
            "PYTHONPATH": os.pathsep.join([str(Path(nvml.__file__).parents[1]), *sys.path]),
            **variables,
        }
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(code)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


ONCE = """
with GpuSampler() as sampler:
    more(sampler, 3)
{"absent": sampler.absent, "summary": sampler.summary(), "latest": sampler.latest()}
"""


def test_every_figure_of_a_card_arrives_in_its_unit(sample):
    told = sample(ONCE, answers(card()))
    (found,) = told["summary"]
    assert told["absent"] == ""
    expected = {
        "name": "NVIDIA H200",
        "utilization_mean": 97,
        "utilization_trend": 0,
        "memory_peak_bytes": 12 * GIB,
        "power_mean_w": 512.3,
        "throttle_reasons": [],
        "throttle_fractions": {},
        "sm_clock_mean_mhz": 1_755,
        "temperature_peak_c": 61,
        "power_violation_fraction": 0,
        "thermal_violation_fraction": 0,
        "own_memory_peak_bytes": None,
        "other_processes": None,
        "pcie_generation": 4,
        "pcie_width": 8,
        "pcie_tx_mean_bytes_per_s": 1_500_000,
        "pcie_rx_mean_bytes_per_s": 2_500_000,
        "memory_total_bytes": 140 * GIB,
        "power_limit_w": 700,
        "sm_clock_max_mhz": 1_980,
        "memory_clock_max_mhz": 3_201,
        "temperature_slowdown_c": 87,
        "pcie_generation_max": 5,
        "pcie_width_max": 16,
        "note": "",
    }
    series, count = found.pop("series"), found.pop("samples")
    assert {k: pytest.approx(v) if isinstance(v, int) else v for k, v in expected.items()} == found
    assert all(len(column) == count >= 3 for column in series.values())
    assert series["seconds"] == sorted(series["seconds"])
    assert set(series["memory_utilization"]) == {41} and set(series["memory_clock_mhz"]) == {3_201}
    assert told["latest"] == {
        "gpu0_utilization": 97,
        "gpu0_memory_bytes": 12 * GIB,
        "gpu0_power_w": pytest.approx(512.3),
        "gpu0_sm_clock_mhz": 1_755,
        "gpu0_temperature_c": 61,
        "gpu0_held_back": 0,
    }


def test_what_a_card_does_not_tell_is_none_and_never_nought(sample):
    told = sample(ONCE, answers({"uuid": f"GPU-{UUIDS[0]}", "name": "Tesla M60"}))
    (found,) = told["summary"]
    assert {found.pop("name"), found.pop("note")} == {"Tesla M60", ""}
    assert found.pop("samples") >= 3
    series = found.pop("series")
    del series["seconds"]
    assert set(found.values()) == {None}
    assert all(set(column) == {None} for column in series.values())
    assert told["latest"] == {}


def test_every_reason_for_lower_clocks_has_its_name(sample):
    bits = [1 << n for n in range(12)]
    script = f"""
    reasons = dict()
    for bit in {bits}:
        driver(answers.read_text() + "0 reasons %d\\n" % bit)
        with GpuSampler() as sampler:
            more(sampler, 1)
        found = sampler.summary()[0]["throttle_reasons"]
        reasons[bit] = found, list(harmful_reasons(sampler.summary())), sampler.latest()
        driver(answers.read_text().replace("0 reasons %d\\n" % bit, ""))
    reasons
    """
    told = sample(script, answers(card(reasons=None)))
    names = [found for found, _, _ in told.values()]
    assert names == [[name] for name in [*nvml.REASONS.values(), "bit_0x800"]]
    harmful = [bit for bit, (_, harmful, _) in told.items() if harmful]
    assert [int(bit) for bit in harmful] == [0x4, 0x8, 0x20, 0x40, 0x80]
    assert [bit for bit, (_, _, row) in told.items() if row["gpu0_held_back"]] == harmful


def test_a_reason_counts_by_the_part_of_the_samples_that_show_it(sample):
    script = """
    with GpuSampler() as sampler:
        more(sampler, 4)
        driver(answers.read_text().replace("0 reasons 0\\n", "0 reasons 0x60\\n"))
        more(sampler, 6)
    [sampler.summary(), harmful_reasons(sampler.summary())]
    """
    (found,), harmful = sample(script, answers(card()))
    shown = [bits == 0x60 for bits in found["series"]["reasons"]]
    assert 0 < sum(shown) < len(shown)
    part = sum(shown) / len(shown)
    assert harmful == {"sw_thermal": pytest.approx(part), "hw_thermal": pytest.approx(part)}
    assert found["throttle_fractions"] == harmful


def test_a_card_that_vanishes_ends_its_own_series_alone(sample):
    script = """
    with GpuSampler() as sampler:
        more(sampler, 3)
        more(sampler, 1, card=1)
        driver("0 all !15\\n" + answers.read_text())
        until(lambda: sampler.summary()[0]["note"])
        more(sampler, 3, card=1)
    [sampler.summary(), sampler.latest(), sampler.absent]
    """
    (lost, whole), latest, absent = sample(script, answers(card(0), card(1)))
    assert lost["note"].startswith("no samples from second ") and "lost" in lost["note"]
    assert lost["samples"] >= 3 and lost["utilization_mean"] == 97
    assert whole["note"] == "" and whole["samples"] > lost["samples"]
    assert {name[:4] for name in latest} == {"gpu1"}
    assert absent == ""


@pytest.mark.parametrize("others", [0, 1])
def test_a_card_that_is_lost_from_the_start_is_no_error(sample, others):
    whole = [card(1, name="card 1")] * others
    told = sample(
        """
        with GpuSampler() as sampler:
            pass
        [sampler.absent, sampler.summary()]
        """,
        answers(card(gen_max="!15"), *whole),
    )
    assert ("NVML does not reach the GPU" in told[0]) == (not others)
    assert [found["name"] for found in told[1]] == ["card 1"] * others


def test_a_driver_that_never_answers_does_not_hold_up_the_end(sample):
    script = """
    telemetry.PATIENCE = 0.1
    with GpuSampler() as sampler:
        more(sampler, 2)
        driver(answers.read_text().replace("0 utilization 97", "0 utilization hang"))
        time.sleep(0.2)
    sampler.summary()
    """
    assert sample(script, answers(card()))[0]["utilization_mean"] == 97


def test_an_old_driver_tells_by_its_older_functions(sample):
    script = """
    me = os.getpid()
    driver(answers.read_text() + f"0 processes {me}:4096 7:1\\n")
    with GpuSampler() as sampler:
        more(sampler, 1)
    sampler.summary()
    """
    (found,) = sample(script, answers(card(reasons=0x40)), age="old")
    assert found["throttle_reasons"] == ["hw_thermal"]
    assert (found["own_memory_peak_bytes"], found["other_processes"]) == (4096, 1)


@pytest.mark.parametrize(
    ("listed", "own", "others"),
    [
        ("{me}:4096", 4096, 0),
        ("{me}:4096 7:1 8:1", 4096, 2),
        ("{me}:0", None, 0),
        ("7:1", None, None),  # in a container: this process by another number, or a neighbour
    ],
)
def test_processes_on_the_card(sample, listed, own, others):
    script = f"""
    me = os.getpid()
    driver(answers.read_text() + f"0 processes {listed}\\n")
    with GpuSampler() as sampler:
        more(sampler, 1)
    sampler.summary()
    """
    (found,) = sample(script, answers(card()))
    assert (found["own_memory_peak_bytes"], found["other_processes"]) == (own, others)


CARDS = [card(n, name=f"card {n}") for n in range(3)]


@pytest.mark.parametrize(
    ("cuda", "devices", "expected"),
    [
        ([0, 1, 2], None, ["card 0", "card 1", "card 2"]),
        ([2, 0, 1], None, ["card 2", "card 0", "card 1"]),  # CUDA: the fastest first
        ([1], None, ["card 1"]),  # CUDA_VISIBLE_DEVICES=1, or the card's UUID
        ([2, 0, 1], ["/device:GPU:0"], ["card 2"]),  # one device of three
        ([2, 0, 1], ["/job:localhost/replica:0/task:0/device:GPU:1"], ["card 0"]),
        ([f"{'f' * 32}/{BUSES[1]}"], None, ["card 1"]),  # no UUID in common: by the bus
    ],
)
def test_the_cards_are_those_of_tensorflow_whatever_nvmls_order(sample, cuda, devices, expected):
    script = f"""
    with GpuSampler({devices}) as sampler:
        more(sampler, 1, card={len(expected) - 1})
    [sampler.summary(), sampler.latest()]
    """
    summary, latest = sample(script, answers(*CARDS, cuda=cuda))
    assert [found["name"] for found in summary] == expected
    numbers = [int(name[-1]) for name in devices] if devices else range(len(expected))
    assert {name.split("_")[0] for name in latest} == {f"gpu{number}" for number in numbers}


def test_of_a_divided_card_memory_is_the_parts_and_power_the_whole_ones(sample):
    part = {
        "name": "NVIDIA H200 MIG 1g.18gb",
        "uuid": f"MIG-{UUIDS[1]}",
        "part_of": 0,
        "memory_total": 16 * GIB,
        "memory_used": GIB,
    }
    told = sample(ONCE, answers(card(utilization=None), part, cuda=[f"{UUIDS[1]}/{BUSES[0]}"]))
    (found,) = told["summary"]
    assert found["name"] == "NVIDIA H200 MIG 1g.18gb"
    assert (found["memory_peak_bytes"], found["memory_total_bytes"]) == (GIB, 16 * GIB)
    assert found["power_mean_w"] == pytest.approx(512.3)
    assert found["sm_clock_mean_mhz"] == 1_755
    assert found["utilization_mean"] is None


@pytest.mark.parametrize(
    ("driver", "age", "script", "expected"),
    [
        ("", "no", "", "libcuda.so.1 cannot be loaded"),
        (answers(card(), cuda=[]), "new", "", "CUDA shows this process no GPU"),
        (answers(card()) + "nvml init !9\n", "new", "", "NVML does not start: Driver Not Loaded"),
        (answers({"name": "another"}, cuda=[0]), "new", "", "NVML does not know the GPUs"),
        (answers(card()), "new", "sys.modules['pynvml'] = None", "nvidia-ml-py is not installed"),
        (answers(card()), "new", "devices = ['/device:CPU:0']", "the run computes on the CPU"),
    ],
)
def test_where_there_is_nothing_to_sample_it_says_why(sample, driver, age, script, expected):
    lines = [
        "devices = None",
        script or "pass",
        "with GpuSampler(devices) as sampler:",
        "    pass",
        "[sampler.absent, sampler.summary(), sampler.latest(), harmful_reasons(sampler.summary())]",
    ]
    absent, *rest = sample("\n".join(lines), driver, age)
    assert expected in absent
    assert rest == [[], {}, {}]


def test_the_trend_is_the_fitted_lines_change_a_minute(sample):
    script = """
    with GpuSampler() as sampler:
        for value in range(96, 36, -6):
            driver(answers.read_text().replace(f"utilization {value}", f"utilization {value - 6}"))
            more(sampler, 2)
    sampler.summary()
    """
    (found,) = sample(script, answers(card(utilization=96)))
    series = found["series"]
    slope = np.polyfit(series["seconds"], series["utilization"], 1)[0]
    assert slope < 0
    assert found["utilization_mean"] == pytest.approx(np.mean(series["utilization"]))
    assert found["utilization_trend"] == pytest.approx(60 * slope / found["utilization_mean"])


def test_entered_again_the_series_goes_on_and_the_gap_does_not_count(sample):
    script = """
    def violation(before, after):
        driver(answers.read_text().replace(f"power_violation {before}", f"power_violation {after}"))

    sampler = GpuSampler()
    with sampler:
        more(sampler, 2)
    violation(0, 10**15)  # eleven days, in the gap
    with sampler:
        more(sampler, 2)
    still = sampler.summary()[0]
    with sampler:
        more(sampler, 2)
        violation(10**15, 2 * 10**15)
        more(sampler, 2)
    [still, sampler.summary()[0]]
    """
    still, grown = sample(script, answers(card()))
    assert still["samples"] >= 4 and still["power_violation_fraction"] == 0
    growth = grown["series"]["power_violation"]
    assert growth.count(None) == 3 and growth.count(1) == 1  # an entry's first; while sampled
    assert grown["power_violation_fraction"] == pytest.approx(1 / (len(growth) - 3))
    assert grown["thermal_violation_fraction"] == 0
    assert grown["series"]["seconds"] == sorted(grown["series"]["seconds"])


def test_a_run_of_weeks_keeps_its_last_samples_alone(sample):
    script = """
    telemetry.KEPT = 4
    with GpuSampler() as sampler:
        more(sampler, 4)
        until(lambda: sampler.summary()[0]["series"]["seconds"][0] > 0.1)
    sampler.summary()[0]["samples"]
    """
    assert sample(script, answers(card())) == 4


def test_a_training_logs_the_latest_figures_of_its_gpus(sample, tmp_path):
    run = tmp_path / "run"
    script = f"""
    from {PACKAGE} import runtime, train
    runtime.start_tensorflow()
    from {PACKAGE} import training
    training.GpuSampler = lambda devices: GpuSampler()  # as if those devices were GPUs
    flags = ["--data=digits", "--steps=6", "--strategy=one_device", "--run_dir={run}"]
    train.main(flags)
    """
    assert sample(script, answers(card(0), card(1, utilization=3))) == 0
    logged = rows(run)
    assert len(logged) == 6
    last = logged[-1]
    assert (last["gpu0_utilization"], last["gpu1_utilization"]) == (97, 3)
    assert last["gpu0_memory_bytes"] == 12 * GIB and last["gpu0_held_back"] == 0
    assert last["step"] == 6 and last["loss"] > 0
    tags = set()
    for path in (run / "events").glob("events*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            tags |= {value.tag for value in event.summary.value}
    assert {"loss", "gpu0_utilization", "gpu1_power_w"} <= tags
