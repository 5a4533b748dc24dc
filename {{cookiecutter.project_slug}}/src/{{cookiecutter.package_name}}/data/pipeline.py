"""From elements to batches: order, parallelism, padding, prefetch.

elements in order -> batch -> read and decode, a batch a thread -> uint8 to the device, ahead
"""

import os
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..errors import UserError
from ..runtime import usable_cpus
from .indexed import Indexed
from .raw import intact
from .sources import READERS, Record, Share, Source, as_tuple, names_of

# (records of a batch, the examples' indices in training, int64 [batch]) -> (features, labels), any
# structures of tensors whose leading dimension is the batch
Decode = Callable[[Record, tf.Tensor], tuple[Any, Any]]

AHEAD = 2  # batches kept ready: one is used while the next is copied; more only costs memory
# Examples that one thread decodes at a time, at most. Where that is a whole batch, the images are
# decoded and copied to their place in it; parts of a batch are copied once more, to be joined.
PART = 128


def training_batches(
    source: Source,
    decode: Decode,
    batch_size: int,
    seed: int,
    start: int = 0,
    in_order: bool = True,
    threads: int = 0,
    host: int = 0,
    hosts: int = 1,
) -> tf.data.Dataset:
    """Batches of training examples without end.

    A batch may straddle two epochs, so that no example is dropped: batch b holds the positions
    b * batch_size up to (b + 1) * batch_size of `Source.shuffled`.

    Args:
      source: the training split.
      decode: what the host does with a batch of records, or with an even part of one.
      batch_size: examples of a global batch.
      seed: of the order.
      start: training examples already consumed, to resume after them.
      in_order: False gives batches as they are decoded, to measure what keeping the order costs.
      threads: batches, or parts of them, decoded at a time; 0: one more than there are CPUs.
      host, hosts: which of how many hosts this is; each gets its share of every batch.

    Returns:
      (features, labels, index) with a static leading dimension batch_size / hosts; index is int64
      of that shape, the examples' positions in training, from which the device draws its
      randomness.
    """
    share = Share(batch_size, host, hosts)
    elements = source.shuffled(seed, start, share)
    return _batches(elements, source, decode, share, start, in_order, threads)


def evaluation_batches(
    source: Source, decode: Decode, batch_size: int, host: int = 0, hosts: int = 1
) -> tf.data.Dataset:
    """Every example of a split once, in batches of one static size.

    Args:
      source: the validation split.
      decode: what the host does with a batch of records; its indices are their places in the split.
      batch_size: examples of a global batch.
      host, hosts: which of how many hosts this is; each gets an even run of the split's examples.

    Returns:
      (features, labels, weights) batches of batch_size / hosts; weights is float32 of that shape: 1
      for an example, 0 for the first ones of the host's run once more, which fill its last batch
      up. On every host there are `evaluation_count(source, batch_size)` of them.
    """
    count, size = evaluation_count(source, batch_size), batch_size // hosts
    source = source.share(host, hosts)

    def weighted(features: Any, labels: Any, positions: tf.Tensor) -> tuple[Any, Any, tf.Tensor]:
        return features, labels, tf.cast(positions < source.count, tf.float32)

    elements = source.in_order().repeat().take(count * size)
    batches = _batches(elements, source, decode, Share(size), 0).map(weighted)
    return batches.apply(tf.data.experimental.assert_cardinality(count))


def evaluation_count(source: Source, batch_size: int) -> int:
    """How many batches `evaluation_batches` gives: the last one may be padded, none is dropped."""
    return -(-source.count // batch_size)


def examples_ahead(batch_size: int, threads: int = 0) -> int:
    """How many examples the pipeline may have read beyond those that were taken from it."""
    return _part(batch_size) * (threads or usable_cpus() + 1) + (AHEAD + 1) * batch_size


def decoded_in_order(source: Source, decode: Decode) -> tf.data.Dataset:
    """Reads and decodes every record once, `PART` at a time; gives how many each time."""

    def count(*element: Any) -> tuple[tf.Tensor, Any]:
        records = _verified(source.read(*element), tf.constant(True))
        number = tf.shape(tf.nest.flatten(records)[0])[0]
        # What is decoded is given too: unused, it would not be decoded.
        return number, decode(records, tf.range(tf.cast(number, tf.int64)))

    batches = source.in_order().batch(PART)
    decoded = batches.map(count, num_parallel_calls=usable_cpus(), deterministic=True)
    return decoded.map(lambda number, decoded: number).with_options(_options(source))


def why_bad(records: Record, decode: Decode, position: int) -> str:
    """Why a batch of one record cannot be decoded, in TensorFlow's words; "" if it can."""
    try:
        decode(_verified(records, tf.constant(True)), tf.constant([position], tf.int64))
    except tf.errors.InvalidArgumentError as error:
        message = re.sub(r"\{\{.*?\}\} *| *\[Op:.*", "", error.message)
        # An assertion's own words come last, as the bytes they are to TensorFlow.
        said = message.rpartition("Summarized data:")[2]
        return " ".join(re.sub(r"b'([^']*)'", r"\1", said).split())
    return ""


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
    elements = source.in_order().skip(start) if seed is None else source.shuffled(seed, start)
    try:
        for position, element in enumerate(elements.take(ahead).batch(1), start):
            records = source.read(*as_tuple(element))
            reason = why_bad(records, decode, position)
            if reason:
                return UserError(
                    f"{names_of(records)[0]}: cannot be decoded ({reason}): replace it, or leave "
                    "it out with --bad_records=skip"
                )
    except tf.errors.DataLossError:
        return UserError(
            f"{source.find_damage()}: copy the file again, or leave the record out with "
            "--bad_records=skip"
        )
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError) as error:
        gone = [file for file in source.files() if not os.path.exists(file)]
        what = f"{gone[0]} is gone" if gone else f"a file ends too early ({error.message})"
        return UserError(f"{what}: copy it again")
    return None


