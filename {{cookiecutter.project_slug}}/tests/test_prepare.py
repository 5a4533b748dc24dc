"""`prepare`: the same bytes however it is run or killed; every kind of image and of damage."""

import contextlib
import errno
import fcntl
import io
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageDraw

from {{cookiecutter.package_name}} import prepare as command
from {{cookiecutter.package_name}}.data import tfrecord
from {{cookiecutter.package_name}}.data.records import open_records
from {{cookiecutter.package_name}}.preparation import editing, preparing, working
from {{cookiecutter.package_name}}.preparation.plan import plan

PACKAGE = command.__package__
SIZE = 16


def photo(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    """A picture whose four corners differ, so that a turned one is told from an upright one."""
    shades = np.random.default_rng(seed).integers(0, 120, (4, 3))
    image = Image.new("RGB", (width, height), tuple(int(s) for s in shades[0]))
    draw = ImageDraw.Draw(image)
    draw.rectangle([width // 2, 0, width, height // 2], fill=(250, 30, 30))
    draw.rectangle([0, height // 2, width // 2, height], fill=(30, 250, 30))
    draw.rectangle([width // 2, height // 2, width, height], fill=(30, 30, 250))
    return image


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 95} if kind == "JPEG" else {}) | options)
    return file.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """40 JPEGs to train on and 10 to validate, of two classes."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(50):
        split = "train" if number < 40 else "validation"
        path = root / split / "ab"[number % 2] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photo(40, 20 + number % 7, number)))
    return root


def with_bad(photos: Path, root: Path, name: str, data: bytes) -> Path:
    """A copy of the photos with one more file among them."""
    shutil.copytree(photos, root)
    (root / "train" / "a" / name).write_bytes(data)
    return root


def prepare(source: Path | str, target: Path, **flags) -> int:
    flags = {"size": SIZE, "shards": 4, "workers": 1, **flags}
    named = [f"--{name}={value}" for name, value in flags.items()]
    name = source if isinstance(source, str) else f"folder:{source}"
    return command.main([name, str(target), *named])


class Kept(NamedTuple):
    """A data set made with --format=keep."""

    directory: Path
    rotated: bytes  # an image among them with an orientation
    said: str


@pytest.fixture(scope="module")
def kept(photos, tmp_path_factory) -> Kept:
    exif = Image.Exif()
    exif[editing.ORIENTATION] = 6
    rotated = encoded(photo(), exif=exif)
    directory = tmp_path_factory.mktemp("kept")
    root = with_bad(photos, directory / "photos", "turned.jpg", rotated)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert prepare(root, directory / "out", format="keep") == 0
    return Kept(directory / "out", rotated, said.getvalue())


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def examples(directory: Path, split: str = "train") -> list[dict]:
    rows = json.loads((directory / "manifest.json").read_text())["splits"][split]
    return [
        tfrecord.decode_example(tfrecord.read(directory / row["file"], *span))
        for row in rows
        for span in tfrecord.spans(directory / row["file"])
    ]


def pixels(data: bytes) -> np.ndarray:
    image, _ = editing.square(data, SIZE)
    return np.asarray(image).astype(int)


# ---- what comes out


@pytest.mark.parametrize("form", ["jpeg", "raw"])
def test_the_files_do_not_depend_on_the_number_of_workers(photos, tmp_path, monkeypatch, form):
    monkeypatch.setattr(working, "CHUNK", 2)  # so that there are more tasks than are kept waiting
    for workers in (1, 2, 3):
        assert prepare(photos, tmp_path / str(workers), workers=workers, format=form) == 0
    first = contents(tmp_path / "1")
    assert len(first) == 6  # 4 shards, 1 of validation, the manifest
    assert contents(tmp_path / "2") == first
    assert contents(tmp_path / "3") == first


def test_shards_hold_every_example_once_evenly_and_shuffled_by_the_seed(photos, tmp_path):
    for name, seed in {"a": 0, "b": 1}.items():
        assert prepare(photos, tmp_path / name, seed=seed, shards=3) == 0
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert [row["records"] for row in manifest["splits"]["train"]] == [13, 13, 14]
    assert [row["records"] for row in manifest["splits"]["validation"]] == [10]
    assert manifest["classes"] == ["a", "b"]
    both = [[e["image/encoded"] for e in examples(tmp_path / name)] for name in "ab"]
    assert len(set(both[0])) == 40
    assert sorted(both[0]) == sorted(both[1])
    assert both[0] != both[1]
    held = {e["image/encoded"] for e in examples(tmp_path / "a", "validation")}
    assert len(held) == 10 and not held & set(both[0])


def test_training_reads_what_was_prepared(photos, tmp_path):
    assert prepare(photos, tmp_path / "jpeg") == 0
    assert prepare(photos, tmp_path / "raw", format="raw") == 0
    jpegs, raws = (open_records(str(tmp_path / form), 1 << 20) for form in ("jpeg", "raw"))
    assert jpegs.train.count == raws.train.count == 40
    assert jpegs.classes == raws.classes == ("a", "b")
    [jpeg] = [jpegs.train.read(*e) for e in jpegs.train.in_order().batch(40)]
    [raw] = [raws.train.read(*e) for e in raws.train.in_order().batch(40)]
    assert list(jpeg["label"]) == list(raw["label"])
    np.testing.assert_array_equal(jpeg["aspect"], raw["aspect"])
    assert {round(40 / float(aspect)) for aspect in jpeg["aspect"]} == set(range(20, 27))
    decoded = np.stack([tf.io.decode_jpeg(data) for data in jpeg["image"].numpy()])
    assert np.abs(decoded.astype(int) - raw["pixels"].numpy()).mean() < 8  # JPEG's loss alone


def test_keep_stores_the_bytes_as_they_are_and_reports_the_rotated(kept, photos):
    originals = sorted(path.read_bytes() for path in (photos / "train").rglob("*.jpg"))
    stored = sorted(e["image/encoded"] for e in examples(kept.directory))
    assert [image for image in stored if image not in originals] == [kept.rotated]
    assert len(stored) == 41
    assert "1 images ask by EXIF to be turned" in kept.said and "turned.jpg" in kept.said


def test_keep_refuses_what_training_cannot_decode(photos, tmp_path, capsys):
    root = with_bad(photos, tmp_path / "photos", "tiff.jpg", encoded(photo(), "TIFF"))
    assert prepare(root, tmp_path / "jpeg") == 0  # decodes it, whatever its name
    assert prepare(root, tmp_path / "kept", format="keep") == 2
    assert "tiff.jpg" in capsys.readouterr().err


def test_tfrecords_without_a_manifest_and_digits_are_sources_too(kept, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(kept.directory, bare)
    (bare / "manifest.json").unlink()
    for name, source in {"bare": bare, "listed": kept.directory}.items():
        assert prepare(f"records:{source}", tmp_path / f"from_{name}") == 0
    images = [
        {e["image/encoded"] for e in examples(tmp_path / f"from_{n}")} for n in ("bare", "listed")
    ]
    assert images[0] == images[1]
    assert prepare("digits", tmp_path / "digits") == 0
    assert len(examples(tmp_path / "digits")) == 1438


def test_a_prepared_set_prepared_again_keeps_the_aspect_ratios(photos, tmp_path):
    assert prepare(photos, tmp_path / "large", size=32) == 0
    assert prepare(f"records:{tmp_path / 'large'}", tmp_path / "small") == 0
    both = [sorted(e["image/aspect"] for e in examples(tmp_path / n)) for n in ("large", "small")]
    assert both[0] == both[1]
    assert len(set(both[0])) == 7


@pytest.mark.parametrize(
    ("count", "record_bytes", "train", "validation"),
    [
        (1_281_167, 32_768, 256, 8),  # ImageNet: 164 MB each
        (1_281_167, 196_608, 2048, 64),
        (4_000, 32_768, 8, 1),
        (100, 32_768, 1, 1),
        (1, 32_768, 1, 1),
    ],
)
def test_shards_are_a_power_of_two_of_useful_size(count, record_bytes, train, validation):
    counts = {"train": count, "validation": max(1, count // 26)}
    shards = plan(counts, record_bytes, 0, 0, ".tfrecord")
    sizes = {split: [len(s.members) for s in shards if s.split == split] for split in counts}
    assert (len(sizes["train"]), len(sizes["validation"])) == (train, validation)
    for split, found in sizes.items():
        assert sum(found) == counts[split]
        assert max(found) - min(found) <= 1


# ---- images as a photo editor shows them


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_is_turned_upright(orientation):
    upright = photo(60, 40)
    undo = {6: 8, 8: 6}.get(orientation, orientation)  # the turns by 90 degrees undo one another
    stored = upright.transpose(editing.TURNS[undo]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[editing.ORIENTATION] = orientation
    for kind in ("JPEG", "PNG", "TIFF"):
        image, aspect = editing.square(encoded(stored, kind, exif=exif), SIZE)
        assert aspect == 1.5
        assert np.abs(np.asarray(image).astype(int) - pixels(encoded(upright, "PNG"))).mean() < 4


def palette_with_alpha() -> bytes:
    image = photo().quantize(8, dither=Image.Dither.NONE)
    return encoded(image, "PNG", transparency=image.getpixel((0, 0)))


def half_transparent() -> bytes:
    image = photo().convert("RGBA")
    image.putalpha(0)
    return encoded(image, "PNG")


def animated(kind: str) -> bytes:
    return encoded(photo(), kind, save_all=True, append_images=[Image.new("RGB", (40, 30))])


def inverted_cmyk() -> bytes:
    """As Photoshop writes it: Pillow writes such a file with Adobe's marker, inverted, too."""
    data = encoded(photo().convert("CMYK"))
    assert b"Adobe" in data
    return data


GREY = photo().convert("L")
DEEP = Image.fromarray(np.asarray(GREY).astype(np.uint16) * 257)
WHITE = Image.new("RGB", (40, 30), "white")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(encoded(GREY), GREY, id="grey"),
        pytest.param(inverted_cmyk(), photo(), id="cmyk"),
        pytest.param(encoded(photo(), progressive=True), photo(), id="progressive"),
        pytest.param(encoded(DEEP, "PNG"), GREY, id="16-bit"),
        pytest.param(half_transparent(), WHITE, id="transparent is white"),
        pytest.param(animated("GIF"), photo(), id="first frame of a GIF"),
        pytest.param(animated("WEBP"), photo(), id="first frame of a WebP"),
        pytest.param(encoded(photo(), "BMP"), photo(), id="bmp"),
    ],
)
def test_an_image_of_any_kind_shows_what_an_editor_shows(data, expected):
    shown = pixels(data)
    assert np.abs(shown - pixels(encoded(expected.convert("RGB"), "PNG"))).mean() < 6


def test_a_transparent_colour_of_a_palette_is_white():
    shown = pixels(palette_with_alpha())
    assert (shown[2, 2] == 255).all()  # the corner that was made transparent
    assert shown[-3, -3].tolist()[2] > 200  # the blue one was not


def test_a_large_photo_is_as_sharp_as_if_it_were_decoded_whole():
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3)).astype(np.uint8)
    large = Image.fromarray(noise).resize((512, 512), Image.Resampling.BICUBIC)
    reduced, aspect = editing.square(encoded(large), 64)
    whole = large.resize((64, 64), Image.Resampling.BICUBIC)
    assert aspect == 1.0
    assert np.abs(np.asarray(reduced).astype(int) - np.asarray(whole)).mean() < 2


