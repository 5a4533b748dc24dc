"""How often and after how long something is tried again."""

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from ..errors import RunFailed
from .source import Transient

TRIES = 6
FIRST_PAUSE = 0.5  # seconds; doubles each time: 15 s in all, longer than a server takes to restart
LONGEST_PAUSE = 60.0  # seconds, whatever a server asks for

T = TypeVar("T")


class Stopped(Exception):
    """The stop event was set, by a failure elsewhere or a signal. Never the root cause."""


def patiently(action: Callable[[], T], stop: threading.Event, retried: Callable[[], None]) -> T:
    """What `action` returns, tried again after each `Transient`.

    Args:
      action: may raise Transient; anything else is passed on.
      stop: ends the waiting.
      retried: called before each further try.

    Raises:
      RunFailed: it failed at every try.
      Stopped: `stop` was set meanwhile.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return action()
        except Transient as error:
            if attempt == TRIES:
                raise RunFailed(f"{error} ({TRIES} tries)") from None
            pause = FIRST_PAUSE * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)
            if error.retry_after is not None:
                pause = max(pause, error.retry_after)
        if stop.wait(min(pause, LONGEST_PAUSE)):
            raise Stopped
        retried()
    raise AssertionError("the last try returns or raises")
