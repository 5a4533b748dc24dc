"""An archive, read once from its begin to its end: its members are what is staged."""

import bz2
import contextlib
import gzip
import io
import lzma
import tarfile
import threading
import zlib
from collections.abc import Iterator
from typing import Any

from .source import Entry, Refused, Source, Transient, checked_path

BLOCK = 1 << 20  # bytes handed on at a time
# A bomb is told by its ratio. Photos and records compress by less than 2, text by 5 to 10; the
# first bytes of an archive, which may all be headers, by more.
RATIO, RATIO_FROM = 50, 16 << 20
# Bytes of a header that extends another, such as by a long name. tarfile reads it whole, and those
# before 2024 take the square of its length: 20 MB of digits held it up for minutes.
EXTENSION = 16 << 10
MEMBERS = 20_000_000  # a scratch file system has fewer inodes
END = 512  # zero bytes, at least, that an archive ends with


class TarSource:
    """A tar archive somewhere, as it is or compressed by gzip, bzip2 or xz; zstd from Python 3.14.

    Members are regular files and directories alone, each with a name of its own that lies below the
    directory it is staged to. That is stricter than tarfile's "data" filter, which allows links
    within; nothing is extracted by tarfile, so nothing is written through one.
    """

    def __init__(self, archive: Source) -> None:
        """Takes the source of the archive's file."""
        self._archive = archive
        self.url = archive.url
        self.workers = 1
        self._entry = Entry("", -1, "")

    def list(self) -> list[Entry]:
        """The archive, for its version; what is in it is known when it is read.

        Raises:
          Transient, Refused: as `Source.list`.
        """
        entries = self._archive.list()
        if len(entries) != 1:
            raise Refused(f"{self.url} is a directory, not an archive: leave --untar out")
        (self._entry,) = entries
        return entries

    def fetch(self, entry: Entry, stop: threading.Event) -> Iterator[bytes]:
        """The archive itself."""
        return self._archive.fetch(entry, stop)

    def stream(self, stop: threading.Event) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """The members of the archive last listed, in order; each is read before the next.

        Raises:
          Refused: a member that is neither file nor directory, or has a name that leads out or was
            had before; one that grows too much in reading; no archive.
          Transient: it is damaged or ends before its end mark.
          SourceChanged, Transient, Refused: as `Source.fetch`.
        """
        source = _Blocks(self._archive.fetch(self._entry, stop))
        plain: Any = _Guarded(
            _decompressed(io.BufferedReader(source, BLOCK), self.url), source, self.url
        )
        with (
            _judged(self.url, stop),
            tarfile.open(fileobj=plain, mode="r|", bufsize=BLOCK, tarinfo=_Header) as archive,
        ):
            yield from _members(archive, self.url, stop)
            if not stop.is_set():
                plain.finish(archive.offset)

    def close(self) -> None:
        """Closes the source of the archive's file."""
        self._archive.close()


@contextlib.contextmanager
def _judged(where: str, stop: threading.Event) -> Iterator[None]:
    """Says in one line what is wrong with an archive, unless it was cut short by `stop`."""
    try:
        yield
    except _LongHeader as error:
        raise Refused(f"{where}: {error}: make it anew, without such attributes") from None
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if not stop.is_set():
            raise Transient(f"{where}: damaged, or no tar archive ({error})") from None


class _LongHeader(Exception):
    """A header is longer than names and attributes need."""


class _Header(tarfile.TarInfo):
    """A header that is looked at before what follows it is read."""

    def _proc_member(self, archive: Any) -> Any:  # which tarfile names as what may be overridden
        extends = self.type not in tarfile.SUPPORTED_TYPES or self.type in (
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
        )
        if extends and self.size > EXTENSION:
            raise _LongHeader(f"a header of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def _members(
    archive: Any, where: str, stop: threading.Event
) -> Iterator[tuple[Entry, Iterator[bytes]]]:
    files: set[str] = set()
    directories: set[str] = set()
    for count, member in enumerate(iter(archive.next, None), 1):
        if stop.is_set():
            return
        if count > MEMBERS:
            raise Refused(f"{where} has more than {MEMBERS} members: stage it unpacked")
        archive.members = []  # tarfile would keep each member's header: 2 kB of memory
        path = _path(member, where)
        if path == "":
            continue
        # "a" and then "a/b" need "a" as a file and as a directory.
        above = {path[:at] for at, letter in enumerate(path) if letter == "/"}
        taken = path in files or (path in directories and member.isfile()) or above & files
        if taken:
            raise Refused(f"{where}: two members by the name {path!r}, or one below a file")
        directories |= above
        if member.isdir():
            directories.add(path)
            continue
        files.add(path)
        yield Entry(path, member.size, ""), _content(archive.extractfile(member), where, stop)


def _content(file: Any, where: str, stop: threading.Event) -> Iterator[bytes]:
    # It is read where no error would come back through `stream`.
    with _judged(where, stop):
        while block := file.read(BLOCK):
            yield block


def _path(member: tarfile.TarInfo, where: str) -> str:
    if not (member.isfile() or member.isdir()) or member.issparse():
        kind = "a link" if member.issym() or member.islnk() else "no regular file"
        raise Refused(
            f"{where}: {member.name[:80]!r} is {kind}: archives of files and directories alone "
            "are unpacked: make it anew, with tar --dereference for links"
        )
    # `tar -c .` writes "./" before each name, and "/" or nothing after a directory's.
    name = member.name.rstrip("/") if member.isdir() else member.name
    while name.startswith("./"):
        name = name[2:]
    return "" if name in ("", ".") and member.isdir() else checked_path(name, where)


class _Blocks(io.RawIOBase):
    """An iterator of blocks as a file. A block is copied before the next is asked for."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest: Any = b""
        self.count = 0  # bytes handed on

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        part = self._rest[: len(buffer)]
        buffer[: len(part)] = part
        self._rest = self._rest[len(part) :]
        self.count += len(part)
        return len(part)


class _Guarded:
    """A file that refuses to grow too much beyond its source, or to end without a mark."""

    def __init__(self, plain: Any, source: _Blocks, where: str) -> None:
        self._plain, self._source, self._where = plain, source, where
        self._written = 0  # bytes up to the last that is not zero
        self.count = 0  # bytes read

    def read(self, size: int) -> bytes:
        content: bytes = self._plain.read(size)
        if written := len(content.rstrip(b"\0")):
            self._written = self.count + written
        self.count += len(content)
        if self.count > RATIO_FROM and self.count > RATIO * self._source.count:
            raise Refused(
                f"{self._where}: {self.count} bytes came of {self._source.count}: more than "
                f"{RATIO} times as much is taken for a bomb: unpack it yourself if you trust it"
            )
        return content

    def finish(self, end: int) -> None:
        """Reads the rest, so that the compression's own checksum is compared, too.

        tarfile ends without a word where a header is damaged or the archive was cut between two
        members: only zeros may follow, and there must be some.

        Args:
          end: where tarfile stopped.

        Raises:
          EOFError: there is no end mark.
        """
        while self.read(BLOCK):
            pass
        if self._written > end or self.count < end + END:
            raise EOFError(f"no header and no end mark at byte {end}")


def _decompressed(file: Any, where: str) -> Any:
    begin = file.peek(6)[:6]
    if not begin:
        raise Refused(f"{where}: the archive is empty: check the file")
    if begin.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file, mode="rb")
    if begin.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if begin.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile(file)
    if begin.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            from compression import zstd
        except ImportError:
            raise Refused(
                f"{where}: zstd is read from Python 3.14 on: compress it with gzip, or not at all"
            ) from None
        return zstd.ZstdFile(file)
    return file
