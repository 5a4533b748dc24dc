"""Archives are unpacked as they come, and a hostile one leads nowhere."""

import gzip
import io
import random
import tarfile
from pathlib import Path

import pytest
from servers import Fault, S3Bucket, moto, proxy, s3_environment

from {{cookiecutter.package_name}}.errors import RunFailed, UserError
from {{cookiecutter.package_name}}.staging import retrying
from {{cookiecutter.package_name}}.staging.staging import stage

FILES = {
    "train/a b.bin": random.Random(1).randbytes(300_000),
    "train/ü.bin": random.Random(2).randbytes(3 << 20),
    "train/empty": b"",
    "n" * 200: b"a name that needs a header of its own",
}


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields) -> tarfile.TarInfo:
    """A header."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def archive(*members: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> bytes:
    """A tar of these headers and contents."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def of_files(files: dict[str, bytes], prefix: str = "", mode: str = "w") -> bytes:
    """A tar of files, with the directories that tar would write."""
    folders = sorted({name.rpartition("/")[0] for name in files} - {""})
    begin = [(member(prefix, tarfile.DIRTYPE), b"")] if prefix else []
    begin += [(member(f"{prefix}{folder}/", tarfile.DIRTYPE), b"") for folder in folders]
    return archive(*begin, *((member(prefix + n), c) for n, c in files.items()), mode=mode)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.001)


@pytest.fixture
def unpacked(tmp_path):
    """Stages an archive's bytes; gives what came, by path."""

    def run(content: bytes, name: str = "set.tar") -> dict[str, bytes]:
        (tmp_path / name).write_bytes(content)
        return unpack(str(tmp_path / name), tmp_path / "scratch")

    run.scratch = tmp_path / "scratch"
    return run


def unpack(url: str, scratch: Path) -> dict[str, bytes]:
    scratch.mkdir(exist_ok=True)
    staged = stage(url, scratch=str(scratch), untar=True, allow_shared=True, reserve=0)
    staged.close()
    found = (path for path in staged.path.rglob("*") if path.is_file())
    return {path.relative_to(staged.path).as_posix(): path.read_bytes() for path in found}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_an_archive_is_unpacked(unpacked, suffix, prefix):
    content = of_files(FILES, prefix, f"w:{suffix[1:]}")
    assert unpacked(content, f"set.tar{suffix}") == FILES


@pytest.mark.parametrize("kind", ["bz2", "xz"])
def test_other_compressions_of_the_standard_library_are_read(tmp_path, kind):
    """By their first bytes, whatever the name."""
    (tmp_path / "set.tar").write_bytes(of_files(FILES, mode=f"w:{kind}"))
    assert unpack(str(tmp_path / "set.tar"), tmp_path / "scratch") == FILES


def test_an_archive_of_an_object_store_is_unpacked_as_it_comes(tmp_path, monkeypatch):
    with moto() as port, proxy(port) as between:
        for name, value in s3_environment(between.url).items():
            monkeypatch.setenv(name, value)
        bucket = S3Bucket(between, f"bucket-{random.getrandbits(48):x}")
        content = of_files({**FILES, "big.bin": random.Random(3).randbytes(20 << 20)})
        bucket.put("d/set.tar", content)
        fault = Fault("set.tar", after=3, cut=1000)
        between.faults.append(fault)
        found = unpack(f"{bucket.url}/d/set.tar", tmp_path / "scratch")
    assert fault.times == 0
    assert found == {**FILES, "big.bin": random.Random(3).randbytes(20 << 20)}