def _batches(
    elements: tf.data.Dataset,
    source: Source,
    decode: Decode,
    share: Share,
    start: int,
    in_order: bool = True,
    threads: int = 0,
) -> tf.data.Dataset:
    """(features, labels, positions) batches of a share's elements from position `start` on."""
    part = _part(share.size)
    read_once = -(-start // source.count) * source.count + source.count

    def decode_at(number: tf.Tensor, element: Any) -> tuple[Any, Any, tf.Tensor]:
        positions = start + share.positions(part * number + tf.range(part, dtype=tf.int64))
        records = _verified(source.read(*as_tuple(element)), positions[0] < read_once)
        return *decode(records, positions), positions

    # One more at a time than there are CPUs: a part that is done before its turn keeps its place,
    # and a CPU would have nothing to do meanwhile. In order, or an example's place would hang on
    # timing and a resume could not repeat it.
    parts = (
        elements.batch(part, drop_remainder=True)
        .enumerate()
        .map(decode_at, num_parallel_calls=threads or usable_cpus() + 1, deterministic=in_order)
    )
    if part < share.size:
        parts = _gathered(parts, share.size // part).map(_join)
    return parts.prefetch(AHEAD).with_options(_options(source, threads))


def _part(batch_size: int) -> int:
    """The largest divisor of the batch size up to `PART`; all of it where that would be small."""
    largest = next(p for p in range(min(PART, batch_size), 0, -1) if batch_size % p == 0)
    return largest if largest >= PART // 8 else batch_size


def _gathered(parts: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """So many parts at a time; those of sequences are padded to the longest."""
    specs = tf.nest.flatten(parts.element_spec)
    if all(spec.shape.is_fully_defined() for spec in specs):
        return parts.batch(count, drop_remainder=True)
    return parts.padded_batch(count, drop_remainder=True)


def _join(*parts: Any) -> Any:
    """[parts, part, ...] -> [parts * part, ...]."""

    def join(tensor: tf.Tensor) -> tf.Tensor:
        count = tensor.shape[0] * tensor.shape[1]
        return tf.reshape(tensor, tf.concat([[count], tf.shape(tensor)[2:]], 0))

    return tf.nest.map_structure(join, parts)


def _verified(records: Record, wanted: tf.Tensor) -> Record:
    """The same records, of which those in raw files were found intact if `wanted`.

    TFRecord files carry checksums that are computed on every read. For raw files that took a
    third of the rate, so that it is done the first time a record is read.
    """
    if "fingerprint" not in records:
        return records
    good = tf.cond(wanted, lambda: tf.reduce_all(intact(records)), lambda: True)
    message = "its pixels are not those that were written"
    with tf.control_dependencies([tf.debugging.Assert(good, [message])]):
        return {**records, "pixels": tf.identity(records["pixels"])}


def _options(source: Source, threads: int = 0) -> tf.data.Options:
    options = tf.data.Options()
    # Batches are split among replicas as they are; the warning about sharding files is moot.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # A pool of its own: TensorFlow's has one thread for each CPU, shared with the model, so that
    # reads that only wait would keep decoding and training from running. A file for every record
    # is a wait for every record. Shards are read 8 MiB at a time: with 16 threads more instead of
    # 2, decoding a prepared JPEG took 14 % more CPU here.
    waiting = READERS if isinstance(source, Indexed) and source.load else 2
    options.threading.private_threadpool_size = max(usable_cpus(), threads) + waiting
    options.threading.max_intra_op_parallelism = 1
    return options
