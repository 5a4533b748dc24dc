"""Progress of what takes over two seconds: a bar on a terminal, else a line every ten seconds."""

import json
import sys
import time
from types import TracebackType

LINE_EVERY = 10.0  # seconds between lines when nobody watches: a log is read later, not live


class Progress:
    """Counts towards a known total; shows the rate and the time left on standard error."""

    def __init__(
        self,
        what: str,
        total: int,
        unit: str,
        start: int = 0,
        as_json: bool = False,
        quiet: bool = False,
    ) -> None:
        """Starts the clock.

        Args:
          what: what is being done, such as "train".
          total: the count at which it is done.
          unit: what is counted, such as "step"; "B" for bytes, which are shown as KiB, MiB, ...
          start: the count already reached when this process began.
          as_json: print lines of JSON instead of sentences, and no bar.
          quiet: count only: another process of the run shows the progress.
        """
        self._what, self._total, self._unit, self._as_json = what, total, unit, as_json
        self._count = self._start = start
        self._note = ""
        self._began = self._printed = time.monotonic()
        self._bar, self._quiet = None, quiet
        if sys.stderr.isatty() and not as_json and not quiet:
            from tqdm import tqdm  # imported late: it takes longer than a second call of `stage`

            self._bar = tqdm(
                total=total,
                initial=start,
                unit=unit,
                desc=what,
                dynamic_ncols=True,
                unit_scale=unit == "B",
                unit_divisor=1024,
            )

    def advance(self, count: int, note: str = "") -> None:
        """Adds `count`; `note` is shown beside the figures."""
        self._count += count
        self._note = note or self._note
        if self._bar is not None:
            self._bar.set_postfix_str(self._note, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._printed >= LINE_EVERY and not self._quiet:
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
        if self._as_json:
            line = json.dumps(
                {
                    "what": self._what,
                    "done": self._count,
                    "total": self._total,
                    "unit": self._unit,
                    "per_second": round(rate, 3),
                    "seconds_left": round(left, 1) if rate else None,
                }
            )
        elif self._unit == "B":
            done, total, each = (scaled(n) for n in (self._count, self._total, rate))
            line = f"{self._what}: {done} of {total}, {each}/s, {left:.0f} s left {self._note}"
        else:
            line = (
                f"{self._what}: {self._count}/{self._total} {self._unit}s, "
                f"{rate:.3g} {self._unit}/s, {left:.0f} s left {self._note}"
            )
        print(line, file=sys.stderr, flush=True)


def scaled(count: float) -> str:
    """Bytes in the unit a person reads, such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