LINK = {"linkname": "/etc/passwd"}
HOSTILE = {
    "above": [(member("../x"), b"x")],
    "above, inside": [(member("a/../../x"), b"x")],
    "absolute": [(member("/tmp/x"), b"x")],
    "a directory above": [(member("../d", tarfile.DIRTYPE), b"")],
    "a symbolic link": [(member("x", tarfile.SYMTYPE, **LINK), b"")],
    "a hard link": [(member("x", tarfile.LNKTYPE, **LINK), b"")],
    "a link, then a file through it": [
        (member("d", tarfile.SYMTYPE, linkname=".."), b""),
        (member("d/x"), b"x"),
    ],
    "a device": [(member("x", tarfile.CHRTYPE, devmajor=1, devminor=5), b"")],
    "a pipe": [(member("x", tarfile.FIFOTYPE), b"")],
    "twice": [(member("x"), b"1"), (member("x"), b"2")],
    "twice, by another spelling": [(member("x"), b"1"), (member("./x"), b"2")],
    "below a file": [(member("x"), b"1"), (member("x/y"), b"2")],
    "a file, then a directory": [(member("x/y"), b"1"), (member("x"), b"2")],
    "a name with a NUL": [(member("x", pax_headers={"path": "a\0b"}), b"x")],
    "too long": [(member("y" * 300), b"x")],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused(unpacked, kind):
    with pytest.raises(UserError) as error:
        unpacked(archive(*HOSTILE[kind], mode="w"))
    assert "\n" not in str(error.value) and "set.tar" in str(error.value)
    assert not unpacked.scratch.with_name("x").exists()
    assert not list(unpacked.scratch.rglob("*.part"))


def test_a_bomb_is_refused_before_it_has_grown(unpacked):
    """100 MB of zeros come of 100 kB; the disk never sees a third of them."""
    bomb = gzip.compress(of_files({"zeros": bytes(100 << 20)}))
    assert len(bomb) * 100 < 100 << 20
    with pytest.raises(UserError, match="bomb"):
        unpacked(bomb, "set.tar.gz")
    assert sum(path.stat().st_size for path in unpacked.scratch.rglob("*")) < 1 << 20


@pytest.mark.parametrize("kind", ["pax", "GNU"])
def test_a_huge_header_is_refused(unpacked, kind):
    """tarfile reads it into memory, and some versions take the square of its length."""
    huge = "0" * (100 << 10)
    info = member("x", pax_headers={"comment": huge}) if kind == "pax" else member(huge)
    file = io.BytesIO()
    form = tarfile.PAX_FORMAT if kind == "pax" else tarfile.GNU_FORMAT
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        tar.addfile(info)
    with pytest.raises(UserError, match=r"a header of \d+ bytes"):
        unpacked(file.getvalue())


def test_text_that_compresses_well_is_no_bomb(unpacked):
    files = {"labels.tsv": b"".join(b"%d\tn%d.jpg\n" % (i % 1000, i) for i in range(2_000_000))}
    assert unpacked(gzip.compress(of_files(files)), "set.tar.gz") == files


def whole() -> bytes:
    return of_files({"a": random.Random(1).randbytes(4096), "b": random.Random(2).randbytes(4096)})


def spoiled(content: bytes, at: int) -> bytes:
    at %= len(content)
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def of_whole_blocks() -> bytes:
    """An archive that ends where tarfile's last read does: what follows it would go unread."""
    size = 2 << 20
    return archive((member("a"), random.Random(1).randbytes(size - 512 - 1024)))[:size]


DAMAGED = {
    "cut within a file": whole()[:3000],
    "cut within a header": whole()[: 4608 + 100],
    "cut between two files": whole()[:4608],
    "cut before the end mark": whole()[:9216],
    "a damaged header": spoiled(whole(), 4608 + 5),
    "no archive": b"<html>" * 1000,
    "cut gzip": gzip.compress(whole())[:-20],
    "gzip with a wrong checksum": spoiled(gzip.compress(whole()), -8),
    "the same, unread": spoiled(gzip.compress(of_whole_blocks()), -8),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_archive_is_an_error(unpacked, kind):
    """tarfile takes some of these for whole archives that end early."""
    with pytest.raises(RunFailed, match=r"set\.tar"):
        unpacked(DAMAGED[kind])
    assert not list(unpacked.scratch.rglob("COMPLETE.json"))


def test_an_archive_without_bytes_is_refused(unpacked):
    with pytest.raises(UserError, match="empty"):
        unpacked(b"")


def test_a_directory_is_no_archive(tmp_path):
    (tmp_path / "set.tar").mkdir()
    for name in "ab":
        (tmp_path / "set.tar" / name).write_bytes(b"x")
    with pytest.raises(UserError, match="not an archive"):
        unpack(str(tmp_path / "set.tar"), tmp_path / "scratch")
