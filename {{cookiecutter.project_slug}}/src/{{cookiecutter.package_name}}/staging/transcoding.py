"""`--transcode`: what lies on the local disk is prepared already, in the size trained on."""

import contextlib
import dataclasses
import hashlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import RunFailed, UserError
from ..settings import PrepareSettings, StageSettings
from .checksums import xxh3_of_file
from .contents import MANIFEST, Promised
from .housekeeping import intact, remove_if_idle
from .listing import key_of
from .lock import take
from .opening import open_source
from .request import Staged
from .scratch import roots
from .source import Entry
from .staging import print_to_stderr, show_progress, stage
from .store import Complete, Row, Store

KINDS = ("folder", "records")  # what `prepare` calls the two sorts of directories


def stage_prepared(settings: StageSettings) -> Staged:
    """Prepares the source into the scratch directory; a killed run is continued as `prepare` does.

    A directory is read in place, so that its originals are never copied. What lies behind a URL is
    staged first and removed from the disk once it is prepared. How much room the result takes is
    not known beforehand: a full disk ends it with exit code 28, and it can be continued.

    Raises:
      UserError: as `prepare` and `stage`.
      RunFailed: as `stage`; or the source was changed meanwhile, or the prepared set is damaged.
    """
    began = time.monotonic()
    kind, url = _kind_and_place(settings.source)
    if settings.untar or settings.include:
        raise UserError("--transcode takes neither --untar nor --include: stage, then prepare")
    entries, public = _listing(url)
    root = roots(settings.scratch, settings.allow_shared, print_to_stderr)[0]
    key = hashlib.sha256(
        f"{key_of(public, '', False, Promised({}), entries)} {kind} {settings.transcode}".encode()
    ).hexdigest()[:16]
    store = Store(root, key)
    timeout = settings.lock_timeout
    use = take(store.use, exclusive=False, what=str(store.directory), timeout=timeout,
               say=print_to_stderr)  # fmt: skip
    try:
        os.utime(store.use)
        what = f"the preparing of {public}"
        copied = 0
        if (complete := store.complete()) is None:
            with take(store.lock, exclusive=True, what=what, timeout=timeout,
                      say=print_to_stderr):  # fmt: skip
                if (complete := store.complete()) is None:
                    complete = _prepared(store, kind, url, public, settings)
                    if _listing(url)[0] != entries:
                        store.remove()
                        raise RunFailed(f"{public} was changed while it was prepared: try again")
                    store.publish(complete)
                    copied = len(complete.rows)
        whole = intact(store, complete.rows, settings.deep, os.cpu_count() or 1, show_progress)
        if whole.keys() != complete.rows.keys():
            damaged = min(complete.rows.keys() - whole.keys())
            raise RunFailed(
                f"{store.data / damaged} is damaged: remove it with `stage rm {key}`, then repeat"
            )
    except BaseException:
        use.close()
        raise
    seconds = time.monotonic() - began
    rows = len(complete.rows)
    return Staged(
        *(store.data, key, public, rows, complete.bytes, seconds, rows - copied, copied, 0, (), use)
    )


def _kind_and_place(source: str) -> tuple[str, str]:
    """What `prepare` is to take the source for ("": by its files), and its path or URL."""
    kind, separator, rest = source.partition(":")
    if separator and kind in KINDS:
        return kind, rest
    if separator and not rest.startswith("//"):
        raise UserError(f"--transcode={source}: give a directory, folder:DIR, records:DIR or a URL")
    return "", source


def _listing(url: str) -> tuple[Sequence[Entry], str]:
    with contextlib.closing(open_source(url)) as source:
        return source.list(), source.url


def _prepared(store: Store, kind: str, url: str, public: str, settings: StageSettings) -> Complete:
    """Has `prepare` make `data/`, if a killed run has not made it already."""
    store.directory.mkdir(mode=0o700, exist_ok=True)
    if not store.data.exists():
        if "://" in url:
            with _originals(url, settings) as originals:
                _prepare(kind, originals.path, store.data, settings)
            remove_if_idle(Store(originals.path.parent.parent, originals.key))
        else:
            _prepare(kind, Path(url).expanduser().absolute(), store.data, settings)
    stop = threading.Event()
    rows = {}
    for path in sorted(store.data.iterdir()):
        size, xxh3 = path.stat().st_size, xxh3_of_file(str(path), stop)
        rows[path.name] = Row(path.name, size, "", xxh3)
    return Complete(public, rows, made={"transcode": settings.transcode})


def _originals(url: str, settings: StageSettings) -> Staged:
    return stage(
        url,
        scratch=settings.scratch,
        workers=settings.workers,
        checksums=settings.checksums,
        lock_timeout=settings.lock_timeout,
        evict=settings.evict,
        reserve=settings.reserve << 20 if settings.reserve >= 0 else -1,
        quota=settings.quota << 20,
        allow_shared=settings.allow_shared,
    )


def _prepare(kind: str, source: Path, target: Path, settings: StageSettings) -> None:
    from ..preparation.preparing import prepare  # imported late: it brings numpy and Pillow

    if not kind:
        records = (source / MANIFEST).exists() or any(source.glob("*.tfrecord*"))
        kind = "records" if records else "folder"
    asked = dataclasses.replace(
        PrepareSettings(f"{kind}:{source}", str(target)),
        size=settings.transcode,
        workers=settings.workers,
    )
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for the path
        prepare(asked)
