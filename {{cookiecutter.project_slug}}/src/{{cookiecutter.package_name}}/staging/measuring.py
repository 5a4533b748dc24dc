"""`--measure`: is the scratch directory any faster than the source?"""

import contextlib
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..progress import scaled
from .local_source import LocalSource
from .source import Entry, Source

SIZE = 256 << 20  # bytes: less than a second on a disk worth staging to
BLOCK = 8 << 20  # bytes of a read or write; large enough that a network disk shows its bandwidth


def measure(source: Source, root: Path, say: Callable[[str], None]) -> None:
    """Says how fast the scratch directory is written and read, and the source is read.

    Past the page cache (O_DIRECT) where the file system can.

    Args:
      source: of which up to 256 MiB are read.
      root: a directory on the scratch disk with room for 256 MiB.
      say: prints a line.
    """
    written, read = _scratch_rates(root)
    entries = sorted(source.list(), key=lambda entry: -entry.size)
    rate = _source_rate(source, entries)
    say(
        f"{root} is written at {scaled(written)}/s and read at {scaled(read)}/s; "
        f"{source.url} is read at {scaled(rate)}/s"
    )
    if read <= rate:
        say(f"warning: {root} is not faster than the source: training from it gains nothing")


def _scratch_rates(root: Path) -> tuple[float, float]:
    """Bytes per second written and read."""
    with mmap.mmap(-1, BLOCK) as block:  # pages, as O_DIRECT wants its memory aligned
        block.write(os.urandom(BLOCK))  # some disks compress zeros away
        descriptor, path = tempfile.mkstemp(dir=root, prefix=".measure-")
        os.close(descriptor)
        try:
            with _opened(path, os.O_WRONLY) as descriptor:
                began = time.perf_counter()
                for _ in range(SIZE // BLOCK):
                    os.write(descriptor, block)
                os.fsync(descriptor)
                written = SIZE / (time.perf_counter() - began)
            return written, SIZE / _seconds_to_read([(path, SIZE)], block)
        finally:
            os.unlink(path)


def _source_rate(source: Source, entries: Sequence[Entry]) -> float:
    """Bytes per second, of the largest files."""
    chosen, total = [], 0
    for entry in entries:
        chosen.append(entry)
        total += max(0, entry.size)
        if total >= SIZE:
            break
    if isinstance(source, LocalSource):
        with mmap.mmap(-1, BLOCK) as block:
            places = [(source.place(entry), entry.size) for entry in chosen]
            return min(total, SIZE) / max(1e-9, _seconds_to_read(places, block))
    began, read, stop = time.perf_counter(), 0, threading.Event()
    for entry in chosen:
        for data in source.fetch(entry, stop):
            read += len(data)
            if read >= SIZE:
                return read / (time.perf_counter() - began)
    return read / max(1e-9, time.perf_counter() - began)


def _seconds_to_read(places: Sequence[tuple[str, int]], block: mmap.mmap) -> float:
    began, left = time.perf_counter(), SIZE
    for path, _ in places:
        with _opened(path, os.O_RDONLY) as descriptor:
            while left > 0 and (count := os.readv(descriptor, [block])):
                left -= count
    return time.perf_counter() - began


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    """Opens a file past the page cache; with what is cached of it dropped where that cannot be."""
    try:
        descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0))
    except OSError:  # tmpfs, some network file systems
        descriptor = os.open(path, flags)
    try:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        yield descriptor
    finally:
        os.close(descriptor)
