"""What a data set is staged from: the protocol of a source, its errors, and checks of names."""

import dataclasses
import fnmatch
import threading
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import urlsplit

from ..errors import UserError

NAME_BYTES = 255  # the longest part of a path on ext4, XFS, tmpfs and NFS
PATH_BYTES = 3800  # PATH_MAX is 4,096; the scratch directory comes before


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of a source, of the version that was listed."""

    path: str  # relative, '/'-separated, as `checked_path` returns it
    size: int  # bytes; -1: not known until it is read
    identity: str  # changes when the content does: generation > etag > version > mtime_ns, or ""
    checksum: str = ""  # md5:HEX, crc32c:HEX or sha256:HEX that the source vouches for, or ""


class SourceChanged(Exception):
    """A file is not the version listed any more: list again. The message names it."""


class Transient(Exception):
    """Worth trying again: a cut connection, 429, 5xx. The message is one line, without secrets."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        """Keeps how long the server asks to wait, in seconds; None: it does not say."""
        super().__init__(message)
        self.retry_after = retry_after


class Refused(UserError):
    """Not worth trying again: 403, 404, an expired token, a hostile name. No secret in it."""


class Source(Protocol):
    """A data set somewhere. All methods but `list` are called from several threads at a time.

    Optional, looked for with getattr:

    | attribute | |
    |---|---|
    | `small: int` and `fetch_small(entries, stop) -> Iterator[tuple[Entry, bytes]]` | entries of at
      most `small` bytes are handed over in groups; one that fails is left out or ends the iterator
      with an error; those that did not come are then fetched one by one, with retries |
    | `expect(entries, workers)` | is told what will be fetched, and by how many threads |
    | `stream(stop) -> Iterator[tuple[Entry, Iterator[bytes]]]` | an archive: `list` gives one
      entry, the archive, for its version; its members come in order, of one reader; the blocks of
      one are read before the next is asked for; an error raised in it is retried from the start,
      and members that are finished are read past |
    """

    url: str  # public: no userinfo, no query
    workers: int  # threads that suit it

    def list(self) -> list[Entry]:
        """The files, fresh every time, never from a cache.

        Raises:
          Transient: try again.
          Refused: it is not there, not allowed, or holds a name that cannot be staged.
        """

    def fetch(self, entry: Entry, stop: threading.Event) -> Iterator[bytes]:
        """The content of the version listed, in blocks of at most 8 MiB; ends early after `stop`.

        A block is used up before the next is asked for, so that its memory may be used again.

        Raises:
          SourceChanged, Transient, Refused.
        """

    def close(self) -> None:
        """Lets go of connections."""


def checked_path(path: str, where: str) -> str:
    """`path` if it is safe below any directory.

    Args:
      path: relative, '/'-separated, from a stranger.
      where: the source, for the message.

    Raises:
      Refused: absolute, with an empty part, `.` or `..`, a NUL, or too long.
    """
    parts = path.split("/")
    try:
        sizes = [len(part.encode("utf-8", "surrogateescape")) for part in parts]
    except UnicodeEncodeError:
        raise Refused(f"{where}: the name {path!r} cannot be written as a file name") from None
    wrong = ""
    if path.startswith("/"):
        wrong = "is absolute"
    elif "\0" in path:
        wrong = "holds a NUL"
    elif {"", ".", ".."} & set(parts):
        wrong = "has an empty part, '.' or '..'"
    elif max(sizes) > NAME_BYTES or sum(sizes) + len(sizes) > PATH_BYTES:
        wrong = f"is longer than a file name may be ({NAME_BYTES} bytes)"
    if wrong:
        raise Refused(f"{where}: the name {path[:80]!r} {wrong}: rename it at the source")
    return path


def included(path: str, include: str) -> bool:
    """Whether one of the comma-separated globs matches; `*` matches '/' too; "" takes all."""
    return not include or any(fnmatch.fnmatchcase(path, glob) for glob in include.split(","))


def public_url(url: str) -> str:
    """The URL without what may be secret: user, password, query (signed URLs) and fragment.

    A path without a scheme comes back as it is.
    """
    if "://" not in url:
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme in ("http", "https"):
        return f"{parts.scheme}://{host}{parts.path}"
    # Keys of s3 and gs may hold '?' and '#', which are no query there; a secret is in userinfo.
    return f"{parts.scheme}://{host}{url.split('://', 1)[1][len(parts.netloc) :]}"
