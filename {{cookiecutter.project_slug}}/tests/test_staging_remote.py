"""What is staged from S3, Google Cloud Storage and the web is right, or is not there."""

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import servers

from {{cookiecutter.package_name}}.errors import RunFailed, UserError
from {{cookiecutter.package_name}}.staging import reading, retrying
from {{cookiecutter.package_name}}.staging.opening import open_source
from {{cookiecutter.package_name}}.staging.source import SourceChanged, Transient
from {{cookiecutter.package_name}}.staging.staging import stage

Fault = servers.Fault
BIG = 24 << 20  # bytes; read in three ranges
PACKAGE = "{{cookiecutter.package_name}}"


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that are nowhere alike."""
    return random.Random(seed).randbytes(size)


@pytest.fixture(scope="module")
def s3_port():
    with servers.moto() as port:
        yield port


@pytest.fixture(scope="module")
def gcs_port():
    with servers.fake_gcs() as port:
        yield port


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Retries follow at once, unless a server asks for time."""
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.01)
    for name in ("AWS_PROFILE", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def s3(s3_port, monkeypatch, tmp_path):
    with servers.proxy(s3_port) as proxy:
        for name, value in servers.s3_environment(proxy.url).items():
            monkeypatch.setenv(name, value)
        yield servers.S3Bucket(proxy, f"bucket-{random.getrandbits(48):x}")


@pytest.fixture
def gcs(gcs_port, monkeypatch):
    with servers.proxy(gcs_port) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        yield servers.GCSBucket(proxy, f"bucket-{random.getrandbits(48):x}")


@pytest.fixture
def web(tmp_path):
    root = tmp_path / "served"
    root.mkdir()
    with servers.files(root) as port, servers.proxy(port) as proxy:
        yield servers.WebFiles(proxy, root)


@pytest.fixture(params=["s3", "gcs", "web"])
def source(request):
    """(bucket, a function that gives the URL of one object of it)."""
    bucket = request.getfixturevalue(request.param)
    return bucket, lambda name: f"{bucket.url}/{name}"


@pytest.fixture(params=["s3", "gcs"])
def store(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def staged(tmp_path):
    """Stages to a scratch directory of its own; what was said is in `staged.said`."""

    def run(url: str, **options):
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        options = {"scratch": str(scratch), "allow_shared": True, "reserve": 0, **options}
        run.result = stage(url, say=run.said.append, **options)
        run.result.close()
        return run.result

    run.said = []
    run.scratch = tmp_path / "scratch"
    return run


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    found = (file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in found}


def finals(scratch: Path, name: str) -> list[Path]:
    """Whatever has this file name, or is a part of a file, below scratch."""
    return [*scratch.rglob(name), *scratch.rglob("*.part")]


def manifest_of(files: dict[str, bytes]) -> bytes:
    """The manifest of a prepared data set with these shards."""
    shards = [
        {"file": name, "records": 1, "bytes": len(content), "crc32": zlib.crc32(content)}
        for name, content in files.items()
    ]
    return json.dumps({"schema": 1, "splits": {"train": shards}}).encode()


# What comes


def test_all_objects_come_whatever_their_names(store, staged):
    files = {
        "a b.bin": noise(1000, 1),
        "100%25+.bin": noise(1001, 2),
        "what?#.bin": noise(1002, 3),
        "-x/ü€.bin": noise(1003, 4),
        "deep/er/.hidden": noise(1004, 5),
        "y" * 200: noise(1005, 6),
        "_SUCCESS": b"",
        "medium.bin": noise(3 << 20, 7),
        "big.bin": noise(BIG + 12345, 8),
    }
    for name, content in files.items():
        store.put(f"train/{name}", content)
    store.put("train2/other.bin", b"not below train/")
    result = staged(f"{store.url}/train")
    assert contents(result.path) == files
    assert (result.files, result.copied, result.retries) == (len(files), len(files), 0)


def test_a_marker_of_a_directory_is_no_file(store, staged):
    store.put("train/", b"")
    store.put("train/a/", b"")
    store.put("train/a/x.bin", b"x")
    assert contents(staged(f"{store.url}/train").path) == {"a/x.bin": b"x"}


def test_one_object_can_be_named(source, staged):
    bucket, url = source
    bucket.put("d/one.bin", noise(BIG))
    assert contents(staged(url("d/one.bin")).path) == {"one.bin": noise(BIG)}


def test_include_chooses(store, staged):
    store.put("d/a.tfrecord", b"a")
    store.put("d/b.txt", b"b")
    assert contents(staged(f"{store.url}/d", include="*.tfrecord").path) == {"a.tfrecord": b"a"}


def test_an_object_put_in_parts_comes(s3, staged):
    parts = [noise(5 << 20, 1), noise(1 << 20, 2)]
    s3.put_in_parts("d/parts.bin", parts)
    assert contents(staged(f"{s3.url}/d").path) == {"parts.bin": b"".join(parts)}


def test_a_prepared_data_set_comes_by_its_manifest(web, staged):
    files = {"train-0.tfrecord": noise(300_000, 1), "train-1.tfrecord": noise(BIG, 2)}
    manifest = manifest_of(files)
    for name, content in {**files, "manifest.json": manifest}.items():
        web.put(f"set/{name}", content)
    result = staged(f"{web.url}/set/manifest.json")
    assert contents(result.path) == {**files, "manifest.json": manifest}


def test_equal_names_in_two_buckets_are_two_data_sets(s3, staged):
    other = servers.S3Bucket(s3.proxy, f"{s3.name}-2")
    s3.put("d/x.bin", b"first")
    other.put("d/x.bin", b"other")
    first, second = staged(f"{s3.url}/d"), staged(f"{other.url}/d")
    assert contents(first.path) == {"x.bin": b"first"}
    assert contents(second.path) == {"x.bin": b"other"}


def test_the_same_content_written_again_is_not_copied_again(s3, staged):
    """The ETag tells the version, not a clock that may be wrong."""
    s3.put("d/x.bin", noise(1000))
    staged(f"{s3.url}/d")
    time.sleep(1.1)  # S3's times are in seconds
    s3.put("d/x.bin", noise(1000))
    s3.proxy.gets.clear()
    again = staged(f"{s3.url}/d")
    assert (again.reused, again.copied, s3.proxy.gets) == (1, 0, [])


def test_eight_at_once_fetch_each_object_once(s3, tmp_path):
    files = {f"f{i}.bin": noise(50_000, i) for i in range(20)}
    for name, content in files.items():
        s3.put(f"d/{name}", content)
    s3.proxy.latency = 0.02
    runs = [start(f"{s3.url}/d", tmp_path) for _ in range(8)]
    paths = {run.communicate(timeout=60)[0].strip() for run in runs}
    assert [run.returncode for run in runs] == [0] * 8
    assert len(paths) == 1 and contents(Path(paths.pop())) == files
    fetched = [path.partition("?")[0].rpartition("/")[2] for _, path, _ in s3.proxy.gets]
    assert sorted(fetched) == sorted(files)


def start(url: str, scratch: Path, *flags: str) -> "subprocess.Popen[str]":
    """The command in a process of its own."""
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", f"{PACKAGE}.stage", url, f"--scratch={scratch}"]
    command += ["--allow_shared", "--reserve=0", *flags]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=dict(os.environ))


# What goes wrong on the way


@pytest.mark.parametrize("size", [200_000, BIG], ids=["small", "big"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault("x.bin", cut=150_000),
        Fault("x.bin", short=1000),
        Fault("x.bin", short=1000, chunked=True),
        Fault("x.bin", flip=100_000),
        Fault("x.bin", status=500),
        Fault("x.bin", status=429),
    ],
    ids=["cut", "short", "chunked", "flipped", "500", "429"],
)
def test_what_goes_wrong_now_and_then_is_tried_again(source, staged, fault, size):
    bucket, url = source
    bucket.put("d/x.bin", noise(size))
    fault = Fault(**{**vars(fault), "times": 2})
    name = "d/x.bin"
    if bucket.url.startswith("http"):  # a file on the web has a checksum in a manifest alone
        bucket.put("d/manifest.json", manifest_of({"x.bin": noise(size)}))
        name = "d/manifest.json"
    bucket.proxy.faults.append(fault)
    assert contents(staged(url(name)).path)["x.bin"] == noise(size)
    assert fault.times == 0


@pytest.mark.parametrize("size", [200_000, BIG], ids=["small", "big"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault("x.bin", cut=150_000),
        Fault("x.bin", short=1000),
        Fault("x.bin", short=1000, chunked=True),
        Fault("x.bin", flip=100_000),
        Fault("x.bin", status=503),
    ],
    ids=["cut", "short", "chunked", "flipped", "503"],
)
def test_what_goes_wrong_always_is_an_error_and_no_file(source, staged, fault, size):
    bucket, url = source
    bucket.put("d/x.bin", noise(size))
    name = "d/x.bin"
    if bucket.url.startswith("http"):
        bucket.put("d/manifest.json", manifest_of({"x.bin": noise(size)}))
        name = "d/manifest.json"
    bucket.proxy.faults.append(Fault(**{**vars(fault), "times": -1}))
    with pytest.raises(RunFailed, match="tries"):
        staged(url(name))
    assert finals(staged.scratch, "x.bin") == []


def test_a_big_object_that_was_cut_is_not_fetched_again_from_its_begin(source, staged):
    bucket, url = source
    bucket.put("x.bin", noise(BIG))
    bucket.proxy.faults.append(Fault("x.bin", after=2, cut=1000))
    result = staged(url("x.bin"))
    assert contents(result.path) == {"x.bin": noise(BIG)}
    ranges = [asked for _, _, asked in bucket.proxy.gets if asked != "bytes=0-0"]
    assert len(ranges) == 4 and len(set(ranges)) == 3


# Large objects of which there are many come through one connection each


@pytest.fixture
def one_is_many(monkeypatch):
    """As if one object kept the network busy."""
    monkeypatch.setattr(reading, "AHEAD", 2)


def asked(bucket: Any) -> list[str]:
    """The ranges asked for, without what a listing on the web asks for."""
    return [ranged for _, _, ranged in bucket.proxy.gets if ranged != "bytes=0-0"]


@pytest.fixture
def place(source):
    """(bucket, URL of the directory or file d/x.bin, requests of x.bin that list it)."""
    bucket, url = source
    on_the_web = bucket.url.startswith("http")
    return bucket, url("d/x.bin" if on_the_web else "d"), int(on_the_web)


def test_many_large_objects_are_asked_for_once_each(store, staged, monkeypatch):
    monkeypatch.setattr(reading, "AHEAD", 4)
    files = {name: noise(BIG, number) for number, name in enumerate(("x.bin", "y.bin"))}
    for name, content in files.items():
        store.put(f"d/{name}", content)
    assert contents(staged(f"{store.url}/d").path) == files
    assert asked(store) == [f"bytes=0-{BIG - 1}"] * 2


@pytest.mark.parametrize(
    ("fault", "again"),
    [
        (Fault("x.bin", cut=(5 << 20) + 1000), f"bytes={5 << 20}-{BIG - 1}"),
        (Fault("x.bin", short=1000), f"bytes={BIG - (1 << 20)}-{BIG - 1}"),
        (Fault("x.bin", short=1000, chunked=True), f"bytes={BIG - (1 << 20)}-{BIG - 1}"),
        (Fault("x.bin", status=503), f"bytes=0-{BIG - 1}"),
    ],
    ids=["cut", "short", "chunked", "503"],
)
def test_a_stream_is_continued_where_it_was_cut(place, staged, one_is_many, fault, again):
    bucket, url, after = place
    bucket.put("d/x.bin", noise(BIG))
    fault = Fault(**{**vars(fault), "after": after})
    bucket.proxy.faults.append(fault)
    assert contents(staged(url).path) == {"x.bin": noise(BIG)}
    assert fault.times == 0
    assert asked(bucket) == [f"bytes=0-{BIG - 1}", again]


def test_a_stream_with_a_wrong_byte_is_fetched_again(store, staged, one_is_many):
    store.put("d/x.bin", noise(BIG))
    fault = Fault("x.bin", flip=3 << 20)
    store.proxy.faults.append(fault)
    result = staged(f"{store.url}/d")
    assert contents(result.path) == {"x.bin": noise(BIG)}
    assert (fault.times, result.retries) == (0, 1)


def test_a_stream_that_is_always_cut_is_an_error_and_no_file(place, staged, one_is_many):
    bucket, url, after = place
    bucket.put("d/x.bin", noise(BIG))
    bucket.proxy.faults.append(Fault("x.bin", times=-1, after=after, cut=1000))
    with pytest.raises(RunFailed, match="tries"):
        staged(url)
    assert finals(staged.scratch, "x.bin") == []


def test_an_object_replaced_before_its_stream_is_continued_is_not_mixed(place, staged, one_is_many):
    bucket, url, after = place
    old, new = noise(BIG, 1), noise(BIG, 2)
    bucket.put("d/x.bin", old)
    bucket.proxy.faults.append(Fault("x.bin", after=after, cut=10 << 20))
    swap = Fault("x.bin", after=after, act=lambda: bucket.put("d/x.bin", new))
    bucket.proxy.faults.append(swap)
    result = staged(url)
    assert swap.times == 0
    assert contents(result.path)["x.bin"] == new
    assert any("changed" in line for line in staged.said)


def test_a_stream_gives_no_version_but_the_listed(source, one_is_many):
    bucket, url = source
    bucket.put("d/x.bin", noise(BIG, 1))
    with contextlib.closing(open_source(url("d/x.bin"))) as opened:
        (entry,) = opened.list()
        opened.expect([entry], 1)
        bucket.proxy.faults.append(Fault("x.bin", cut=10 << 20))
        blocks = opened.fetch(entry, threading.Event())
        next(blocks)
        bucket.put("d/x.bin", noise(BIG, 2))
        with pytest.raises(SourceChanged, match=r"x\.bin"):
            list(blocks)


def test_the_last_of_many_goes_over_to_ranges(store, monkeypatch):
    monkeypatch.setattr(reading, "AHEAD", 4)
    monkeypatch.setattr(reading, "CHANGE", 1 << 20)
    for name in "xy":
        store.put(f"d/{name}", noise(BIG, ord(name)))
    with contextlib.closing(open_source(f"{store.url}/d")) as opened:
        x, y = opened.list()
        opened.expect([x, y], 2)
        blocks = opened.fetch(x, threading.Event())
        content = bytes(next(blocks))
        assert fetch(opened, y) == noise(BIG, ord("y"))
        assert content + b"".join(map(bytes, blocks)) == noise(BIG, ord("x"))
    starts = sorted(int(ranged.removeprefix("bytes=").partition("-")[0]) for ranged in asked(store))
    assert starts == [0, 0, *(at << 20 for at in (1, 9, 17))]


def test_a_server_is_given_the_time_it_asks_for(source, staged):
    bucket, url = source
    bucket.put("d/x.bin", noise(1000))
    kind = bucket.url.partition(":")[0]
    if kind == "s3":  # of a small object's first try the headers are not seen
        bucket.proxy.faults.append(Fault("x.bin", status=503))
    after = 1 if kind == "http" else 0  # the first byte, asked for by the listing
    bucket.proxy.faults.append(Fault("x.bin", after=after, status=503, retry_after="2"))
    result = staged(url("d/x.bin") if kind == "http" else url("d"))
    assert contents(result.path) == {"x.bin": noise(1000)}
    times = [moment for moment, _, _ in bucket.proxy.gets]
    assert max(later - sooner for sooner, later in itertools.pairwise(times)) >= 2


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (401, ""), (400, "ExpiredToken"), (451, "")]
)
def test_what_will_not_change_is_said_at_once(source, staged, status, code):
    bucket, url = source
    bucket.put("d/x.bin", noise(1000))
    after = 1 if bucket.url.startswith("http") else 0
    bucket.proxy.faults.append(Fault("x.bin", times=-1, after=after, status=status, code=code))
    with pytest.raises(UserError) as error:
        staged(url("d/x.bin"))
    assert f"{status}" in str(error.value) and code in str(error.value)
    assert_no_secret(str(error.value))
    # Of S3's small objects the second request is the one whose answer is understood.
    assert len(bucket.proxy.gets) <= 2


