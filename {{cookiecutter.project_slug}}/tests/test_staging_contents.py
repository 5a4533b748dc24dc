"""Staging: names, links and empty places, and what a data set says of itself."""

import json
import os
import subprocess
import zlib
from pathlib import Path

import pytest
import staged
from staged import LARGE, contents

from {{cookiecutter.package_name}}.staging import listing
from {{cookiecutter.package_name}}.staging.source import Entry, Refused, checked_path

source, stage = staged.source, staged.stage  # fixtures


def test_links_within_are_followed(stage, source):
    (source / "link").symlink_to("large0")
    (source / "directory").symlink_to("below")
    ended = stage(source)
    assert contents(ended.path)["directory/small1"] == contents(source)["below/small1"]
    assert not (ended.path / "link").is_symlink()


@pytest.mark.parametrize(
    "name, target, message",
    [
        ("out", "/etc/hostname", "leads out"),
        ("above", "../..", "leads out"),
        ("lost", "nowhere", "leads nowhere"),
        ("self", "self", "in a circle"),
        ("round", ".", "in a circle"),
    ],
)
def test_other_links_are_refused_by_name(stage, source, name, target, message):
    (source / name).symlink_to(target)
    ended = stage(source)
    assert ended.code == 2 and message in ended.said and f"source/{name}:" in ended.said


def test_a_pipe_is_refused(stage, source):
    os.mkfifo(source / "pipe")
    ended = stage(source)
    assert ended.code == 2 and "'pipe' is no file" in ended.said


@pytest.mark.parametrize(
    "name", ["a b", "line\nbreak", "größe", "-rf", "n" * 255, "a*?[", ".hidden.1.2.part", "\udcff"]
)
def test_strange_names_are_copied_exactly(stage, source, name):
    (source / name).write_bytes(name.encode("utf-8", "surrogateescape"))
    ended = stage(source)
    assert ended.code == 0 and contents(ended.path) == contents(source)
    assert stage(source).report["copied"] == 0


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../x", "a//x", "./x", "a\0b", "n" * 256, "d/" * 2000 + "x", "a/"]
)
def test_names_that_lead_out_of_the_directory_are_refused(name):
    with pytest.raises(Refused, match="rename it"):
        checked_path(name, "s3://bucket")


def test_a_name_that_is_a_file_and_a_directory_is_refused():
    with pytest.raises(Refused, match="'a/b' is both"):
        listing.orderly("s3://bucket", "", [Entry("a/b", 1, ""), Entry("a/b/c/d", 1, "")])
    with pytest.raises(Refused, match="twice"):
        listing.orderly("s3://bucket", "", [Entry("a", 1, ""), Entry("a", 1, "")])


def test_empty_files_are_copied_and_an_empty_source_is_refused(stage, tmp_path):
    (tmp_path / "s" / "empty directory").mkdir(parents=True)
    assert stage(tmp_path / "s").code == 2
    (tmp_path / "s" / "empty").touch()
    assert contents(stage(tmp_path / "s").path) == {"empty": b""}
    ended = stage(tmp_path / "s", "--include=*.jpg")
    assert ended.code == 2 and "no file that matches '*.jpg'" in ended.said


def test_include_takes_what_matches(stage, source):
    assert set(contents(stage(source, "--include=*/small[01],large1").path)) == {
        "below/small0",
        "below/small1",
        "large1",
    }


def write_manifest(source: Path, **changes) -> None:
    row = {"file": "large0", "records": 1, "bytes": LARGE}
    row["crc32"] = zlib.crc32((source / "large0").read_bytes())
    manifest = {"schema": 1, "splits": {"train": [row | changes]}}
    (source / "manifest.json").write_text(json.dumps(manifest))


def test_a_manifest_is_held_to(stage, source):
    write_manifest(source)
    assert stage(source).code == 0
    write_manifest(source, file="lost")
    ended = stage(source)
    assert ended.code == 2 and "manifest.json names 'lost'" in ended.said
    write_manifest(source, bytes=5)
    assert "manifest.json says 5" in stage(source).said
    write_manifest(source, crc32=1)
    ended = stage(source)
    assert ended.code == 1 and "large0: the content does not match its checksum" in ended.said
    (source / "manifest.json").write_text("{")
    assert "half written" in stage(source).said


def test_an_unfinished_job_of_spark_is_refused(stage, source):
    (source / "_temporary").mkdir()
    (source / "_temporary" / "0").touch()
    assert "its job is not done" in stage(source).said
    (source / "_SUCCESS").touch()
    assert stage(source).code == 0


@pytest.mark.parametrize("where", ["in the source", "here"])
def test_a_list_of_sums_is_held_to(stage, source, tmp_path, where):
    names = ["large0", "below/small1"]
    text = subprocess.run(["sha256sum", *names], cwd=source, capture_output=True).stdout.decode()
    sums = (source if where == "in the source" else tmp_path) / "SHA256SUMS"
    flag = f"--checksums={'SHA256SUMS' if where == 'in the source' else sums}"
    sums.write_text(text)
    assert stage(source, flag).code == 0
    for line, name in zip(text.splitlines(), names, strict=True):
        sums.write_text(text.replace(line, f"{'0' * 64}  {name}"))
        ended = stage(source, flag)
        assert ended.code == 1 and f"{name}: the content does not match" in ended.said
    sums.write_text(text + text.replace("large0", "lost"))
    assert "names 'lost'" in stage(source, flag).said
    sums.write_text("nonsense")
    assert stage(source, flag).code == 2


def test_an_archive_is_held_to_its_manifest(stage, source, tmp_path):
    write_manifest(source)
    archive = tmp_path / "set.tar"
    subprocess.run(["tar", "-cf", archive, "-C", source, "."], check=True)
    ended = stage(archive, "--untar")
    assert ended.code == 0 and contents(ended.path) == contents(source)
    assert stage(archive, "--untar").report["copied"] == 0
    (ended.path / "large1").write_bytes(b"")
    ended = stage(archive, "--untar")
    assert ended.report["copied"] == 1 and contents(ended.path) == contents(source)
    write_manifest(source, file="lost")
    subprocess.run(["tar", "-cf", archive, "-C", source, "."], check=True)
    assert "manifest.json names 'lost'" in stage(archive, "--untar").said
    assert contents(stage(archive).path) == {"set.tar": archive.read_bytes()}
    assert stage(archive, "--untar", "--include=x").code == 2
    assert stage(archive, "--untar", "--checksums=x").code == 2
    assert stage(source, "--untar").code == 2
