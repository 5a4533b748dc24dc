"""The series over replicas: what is said of it, what is refused, and one on logical devices."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

from {{ cookiecutter.package_name }} import settings
from {{ cookiecutter.package_name }}.errors import UserError
from {{ cookiecutter.package_name }}.experiments import ledger, scaling, scaling_report
from {{ cookiecutter.package_name }}.experiments.scaling import Count

PACKAGE = settings.__package__
FACTS = {"precision": "mixed_float16", "xla": True, "device": "GPU", "gradient_bytes": 100_000_000}


def count(replicas, *rates, **facts):
    return Count(replicas, rates, {"batch_size": 64 * replicas, **FACTS, **facts})


def series(shared=False, **of_two):
    two = count(2, 1500.0, 1510.0, 1490.0, **of_two)
    return scaling.findings([count(1, 1000.0, 1002.0, 998.0), two], 64, shared)


def test_efficiency_is_the_rate_over_so_many_times_the_rate_of_one():
    two = series()["series"][1]
    assert two["efficiency"]["mean"] == pytest.approx(0.75, abs=0.001)
    assert two["per_replica"]["mean"] == pytest.approx(750)
    lost = two["lost"]
    assert lost["mean"] == pytest.approx(0.25, abs=0.001) and lost["low"] < 0.25 < lost["high"]
    assert two["refused"] == ""


@pytest.mark.parametrize(
    ("unlike", "named"),
    [
        ({"precision": "float32"}, "precision"),
        ({"xla": False}, "xla"),
        ({"batch_size": 64}, "batch of a replica"),
    ],
)
def test_replicas_that_compute_unlike_have_no_efficiency(unlike, named):
    document = series(**unlike)
    two = document["series"][1]
    assert two["efficiency"] is None and two["lost"] is None
    assert two["refused"] == f"not alike: {named}"
    assert f"none: not alike: {named}" in scaling_report.screen(document)


def test_replicas_on_the_same_cpus_have_no_efficiency_but_a_cost():
    document = series(shared=True)
    two = document["series"][1]
    assert two["efficiency"] is None and "share" in two["refused"]
    assert two["lost"]["mean"] == pytest.approx(-0.5, abs=0.01)  # the ideal is the rate of one
    assert "nothing is lost: 1.50x" in scaling_report.screen(document)


def test_the_batch_from_which_sharing_is_a_tenth():
    # A quarter of the step: computing 3, sharing 1. A tenth: computing 9, three times the batch.
    document = series()
    assert document["batch_per_replica_under_goal"] == pytest.approx(192, abs=2)
    screen = scaling_report.screen(document)
    assert "25 % of a step (" in screen and "under 10 % from about 19" in screen
    assert scaling.enough(64, {"mean": 0.1, "low": 0.05, "high": 0.15}) == 64
    assert scaling.enough(64, {"mean": 0.1, "low": -0.05, "high": 0.25}) is None
    assert scaling.enough(64, None) is None


def test_the_model_of_clusters_is_the_ring_formula():
    eight = scaling.predicted(8, 100_000_000, 0.1)
    # 2 * 7/8 * 100 MB at 200 GB/s, and 14 messages of 3 us.
    assert eight["ring_ms"] == pytest.approx(0.875 + 0.042)
    assert eight["hierarchical_ms"] == pytest.approx(eight["ring_ms"])
    sixty_four = scaling.predicted(64, 100_000_000, 0.1)
    # 2 * 63/64 * 100 MB at 12.5 GB/s, and 126 messages of 15 us.
    assert sixty_four["ring_ms"] == pytest.approx(15.75 + 1.89)
    # Within each host as eight; between eight hosts 2 * 7/8 * 100 MB, and 14 messages.
    assert sixty_four["hierarchical_ms"] == pytest.approx(0.917 + 14.0 + 0.21)
    assert sixty_four["efficiency_ring"] == pytest.approx(100 / 117.64)


def test_the_drawing_has_a_bar_a_count_and_the_ideal():
    drawing = xml.fromstring(scaling_report.drawing(series()))
    words = " ".join(drawing.itertext())
    assert "1 replica" in words and "2 replicas" in words and "efficiency 75 %" in words
    bars = [r for r in drawing.iter("{http://www.w3.org/2000/svg}rect") if r.get("class") == "bar"]
    assert float(bars[1].get("width")) == pytest.approx(1.5 * float(bars[0].get("width")), rel=0.01)


@pytest.mark.parametrize("words", ["2,4", "1", "1,2,2", "1,4,2", "1,two", "1,", "0,1", "-1,2"])
def test_counts_that_are_no_series_are_refused(words):
    with pytest.raises(UserError, match="rising replica counts that begin at 1"):
        scaling.counts_of(words)
    assert scaling.counts_of("1,2,8") == [1, 2, 8]


def test_fewer_replicas_than_asked_for_are_refused():
    with pytest.raises(UserError, match="4 replicas wanted, 2 GPUs are here"):
        scaling.check_devices(4, {"device": "GPU", "replicas": 2}, on_cpu=False)


def run(directory, *flags):
    return subprocess.run(
        [sys.executable, "-m", f"{PACKAGE}.train", "--data=digits", "--run_dir=s", *flags],
        cwd=directory,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--scale=1,2"], "--scale is a measurement of its own: give --benchmark --scale=1,2"),
        (["--benchmark", "--scale=1,2"], "TensorFlow sees no GPU here: add --logical_devices=1"),
        (["--benchmark", "--scale=2"], "--scale=2: give rising replica counts"),
    ],
)
def test_what_cannot_be_scaled_is_one_line(flags, line, tmp_path):
    done = run(tmp_path, *flags)
    assert done.returncode == 2 and line in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "s").exists()


def test_two_logical_devices_beside_one(tmp_path):
    done = run(tmp_path, "--benchmark", "--scale=1,2", "--logical_devices=1", "--batch_size=16")
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "s" / "scaling.json").read_text())
    assert [row["replicas"] for row in document["series"]] == [1, 2]
    assert [row["batch_size"] for row in document["series"]] == [16, 32]
    assert document["shared"] and document["rounds"] == scaling.ROUNDS
    assert all(row["efficiency"] is None for row in document["series"])
    assert document["gradient_bytes"] > 100_000
    assert "A model, not a measurement" in done.stdout
    xml.parse(tmp_path / "s" / "scaling.svg")
    (row,) = ledger.read(tmp_path / "ledger.jsonl")
    assert row["what"] == "scaling" and row["series"] == document["series"]