def assert_no_secret(text: str) -> None:
    for secret in (servers.KEY, servers.SECRET, "Signature", "Credential", "pa55", "t0ken"):
        assert secret not in text


def test_what_is_not_there_is_said_at_once(source, staged):
    bucket, url = source
    bucket.put("there.bin", b"x")
    with pytest.raises(UserError, match="check the URL"):
        staged(url("nothing.bin"))
    assert len(bucket.proxy.gets) <= 1


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_bucket_that_is_not_there_is_said_at_once(s3, gcs, staged, scheme):
    with pytest.raises(UserError, match=r"404.*check the URL"):
        staged(f"{scheme}://no-such-bucket-here/d")


@pytest.mark.parametrize("status", [403, 503])
def test_a_listing_that_fails_is_judged_too(s3, staged, status):
    s3.put("d/x.bin", b"x")
    s3.proxy.faults.append(Fault("list-type", status=status, times=1))
    if status == 503:
        assert contents(staged(f"{s3.url}/d").path) == {"x.bin": b"x"}
        return
    with pytest.raises(UserError, match="403") as error:
        staged(f"{s3.url}/d")
    assert_no_secret(str(error.value))


# What changes meanwhile


def fetch(source: Any, entry: Any) -> bytes:
    """A file as its source gives it, before anything else looks at it."""
    return b"".join(map(bytes, source.fetch(entry, threading.Event())))


