"""The benchmark's document in plain words and readable figures, for the screen and the report."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from ..benchmark.statistics import Estimate
from ..nvml import HARMFUL, REASONS

DASH, INFINITY = "\N{EN DASH}", "\N{INFINITY}"

# The contract's causes, each as what a newcomer would say of it.
CAUSES = {
    "gpu_not_visible": "TensorFlow does not see the GPU",
    "throttled": "The GPU slows itself down, by heat or for want of power",
    "storage": "Training waits for records to be read",
    "decode": "Training waits for images to be decoded and cropped",
    "python_input": "Training waits for Python code in the input",
    "no_overlap": "Input and training take turns instead of overlapping",
    "contention": "Input and training slow each other down",
    "input_co_limited": "Training waits for input, and no stage alone is to blame",
    "communication": "Replicas wait while gradients are exchanged",
    "host_to_device_copy": "Training waits for batches to be copied to the device",
    "host_per_step": "The device waits for the host between steps",
    "launch": "The device's operations take longer to start than to run",
    "small_batch": "The batch is too small to fill the device",
    "device_compute": "The device's arithmetic sets the pace",
    "device_memory": "The device's memory bandwidth sets the pace",
    "device": "The device itself sets the pace",
    "healthy": "Healthy: stop tuning",
    "undecided": "Undecided: the figures do not tell",
}

CHANGES = {
    "stage": "Read records from nearer",
    "prepare": "Prepare the images once",
    "native_map": "Replace Python in the input by TensorFlow",
    "prefetch": "Overlap input with training",
    "steps_per_call": "Run more steps a call",
    "jit": "Compile with XLA",
    "precision": "Compute in mixed precision",
    "double_batch": "Double the batch",
    "callbacks": "Shorten the callbacks",
    "hide_communication": "Hide the exchange of gradients",
    "cool": "Cool or power the GPU",
    "copy": "Copy less to the device",
}

PROBES = {
    "end_to_end": "the whole job",
    "input": "its input, with no model",
    "input_from_memory": "its input, records in memory",
    "input_without_decode": "its input, images not decoded",
    "input_without_python": "its input, Python part left out",
    "input_bare": "its input, neither read from afar nor decoded",
    "input_any_order": "its input, in any order",
    "step_resident": "a step on a batch that is on the device",
    "device": "many such steps in one call",
    "device_2x_batch": "the same, twice the batch",
    "device_xla": "the same, compiled with XLA",
    "device_mixed_precision": "the same, in mixed precision",
    "device_one_replica": "the same, on one replica alone",
    "host": "a step that computes nothing",
    "host_without_callbacks": "the same, without callbacks",
    "feed": "a step that computes nothing, its batch copied to the device",
    "end_to_end_prefetched": "the whole job with prefetch added",
}


def cause_title(cause: str) -> str:
    """A cause in plain words; one that is not the contract's, as it is written."""
    return CAUSES.get(cause, cause.replace("_", " ").capitalize())


def change_of(row: Mapping[str, Any]) -> str:
    """The change of a prediction or a confirmation, or the pair of it, in plain words."""
    change = str(row.get("change") or "A change")
    titles = [CHANGES.get(one, one.replace("_", " ")) for one in change.split("+")]
    return " and ".join([titles[0], *(inside(title) for title in titles[1:])])


def inside(title: str) -> str:
    """A title as it is written inside a sentence."""
    return title if title.startswith("TensorFlow") else title[:1].lower() + title[1:]


def flags_text(flags: Any) -> str:
    """Flags as they are typed, whether the document has a text, a list or nothing."""
    if isinstance(flags, Sequence) and not isinstance(flags, str):
        return " ".join(str(flag) for flag in flags)
    return str(flags or "")


def estimate(figures: Mapping[str, Any] | None, key: str = "mean") -> Estimate | None:
    """A figure with its interval; None if it is not there. A missing end is not a number."""
    if not figures or figures.get(key) is None or math.isnan(figures[key]):
        return None
    low, high = (figures.get(end) for end in ("low", "high"))
    return Estimate(
        figures[key], math.nan if low is None else low, math.nan if high is None else high
    )


def ranked(
    predictions: Sequence[Mapping[str, Any]] | None,
) -> list[tuple[Mapping[str, Any], Estimate]]:
    """The predictions that have a figure, the largest speed-up first."""
    pairs = [(one, estimate(one, "speedup")) for one in predictions or ()]
    return sorted(
        [(one, gain) for one, gain in pairs if gain is not None],
        key=lambda pair: -pair[1].mean,
    )


