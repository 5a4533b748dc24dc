"""Where the parts of a data set lie, found without TensorFlow: `prepare` starts at once with it."""

import collections
import dataclasses
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError

IMAGES = (".jpg", ".jpeg", ".png")
TRAIN_NAMES = ("train", "training")
VALIDATION_NAMES = ("validation", "valid", "val", "test")
HELD_OUT = 0.1  # of the images, on average, where the folder brings no validation directory

SYNTHETIC_COUNT = 4_000  # about 400 MB, made in half a minute on 2 cores
SYNTHETIC_VERSION = 1  # raise it when `photo` draws differently: an old set must not pass for new


@dataclasses.dataclass(frozen=True)
class Folder:
    """(class, path) of every image of the two splits, and the names of the classes, by label."""

    train: list[tuple[str, str]]
    validation: list[tuple[str, str]]
    classes: tuple[str, ...]


def list_folder(path: str, suffixes: Sequence[str] = IMAGES) -> Folder:
    """Lists DIR/<class>/* or DIR/train/<class>/* with DIR/validation/<class>/* (or val, test).

    Files with other suffixes are counted and named on standard output. Where there is no
    validation directory, the images whose name's hash falls into the lowest tenth are held out (or
    a class's lowest alone): an image keeps its side when others are added.

    Args:
      path: the directory.
      suffixes: of the files that are images, in lower case.

    Raises:
      UserError: no such directory, no image, one class alone, an empty split.
    """
    directory = existing_directory(path, f"--data=folder:{path}")
    train_root = _first_existing(directory, TRAIN_NAMES)
    validation_root = _first_existing(directory, VALIDATION_NAMES) if train_root else None
    train, ignored = _images(train_root or directory, suffixes)
    if not train:
        raise UserError(
            f"--data=folder:{path}: no JPEG or PNG in class directories below "
            f"{train_root or directory}: expected DIR/<class>/image.jpg"
        )
    classes = tuple(sorted({name for name, _ in train}))
    if len(classes) < 2:
        raise UserError(f"--data=folder:{path}: one class alone ({classes[0]}): nothing to learn")
    if validation_root:
        validation, more = _images(validation_root, suffixes)
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
    return Folder(train, validation, classes)


def user_cache(cache_dir: str = "") -> Path:
    """`cache_dir`, or the place under the user's cache directory where this project keeps data."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_dir).expanduser() if cache_dir else Path(base) / "tf-gpu-template"


def synthetic_directory(photos: int, cache_dir: Path) -> Path:
    """Where a set of that many synthetic photos is kept, once it is made."""
    return cache_dir / f"synthetic-{photos}-v{SYNTHETIC_VERSION}"


def refuse_url(data: str) -> None:
    """Raises `UserError` if the data lies on another machine; what may be secret is left out."""
    kind, _, place = data.partition(":")
    scheme, separator, _ = place.partition("://")
    if separator:
        raise UserError(
            f"{kind}:{scheme}://... is not on this machine: train with --stage_to=auto, or copy it "
            "with stage"
        )


def existing_directory(path: str, flag: str) -> Path:
    """`path` as a directory that exists; `UserError` names the flag if it does not."""
    directory = Path(path).expanduser()
    if not directory.exists():
        raise UserError(f"{flag}: there is no directory {directory}: check the path")
    if not directory.is_dir():
        raise UserError(f"{flag}: {directory} is a file: name the directory that holds the data")
    return directory


def _images(root: Path, suffixes: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(class, path) of every image below root's class directories, and the paths left aside."""
    images, ignored = [], []
    for entry in sorted(os.scandir(root), key=lambda e: e.name):
        if not entry.is_dir():
            ignored.append(entry.path)
            continue
        for parent, _, names in sorted(os.walk(entry.path)):
            for name in sorted(names):
                path = os.path.join(parent, name)
                if name.lower().endswith(tuple(suffixes)):
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
        print(f"{directory}: left aside, no image by its name: {counts}, such as {ignored[0]}")


def _first_existing(directory: Path, names: tuple[str, ...]) -> Path | None:
    return next((directory / name for name in names if (directory / name).is_dir()), None)