@pytest.mark.parametrize("size", [1000, BIG], ids=["small", "big"])
def test_a_source_gives_no_version_but_the_listed(source, size):
    bucket, url = source
    bucket.put("d/x.bin", noise(size, 1))
    with contextlib.closing(open_source(url("d/x.bin"))) as opened:
        (entry,) = opened.list()
        assert fetch(opened, entry) == noise(size, 1)
        bucket.put("d/x.bin", noise(size, 2))
        with pytest.raises(SourceChanged, match=r"x\.bin"):
            fetch(opened, entry)


def test_small_objects_of_s3_come_in_the_listed_version_or_not(s3):
    for name in "ab":
        s3.put(f"d/{name}", noise(1000, ord(name)))
    with contextlib.closing(open_source(f"{s3.url}/d")) as opened:
        entries = opened.list()
        s3.put("d/a", noise(1000, 3))
        (only,) = opened.fetch_small(entries, threading.Event())
    assert (only[0].path, only[1]) == ("b", noise(1000, ord("b")))


@pytest.mark.parametrize("fault", ["flip", "short"])
def test_small_objects_of_s3_come_whole_or_not(s3, fault):
    s3.put("d/a", noise(1000))
    s3.proxy.faults.append(Fault("d/a", **{fault: 10}))
    with contextlib.closing(open_source(f"{s3.url}/d")) as opened:
        assert list(opened.fetch_small(opened.list(), threading.Event())) == []


