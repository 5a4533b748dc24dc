"""Means, ratios and percentiles with the interval that repeats allow."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

# Student's t at 97.5 %, for 1 to 30 degrees of freedom; beyond, the normal's 1.96 is within 4 %.
# fmt: off
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval."""

    mean: float
    low: float
    high: float

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """The estimate of a monotone function of the figure."""
        ends = sorted((function(self.low), function(self.high)))
        return Estimate(function(self.mean), *ends)


def mean_of(repeats: Sequence[float]) -> Estimate:
    """Mean and t-interval of independent repeats (two or more).

    Within one run, steps are correlated: an interval from them is too narrow, so only the means of
    whole repeats count here.
    """
    mean = statistics.fmean(repeats)
    half = _t(len(repeats)) * statistics.stdev(repeats) / math.sqrt(len(repeats))
    return Estimate(mean, mean - half, mean + half)


def time_of(repeats: Sequence[float]) -> Estimate:
    """The same for a quantity that cannot be negative, such as a time: a factor up and down."""
    return estimate_of(lambda means: means[""], {"": repeats})


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Ratio of two quantities measured in the same repeats, pair by pair.

    The geometric mean with a t-interval of the logarithms: a slow minute of the machine that hits
    both of a pair cancels.
    """
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    return mean_of(logs).map(math.exp)


def estimate_of(
    function: Callable[[Mapping[str, float]], float], repeats: Mapping[str, Sequence[float]]
) -> Estimate:
    """A positive function of several means, with the interval that leaving out repeats gives.

    The jackknife: the function is taken of the means of all repeats, and of all but each one in
    turn. Round r of every quantity is left out together, so that what slowed a round cancels.

    Args:
      function: means by name -> a positive number.
      repeats: the measurements of each quantity, the same number of each, round by round.
    """
    rounds = len(next(iter(repeats.values())))

    def log_without(left_out: int | None) -> float:
        means = {
            name: statistics.fmean(v for r, v in enumerate(values) if r != left_out)
            for name, values in repeats.items()
        }
        return math.log(function(means))

    whole = log_without(None)
    pseudo = [rounds * whole - (rounds - 1) * log_without(r) for r in range(rounds)]
    half = _t(rounds) * statistics.stdev(pseudo) / math.sqrt(rounds)
    return Estimate(whole, whole - half, whole + half).map(math.exp)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    lower = math.floor(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (place - lower)


def _t(repeats: int) -> float:
    return _T[repeats - 2] if repeats - 2 < len(_T) else 1.96
