"""A lane: a process that trains in one set of flags whenever it is asked to, and idles otherwise.

TensorFlow starts once a lane. Two lanes can so take turns many times, which cancels what slows the
machine down for a while; while one trains the other waits, blocked, for its next request.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from ..errors import RunFailed, UserError

LAST_WORDS = 300  # characters of what a dead lane printed last that an error message repeats


class LaneFailed(RunFailed):
    """A lane could not do what it was asked to.

    Attributes:
      why: "memory" (it ran out of it), "signal", "time" (it took too long), "exit" or "failed".
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class Lane:
    """One process in one set of flags; closed, or its parent gone, it ends."""

    def __init__(
        self, flags: Sequence[str], name: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts the process.

        Args:
          flags: of `train`.
          name: what messages call it.
          environment: variables that differ from this process's.
        """
        self.flags, self.name = list(flags), name
        self._directory = tempfile.mkdtemp(prefix="lane-")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  `close` closes it
        self._answers, child_end = os.pipe()
        command = [sys.executable, "-m", f"{__package__}.lane_child"]
        try:
            self.process = subprocess.Popen(
                [*command, str(child_end), self._directory, *flags],
                bufsize=0,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(child_end,),
            )
        finally:
            os.close(child_end)

    def describe(self) -> dict[str, Any]:
        """What would train there."""
        return self.ask({"do": "describe"})

    def rate(self, seconds: float, limit_s: float | None = None) -> dict[str, Any]:
        """Trains on for so many seconds of steady training."""
        return self.ask({"do": "rate", "seconds": seconds}, limit_s)

    def train(self, seed: int, steps: int) -> dict[str, Any]:
        """Trains a fresh model from a seed and evaluates it."""
        return self.ask({"do": "train", "seed": seed, "steps": steps})

    def ask(self, request: dict[str, Any], limit_s: float | None = None) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Args:
          request: see `lane_child.py`.
          limit_s: seconds after which the lane is killed; None waits.

        Raises:
          UserError: the flags cannot work here; the message says which and why.
          LaneFailed: it died, took too long, or could not go on.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self._died() from None
        line = self._read_line(limit_s)
        answer = json.loads(line)
        if "error" not in answer:
            return answer
        if answer["kind"] == "usage":
            raise UserError(f"{self.name}: {answer['error']}")
        raise LaneFailed(f"{self.name}: {answer['error']}", answer["kind"])

    def close(self) -> None:
        """Ends the process, at once and whatever it does."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
            os.close(self._answers)
            self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "Lane":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_line(self, limit_s: float | None) -> bytes:
        end = None if limit_s is None else time.monotonic() + limit_s
        line = b""
        while not line.endswith(b"\n"):
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                self.process.kill()
                raise LaneFailed(f"{self.name}: no answer within {limit_s:.0f} s", "time")
            part = os.read(self._answers, 1 << 16)
            if not part:
                raise self._died()
            line += part
        return line

    def _died(self) -> LaneFailed:
        code = self.process.wait()
        words = self._last_words()
        said = f"; its last words: {words}" if words else ""
        if code >= 0:
            return LaneFailed(f"{self.name}: its process ended with exit code {code}{said}", "exit")
        name = signal.Signals(-code).name
        # The kernel sends it where memory has run out, and leaves no word with the process.
        hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
        return LaneFailed(f"{self.name}: its process was ended by {name}{hint}{said}", "signal")

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        # A stack trace of C++ names no cause: that stands above it.
        told = [line for line in lines if line.strip() and not re.search(r"@ +0x[0-9a-f]+", line)]
        return " ".join(" ".join(told[-3:]).split())[-LAST_WORDS:]
