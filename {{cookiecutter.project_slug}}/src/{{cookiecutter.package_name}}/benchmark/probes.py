"""What is measured: the same job whole and in parts, in turn, over several repeats."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..progress import Progress
from .statistics import time_of

SCATTER = 0.04  # half an interval, as part of the figure, that calls for more repeats
SETTLED = 0.02  # warm-up ends when three windows in a row trend by less than this in all
MOST_WARM_WINDOWS = 10
MOST_REFILL_S = 2.0


@dataclasses.dataclass(frozen=True)
class Pace:
    """How long to measure.

    Attributes:
      repeats: of each probe, at least: the t-interval of five covered 89 to 94 of 100, of three 86.
      most_repeats: of each probe, where the machine is so busy that they scatter.
      window_s: seconds of one repeat of one probe.
      warm_s: seconds of one of the windows that are run until the rate has settled.
      extend_s: seconds after which no repeats are added.
    """

    repeats: int = 5
    most_repeats: int = 7
    window_s: float = 0.7
    warm_s: float = 0.25
    extend_s: float = 40.0  # so that all of a benchmark stays under three minutes


@dataclasses.dataclass(frozen=True)
class Probe:
    """Something that runs a number of steps and returns when the last one is done.

    Attributes:
      name: what the figures are kept under.
      run: runs that many steps.
      ahead: how many steps a pipeline may have worked or read ahead of it: they are run before the
        clock starts, or what was made in the pauses would count as made in the window.
      skip: a quicker way past those, after which one step is run.
      call: how many steps make a call, where calls cost something: a window is of whole calls, as
        a training is.
      part: of a window that suffices: what takes microseconds a step needs no second and a half.
      beside: is entered while a window is timed, again and again: it watches the GPUs.
    """

    name: str
    run: Callable[[int], object]
    ahead: int = 0
    skip: Callable[[int], object] | None = None
    call: Callable[[], int] = lambda: 1
    part: float = 1.0
    beside: contextlib.AbstractContextManager[Any] = dataclasses.field(
        default_factory=contextlib.nullcontext
    )


@dataclasses.dataclass
class Measured:
    """What a probe took: its first call in seconds, then milliseconds a step, one a repeat.

    Attributes:
      first_call_s: seconds of the first step, which compiles.
      steps: in one repeat, but for the rounding to whole calls.
      step_ms: of each repeat.
      windows: every window, those of the warm-up too: (when it ended, in seconds of the clock
        `time.perf_counter`, milliseconds a step).
    """

    first_call_s: float
    steps: int = 1
    step_ms: list[float] = dataclasses.field(default_factory=list)
    windows: list[tuple[float, float]] = dataclasses.field(default_factory=list)


def measure(probes: Sequence[Probe], pace: Pace, what: str = "benchmark") -> dict[str, Measured]:
    """Measures all probes, warm, in turn: forwards, backwards, forwards...

    Drift of the machine (heat, neighbours) then falls on all of them alike.

    Args:
      probes: what to measure; the first one is met by a cold device.
      pace: how often and how long.
      what: the progress bar's name.
    """
    extending = time.perf_counter() + pace.extend_s
    with Progress(what, len(probes) * (pace.repeats + 1), "window") as progress:
        measured = {}
        for probe in probes:
            measured[probe.name] = _warm_up(probe, pace)
            progress.advance(1, f"{probe.name} is warm")
        for repeat in range(pace.most_repeats):
            if repeat >= pace.repeats:
                scattered = any(_scatter(result.step_ms) for result in measured.values())
                if not scattered or time.perf_counter() > extending:
                    break
                progress.extend(len(probes))
            order = probes if repeat % 2 == 0 else list(reversed(probes))
            for probe in order:
                result = measured[probe.name]
                refill_s = _catch_up(probe)
                result.step_ms.append(_window(probe, result))
                _let_fill(refill_s)
                progress.advance(1, f"{probe.name} {result.step_ms[-1]:.3g} ms a step")
    return measured


def _scatter(step_ms: Sequence[float]) -> bool:
    estimate = time_of(step_ms)
    return estimate.high > (1 + 2 * SCATTER) * estimate.low


def step_times(probe: Probe, seconds: float = 3.0, least: int = 10, most: int = 200) -> list[float]:
    """Milliseconds of single steps, each waited for: a pass of its own, as waiting has a cost."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or (len(times) < most and time.perf_counter() < end):
        times.append(1000 * _seconds(probe, 1))
    return times


def _catch_up(probe: Probe) -> float:
    """Takes what was made in the pause since the probe's last window; the seconds it took."""
    began = time.perf_counter()
    if probe.ahead:
        (probe.skip or probe.run)(probe.ahead)
        if probe.skip:
            probe.run(1)
    return time.perf_counter() - began


def _let_fill(refill_s: float) -> None:
    """Waits until a pipeline has made again what it makes ahead: about as long as taking it took.

    Else its disk and its CPUs would be at work in the next probe's window.
    """
    time.sleep(min(refill_s, MOST_REFILL_S))


def _warm_up(probe: Probe, pace: Pace) -> Measured:
    """Runs a probe until its rate stops trending; finds how many steps fill a window."""
    result = Measured(_seconds(probe, 1))
    second_call = _seconds(probe, 1)  # the first that has nothing to compile
    result.steps = max(1, round(pace.warm_s * probe.part / second_call))
    refill_s = _catch_up(probe)
    rates: list[float] = []
    while len(rates) < MOST_WARM_WINDOWS:
        rates.append(1000 / _window(probe, result))
        if len(rates) >= 3 and abs(_trend(rates[-3:])) < SETTLED:
            break
    _let_fill(refill_s)
    result.steps = max(1, round(pace.window_s * probe.part * rates[-1]))
    return result


def _trend(rates: Sequence[float]) -> float:
    """Relative change over three windows, along the fitted line."""
    return (rates[-1] - rates[0]) / (sum(rates) / len(rates))


def _window(probe: Probe, result: Measured) -> float:
    call = probe.call()
    steps = -(-result.steps // call) * call
    with probe.beside:
        step_ms = 1000 * _seconds(probe, steps) / steps
    result.windows.append((time.perf_counter(), step_ms))
    return step_ms


def _seconds(probe: Probe, steps: int) -> float:
    began = time.perf_counter()
    probe.run(steps)
    return time.perf_counter() - began
