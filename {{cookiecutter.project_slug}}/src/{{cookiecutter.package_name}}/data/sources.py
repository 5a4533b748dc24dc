"""Records of a data set, in an order that is a function of (seed, epoch, index).

A source gives *elements*, which are cheap to shuffle: the index of a record, or its serialized
bytes. A batch of them is read into a *record* at once: a dict of tensors whose leading dimension is
the batch.

| key | tensor | |
|---|---|---|
| any | any [batch, ...] | a column of `arrays.py`; of images: |
| `image` | string [batch] | encoded; or, instead, |
| `pixels` | uint8 [batch, side, side, 3] | squares, stored as they are |
| `label` | int64 [batch] | |
| `aspect` | float32 [batch] | width / height of the original, where squares are stored |
| `side` | int32 scalar, constant | of the stored squares, where `image` holds such |
| `fingerprint` | int64 [batch] | of `pixels`, as they were written |
| `source_file`, `source_index` | string, int64 [batch] | where it lies, to name a bad one |

Records stay encoded: a shuffle buffer or a cache of decoded images would be 5 to 10 times as large.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

Record = dict[str, tf.Tensor]

# Files or records read at a time; with fewer, disks and network mounts are bound by latency.
READERS = 16
FOREVER = tf.int64.max


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of every global batch that one of several hosts reads: host 0 the first, and so on.

    A replica so gets the same examples of a step whether the others are on its host or elsewhere.
    """

    batch_size: int  # of a global batch; the hosts divide it
    host: int = 0
    hosts: int = 1

    @property
    def size(self) -> int:
        """Examples of each global batch."""
        return self.batch_size // self.hosts

    def positions(self, numbers: Any) -> Any:
        """Where the share's examples lie in training, from a border between batches on.

        Args:
          numbers: int64 of any shape, which of the share's examples.
        """
        if self.hosts == 1:
            return numbers
        first = numbers // self.size * self.batch_size + self.host * self.size
        return first + numbers % self.size

    def of(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """The share's elements of those from a border between batches on."""
        if self.hosts == 1:
            return elements
        # Whole windows are passed over: a filter, called for each element, took 40 us of CPU.
        windows = elements.window(self.size, drop_remainder=True).shard(self.hosts, self.host)
        return windows.flat_map(lambda *parts: tf.data.Dataset.zip(parts))


class Source(Protocol):
    """The examples of one split."""

    @property
    def count(self) -> int:
        """How many there are; always known, so that steps and epochs are."""

    @property
    def read_ahead(self) -> int:
        """How many records its readers may hold beyond those that were taken from them."""

    def share(self, host: int, hosts: int) -> "Source":
        """One of several runs of consecutive records, even to within one example."""

    def in_order(self) -> tf.data.Dataset:
        """Every element once, in stored order: for evaluation."""

    def shuffled(self, seed: int, start: int, share: Share | None = None) -> tf.data.Dataset:
        """Epoch after epoch without end, each a new order, from the `start`-th example of training.

        With a `share`, the elements of one host.

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
    """A data set: its two splits and the names of its classes by label, none if it has none."""

    train: Source
    validation: Source
    classes: tuple[str, ...]
    name: str = ""  # where it is another than --data


def as_tuple(elements: Any) -> tuple[Any, ...]:
    """What `Source.read` takes: a data set of single tensors gives them bare."""
    return elements if isinstance(elements, tuple) else (elements,)


def first_records(source: Source, count: int) -> Source:
    """The first `count` to 2 * `count` records of a source, or all of a smaller one."""
    hosts = max(1, source.count // count)
    return source.share(0, hosts)


def checked_labels(records: Record, classes: int) -> tf.Tensor:
    """The labels, int64 [batch]; fails where one is none of the classes 0 to `classes` - 1."""
    labels = records["label"]  # out of range it would be no class at all, and cost nothing to miss
    in_range = tf.reduce_all((labels >= 0) & (labels < classes))
    message = ["label", labels, "is none of the classes 0 to", classes - 1]
    with tf.control_dependencies([tf.debugging.Assert(in_range, message)]):
        return tf.identity(labels)


def names_of(records: Record) -> list[str]:
    """Where each record of a batch lies: a file, or a file and the record's number in it."""
    paths = [path.decode() for path in records["source_file"].numpy()]
    indices = records["source_index"].numpy().tolist()
    return [
        path if index < 0 else f"{path}, record {index}"
        for path, index in zip(paths, indices, strict=True)
    ]
