"""TFRecord shards on disk: written under a manifest, so that a missing or short file is found."""

import dataclasses
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

MANIFEST = "manifest.json"
SCHEMA = 1
IMAGE, LABEL = "image/encoded", "image/class/label"  # TensorFlow Models' names, the most used


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of a split, as the manifest lists it."""

    file: str  # relative to the manifest
    records: int
    bytes: int
    crc32: int  # of the whole file


def serialize(image: bytes, label: int) -> bytes:
    """One example as a `tf.train.Example` under the names `IMAGE` and `LABEL`."""
    features = {
        IMAGE: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_shard(path: Path, records: Iterable[bytes]) -> Shard:
    """Writes one TFRecord file; returns its line of the manifest."""
    count = 0
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
            count += 1
    return Shard(path.name, count, path.stat().st_size, _crc32(path))


def write_manifest(
    directory: Path, classes: Sequence[str], splits: Mapping[str, Sequence[Shard]], made_by: str
) -> None:
    """Writes the manifest: the last file of a data set, whose presence says that it is whole."""
    manifest = {
        "schema": SCHEMA,
        "features": {"image": IMAGE, "label": LABEL},
        "classes": list(classes),
        "splits": {name: [dataclasses.asdict(s) for s in rows] for name, rows in splits.items()},
        "made_by": made_by,
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


class NewDirectory:
    """A directory that appears whole under its name, or not at all.

    `with NewDirectory(target) as partial:` gives a temporary directory beside the target; it is
    renamed when the block ends well and removed when it does not. Of two processes that make the
    same target, one wins and the other's work is dropped.
    """

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> Path:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        name = f".{self._target.name}.partial-"
        self._partial = Path(tempfile.mkdtemp(prefix=name, dir=self._target.parent))
        return self._partial

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                os.rename(self._partial, self._target)
        except OSError:
            if not self._target.exists():
                raise
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
