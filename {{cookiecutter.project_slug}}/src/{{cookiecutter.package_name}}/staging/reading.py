"""One object read over HTTP, in its listed version: through one connection, or in ranges."""

import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..runtime import usable_cpus
from .readers import Readers
from .retrying import patiently
from .source import SourceChanged, Transient
from .web import BLOCK, Web, blocks, drop, fill, whole

PART = 8 << 20  # bytes of a range
LARGE = 2 * PART  # bytes; an object of up to so many is read by one request, and again if it is cut
# Ranges in memory, of all objects together: 128 MiB at most.
AHEAD = min(16, 4 * usable_cpus())
# Bytes left of an object from which on it is worth the latency to go over to ranges.
CHANGE = 8 * PART

Request = Callable[[], tuple[str, Mapping[str, str]]]


class Reading:
    """Reads objects; used by several threads.

    Many large ones come through one connection each, into the memory of one block: four of 64 MiB
    took 0.40 s on 2 cores, with 8 ranges of 8 MiB ahead 0.49 s. But servers of objects limit what a
    connection gives: few are read in ranges side by side, and so are the last of many.
    """

    def __init__(self, workers: int) -> None:
        """Takes the number of threads that will call `read`."""
        self.web = Web(workers + AHEAD)
        self._readers = Readers(AHEAD)
        self._lock = threading.Lock()
        self._left = 0  # large objects that are expected
        self._callers = 0  # of which so many come at a time

    def expect(self, sizes: Iterable[int], callers: int) -> None:
        """Takes the bytes of each object that will be read, and the threads that will call `read`.

        Without it, few are expected.
        """
        with self._lock:
            self._callers, self._left = callers, sum(size > LARGE for size in sizes)

    def read(
        self,
        request: Request,
        size: int,
        where: str,
        check: Callable[[Any], None],
        stop: threading.Event,
        ranged: bool = True,
    ) -> Iterator[bytes]:
        """The content in order; blocks may share their memory.

        Args:
          request: gives URL and headers, those that pin the version among them; called for each
            request, as signatures expire.
          size: listed, in bytes; -1: not known.
          where: the object, for messages.
          check: raises SourceChanged if an answer is of another version.
          stop: ends the reading.
          ranged: False where the server knows no ranges, or names no version to pin them to.

        Raises:
          SourceChanged, Refused.
          Transient: nothing of it may be used.
          RunFailed: a range could not be had in many tries.
        """
        if size <= LARGE or not ranged:
            url, headers = request()
            answer = self.web.get(url, headers, where)
            _checked(answer, check)
            if answer.status != 200:
                drop(answer)
                raise Transient(f"{where}: a part came where all was asked for")
            yield from blocks(answer, size, where, stop)
            return
        ranges = _Ranges(self.web, request, size, where, check)
        try:
            at = 0
            for block in ranges.stream(stop, self._goes_on):
                yield block  # type: ignore[misc]
                at += len(block)
            yield from self._side_by_side(ranges, at, stop)
        finally:
            with self._lock:
                self._left -= 1

    def close(self) -> None:
        """Lets go of threads and connections."""
        self._readers.close()
        self.web.close()

    def _goes_on(self, begun: bool, left: int) -> bool:
        """Whether an object of which so many bytes are left is read through one connection."""
        many = 2 * min(self._callers, self._left) >= AHEAD
        return many or (begun and left <= CHANGE)

    def _side_by_side(
        self, ranges: "_Ranges", first: int, stop: threading.Event
    ) -> Iterator[bytes]:
        def part(start: int) -> bytes:
            end = min(start + PART, ranges.size)
            return patiently(lambda: ranges.whole(start, end), stop, lambda: None)

        starts = range(first, ranges.size, PART)
        for _, content in self._readers.in_order(starts, part, stop):
            yield content.result()


class _Ranges:
    """Requests for ranges of one object in its listed version."""

    def __init__(
        self, web: Web, request: Request, size: int, where: str, check: Callable[[Any], None]
    ) -> None:
        self.size = size
        self._web, self._request, self._where, self._check = web, request, where, check

    def whole(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`; raises as `Reading.read`."""
        return whole(self._open(start, end), end - start, self._where)

    def stream(
        self, stop: threading.Event, goes_on: Callable[[bool, int], bool]
    ) -> Iterator[memoryview]:
        """Blocks from the begin on, all in the same memory; raises as `Reading.read`.

        A connection that is cut is followed by another from where it ended.

        Args:
          stop: ends the reading.
          goes_on: of whether it has begun, and of the bytes left; False ends it before the end.
        """
        buffer = memoryview(bytearray(BLOCK))
        answer: Any = None

        def filled(at: int) -> memoryview:
            nonlocal answer
            block = buffer[: self.size - at]
            try:
                if answer is None:
                    answer = self._open(at, self.size)
                fill(answer, block, self._where)
            except BaseException:
                if answer is not None:
                    drop(answer)
                answer = None
                raise
            return block

        try:
            at = 0
            while at < self.size and not stop.is_set() and goes_on(at > 0, self.size - at):
                block = patiently(functools.partial(filled, at), stop, lambda: None)
                at += len(block)
                yield block
        finally:
            if answer is not None:
                drop(answer)

    def _open(self, start: int, end: int) -> Any:
        where = self._where
        url, headers = self._request()
        answer = self._web.get(url, {**headers, "Range": f"bytes={start}-{end - 1}"}, where)
        _checked(answer, self._check)
        given = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
        if answer.status != 206 or given is None or int(given[1]) != start:
            drop(answer)
            raise Transient(f"{where}: another range came than was asked for")
        if int(given[3]) != self.size:
            drop(answer)
            raise SourceChanged(f"{where} has another size than listed")
        return answer


def _checked(answer: Any, check: Callable[[Any], None]) -> None:
    try:
        check(answer)
    except BaseException:
        drop(answer)
        raise
