"""A few sets of flags that take turns on one machine, with no more processes than it can bear."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from .lane import Lane, LaneFailed

TURN_SECONDS = 1.0  # of steady training, each time it is a side's turn to be timed
WARM_SECONDS = 1.0  # of training in a new lane, thrown away: the first batches read cold files


@dataclasses.dataclass(frozen=True)
class Side:
    """A set of flags under the name that is shown for it."""

    name: str
    flags: tuple[str, ...]


@dataclasses.dataclass
class LaneTrainer:
    """A side as `comparison.Trainer`: trains for `steps`, is timed for `TURN_SECONDS` a turn."""

    lanes: "Lanes"
    side: Side
    steps: int = 0
    timed: dict[str, Any] | None = None  # where only one process fits, right after its training

    def train(self, seed: int) -> dict[str, Any]:
        result = self.lanes.ask(self.side, lambda lane: lane.train(seed, self.steps))
        if self.lanes.alone:
            self.timed = self.lanes.ask(self.side, lambda lane: lane.rate(4 * TURN_SECONDS))
        return result

    def rate(self) -> dict[str, Any]:
        return self.timed or self.lanes.ask(self.side, lambda lane: lane.rate(TURN_SECONDS))


class Lanes:
    """Opens a lane for each side as it is needed, and closes the one not used for longest.

    Two are open at most; where memory has room for one process alone, one.
    """

    def __init__(self, say: Callable[[str], object] = lambda line: None) -> None:
        """`say` is told in a line when something must be done another way."""
        self._most, self._say = 2, say
        self._open: dict[Side, Lane] = {}  # the one used last is the last
        self._facts: dict[Side, dict[str, Any]] = {}

    @property
    def alone(self) -> bool:
        """True once two processes were found not to fit."""
        return self._most == 1

    def facts(self, side: Side) -> dict[str, Any]:
        """What trains there, and a first rough rate; opens its lane."""
        self.ask(side, lambda lane: self._facts[side])
        return self._facts[side]

    def ask(self, side: Side, do: Callable[[Lane], dict[str, Any]]) -> dict[str, Any]:
        """Has a side's lane do something; in a process of its own if two do not fit.

        Raises:
          UserError, LaneFailed: as `Lane.ask`.
        """
        try:
            return do(self._lane(side))
        except LaneFailed as error:
            # The kernel may have ended it for want of memory: that is a signal too.
            if error.why not in ("memory", "signal") or not self._open.keys() - {side}:
                raise
            self._say(f"{error}; trying again with one process at a time")
            self.close()
            self._most = 1
            return do(self._lane(side))

    def close(self) -> None:
        """Ends all processes."""
        for lane in self._open.values():
            lane.close()
        self._open = {}

    def _lane(self, side: Side) -> Lane:
        lane = self._open.pop(side, None)
        if lane is None:
            while len(self._open) >= self._most:
                self._open.pop(next(iter(self._open))).close()
            lane = Lane(side.flags, side.name or "the defaults")
            try:
                self._facts[side] = lane.rate(WARM_SECONDS)
            except BaseException:
                lane.close()
                raise
        self._open[side] = lane
        return lane


@contextlib.contextmanager
def lanes(say: Callable[[str], object] = lambda line: None) -> Iterator[Lanes]:
    """Lanes that are closed however the block ends."""
    opened = Lanes(say)
    try:
        yield opened
    finally:
        opened.close()