@pytest.mark.parametrize(
    "fault",
    [{"cut": 500}, {"short": 10}, {"short": 10, "chunked": True}],
    ids=["cut", "short", "chunked"],
)
@pytest.mark.parametrize("size", [1000, BIG], ids=["small", "big"])
def test_a_source_never_ends_a_file_early_without_an_error(source, monkeypatch, fault, size):
    monkeypatch.setattr(retrying, "TRIES", 1)
    bucket, url = source
    bucket.put("d/x.bin", noise(size))
    with contextlib.closing(open_source(url("d/x.bin"))) as opened:
        (entry,) = opened.list()
        bucket.proxy.faults.append(Fault("x.bin", times=-1, **fault))
        with pytest.raises((Transient, RunFailed), match=r"x\.bin"):
            fetch(opened, entry)


def test_an_object_replaced_between_its_ranges_is_not_mixed(source, staged):
    bucket, url = source
    old, new = noise(BIG, 1), noise(BIG, 2)
    bucket.put("d/x.bin", old)

    def act() -> None:
        time.sleep(0.5)  # the other ranges come meanwhile
        bucket.put("d/x.bin", new)

    on_the_web = bucket.url.startswith("http")
    swap = Fault("x.bin", after=3 if on_the_web else 2, act=act)
    bucket.proxy.faults.append(swap)
    result = staged(url("d/x.bin") if on_the_web else url("d"))
    assert swap.times == 0
    assert contents(result.path)["x.bin"] == new
    assert any("changed" in line for line in staged.said)


