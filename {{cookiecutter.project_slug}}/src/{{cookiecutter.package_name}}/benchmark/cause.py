"""What limits a job, told from three or four rates; `undecided` where they do not tell.

The procedure is a first form: it separates input from computation, storage from decoding, and
contention from both. What else can slow a step down is not told apart yet: it counts as `device`.
"""

import dataclasses
from collections.abc import Sequence

from .statistics import Estimate, mean_of, ratio_of

WORTH = 1.08  # a gain under 8 % is not worth a remedy's trouble, nor safely above the noise
OVERLAPPED = (
    1.15  # end to end may exceed the slower part by this before the parts must be colliding
)
STORAGE_PART = 0.12  # of the input's time that must go when records lie in memory


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
    """

    cause: str
    also: tuple[str, ...]
    confident: bool
    explanation: str
    device_busy_fraction: Estimate
    ceiling_speedup: Estimate


def find_cause(
    end_to_end: Sequence[float],
    input_alone: Sequence[float],
    input_from_memory: Sequence[float],
    step_resident: Sequence[float],
    device: str,
) -> Verdict:
    """Compares a job with its parts.

    Args:
      end_to_end: milliseconds a step of the whole job, a figure for each repeat.
      input_alone: of its input with no model, in the same repeats.
      input_from_memory: of the same input with the records in memory.
      step_resident: of its training step on a batch that is already on the device.
      device: what computes, "GPU" or "CPU".
    """
    ceiling = ratio_of(end_to_end, step_resident)
    busy = ratio_of(step_resident, end_to_end)
    figures = (
        f"A step takes {_ms(end_to_end)}; computing alone {_ms(step_resident)}, "
        f"input alone {_ms(input_alone)}, and from memory {_ms(input_from_memory)}."
    )

    def verdict(cause: str, also: tuple[str, ...], confident: bool, sentence: str) -> Verdict:
        return Verdict(cause, also, confident, f"{sentence} {figures}", busy, ceiling)

    if ceiling.high < WORTH:
        return verdict(
            "device",
            (),
            True,
            f"The {device} computes {_percent(busy)} of the time: no change of the input can give "
            f"more than {ceiling.high:.2f}x. A faster step can: precision, XLA, batch size, or "
            "another model.",
        )
    if ceiling.low < WORTH:
        return verdict(
            "undecided",
            ("device", "decode", "storage"),
            False,
            f"Computing takes {_percent(busy)} of the time, and the figures scatter too much to "
            "say whether the input costs anything. Measure again on a quieter machine.",
        )
    slower = [max(pair) for pair in zip(input_alone, step_resident, strict=True)]
    collision = ratio_of(end_to_end, slower)
    gain = f"with no input to wait for, training would be {_times(ceiling)} faster"
    if collision.low > OVERLAPPED:
        shared = "the same CPUs" if device == "CPU" else "the host's CPUs"
        return verdict(
            "contention",
            (),
            True,
            f"Input and computing take turns on {shared}: together they are {_times(collision)} "
            f"slower than the slower of them alone; {gain}. Give the input fewer CPU-seconds "
            "(prepared data, smaller images) or more CPUs.",
        )
    stored = ratio_of(input_from_memory, input_alone).map(lambda ratio: 1 - ratio)
    confident = collision.high < OVERLAPPED
    waits = f"The {device} waits {_percent(busy.map(lambda part: 1 - part))} of the time"
    also = () if confident else ("contention",)
    if stored.low > STORAGE_PART:
        return verdict(
            "storage",
            also,
            confident,
            f"{waits} for records to arrive; {gain}. Bring them nearer: --cache=memory, or a local "
            "disk.",
        )
    if stored.high < STORAGE_PART:
        return verdict(
            "decode",
            also,
            confident,
            f"{waits} for images to be decoded and cropped; {gain}. Store smaller images, or use "
            "more CPUs.",
        )
    return verdict(
        "undecided",
        ("storage", "decode"),
        False,
        f"{waits} for input; {gain}; whether for reading or for decoding the figures do not tell.",
    )


def _ms(repeats: Sequence[float]) -> str:
    estimate = mean_of(repeats)
    return f"{estimate.mean:.3g} ms ({estimate.low:.3g}-{estimate.high:.3g})"


def _times(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f}x ({estimate.low:.2f}-{estimate.high:.2f})"


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.0f} %"
