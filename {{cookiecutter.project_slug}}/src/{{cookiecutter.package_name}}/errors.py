"""How a command ends: one clear line for what a user can mend, and an exit code."""

import errno
import sys
from collections.abc import Callable

USAGE = 2  # the exit code of a bad flag, path or value; argparse and absl users expect 2
NO_SPACE = 28  # errno.ENOSPC, kept as the exit code so that a script can tell a full disk apart
INTERRUPTED = 130  # 128 + SIGINT, a shell's convention
TERMINATED = 143  # 128 + SIGTERM, what schedulers read as "asked to stop, and did"


class UserError(Exception):
    """Something the user can mend. The message is one line: what was wrong, where, what to do."""

    code = USAGE  # the command's exit code


class RunFailed(Exception):
    """Training cannot go on. The message is one line; the exit code is 1."""


class NotFinite(RunFailed):
    """The loss has become NaN or infinite, at this step; steps are counted from 1."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def run_command(name: str, body: Callable[[], int]) -> int:
    """Runs a command's body; returns its exit code, printing one line instead of a traceback.

    Args:
      name: what the line starts with, such as "train".
      body: the command; returns its own exit code.
    """
    try:
        return body()
    except UserError as error:
        print(f"{name}: {_one_line(error)}", file=sys.stderr)
        return error.code
    except RunFailed as error:
        print(f"{name}: {_one_line(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        # A full disk or a read-only directory is the user's to mend; any other OSError is a bug
        # here and keeps its traceback.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        where = f": {error.filename}" if error.filename else ""
        print(f"{name}: {error.strerror}{where}: free it or choose another path", file=sys.stderr)
        return NO_SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else USAGE
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
