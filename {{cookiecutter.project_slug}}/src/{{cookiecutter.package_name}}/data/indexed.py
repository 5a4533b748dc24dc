"""Records that can be read in any order: their order is a permutation computed as it goes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .sources import FOREVER, READERS, Record, Share

PERMUTED = 256  # indices permuted at a time: one by one, calling the function cost more than it


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

    @property
    def read_ahead(self) -> int:
        return READERS if self.load else 0

    def share(self, host: int, hosts: int) -> "Indexed":
        return self.slice(self.count * host // hosts, self.count * (host + 1) // hosts)

    def slice(self, first: int, last: int) -> "Indexed":
        return dataclasses.replace(self, count=last - first, first=self.first + first)

    def in_order(self) -> tf.data.Dataset:
        return self._loaded(tf.data.Dataset.range(self.first, self.first + self.count))

    def shuffled(self, seed: int, start: int, share: Share | None = None) -> tf.data.Dataset:
        permuted = self._permutation(seed)
        positions = share.positions if share else tf.identity
        numbers = tf.data.Dataset.range(FOREVER).batch(PERMUTED)
        return self._loaded(numbers.map(lambda n: permuted(start + positions(n))).unbatch())

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
