"""Encoded records of a data set, in an order that is a function of (seed, epoch, index).

A record is a dict of scalar tensors: the features (`image`, encoded bytes, and `label`, int64, for
the sources here) and where they lie (`source_file`, `source_index`), so that a bad one can be
named. Records stay encoded: a shuffle buffer or a cache of decoded images would be 5 to 10 times as
large.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import tensorflow as tf

from ..errors import UserError

Record = dict[str, tf.Tensor]

# Files or records read at a time; with fewer, disks and network mounts are bound by latency.
READERS = 16
FOREVER = tf.int64.max
# More epochs than a run has. Not 2^31: tf.data's shuffle takes its seed modulo 2^31 - 1.
SEED_STRIDE = 1_000_003


class Source(Protocol):
    """The examples of one split."""

    @property
    def count(self) -> int:
        """How many there are; always known, so that steps and epochs are."""

    def share(self, host: int, hosts: int) -> "Source":
        """The part that one of several hosts reads; the parts are even to within one example."""

    def in_order(self) -> tf.data.Dataset:
        """Every record once, in stored order: for evaluation."""

    def shuffled(self, seed: int, start: int) -> tf.data.Dataset:
        """Epoch after epoch without end, each a new order, from the `start`-th example of training.

        Position p is example p mod count of epoch p div count, whatever the number of hosts,
        replicas or restarts: that is what makes a resumed run see no example twice and lose none.
        """

    def find_damage(self) -> str | None:
        """Reads everything to find a record that fails its checksum; TensorFlow names no file."""


@dataclasses.dataclass(frozen=True)
class Splits:
    """A data set: its two splits and the names of its classes, by label."""

    train: Source
    validation: Source
    classes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Indexed:
    """Records that can be read in any order: files of a folder, rows in memory."""

    count: int
    read: Callable[[tf.Tensor], Record]  # index, a scalar int64 -> record
    first: int = 0  # the index of the first record

    def share(self, host: int, hosts: int) -> "Indexed":
        begin, end = self.count * host // hosts, self.count * (host + 1) // hosts
        return Indexed(end - begin, self.read, self.first + begin)

    def in_order(self) -> tf.data.Dataset:
        return self._read_all(tf.data.Dataset.range(self.count))

    def shuffled(self, seed: int, start: int) -> tf.data.Dataset:
        count = tf.constant(self.count, tf.int64)

        def index_at(position: tf.Tensor) -> tf.Tensor:
            # A permutation computed index by index: nothing to fill at the start of an epoch, and
            # resuming costs the same anywhere.
            epoch = position // count
            key = tf.stack([tf.constant(seed, tf.int64), epoch])
            return tf.random.experimental.index_shuffle(position % count, key, count - 1)

        return self._read_all(tf.data.Dataset.range(start, FOREVER).map(index_at))

    def find_damage(self) -> str | None:
        return None  # images carry no checksum: only decoding tells

    def _read_all(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        return indices.map(
            lambda index: self.read(index + self.first),
            num_parallel_calls=READERS,
            deterministic=True,
        )


@dataclasses.dataclass(frozen=True)
class Piece:
    """A run of consecutive records of one TFRecord file."""

    path: str
    skip: int  # records before it
    take: int  # records in it


@dataclasses.dataclass(frozen=True)
class Shards:
    """Records in TFRecord files, read in sequence and shuffled through a buffer."""

    pieces: tuple[Piece, ...]
    parse: Callable[[tf.Tensor], Record]  # a serialized record, scalar string -> features
    buffer: int  # records the shuffle buffer holds

    @property
    def count(self) -> int:
        return sum(piece.take for piece in self.pieces)

    def share(self, host: int, hosts: int) -> "Shards":
        first, last = self.count * host // hosts, self.count * (host + 1) // hosts
        share, begin = [], 0
        for piece in self.pieces:
            skip = max(first - begin, 0)
            take = min(last - begin, piece.take) - skip
            if take > 0:
                share.append(Piece(piece.path, piece.skip + skip, take))
            begin += piece.take
        return Shards(tuple(share), self.parse, self.buffer)

    def in_order(self) -> tf.data.Dataset:
        return self._located(self._table().flat_map(_read_piece))

    def shuffled(self, seed: int, start: int) -> tf.data.Dataset:
        paths, skips, takes = self._columns()
        cycle = min(READERS, len(self.pieces))

        def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            key = tf.stack([tf.constant(seed, tf.int64), epoch])
            order = tf.random.experimental.stateless_shuffle(tf.range(len(self.pieces)), key)
            columns = tuple(tf.gather(column, order) for column in (paths, skips, takes))
            records = tf.data.Dataset.from_tensor_slices(columns).interleave(
                _read_piece, cycle_length=cycle, num_parallel_calls=cycle, deterministic=True
            )
            # Far apart for each seed: seed + epoch gave seed 1 the order of seed 0's next epoch.
            return records.shuffle(
                min(self.buffer, self.count),
                seed=SEED_STRIDE * seed + epoch,
                reshuffle_each_iteration=False,
            )

        epochs = tf.data.Dataset.range(start // self.count, FOREVER)
        return self._located(epochs.flat_map(one_epoch).skip(start % self.count))

    def find_damage(self) -> str | None:
        for piece in self.pieces:
            count = 0
            try:
                for _ in tf.data.TFRecordDataset(piece.path):
                    count += 1
            except tf.errors.DataLossError:
                return f"{piece.path}: record {count} is damaged"
        return None

    def _columns(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        paths = tf.constant([piece.path for piece in self.pieces])
        skips = tf.constant([piece.skip for piece in self.pieces], tf.int64)
        takes = tf.constant([piece.take for piece in self.pieces], tf.int64)
        return paths, skips, takes

    def _table(self) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._columns())

    def _located(self, records: tf.data.Dataset) -> tf.data.Dataset:
        def features(path: tf.Tensor, index: tf.Tensor, serialized: tf.Tensor) -> Record:
            return {**self.parse(serialized), "source_file": path, "source_index": index}

        return records.map(features, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def split_tail(pieces: Sequence[Piece], part: float) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Cuts the last `part` of every file off, to validate where a data set has no such split."""
    head, tail = [], []
    for piece in pieces:
        cut = piece.take - max(1, round(piece.take * part)) if piece.take > 1 else 1
        head.append(Piece(piece.path, piece.skip, cut))
        if cut < piece.take:
            tail.append(Piece(piece.path, piece.skip + cut, piece.take - cut))
    return tuple(head), tuple(tail)


