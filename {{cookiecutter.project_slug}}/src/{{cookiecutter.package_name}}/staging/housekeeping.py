"""What is staged: listed, verified, removed; never from under a process that uses it."""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ..errors import RunFailed, UserError
from ..progress import Progress, scaled
from .checksums import xxh3_of_file
from .lock import take_if_free
from .source import public_url
from .store import TRASH, Complete, Row, Store
from .threads import run_all


def intact(
    store: Store,
    rows: Mapping[str, Row],
    deep: bool,
    workers: int,
    progress: Callable[[int, int], Progress],
) -> dict[str, Row]:
    """Those files that are there with their size; with `deep`, with their content too."""
    found = store.present(rows.values())
    if not deep or not found:
        return found
    wrong: list[str] = []
    stop = threading.Event()
    with progress(sum(row.size for row in found.values()), 0) as shown:
        done: list[int] = []

        def verify(row: Row) -> None:
            if xxh3_of_file(os.path.join(store.place, row.path), stop) != row.xxh3:
                wrong.append(row.path)
            done.append(row.size)

        def show() -> None:
            while done:
                shown.advance(done.pop())
            shown.advance(0)

        run_all(found.values(), verify, workers, stop, show)
    return {path: row for path, row in found.items() if path not in set(wrong)}


def stores(root: Path) -> list[Store]:
    """All data sets below a `tfstage-UID` directory, whole or not, least recently used first."""
    names = [p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")]
    return sorted((Store(root, name) for name in names), key=_last_use)


def used_bytes(root: Path, idle: bool = False) -> int:
    """Bytes of all data sets; with `idle`, of those that nobody uses."""
    return sum(bytes_of(s) for s in stores(root) if not idle or not in_use(s))


def bytes_of(store: Store) -> int:
    """Bytes of a data set's files, whole or not."""
    complete = store.complete()
    if complete is not None:
        return complete.bytes
    total = 0
    for directory, _, files in os.walk(store.directory):
        for name in files:
            total += os.lstat(os.path.join(directory, name)).st_size
    return total


def in_use(store: Store) -> bool:
    """Whether a process copies or reads it."""
    lock = take_if_free(store.use)
    if lock is None:
        return True
    lock.close()
    return False


def remove_if_idle(store: Store) -> bool:
    """Removes a data set unless a process uses it; whether it did."""
    lock = take_if_free(store.use)
    if lock is None:
        return False
    with lock:
        store.remove()
    return True


def make_room(root: Path, enough: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Removes data sets, least recently used first, until there is enough room."""
    for rubbish in root.glob(f"{TRASH}*"):  # of a removal that was killed
        shutil.rmtree(rubbish, ignore_errors=True)
    for store in stores(root):
        if enough():
            return
        size = bytes_of(store)
        if remove_if_idle(store):
            say(f"removed {store.key} ({scaled(size)}), the least recently used")


def table(roots: Iterable[Path]) -> str:
    """A line for each data set: key, size, files, state, last use, source."""
    lines = []
    for root in roots:
        for store in stores(root):
            complete = store.complete()
            state = "whole" if complete and not complete.rest else "in part"
            state += ", in use" if in_use(store) else ""
            files = len(complete.rows) if complete else len(store.noted()[0])
            url = complete.url if complete else ""
            size = scaled(bytes_of(store))
            lines.append(f"{store.key}  {size:>9}  {files:>7} files  {state:<15}  {url}")
    return "\n".join(lines)


def check(
    roots: Iterable[Path], which: str, deep: bool, progress: Callable[[int, int], Progress]
) -> str:
    """Verifies finished data sets; a line for each.

    Args:
      roots: `tfstage-UID` directories.
      which: a key, the source, or "" for all.
      deep: by content, not by size alone.
      progress: makes a progress display of (total, start) bytes.

    Raises:
      RunFailed: a file is missing or damaged; the message names it.
      UserError: nothing is staged under that name.
    """
    lines, damage = [], []
    for store, complete in _chosen(roots, which):
        if complete is None:
            lines.append(f"{store.key}  unfinished: the command that began it continues it")
            continue
        whole = intact(store, complete.rows, deep, os.cpu_count() or 1, progress)
        wrong = sorted(complete.rows.keys() - whole.keys())
        damage += [os.path.join(store.data, path) for path in wrong]
        lines.append(f"{store.key}  {len(whole)} files whole, {len(wrong)} damaged  {complete.url}")
    if damage:
        more = f" and {len(damage) - 3} more" if len(damage) > 3 else ""
        raise RunFailed(
            f"damaged: {', '.join(damage[:3])}{more}: stage the source again"
            + (" with --deep" if deep else "")
        )
    return "\n".join(lines)


def remove(roots: Iterable[Path], which: str) -> str:
    """Removes data sets; a line for each.

    Raises:
      UserError: nothing is staged under that name, or a process uses it.
    """
    if not which:
        raise UserError("rm: give WHICH, a key that `ls` shows or a source")
    lines = []
    for store, _ in _chosen(roots, which):
        if not remove_if_idle(store):
            raise UserError(f"{store.directory} is in use: wait until what reads it ends")
        lines.append(f"{store.key}  removed")
    return "\n".join(lines)


def _chosen(roots: Iterable[Path], which: str) -> list[tuple[Store, Complete | None]]:
    found = [(store, store.complete()) for root in roots for store in stores(root)]
    if not which:
        return found
    url = public_url(which) if "://" in which else os.path.abspath(os.path.expanduser(which))
    chosen = [(s, c) for s, c in found if s.key == which or (c is not None and c.url == url)]
    if not chosen:
        raise UserError(f"nothing is staged as {public_url(which)}: `ls` shows what is")
    return chosen


def _last_use(store: Store) -> float:
    try:
        return store.use.stat().st_mtime
    except FileNotFoundError:
        return 0.0