def test_a_small_object_replaced_before_its_turn_is_not_taken_for_the_listed(store, staged):
    store.put("d/a.bin", noise(1000, 1))
    store.put("d/b.bin", noise(1000, 2))
    new = {"a.bin": noise(1000, 3), "b.bin": noise(1000, 4)}

    def swap() -> None:
        for name, content in new.items():
            store.put(f"d/{name}", content)

    store.proxy.faults.append(Fault("d/", act=swap))
    assert contents(staged(f"{store.url}/d").path) == new


@pytest.mark.parametrize("change", ["added", "removed"])
def test_an_object_added_or_removed_meanwhile_is_noticed(store, staged, change):
    for name in "abc":
        store.put(f"d/{name}.bin", noise(1000, ord(name)))
    if change == "added":
        act, expected = lambda: store.put("d/d.bin", b"d"), ["a.bin", "b.bin", "c.bin", "d.bin"]
    else:
        act, expected = lambda: store.remove("d/c.bin"), ["a.bin", "b.bin"]
    store.proxy.faults.append(Fault("a.bin", act=act))
    assert sorted(contents(staged(f"{store.url}/d").path)) == expected


def test_a_source_that_changes_all_the_time_is_an_error(s3, staged):
    s3.put("d/x.bin", b"0")
    s3.proxy.faults.append(
        Fault("d/x.bin", times=-1, act=lambda: s3.put("d/x.bin", noise(9, random.getrandbits(32))))
    )
    with pytest.raises(RunFailed, match="changed during each"):
        staged(f"{s3.url}/d")


