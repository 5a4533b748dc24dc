"""Rows held in memory: tables, sequences of tokens, images that fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .indexed import Indexed
from .sources import Record, Splits

HELD_OUT_EVERY = 5  # every fifth row validates


def open_arrays(name: str, columns: Mapping[str, Any], classes: Sequence[str] = ()) -> Splits:
    """Splits of columns in memory; every fifth row validates, always the same ones.

    Args:
      name: of the data, for messages.
      columns: by name, all of one length: arrays, lists or `tf.RaggedTensor`s; a record has an
        entry for each. Ragged ones are padded with zeros to the longest row of a batch.
      classes: their names, if the labels are classes.
    """
    tensors = {key: _tensor(column) for key, column in columns.items()}
    count = int(next(iter(tensors.values())).shape[0])
    held = np.arange(count) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return Splits(
        train=_rows(name, tensors, np.flatnonzero(~held)),
        validation=_rows(name, tensors, np.flatnonzero(held)),
        classes=tuple(classes),
        name=name,
    )


def pad_to_bucket(sequences: tf.Tensor, buckets: Sequence[int]) -> tf.Tensor:
    """Pads a batch to the smallest bucket that its longest sequence fits into.

    A compiled step is compiled once for each length it meets: with buckets, for each of them. What
    is longer than the last bucket is cut off.

    Args:
      sequences: [batch, longest, ...], any dtype, padded with zeros.
      buckets: lengths, rising.

    Returns:
      [batch, bucket, ...].
    """
    longest = tf.shape(sequences)[1]
    lengths = tf.constant(buckets, tf.int32)
    place = tf.minimum(tf.searchsorted(lengths, longest[tf.newaxis])[0], len(buckets) - 1)
    cut = sequences[:, : lengths[-1]]
    more = lengths[place] - tf.shape(cut)[1]
    return tf.pad(cut, [[0, 0], [0, more], *([[0, 0]] * (cut.shape.rank - 2))])


def _rows(name: str, tensors: Mapping[str, Any], numbers: np.ndarray) -> Indexed:
    own = {key: tf.gather(tensor, numbers) for key, tensor in tensors.items()}

    def read(indices: tf.Tensor) -> Record:
        return {
            **{key: _gather(column, indices) for key, column in own.items()},
            "source_file": tf.fill(tf.shape(indices), name),
            "source_index": indices,
        }

    return Indexed(len(numbers), read)


def _tensor(column: Any) -> Any:
    return column if isinstance(column, tf.RaggedTensor) else tf.convert_to_tensor(column)


def _gather(column: Any, indices: tf.Tensor) -> tf.Tensor:
    if isinstance(column, tf.RaggedTensor):
        dense = tf.gather(column, indices).to_tensor()
        return tf.ensure_shape(dense, [indices.shape[0], *dense.shape[1:]])
    return tf.gather(column, indices)
