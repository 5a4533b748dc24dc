"""The data sets that are measured: one set of photos, in every form that a contender reads."""

import dataclasses
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measuring import call

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "{{cookiecutter.project_slug}}" / "src" / "{{cookiecutter.package_name}}"
IN_PLACE = "package_in_place"  # the name it is imported by, as its folder's is no identifier
HEADER, FOOTER = 12, 4  # bytes of a TFRecord around its data; the length comes first


@dataclasses.dataclass(frozen=True)
class Sets:
    """Where the photos are, in each form.

    Attributes:
      path: directories to import the package from.
      originals: `--data` of the originals as this project reads them best.
      folder: directory of class directories, the same bytes in files.
      jpeg, raw: directories that `prepare` made.
      jpeg_files: the prepared JPEGs in files, for the limit.
      cache_dir: where synthetic photos are kept.
    """

    path: tuple[str, ...]
    originals: str
    folder: Path
    jpeg: Path
    raw: Path
    jpeg_files: Path
    cache_dir: str

    @property
    def training_folder(self) -> Path:
        """What the file-based peers read: the class directories of the training split."""
        train = self.folder / "train"
        return train if train.is_dir() else self.folder


def make_sets(
    build: Path, photos: Path | None, count: int, cache_dir: Path | None, prepared: Path | None
) -> Sets:
    """Makes what is not there yet, and reads all of it once, so that the page cache holds it.

    Args:
      build: directory for everything that is made.
      photos: anyone's own class directories; None for the synthetic photos.
      count: how many of those.
      cache_dir: where they are kept.
      prepared: directory of jpeg256/ and raw256/, if they exist already.

    Raises:
      Failed: a step failed.
    """
    build.mkdir(parents=True, exist_ok=True)
    path = (str(package_in_place(build)),)
    cache = str(cache_dir or build / "cache")
    if photos:
        folder, originals = photos.resolve(), f"folder:{photos.resolve()}"
        name = f"{folder.name}-{zlib.crc32(str(folder).encode()):08x}"
    else:
        name, originals = f"synthetic-{count}", f"synthetic:{count}"
        folder = build / f"{name}-photos"
        whole(folder, lambda partial: export(path, originals, partial, cache))
    prepared = prepared or build / f"{name}-prepared"
    for kind in ("jpeg", "raw"):
        if not (prepared / f"{kind}256" / "manifest.json").exists():
            say(f"preparing {prepared / f'{kind}256'}")
            command = [*prepare_command(originals, kind, cache), str(prepared / f"{kind}256")]
            environment = os.environ | {"PYTHONPATH": path[0], "PYTHONDONTWRITEBYTECODE": "1"}
            subprocess.run([sys.executable, *command], check=True, env=environment)
    jpeg, raw = prepared / "jpeg256", prepared / "raw256"
    files = build / f"{name}-prepared-files"
    whole(files, lambda partial: export(path, f"records:{jpeg}", partial, cache))
    for directory in (folder, jpeg, raw, files, Path(cache)):
        warm_page_cache(directory)
    return Sets(path, originals, folder, jpeg, raw, files, cache)


def prepare_command(source: str, kind: str, cache_dir: str) -> list[str]:
    """What Python is called with to prepare a source; the directory to make follows."""
    return ["-m", f"{IN_PLACE}.prepare", f"--format={kind}", f"--cache_dir={cache_dir}", source]


def package_in_place(build: Path) -> Path:
    """A directory that holds the generated package under a name that can be imported."""
    link = build / "import" / IN_PLACE
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(PACKAGE)
    return link.parent


def reshard(source: Path, target: Path, records: int, shards: int) -> None:
    """Writes TFRecord data set `target`: so many of `source`'s training records, over and over.

    Args:
      source: a prepared data set in JPEG.
      target: the directory to make.
      records: how many to write.
      shards: how many files to spread them over, evenly.
    """
    manifest = json.loads((source / "manifest.json").read_text())
    paths = [source / row["file"] for row in manifest["splits"]["train"]]
    endless = (record for _ in iter(int, 1) for record in framed(paths))

    def write(partial: Path) -> None:
        partial.mkdir(parents=True)
        rows = []
        for shard in range(shards):
            count = records * (shard + 1) // shards - records * shard // shards
            content = b"".join(next(endless) for _ in range(count))
            name = f"train-{shard:05}.tfrecord"
            (partial / name).write_bytes(content)
            row = {"file": name, "records": count, "bytes": len(content)}
            rows.append(row | {"crc32": zlib.crc32(content)})
        held = manifest["splits"]["validation"]
        for row in held:
            shutil.copy(source / row["file"], partial / row["file"])
        splits = {"train": rows, "validation": held}
        (partial / "manifest.json").write_text(json.dumps(manifest | {"splits": splits}))

    whole(target, write)


def framed(paths: list[Path]) -> Iterator[bytes]:
    """The records of TFRecord files as they lie there, lengths and checksums included."""
    for path in paths:
        content, position = path.read_bytes(), 0
        while position < len(content):
            (length,) = struct.unpack_from("<Q", content, position)
            end = position + HEADER + length + FOOTER
            yield content[position:end]
            position = end


def whole(directory: Path, write: Any) -> None:
    """Has `write(partial)` make a directory that is there whole or not at all."""
    if directory.exists():
        return
    say(f"making {directory}")
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial)
    partial.rename(directory)


def export(path: tuple[str, ...], data: str, directory: Path, cache: str) -> None:
    log = directory.with_suffix(".log")
    call("peers.ours", "export", log, path, data=data, directory=str(directory), cache_dir=cache)
    log.unlink()


def warm_page_cache(directory: Path) -> None:
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            file.read_bytes()


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
