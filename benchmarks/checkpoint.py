"""Saving a checkpoint beside writing as many bytes: both durable, in alternating rounds.

    build/demo/my-training-project/.venv/bin/python benchmarks/checkpoint.py --where=DIRECTORY

The directory is on the disk that is measured. The bars: at least 0.8 of the disk's own rate, and at
one save a minute at most 2 % of the time.
"""

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf
from loop import Package

BLOCK = 1 << 22
LEAST = 0.8  # of the disk's own rate
MOST_STALL = 0.02  # of a minute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--where", type=Path, required=True, help="a directory on the disk")
    parser.add_argument("--megabytes", type=int, default=1000, help="of the checkpoint")
    parser.add_argument("--variables", type=int, default=100, help="that it consists of")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    size = options.megabytes * 1_000_000 // options.variables // 4
    # Weights do not compress, and a file of zeros may be a hole.
    tracked = {
        str(index): tf.Variable(tf.random.stateless_normal([size], [0, index]))
        for index in range(options.variables)
    }
    total = 4 * size * options.variables
    seconds: dict[str, list[float]] = {"save": [], "write and sync": []}
    with Package() as ours, tempfile.TemporaryDirectory(dir=options.where) as directory:
        checkpoints = ours.module("checkpoints").Checkpoints(
            Path(directory) / "run", tracked, keep=1
        )
        ways = {
            "save": lambda turn: checkpoints.save(turn, {}),
            "write and sync": lambda turn: write_and_sync(Path(directory) / "plain", total),
        }
        for turn in range(-1, options.rounds):
            for way in list(ways) if turn % 2 == 0 else reversed(list(ways)):
                taken = timed(ways[way], turn + 1)
                if turn >= 0:  # the first save of a process builds TensorFlow's graph
                    seconds[way].append(taken)
            shutil.rmtree(Path(directory) / "plain", ignore_errors=True)
            print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
        ratio_of = ours.module("benchmark.statistics").ratio_of
        mean_of = ours.module("benchmark.statistics").mean_of
        for way, values in seconds.items():
            taken = mean_of(values)
            print(
                f"{way:<15} {total / taken.mean / 1e6:7,.0f} MB/s, {taken.mean:.2f} s "
                f"({taken.low:.2f}-{taken.high:.2f}) for {total / 1e6:,.0f} MB"
            )
        rate = ratio_of(seconds["write and sync"], seconds["save"])
        verdict = "met" if rate.low >= LEAST else "missed" if rate.high < LEAST else "undecided"
        print(
            f"save / write and sync, rates: {rate.mean:.2f} ({rate.low:.2f}-{rate.high:.2f}), "
            f"at least {LEAST}: {verdict}"
        )
        stall = mean_of([value / 60 for value in seconds["save"]])
        verdict = "met" if stall.high <= MOST_STALL else "missed"
        print(f"a save a minute: {stall.mean:.1%} of the time, at most {MOST_STALL:.0%}: {verdict}")


def timed(way: Callable[[int], object], turn: int) -> float:
    for thread in threading.enumerate():
        if thread.name == "deleting":  # the checkpoint before, which a minute is enough for
            thread.join()
    os.sync()  # what another left in the page cache is not this one's to write
    began = time.perf_counter()
    way(turn)
    return time.perf_counter() - began


def write_and_sync(directory: Path, total: int) -> None:
    """The fastest plain way: large blocks from memory, one file, one fsync of it."""
    directory.mkdir(exist_ok=True)
    block = os.urandom(BLOCK)
    with open(directory / "file", "wb", buffering=0) as file:
        for start in range(0, total, BLOCK):
            file.write(block[: total - start])
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
