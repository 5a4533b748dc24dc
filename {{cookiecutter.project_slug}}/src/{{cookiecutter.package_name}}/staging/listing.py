"""One listing of a source: whether a directory can hold it, and the key that names it."""

import hashlib
import json
from collections.abc import Iterable, Sequence

from ..errors import UserError
from .contents import Promised
from .scratch import Need
from .source import Entry, Refused


def key_of(
    url: str, include: str, untar: bool, promises: Promised, entries: Sequence[Entry]
) -> str:
    """Names a version of a source: 16 hexadecimal digits."""
    files = [(entry.path, entry.size, entry.identity) for entry in entries]
    text = json.dumps([url, include, untar, promises.digest, files])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def need_of(entries: Sequence[Entry]) -> Need:
    """What copying these takes."""
    return Need(tuple(entry.size for entry in entries), len(_directories(e.path for e in entries)))


def orderly(url: str, include: str, entries: Sequence[Entry]) -> list[Entry]:
    """The entries by path.

    Raises:
      UserError: there is none.
      Refused: an object store has names that no directory can hold together.
    """
    if not entries:
        what = f"no file that matches {include!r}" if include else "no file"
        raise UserError(f"{url} holds {what}: nothing to stage")
    names = {entry.path for entry in entries}
    if len(names) < len(entries):
        raise Refused(f"{url}: a name is listed twice")
    for clash in sorted(names & _directories(names)):
        raise Refused(f"{url}: {clash!r} is both a file and a directory: rename one at the source")
    return sorted(entries, key=lambda entry: entry.path)


def difference(before: Sequence[Entry], after: Sequence[Entry]) -> str:
    """Names a file that is in one of two listings only, or not the same in both."""
    return f"{min(e.path for e in set(before) ^ set(after))} is not as it was listed"


def _directories(names: Iterable[str]) -> set[str]:
    """All directories that files of these names lie in, those above them too."""
    found: set[str] = set()
    for directory in {name.rpartition("/")[0] for name in names}:
        while directory and directory not in found:
            found.add(directory)
            directory = directory.rpartition("/")[0]
    return found
