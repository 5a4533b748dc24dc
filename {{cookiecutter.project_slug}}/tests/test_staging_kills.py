"""Staging killed, stopped, cut off and started many times at once: real processes, real signals."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from {{cookiecutter.package_name}}.errors import RunFailed
from {{cookiecutter.package_name}}.staging import staging, store
from {{cookiecutter.package_name}}.staging.store import Store

SMALL, LARGE, BYTES = 70, 4, (2 << 20) + 5
WAIT = 120  # seconds for what takes one, on a loaded machine
# Runs the command after a change to it: a place to stop at, or slower writing.
CHANGED = """
import os, signal, sys, time
from {{cookiecutter.package_name}} import stage as command
from {{cookiecutter.package_name}}.staging import copying, lock, store
def die(*ignored): os.kill(os.getpid(), signal.SIGKILL)
def before(module, name, action, when=lambda *arguments: True):
    real = getattr(module, name)
    def called(*arguments, **named):
        if when(*arguments): action(*arguments)
        return real(*arguments, **named)
    setattr(module, name, called)
exec(sys.argv[1])
sys.exit(command.main(sys.argv[2:]))
"""
SLOW = "before(copying, '_write', lambda *ignored: time.sleep(0.004))"
VERY_SLOW = "before(copying, '_write', lambda *ignored: time.sleep(0.1))"


@pytest.fixture
def source(tmp_path) -> Path:
    root = tmp_path / "source"
    (root / "small").mkdir(parents=True)
    for number in range(SMALL):
        (root / "small" / f"{number}").write_bytes(os.urandom(500 + number))
    for number in range(LARGE):
        (root / f"large{number}").write_bytes(os.urandom(BYTES))
    return root


@pytest.fixture
def start(source, tmp_path):
    """Starts the command in a process of its own; those left at the test's end are killed."""
    (tmp_path / "ssd").mkdir()
    started = []

    def begin(change: str = "", *flags: str) -> subprocess.Popen:
        usual = [f"--scratch={tmp_path / 'ssd'}", "--allow_shared", "--reserve=0", "--json"]
        process = subprocess.Popen(
            [sys.executable, "-c", CHANGED, change, str(source), *usual, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen) -> tuple[int, Path, dict, str]:
    """(exit code, path, report, what it said) of a process that ends by itself."""
    out, said = process.communicate(timeout=WAIT)
    last = said.splitlines()[-1] if process.returncode == 0 else "{}"
    return process.returncode, Path(out.strip() or "none"), json.loads(last), said


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def version(source: Path) -> Path:
    """The directory of the one version that is staged, whole or not."""
    (found,) = (p for p in source.parent.glob("ssd/tfstage-*/*") if not p.name.startswith("."))
    return found


def finished(source: Path) -> dict[str, bytes]:
    """What lies at final names, whole or not; each file as it is at the source."""
    real, found = contents(source), {}
    for place in ("data", "data.partial"):
        for path in source.parent.glob(f"ssd/tfstage-*/*/{place}"):
            found.update(contents(path))
    assert all(real[name] == content for name, content in found.items())
    return found


def wait_for(condition) -> None:
    """Returns once `condition()` holds."""
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def begun(source: Path, files: int = 1) -> bool:
    """Whether so many files are finished."""
    return len(finished(source)) >= files


def test_killed_within_a_file_it_goes_on_with_that_file(start, source):
    place = "before(copying, '_write', die, lambda fd, content, n=[0]: n.append(0) or len(n) > 5)"
    assert finish(start(place, "--workers=1"))[0] == -signal.SIGKILL
    assert len(finished(source)) == 1
    (part,) = (version(source) / "parts").iterdir()
    code, path, report, _ = finish(start())
    assert code == 0 and contents(path) == contents(source) and not part.exists()
    assert (report["reused"], report["copied"]) == (1, SMALL + LARGE - 1)


def test_killed_between_the_name_and_the_journal_it_copies_that_file_again(start, source):
    place = "before(store.Store, 'note', die, lambda self, rows, n=[0]: n.append(0) or len(n) > 3)"
    assert finish(start(place, "--workers=1"))[0] == -signal.SIGKILL
    assert len(finished(source)) == 3
    code, path, report, _ = finish(start())
    assert code == 0 and contents(path) == contents(source) and report["reused"] == 2


@pytest.mark.parametrize("place", ["sync_file_system", "write_durably"])
def test_killed_before_the_last_mark_it_copies_nothing_again(start, source, place):
    when = "lambda *ignored: True"
    assert finish(start(f"before(store, '{place}', die, {when})"))[0] == -signal.SIGKILL
    assert (version(source) / "data").exists()
    assert not (version(source) / "COMPLETE.json").exists()
    code, path, report, _ = finish(start())
    assert code == 0 and contents(path) == contents(source)
    assert report["copied"] == 0 and (version(source) / "COMPLETE.json").exists()


@pytest.mark.parametrize(
    "number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["term", "int"]
)
def test_a_signal_ends_it_and_keeps_what_is_finished(start, source, number, code):
    process = start(VERY_SLOW, "--workers=2")
    wait_for(lambda: begun(source))
    process.send_signal(number)
    ended, _, _, said = finish(process)
    assert ended == code and "Traceback" not in said
    assert not list((version(source) / "parts").iterdir())
    kept = len(finished(source))
    ended, path, report, _ = finish(start())
    assert ended == 0 and contents(path) == contents(source)
    assert 1 <= report["reused"] <= kept


def test_a_signal_need_not_wait_for_a_read_that_hangs(start, source):
    hang = "lambda *ignored: (print('hangs', file=sys.stderr, flush=True), time.sleep(1000))"
    process = start(f"before(copying.Copying, '_receive', {hang})", "--workers=1")
    assert process.stderr.readline() == "hangs\n"
    process.terminate()
    assert finish(process)[0] == 143


def test_eight_started_at_once_copy_once(start, source):
    ends = [finish(process) for process in [start(SLOW) for _ in range(8)]]
    assert [code for code, *_ in ends] == [0] * 8
    assert sorted(report["copied"] for _, _, report, _ in ends) == [0] * 7 + [SMALL + LARGE]
    assert len({path for _, path, *_ in ends}) == 1
    assert contents(ends[0][1]) == contents(source)


def test_a_killed_holder_is_replaced_by_one_waiter(start, source):
    holder = start(VERY_SLOW)
    wait_for(lambda: begun(source))
    waiters = [start() for _ in range(3)]
    for process in waiters:
        assert process.stderr.readline().startswith("stage: waiting for the copying of")
    holder.kill()
    ends = [finish(process) for process in waiters]
    assert [code for code, *_ in ends] == [0] * 3
    copied = sorted(report["copied"] for _, _, report, _ in ends)
    assert copied[:2] == [0, 0] and 0 < copied[2] < SMALL + LARGE
    assert finished(source) == contents(source)


def test_a_stopped_holder_is_named_and_not_waited_for_longer_than_asked(start, source):
    holder = start(VERY_SLOW)
    wait_for(lambda: begun(source))
    holder.send_signal(signal.SIGSTOP)
    code, _, _, said = finish(start("lock.MESSAGE_EVERY = 0.2", "--lock_timeout=1"))
    assert code == 75
    assert said.count(f"held by process {holder.pid} on ") >= 4  # several messages, then the error
    holder.send_signal(signal.SIGCONT)
    code, path, _, _ = finish(holder)
    assert code == 0 and contents(path) == contents(source)


def test_without_locks_two_copiers_at_once_do_no_harm(start, source):
    nothing = SLOW + "; lock._granted = lambda *ignored: True"
    first = start(nothing)
    wait_for(lambda: begun(source))
    second = start(nothing)
    codes = [finish(process)[0] for process in (first, second)]
    finished(source)
    code, path, _, _ = finish(start())
    assert code == 0 and contents(path) == contents(source), codes


@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_no_kill_leaves_a_wrong_byte(start, source, kills):
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    killed = 0
    while killed < kills:
        process = start(SLOW, "--workers=3")
        try:
            process.wait(timeout=rng.uniform(0.1, 0.9))
        except subprocess.TimeoutExpired:
            process.kill()
            killed += 1
        process.communicate()
        finished(source)
        if process.returncode == 0:
            shutil.rmtree(version(source))
    code, path, _, _ = finish(start())
    assert code == 0 and contents(path) == contents(source), f"seed {seed}"


def stage_here(source: Path):
    return staging.stage(
        str(source), scratch=str(source.parent / "ssd"), allow_shared=True, reserve=0
    )


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "foreign"])
def test_a_damaged_last_mark_is_none(start, source, damage):
    with stage_here(source) as first:
        mark = first.path.parent / "COMPLETE.json"
    text = mark.read_text()
    if damage == "cut":
        mark.write_text(text[: len(text) // 2])
    elif damage == "flipped":
        mark.write_text(re.sub(r'"large0", \d', '"large0", 9', text, count=1))
    elif damage == "foreign":
        mark.write_text("[1]")
    else:
        mark.unlink()
    assert Store(mark.parent.parent, first.key).complete() is None
    with stage_here(source) as second:
        assert second.copied == 0 and contents(second.path) == contents(source)
    assert mark.read_text() == text


def test_a_torn_line_of_the_journal_costs_one_file(start, source):
    with stage_here(source) as first:
        directory = first.path.parent
    (directory / "COMPLETE.json").unlink()
    journal = directory / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-7])
    with stage_here(source) as second:
        assert (second.copied, second.reused) == (1, SMALL + LARGE - 1)
    journal.write_bytes(journal.read_bytes() + b'\0\0\0["x"]\n{"a": 1}\n[]\n5\n')
    (directory / "COMPLETE.json").unlink()
    with stage_here(source) as third:
        assert third.copied == 0 and contents(third.path) == contents(source)


