"""The benchmark beside peers: it measures what runs, says why the rest does not, and judges."""

import contextlib
import json
import os
import re
import struct
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))  # it is run as a script, so that its modules lie there

import measuring
import photo_sets
import report

# Real generators in real processes, as the peers are; pictures of 64x64 pixels take no time.
FAKES = """
import mmap, multiprocessing, os, subprocess, time

def pictures(count, side=64):
    pixels = os.urandom(count * side * side * 3)
    return memoryview(bytearray(pixels)).cast("B", [count, side, side, 3])

def steady(rate):
    while True:
        time.sleep(4 / rate)
        yield pictures(4), 4

def busy(processes):
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        while True:
            pool.map(work, range(processes))
            yield None, 1

def work(_):
    began = time.process_time()
    while time.process_time() - began < 0.02:
        pass

def hungry(bytes, file):
    kept = os.urandom(bytes)
    with open(file, "w+b") as opened:
        opened.truncate(bytes)
        mapped = mmap.mmap(opened.fileno(), bytes)
    sum(mapped[::4096])  # in memory now, as pages of a file
    with multiprocessing.get_context("fork").Pool(2):  # which share what is kept
        while True:
            time.sleep(0.01)
            yield None, 1

def breeds(seconds):
    subprocess.Popen(["sleep", str(seconds)])
    while True:
        time.sleep(0.01)
        yield None, 1

def breaks_off(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        yield None, 1
    raise OSError("the disk is gone")

def dies():
    yield None, 1
    print("out of luck", flush=True)
    os._exit(3)

def blank():
    while True:
        yield memoryview(bytes(4 * 64 * 64 * 3)).cast("B", [4, 64, 64, 3]), 4

def small():
    while True:
        yield pictures(4, side=63), 4

def miscounted():
    while True:
        yield pictures(4), 5

def the_same():
    batch = pictures(4)
    while True:
        yield batch, 4

def length(text):
    return len(text)
"""


def contender(function: str, side: int = 0, **options: Any) -> measuring.Contender:
    return measuring.Contender(function, "peer", "fakes", options, function, side)


@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., dict[str, measuring.Result]]:
    """Measures fake contenders quickly; results by name."""
    (tmp_path / "fakes.py").write_text(FAKES)

    def run(*contenders: measuring.Contender, **changed: Any) -> dict[str, measuring.Result]:
        quick: dict[str, Any] = {"rounds": 2, "seconds": 0.2, "warm": 0.1, "drain": 0.05}
        results = measuring.measure(
            contenders, logs=tmp_path / "logs", path=[str(tmp_path)], **quick | changed
        )
        return {result.contender.name: result for result in results}

    return run


Measure = Callable[..., dict[str, measuring.Result]]


def test_a_steady_contender_is_measured_once_a_round(measure: Measure) -> None:
    result = measure(contender("steady", 64, rate=200), rounds=3)["steady"]
    assert not result.error and result.gives == "uint8 64x64x3"
    assert len(result.windows) == len(result.memory) == 3
    for window, rate in zip(result.windows, result.per_second, strict=True):
        assert window["seconds"] >= 0.2 and window["images"] % 4 == 0
        assert rate == window["images"] / window["seconds"] <= 200  # a sleep is never shorter


def test_cpu_seconds_are_those_of_the_processes_it_starts_too(measure: Measure) -> None:
    result = measure(contender("busy", processes=2), rounds=2, seconds=1.0)["busy"]
    for window in result.windows:  # each piece of work is 2 x 0.02 CPU-seconds, in its children
        assert window["cpu_seconds"] >= 0.9 * 0.04 * window["images"]


def test_memory_is_what_a_contender_and_its_processes_hold_together_without_files(
    measure: Measure, tmp_path: Path
) -> None:
    hungry = contender("hungry", bytes=150 << 20, file=str(tmp_path / "file"))
    results = measure(hungry, contender("steady", rate=100))
    most, least = (max(results[name].memory) for name in ("hungry", "steady"))
    assert least < 60 << 20 and abs(most - least - (150 << 20)) < 20 << 20


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("blank", "without content"),
        ("small", "shape"),
        ("miscounted", "counts 5 images where it gives 4"),
        ("the_same", "the same images again"),
    ],
)
def test_a_contender_must_give_the_images_it_counts(
    measure: Measure, function: str, reason: str
) -> None:
    results = measure(contender(function, 64), contender("steady", 64, rate=200))
    assert reason in results[function].error and not results[function].windows
    assert len(results["steady"].windows) == 2


def test_a_failure_is_a_row_with_its_reason_and_stops_nobody_else(measure: Measure) -> None:
    missing = measuring.Contender("missing", "peer", "no_such_peer", {})
    results = measure(
        missing,
        contender("dies"),
        contender("breaks_off", seconds=1.5),
        contender("steady", rate=200),
        rounds=6,
        seconds=0.3,
    )
    assert results["missing"].error == "ModuleNotFoundError: No module named 'no_such_peer'"
    assert results["dies"].error == "ended with 3: out of luck"
    assert results["breaks_off"].error == "OSError: the disk is gone"
    assert len(results["steady"].windows) == 6
    table = report.markdown(document(list(results.values())))
    assert table.count("none: see below") == 3
    assert "- missing: ModuleNotFoundError: No module named 'no_such_peer'" in table


