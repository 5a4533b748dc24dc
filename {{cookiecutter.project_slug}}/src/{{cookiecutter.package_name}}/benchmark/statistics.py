"""Means, ratios and percentiles with the interval that repeats allow."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

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


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Ratio of two quantities measured in the same repeats, pair by pair.

    The geometric mean with a t-interval of the logarithms: a slow minute of the machine that hits
    both of a pair cancels.
    """
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    return mean_of(logs).map(math.exp)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    lower = math.floor(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (place - lower)


def _t(repeats: int) -> float:
    return _T[repeats - 2] if repeats - 2 < len(_T) else 1.96
