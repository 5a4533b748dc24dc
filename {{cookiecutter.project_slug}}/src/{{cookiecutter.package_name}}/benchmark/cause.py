"""What limits a training: the largest of the causes that its rates allow; else `undecided`.

A cause counts for as much as the training would gain if it went. Two that cannot be told apart make
the verdict `undecided`.
"""

import dataclasses
from collections.abc import Sequence

from .candidates import COMPUTING, HEALTHY, WORTH, Candidate, Evidence, Facts, times
from .remedies import Prediction, Repeats, fits
from .statistics import Estimate, estimate_of

NOISE = 0.02  # by which an interval may exceed what is still called nothing
# cause, also, confident, sentence, change
_Finding = tuple[str, Sequence[str], bool, str, str]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The limiting resource in the contract's terms, and why.

    Attributes:
      cause: one of the contract's causes, or "undecided".
      also: other causes that the figures allow.
      confident: False if the intervals allow another cause.
      explanation: sentences for a newcomer, with the figures that decided.
      device_busy_fraction: computation alone / end to end.
      ceiling_speedup: what all input remedies together could give.
      change: the remedy for the cause, as in the predictions; "" for none.
    """

    cause: str
    also: tuple[str, ...]
    confident: bool
    explanation: str
    device_busy_fraction: Estimate
    ceiling_speedup: Estimate
    change: str = ""


def find_cause(repeats: Repeats, predictions: Sequence[Prediction], facts: Facts) -> Verdict:
    """Chooses among the causes that the rates allow.

    Args:
      repeats: milliseconds a step of each probe, round by round.
      predictions: of the remedies; none where the model does not fit.
      facts: what else is known.
    """
    evidence = Evidence(repeats, {p.change: p.speedup for p in predictions}, facts)
    busy = estimate_of(lambda m: min(1.0, m["device"] / m["end_to_end"]), repeats)

    def verdict(
        cause: str, also: Sequence[str], confident: bool, sentence: str, change: str = ""
    ) -> Verdict:
        sentence = f"{sentence} {evidence.figures()}"
        return Verdict(cause, tuple(also), confident, sentence, busy, evidence.ceiling, change)

    # Heat is told from everything else by its own evidence; the rest is measured while it lasts.
    for candidate in evidence.throttling():
        return verdict(candidate.cause, (), True, candidate.sentence, candidate.change)
    found = sorted(
        [*evidence.of_the_input(), *evidence.of_the_step()],
        key=lambda candidate: -candidate.gain.mean,
    )
    worth = [c for c in found if c.gain.mean > WORTH and c.gain.low > 1]
    unsure = [c for c in found if c not in worth and c.gain.high > WORTH]
    if not fits(repeats) and not any(c.cause in ("contention", "no_overlap") for c in worth):
        return verdict(
            "undecided",
            [c.cause for c in worth],
            False,
            "The parts do not add up to the whole: something beside them takes time, or the "
            "machine was busy. Measure again with nothing else running.",
        )
    if not worth:
        return verdict(*_nothing_to_gain(evidence, unsure))
    best = worth[0]
    rivals = [c for c in worth[1:] if _overlap(c, best)]
    # One that may be nothing is a rival too, if it may as well be the greater.
    rivals += [c for c in unsure if c.gain.high > best.gain.mean]
    rivals = [rival for rival in rivals if (best.cause, rival.cause) not in IMPLIED]
    if rivals:
        names = [best.cause, *(rival.cause for rival in rivals)]
        return verdict(
            "undecided",
            names,
            False,
            f"Two causes weigh alike here. {best.sentence} {rivals[0].sentence}",
        )
    also, surely = [c.cause for c in unsure], best.gain.low > WORTH - NOISE
    return verdict(best.cause, also, surely, best.sentence, best.change)


# Where the first is found, the second is a way to see the same thing.
IMPLIED = {
    *(("no_overlap", other) for other in ("storage", "decode", "python_input")),
    *(("input_co_limited", other) for other in ("storage", "decode")),
    *((other, "contention") for other in ("storage", "decode", "python_input")),
    *(("python_input", other) for other in ("storage", "decode")),
    *((other, "small_batch") for other in ("communication", "host_per_step", "launch")),
    *(("contention", other) for other in ("python_input", "host_per_step")),
    ("host_per_step", "contention"),
    ("small_batch", "launch"),
    ("host_per_step", "launch"),
}


def _overlap(one: Candidate, other: Candidate) -> bool:
    return one.gain.low < other.gain.high and other.gain.low < one.gain.high


def _nothing_to_gain(evidence: Evidence, unsure: Sequence[Candidate]) -> _Finding:
    """Where no cause stands out: the device computes, or all is well, or nobody can tell."""
    gains, ceiling = evidence.gains.values(), evidence.ceiling
    if ceiling.high > WORTH and ceiling.mean > HEALTHY:
        share = 100 / ceiling.mean
        sentence = (
            f"Computing takes {share:.0f} % of the time, and the figures scatter too much to say "
            "whether the input costs anything. Measure again on a quieter machine."
        )
        also = ["device", *(c.cause for c in unsure if c.cause != "device")]
        return "undecided", also, False, sentence, ""
    tried = {"precision", "jit", "double_batch"} <= evidence.gains.keys()
    if tried and max(g.high for g in gains) < HEALTHY + NOISE and max(g.mean for g in gains) < 1.03:
        sentence = "No remedy that was tried gives more than 5 %: stop tuning."
        return "healthy", [], True, f"{evidence.computes()} {sentence}", ""
    also = [candidate.cause for candidate in unsure if candidate.cause != "device"]
    change, gain = evidence.best(COMPUTING)
    if gain and gain.low > 1:
        sentence = f"{evidence.computes()} {change} would give {times(gain)}."
        return "device", also, True, sentence, change
    return "device", also, True, evidence.computes(), ""
