"""Copies files: each into a part of its own, hashed as it is written, renamed when it is whole."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .checksums import running
from .disk import FULL, STEP, start_writing, writing
from .retrying import patiently
from .source import Entry, Refused, Transient
from .store import Row, Store
from .threads import run_all

GROUP = 64  # small files handed to a thread at a time, where the source says nothing else
ALLOCATED = 1 << 20  # bytes; larger files get their room at once, so that a full disk shows early


class Copying:
    """One copy of a source's files into a store that has begun.

    Attributes:
      rows: of the files copied.
      retries: how often something was tried again.
    """

    def __init__(
        self,
        source: Any,
        store: Store,
        sums: Mapping[str, Sequence[str]],
        workers: int,
        advance: Callable[[int], None],
    ) -> None:
        """Copies nothing yet.

        Args:
          source: a `Source`.
          store: after `begin`.
          sums: more checksums by path, as in `Entry.checksum`.
          workers: threads.
          advance: is told how many bytes more are copied, often, in this thread.
        """
        self.rows: dict[str, Row] = {}
        self.retries = 0
        self._source, self._store, self._sums = source, store, sums
        self._workers, self._advance = workers, advance
        self._base = f"{store.place}{os.sep}"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._bytes = self._told = 0

    def run(self, entries: Sequence[Entry]) -> None:
        """Copies these files.

        Raises:
          SourceChanged: a file is not as it was listed.
          RunFailed: a file could not be read whole, after several tries.
          Refused: the source does not give it.
          NoRoom: the disk, the inodes or the quota ran out; what is finished is kept.
        """
        with writing("directories"):
            self._store.make_directories(entry.path for entry in entries)
        if expect := getattr(self._source, "expect", None):
            expect(entries, self._workers)
        run_all(self._jobs(entries), self._work, self._workers, self._stop, self._poll)

    def run_stream(self, kept: Mapping[str, Row]) -> None:
        """Copies an archive's members but those kept; `rows` then has all; raises as `run`."""
        run_all([kept], self._members, 1, self._stop, self._poll)

    def _jobs(self, entries: Sequence[Entry]) -> Iterator[Entry | list[Entry]]:
        """Large files first, lest one of them be left for the end, then small ones in groups."""
        limit = getattr(self._source, "small", -1)
        yield from sorted((e for e in entries if not 0 <= e.size <= limit), key=lambda e: -e.size)
        small = [entry for entry in entries if 0 <= entry.size <= limit]
        # At least four groups a thread, so that none waits long for the last.
        fair = -(-len(small) // (4 * self._workers))
        group = max(1, min(getattr(self._source, "group", GROUP), fair))
        yield from (small[at : at + group] for at in range(0, len(small), group))

    def _work(self, job: Entry | list[Entry]) -> None:
        if isinstance(job, Entry):
            self._one(job)
            return
        got = self._group(job)
        for entry in job:
            if entry.path not in got and not self._stop.is_set():
                self._one(entry)

    def _one(self, entry: Entry) -> None:
        def fetched() -> Row | None:
            return self._receive(entry, self._source.fetch(entry, self._stop))

        row = patiently(fetched, self._stop, self._retried)
        if row is not None:
            self._finished([row])

    def _group(self, entries: list[Entry]) -> set[str]:
        """Copies small files at one go; returns the paths of those that came."""
        rows: list[Row] = []
        try:
            with contextlib.suppress(Transient):  # the rest is tried one by one
                for entry, content in self._source.fetch_small(entries, self._stop):
                    if self._stop.is_set():
                        break
                    if row := self._receive_small(entry, content):
                        rows.append(row)
        finally:
            self._finished(rows)
        return {row.path for row in rows}

    def _receive_small(self, entry: Entry, content: bytes) -> Row | None:
        if len(content) != entry.size:
            return None
        xxh3 = self._checked(entry, self._running(entry), content)
        if xxh3 is None:
            return None
        with writing(entry.path):
            part, descriptor = self._store.new_part()
            try:
                try:
                    _write(descriptor, content)
                finally:
                    os.close(descriptor)
                os.replace(part, self._base + entry.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part)
                raise
        self._count(len(content))
        return Row(entry.path, entry.size, entry.identity, xxh3)

    def _receive(self, entry: Entry, blocks: Iterable[bytes]) -> Row | None:
        """Writes one file; None if it was to stop."""
        with writing(entry.path):
            part, descriptor = self._store.new_part()
        received, begun, placed = 0, 0, False
        totals = self._running(entry)
        try:
            if entry.size >= ALLOCATED:
                _allocate(entry, descriptor)
            for block in blocks:
                if self._stop.is_set():
                    return None
                received += len(block)
                if 0 <= entry.size < received:
                    raise Transient(f"{entry.path}: more than the {entry.size} bytes listed came")
                with writing(entry.path):
                    _write(descriptor, block)
                if received - begun >= STEP:
                    start_writing(descriptor, begun, received - begun)
                    begun = received
                for total in totals.values():
                    total.update(block)
                self._count(len(block))
            if self._stop.is_set():
                return None
            if received != entry.size >= 0:
                raise Transient(f"{entry.path}: {received} of {entry.size} bytes came")
            xxh3 = self._checked(entry, totals)
            if xxh3 is None:
                raise Transient(f"{entry.path}: the content does not match its checksum")
            with writing(entry.path):
                os.replace(part, self._base + entry.path)
            placed = True
            return Row(entry.path, received, entry.identity, xxh3)
        finally:
            os.close(descriptor)
            if not placed:
                self._count(-received)
                with contextlib.suppress(OSError):
                    os.unlink(part)

    def _members(self, kept: Mapping[str, Row]) -> None:
        done = dict(kept)

        def stream() -> None:
            seen: dict[str, Row] = {}
            for entry, blocks in self._source.stream(self._stop):
                if entry.path in seen:
                    raise Refused(f"{self._source.url}: {entry.path!r} is in it twice")
                seen[entry.path] = row = self._member(entry, blocks, done)
                done[entry.path] = row
                if self._stop.is_set():
                    return
            self.rows = seen

        patiently(stream, self._stop, self._retried)

    def _member(self, entry: Entry, blocks: Iterable[bytes], done: Mapping[str, Row]) -> Row:
        before = done.get(entry.path)
        if before and (before.size, before.identity) == (entry.size, entry.identity):
            for _ in blocks:
                if self._stop.is_set():
                    break
            return before
        with writing(entry.path):
            self._store.make_directories([entry.path])
        row = self._receive(entry, blocks)
        if row is None:
            return Row(entry.path, -1, "", "")  # it was to stop: nobody looks at this
        self._store.note([row])
        return row

    def _running(self, entry: Entry) -> dict[str, Any]:
        kinds = {"xxh3", *(text.partition(":")[0] for text in self._promised(entry))}
        return {kind: running(kind) for kind in kinds}

    def _promised(self, entry: Entry) -> list[str]:
        own = [entry.checksum] if entry.checksum else []
        return [*own, *self._sums.get(entry.path, ())]

    def _checked(self, entry: Entry, totals: dict[str, Any], content: bytes = b"") -> str | None:
        """The xxh3, or None if another checksum is not what was promised."""
        found = {}
        for kind, total in totals.items():
            if content:
                total.update(content)
            found[kind] = str(total.hexdigest())
        for promised in self._promised(entry):
            kind, _, digits = promised.partition(":")
            if found[kind] != digits.lower():
                return None
        return found["xxh3"]

    def _finished(self, rows: Sequence[Row]) -> None:
        with writing("the journal"):
            self._store.note(rows)
        with self._lock:
            self.rows.update({row.path: row for row in rows})

    def _count(self, more: int) -> None:
        with self._lock:
            self._bytes += more

    def _retried(self) -> None:
        with self._lock:
            self.retries += 1

    def _poll(self) -> None:
        now = self._bytes
        self._advance(now - self._told)
        self._told = now


def _allocate(entry: Entry, descriptor: int) -> None:
    """Takes the room of a whole file; a file system that cannot is none the worse."""
    if not hasattr(os, "posix_fallocate"):  # macOS
        return
    try:
        os.posix_fallocate(descriptor, 0, entry.size)
    except OSError as error:
        if error.errno in FULL:
            with writing(entry.path):
                raise


def _write(descriptor: int, content: bytes) -> None:
    written = os.write(descriptor, content)
    if written < len(content):  # a signal, or the disk is nearly full: the next write says so
        rest = memoryview(content)[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]
