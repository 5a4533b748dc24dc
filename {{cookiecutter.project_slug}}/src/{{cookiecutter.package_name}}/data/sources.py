"""Records of a data set, in an order that is a function of (seed, epoch, index).

A source gives *elements*, which are cheap to shuffle: the index of a record, or its serialized
bytes. A batch of them is read into a *record* at once: a dict of tensors whose leading dimension is
the batch.

| key | tensor | |
|---|---|---|
| `image` | string [batch] | encoded; or, instead, |
| `pixels` | uint8 [batch, side, side, 3] | squares, stored as they are |
| `label` | int64 [batch] | |
| `aspect` | float32 [batch] | width / height of the original, where squares are stored |
| `side` | int32 scalar, constant | of the stored squares, where `image` holds such |
| `source_file`, `source_index` | string, int64 [batch] | where it lies, to name a bad one |

Records stay encoded: a shuffle buffer or a cache of decoded images would be 5 to 10 times as large.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

Record = dict[str, tf.Tensor]

# Files or records read at a time; with fewer, disks and network mounts are bound by latency.
READERS = 16
FOREVER = tf.int64.max
# More epochs than a run has. Not 2^31: tf.data's shuffle takes its seed modulo 2^31 - 1.
SEED_STRIDE = 1_000_003
PERMUTED = 256  # indices permuted at a time: one by one, calling the function cost more than it


class Source(Protocol):
    """The examples of one split."""

    @property
    def count(self) -> int:
        """How many there are; always known, so that steps and epochs are."""

    def share(self, host: int, hosts: int) -> "Source":
        """The part that one of several hosts reads; the parts are even to within one example."""

    def in_order(self) -> tf.data.Dataset:
        """Every element once, in stored order: for evaluation."""

    def shuffled(self, seed: int, start: int) -> tf.data.Dataset:
        """Epoch after epoch without end, each a new order, from the `start`-th example of training.

        Position p is example p mod count of epoch p div count, whatever the number of hosts,
        replicas or restarts: that is what makes a resumed run see no example twice and lose none.
        """

    def epoch(self, seed: int, epoch: int) -> tf.data.Dataset:
        """(number in stored order, element) of every record once: what a data service hands out.

        Its first part is a list of units, files or ranges, that machines can take turns at.
        """

    def read(self, *elements: Any) -> Record:
        """The records of a batch of elements."""

    def without(self, numbers: Sequence[int]) -> "Source":
        """All records but those with these numbers in stored order."""

    def slice(self, first: int, last: int) -> "Source":
        """The records from number `first` in stored order up to `last`, which is left out."""

    def location(self, number: int) -> str:
        """Where a record lies, by its number in stored order: a file, and which record of it."""

    def files(self) -> list[str]:
        """The files that the records lie in; none for what is held in memory."""

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
    """Records that can be read in any order: files of a folder, rows in memory.

    Attributes:
      count: how many.
      read: a batch of elements -> the records; an element is an index, int64, and what `load` gave.
      load: reads the bytes of one index, where that waits for a disk; done `READERS` at a time.
      first: the index of the first record.
      names: the file of each index, where each record is a file of its own.
    """

    count: int
    read: Callable[..., Record]
    load: Callable[[tf.Tensor], tf.Tensor] | None = None
    first: int = 0
    names: Sequence[str] = ()

    def share(self, host: int, hosts: int) -> "Indexed":
        return self.slice(self.count * host // hosts, self.count * (host + 1) // hosts)

    def slice(self, first: int, last: int) -> "Indexed":
        return dataclasses.replace(self, count=last - first, first=self.first + first)

    def in_order(self) -> tf.data.Dataset:
        return self._loaded(tf.data.Dataset.range(self.first, self.first + self.count))

    def shuffled(self, seed: int, start: int) -> tf.data.Dataset:
        positions = tf.data.Dataset.range(start, FOREVER).batch(PERMUTED)
        return self._loaded(positions.map(self._permutation(seed)).unbatch())

    def epoch(self, seed: int, epoch: int) -> tf.data.Dataset:
        begin, end = epoch * self.count, (epoch + 1) * self.count
        units = tf.data.Dataset.range(begin, end, PERMUTED)
        permuted = self._permutation(seed)

        def indices_of(first: tf.Tensor) -> tf.Tensor:
            return permuted(tf.range(first, tf.minimum(first + PERMUTED, end)))

        def numbered(index: tf.Tensor, *loaded: tf.Tensor) -> tuple[tf.Tensor, Any]:
            return index - self.first, (index, *loaded) if loaded else index

        # One chain from the units on: a service hands units out to each place that asks for them.
        return self._loaded(units.map(indices_of).unbatch()).map(numbered)

    def without(self, numbers: Sequence[int]) -> "Indexed":
        bad = set(numbers)
        kept = [self.first + i for i in range(self.count) if i not in bad]
        indices, load = tf.constant(kept, tf.int64), self.load
        return Indexed(
            count=len(kept),
            read=lambda index, *loaded: self.read(tf.gather(indices, index), *loaded),
            load=None if load is None else lambda index: load(tf.gather(indices, index)),
            names=[self.names[index] for index in kept] if self.names else (),
        )

    def location(self, number: int) -> str:
        index = self.first + number
        return self.names[index] if self.names else f"record {index}"

    def files(self) -> list[str]:
        return list(self.names[self.first : self.first + self.count])

    def find_damage(self) -> str | None:
        return None  # images carry no checksum: only decoding tells

    def _permutation(self, seed: int) -> Callable[[tf.Tensor], tf.Tensor]:
        """Positions in training, int64 [n] -> indices, int64 [n]."""
        count, seed_ = tf.constant(self.count, tf.int64), tf.constant(seed, tf.int64)

        def indices_at(positions: tf.Tensor) -> tf.Tensor:
            # A permutation computed index by index: nothing to fill at the start of an epoch, and
            # resuming costs the same anywhere.
            epochs = positions // count
            keys = tf.stack([tf.fill(tf.shape(epochs), seed_), epochs, tf.zeros_like(epochs)], 1)
            # The public function takes no matrix of keys, though its documentation says so.
            return self.first + tf.raw_ops.RandomIndexShuffle(
                index=positions % count, seed=keys, max_index=count - 1
            )

        return indices_at

    def _loaded(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        load = self.load
        if load is None:
            return indices
        return indices.map(
            lambda index: (index, load(index)), num_parallel_calls=READERS, deterministic=True
        )


@dataclasses.dataclass(frozen=True)
class Piece:
    """A run of consecutive records of one file."""

    path: str
    skip: int  # records before it
    take: int  # records in it


class Reader(Protocol):
    """How the files of one format are read."""

    def open(self, path: tf.Tensor) -> tf.data.Dataset:
        """The elements of one file, in order; `path` is a scalar string."""

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

    def shuffled(self, seed: int, start: int) -> tf.data.Dataset:
        columns, cycle = self._columns(), min(READERS, len(self.pieces))

        def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            elements = self._pieces(columns, seed, epoch).interleave(
                self._read_piece, cycle_length=cycle, num_parallel_calls=cycle, deterministic=True
            )
            return self._shuffle(elements, seed, epoch)

        epochs = tf.data.Dataset.range(start // self.count, FOREVER)
        return epochs.flat_map(one_epoch).skip(start % self.count)

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
        elements = self.reader.open(path).skip(skip).take(take)
        # A file that has been cut between two records would else shift all that follows.
        elements = elements.apply(tf.data.experimental.assert_cardinality(take))
        located = (
            tf.data.Dataset.from_tensors(path).repeat(),
            tf.data.Dataset.range(skip, FOREVER),
        )
        return tf.data.Dataset.zip((*located, elements))


def as_tuple(elements: Any) -> tuple[Any, ...]:
    """What `Source.read` takes: a data set of single tensors gives them bare."""
    return elements if isinstance(elements, tuple) else (elements,)


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


def names_of(records: Record) -> list[str]:
    """Where each record of a batch lies: a file, or a file and the record's number in it."""
    paths = [path.decode() for path in records["source_file"].numpy()]
    indices = records["source_index"].numpy().tolist()
    return [
        path if index < 0 else f"{path}, record {index}"
        for path, index in zip(paths, indices, strict=True)
    ]
