"""The procedure: measure the parts, then what the first figures call for, then name the cause.

| probe | what runs | tells |
|---|---|---|
| end_to_end | the training, called as training calls it | what is to be explained |
| input | its batches, dropped | what the input takes alone |
| input_from_memory | the same, its records in memory | storage |
| step_resident | its steps on one batch that lies on the device | host and device |
| device | the same, many steps a call, no callbacks | the device |
| host | steps that compute nothing | the host's work a step |
| feed | the same, a batch from the host each | the copy |
| input_without_decode, _without_python, input_bare | less of the input | which stage is slow |
| device_2x_batch, _xla, _mixed_precision, _one_replica | another step | what binds it |
| host_without_callbacks | what the callbacks take | |
| end_to_end_prefetched | the training with prefetch added, where it has none | overlap |
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from .candidates import HEALTHY, WORTH, Facts
from .cause import Verdict, find_cause
from .probes import Measured, Pace, Probe, measure
from .remedies import Prediction, means_of, model_of, predict
from .step_model import FITS, StepModel

# The device first, while it is cold.
ALWAYS = (
    "device",
    "end_to_end",
    "input",
    "input_from_memory",
    "step_resident",
    "host",
    "feed",
)


class Workload(Protocol):
    """A training that can be run whole and in parts."""

    @property
    def batch_size(self) -> int:
        """Examples of a global batch."""

    @property
    def steps_per_call(self) -> int:
        """Steps that the host starts at once; for a pace that adapts, what it is now."""

    @property
    def half_precision(self) -> str:
        """The dtype policy that the probe of mixed precision runs under."""

    @property
    def nearer(self) -> str:
        """Flags that bring the records nearer."""

    def probe(self, name: str) -> Probe | None:
        """The probe of that name, or None where the training has no such part."""

    def facts(self) -> Facts:
        """What is known beside the rates, once they are measured."""


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What a training is limited by.

    Attributes:
      measured: every probe that was run.
      repeats: milliseconds a step of each, round by round; those of the closer look are scaled to
        the first rounds by a probe that both have.
      model: of the means.
      verdict: the cause.
      predictions: what each remedy would give, the best first.
    """

    measured: dict[str, Measured]
    repeats: dict[str, list[float]]
    model: StepModel
    verdict: Verdict
    predictions: list[Prediction]


def diagnose(workload: Workload, pace: Pace, more: Sequence[str] = ()) -> Diagnosis:
    """Measures a training and its parts, and names what limits it.

    Args:
      workload: the training.
      pace: how often and how long to measure.
      more: further probes to measure beside the first ones.
    """
    first = _probes(workload, (*ALWAYS, *more))
    measured = measure(first, pace)
    repeats = {name: result.step_ms for name, result in measured.items()}
    rounds = len(repeats["device"])
    repeats["device_cold"] = [measured["device"].windows[0][1]] * rounds
    closer = _probes(workload, _called_for(repeats, workload))
    if closer:
        # Those on the input's side go with the input, the others with the device.
        anchors = _probes(workload, sorted({_anchor(probe.name) for probe in closer}))
        as_often = dataclasses.replace(pace, repeats=rounds, most_repeats=rounds)
        seen = measure([*anchors, *closer], as_often, "closer look")
        for probe in closer:
            anchor = _anchor(probe.name)
            pairs = zip(seen[probe.name].step_ms, seen[anchor].step_ms, strict=True)
            ratios = [ms / reference for ms, reference in pairs]
            repeats[probe.name] = [
                ratio * ms for ratio, ms in zip(ratios, repeats[anchor], strict=True)
            ]
            measured[probe.name] = seen[probe.name]
    facts = workload.facts()
    if not facts.throttled:
        del repeats["device_cold"]
    predictions = predict(
        repeats,
        workload.batch_size,
        workload.steps_per_call,
        workload.half_precision,
        workload.nearer,
    )
    verdict = find_cause(repeats, predictions, facts)
    means = means_of(repeats)
    return Diagnosis(measured, repeats, model_of(means), verdict, predictions)


def _called_for(repeats: dict[str, list[float]], workload: Workload) -> list[str]:
    """The further probes that the branch needs which the first figures lead into."""
    means = means_of(repeats)
    model = model_of(means)
    names = []
    if means["end_to_end"] / model.without_input() > HEALTHY:
        names += ["input_without_decode", "input_without_python", "input_bare"]
    if model.exposed > 0.2 or model.residual > 1 + FITS:
        names.append("end_to_end_prefetched")
    if 1 - means["device"] / means["step_resident"] > 1 - 1 / WORTH:
        names.append("host_without_callbacks")
    if means["end_to_end"] / model.without_input() < 1.5:
        names += ["device_2x_batch", "device_xla", "device_mixed_precision"]
    if means["end_to_end"] / model.without_input() < 1.5:
        names.append("device_one_replica")
    return names


def _anchor(name: str) -> str:
    if name.startswith("input"):
        return "input"
    if name.startswith("end_to_end"):
        return "end_to_end"
    return "host" if name.startswith("host") else "device"


def _probes(workload: Workload, names: Sequence[str]) -> list[Probe]:
    return [probe for probe in map(workload.probe, names) if probe]
