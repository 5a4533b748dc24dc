"""The disk that is written to, and what may go wrong with it."""

import contextlib
import errno
from collections.abc import Iterator

from ..errors import RunFailed, UserError
from .scratch import NoRoom
from .source import Refused

STEP = 8 << 20  # bytes after which the disk starts to write
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


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
