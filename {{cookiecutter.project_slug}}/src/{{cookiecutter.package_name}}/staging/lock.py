"""Locks that the kernel frees however a process ends: one copier a data set, any number of users.

They save work; no byte depends on them. On a network file system flock may be granted to all.
"""

import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from ..errors import UserError

MESSAGE_EVERY = 10.0  # seconds
POLL = 0.05  # seconds; flock cannot wait with a limit
TIMEOUT = 75  # EX_TEMPFAIL of sysexits.h: try again later


class LockTimeout(UserError):
    """Another process has held the lock for longer than was to be waited."""

    code = TIMEOUT


class Lock:
    """A flock held on a file until `close`, by this process and the children it forks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Lets go; twice does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def take(
    path: Path,
    *,
    exclusive: bool,
    what: str,
    timeout: float,
    say: Callable[[str], None],
) -> Lock:
    """Waits for the lock, with a message at once and every ten seconds.

    Args:
      path: the lock's file, made if need be and never removed.
      exclusive: hold it alone; else shared with others that share it.
      what: is waited for, for the message.
      timeout: seconds.
      say: prints a line.

    Raises:
      LockTimeout: it is still held by another.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        began = time.monotonic()
        said = float("-inf")
        while not _granted(descriptor, exclusive, say):
            waited = time.monotonic() - began
            if waited >= timeout:
                raise LockTimeout(
                    f"{what} is held by {_holder(descriptor)} and was not free after {waited:.0f} s"
                    " (--lock_timeout): wait, or end that process"
                )
            if waited - said >= MESSAGE_EVERY:
                said = waited
                say(f"waiting for {what}, held by {_holder(descriptor)}, for {waited:.0f} s")
            time.sleep(min(POLL, timeout - waited))
        if exclusive:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _myself(), 0)
        return Lock(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def take_if_free(path: Path) -> Lock | None:
    """The lock, held alone, or None if anyone holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held; or no locks here, where nothing may be thought free either
        os.close(descriptor)
        return None
    return Lock(descriptor)


def _granted(descriptor: int, exclusive: bool, say: Callable[[str], None]) -> bool:
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        say(f"no locks on this file system ({error.strerror}): several processes may copy at once")
    return True


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"


def _myself() -> bytes:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()} since {now}".encode()
