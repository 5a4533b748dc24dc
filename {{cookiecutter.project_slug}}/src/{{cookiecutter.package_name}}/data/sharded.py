"""Records in files that are read in sequence, several at a time, and shuffled through a buffer."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from .sources import FOREVER, READERS, Record, Share

# More epochs than a run has. Not 2^31: tf.data's shuffle takes its seed modulo 2^31 - 1.
SEED_STRIDE = 1_000_003

# A read: some records, within bounds. On a network mount each is a round trip, and what is read is
# held: with 8 MiB a reader the readers of 48 files held 384 MiB.
READ_RECORDS, LEAST_READ, MOST_READ = 16, 256 << 10, 8 << 20
# tf.data's parallel interleave reads from `cycle` files, opens two cycles more in advance, and
# takes two elements of each (parallel_interleave_dataset_op.cc).
FILES_A_CYCLE, TAKEN_AHEAD = 3, 2


@dataclasses.dataclass(frozen=True)
class Piece:
    """A run of consecutive records of one file."""

    path: str
    skip: int  # records before it
    take: int  # records in it


class Reader(Protocol):
    """How the files of one format are read."""

    def open(self, path: tf.Tensor, read_bytes: int) -> tf.data.Dataset:
        """The elements of one file, in order; `path` is a scalar string, read so much at a time."""

    def parse(self, *elements: Any) -> Record:
        """What a batch of elements says, without where they lie."""

    def find_damage(self, path: str) -> str | None:
        """Names the first damaged record of a file, or None."""


@dataclasses.dataclass(frozen=True)
class Shards:
    """Records in files that are read in sequence, and shuffled through a buffer."""

    pieces: tuple[Piece, ...]
    reader: Reader
    buffer: int  # records the shuffle buffer holds

    @property
    def count(self) -> int:
        return sum(piece.take for piece in self.pieces)

    @property
    def read_ahead(self) -> int:
        files = min(FILES_A_CYCLE * READERS, len(self.pieces))
        longest = max(piece.take for piece in self.pieces)
        in_buffer = -(-self._read_bytes // self._record_bytes) + TAKEN_AHEAD
        return files * min(longest, in_buffer)

    @functools.cached_property
    def _record_bytes(self) -> int:
        return mean_bytes(self.pieces)

    @property
    def _read_bytes(self) -> int:
        return min(MOST_READ, max(LEAST_READ, READ_RECORDS * self._record_bytes))

    def share(self, host: int, hosts: int) -> "Shards":
        return self.slice(self.count * host // hosts, self.count * (host + 1) // hosts)

    def slice(self, first: int, last: int) -> "Shards":
        pieces, begin = [], 0
        for piece in self.pieces:
            skip = max(first - begin, 0)
            take = min(last - begin, piece.take) - skip
            if take > 0:
                pieces.append(Piece(piece.path, piece.skip + skip, take))
            begin += piece.take
        return dataclasses.replace(self, pieces=tuple(pieces))

    def in_order(self) -> tf.data.Dataset:
        pieces = tf.data.Dataset.from_tensor_slices(self._columns())
        return pieces.flat_map(self._read_piece)

    def shuffled(self, seed: int, start: int, share: Share | None = None) -> tf.data.Dataset:
        columns, cycle = self._columns(), min(READERS, len(self.pieces))

        def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            elements = self._pieces(columns, seed, epoch).interleave(
                self._read_piece, cycle_length=cycle, num_parallel_calls=cycle, deterministic=True
            )
            return self._shuffle(elements, seed, epoch)

        epochs = tf.data.Dataset.range(start // self.count, FOREVER)
        elements = epochs.flat_map(one_epoch).skip(start % self.count)
        # One buffer shuffles for all hosts, so that the order hangs on none of them: each reads all
        # files, and decodes its share alone.
        return share.of(elements) if share else elements

    def epoch(self, seed: int, epoch: int) -> tf.data.Dataset:
        counts = [piece.take for piece in self.pieces]
        begins = tf.constant([0, *itertools.accumulate(counts)][:-1], tf.int64)

        def numbered(
            path: tf.Tensor, skip: tf.Tensor, take: tf.Tensor, begin: tf.Tensor
        ) -> tf.data.Dataset:
            numbers = tf.data.Dataset.range(begin, begin + take)
            return tf.data.Dataset.zip((numbers, self._read_piece(path, skip, take)))

        pieces = self._pieces((*self._columns(), begins), seed, tf.constant(epoch, tf.int64))
        # Two files at a time, and none ahead: a machine that took all of them at once would leave
        # nothing to the others.
        return self._shuffle(pieces.interleave(numbered, cycle_length=2), seed, epoch)

    def read(self, path: tf.Tensor, index: tf.Tensor, *elements: Any) -> Record:
        return {**self.reader.parse(*elements), "source_file": path, "source_index": index}

    def without(self, numbers: Sequence[int]) -> "Shards":
        borders = [-1, *sorted(numbers), self.count]
        kept = [self.slice(a + 1, b).pieces for a, b in itertools.pairwise(borders)]
        return dataclasses.replace(self, pieces=tuple(itertools.chain.from_iterable(kept)))

    def location(self, number: int) -> str:
        [piece] = self.slice(number, number + 1).pieces
        return f"{piece.path}, record {piece.skip}"

    def files(self) -> list[str]:
        return sorted({piece.path for piece in self.pieces})

    def find_damage(self) -> str | None:
        found = (self.reader.find_damage(path) for path in self.files())
        return next(filter(None, found), None)

    def _columns(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        paths = tf.constant([piece.path for piece in self.pieces])
        skips = tf.constant([piece.skip for piece in self.pieces], tf.int64)
        takes = tf.constant([piece.take for piece in self.pieces], tf.int64)
        return paths, skips, takes

    def _pieces(
        self, columns: tuple[tf.Tensor, ...], seed: int, epoch: tf.Tensor
    ) -> tf.data.Dataset:
        """The columns' rows in the order of an epoch."""
        key = tf.stack([tf.constant(seed, tf.int64), epoch])
        order = tf.random.experimental.stateless_shuffle(tf.range(len(self.pieces)), key)
        rows = tuple(tf.gather(column, order) for column in columns)
        return tf.data.Dataset.from_tensor_slices(rows)

    def _shuffle(self, elements: tf.data.Dataset, seed: int, epoch: Any) -> tf.data.Dataset:
        # Far apart for each seed: seed + epoch gave seed 1 the order of seed 0's next epoch.
        return elements.shuffle(
            min(self.buffer, self.count),
            seed=SEED_STRIDE * seed + epoch,
            reshuffle_each_iteration=False,
        )

    def _read_piece(self, path: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.data.Dataset:
        """(path, record number, *element) for every record of a piece."""
        elements = self.reader.open(path, self._read_bytes).skip(skip).take(take)
        # A file that has been cut between two records would else shift all that follows.
        elements = elements.apply(tf.data.experimental.assert_cardinality(take))
        located = (
            tf.data.Dataset.from_tensors(path).repeat(),
            tf.data.Dataset.range(skip, FOREVER),
        )
        return tf.data.Dataset.zip((*located, elements))


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
    return max(1, buffer_bytes // mean_bytes(pieces))


def mean_bytes(pieces: Sequence[Piece]) -> int:
    """Bytes of the files for each record that is read of them, at least 1."""
    total = sum({piece.path: os.path.getsize(piece.path) for piece in pieces}.values())
    return max(1, total // max(1, sum(piece.take for piece in pieces)))
