"""TFRecord shards on disk: written under a manifest, so that a missing or short file is found."""

import dataclasses
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from .tfrecord import encode_example, frame

MANIFEST = "manifest.json"
SCHEMA = 1
IMAGE, LABEL = "image/encoded", "image/class/label"  # TensorFlow Models' names, the most used
ASPECT = "image/aspect"  # width / height of the upright original, where a square image is stored


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of a split, as the manifest lists it."""

    file: str  # relative to the manifest
    records: int
    bytes: int
    crc32: int  # of the whole file


def serialize(image: bytes, label: int, aspect: float | None = None) -> bytes:
    """One example as a `tf.train.Example` under the names `IMAGE`, `LABEL` and `ASPECT`.

    Args:
      image: encoded.
      label: the number of its class.
      aspect: width / height of the original, where the image was squeezed into a square.
    """
    features: dict[str, bytes | int | float] = {IMAGE: image, LABEL: label}
    if aspect is not None:
        features[ASPECT] = float(aspect)
    return encode_example(features)


def write_shard(path: Path, records: Iterable[bytes]) -> Shard:
    """Writes one TFRecord file; returns its line of the manifest."""
    count = 0
    with path.open("wb") as file:
        for record in records:
            file.write(frame(record))
            count += 1
    return Shard(path.name, count, path.stat().st_size, crc32_of(path))


def write_manifest(
    directory: Path,
    classes: Sequence[str],
    splits: Mapping[str, Sequence[Shard]],
    made: Mapping[str, Any],
    *,
    format: str = "keep",
    size: int | None = None,
) -> None:
    """Writes the manifest: the last file of a data set, whose presence says that it is whole.

    Args:
      directory: that holds the shards.
      classes: their names, by label.
      splits: the shards of each split.
      made: how the data set was made, for people.
      format: keep (as the source encoded them), jpeg (squares of `size`) or raw (their pixels).
      size: side of the square images in pixels; None for images of any size.
    """
    features = {"image": IMAGE, "label": LABEL}
    manifest = {
        "schema": SCHEMA,
        "format": format,
        "size": size,
        "features": features if size is None else {**features, "aspect": ASPECT},
        "classes": list(classes),
        "splits": {name: [dataclasses.asdict(s) for s in rows] for name, rows in splits.items()},
        "made": dict(made),
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a prepared data set.

    Raises:
      UserError: there is none, or it is damaged or of another schema.
    """
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["schema"] != SCHEMA:
            raise UserError(f"{path}: schema {manifest['schema']}, this program reads {SCHEMA}")
        return manifest
    except FileNotFoundError:
        raise UserError(f"{directory} holds no {MANIFEST}: it is no prepared data set") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a manifest ({error}): prepare the data set again") from None


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


def crc32_of(path: Path) -> int:
    """zlib's CRC-32 of a whole file."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
