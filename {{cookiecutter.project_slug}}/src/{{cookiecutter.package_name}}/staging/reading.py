"""One object read over HTTP, in its listed version: at once, or in several ranges at a time."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..runtime import usable_cpus
from .readers import Readers
from .retrying import patiently
from .source import SourceChanged, Transient
from .web import Web, blocks, drop, whole

PART = 8 << 20  # bytes of a range; an object of up to two is read at once
# Ranges in memory, of all objects together: 128 MiB at most. Four of 64 MiB took 0.47 s with 8 of
# them on 2 cores, 0.61 s with 16.
AHEAD = min(16, 4 * usable_cpus())

Request = Callable[[], tuple[str, Mapping[str, str]]]


class Reading:
    """Reads objects; used by several threads."""

    def __init__(self, workers: int) -> None:
        """Takes the number of threads that will call `read`."""
        self.web = Web(workers + AHEAD)
        self._readers = Readers(AHEAD)

    def read(
        self,
        request: Request,
        size: int,
        where: str,
        check: Callable[[Any], None],
        stop: threading.Event,
        ranged: bool = True,
    ) -> Iterator[bytes]:
        """The content in order.

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
        if size <= 2 * PART or not ranged:
            url, headers = request()
            answer = self.web.get(url, headers, where)
            _checked(answer, check)
            if answer.status != 200:
                drop(answer)
                raise Transient(f"{where}: a part came where all was asked for")
            yield from blocks(answer, size, where, stop)
            return

        def part(start: int) -> bytes:
            end = min(start + PART, size)
            return patiently(
                lambda: self._part(request, start, end, size, where, check, stop),
                stop,
                lambda: None,
            )

        for _, content in self._readers.in_order(range(0, size, PART), part, stop):
            yield content.result()

    def close(self) -> None:
        """Lets go of threads and connections."""
        self._readers.close()
        self.web.close()

    def _part(
        self,
        request: Request,
        start: int,
        end: int,
        size: int,
        where: str,
        check: Callable[[Any], None],
        stop: threading.Event,
    ) -> bytes:
        url, headers = request()
        answer = self.web.get(url, {**headers, "Range": f"bytes={start}-{end - 1}"}, where)
        _checked(answer, check)
        given = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
        if answer.status != 206 or given is None or int(given[1]) != start:
            drop(answer)
            raise Transient(f"{where}: another range came than was asked for")
        if int(given[3]) != size:
            drop(answer)
            raise SourceChanged(f"{where} has another size than listed")
        return whole(answer, end - start, where)


def _checked(answer: Any, check: Callable[[Any], None]) -> None:
    try:
        check(answer)
    except BaseException:
        drop(answer)
        raise
