"""What the hardware allows: the one unavoidable part of each contender's work, and nothing else."""

import io
import itertools
import json
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

IN_MEMORY = 2_000  # encoded files held in memory: 200 MB of the originals
PER_YIELD = 512
BLOCK = 8 << 20  # bytes a read, as TFRecord files are read


def decode(directory: str, threads: int, fast: bool) -> Iterator[tuple[Any, int]]:
    """libjpeg-turbo alone: whole files from memory to RGB, a thread a core.

    Args:
      directory: of the JPEGs, at any depth.
      threads: how many.
      fast: the quicker, less exact DCT, which TensorFlow takes when not told; else the library's
        own default.
    """
    import simplejpeg

    files = [path.read_bytes() for path in images_in(directory)[:IN_MEMORY]]
    encoded = itertools.cycle([file for file in files if file[:2] == b"\xff\xd8"])

    def one(file: bytes) -> None:
        simplejpeg.decode_jpeg(file, fastdct=fast)

    yield from in_threads(one, encoded, threads)


def in_threads(
    one: Callable[[bytes], None], items: Iterator[bytes], threads: int
) -> Iterator[tuple[Any, int]]:
    """Calls `one` on item after item; whichever thread is free takes the next."""

    def work(todo: Iterator[bytes]) -> None:
        for item in todo:  # a list's iterator hands each item to one thread only
            one(item)

    with ThreadPoolExecutor(threads) as pool:
        while True:
            todo = iter(list(itertools.islice(items, PER_YIELD)))
            for done in [pool.submit(work, todo) for _ in range(threads)]:
                done.result()
            yield None, PER_YIELD


def read_and_copy(directory: str, batch_size: int, threads: int) -> Iterator[tuple[Any, int]]:
    """Reads raw shards 8 MiB at a time and copies each record into its place in a batch."""
    import numpy as np

    manifest = json.loads((Path(directory) / "manifest.json").read_text())
    record = manifest["size"] ** 2 * 3
    rows = manifest["splits"]["train"]
    together = BLOCK // record

    def one(row: dict[str, Any]) -> None:
        block = np.empty((together, record), np.uint8)
        batch = np.empty((batch_size, record), np.uint8)
        done = 0
        with (Path(directory) / row["file"]).open("rb", buffering=0) as file:
            while done < row["records"]:
                count = min(together, row["records"] - done)
                file.readinto(block[:count].data)
                for number in range(count):
                    batch[(done + number) % batch_size] = block[number]
                done += count

    with ThreadPoolExecutor(threads) as pool:
        while True:
            list(pool.map(one, rows))
            yield None, sum(row["records"] for row in rows)


def pillow(directory: str, size: int, quality: int, processes: int) -> Iterator[tuple[Any, int]]:
    """Pillow alone: file -> decoded, resized to a square, encoded again; a process a core."""
    paths = itertools.cycle(map(str, images_in(directory)))
    jobs = ((path, size, quality) for path in paths)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        while True:
            some = list(itertools.islice(jobs, PER_YIELD))
            pool.map(encode_again, some, chunksize=8)
            yield None, PER_YIELD


def encode_again(job: tuple[str, int, int]) -> int:
    """The length of one image's new JPEG."""
    from PIL import Image

    path, size, quality = job
    encoded = io.BytesIO()
    image = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    image.save(encoded, "JPEG", quality=quality)
    return len(encoded.getvalue())


def prepare(command: list[str], target: str) -> Iterator[tuple[Any, int]]:
    """The whole command `prepare`, from its start to its end, into a new directory each time."""
    while True:
        shutil.rmtree(target, ignore_errors=True)
        done = subprocess.run([sys.executable, *command, target], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["prepare failed"])[-1])
        splits = json.loads((Path(target) / "manifest.json").read_text())["splits"]
        yield None, sum(row["records"] for rows in splits.values() for row in rows)


def images_in(directory: str) -> list[Path]:
    """The image files below a directory, in order."""
    endings = (".jpg", ".jpeg", ".png")
    return sorted(p for p in Path(directory).rglob("*") if p.suffix.lower() in endings)
