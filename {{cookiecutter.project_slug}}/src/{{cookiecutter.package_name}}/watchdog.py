"""Ends a run that stands still: an input or a device that no longer answers."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

STDERR = 2  # the descriptor: what stands at `sys.stderr` need not have one


class Watchdog:
    """Ends the process with exit code 1 when nobody has called `beat` for too long.

    Entered around work that may hang where Python cannot interrupt it, as a call into TensorFlow
    can: it prints one line, then where every thread stands.
    """

    def __init__(self, name: str, seconds: float, why: Callable[[], str]) -> None:
        """Starts nothing yet.

        Args:
          name: of the command, with which the line begins.
          seconds: how long to be patient; 0: for ever.
          why: says what may be wrong and what to do.
        """
        self._name, self._seconds, self._why = name, seconds, why
        self._done = threading.Event()
        self.beat()

    def beat(self) -> None:
        """Says that there is progress."""
        self._last = time.monotonic()

    def __enter__(self) -> "Watchdog":
        self.beat()
        if self._seconds:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(max(0.0, self._last + self._seconds - time.monotonic())):
            if time.monotonic() - self._last >= self._seconds:
                self._bark()

    def _bark(self) -> None:
        line = f"{self._name}: nothing has moved for {self._seconds:g} s: {self._why()}"
        print(line, file=sys.stderr, flush=True)
        faulthandler.dump_traceback(STDERR, all_threads=True)
        os._exit(1)  # an orderly end would wait for the call that does not return
