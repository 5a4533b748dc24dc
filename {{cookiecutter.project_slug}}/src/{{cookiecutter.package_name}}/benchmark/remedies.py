"""What each remedy would give, predicted from the parts that it changes."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from .statistics import Estimate, estimate_of
from .step_model import FITS, Parts, StepModel, fit

Means = Mapping[str, float]  # milliseconds a step of each probe, by name
Repeats = Mapping[str, Sequence[float]]  # the same, round by round

MORE_STEPS = 32  # times as many steps a call, where the host's time between calls counts
# The model is right to about this, beside what the repeats scatter (tests/scenarios).
MODEL_ERROR = 0.03


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a change would give.

    Attributes:
      change: the remedy, or two joined by "+" where one alone gives little.
      flags: what to add to the command; "" where no flag does it.
      speedup: examples a second with the change / without.
      advice: a sentence for a newcomer.
    """

    change: str
    flags: str
    speedup: Estimate
    advice: str


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change that can be made to a training.

    Attributes:
      probe: whose figure the prediction needs, beside those of the parts.
      changed: the means -> the parts that change, in milliseconds a step.
      flags, advice: see `Prediction`; names in braces stand for what `predict` is given.
      examples: times as many examples a step.
    """

    probe: str
    changed: Callable[[Means], dict[str, float]]
    flags: str
    advice: str
    examples: int = 1


def _part(part: str, probe: str) -> Callable[[Means], dict[str, float]]:
    return lambda means: {part: means[probe]}


REMEDIES = {
    "stage": Remedy(
        "input_from_memory",
        _part("input", "input_from_memory"),
        "{nearer}",
        "Bring the records nearer: to a local disk (--stage_to), or into memory where they fit "
        "(--cache=memory).",
    ),
    "prepare": Remedy(
        "input_without_decode",
        _part("input", "input_without_decode"),
        "",
        "Decode less: store the images at training size once (prepare), or their pixels "
        "(--format=raw), and train with --data=records:DIR.",
    ),
    "native_map": Remedy(
        "input_without_python",
        _part("input", "input_without_python"),
        "",
        "Write the Python part of the input in TensorFlow ops, or run it once, in advance: Python "
        "runs one record at a time however many CPUs there are.",
    ),
    "steps_per_call": Remedy(
        "host",
        lambda means: {"host": means["host"] / MORE_STEPS},
        "--steps_per_call={steps}",
        "Start more steps at once, so that the host's work is paid once for many.",
    ),
    "callbacks": Remedy(
        "host_without_callbacks",
        _part("host", "host_without_callbacks"),
        "",
        "Do less in the callbacks, or less often.",
    ),
    "copy": Remedy(
        "feed",
        lambda means: {"copy": 0.0},
        "",
        "Send less to the device: uint8 instead of floats, smaller images; and check that the card "
        "sits in a full-width PCIe slot.",
    ),
    "hide_communication": Remedy(
        "device_one_replica",
        _part("device", "device_one_replica"),
        "",
        "Let replicas talk less: a larger batch each, or a faster link between them.",
    ),
    "cool": Remedy(
        "device_cold",
        _part("device", "device_cold"),
        "",
        "Cool the device, or raise its power limit: it has slowed its clocks.",
    ),
    "jit": Remedy(
        "device_xla",
        _part("device", "device_xla"),
        "--jit=on",
        "Compile the step with XLA, which merges small kernels.",
    ),
    "precision": Remedy(
        "device_mixed_precision",
        _part("device", "device_mixed_precision"),
        "--precision={precision}",
        "Compute in half precision where the device is faster in it; watch the metric.",
    ),
    "double_batch": Remedy(
        "device_2x_batch",
        lambda means: {
            "input": 2 * means["input"],
            "copy": 2 * _copy(means),
            "device": means["device_2x_batch"],
        },
        "--batch_size={batch_size}",
        "Use a batch twice as large; the learning rate must follow, and the metric be watched.",
        examples=2,
    ),
    # Of these two together the effect is measured, not put together from the two.
    "stage+prepare": Remedy(
        "input_bare",
        _part("input", "input_bare"),
        "",
        "Do both: bring the records nearer, and decode less. Each alone leaves the other in the "
        "way.",
    ),
}
PREFETCH = "end_to_end_prefetched"


def means_of(repeats: Repeats) -> dict[str, float]:
    """The mean of each probe over its rounds."""
    return {name: sum(values) / len(values) for name, values in repeats.items()}


def model_of(means: Means) -> StepModel:
    """The model of the training whose probes these are."""
    parts = Parts(means["input"], means["host"], _copy(means), means["device"])
    return fit(means["end_to_end"], means["step_resident"], parts)


def predict(
    repeats: Repeats, batch_size: int, steps: int, precision: str, nearer: str = "--cache=memory"
) -> list[Prediction]:
    """All remedies whose probes were measured, the best first; none if the model does not fit.

    Args:
      repeats: of each probe.
      batch_size: examples of a global batch, as it is.
      steps: steps in a call, as it is.
      precision: the policy that the mixed precision probe ran under.
      nearer: flags that bring the records nearer.
    """
    filled = {
        "batch_size": 2 * batch_size,
        "steps": MORE_STEPS * steps,
        "precision": precision,
        "nearer": nearer,
    }
    found = []
    if PREFETCH in repeats:  # tried, not predicted
        gain = estimate_of(lambda m: m["end_to_end"] / m[PREFETCH], repeats)
        advice = "End the input in prefetch(2): it then works while the device computes."
        found.append(Prediction("prefetch", "", _widened(gain), advice))
    if not fits(repeats):
        return found
    for change, remedy in REMEDIES.items():
        if remedy.probe in repeats:
            gain = speedup(repeats, remedy)
            found.append(Prediction(change, remedy.flags.format(**filled), gain, remedy.advice))
    found += _pairs(repeats, found)
    return sorted(found, key=lambda prediction: -prediction.speedup.mean)


def fits(repeats: Repeats) -> bool:
    """Whether the parts explain the whole; not so only if the scatter cannot be the reason."""
    residual = estimate_of(lambda means: model_of(means).residual, repeats)
    return residual.low < 1 + FITS and residual.high > 1 - FITS


def speedup(repeats: Repeats, *remedies: Remedy) -> Estimate:
    """Examples a second with these remedies / without, with the model's own error allowed for."""

    def gain(means: Means) -> float:
        model, examples = model_of(means), 1
        changed: dict[str, float] = {}
        for remedy in remedies:
            changed |= remedy.changed(means)
            examples *= remedy.examples
        return examples * means["end_to_end"] / model.step(**changed)

    residual = model_of(means_of(repeats)).residual
    return _widened(estimate_of(gain, repeats), abs(math.log(residual)) / 2)


