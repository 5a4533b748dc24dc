"""`tfds:NAME`: a data set that tensorflow-datasets has prepared on this machine."""

import os
import re
from pathlib import Path
from typing import Any

from ..errors import UserError
from .records import HELD_OUT, VALIDATION_NAMES, TFRecords
from .sharded import Piece, Shards, buffer_for, split_tail
from .sources import Splits


def open_tfds(name: str, buffer_bytes: int) -> Splits:
    """Opens a prepared data set of images with one label; never touches the network.

    Its shards are read as any others are, so order, resume and even shares are the same too.

    Args:
      name: as `prepared_directory` takes it.
      buffer_bytes: how much the shuffle buffer may hold.

    Raises:
      UserError: not prepared here, not stored as TFRecords, no image or no label.
    """
    builder = _prepared(name)
    image, label = _feature_keys(name, builder.info.features)
    splits = {split: _pieces(name, builder.info.splits[split]) for split in builder.info.splits}
    train = splits.get("train", ())
    if not train:
        raise UserError(f"--data=tfds:{name}: no train split (it has {', '.join(splits)})")
    held = next((splits[s] for s in VALIDATION_NAMES if splits.get(s)), ())
    if not held:
        train, held = split_tail(train, HELD_OUT)
        print(f"tfds:{name}: no validation split: the last {HELD_OUT:.0%} of each file is held out")
    reader = TFRecords({"image": image, "label": label})  # stored under the features' own names
    return Splits(
        train=Shards(train, reader, buffer_for(train, buffer_bytes)),
        validation=Shards(held, reader, buffer_for(held, buffer_bytes)),
        classes=tuple(builder.info.features[label].names),
    )


def prepared_directory(name: str) -> Path:
    """The directory that holds the files of a prepared data set.

    Args:
      name: NAME[/config][:version] in TFDS_DATA_DIR or TFDS's default directory; or its directory.

    Raises:
      UserError: it is not prepared here, or its config must be named.
    """
    if os.path.isabs(name):
        return Path(name)
    root = _root()
    found = _versions(root, name)
    if not found:
        raise UserError(
            f"--data=tfds:{name} is not prepared under {root}: on a machine with a network run "
            f"`tfds build {name}`, or set TFDS_DATA_DIR to where it is"
        )
    return found[-1]


def _root() -> Path:
    # TFDS's own default, which is found by an import that takes a second.
    given = os.environ.get("TFDS_DATA_DIR")
    if not given:
        import tensorflow_datasets as tfds

        given = tfds.core.constants.DATA_DIR
    return Path(given).expanduser()


def _prepared(name: str) -> Any:
    # Imported here: it takes a second, and only this source needs it.
    import tensorflow_datasets as tfds

    directory = prepared_directory(name)
    if not (directory / "dataset_info.json").exists():
        raise UserError(f"--data=tfds:{name} holds no dataset_info.json: it is no TFDS directory")
    # tfds.load and tfds.builder ask the network for metadata, and offline they retry for minutes
    # (204 s here); a directory that is read does not.
    builder = tfds.builder_from_directory(directory)
    if builder.info.file_format.value != "tfrecord":
        raise UserError(
            f"--data=tfds:{name} is stored as {builder.info.file_format.value}: "
            f"run `tfds build {name} --file_format=tfrecord`"
        )
    return builder


def _versions(root: Path, name: str) -> list[Path]:
    """The prepared directories that NAME[/config][:version] stands for, the newest version last."""
    path, _, version = name.partition(":")
    versions = [info.parent for info in (root / path).rglob("dataset_info.json")]
    configs = {directory.parent for directory in versions}
    if len(configs) > 1:
        names = sorted(directory.relative_to(root).as_posix() for directory in configs)
        raise UserError(f"--data=tfds:{name} has several configs: give {' or '.join(names)}")
    versions = [d for d in versions if version in ("", d.name)]
    return sorted(versions, key=lambda d: [int(part) for part in re.findall(r"\d+", d.name)])


def _feature_keys(name: str, features: Any) -> tuple[str, str]:
    import tensorflow_datasets as tfds

    kinds = {"image": tfds.features.Image, "class label": tfds.features.ClassLabel}
    keys = []
    for what, kind in kinds.items():
        found = [key for key, feature in features.items() if isinstance(feature, kind)]
        if len(found) != 1:
            raise UserError(
                f"--data=tfds:{name} has {len(found)} {what} features "
                f"({', '.join(features)}): read the one you want in task.py"
            )
        keys.append(found[0])
    return keys[0], keys[1]


def _pieces(name: str, split: Any) -> tuple[Piece, ...]:
    pieces = []
    for path, records in zip(split.filepaths, split.shard_lengths, strict=True):
        if not path.exists():
            raise UserError(f"--data=tfds:{name}: {path} is missing: run `tfds build {name}` again")
        if records:
            pieces.append(Piece(str(path), 0, records))
    return tuple(pieces)
