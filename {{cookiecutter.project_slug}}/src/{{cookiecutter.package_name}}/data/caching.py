"""`--cache=memory`: training records kept encoded in memory, and read in any order from there."""

import tensorflow as tf

from ..errors import UserError
from ..progress import Progress
from ..runtime import memory_available
from .sources import Indexed, Record, Source

SAMPLE = 256  # records measured to estimate the size of all
# Of what is free: joining the chunks holds every record twice for a moment, and batches need room.
MEMORY_PART = 0.4
CHUNK = 1024  # records


def in_memory(source: Source) -> Indexed:
    """The same examples held in memory, as encoded bytes, with no shuffle buffer between.

    Raises:
      UserError: they would take more than `MEMORY_PART` of the memory that is free.
    """
    sample = min(SAMPLE, source.count)
    measured = sum(_bytes(record) for record in source.shuffled(0, 0).take(sample))
    needed, free = measured * source.count // sample, memory_available()
    if needed > MEMORY_PART * free:
        raise UserError(
            f"--cache=memory: the records take about {needed / 1e9:.1f} GB of {free / 1e9:.1f} GB "
            "free: use --cache=none"
        )
    chunks = []
    with Progress("reading into memory", source.count, "record") as progress:
        for chunk in source.in_order().batch(CHUNK):
            chunks.append(chunk)
            progress.advance(len(chunk["source_index"]))
    records = tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *chunks)

    def read(index: tf.Tensor) -> Record:
        return {name: tf.gather(column, index) for name, column in records.items()}

    return Indexed(source.count, read)


def _bytes(record: Record) -> int:
    return sum(len(value.numpy()) for value in record.values() if value.dtype == tf.string)
