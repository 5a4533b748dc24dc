"""Reads, edits and encodes records in parallel: in processes that never start TensorFlow."""

import collections
import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np

from ..data.shards import serialize
from ..errors import RunFailed
from ..runtime import start_tensorflow
from .editing import BadImage, check_size, encode, is_rotated, square
from .originals import Original, read_original

CHUNK = 32  # records a task: 0.1 s of work, so that sending it costs nothing beside
QUEUED = 4  # tasks a worker has waiting, while the files are written


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What to make of a record.

    Attributes:
      format: jpeg, raw or keep.
      size: side of the square in pixels.
      quality: of the JPEG.
      features: names in the originals' Examples.
    """

    format: str
    size: int
    quality: int
    features: Mapping[str, str]


class Bad(NamedTuple):
    """A record that cannot be used, and why."""

    original: Original
    reason: str


class Made(NamedTuple):
    """A finished record: an Example, or (pixels, label, aspect) for raw."""

    record: Any
    rotated: str = ""  # the original's name, if it is kept as it is and asks to be turned


def make(originals: Sequence[Original], recipe: Recipe) -> list[Made | Bad]:
    """Makes the records of one task."""
    made: list[Made | Bad] = []
    for original in originals:
        try:
            made.append(_make(original, recipe))
        except BadImage as error:
            made.append(Bad(original, str(error)))
    return made


def examine(originals: Sequence[Original], recipe: Recipe) -> list[str]:
    """Why each record of one task cannot be made; "" for those that can."""
    return [made.reason if isinstance(made, Bad) else "" for made in make(originals, recipe)]


class Workers:
    """Processes, or threads, that do tasks in parallel and give their results in order."""

    def __init__(self, count: int, recipe: Recipe) -> None:
        """Starts them when the first task comes.

        Args:
          count: how many.
          recipe: of the records. To `keep`, TensorFlow's decoder has to accept each, which leaves
            Python's lock while it decodes: threads then, as TensorFlow takes 4 s and 400 MB to
            start, once.
        """
        self._count, self._recipe = count, recipe
        self._pool: Executor
        if recipe.format == "keep":
            _start_decoder()
            self._pool = ThreadPoolExecutor(count)
        else:
            # "spawn": a forked child of a process that has TensorFlow hangs in its thread pools.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start)

    def map(
        self, work: Callable[..., list[Any]], originals: Iterable[Original]
    ) -> Iterator[list[Any]]:
        """The results of `work(chunk, recipe)` chunk by chunk; a few tasks are kept ahead.

        Raises:
          RunFailed: a worker was killed.
        """
        waiting: collections.deque[Future[list[Any]]] = collections.deque()
        try:
            for chunk in _chunks(originals):
                waiting.append(self._pool.submit(work, chunk, self._recipe))
                if len(waiting) > QUEUED * self._count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise RunFailed(
                "a worker was killed, perhaps for lack of memory: give fewer --workers; what is "
                "done is kept"
            ) from None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _start() -> None:
    """Leaves the interrupt key to the parent, and ends the worker when the parent is killed.

    A worker waits for tasks on a pipe whose other end it holds too: it would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _chunks(originals: Iterable[Original]) -> Iterator[list[Original]]:
    chunk = []
    for original in originals:
        chunk.append(original)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _make(original: Original, recipe: Recipe) -> Made:
    data, label, known = read_original(original, recipe.features)
    if recipe.format == "keep":
        _check_decodes(data)
        return Made(
            serialize(data, label, known or None), original.name if is_rotated(data) else ""
        )
    image, aspect = square(data, recipe.size)
    aspect = known or aspect  # a square made before has lost its own
    if recipe.format == "raw":
        return Made((np.asarray(image), label, aspect))
    return Made(serialize(encode(image, recipe.quality), label, aspect))


def _check_decodes(data: bytes) -> None:
    """Decodes as training does: TensorFlow and Pillow do not refuse the same files."""
    check_size(data)
    import tensorflow as tf

    try:
        tf.io.decode_image(data, channels=3, expand_animations=False)
    except tf.errors.InvalidArgumentError as error:
        raise BadImage(" ".join(error.message.split())) from None


def _start_decoder() -> None:
    start_tensorflow()
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # it runs already, on the devices of whoever started it
        tf.config.set_visible_devices([], "GPU")  # whose memory a training may need
