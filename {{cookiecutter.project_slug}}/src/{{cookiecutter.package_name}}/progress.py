"""Progress of what takes over two seconds: a bar on a terminal, else a line every ten seconds."""

import sys
import time
from types import TracebackType

from tqdm import tqdm

LINE_EVERY = 10.0  # seconds between lines when nobody watches: a log is read later, not live


class Progress:
    """Counts towards a known total; shows the rate and the time left on standard error."""

    def __init__(self, what: str, total: int, unit: str, start: int = 0) -> None:
        """Starts the clock.

        Args:
          what: what is being done, such as "train".
          total: the count at which it is done.
          unit: what is counted, such as "step".
          start: the count already reached when this process began.
        """
        self._what, self._total, self._unit = what, total, unit
        self._count = self._start = start
        self._note = ""
        self._began = self._printed = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, initial=start, unit=unit, desc=what, dynamic_ncols=True)

    def advance(self, count: int, note: str = "") -> None:
        """Adds `count`; `note` is shown beside the figures."""
        self._count += count
        self._note = note or self._note
        if self._bar is not None:
            self._bar.set_postfix_str(self._note, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._printed >= LINE_EVERY:
            self._print_line()

    def extend(self, count: int) -> None:
        """Moves the end away: there is more to do than was known."""
        self._total += count
        if self._bar is not None:
            self._bar.total = self._total

    def say(self, line: str) -> None:
        """Prints a line without tearing the bar."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def _print_line(self) -> None:
        self._printed = time.monotonic()
        rate = (self._count - self._start) / (self._printed - self._began)
        left = (self._total - self._count) / rate if rate else float("inf")
        print(
            f"{self._what}: {self._count}/{self._total} {self._unit}s, {rate:.3g} {self._unit}/s, "
            f"{left:.0f} s left {self._note}",
            file=sys.stderr,
            flush=True,
        )
