"""From encoded records to batches: order, parallelism, batching, padding, prefetch.

encoded records in order -> decode (parallel) -> batch -> uint8 to the device, ahead of time
"""

import re
from collections.abc import Callable

import tensorflow as tf

from ..errors import UserError
from ..runtime import usable_cpus
from .sources import READERS, Record, Source, name_of

# (record, index of the example in training) -> (features, label), any structures of tensors
Decode = Callable[[Record, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

AHEAD = 2  # batches kept ready: one is used while the next is copied; more only costs memory


def training_batches(
    source: Source, decode: Decode, batch_size: int, seed: int, start: int = 0
) -> tf.data.Dataset:
    """Batches of training examples without end.

    A batch may straddle two epochs, so that no example is dropped: batch b holds the positions
    b * batch_size up to (b + 1) * batch_size of `Source.shuffled`.

    Args:
      source: the training split.
      decode: what the host does with one record.
      batch_size: examples of a global batch.
      seed: of the order.
      start: training examples already consumed, to resume after them.

    Returns:
      (features, labels, index) with a static leading dimension batch_size; index is int64
      [batch_size], the examples' positions in training, from which the device draws its randomness.
    """
    examples = source.shuffled(seed, start).enumerate(start=start)

    def decode_at(position: tf.Tensor, record: Record) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return *decode(record, position), position

    batches = _decoded(examples, decode_at).batch(batch_size, drop_remainder=True)
    return batches.prefetch(AHEAD).with_options(_options())


def evaluation_batches(source: Source, decode: Decode, batch_size: int) -> tf.data.Dataset:
    """Every example of a split once, in batches of one static size.

    Args:
      source: the validation split.
      decode: what the host does with one record; its index is the example's place in the split.
      batch_size: examples of a global batch.

    Returns:
      (features, labels, weights) batches; weights is float32 [batch_size]: 1 for an example, 0 for
      what pads the last batch. There are `evaluation_count(source, batch_size)` of them.
    """
    examples = source.in_order().enumerate()

    def decode_at(position: tf.Tensor, record: Record) -> tuple[tf.Tensor, tf.Tensor]:
        return decode(record, position)

    def padded(features: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        count = tf.shape(tf.nest.flatten(labels)[0])[0]
        weights = tf.cast(tf.range(batch_size) < count, tf.float32)

        def pad(values: tf.Tensor) -> tf.Tensor:
            missing = [[0, batch_size - count]] + [[0, 0]] * (values.shape.rank - 1)
            result = tf.pad(values, missing)
            result.set_shape([batch_size, *values.shape[1:]])
            return result

        return *tf.nest.map_structure(pad, (features, labels)), weights

    batches = _decoded(examples, decode_at).batch(batch_size).map(padded)
    count = evaluation_count(source, batch_size)
    batches = batches.apply(tf.data.experimental.assert_cardinality(count))
    return batches.prefetch(AHEAD).with_options(_options())


def evaluation_count(source: Source, batch_size: int) -> int:
    """How many batches `evaluation_batches` gives: the last one may be padded, none is dropped."""
    return -(-source.count // batch_size)


def explain_bad_record(
    source: Source, decode: Decode, seed: int | None, start: int, ahead: int
) -> UserError | None:
    """Finds which record a failed pipeline stumbled over; TensorFlow's message never says.

    Args:
      source: the split that failed.
      decode: what failed.
      seed: of the order; None for the stored order, as in evaluation.
      start: the first position that can be the culprit's.
      ahead: how many positions to try from there.

    Returns:
      An error that names file and record, or None if all of these records decode.
    """
    records = source.in_order().skip(start) if seed is None else source.shuffled(seed, start)
    try:
        for position, record in records.take(ahead).enumerate(start=start):
            try:
                decode(record, position)
            except tf.errors.InvalidArgumentError as error:
                reason = re.sub(r"\{\{.*?\}\} *| *\[Op:.*", "", error.message).strip()
                return UserError(f"{name_of(record)}: cannot be decoded ({reason}): replace it")
    except tf.errors.DataLossError:
        return UserError(f"{source.find_damage()}: copy the file again")
    return None


def _decoded(examples: tf.data.Dataset, decode: Callable) -> tf.data.Dataset:
    # As many at a time as there are CPUs: decoding never waits, so more would only take turns. In
    # order, or an example's place would hang on timing and a resume could not repeat it.
    return examples.map(decode, num_parallel_calls=usable_cpus(), deterministic=True)


def _options() -> tf.data.Options:
    options = tf.data.Options()
    # Batches are split among replicas as they are; the warning about sharding files is moot.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # A pool of its own: TensorFlow's has one thread for each CPU, shared with the model, so that
    # reads that only wait would keep decoding and training from running.
    options.threading.private_threadpool_size = usable_cpus() + READERS
    options.threading.max_intra_op_parallelism = 1
    return options
