"""`records:DIR`: TFRecord shards of images, with our manifest or anyone's without."""

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from ..errors import UserError
from .listing import existing_directory
from .raw import open_raw
from .sharded import Piece, Reader, Shards, buffer_for, split_tail
from .shards import IMAGE, LABEL, MANIFEST, Shard, read_manifest
from .sources import Record, Splits

IMAGE_NAMES = (IMAGE, "image", "image_raw", "jpeg", "jpg", "png")
LABEL_NAMES = (LABEL, "label", "class", "image/label", "cls")
VALIDATION_NAMES = ("validation", "valid", "val", "test")
HELD_OUT = 0.1  # of every file, where a data set brings no validation split

# A TFRecord is: length (8 bytes, little-endian), its checksum (4), the data, its checksum (4).
HEADER, FOOTER = 12, 4


def open_records(path: str, buffer_bytes: int, tolerant: bool = False) -> Splits:
    """Opens `records:DIR`: TFRecord shards with our manifest, or anyone's without.

    Without a manifest the splits are told by file or directory name (train..., validation...,
    val..., test...), the feature names by the first record, and every file is measured from record
    to record.

    Args:
      path: the directory.
      buffer_bytes: how much the shuffle buffer may hold.
      tolerant: open TFRecord files that are cut short too; who reads them must expect that.

    Raises:
      UserError: no such directory, no records, a damaged file, no image or label in the records.
    """
    directory = existing_directory(path, f"--data=records:{path}")
    if (directory / MANIFEST).exists():
        splits, classes, reader = _listed_splits(directory, tolerant)
    else:
        splits, reader = _discover(directory, tolerant)
        classes = ()
    if not splits.get("train"):
        raise UserError(f"--data=records:{path}: no training records: name files train-*.tfrecord")
    if not splits.get("validation"):
        splits["train"], splits["validation"] = split_tail(splits["train"], HELD_OUT)
        print(f"{directory}: no validation split: the last {HELD_OUT:.0%} of each file is held out")
    if not splits["validation"]:
        raise UserError(f"--data=records:{path}: too few records to hold a validation split out")
    shards = {
        name: Shards(pieces, reader, buffer_for(pieces, buffer_bytes))
        for name, pieces in splits.items()
    }
    if not classes:
        classes = _count_classes([shards["train"], shards["validation"]], tolerant)
    return Splits(shards["train"], shards["validation"], classes)


def measure(path: Path, tolerant: bool = False) -> int:
    """The number of records of a TFRecord file, from its headers alone.

    Args:
      path: of the file.
      tolerant: count a last record that is cut short like any other.

    Raises:
      UserError: the file ends in the middle of a record, or is no TFRecord file.
    """
    size, count, position = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while position < size:
            header = file.read(HEADER)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == HEADER else size
            position += HEADER + length + FOOTER
            if position > size and not tolerant:
                raise UserError(
                    f"{path}: record {count} is cut short or no TFRecord: copy the file again "
                    "(compressed files are not read)"
                )
            file.seek(position)
            count += 1
    return count


@dataclasses.dataclass(frozen=True)
class TFRecords:
    """TFRecord files of `tf.train.Example`s.

    Attributes:
      features: the names of the image, the label and, where there is one, the aspect ratio.
      side: of the images in pixels, where they are squares of one size.
    """

    features: Mapping[str, str]
    side: int | None = None

    def open(self, path: tf.Tensor, read_bytes: int) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(path, buffer_size=read_bytes)

    def parse(self, serialized: tf.Tensor) -> Record:
        types = {"image": tf.string, "label": tf.int64, "aspect": tf.float32}
        wanted = {
            name: tf.io.FixedLenFeature([], types[what]) for what, name in self.features.items()
        }
        parsed = tf.io.parse_example(serialized, wanted)
        record = {what: parsed[name] for what, name in self.features.items()}
        return record if self.side is None else {**record, "side": tf.constant(self.side)}

    def find_damage(self, path: str) -> str | None:
        return find_damage(path)