def test_no_process_is_left_over(measure: Measure, tmp_path: Path) -> None:
    unusual = 97.25 + os.getpid()  # seconds, to know it by
    result = measure(contender("breeds", seconds=unusual))["breeds"]
    assert len(result.windows) == 2
    patience = time.monotonic() + 10  # a killed process is gone a moment later
    while (left := running(f"sleep\0{unusual}\0")) and time.monotonic() < patience:
        time.sleep(0.05)
    assert not left


def running(command: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            if path.read_bytes() == command.encode():
                return True
    return False


def test_a_value_is_called_for_and_an_error_raised(tmp_path: Path) -> None:
    (tmp_path / "fakes.py").write_text(FAKES)
    log, path = tmp_path / "log", [str(tmp_path)]
    assert measuring.call("fakes", "length", log, path, text="four") == 4
    with pytest.raises(measuring.Failed, match="TypeError"):
        measuring.call("fakes", "length", log, path, text=4)


def result_of(name: str, rates: list[float], cpus: float = 2.0) -> measuring.Result:
    windows = [{"images": rate, "seconds": 1.0, "cpu_seconds": cpus} for rate in rates]
    made = measuring.Contender(name, "peer", "fakes", {})
    return measuring.Result(made, windows, [1 << 20] * len(rates))


def document(results: list[measuring.Result], against: str = report.PIL) -> dict[str, Any]:
    return {
        "environment": {"cpus": 2, "processor": "test", "versions": {"keras": "3"}},
        "photos": "synthetic:40",
        "against": against,
        "batch_size": 4,
        "image_size": 8,
        "rounds": 2,
        "seconds": 0.2,
        "rows": {"2 cores": report.rows_of(results, against)},
        "done_when": report.done_when(results),
        "device": {"augmentation": 2e8, "resnet50": 2e10},
        "scaling": {},
    }


def test_ratios_are_taken_round_by_round() -> None:
    # A machine that is twice as slow in the second round changes no ratio.
    base, faster = result_of(report.PIL, [100, 50, 80]), result_of("x", [300, 150, 240])
    row = report.rows_of([base, faster], report.PIL)[1]
    assert row["per_second"]["median"] == 240
    assert [row["ratio"][key] for key in ("median", "low", "high")] == pytest.approx([3, 3, 3])
    scattered = report.ratio([300, 150, 260], [100, 50, 80])
    assert scattered["low"] < 3.0 < scattered["median"] * 1.1 and scattered["high"] > 3.25


def test_done_when_says_yes_no_or_not_measured() -> None:
    failed = measuring.Result(measuring.Contender(report.DALI, "peer", "", {}), error="none")
    rates = {report.PIL: 100, report.PREPARED: 499, report.RAW: 900, report.ORIGINALS: 300}
    limit = result_of("libjpeg-turbo, prepared", [1_000.0] * 2, cpus=4.0)
    measured = [result_of(name, [rate, rate]) for name, rate in rates.items()]
    met = {
        (v["above"], v["below"], v["what"]): v["met"]
        for v in report.done_when([*measured, failed, limit])
    }
    assert met[report.PREPARED, report.PIL, report.RATE] is False
    assert met[report.RAW, report.PIL, report.RATE] is True
    assert met[report.ORIGINALS, report.DALI, report.RATE] is None
    # 499 a second at 2 CPUs is 249.5 a CPU-second, the limit's 1,000 at 4 is 250.
    assert met[report.PREPARED, "libjpeg-turbo, prepared", report.CPU] is True
    text = report.markdown(document([*measured, failed, limit]))
    assert all(re.search(rf"\| +{word} \|", text) for word in ("yes", "no", "not measured"))
    assert "1.00 % of ResNet-50's training step" in text


def test_sets_of_any_size_are_written_from_a_small_one(tmp_path: Path) -> None:
    def frame(data: bytes) -> bytes:
        return struct.pack("<QI", len(data), 1) + data + struct.pack("<I", 2)

    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    records = [frame(b"a" * 10), frame(b"b" * 300), frame(b"")]
    (source / "one").write_bytes(records[0] + records[1])
    (source / "two").write_bytes(records[2])
    (source / "held").write_bytes(records[0])
    splits = {"train": [{"file": "one"}, {"file": "two"}], "validation": [{"file": "held"}]}
    (source / "manifest.json").write_text(json.dumps({"size": 256, "splits": splits}))
    photo_sets.reshard(source, target, records=8, shards=3)
    manifest = json.loads((target / "manifest.json").read_text())
    rows = manifest["splits"]["train"]
    written = [(target / row["file"]).read_bytes() for row in rows]
    assert b"".join(written) == b"".join((records * 3)[:8])
    assert sorted(row["records"] for row in rows) == [2, 3, 3] and manifest["size"] == 256
    assert [(r["bytes"], r["crc32"]) for r in rows] == [(len(w), zlib.crc32(w)) for w in written]
    assert (target / "held").exists() and not list(tmp_path.glob("*.partial"))


def test_peers_are_pinned_and_tensorflow_is_the_generated_projects() -> None:
    def pins(path: Path) -> set[str]:
        lines = re.findall(r"^(?:tensorflow-cpu|keras|numpy)==[^ ]+", path.read_text(), re.M)
        return set(lines)

    peers = ROOT / "requirements" / "peers.txt"
    assert pins(peers) == pins(photo_sets.PACKAGE.parent.parent / "requirements" / "cpu.txt")
    text = peers.read_text()
    for name in ("torch", "torchvision", "nvidia-dali-cuda120", "simplejpeg", "matplotlib"):
        assert re.search(rf"^{name}==\d", text, re.M), name
    assert "://" not in text
