"""`records:DIR`: TFRecord shards of images, with our manifest or anyone's without."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from ..errors import UserError
from .shards import IMAGE, LABEL, MANIFEST, SCHEMA, Shard
from .sources import Piece, Record, Shards, Splits, buffer_for, existing_directory, split_tail

IMAGE_NAMES = (IMAGE, "image", "image_raw", "jpeg", "jpg", "png")
LABEL_NAMES = (LABEL, "label", "class", "image/label", "cls")
VALIDATION_NAMES = ("validation", "valid", "val", "test")
HELD_OUT = 0.1  # of every file, where a data set brings no validation split

# A TFRecord is: length (8 bytes, little-endian), its checksum (4), the data, its checksum (4).
HEADER, FOOTER = 12, 4


def open_records(path: str, buffer_bytes: int) -> Splits:
    """Opens `records:DIR`: TFRecord shards with our manifest, or anyone's without.

    Without a manifest the splits are told by file or directory name (train..., validation...,
    val..., test...), the feature names by the first record, and every file is measured from record
    to record.

    Args:
      path: the directory.
      buffer_bytes: how much the shuffle buffer may hold.

    Raises:
      UserError: no such directory, no records, a damaged file, no image or label in the records.
    """
    directory = existing_directory(path, f"--data=records:{path}")
    if (directory / MANIFEST).exists():
        manifest = _read_manifest(directory / MANIFEST)
        features, classes = manifest["features"], tuple(manifest["classes"])
        splits = {name: _listed(directory, rows) for name, rows in manifest["splits"].items()}
    else:
        splits, features, classes = _discover(directory)
    if not splits.get("train"):
        raise UserError(f"--data=records:{path}: no training records: name files train-*.tfrecord")
    if not splits.get("validation"):
        splits["train"], splits["validation"] = split_tail(splits["train"], HELD_OUT)
        print(f"{directory}: no validation split: the last {HELD_OUT:.0%} of each file is held out")
    if not splits["validation"]:
        raise UserError(f"--data=records:{path}: too few records to hold a validation split out")
    if not classes:
        classes = _count_classes(splits["train"] + splits["validation"], features)
    return Splits(
        train=_shards(splits["train"], features, buffer_bytes),
        validation=_shards(splits["validation"], features, buffer_bytes),
        classes=classes,
    )


def measure(path: Path) -> int:
    """The number of records of a TFRecord file, from its headers alone.

    Raises:
      UserError: the file ends in the middle of a record, or is no TFRecord file.
    """
    size, count, position = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while position < size:
            header = file.read(HEADER)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == HEADER else size
            position += HEADER + length + FOOTER
            if position > size:
                raise UserError(
                    f"{path}: record {count} is cut short or no TFRecord: copy the file again "
                    "(compressed files are not read)"
                )
            file.seek(position)
            count += 1
    return count


def _shards(pieces: tuple[Piece, ...], features: dict[str, str], buffer_bytes: int) -> Shards:
    return Shards(pieces, _parser(features), buffer_for(pieces, buffer_bytes))


def _parser(features: dict[str, str]) -> Any:
    image, label = features["image"], features["label"]
    wanted = {
        image: tf.io.FixedLenFeature([], tf.string),
        label: tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(serialized: tf.Tensor) -> Record:
        parsed = tf.io.parse_single_example(serialized, wanted)
        return {"image": parsed[image], "label": parsed[label]}

    return parse


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["schema"] != SCHEMA:
            raise UserError(f"{path}: schema {manifest['schema']}, this program reads {SCHEMA}")
        return manifest
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a manifest ({error}): prepare the data set again") from None


def _listed(directory: Path, rows: Sequence[dict[str, Any]]) -> tuple[Piece, ...]:
    pieces = []
    for row in rows:
        shard = Shard(**row)
        path = directory / shard.file
        if not path.is_file():
            raise UserError(f"{path}: listed in {MANIFEST} but missing: copy the data set again")
        if path.stat().st_size != shard.bytes:
            raise UserError(
                f"{path}: {path.stat().st_size} bytes, {MANIFEST} says {shard.bytes}: copy it again"
            )
        if shard.records:
            pieces.append(Piece(str(path), 0, shard.records))
    return tuple(pieces)


def _discover(
    directory: Path,
) -> tuple[dict[str, tuple[Piece, ...]], dict[str, str], tuple[str, ...]]:
    files = sorted(p for p in directory.rglob("*") if p.is_file() and "tfrecord" in p.name.lower())
    if not files:
        raise UserError(f"--data=records:{directory}: no *.tfrecord* file in it")
    splits: dict[str, list[Piece]] = {"train": [], "validation": []}
    for path in files:
        name = path.relative_to(directory).as_posix().lower()
        split = "validation" if _is_validation(name) else "train"
        count = measure(path)
        if count:
            splits[split].append(Piece(str(path), 0, count))
    for path in files:
        for record in tf.data.TFRecordDataset(str(path)).take(1):
            features = _feature_names(path, bytes(record.numpy()))
            return {name: tuple(rows) for name, rows in splits.items()}, features, ()
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


def _count_classes(pieces: Sequence[Piece], features: dict[str, str]) -> tuple[str, ...]:
    """Names 0..max of the labels found, reading every record's label once."""
    labels = Shards(tuple(pieces), _parser(features), 1).in_order().map(lambda r: r["label"])
    highest = int(labels.reduce(tf.constant(-1, tf.int64), tf.maximum))
    return tuple(str(label) for label in range(highest + 1))
