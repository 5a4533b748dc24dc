"""`synthetic[:COUNT]`: photo-like JPEGs, made once in parallel and kept as TFRecord shards."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import tensorflow as tf

from ..errors import UserError
from ..progress import Progress
from ..runtime import usable_cpus
from .listing import SYNTHETIC_COUNT, SYNTHETIC_VERSION, synthetic_directory
from .photos import NUM_CLASSES, photo
from .records import open_records
from .shards import NewDirectory, Shard, serialize, write_manifest, write_shard
from .sources import Splits

VALIDATION_PART = 0.1
SHARD_SIZE = 250  # photos, about 25 MB
SEED = 2021  # of the photos themselves; the training seed only orders and crops them


def open_synthetic(count: str, cache_dir: Path, buffer_bytes: int) -> Splits:
    """Opens the photos, making them first where they are not kept yet.

    Args:
      count: how many photos, as the user typed it; "" for the default.
      cache_dir: where sets of photos are kept.
      buffer_bytes: how much the shuffle buffer may hold.

    Raises:
      UserError: a count that is no number of 20 or more.
    """
    photos = int(count) if count.isdigit() else 0 if count else SYNTHETIC_COUNT
    if photos < 2 * NUM_CLASSES:
        raise UserError(
            f"--data=synthetic:{count}: give a number of photos of {2 * NUM_CLASSES} up"
        )
    directory = synthetic_directory(photos, cache_dir)
    if not directory.exists():
        with NewDirectory(directory) as partial:
            _make(partial, photos)
    return open_records(str(directory), buffer_bytes)


def _make(directory: Path, photos: int) -> None:
    held = max(NUM_CLASSES, round(photos * VALIDATION_PART))
    ranges = {"train": (0, photos - held), "validation": (photos - held, photos)}
    jobs = [
        (directory / f"{split}-{begin:06d}.tfrecord", begin, min(begin + SHARD_SIZE, last))
        for split, (first, last) in ranges.items()
        for begin in range(first, last, SHARD_SIZE)
    ]
    shards: dict[str, list[Shard]] = {split: [] for split in ranges}
    # "spawn": a forked child of a process that has started TensorFlow hangs in its thread pools.
    context = multiprocessing.get_context("spawn")
    workers = min(usable_cpus(), len(jobs))
    with (
        ProcessPoolExecutor(workers, mp_context=context, initializer=_use_one_cpu) as pool,
        Progress("making synthetic photos", photos, "photo") as progress,
    ):
        futures = [pool.submit(_make_shard, *job) for job in jobs]
        for future in as_completed(futures):
            shard = future.result()
            shards[shard.file.partition("-")[0]].append(shard)
            progress.advance(shard.records)
    classes = [f"class_{label}" for label in range(NUM_CLASSES)]
    ordered = {split: sorted(rows, key=lambda s: s.file) for split, rows in shards.items()}
    write_manifest(
        directory, classes, ordered, {"source": f"synthetic v{SYNTHETIC_VERSION}", "seed": SEED}
    )


def _use_one_cpu() -> None:
    """Keeps a worker to one thread and off the GPUs, whose memory the training needs."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")


def _make_shard(path: Path, first: int, last: int) -> Shard:
    return write_shard(path, (serialize(*photo(SEED, index)) for index in range(first, last)))