def test_after_a_power_cut_what_was_not_marked_is_read_again(start, source, tmp_path, monkeypatch):
    process = start(VERY_SLOW)
    wait_for(lambda: begun(source, 2))
    process.kill()
    process.communicate()
    rows, _ = Store(version(source).parent, version(source).name).noted()
    damaged = version(source) / "data.partial" / next(name for name in rows if "large" in name)
    damaged.write_bytes(bytes(BYTES))  # its length reached the disk, its content did not
    boot = tmp_path / "boot"
    boot.write_text("another")
    monkeypatch.setattr(store, "BOOT", boot)
    with stage_here(source) as staged:
        assert contents(staged.path) == contents(source)
        assert staged.reused == len(rows) - 1


def test_the_last_mark_follows_the_data_to_the_disk(start, source, tmp_path):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    calls = "trace=rename,renameat,renameat2,syncfs,fsync,fdatasync"
    log = tmp_path / "log"
    traced = ["strace", "-f", "-y", "-e", calls, "-o", log, sys.executable, "-c", CHANGED, ""]
    flags = [f"--scratch={tmp_path / 'ssd'}", "--allow_shared", "--reserve=0"]
    done = subprocess.run([*traced, source, *flags], capture_output=True, text=True, timeout=WAIT)
    if "ptrace" in done.stderr:
        pytest.skip("tracing is not allowed here")
    lines = log.read_text().splitlines()

    def first(pattern: str) -> int:
        return next(n for n, line in enumerate(lines) if re.search(pattern, line))

    last_file = max(n for n, line in enumerate(lines) if '.part"' in line)
    order = [
        last_file,
        first(r'rename.*/data\.partial".*/data"'),
        first(r"syncfs\("),
        first(r"fsync\(.*COMPLETE\.json"),
        first(r'rename.*COMPLETE\.json".*/COMPLETE\.json"'),
        max(n for n, line in enumerate(lines) if "fsync(" in line),
    ]
    assert order == sorted(order) and len(set(order)) == len(order)


def test_a_disk_that_fails_to_sync_leaves_no_mark(start, source, monkeypatch):
    def fail(directory):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store, "sync_file_system", fail)
    with pytest.raises(RunFailed, match="writing to the disk: Input/output error"):
        stage_here(source)
    assert not (version(source) / "COMPLETE.json").exists()