def buffer_for(pieces: Sequence[Piece], buffer_bytes: int) -> int:
    """How many records of this mean size a shuffle buffer of `buffer_bytes` holds, at least 1."""
    total = sum({piece.path: os.path.getsize(piece.path) for piece in pieces}.values())
    records = max(1, sum(piece.take for piece in pieces))
    return max(1, buffer_bytes * records // max(1, total))


def first_records(source: Source, count: int) -> Source:
    """The first `count` to 2 * `count` records of a source, or all of a smaller one."""
    hosts = max(1, source.count // count)
    return source.share(0, hosts)


def name_of(record: Record) -> str:
    """Where a record lies, for a message: a file, or a file and the record's number in it."""
    path, index = bytes(record["source_file"].numpy()).decode(), int(record["source_index"])
    return path if index < 0 else f"{path}, record {index}"


def existing_directory(path: str, flag: str) -> Path:
    """`path` as a directory that exists; `UserError` names the flag if it does not."""
    directory = Path(path).expanduser()
    if not directory.exists():
        raise UserError(f"{flag}: there is no directory {directory}: check the path")
    if not directory.is_dir():
        raise UserError(f"{flag}: {directory} is a file: name the directory that holds the data")
    return directory


def _read_piece(path: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.data.Dataset:
    """(path, record number, serialized record) for every record of a piece."""
    # 8 MiB a read: TFRecordDataset's default of 256 KiB makes 32 times as many requests, each a
    # round trip on a network mount.
    records = tf.data.TFRecordDataset(path, buffer_size=8 << 20).skip(skip).take(take)
    return records.enumerate(start=skip).map(lambda index, record: (path, index, record))
