"""One contender in a process of its own: `python worker.py JOB`, driven by `measuring.py`.

JOB is JSON: module, function, options, side, warm, drain. The function gives (images, count)
without end; each line on standard input, {"seconds": S}, is answered by a window's figures. A
function that is no generator is called once, and its value is the answer.
"""

import importlib
import json
import os
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LEAST_VALUES = 16
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    job = json.loads(sys.argv[1])
    # Libraries print to standard output; the answers must not be mixed with that.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    try:
        made = getattr(importlib.import_module(job["module"]), job["function"])(**job["options"])
        if not isinstance(made, types.GeneratorType):
            return answer(value=made)
        gives = checked(made, job["side"]) if job["side"] else ""
        run(made, job["warm"])
        answer(gives=gives)
        for line in sys.stdin:
            if job["drain"]:
                run(made, job["drain"])
            answer(**run(made, json.loads(line)["seconds"]))
    except BaseException as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        answer(error=reason[:300])
        raise


def run(batches: Iterator[tuple[Any, int]], seconds: float) -> dict[str, float]:
    """Takes batches for at least so long; the wall and CPU seconds that they took."""
    images, began, cpu = 0, time.perf_counter(), cpu_seconds()
    while images == 0 or time.perf_counter() - began < seconds:
        images += next(batches)[1]
    return {
        "images": images,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": cpu_seconds() - cpu,
    }


def checked(batches: Iterator[tuple[Any, int]], side: int) -> str:
    """What the batches hold, such as "uint8 224x224x3"; an error if they are no decoded images.

    Args:
      batches: (images, count); images offers Python's buffer protocol, until the next batch.
      side: of the images in pixels, as they must be.
    """
    images, counted = next(batches)
    pixels = memoryview(images)
    count, *shape = pixels.shape or ()
    if sorted(shape) != sorted([side, side, 3]):
        raise ValueError(f"gives images of shape {shape}, not {side}x{side} in 3 colours")
    if counted % count:
        raise ValueError(f"counts {counted} images where it gives {count}")
    content, part = pixels.tobytes(), pixels.nbytes // count
    pictures = [content[part * number : part * (number + 1)] for number in range(count)]
    # The least lively of 4,000 synthetic photos has 131 values here; unwritten memory has one.
    if min(len(set(picture[::97])) for picture in pictures) < LEAST_VALUES:
        raise ValueError("gives an image without content")
    # Anyone's photos may have doubles among them, but not that many.
    if len(set(pictures)) <= count // 2 or content == memoryview(next(batches)[0]).tobytes():
        raise ValueError("gives the same images again")
    names = {"B": "uint8", "f": "float32"}
    return f"{names.get(pixels.format, pixels.format)} {'x'.join(map(str, shape))}"


def cpu_seconds() -> float:
    """CPU time of this session: of this process, its descendants, and those that have ended."""
    ticks = 0
    for fields in processes(os.getsid(0)).values():
        ticks += sum(map(int, fields[11:15]))  # user, system, and both of children waited for
    return ticks / TICKS


def processes(session: int) -> dict[int, list[str]]:
    """The fields of /proc/PID/stat after the name (proc(5)), of every process of a session."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            found[int(path.parent.name)] = fields
    return found


if __name__ == "__main__":
    main()
