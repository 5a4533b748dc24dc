"""Where staging writes: which directory, what is refused there, room, eviction, full disks."""

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from {{cookiecutter.package_name}} import stage as command
from {{cookiecutter.package_name}}.errors import UserError
from {{cookiecutter.package_name}}.staging import scratch
from {{cookiecutter.package_name}}.staging.local_source import LocalSource
from {{cookiecutter.package_name}}.staging.staging import stage as stage_here

MIB = 1 << 20
NAMED = ("TFSTAGE_SCRATCH", "SLURM_TMPDIR", "LOCAL_SCRATCH", "PBS_JOBFS", "JOBFS", "SLURM_JOB_ID")


@pytest.fixture
def ssd(tmp_path) -> Path:
    (tmp_path / "ssd").mkdir()
    return tmp_path / "ssd"


@pytest.fixture
def stage(ssd, capsys):
    """Stages in this process; returns (exit code, path, what it said)."""

    def run(*arguments, root: Path | None = ssd) -> tuple[int, Path, str]:
        usual = ["--allow_shared", "--reserve=0", *([f"--scratch={root}"] if root else [])]
        code = command.main([*usual, *map(str, arguments)])
        printed = capsys.readouterr()
        return code, Path(printed.out.strip() or "none"), printed.err

    return run


@pytest.fixture
def usual(monkeypatch, tmp_path):
    """The usual places of scratch directories: none but those that a test makes."""
    for name in (*NAMED, *scratch.BATCH_JOB, "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(scratch, "HABITS", (f"{tmp_path}/nvme*", f"{tmp_path}/tmp"))
    return monkeypatch


@pytest.fixture
def mounted(tmp_path):
    """Mounts a small tmpfs with the options given."""
    mounts = []

    def mount(options: str) -> Path:
        point = tmp_path / f"mounted{len(mounts)}"
        point.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", point])
        if done.returncode:
            pytest.skip("mounting a tmpfs takes root and CAP_SYS_ADMIN")
        mounts.append(point)
        return point

    try:
        yield mount
    finally:
        for point in mounts:
            subprocess.run(["umount", "-l", point], check=True)


def make(root: Path, sizes: list[int]) -> Path:
    root.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (root / f"{number:02d}").write_bytes(os.urandom(size))
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def versions(ssd: Path) -> list[Path]:
    return [p for p in ssd.glob("tfstage-*/*") if not p.name.startswith(".")]


def test_the_places_are_tried_in_their_order(usual, tmp_path):
    names = ["nvme1", "nvme0", "tmp", *NAMED[:5], "job"]
    places = {name: tmp_path / name for name in names}
    for place in places.values():
        place.mkdir()

    def found() -> str:
        return scratch.roots("", True, print)[0].parent.name

    assert found() == "nvme0"
    usual.setenv("TMPDIR", str(places["job"]))
    assert found() == "nvme0"  # TMPDIR is a local disk in batch jobs alone
    usual.setenv("LSB_JOBID", "1")
    assert found() == "job"
    for name in reversed(NAMED[:5]):
        usual.setenv(name, str(places[name]))
        assert found() == name
    assert scratch.roots(str(places["tmp"]), True, print)[0].parent.name == "tmp"


def test_a_place_that_cannot_be_written_is_passed_over_and_said(usual, mounted, tmp_path, stage):
    read_only = mounted("ro")
    (tmp_path / "nvme0").mkdir()
    source = make(tmp_path / "source", [10])
    usual.setenv("TFSTAGE_SCRATCH", str(read_only))
    code, path, said = stage(source, root=None)
    assert code == 0 and path.is_relative_to(tmp_path / "nvme0")
    assert f"{read_only}: Read-only file system" in said
    code, _, said = stage(source, root=read_only)
    assert code == 2 and "Read-only file system: choose another --scratch" in said


def test_a_place_without_room_is_passed_over(usual, mounted, tmp_path, stage):
    (tmp_path / "nvme0").symlink_to(mounted("size=1m"))
    (tmp_path / "nvme1").mkdir()
    code, path, _ = stage(make(tmp_path / "source", [2 * MIB]), root=None)
    assert code == 0 and path.is_relative_to(tmp_path / "nvme1")


def test_no_place_at_all_is_one_clear_line(usual, tmp_path, stage):
    code, _, said = stage(make(tmp_path / "source", [10]), root=None)
    assert code == 2 and said.count("\n") == 1 and "--scratch" in said


MOUNTINFO = """\
23 22 0:21 / {root} rw shared:1 - {kind} server:/export rw
24 23 0:22 / {root}/with\\040blank rw - xfs /dev/nvme0n1 rw
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
"""


@pytest.mark.parametrize(
    "kind", ["nfs4", "lustre", "gpfs", "cifs", "beegfs", "ceph", "overlay", "fuse.sshfs", "9p"]
)
def test_network_file_systems_are_refused(tmp_path, ssd, monkeypatch, kind):
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTINFO.format(root=ssd, kind=kind))
    monkeypatch.setattr(scratch, "MOUNTS", table)
    with pytest.raises(UserError, match=f"{ssd} is on {kind}, no local disk.*--allow_shared"):
        scratch.roots(str(ssd), False, print)
    assert not list(ssd.iterdir())
    assert scratch.roots(str(ssd), True, print)
    (ssd / "with blank").mkdir()
    assert scratch.roots(str(ssd / "with blank"), False, print)
    assert scratch.file_system(tmp_path) == "ext4"


