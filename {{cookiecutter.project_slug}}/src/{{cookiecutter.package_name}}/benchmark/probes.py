"""What is measured: the same job whole and in parts, in turn, over several repeats."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from ..progress import Progress

REPEATS = 5  # the t-interval of five repeats covered 89 to 94 of 100 in virtual time; of three, 86
WINDOW_SECONDS = 3.0  # of one repeat of one probe: 3 probes x 5 repeats stay under a minute
SETTLED = 0.02  # warm-up ends when three windows in a row trend by less than this in all
WARM_WINDOW_SECONDS = 0.5
MOST_WARM_WINDOWS = 20


@dataclasses.dataclass(frozen=True)
class Probe:
    """Something that runs a number of steps and returns when the last one is done.

    `ahead` is how many steps a pipeline may have worked ahead of it: they are run before the clock
    starts, or batches that were made in the pauses would count as made in the window.
    """

    name: str
    run: Callable[[int], object]
    ahead: int = 0


@dataclasses.dataclass
class Measured:
    """What a probe took: its first call in seconds, then milliseconds a step, one a repeat."""

    first_call_s: float
    steps: int  # in one repeat
    step_ms: list[float] = dataclasses.field(default_factory=list)


def measure(probes: Sequence[Probe], repeats: int = REPEATS) -> dict[str, Measured]:
    """Measures all probes, warm, in turn: forwards, backwards, forwards...

    Drift of the machine (heat, neighbours) then falls on all of them alike.

    Args:
      probes: what to measure.
      repeats: how often each; at least 2.
    """
    windows = len(probes) * (repeats + 1)
    with Progress("benchmark", windows, "window") as progress:
        measured = {}
        for probe in probes:
            measured[probe.name] = _warm_up(probe)
            progress.advance(1, f"{probe.name} is warm")
        for repeat in range(repeats):
            order = probes if repeat % 2 == 0 else list(reversed(probes))
            for probe in order:
                result = measured[probe.name]
                if probe.ahead:
                    probe.run(probe.ahead)
                result.step_ms.append(1000 * _seconds(probe, result.steps) / result.steps)
                progress.advance(1, f"{probe.name} {result.step_ms[-1]:.3g} ms a step")
    return measured


def step_times(probe: Probe, seconds: float = 5.0, least: int = 10, most: int = 200) -> list[float]:
    """Milliseconds of single steps, each waited for: a pass of its own, as waiting has a cost."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or (len(times) < most and time.perf_counter() < end):
        times.append(1000 * _seconds(probe, 1))
    return times


def _warm_up(probe: Probe) -> Measured:
    """Runs a probe until its rate stops trending; finds how many steps fill a window."""
    first_call = _seconds(probe, 1)
    second_call = _seconds(probe, 1)  # the first that has nothing to compile
    steps = max(1, round(WARM_WINDOW_SECONDS / second_call))
    rates: list[float] = []
    while len(rates) < MOST_WARM_WINDOWS:
        rates.append(steps / _seconds(probe, steps))
        if len(rates) >= 3 and abs(_trend(rates[-3:])) < SETTLED:
            break
    return Measured(first_call, max(1, round(WINDOW_SECONDS * rates[-1])))


def _trend(rates: Sequence[float]) -> float:
    """Relative change over three windows, along the fitted line."""
    return (rates[-1] - rates[0]) / (sum(rates) / len(rates))


def _seconds(probe: Probe, steps: int) -> float:
    began = time.perf_counter()
    probe.run(steps)
    return time.perf_counter() - began