def _pairs(repeats: Repeats, singles: Sequence[Prediction]) -> list[Prediction]:
    """Pairs of an input's and a step's remedy that together give what neither gives alone."""
    gains = {single.change: single for single in singles}
    pairs = []
    for one in ("stage", "prepare", "native_map", "stage+prepare"):
        for other in ("steps_per_call", "precision", "jit"):
            if one in gains and other in gains:
                both = speedup(repeats, REMEDIES[one], REMEDIES[other])
                apart = gains[one].speedup.mean * gains[other].speedup.mean
                if both.low > 1.05 * max(apart, 1.0):
                    flags = " ".join(filter(None, (gains[one].flags, gains[other].flags)))
                    advice = f"{gains[one].advice} {gains[other].advice}"
                    pairs.append(Prediction(f"{one}+{other}", flags, both, advice))
    return pairs


def _copy(means: Means) -> float:
    return max(0.0, means.get("feed", means["host"]) - means["host"])


def _widened(estimate: Estimate, misfit: float = 0.0) -> Estimate:
    """The interval with the model's error added to the scatter's, as independent errors add."""
    scatter = math.log(estimate.high / estimate.low) / 2
    half = math.hypot(scatter, MODEL_ERROR, misfit)
    return Estimate(estimate.mean, estimate.mean * math.exp(-half), estimate.mean * math.exp(half))
