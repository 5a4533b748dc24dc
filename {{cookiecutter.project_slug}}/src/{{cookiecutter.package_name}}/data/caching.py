"""`--cache`: training records kept as they are stored, in memory or on a local disk.

Never decoded, which takes 5 to 10 times the room, and never after anything random.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from ..errors import UserError
from ..progress import Progress
from ..runtime import memory_available
from .indexed import Indexed
from .records import open_split
from .sharded import Shards, buffer_for
from .shards import NewDirectory, Shard, serialize, write_manifest, write_shard
from .sources import Record, Source, as_tuple

SAMPLE = 256  # records measured to estimate the size of all
# Of what is free: joining the chunks holds every record twice for a moment, and batches need room.
MEMORY_PART = 0.4
DISK_PART = 0.9  # of what is free: a full disk would stop the checkpoints
CHUNK = 1024  # records
SHARD_BYTES = 128 << 20


def in_memory(source: Source) -> Indexed:
    """The same examples held in memory, as encoded bytes, with no shuffle buffer between.

    Raises:
      UserError: they would take more than `MEMORY_PART` of the memory that is free.
    """
    sample = min(SAMPLE, source.count)
    for elements in source.shuffled(0, 0).batch(sample).take(1):
        measured = _bytes(elements)
    needed, free = measured * source.count // sample, memory_available()
    if needed > MEMORY_PART * free:
        raise UserError(
            f"--cache=memory: the records take about {needed / 1e9:.1f} GB of {free / 1e9:.1f} GB "
            "free: use --cache=none"
        )
    chunks = []
    with Progress("reading into memory", source.count, "record") as progress:
        for elements in source.in_order().batch(CHUNK):
            chunks.append(elements)
            progress.advance(len(tf.nest.flatten(elements)[0]))
    columns = tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *chunks)

    def read(indices: tf.Tensor) -> Record:
        elements = tf.nest.map_structure(lambda column: tf.gather(column, indices), columns)
        return source.read(*as_tuple(elements))

    return Indexed(source.count, read)


def on_disk(source: Source, data: str, directory: Path, buffer_bytes: int) -> Source:
    """The same examples copied once, in sequence, to TFRecord files on a local disk.

    Args:
      source: of the training examples.
      data: what `--data` names, for the name of the copy.
      directory: where copies are kept.
      buffer_bytes: how much the shuffle buffer may hold.

    Raises:
      UserError: they take more than is free there, or they lie in memory already, or are raw.
    """
    files = source.files()
    spec = source.read(*as_tuple(next(iter(source.in_order().batch(1)))))
    if not files or "pixels" in spec:
        what = "raw records are" if files else f"--data={data} is"
        raise UserError(f"--cache=disk: {what} read without a copy: use --cache=none")
    stats = [(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    key = zlib.crc32(json.dumps([source.count, *stats]).encode())
    target = directory / f"{re.sub('[^A-Za-z0-9]+', '-', data)[-40:]}-{key:08x}"
    if not target.exists():
        needed = sum(size for _, size, _ in stats)
        directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(directory).free
        if needed > DISK_PART * free:
            raise UserError(
                f"--cache=disk: the records take {needed / 1e9:.1f} GB of {free / 1e9:.1f} GB free "
                f"in {directory}: free some, or name another --cache_dir"
            )
        side = int(spec["side"]) if "side" in spec else None
        with NewDirectory(target) as partial:
            shards = _copy(source, partial)
            made = {"source": data, "files": len(files)}
            write_manifest(partial, (), {"train": shards}, made, size=side)
    pieces, reader = open_split(target, "train")
    return Shards(pieces, reader, buffer_for(pieces, buffer_bytes))


def _copy(source: Source, directory: Path) -> list[Shard]:
    shards = []
    with Progress("copying to the cache", source.count, "record") as progress:
        count = max(1, -(-sum(map(os.path.getsize, source.files())) // SHARD_BYTES))
        for number in range(count):
            path = directory / f"train-{number:05d}.tfrecord"
            shards.append(write_shard(path, _serialized(source.share(number, count), progress)))
    return shards


def _serialized(source: Source, progress: Progress) -> Iterator[bytes]:
    for elements in source.in_order().batch(CHUNK).prefetch(1):
        records = source.read(*as_tuple(elements))
        labels = records["label"].numpy().tolist()
        aspects = (
            records["aspect"].numpy().tolist() if "aspect" in records else [None] * len(labels)
        )
        for image, label, aspect in zip(records["image"].numpy(), labels, aspects, strict=True):
            yield serialize(image, label, aspect)
        progress.advance(len(labels))


def _bytes(elements: Any) -> int:
    """Of the encoded images and pixels among a batch of elements."""
    total = 0
    for column in tf.nest.flatten(elements):
        if column.dtype == tf.string:
            total += sum(map(len, column.numpy().tolist()))
        elif column.dtype == tf.uint8:
            total += column.numpy().nbytes
    return total