def test_an_etag_under_a_key_of_kms_is_no_md5(s3, staged):
    """With such keys the content has another MD5; here the content is turned instead."""
    s3.put("d/x.bin", noise(1000))
    header = {"x-amz-server-side-encryption": "aws:kms"}
    s3.proxy.faults.append(Fault("x.bin", times=-1, flip=10, headers=header))
    assert len(contents(staged(f"{s3.url}/d").path)["x.bin"]) == 1000


# The web


def test_a_page_that_lists_files_is_not_followed(web, staged):
    with pytest.raises(UserError, match=r"manifest\.json"):
        staged(f"{web.url}/set/")


@pytest.mark.parametrize("url", ["http://example.invalid/x.bin"])
def test_http_to_another_host_needs_checksums(staged, url):
    with pytest.raises(UserError, match="use https://"):
        staged(url)


@pytest.mark.parametrize(
    "target",
    ["file:///etc/passwd", "ftp://127.0.0.1/x", "https://127.0.0.1/x", "http://example.invalid/x"],
)
def test_a_redirect_to_elsewhere_is_refused(web, staged, target):
    web.put("x.bin", b"x")
    fault = Fault("x.bin", times=-1, status=302, headers={"Location": f"{target}?t0ken=1"})
    web.proxy.faults.append(fault)
    with pytest.raises(UserError, match="redirected") as error:
        staged(f"{web.url}/x.bin")
    assert_no_secret(str(error.value))


def test_a_redirect_within_the_scheme_is_followed_without_the_password(web, staged):
    web.put("new.bin", noise(1000))
    moved = {"Location": f"http://localhost:{web.proxy.server_address[1]}/new.bin"}
    web.proxy.faults.append(Fault("old.bin", times=-1, status=302, headers=moved))
    host = web.url.removeprefix("http://")
    result = staged(f"http://me:pa55@{host}/old.bin")
    assert contents(result.path) == {"old.bin": noise(1000)}
    asked = zip(web.proxy.gets, web.proxy.headers, strict=True)
    assert all(("authorization" in h) == ("old.bin" in get[1]) for get, h in asked)


