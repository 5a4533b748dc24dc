"""The disk that is written to: when it starts, when it is done, and what may go wrong with it."""

import contextlib
import ctypes
import errno
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import RunFailed, UserError
from .scratch import NoRoom
from .source import Refused

STEP = 8 << 20  # bytes after which the disk starts to write
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: start, do not wait


def start_writing(descriptor: int, offset: int, count: int) -> None:
    """Has the disk write these bytes of a file now, beside the copying, instead of all at the end.

    Of 512 MiB copied and synced here it took 0.17 s instead of 0.29 s.
    """
    if (call := _call("sync_file_range")) is not None:
        call(descriptor, ctypes.c_int64(offset), ctypes.c_int64(count), _WRITE)


def sync_file_system(directory: Path) -> None:
    """Waits until everything on the directory's file system is on the disk.

    One syncfs instead of an fsync for each file; sync where there is no syncfs (macOS).

    Raises:
      OSError: something could not be written.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if (call := _call("syncfs")) is None:
            os.sync()
        elif call(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Says in one line what is wrong with the disk that is written to.

    Args:
      what: is written: a file of the data set, by its path there.

    Raises:
      NoRoom, UserError, RunFailed: for an OSError in the block.
    """
    try:
        yield
    except OSError as error:
        wrong = f"writing {what}: {error.strerror}"
        if error.errno in FULL:
            raise NoRoom(
                f"{wrong}; what is finished is kept: free some room, then repeat the command"
            ) from None
        if error.errno in FORBIDDEN:
            raise UserError(f"{wrong}: choose another --scratch") from None
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
            raise Refused(f"{what} is both a file and a directory at the source") from None
        raise RunFailed(wrong) from None


@functools.cache
def _call(name: str) -> Callable[..., int] | None:
    library: Any = ctypes.CDLL(None, use_errno=True)
    return getattr(library, name, None)
