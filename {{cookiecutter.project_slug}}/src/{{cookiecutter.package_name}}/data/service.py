"""`--data_service`: batches that the workers of a tf.data service read and decode.

Each epoch is a data set of its own on the service. Its units, files or ranges of them, are handed
out to the workers as they ask (dynamic sharding), so that every record comes once an epoch from
whatever machine, and the next epoch begins when all of the last one has come. The order is that of
arrival: a run is not repeatable bit for bit, and one that resumes within an epoch may see a record
of that epoch twice and another not at all.
"""

import re
import socket
import time
from typing import Any

import tensorflow as tf

from ..errors import UserError
from .pipeline import AHEAD, PART, Decode
from .sources import Source, as_tuple

REACHED_SECONDS = 10  # it may be started a little later than the training


def service_batches(
    source: Source, decode: Decode, batch_size: int, seed: int, start: int, steps: int, address: str
) -> tf.data.Dataset:
    """Training batches from a tf.data service, as `pipeline.training_batches` gives them.

    Args:
      source: the training split; its files are read by the workers, under the same paths.
      decode: what a worker does with a batch of records.
      batch_size: examples of a global batch.
      seed: of the order.
      start: training examples already consumed.
      steps: batches that will be taken at most.
      address: of the dispatcher, grpc://HOST:PORT.

    Returns:
      (features, labels, index) batches; index is int64 [batch_size]: epoch * count + the record's
      number in stored order.

    Raises:
      UserError: no dispatcher answers at that address.
    """
    if any(file.endswith(".raw") for file in source.files()):
        raise UserError(
            "--data_service: raw records need no decoding, and a service would only send them over "
            "the network: leave the flag out"
        )
    _require_dispatcher(address)
    service = tf.data.experimental.service
    first, last = start // source.count, (start + steps * batch_size - 1) // source.count
    epochs = [_epoch(source, decode, seed, epoch) for epoch in range(first, last + 1)]
    # Images do not compress: it would only cost both ends time.
    ids = [service.register_dataset(address, e, compression=None) for e in epochs]
    numbers, spec = tf.stack(ids), epochs[0].element_spec

    def received(epoch: tf.Tensor) -> tf.data.Dataset:
        batches = service.from_dataset_id(
            processing_mode=service.ShardingPolicy.DYNAMIC,
            service=address,
            dataset_id=numbers[epoch],
            element_spec=spec,
        )
        return _complete(batches, source.count)

    # A benchmark takes more steps than the training has: it goes round.
    batches = tf.data.Dataset.range(len(epochs)).repeat().flat_map(received)
    batches = batches.rebatch(batch_size, drop_remainder=True)
    return batches.skip(start % source.count // batch_size).prefetch(AHEAD)


def _complete(batches: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """The same batches of an epoch; an error at its end if they do not hold `count` examples.

    A worker that dies takes with it what it had been handed out: the service does not say so.
    """

    def empty(spec: tf.TensorSpec) -> tf.Tensor:
        return tf.zeros([0, *spec.shape[1:]], spec.dtype)

    end = tf.nest.map_structure(empty, batches.element_spec)

    def counted(total: tf.Tensor, batch: Any) -> tuple[tf.Tensor, Any]:
        size = tf.shape(batch[-1], tf.int64)[0]
        message = ["the data service gave", total, "of", count, "records: a worker died"]
        good = (size > 0) | (total == count)
        with tf.control_dependencies([tf.debugging.Assert(good, message)]):
            return total + size, batch

    ended = batches.concatenate(tf.data.Dataset.from_tensors(end))
    checked = ended.scan(tf.constant(0, tf.int64), counted)
    return checked.filter(lambda *batch: tf.shape(batch[-1])[0] > 0)


def _require_dispatcher(address: str) -> None:
    """Raises `UserError` if nothing listens there: TensorFlow would wait for ever, unsaid."""
    found = re.fullmatch(r"grpc://(.+):(\d+)", address)
    if not found:
        raise UserError(f"--data_service={address}: give grpc://HOST:PORT of the dispatcher")
    deadline = time.monotonic() + REACHED_SECONDS
    while True:
        try:
            socket.create_connection((found[1], int(found[2])), REACHED_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                reason = error.strerror or error
                raise UserError(
                    f"--data_service={address}: no dispatcher answers ({reason}): start it first"
                ) from None
            time.sleep(0.5)


def _epoch(source: Source, decode: Decode, seed: int, epoch: int) -> tf.data.Dataset:
    def decode_at(numbers: tf.Tensor, elements: Any) -> tuple[Any, Any, tf.Tensor]:
        index = epoch * source.count + numbers
        return *decode(source.read(*as_tuple(elements)), index), index

    batches = source.epoch(seed, epoch).batch(PART)
    # How many CPUs a worker has is known on its machine alone.
    return batches.map(decode_at, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