def first_to_try(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], Estimate] | None:
    """The change to begin with: none if the job is healthy or no gain is sure.

    That is the one that surely gives most, or one that may give as much and is only a flag.
    """
    if document["verdict"]["cause"] in ("healthy", "undecided"):
        return None
    sure = [pair for pair in ranked(document.get("predictions")) if pair[1].low > 1]
    best = max(sure, key=lambda pair: pair[1].low, default=None)
    if best is None or best[0].get("flags"):
        return best
    as_good = [pair for pair in sure if pair[0].get("flags") and pair[1].high > best[1].low]
    return max(as_good, key=lambda pair: pair[1].low, default=best)


def is_number(value: Any) -> TypeGuard[float]:
    """True for a finite number, which True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: float | None) -> str:
    """Three significant digits and never an exponent below a thousand million."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return INFINITY if value > 0 else f"-{INFINITY}"
    size = abs(value)
    if size >= 1e9:
        return f"{value:.2e}"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size < 0.001:
        return f"{value:.2g}"
    return f"{value:.{2 - math.floor(math.log10(size * 1.0005))}f}"


def times(ratio: float) -> str:
    """A speed-up, such as 2.91x."""
    return (f"{ratio:.2f}" if is_number(ratio) and ratio < 99.5 else number(ratio)) + "x"


def interval(figure: Estimate, write: Any = number) -> str:
    """(low to high), or nothing where an end is not known."""
    if math.isnan(figure.low) or math.isnan(figure.high):
        return ""
    return f"({write(figure.low).removesuffix('x')}{DASH}{write(figure.high).removesuffix('x')})"


def percent(part: float | None) -> str:
    """A part of one as a percentage."""
    return DASH if part is None or not math.isfinite(part) else f"{100 * part:.0f} %"


def shares(parts: Sequence[Mapping[str, Any]] | None) -> list[tuple[Mapping[str, Any], float]]:
    """Parts of a step with the share of the step that each takes; a negative part takes none."""
    sizes = [max(0.0, part["ms"]) if is_number(part.get("ms")) else 0.0 for part in parts or ()]
    whole = sum(sizes)
    return [(part, size / whole) for part, size in zip(parts or (), sizes, strict=True) if whole]


def gibibytes(size: float | None) -> str:
    """Bytes in GiB."""
    return DASH if size is None else f"{size / 2**30:.1f} GiB"


def why_no_predictions(document: Mapping[str, Any]) -> str:
    """Why a benchmark predicts nothing."""
    if document["verdict"]["cause"] == "healthy":
        return "There is nothing to gain that was measured: stop tuning."
    return (
        "Nothing is predicted: that is done only where the parts of a step were measured and "
        "add up to it."
    )


def why_no_gpu(document: Mapping[str, Any]) -> str:
    """Why there is nothing to show of a GPU; the sampler's own reason, if the document has it."""
    if document.get("gpu_absent"):
        return f"No GPU was sampled: {document['gpu_absent']}."
    if document["verdict"]["cause"] == "gpu_not_visible":
        return "No GPU was sampled: TensorFlow sees none. The doctor command says why."
    if computes_on_gpu(document):
        return "No GPU was sampled: NVIDIA's management library (NVML) gave nothing."
    return "No GPU was sampled: this job computed on the CPU."


def held_back(card: Mapping[str, Any]) -> str:
    """What slowed a card's clocks though it had work, in words; "" if its driver does not tell."""
    reasons = card.get("throttle_reasons")
    if reasons is None:
        return ""
    fractions = card.get("throttle_fractions") or {}
    harmless = set(REASONS.values()) - set(HARMFUL)
    found = [
        f"{str(reason).replace('_', ' ')}"
        + (f" in {percent(fractions[reason])} of the samples" if reason in fractions else "")
        for reason in reasons
        if reason not in harmless
    ]
    return f"clocks held back: {', '.join(found)}" if found else "clocks never held back"


def computes_on_gpu(document: Mapping[str, Any]) -> bool:
    """True if one of the job's devices is a GPU."""
    devices = (document.get("environment") or {}).get("devices") or ()
    return any("GPU" in str(device).upper() for device in devices)