def test_redirects_in_a_circle_end(web, staged):
    web.proxy.faults.append(Fault("x.bin", times=-1, status=302, headers={"Location": "/x.bin"}))
    with pytest.raises(UserError, match="more than 5 times"):
        staged(f"{web.url}/x.bin")
    assert len(web.proxy.gets) == 6


def test_a_shard_that_is_not_as_the_manifest_says_is_refused(web, staged):
    web.put("set/train-0.tfrecord", noise(1000, 1))
    web.put("set/manifest.json", manifest_of({"train-0.tfrecord": noise(1000, 2)}))
    with pytest.raises(RunFailed):
        staged(f"{web.url}/set/manifest.json")
    assert finals(staged.scratch, "train-0.tfrecord") == []


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_a_manifest_cannot_name_a_file_outside(web, staged, name):
    web.put("set/manifest.json", manifest_of({name: b"x"}))
    with pytest.raises(UserError, match="name"):
        staged(f"{web.url}/set/manifest.json")


def test_a_file_without_a_length_is_refused(staged):
    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"how much more was there to come?")

        def log_message(self, *args: object) -> None:
            """Quiet."""

    with servers.serving(Endless) as server, pytest.raises(UserError, match="no length"):
        staged(f"http://127.0.0.1:{server.server_address[1]}/x.bin")


def test_a_file_that_comes_encoded_is_refused(web, staged):
    web.put("x.bin", b"x")
    web.proxy.faults.append(Fault("x.bin", times=-1, headers={"Content-Encoding": "gzip"}))
    with pytest.raises(UserError, match="gzip"):
        staged(f"{web.url}/x.bin")


# Secrets, and signals


def test_secrets_are_used_but_never_written_or_said(web, s3, tmp_path):
    web.put("x.bin", noise(1000))
    s3.put("d/x.bin", noise(1000))
    host = web.url.removeprefix("http://")
    for url in (f"http://me:pa55@{host}/x.bin?sig=t0ken", f"{s3.url}/d"):
        run = start(url, tmp_path / "scratch", "--json")
        out, said = run.communicate(timeout=60)
        assert run.returncode == 0, said
        assert_no_secret(out + said)
        failing = start(url.replace("x.bin", "y.bin").replace("/d", "/e"), tmp_path / "scratch")
        out, said = failing.communicate(timeout=60)
        assert failing.returncode == 2 and "Traceback" not in said
        assert_no_secret(out + said)
    for path in (tmp_path / "scratch").rglob("*"):
        assert_no_secret(str(path))
        if path.is_file():
            assert_no_secret(path.read_bytes().decode("latin-1"))
    assert "t0ken" in web.proxy.gets[0][1] and "authorization" in web.proxy.headers[0]


def test_a_server_that_is_not_there_is_named_without_secrets(staged):
    host = f"127.0.0.1:{servers.free_port()}"
    with pytest.raises(RunFailed, match=f"http://{host}/x.bin: no connection") as error:
        staged(f"http://me:pa55@{host}/x.bin?sig=t0ken")
    assert_no_secret(str(error.value))


def test_secrets_in_a_url_of_s3_are_refused(s3, staged):
    with pytest.raises(UserError, match="AWS_ACCESS_KEY_ID") as error:
        staged(f"s3://key:pa55@{s3.name}/d")
    assert_no_secret(str(error.value))


def test_a_server_that_does_not_answer_holds_no_signal_up(source, tmp_path):
    bucket, url = source
    bucket.put("d/x.bin", noise(BIG))
    on_the_web = bucket.url.startswith("http")
    silent = Fault("x.bin", times=-1, after=int(on_the_web), act=lambda: time.sleep(50))
    bucket.proxy.faults.append(silent)
    run = start(url("d/x.bin") if on_the_web else url("d"), tmp_path / "scratch")
    wait_for(bucket.proxy)
    run.terminate()
    run.communicate(timeout=30)
    assert run.returncode == 143


def wait_for(proxy: servers.Proxy) -> None:
    """Waits until an object is asked for."""
    deadline = time.monotonic() + 30
    while not [get for get in proxy.gets if get[2] != "bytes=0-0"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
