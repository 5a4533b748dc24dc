"""Where the records of a data set lie, so that any process can read any of them."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..data.listing import (
    SYNTHETIC_COUNT,
    existing_directory,
    list_folder,
    refuse_url,
    synthetic_directory,
    user_cache,
)
from ..data.shards import MANIFEST, read_manifest
from ..data.tfrecord import Damaged, decode_example, read, spans
from ..errors import UserError
from .editing import SUFFIXES, BadImage

KEPT_SUFFIXES = (".jpg", ".jpeg", ".png")  # what training reads from a folder


class Original(NamedTuple):
    """One record: a file, a stretch of a TFRecord file, or a few bytes in memory."""

    path: str
    number: int = -1  # the record's number in the file; -1: the file is the record
    offset: int = 0  # of the record's data in the file, bytes
    length: int = 0  # of the record's data in the file, bytes
    label: int = -1  # -1: in the record
    data: bytes = b""  # the image itself, where no file holds it

    @property
    def name(self) -> str:
        """For a message."""
        return self.path if self.number < 0 else f"{self.path}, record {self.number}"


@dataclasses.dataclass(frozen=True)
class Originals:
    """A data set to prepare.

    Attributes:
      name: of the source, the same on every machine.
      root: the directory that paths are shortened by, in reports.
      splits: the records of each split.
      classes: their names, by label.
      features: the names of image, label and perhaps aspect in the Examples of TFRecord files.
      side: of the images, where they are squares that were prepared before.
    """

    name: str
    root: str
    splits: Mapping[str, Sequence[Original]]
    classes: tuple[str, ...]
    features: Mapping[str, str]
    side: int | None = None

    def digest(self, times: bool) -> str:
        """SHA-256 of what the data set consists of: names, sizes, labels, and perhaps file times.

        Args:
          times: include when each file was last changed, which differs from machine to machine.
        """
        hashed = hashlib.sha256(json.dumps([self.classes, dict(self.features)]).encode())
        known: dict[str, tuple[int, ...]] = {}
        for split, originals in self.splits.items():
            for original in originals:
                if original.path not in known and not original.data:
                    size, changed = stat_of(original.path)
                    known[original.path] = (size, changed if times else 0)
                row = (split, self.short(original.path), *original[1:], known.get(original.path))
                hashed.update(repr(row).encode())
        return hashed.hexdigest()

    def short(self, path: str) -> str:
        """A path within the source."""
        return os.path.relpath(path, self.root) if os.path.isabs(path) else path


def list_originals(source: str, cache_dir: str, keep: bool) -> Originals:
    """Lists the records of the data set that `source` names.

    TensorFlow starts only for what needs it: tfds, digits, TFRecords without a manifest, and
    synthetic photos that are not made yet.

    Args:
      source: as `--data` takes it.
      cache_dir: where synthetic photos are kept; "" for the user's cache.
      keep: whether the bytes are to be kept, so that only files training can decode are wanted.

    Raises:
      UserError: whatever is wrong with the source.
    """
    refuse_url(source)
    kind, _, rest = source.partition(":")
    if kind == "folder" and rest:
        return _folder(source, rest, KEPT_SUFFIXES if keep else SUFFIXES)
    if kind == "synthetic":
        count = int(rest) if rest.isdigit() else SYNTHETIC_COUNT
        kept = synthetic_directory(count, user_cache(cache_dir))
        if rest.isdigit() or not rest:
            if not kept.exists():
                _open_with_tensorflow(source, cache_dir)  # makes them
            return _with_manifest(source, kept)
    if kind == "records" and rest:
        directory = existing_directory(rest, source)
        if (directory / MANIFEST).exists():
            return _with_manifest(f"records:{directory.name}", directory)
    return _from_splits(source, _open_with_tensorflow(source, cache_dir))


def read_original(original: Original, features: Mapping[str, str]) -> tuple[bytes, int, float]:
    """(encoded image, label, aspect ratio) of a record; an aspect ratio of 0 is not known.

    Raises:
      BadImage: the record is damaged or lacks its image or label, or the file is gone.
    """
    if original.data:
        return original.data, original.label, 0.0
    try:
        if original.number < 0:
            return Path(original.path).read_bytes(), original.label, 0.0
        found = decode_example(read(original.path, original.offset, original.length))
        image, label = found[features["image"]], found[features["label"]]
        return image, label, found.get(features.get("aspect", ""), 0.0)  # type: ignore[return-value]
    except OSError as error:
        raise BadImage(f"it cannot be read ({error.strerror})") from None
    except KeyError as error:
        raise BadImage(f"it has no feature {error}") from None
    except Damaged as error:
        raise BadImage(str(error)) from None


def stat_of(path: str) -> tuple[int, int]:
    """(size in bytes, time of the last change in ns) of a file; zeros if there is none.

    A dangling link, say: it is named when its turn to be read comes.
    """
    try:
        stat = os.stat(path)
        return stat.st_size, stat.st_mtime_ns
    except OSError:
        return 0, 0


def _folder(source: str, path: str, suffixes: Sequence[str]) -> Originals:
    folder = list_folder(path, suffixes)
    number = {name: label for label, name in enumerate(folder.classes)}

    def listed(images: Iterable[tuple[str, str]]) -> list[Original]:
        return [Original(os.path.abspath(file), label=number[name]) for name, file in images]

    root = os.path.abspath(os.path.expanduser(path))
    splits = {"train": listed(folder.train), "validation": listed(folder.validation)}
    return Originals(f"folder:{os.path.basename(root)}", root, splits, folder.classes, {})


def _with_manifest(name: str, directory: Path) -> Originals:
    manifest = read_manifest(directory)
    if manifest.get("format") == "raw":
        raise UserError(f"{directory} holds raw pixels: prepare the data set it was made from")
    splits = {}
    for split, rows in manifest["splits"].items():
        pieces = [(str(directory.absolute() / row["file"]), 0, row["records"]) for row in rows]
        splits[split] = _in_tfrecords(pieces)
    classes, features = tuple(manifest["classes"]), manifest["features"]
    root = str(directory.absolute())
    return Originals(name, root, splits, classes, features, manifest.get("size"))


def _from_splits(source: str, splits: Any) -> Originals:
    """The records of an opened data set: of TFRecord files, or the few in memory."""
    kind, _, rest = source.partition(":")
    name = f"{kind}:{os.path.basename(os.path.normpath(rest))}" if rest else kind
    both = {"train": splits.train, "validation": splits.validation}
    if hasattr(splits.train, "pieces"):
        listed = {
            split: _in_tfrecords([(os.path.abspath(p.path), p.skip, p.take) for p in part.pieces])
            for split, part in both.items()
        }
        files = [original.path for originals in listed.values() for original in originals]
        root = os.path.commonpath([os.path.dirname(path) for path in set(files)])
        return Originals(name, root, listed, splits.classes, splits.train.reader.features)
    return Originals(
        name, "", {split: _in_memory(part) for split, part in both.items()}, splits.classes, {}
    )


def _in_tfrecords(pieces: Iterable[tuple[str, int, int]]) -> list[Original]:
    """The records of (path, records before, records in it)."""
    originals = []
    for path, skip, take in pieces:
        count = 0
        try:
            for index, (offset, length) in enumerate(spans(path)):
                if skip <= index < skip + take:
                    originals.append(Original(path, index, offset, length))
                count += 1
        except Damaged as error:
            raise UserError(
                f"{path}: record {count}: {error}: copy the file again (compressed files are not "
                "read)"
            ) from None
        except FileNotFoundError:
            raise UserError(f"{path} is missing: copy the data set again") from None
        if count < skip + take:
            raise UserError(f"{path}: {count} records, not {skip + take}: copy the file again")
    return originals


def _in_memory(source: Any) -> list[Original]:
    import tensorflow as tf

    records = source.read(tf.range(source.count, dtype=tf.int64) + source.first)
    columns = (records["image"], records["label"], records["source_file"], records["source_index"])
    return [
        Original(file.decode(), int(index), label=int(label), data=image)
        for image, label, file, index in zip(*(c.numpy() for c in columns), strict=True)
    ]


def _open_with_tensorflow(source: str, cache_dir: str) -> Any:
    from ..runtime import start_tensorflow

    start_tensorflow()
    from ..data.catalog import open_data

    return open_data(source, cache_dir)
