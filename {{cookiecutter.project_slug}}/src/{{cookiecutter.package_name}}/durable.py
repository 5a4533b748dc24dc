"""Small files written so that neither a kill nor a power cut leaves half of one."""

import os
import threading
import zlib
from pathlib import Path
from types import TracebackType

PARTIAL = ".partial-"  # what a name begins with until its file or directory is whole
LOOK_SECONDS = 0.02  # between looks at what has been written
BLOCK = 1 << 22  # bytes that are hashed at a time


def write_durably(path: Path, text: str) -> None:
    """Replaces a small file: after a kill it is the old one or the new one, never a part."""
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}")
    partial.write_text(text, encoding="utf-8")
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Following:
    """Follows the files below a directory while the block adds to them, and only adds.

    They are synchronised and their CRC-32 is taken meanwhile, so that little is left to do at the
    end. Who writes them need not know, and may rename them. Of 1 GB that TensorFlow writes it made
    1.5 s of 2.2 s; starting the disk without waiting for it (sync_file_range) made 2.0 s.

    Raises:
      OSError: at the end, what a disk that cannot write said.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._done = threading.Event()
        self._error: OSError | None = None
        self._begun: dict[int, tuple[int, int]] = {}  # by inode: bytes and their CRC-32
        self._thread = threading.Thread(target=self._follow, name="following", daemon=True)

    def __enter__(self) -> "Following":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    def fingerprint(self, path: Path) -> list[int]:
        """[bytes, CRC-32] of a file that nothing is added to any more."""
        return list(_checksum(path, self._begun.get(path.stat().st_ino, (0, 0))))

    def _follow(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            try:
                for path in filter(Path.is_file, self._directory.rglob("*")):
                    inode = path.stat().st_ino
                    sync(path)
                    self._begun[inode] = _checksum(path, self._begun.get(inode, (0, 0)))
            except FileNotFoundError:
                pass  # renamed or deleted meanwhile, as temporary files are
            except OSError as error:
                self._error = error  # a disk that could not write says so only once
                return


def fingerprint(path: Path) -> list[int]:
    """[bytes, CRC-32]: zlib's runs at 4 GB/s here, faster than any disk the file lies on."""
    return list(_checksum(path, (0, 0)))


def _checksum(path: Path, begun: tuple[int, int]) -> tuple[int, int]:
    """Bytes and CRC-32 of a whole file, of whose beginning both are known."""
    count, value = begun
    with path.open("rb") as file:
        file.seek(count)
        while block := file.read(BLOCK):
            count, value = count + len(block), zlib.crc32(block, value)
    return count, value
