"""`folder:DIR`: directories of JPEG and PNG images, one directory a class."""

import collections
import os
import zlib
from pathlib import Path

import tensorflow as tf

from ..errors import UserError
from .sources import Indexed, Record, Splits, existing_directory

IMAGES = (".jpg", ".jpeg", ".png")
TRAIN_NAMES = ("train", "training")
VALIDATION_NAMES = ("validation", "valid", "val", "test")
HELD_OUT = 0.1  # of the images, on average, where the folder brings no validation directory


def open_folder(path: str) -> Splits:
    """Opens DIR/<class>/* or DIR/train/<class>/* with DIR/validation/<class>/* (or val, test).

    Files that are neither JPEG nor PNG are counted and named on standard output. Where there is no
    validation directory, the images whose name's hash falls into the lowest tenth are held out (or
    a class's lowest alone): an image keeps its side when others are added.

    Raises:
      UserError: no such directory, no image, one class alone, an empty split.
    """
    directory = existing_directory(path, f"--data=folder:{path}")
    train_root = _first_existing(directory, TRAIN_NAMES)
    validation_root = _first_existing(directory, VALIDATION_NAMES) if train_root else None
    train, ignored = _images(train_root or directory)
    if not train:
        raise UserError(
            f"--data=folder:{path}: no JPEG or PNG in class directories below "
            f"{train_root or directory}: expected DIR/<class>/image.jpg"
        )
    classes = tuple(sorted({name for name, _ in train}))
    if len(classes) < 2:
        raise UserError(f"--data=folder:{path}: one class alone ({classes[0]}): nothing to learn")
    if validation_root:
        validation, more = _images(validation_root)
        ignored += more
        unknown = sorted({name for name, _ in validation} - set(classes))
        if unknown:
            raise UserError(f"{validation_root}: class {unknown[0]!r} has no training images")
    else:
        train, validation = _hold_out(train)
        print(f"{directory}: no validation directory: {len(validation)} images are held out")
    _report(directory, ignored)
    if not validation or not train:
        raise UserError(f"--data=folder:{path}: the validation split is empty: add images to it")
    return Splits(_source(train, classes), _source(validation, classes), classes)


def _images(root: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """(class, path) of every image below root's class directories, and the paths left aside."""
    images, ignored = [], []
    for entry in sorted(os.scandir(root), key=lambda e: e.name):
        if not entry.is_dir():
            ignored.append(entry.path)
            continue
        for parent, _, names in sorted(os.walk(entry.path)):
            for name in sorted(names):
                path = os.path.join(parent, name)
                if name.lower().endswith(IMAGES):
                    images.append((entry.name, path))
                else:
                    ignored.append(path)
    return images, ignored


def _hold_out(
    images: list[tuple[str, str]],
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Splits class by class, so that a small class is in both halves."""
    by_class: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for image in images:
        by_class[image[0]].append(image)
    held = set()
    for members in by_class.values():
        low = [image for image in members if _hash(image) < HELD_OUT * 2**32]
        held.update(low or [min(members, key=_hash)] if len(members) > 1 else [])
    return [i for i in images if i not in held], [i for i in images if i in held]


def _hash(image: tuple[str, str]) -> int:
    return zlib.crc32(os.path.basename(image[1]).encode())


def _report(directory: Path, ignored: list[str]) -> None:
    kinds = collections.Counter(Path(path).suffix.lower() or "(none)" for path in ignored)
    if kinds:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in kinds.most_common(5))
        print(f"{directory}: left aside, neither JPEG nor PNG: {counts}, such as {ignored[0]}")


def _source(images: list[tuple[str, str]], classes: tuple[str, ...]) -> Indexed:
    number = {name: label for label, name in enumerate(classes)}
    paths = tf.constant([path for _, path in images])
    labels = tf.constant([number[name] for name, _ in images], tf.int64)

    def read(index: tf.Tensor) -> Record:
        path = tf.gather(paths, index)
        return {
            "image": tf.io.read_file(path),
            "label": tf.gather(labels, index),
            "source_file": path,
            "source_index": tf.constant(-1, tf.int64),  # the file is the record
        }

    return Indexed(len(images), read)


def _first_existing(directory: Path, names: tuple[str, ...]) -> Path | None:
    return next((directory / name for name in names if (directory / name).is_dir()), None)
