"""Raw shards: pixels that are read where the operating system keeps them, without a copy.

A file is the pixels of its records, uint8 [records, size, size, 3], then a table of one row a
record (`ROW`). The file is mapped into memory: an element of the pipeline is then a reference, the
shuffle buffer holds no pixels of its own, and the only copy is the one into the batch. TFRecord
files cost a copy to read, one for the buffer and one to parse, and a checksum on every read.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import UserError
from .shards import Shard, crc32_of
from .sources import Record

ROW = np.dtype([("label", "<i8"), ("fingerprint", "<u8"), ("aspect", "<f4"), ("unused", "<u4")])
CHANNELS = 3


def write_raw_shard(path: Path, examples: Iterable[tuple[np.ndarray, int, float]]) -> Shard:
    """Writes one file; returns its line of the manifest.

    Args:
      path: of the file.
      examples: (uint8 image of shape [size, size, 3], label, width / height of the original); all
        of one size.
    """
    rows: list[tuple[int, int, float, int]] = []
    with path.open("wb") as file:
        for image, label, aspect in examples:
            file.write(image.tobytes())
            rows.append((label, fingerprint_of(image), aspect, 0))
        file.write(np.array(rows, ROW).tobytes())
    return Shard(path.name, len(rows), path.stat().st_size, crc32_of(path))


def fingerprint_of(image: np.ndarray) -> int:
    """FarmHash64 (G. Pike) of an image's bytes, `tf.fingerprint`, as the pipeline checks it."""
    hashed = tf.fingerprint(image.reshape(1, -1))
    return int(hashed.numpy().view("<u8")[0, 0])


def read_rows(path: Path, records: int, size: int) -> np.ndarray:
    """The table of a file: an array of `ROW`, shape [records].

    Raises:
      UserError: the file's length is not what this many records of this size take.
    """
    pixels = records * size * size * CHANNELS
    if path.stat().st_size != pixels + records * ROW.itemsize:
        raise UserError(f"{path}: not {records} raw records of {size} pixels: copy the file again")
    return np.fromfile(path, ROW, offset=pixels)


@dataclasses.dataclass(frozen=True)
class RawFiles:
    """Mapped files; an element is (pixels, label, aspect, fingerprint).

    Attributes:
      paths: string [files].
      datasets: variant [files], the elements of each.
      spec: of an element.
      size: side of the images in pixels.
    """

    paths: tf.Tensor
    datasets: tf.Tensor
    spec: Any
    size: int

    def open(self, path: tf.Tensor, read_bytes: int = 0) -> tf.data.Dataset:
        number = tf.argmax(tf.cast(tf.equal(self.paths, path), tf.int32))
        return tf.data.experimental.from_variant(self.datasets[number], self.spec)

    def parse(self, element: Any) -> Record:
        pixels, label, aspect, fingerprint = element
        return {
            "pixels": tf.reshape(pixels, [-1, self.size, self.size, CHANNELS]),
            "label": label,
            "aspect": aspect,
            "fingerprint": fingerprint,
        }

    def find_damage(self, path: str) -> str | None:
        for index, (pixels, _, _, fingerprint) in enumerate(self.open(tf.constant(path))):
            if not tf.reduce_all(_fingerprints(pixels[tf.newaxis])[0] == fingerprint):
                return f"{path}: record {index} is damaged"
        return None


def open_raw(counts: Mapping[str, int], size: int) -> RawFiles:
    """Maps raw files.

    Args:
      counts: how many records each file holds.
      size: side of the images in pixels.

    Raises:
      UserError: a file of another length.
    """
    datasets = []
    for path, count in counts.items():
        rows = read_rows(Path(path), count, size)
        pixels = tf.raw_ops.ImmutableConst(
            dtype=tf.uint8,
            shape=[count, size * size * CHANNELS],
            memory_region_name=os.path.realpath(path),
        )
        columns = (rows["label"], rows["aspect"], rows["fingerprint"].view(np.int64))
        table = map(np.ascontiguousarray, columns)
        datasets.append(tf.data.Dataset.from_tensor_slices((pixels, *table)))
    variants = tf.stack([tf.data.experimental.to_variant(dataset) for dataset in datasets])
    return RawFiles(tf.constant(list(counts)), variants, datasets[0].element_spec, size)


def intact(records: Record) -> tf.Tensor:
    """Which of a batch of raw records have the fingerprint they were written with, bool [batch]."""
    pixels = records["pixels"]
    flat = tf.reshape(pixels, [tf.shape(pixels)[0], -1])
    return tf.equal(_fingerprints(flat), records["fingerprint"])


def _fingerprints(pixels: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tf.fingerprint(pixels), tf.int64)
