"""The story of staging: list, find the place, reuse or copy what is missing, list anew, publish."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import RunFailed
from ..progress import Progress
from .contents import Promised, promised
from .copying import Copying
from .disk import writing
from .housekeeping import intact
from .listing import difference, key_of, orderly
from .local_source import LocalSource
from .lock import Lock, take
from .opening import open_source
from .request import Asked, Staged
from .retrying import patiently
from .room import fitting, linkable, root_for
from .scratch import Limits
from .source import Entry, Source, SourceChanged
from .store import Complete, Row, Store

NAMED = 3  # damaged files named
LISTINGS = 3  # a source that changes under two copies in turn will change under the next


def print_to_stderr(line: str) -> None:
    """Prints a line where it does not mix with the path."""
    print(f"stage: {line}", file=sys.stderr, flush=True)


def show_progress(total: int, start: int) -> Progress:
    """A bar or lines on standard error; of bytes, of which `start` are there already."""
    return Progress("stage", total, "B", start)


def stage(
    url: str,
    *,
    scratch: str = "",
    include: str = "",
    workers: int = 0,
    checksums: str = "",
    deep: bool = False,
    on_full: Literal["error", "stream"] = "error",
    lock_timeout: float = 3600,
    evict: bool = False,
    reserve: int = -1,
    quota: int = 0,
    allow_shared: bool = False,
    untar: bool = False,
    say: Callable[[str], None] = print_to_stderr,
    progress: Callable[[int, int], Progress] = show_progress,
) -> Staged:
    """Copies a data set to a local disk, or finds it there.

    A file that is newer at the source than in the copy makes another version, which is copied as a
    whole, even if its content is the same.

    Args:
      url: a path or URL.
      scratch: directory; "" or "auto" looks in the usual places.
      include: comma-separated globs; "" for all files.
      workers: threads; 0: as suits the source.
      checksums: a file such as SHA256SUMS; "" for none.
      deep: compare the content of what is there already, not its size alone.
      on_full: stop where not all fits, or link the rest to the source.
      lock_timeout: seconds to wait for another process that copies the same.
      evict: remove the least recently used data sets that are not in use.
      reserve: bytes to leave free; -1: 2 % of the disk, at least 1 GiB.
      quota: bytes all staged data may take; 0: no limit.
      allow_shared: take network file systems for `scratch`.
      untar: the source is an archive, its members are the data set.
      say: prints a line.
      progress: makes a progress display of (total, start) bytes.

    Raises:
      UserError: what the user can mend; NoRoom and LockTimeout among them.
      RunFailed: the source cannot be read whole, or changes all the time.
    """
    asked = Asked(
        scratch=scratch,
        include=include,
        workers=workers,
        checksums=checksums,
        deep=deep,
        on_full=on_full,
        lock_timeout=lock_timeout,
        evict=evict,
        limits=Limits(reserve, quota),
        allow_shared=allow_shared,
        untar=untar,
        say=say,
        progress=progress,
    )
    changed = ""
    with contextlib.closing(open_source(url, include, untar, checksums)) as source:
        for _ in range(LISTINGS):
            try:
                return _Version(source, asked).staged()
            except SourceChanged as error:
                changed = str(error)
                say(f"the source has changed ({changed}): starting again")
    raise RunFailed(
        f"{source.url} changed during each of {LISTINGS} copies ({changed}): stage it when nobody "
        "writes to it"
    )


class _Seen(NamedTuple):
    """What is on the disk: all files, those found whole, and whether these are all."""

    complete: Complete
    kept: Mapping[str, Row]
    whole: bool


class _Version:
    """One listing of a source, and its copy."""

    def __init__(self, source: Source, asked: Asked) -> None:
        self._source, self._asked = source, asked
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._retries = 0
        self._streams = hasattr(source, "stream")
        self._entries = self._listed()
        self._promised = Promised({}) if self._streams else self._patiently(self._promises)
        self._key = key_of(source.url, asked.include, asked.untar, self._promised, self._entries)
        self._workers = asked.workers or source.workers

    def staged(self) -> Staged:
        """Reuses the copy, or makes what is missing of it."""
        root = root_for(self._source, self._key, self._entries, self._asked)
        store = Store(root, self._key)
        # Held from before the first look: what is looked at cannot be removed meanwhile.
        use = self._take(store.use, f"{store.directory}", exclusive=False)
        try:
            os.utime(store.use)  # what is removed first is told by it
            seen = self._look(store) if store.complete() else None
            copied = 0
            if seen is None or not seen.whole:
                with self._take(store.lock, f"the copying of {self._source.url}", exclusive=True):
                    seen = self._look(store)
                    if not seen.whole:
                        seen, copied = self._copied(store, root, seen)
        except BaseException:
            use.close()
            raise
        return Staged(
            path=store.data,
            key=store.key,
            url=self._source.url,
            files=len(seen.complete.rows),
            bytes=seen.complete.bytes,
            seconds=time.monotonic() - self._began,
            reused=len(seen.complete.rows) - copied,
            copied=copied,
            retries=self._retries,
            rest=seen.complete.rest,
            lock=use,
        )

    def _look(self, store: Store) -> _Seen:
        """What of the copy is there and whole."""
        asked = self._asked
        complete = store.complete()
        rows, trusted = (complete.rows, True) if complete else store.noted()
        deep = asked.deep or not trusted
        kept = intact(store, rows, deep, self._workers, asked.progress)
        if complete is None:
            return _Seen(Complete(self._source.url, kept), kept, False)
        for damaged in sorted(rows.keys() - kept.keys())[:NAMED]:
            asked.say(f"{damaged} is damaged: it will be copied again")
        whole = kept.keys() == rows.keys()
        if complete.rest:
            whole = whole and asked.on_full == "stream" and store.linked(complete.rest)
        return _Seen(complete, kept, whole)

    def _copied(self, store: Store, root: Path, seen: _Seen) -> tuple[_Seen, int]:
        """Copies what is missing, while no other process does; returns how many files that were."""
        kept, published = seen.kept, store.data.exists()
        missing = [entry for entry in self._entries if entry.path not in kept]
        missing, rest = fitting(root, self._source, missing, self._asked)
        try:
            with writing("the journal"):
                store.begin(kept)
            copied = self._copy(store, kept, missing)
            if self._streams:  # only now can it be held to its manifest
                inside = LocalSource(str(store.place))
                promised(inside, inside.list(), "", "", self._stop)
            if (now := self._listed()) != self._entries:
                raise SourceChanged(difference(self._entries, now))
            for entry in rest:
                with writing(entry.path):
                    store.link(entry.path, linkable(self._source).place(entry))
            rows = copied if self._streams else {**kept, **copied}
            made = {"include": self._asked.include, "untar": self._asked.untar}
            found = Complete(self._source.url, rows, tuple(e.path for e in rest), made)
            with writing("to the disk"):
                store.publish(found)
        except SourceChanged:
            store.end()
            if not published:  # nobody reads it, and nobody can ask for this version again
                store.remove()
            raise
        finally:
            store.end()
        return _Seen(found, rows, True), sum(kept.get(path) != row for path, row in rows.items())

    def _copy(
        self, store: Store, kept: Mapping[str, Row], missing: Sequence[Entry]
    ) -> Mapping[str, Row]:
        """The rows of the missing files; of an archive, of all."""
        there = sum(row.size for row in kept.values())
        total = there + sum(max(0, entry.size) for entry in missing)
        with self._asked.progress(total, there) as progress:
            copying = Copying(
                self._source, store, self._promised.sums, self._workers, progress.advance
            )
            try:
                if self._streams:
                    copying.run_stream(kept)
                else:
                    copying.run(missing)
            finally:
                self._retries += copying.retries
        return copying.rows

    def _take(self, path: Path, what: str, exclusive: bool) -> Lock:
        asked = self._asked
        return take(path, exclusive=exclusive, what=what, timeout=asked.lock_timeout, say=asked.say)

    def _listed(self) -> list[Entry]:
        entries = self._patiently(self._source.list)
        return orderly(self._source.url, self._asked.include, entries)

    def _promises(self) -> Promised:
        asked = self._asked
        return promised(self._source, self._entries, asked.checksums, asked.include, self._stop)

    def _patiently(self, action: Callable[[], Any]) -> Any:
        def retried() -> None:
            self._retries += 1

        return patiently(action, self._stop, retried)