def test_the_file_system_of_a_real_mount_is_known(mounted):
    assert scratch.file_system(mounted("size=1m")) == "tmpfs"


def test_a_link_in_place_of_the_directory_is_refused(ssd, tmp_path):
    (tmp_path / "theirs").mkdir()
    (ssd / f"tfstage-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match="is a link"):
        scratch.roots(str(ssd), True, print)
    assert not list((tmp_path / "theirs").iterdir())


def test_a_directory_of_another_user_is_refused(ssd):
    if os.getuid() != 0:
        pytest.skip("giving a directory to another user takes root")
    root = ssd / "tfstage-0"
    root.mkdir()
    os.chown(root, 12345, -1)
    with pytest.raises(UserError, match="belongs to user 12345"):
        scratch.roots(str(ssd), True, print)


def test_nobody_else_can_read_or_write_what_is_staged(ssd, stage, tmp_path):
    root = ssd / f"tfstage-{os.getuid()}"
    root.mkdir(mode=0o777)
    root.chmod(0o777)
    _, path, _ = stage(make(tmp_path / "source", [10]))
    assert root.stat().st_mode & 0o077 == 0
    assert (path / "00").stat().st_mode & 0o777 == 0o600


def test_a_scratch_within_the_source_is_refused(stage, tmp_path):
    source = make(tmp_path / "source", [10])
    code, _, said = stage(source, root=source)
    assert code == 2 and "lies within" in said


@pytest.mark.parametrize("options", ["size=4m", "size=64m,nr_inodes=20"])
def test_a_disk_that_cannot_hold_it_is_known_before_a_byte_is_written(
    mounted, stage, tmp_path, options
):
    disk = mounted(options)
    source = make(tmp_path / "source", [MIB // 4] * 30)
    code, _, said = stage(source, root=disk)
    assert code == 28 and "has no room" in said and "--evict would free 0 B" in said
    assert not versions(disk)


def test_blocks_count_not_bytes(mounted, stage, tmp_path):
    disk = mounted("size=1m")
    code, _, _ = stage(make(tmp_path / "source", [1] * 300), root=disk)
    assert code == 28 and not versions(disk)


def test_a_reserve_is_left_and_a_quota_is_kept_to(mounted, stage, tmp_path):
    disk = mounted("size=8m")
    source = make(tmp_path / "source", [MIB] * 4)
    assert stage(source, "--reserve=5", root=disk)[0] == 28
    assert stage(source, "--reserve=-1", root=disk)[0] == 28  # 1 GiB at least
    assert stage(source, "--quota=3", root=disk)[0] == 28
    assert stage(source, "--quota=4", root=disk)[0] == 0
    assert stage(make(tmp_path / "other", [10]), "--quota=4", root=disk)[0] == 28


def test_a_disk_that_fills_up_midway_keeps_what_is_finished(mounted, stage, tmp_path, monkeypatch):
    disk = mounted("size=16m")
    source = make(tmp_path / "source", [MIB + 1] * 8)
    fetch = LocalSource.fetch

    def fetched(self, entry, stop):
        if entry.path == "03":
            with (disk / "hog").open("wb") as hog, pytest.raises(OSError):
                while True:
                    hog.write(bytes(MIB))
        yield from fetch(self, entry, stop)

    monkeypatch.setattr(LocalSource, "fetch", fetched)
    code, _, said = stage(source, "--workers=1", root=disk)
    assert code == 28 and "No space left" in said and "kept" in said
    (version,) = versions(disk)
    assert not list((version / "parts").iterdir())
    whole = contents(version / "data.partial")
    assert whole and all(content == (source / name).read_bytes() for name, content in whole.items())
    monkeypatch.undo()
    (disk / "hog").unlink()
    code, path, said = stage(source, "--json", root=disk)
    assert code == 0 and contents(path) == contents(source)
    assert json.loads(said.splitlines()[-1])["reused"] == len(whole)


def test_the_least_recently_used_goes_first_and_never_what_is_in_use(mounted, stage, tmp_path):
    disk = mounted("size=10m")
    sets = [make(tmp_path / f"source{n}", [MIB, MIB, MIB]) for n in range(4)]
    paths = [stage(s, root=disk)[1] for s in sets[:3]]
    uses = sorted(disk.glob("tfstage-*/.locks/*.use"), key=lambda p: p.stat().st_mtime_ns)
    for number, use in enumerate(uses):
        os.utime(use, (number, number))
    with stage_here(str(sets[0]), scratch=str(disk), allow_shared=True, reserve=0):
        os.utime(uses[0], (0, 0))
        assert stage(sets[3], root=disk)[0] == 28
        code, path, said = stage(sets[3], "--evict", root=disk)
        assert code == 0 and contents(path) == contents(sets[3])
        assert [p.exists() for p in paths] == [True, False, True]
        assert f"removed {paths[1].parent.name}" in said
        code, _, said = stage("rm", sets[0], root=disk)
        assert code == 2 and "in use" in said and contents(paths[0]) == contents(sets[0])
    assert stage("rm", paths[0].parent.name, root=disk)[0] == 0
    assert not paths[0].parent.exists()


def test_what_does_not_fit_is_linked_to_the_source(mounted, stage, tmp_path):
    disk = mounted("size=4m")
    source = make(tmp_path / "source", [MIB + 1] * 6)
    code, path, said = stage(source, "--on_full=stream", "--json", root=disk)
    assert code == 0 and contents(path) == contents(source)
    report = json.loads(said.splitlines()[-1])
    assert report["rest"] == ["02", "03", "04", "05"] or report["rest"] == ["03", "04", "05"]
    assert {p.name for p in path.iterdir() if p.is_symlink()} == set(report["rest"])
    again = json.loads(stage(source, "--on_full=stream", "--json", root=disk)[2].splitlines()[-1])
    assert again["copied"] == 0 and again["rest"] == report["rest"]
    assert stage(source, root=disk)[0] == 28
    subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
    code, path, said = stage(source, "--json", root=disk)
    assert code == 0 and not any(p.is_symlink() for p in path.iterdir())
    assert json.loads(said.splitlines()[-1])["reused"] == report["files"]
    assert contents(path) == contents(source)


def test_what_is_staged_is_shown_checked_and_removed(stage, tmp_path, ssd):
    source = make(tmp_path / "source", [10, 20])
    _, path, _ = stage(source)
    key = path.parent.name
    code, _, _ = stage("ls")
    assert code == 0
    (path / "01").unlink()
    code, _, said = stage("check", source)
    assert code == 1 and str(path / "01") in said
    assert stage("rm")[0] == 2 and stage("rm", "nothing")[0] == 2
    assert stage("rm", source)[0] == 0 and not (ssd / key).exists()


def test_measuring_warns_where_nothing_is_gained(stage, tmp_path, monkeypatch):
    from {{cookiecutter.package_name}}.staging import measuring

    monkeypatch.setattr(measuring, "SIZE", 16 * MIB)
    source = make(tmp_path / "source", [MIB])
    monkeypatch.setattr(measuring, "_source_rate", lambda source, entries: 1e15)
    code, _, said = stage(source, "--measure")
    assert code == 0 and "is written at" in said and "warning" in said
    monkeypatch.undo()
    monkeypatch.setattr(measuring, "_source_rate", lambda source, entries: 1.0)
    assert "warning" not in stage(source, "--measure")[2]
    assert not list(tmp_path.glob("ssd/tfstage-*/.measure-*"))


def test_an_unwritable_part_names_the_disk(stage, tmp_path, monkeypatch):
    from {{cookiecutter.package_name}}.staging import copying

    def fail(descriptor, content):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(copying, "_write", fail)
    code, _, said = stage(make(tmp_path / "source", [10]))
    assert code == 1 and "writing 00: Input/output error" in said
