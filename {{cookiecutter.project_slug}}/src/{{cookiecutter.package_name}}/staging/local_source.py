"""A directory or a file, on a disk of this machine or on a network file system."""

import errno
import os
import stat
import threading
from collections.abc import Iterator, Sequence

from ..errors import UserError
from ..runtime import usable_cpus
from .source import Entry, Refused, SourceChanged, Transient, included

BLOCK = 1 << 20  # bytes read at a time: of 0.25, 1 and 4 MiB the fastest here
# What a network file system answers while its server restarts.
PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ENETDOWN}


class LocalSource:
    """Lists with os.scandir and reads with plain reads; fsspec is not needed for it.

    Symbolic links are followed within the directory; one that leads out of it, nowhere or in a
    circle is an error.
    """

    small = 1 << 20  # bytes; a file of at most this is read at once
    group = 64  # small files handed to a thread at a time

    def __init__(self, path: str, include: str = "") -> None:
        """Takes an absolute path, for the URL to be the same wherever the command was started.

        Raises:
          UserError: there is nothing at `path`.
        """
        self.root = os.path.abspath(os.path.expanduser(path))
        if not os.path.exists(self.root):
            raise UserError(f"{path}: no such file or directory: give an existing one, or a URL")
        self.url = self.root
        self.workers = min(8, usable_cpus())
        self._include = include
        self._real = os.path.realpath(self.root)
        self._single = not os.path.isdir(self.root)

    def list(self) -> list[Entry]:
        """Every file, sorted by path.

        Raises:
          Refused: a link or a special file that cannot be staged, or no permission.
          Transient: a network file system that does not answer.
        """
        try:
            if self._single:
                return [self._entry(os.path.basename(self.root), os.stat(self.root))]
            found = list(self._walk(self._real, "", ()))
        except OSError as error:
            raise _explained(error, self.url) from None
        return sorted(found, key=lambda entry: entry.path)

    def place(self, entry: Entry) -> str:
        """Where a file lies."""
        return self.root if self._single else os.path.join(self._real, entry.path)

    def fetch(self, entry: Entry, stop: threading.Event) -> Iterator[bytes]:
        """The content; the blocks share their memory.

        Raises:
          SourceChanged: it is not as it was listed, before or after it was read.
          Refused, Transient: as `list`.
        """
        buffer = memoryview(bytearray(min(BLOCK, max(1, entry.size))))
        descriptor = self._open(entry)
        try:
            before = self._unchanged(entry, descriptor)
            while (count := os.readv(descriptor, [buffer])) and not stop.is_set():
                yield buffer[:count]  # type: ignore[misc]
            if self._unchanged(entry, descriptor).st_ctime_ns != before.st_ctime_ns:
                raise SourceChanged(f"{self.place(entry)} was changed while it was read")
        except OSError as error:
            raise _explained(error, self.place(entry)) from None
        finally:
            os.close(descriptor)

    def fetch_small(
        self, entries: Sequence[Entry], stop: threading.Event
    ) -> Iterator[tuple[Entry, bytes]]:
        """Small files, each whole; raises as `fetch`."""
        for entry in entries:
            if stop.is_set():
                return
            descriptor = self._open(entry)
            try:
                content = os.read(descriptor, entry.size + 1)
                self._unchanged(entry, descriptor)
            except OSError as error:
                raise _explained(error, self.place(entry)) from None
            finally:
                os.close(descriptor)
            yield entry, content

    def close(self) -> None:
        """Nothing is held open."""

    def _walk(
        self, directory: str, below: str, above: tuple[tuple[int, int], ...]
    ) -> Iterator[Entry]:
        status = os.stat(directory)
        here = (status.st_dev, status.st_ino)
        if here in above:
            raise Refused(f"{directory}: this link leads in a circle: remove it at the source")
        with os.scandir(directory) as found:
            for item in found:
                status = item.stat(follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    status = self._followed(item.path)
                path = f"{below}{item.name}"
                if stat.S_ISDIR(status.st_mode):
                    yield from self._walk(item.path, f"{path}/", (*above, here))
                elif included(path, self._include):
                    yield self._entry(path, status)

    def _followed(self, link: str) -> os.stat_result:
        real = os.path.realpath(link)
        if os.path.commonpath([real, self._real]) != self._real:
            raise Refused(f"{link}: this link leads out of the data set: remove or replace it")
        try:
            return os.stat(link)
        except FileNotFoundError:
            raise Refused(f"{link}: this link leads nowhere: remove it at the source") from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise Refused(f"{link}: this link leads in a circle: remove it") from None

    def _entry(self, path: str, status: os.stat_result) -> Entry:
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{self.url}: {path!r} is no file (a pipe, socket or device): remove it")
        # A file system gives no name that `checked_path` refuses, which takes as long as the stat.
        return Entry(path, status.st_size, str(status.st_mtime_ns))

    def _open(self, entry: Entry) -> int:
        try:
            return os.open(self.place(entry), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _explained(error, self.place(entry)) from None

    def _unchanged(self, entry: Entry, descriptor: int) -> os.stat_result:
        status = os.fstat(descriptor)
        if (status.st_size, str(status.st_mtime_ns)) != (entry.size, entry.identity):
            raise SourceChanged(f"{self.place(entry)} is not as it was listed")
        return status


def _explained(error: OSError, where: str) -> Exception:
    if error.errno in PASSING:
        return Transient(f"{where}: {error.strerror}")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return SourceChanged(f"{where} is gone")
    return Refused(f"{where}: {error.strerror}: make it readable")
