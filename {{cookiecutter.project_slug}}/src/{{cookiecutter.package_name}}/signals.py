"""SIGTERM, as schedulers send it."""

import signal

from .errors import TERMINATED
from .watchdog import Watchdog


class Stop:
    """Asked by the loop between its calls: `stop()` says whether SIGTERM has come.

    Until `hold` is called there is nothing to save and the process ends at once.
    """

    def __init__(self, watchdog: Watchdog) -> None:
        """`watchdog`: takes every question for progress."""
        self._watchdog = watchdog
        self._asked = self._held = False
        signal.signal(signal.SIGTERM, self._receive)

    def hold(self) -> None:
        self._held = True

    def __call__(self) -> bool:
        self._watchdog.beat()
        return self._asked

    def _receive(self, number: int, frame: object) -> None:
        self._asked = True
        if not self._held:
            raise SystemExit(TERMINATED)
