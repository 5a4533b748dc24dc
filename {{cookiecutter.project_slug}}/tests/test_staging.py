"""Staging: every byte of the version listed, or an error; what is whole is never copied again."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import staged
from staged import LARGE, contents

from {{cookiecutter.package_name}} import progress
from {{cookiecutter.package_name}}.staging import copying, disk, retrying
from {{cookiecutter.package_name}}.staging.local_source import LocalSource
from {{cookiecutter.package_name}}.staging.source import Refused, Transient

source, stage = staged.source, staged.stage  # fixtures


def during(monkeypatch, action) -> None:
    """Has `action` called once, when a large file is half read."""
    fetch, todo = LocalSource.fetch, [action]

    def fetched(self, entry, stop):
        for number, block in enumerate(fetch(self, entry, stop)):
            yield block
            if number == 0 and todo:
                todo.pop()()

    monkeypatch.setattr(LocalSource, "fetch", fetched)


def test_copies_every_file_and_prints_the_path_alone(stage, source):
    ended = stage(source)
    assert ended.code == 0 and ended.path.name == "data"
    assert contents(ended.path) == contents(source)
    assert ended.report["copied"] == 7 and ended.report["bytes"] == 2 * LARGE + 510
    assert os.listdir(ended.path.parent / "parts") == []


def test_a_file_that_is_written_in_several_steps_is_copied_exactly(stage, tmp_path, monkeypatch):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "one").write_bytes(os.urandom(2 * disk.STEP + 12345))
    started = []
    start = disk.start_writing
    monkeypatch.setattr(copying, "start_writing", lambda *a: (started.append(a[1:]), start(*a)))
    assert contents(stage(tmp_path / "s").path) == contents(tmp_path / "s")
    assert started == [(0, disk.STEP), (disk.STEP, disk.STEP)]


def test_a_second_call_copies_nothing(stage, source):
    first, second = stage(source), stage(source)
    assert second.path == first.path
    assert (second.report["copied"], second.report["reused"]) == (0, 7)


def test_a_file_cut_short_later_is_found_by_its_size_and_it_alone_is_copied(stage, source):
    path = stage(source).path / "large1"
    os.truncate(path, 100)
    ended = stage(source)
    assert (ended.report["copied"], ended.report["reused"]) == (1, 6)
    assert contents(ended.path) == contents(source) and "large1 is damaged" in ended.said


def test_deep_finds_a_rotten_byte_and_copies_that_file_alone(stage, source):
    path = stage(source).path / "large0"
    content = bytearray(path.read_bytes())
    content[LARGE // 2] ^= 1
    path.write_bytes(content)
    assert stage("check").code == 0
    assert stage("check", "--deep").code == 1
    assert stage(source).report["copied"] == 0  # by size it is whole, as documented
    ended = stage(source, "--deep")
    assert (ended.report["copied"], ended.report["reused"]) == (1, 6)
    assert contents(ended.path) == contents(source)


def test_a_changed_source_is_another_version_and_the_old_copy_stays(stage, source):
    first = stage(source)
    before = contents(first.path)
    (source / "large0").write_bytes(os.urandom(LARGE))
    second = stage(source)
    assert second.path != first.path
    assert contents(second.path) == contents(source) and contents(first.path) == before


def test_a_newer_time_with_the_same_content_is_another_version(stage, source):
    first = stage(source)
    os.utime(source / "large0")
    assert stage(source).path != first.path


def test_times_in_the_future_do_no_harm(stage, source):
    os.utime(source / "large0", (2**32, 2**32))
    assert stage(source).path == stage(source).path


def test_the_same_names_in_two_places_are_two_versions(stage, source, tmp_path):
    other = tmp_path / "other" / "source"
    shutil.copytree(source, other)  # with its times
    assert stage(source).path != stage(other).path


@pytest.mark.parametrize("change", ["added", "removed", "appended", "rewritten"])
def test_a_source_that_changes_during_the_copy_is_listed_again(stage, source, monkeypatch, change):
    def act():
        if change == "added":
            (source / "new").write_bytes(b"new")
        elif change == "removed":
            (source / "below" / "small3").unlink()
        elif change == "appended":
            with (source / "large0").open("ab") as file:
                file.write(b"more")
        else:
            for name in ("large0", "large1"):
                (source / name).write_bytes(os.urandom(LARGE))

    during(monkeypatch, act)
    ended = stage(source, "--workers=1")
    assert ended.code == 0 and "the source has changed" in ended.said
    assert contents(ended.path) == contents(source)
    assert len([p for p in ended.path.parent.parent.iterdir() if p.name[0] != "."]) == 1


def test_a_change_that_its_times_hide_is_seen_while_it_is_read(stage, source, monkeypatch):
    def act():
        for name in ("large0", "large1"):
            times = (source / name).stat()
            (source / name).write_bytes(os.urandom(LARGE))
            os.utime(source / name, ns=(times.st_atime_ns, times.st_mtime_ns))

    during(monkeypatch, act)
    ended = stage(source, "--workers=1")
    assert ended.code == 0 and contents(ended.path) == contents(source)


def test_a_source_that_always_changes_is_given_up(stage, source, monkeypatch):
    fetch = LocalSource.fetch

    def fetched(self, entry, stop):
        os.utime(source / "below" / "small0")
        yield from fetch(self, entry, stop)

    monkeypatch.setattr(LocalSource, "fetch", fetched)
    ended = stage(source)
    assert ended.code == 1 and "changed during each of 3 copies" in ended.said


def test_what_passes_is_tried_again(stage, source, monkeypatch):
    fetch, failures = LocalSource.fetch, [1, 2]

    def fetched(self, entry, stop):
        for block in fetch(self, entry, stop):
            if failures:
                failures.pop()
                yield b"wrong"
                raise Transient("the server is restarting")
            yield block

    monkeypatch.setattr(LocalSource, "fetch", fetched)
    ended = stage(source)
    assert ended.report["retries"] == 2 and contents(ended.path) == contents(source)


def test_a_read_that_always_fails_is_an_error_and_leaves_nothing(stage, source, monkeypatch):
    def fetched(self, entry, stop):
        yield b"x"
        raise Transient("the server is away")

    monkeypatch.setattr(LocalSource, "fetch", fetched)
    ended = stage(source)
    assert ended.code == 1 and "the server is away (6 tries)" in ended.said
    (version,) = (p for p in (source.parent / "ssd").glob("tfstage-*/*") if p.name[0] != ".")
    assert not list(version.glob("*/large*")) and not list((version / "parts").iterdir())


@pytest.mark.parametrize("content", [b"short", b"x" * (LARGE + 1)])
def test_a_body_of_the_wrong_length_is_refused(stage, source, monkeypatch, content):
    monkeypatch.setattr(LocalSource, "fetch", lambda self, entry, stop: iter([content]))
    ended = stage(source)
    assert ended.code == 1 and "bytes" in ended.said


def test_a_body_without_end_is_cut_off(stage, source, monkeypatch):
    taken = []

    def fetched(self, entry, stop):
        for _ in range(50):
            taken.append(entry)
            yield bytes(LARGE)

    monkeypatch.setattr(LocalSource, "fetch", fetched)
    assert stage(source, "--workers=1").code == 1
    assert len(taken) == 2 * retrying.TRIES


def test_the_first_failure_is_reported_not_its_consequences(stage, source, monkeypatch):
    def fetched(self, entry, stop):
        yield b"x"
        if entry.path == "large1":
            raise Refused("large1: permission denied")
        stop.wait(30)
        raise Transient("stopped")

    monkeypatch.setattr(LocalSource, "fetch", fetched)
    ended = stage(source, "--workers=4")
    assert ended.code == 2 and "large1: permission denied" in ended.said


def test_a_quota_that_runs_out_midway_keeps_what_is_finished(stage, source, monkeypatch):
    write, written = copying._write, []

    def full(descriptor, content):
        written.append(content)
        if len(written) > 3:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        write(descriptor, content)

    monkeypatch.setattr(copying, "_write", full)
    ended = stage(source, "--workers=1")
    assert ended.code == 28 and "quota" in ended.said and "kept" in ended.said
    monkeypatch.undo()
    again = stage(source)
    assert again.report["reused"] >= 1 and contents(again.path) == contents(source)


@pytest.mark.parametrize("flag", ["--json", "--json=false"])
def test_progress_is_told_in_lines_even_while_nothing_comes(stage, source, monkeypatch, flag):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.2)
    fetch = LocalSource.fetch

    def fetched(self, entry, stop):
        stop.wait(1)
        yield from fetch(self, entry, stop)

    monkeypatch.setattr(LocalSource, "fetch", fetched)
    said = stage(source, "--workers=2", flag).said.splitlines()
    if flag == "--json":
        rows = [json.loads(line) for line in said]
        assert rows[0]["total"] == 2 * LARGE + 510 and rows[0]["unit"] == "B" and len(rows) > 2
    else:
        assert len(said) > 2 and re.match(r"stage: 0 B of 2 MiB, 0 B/s, inf s left", said[0])


def test_the_help_needs_nothing_but_flags():
    loaded = "import sys, {{cookiecutter.package_name}}.stage; print(*sys.modules)"
    text = subprocess.run([sys.executable, "-c", loaded], capture_output=True, check=True).stdout
    assert not {"numpy", "tensorflow", "fsspec", "tqdm", "xxhash"} & set(text.decode().split())
