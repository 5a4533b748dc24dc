"""Which record goes into which shard: a function of the records, the flags and the seed alone."""

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence

SHARD_BYTES = 150_000_000  # a power of two of shards then has 106 to 212 MB each
LEAST_SHARDS = 8  # so that eight hosts or readers have a file each,
LEAST_RECORDS = 64  # unless a shard had fewer records than this


@dataclasses.dataclass(frozen=True)
class PlannedShard:
    """A file to write and the indices of its split's records, in the order they are stored."""

    split: str
    file: str
    members: Sequence[int]


def plan(
    counts: Mapping[str, int], record_bytes: int, shards: int, seed: int, suffix: str
) -> list[PlannedShard]:
    """Shuffles each split once and cuts it into shards, even to within one record.

    Args:
      counts: records of each split.
      record_bytes: what a record is expected to take.
      shards: of the training split; 0: a power of two, by size.
      seed: of the shuffle.
      suffix: of the files.
    """
    train = shards or _shards(counts["train"], record_bytes)
    planned = []
    for split, count in counts.items():
        number = train if split == "train" else _like(train, count / counts["train"])
        number = max(1, min(number, count))
        order = list(range(count))
        # Python keeps this generator's output the same from version to version.
        random.Random(f"{seed} {split}").shuffle(order)
        for shard in range(number):
            begin, end = count * shard // number, count * (shard + 1) // number
            file = f"{split}-{shard:05d}-of-{number:05d}{suffix}"
            planned.append(PlannedShard(split, file, order[begin:end]))
    return planned


def _shards(count: int, record_bytes: int) -> int:
    by_size = _power_of_two(count * record_bytes / SHARD_BYTES)
    return max(by_size, min(LEAST_SHARDS, 2 ** int(math.log2(max(1, count // LEAST_RECORDS)))))


def _like(train: int, part: float) -> int:
    """As many shards for a split of `part` of the records, rounded to a power of two."""
    return _power_of_two(train * part)


def _power_of_two(number: float) -> int:
    return 2 ** max(0, round(math.log2(number))) if number > 0 else 1