def find_damage(path: str) -> str | None:
    """Reads a TFRecord file; names the first record that fails its checksum, or None."""
    count = 0
    try:
        for _ in tf.data.TFRecordDataset(path):
            count += 1
    except tf.errors.DataLossError:
        return f"{path}: record {count} is damaged"
    return None


def open_split(directory: Path, split: str) -> tuple[tuple[Piece, ...], Reader]:
    """One split of a directory with a manifest: its pieces, and how to read them."""
    splits, _, reader = _listed_splits(directory, tolerant=False)
    return splits[split], reader


def _listed_splits(
    directory: Path, tolerant: bool
) -> tuple[dict[str, tuple[Piece, ...]], tuple[str, ...], Reader]:
    """What the manifest says: the pieces of each split, the classes, how to read them."""
    manifest = read_manifest(directory)
    raw, size = manifest.get("format") == "raw", manifest.get("size")
    exact = raw or not tolerant
    splits = {n: _listed(directory, rows, exact) for n, rows in manifest["splits"].items()}
    if raw:
        pieces = [piece for rows in splits.values() for piece in rows]
        reader: Reader = open_raw(
            {piece.path: piece.take for piece in pieces}, int(manifest["size"])
        )
    else:
        reader = TFRecords(manifest["features"], size)
    return splits, tuple(manifest["classes"]), reader


def _listed(directory: Path, rows: Sequence[dict[str, Any]], exact: bool) -> tuple[Piece, ...]:
    pieces = []
    for row in rows:
        shard = Shard(**row)
        path = directory / shard.file
        if not path.is_file():
            raise UserError(f"{path}: listed in {MANIFEST} but missing: copy the data set again")
        if exact and path.stat().st_size != shard.bytes:
            raise UserError(
                f"{path}: {path.stat().st_size} bytes, {MANIFEST} says {shard.bytes}: copy it again"
            )
        if shard.records:
            pieces.append(Piece(str(path), 0, shard.records))
    return tuple(pieces)


def _discover(directory: Path, tolerant: bool) -> tuple[dict[str, tuple[Piece, ...]], Reader]:
    files = sorted(p for p in directory.rglob("*") if p.is_file() and "tfrecord" in p.name.lower())
    if not files:
        raise UserError(f"--data=records:{directory}: no *.tfrecord* file in it")
    splits: dict[str, list[Piece]] = {"train": [], "validation": []}
    for path in files:
        name = path.relative_to(directory).as_posix().lower()
        split = "validation" if _is_validation(name) else "train"
        count = measure(path, tolerant)
        if count:
            splits[split].append(Piece(str(path), 0, count))
    for path in files:
        for record in tf.data.TFRecordDataset(str(path)).take(1):
            features = _feature_names(path, bytes(record.numpy()))
            return {name: tuple(rows) for name, rows in splits.items()}, TFRecords(features)
    raise UserError(f"--data=records:{directory}: its {len(files)} files hold no record")


def _is_validation(name: str) -> bool:
    parts = name.replace("/", "-").replace("_", "-").replace(".", "-").split("-")
    return any(part in VALIDATION_NAMES for part in parts) and "train" not in parts


def _feature_names(path: Path, serialized: bytes) -> dict[str, str]:
    names = set(tf.train.Example.FromString(serialized).features.feature)
    image = next((name for name in IMAGE_NAMES if name in names), None)
    label = next((name for name in LABEL_NAMES if name in names), None)
    if image is None or label is None:
        missing = "image" if image is None else "label"
        raise UserError(
            f"{path}: no {missing} among its features ({', '.join(sorted(names))}): "
            f"name it one of {', '.join(IMAGE_NAMES if image is None else LABEL_NAMES)}"
        )
    return {"image": image, "label": label}


def _count_classes(splits: Sequence[Shards], tolerant: bool) -> tuple[str, ...]:
    """Names 0..max of the labels found, reading every record's label once."""
    highest = -1
    for source in splits:
        try:
            for elements in source.in_order().batch(1024):
                highest = max(highest, int(tf.reduce_max(source.read(*elements)["label"])))
        except tf.errors.DataLossError:
            if not tolerant:
                raise UserError(f"{source.find_damage()}: copy the file again") from None
    return tuple(str(label) for label in range(highest + 1))