# ---- bad files


def bomb() -> bytes:
    """A PNG that says it has 40,000 x 40,000 pixels."""
    header = b"IHDR" + struct.pack(">II5B", 40_000, 40_000, 8, 2, 0, 0, 0)
    chunks = [header, b"IDAT" + zlib.compress(bytes(1000))]
    framed = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


WHOLE = encoded(photo(400, 300, 1))
BAD = {
    "empty": (b"", "empty"),
    "text": (b"<html>not found</html>", "no image"),
    "truncated": (WHOLE[: len(WHOLE) // 2], "truncated"),
    "bomb": (bomb(), "bomb"),
}


@pytest.mark.parametrize(("data", "reason"), BAD.values(), ids=BAD)
def test_a_bad_file_is_named_with_the_reason(photos, tmp_path, capsys, data, reason):
    root = with_bad(photos, tmp_path / "photos", "broken.jpg", data)
    assert prepare(root, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "train/a/broken.jpg" in said and reason in said and "--on_bad=skip" in said
    assert not (tmp_path / "out").exists()


def test_a_link_to_nothing_is_a_bad_file_too(photos, tmp_path, capsys):
    root = with_bad(photos, tmp_path / "photos", "whole.jpg", WHOLE)
    (root / "train" / "a" / "gone.jpg").symlink_to("nowhere.jpg")
    assert prepare(root, tmp_path / "out") == 2
    assert "gone.jpg: it cannot be read (No such file" in capsys.readouterr().err


def test_skipped_files_are_listed_and_the_shards_stay_even(photos, tmp_path, capsys):
    root = with_bad(photos, tmp_path / "photos", "broken.jpg", b"")
    (root / "train" / "b" / "short.jpg").write_bytes(BAD["truncated"][0])
    assert prepare(root, tmp_path / "out", on_bad="skip", bad_budget=0.1) == 0
    assert "2 bad records" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / preparing.BAD_RECORDS).read_text())
    assert [row["file"] for row in rows] == ["train/a/broken.jpg", "train/b/short.jpg"]
    assert "empty" in rows[0]["reason"] and "truncated" in rows[1]["reason"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [row["records"] for row in manifest["splits"]["train"]] == [10] * 4
    assert command.main(["--check", str(tmp_path / "out")]) == 0


def test_more_bad_files_than_the_budget_are_an_error(photos, tmp_path, capsys):
    root = with_bad(photos, tmp_path / "photos", "broken.jpg", b"")
    assert prepare(root, tmp_path / "out", on_bad="skip", bad_budget=0.01) == 2
    said = capsys.readouterr().err
    assert "1 of 51 records are bad" in said and "broken.jpg" in said
    assert prepare(root, tmp_path / "out", on_bad="skip", bad_budget=0.02) == 0  # and goes on


def test_a_damaged_record_is_named_with_its_shard_and_index(kept, tmp_path, capsys):
    source = tmp_path / "kept"
    shutil.copytree(kept.directory, source)
    shard = source / "train-00001-of-00004.tfrecord"
    offset, _ = list(tfrecord.spans(shard))[3]
    flip(shard, offset + 100)
    assert prepare(f"records:{source}", tmp_path / "out") == 2
    assert f"{shard}, record 3: its data fail their checksum" in capsys.readouterr().err


# ---- killed, full, in use, already there


def test_a_full_disk_is_exit_code_28_and_the_rerun_continues(photos, tmp_path, monkeypatch, capsys):
    assert prepare(photos, tmp_path / "straight") == 0
    write = preparing.write_shard

    def full(path, records):
        if path.name.startswith("train-00002"):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, records)

    monkeypatch.setattr(preparing, "write_shard", full)
    assert prepare(photos, tmp_path / "out") == 28
    assert "No space left" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    data = tmp_path / ".out.partial" / "data"
    done = {path.name: path.stat().st_ino for path in data.iterdir()}
    assert sorted(done) == [f"train-0000{i}-of-00004.tfrecord" for i in (0, 1)]
    monkeypatch.undo()
    assert prepare(photos, tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")
    for name, inode in done.items():  # kept, not written again
        assert (tmp_path / "out" / name).stat().st_ino == inode
    assert not data.parent.exists()


def half_done(photos: Path, target: Path, monkeypatch) -> Path:
    """Leaves two shards behind, as a kill would; returns the unfinished directory."""
    with monkeypatch.context() as patch:
        write = preparing.write_shard

        def killed(path, records):
            if path.name.startswith("train-00002"):
                raise KeyboardInterrupt
            return write(path, records)

        patch.setattr(preparing, "write_shard", killed)
        assert prepare(photos, target) == 130
    return target.parent / f".{target.name}.partial"


def test_unfinished_work_that_was_damaged_is_made_again(photos, tmp_path, monkeypatch):
    assert prepare(photos, tmp_path / "straight") == 0
    partial = half_done(photos, tmp_path / "out", monkeypatch)
    flip(partial / "data" / "train-00000-of-00004.tfrecord", 500)
    (partial / "data" / "train-00003-of-00004.tfrecord").write_bytes(b"half a file")
    with (partial / "journal.jsonl").open("a") as file:
        file.write('{"shard": {"file": "train-000')  # half a line
    assert prepare(photos, tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")


def test_unfinished_work_is_not_mixed_with_other_flags_or_another_source(
    photos, tmp_path, monkeypatch, capsys
):
    half_done(photos, tmp_path / "out", monkeypatch)
    assert prepare(photos, tmp_path / "out", size=20) == 2
    assert "size was 16, is 20" in capsys.readouterr().err
    changed = with_bad(photos, tmp_path / "photos", "one_more.jpg", encoded(photo()))
    assert prepare(changed, tmp_path / "out") == 2
    assert "source" in capsys.readouterr().err


def test_what_an_error_recommends_works(photos, tmp_path, monkeypatch, capsys):
    bad = with_bad(photos, tmp_path / "photos", "bad.jpg", b"no image")
    assert prepare(bad, tmp_path / "out") == 2
    assert "--on_bad=skip" in capsys.readouterr().err
    assert prepare(bad, tmp_path / "out", on_bad="skip", bad_budget=0.5) == 0
    assert "on_bad was 'error', is 'skip'" in capsys.readouterr().out
    half_done(photos, tmp_path / "other", monkeypatch)  # with shards that are finished, too
    assert prepare(photos, tmp_path / "other", on_bad="skip") == 0
    assert prepare(photos, tmp_path / "straight", on_bad="skip") == 0
    assert contents(tmp_path / "other") == contents(tmp_path / "straight")


def test_a_destination_in_use_names_its_holder(photos, tmp_path, capsys):
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    with (partial / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 7 on elsewhere")
        lock.flush()
        assert prepare(photos, tmp_path / "out") == 2
    assert "being prepared by process 7 on elsewhere" in capsys.readouterr().err
    assert prepare(photos, tmp_path / "out") == 0  # a lock file without a holder is no lock


def test_what_is_there_already_is_left_alone(photos, tmp_path, capsys):
    assert prepare(photos, tmp_path / "out") == 0
    before = contents(tmp_path / "out")
    assert prepare(photos, tmp_path / "out", workers=2) == 0
    assert "prepared already" in capsys.readouterr().out
    assert prepare(photos, tmp_path / "out", quality=80) == 2
    assert "quality 90, not 80" in capsys.readouterr().err
    assert contents(tmp_path / "out") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("3 years")
    assert prepare(photos, tmp_path / "mine") == 2
    assert sorted(os.listdir(tmp_path)) == ["mine", "out"]


@pytest.mark.slow
@pytest.mark.parametrize("on_bad", ["error", "skip"])
def test_killed_ten_times_it_ends_with_the_same_bytes(photos, tmp_path, on_bad):
    flags = ["--size=256", "--shards=8", "--workers=2", f"--on_bad={on_bad}"]

    def start(target: str) -> subprocess.Popen:
        line = [sys.executable, "-m", f"{PACKAGE}.prepare", f"folder:{photos}", target, *flags]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(line, env=environment, start_new_session=True)

    begin = time.monotonic()
    assert start(str(tmp_path / "straight")).wait() == 0
    whole = time.monotonic() - begin
    chance = random.Random(0)
    for _ in range(10):
        process = start(str(tmp_path / "out"))
        time.sleep(whole * chance.uniform(0.2, 0.9))
        process.send_signal(signal.SIGKILL)  # the parent alone: its workers must end by themselves
        process.wait()
        deadline = time.monotonic() + 20
        while in_session(process.pid):
            assert time.monotonic() < deadline, "a worker outlived its parent"
            time.sleep(0.05)
    assert start(str(tmp_path / "out")).wait() == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")
    assert sorted(os.listdir(tmp_path)) == ["out", "straight"]


def in_session(session: int) -> list[str]:
    """Processes of a session that are not dead."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(stat.parent.name)
    return found


# ---- --check


def flip(path: Path, position: int) -> None:
    """Flips one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_check_names_everything_that_is_damaged(photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert prepare(photos, out, shards=5) == 0
    assert command.main([f"--check={out}"]) == 0
    assert "whole" in capsys.readouterr().out
    shards = [out / f"train-{number:05d}-of-00005.tfrecord" for number in range(5)]
    flip(shards[0], list(tfrecord.spans(shards[0]))[2][0] + 9)  # data of record 2
    flip(shards[0], list(tfrecord.spans(shards[0]))[5][0] + 9)  # data of record 5
    flip(shards[1], list(tfrecord.spans(shards[1]))[4][0] - 12)  # length of record 4
    whole = shards[2].read_bytes()
    shards[2].write_bytes(whole[: list(tfrecord.spans(shards[2]))[6][0] + 3])
    shards[3].unlink()
    shards[4].write_bytes(shards[4].read_bytes()[: list(tfrecord.spans(shards[4]))[7][0] - 12])
    (out / "stray.tmp").write_bytes(b"")
    assert command.main([f"--check={out}"]) == 1
    said = capsys.readouterr().out
    for expected in (
        f"{shards[0]}: record 2: its data fail",
        f"{shards[0]}: record 5: its data fail",
        f"{shards[1]}: record 4: its length fails",
        f"{shards[2]}: record 6: the file ends within it; 2 records from there are lost",
        f"{shards[3]}: missing",
        f"{shards[4]}: 7 records, manifest.json says 8",
        f"{out / 'stray.tmp'}: not in manifest.json",
    ):
        assert expected in said, said


def test_check_names_the_row_of_a_raw_file(photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert prepare(photos, out, format="raw") == 0
    assert command.main([f"--check={out}"]) == 0
    flip(out / "train-00001-of-00004.raw", 3 * SIZE * SIZE * 4 + 100)
    assert command.main([f"--check={out}"]) == 1
    assert "train-00001-of-00004.raw: record 4: its pixels" in capsys.readouterr().out


# ---- the command


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "SRC and DST"),
        (["digits"], "SRC and DST"),
        (["digits", "a", "b"], "unexpected argument 'b'"),
        (["nonsense", "out"], "nonsense"),
        (["folder:/does/not/exist", "out"], "/does/not/exist"),
        (["digits", "out", "--size=0"], "size"),
        (["--check=/does/not/exist"], "/does/not/exist"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(
    arguments, expected, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    try:
        code = command.main(arguments)
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr().err
    assert code == 2
    assert said.count("\n") == 1 and expected in said
    assert os.listdir(tmp_path) == []  # nothing is left behind


def test_help_shows_the_arguments_and_preparing_photos_never_starts_tensorflow(photos, tmp_path):
    code = (
        f"import sys\nfrom {PACKAGE} import prepare\n"
        "if __name__ == '__main__':\n"
        f"    source, out = 'folder:{photos}', {str(tmp_path / 'out')!r}\n"
        "    assert prepare.main([source, out, '--size=16', '--workers=1']) == 0\n"
        "    assert prepare.main(['--check', out]) == 0\n"
        "    assert 'tensorflow' not in sys.modules\n"
        "    prepare.main(['--help'])\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "prepare SRC DST" in done.stdout


@pytest.mark.parametrize("value", [0, 127, 128, -1, 2**63 - 1, -(2**63)])
def test_an_example_is_what_tensorflow_makes_of_it(value):
    features = {"b": value, "a": 1.5, "image": b"\x00" * 300}
    kinds = {
        "b": tf.train.Feature(int64_list=tf.train.Int64List(value=[value])),
        "a": tf.train.Feature(float_list=tf.train.FloatList(value=[1.5])),
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[features["image"]])),
        "none": tf.train.Feature(),
    }
    theirs = tf.train.Example(features=tf.train.Features(feature=kinds))
    assert tfrecord.decode_example(theirs.SerializeToString()) == features
    del theirs.features.feature["none"]
    ours = tfrecord.encode_example(features)
    assert ours == theirs.SerializeToString(deterministic=True)


def test_tensorflow_reads_the_frames(tmp_path):
    path = tmp_path / "x.tfrecord"
    records = [b"", b"a", bytes(range(256)) * 9]
    path.write_bytes(b"".join(tfrecord.frame(record) for record in records))
    assert [bytes(r.numpy()) for r in tf.data.TFRecordDataset(str(path))] == records
