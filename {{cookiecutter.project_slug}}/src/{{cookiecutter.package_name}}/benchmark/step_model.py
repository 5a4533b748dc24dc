"""How the parts of a training make up a step, and what a step takes when a part changes.

    the input       gets the next batch ready, beside everything else
    the host        calls the step, copies the batch, and runs callbacks
    the device      computes

A part that overlaps the others costs nothing while it is shorter. How far they overlap is measured:
a device that the host waits for takes its time in turn with the host; an input without prefetch, or
one that shares the CPUs with the model, takes its time in turn with both.
"""

import dataclasses

# A part under 3 % of the other hides in the noise: whether the two overlap cannot be seen.
VISIBLE = 0.03
MOST_EXPOSED = 2.0
FITS = 0.10  # end to end may differ from the model by this; beyond, the model predicts nothing


@dataclasses.dataclass(frozen=True)
class Parts:
    """Milliseconds a step that each part takes alone; `copy` is the host's, of the batch."""

    input: float
    host: float
    copy: float
    device: float


@dataclasses.dataclass(frozen=True)
class StepModel:
    """The parts of one training and how they overlap.

    Attributes:
      parts: of the training as it is.
      waits: 0: the host runs ahead of the device; 1: it waits for the device at every step.
      exposed: 0: the input is ready in time; 1: everything else stands still while it works; up to
        2: it costs more than its own time, as where each of its threads holds up a computation
        that needs all CPUs.
      residual: what was measured end to end / what the parts as measured give for it, in turn at
        the most.
      scale: of a step, for what neither the parts nor their overlap explain. Not for an input that
        alone seemed slower than the whole that contains it: there the input is put right.
    """

    parts: Parts
    waits: float
    exposed: float
    residual: float
    scale: float

    def step(self, **changed: float) -> float:
        """Milliseconds of a step end to end, with these parts changed: `input=0.0`, say."""
        parts = dataclasses.replace(self.parts, **changed)
        beside = _beside(parts, self.waits)
        return self.scale * (beside + self.exposed * (_in_turn(parts, self.waits) - beside))

    def without_input(self) -> float:
        """Milliseconds of a step whose input costs nothing: what no change of it can go below."""
        return self.step(input=0.0)


def fit(end_to_end: float, step_resident: float, parts: Parts) -> StepModel:
    """Finds how far the parts overlap.

    Args:
      end_to_end: milliseconds a step of the whole training.
      step_resident: of the same calls on a batch that is on the device already: host and device.
      parts: each alone.
    """
    model = _as_measured(end_to_end, step_resident, parts)
    if parts.input <= end_to_end:
        return model
    possible = dataclasses.replace(parts, input=end_to_end)
    righted = _as_measured(end_to_end, step_resident, possible)
    return dataclasses.replace(righted, residual=model.residual)


def _as_measured(end_to_end: float, step_resident: float, parts: Parts) -> StepModel:
    small, large = sorted((parts.host, parts.device))
    if small > VISIBLE * large:
        return _fit(end_to_end, parts, _clipped((step_resident - large) / small))
    # Host and device show no difference; the input does, where the device is waited for.
    ahead, waiting = (_fit(end_to_end, parts, waits) for waits in (0.0, 1.0))
    return ahead if abs(ahead.residual - 1) <= VISIBLE else min(ahead, waiting, key=_misfit)


def _fit(end_to_end: float, parts: Parts, waits: float) -> StepModel:
    beside, in_turn = _beside(parts, waits), _in_turn(parts, waits)
    visible = in_turn - beside > VISIBLE * beside
    exposed = (end_to_end - beside) / (in_turn - beside) if visible else 0.0
    exposed = min(max(exposed, 0.0), MOST_EXPOSED)
    scale = end_to_end / (beside + exposed * (in_turn - beside))
    residual = end_to_end / (beside + _clipped(exposed) * (in_turn - beside))
    return StepModel(parts, waits, exposed, residual, scale)


def _misfit(model: StepModel) -> float:
    return abs(model.residual - 1)


def _beside(parts: Parts, waits: float) -> float:
    """The input beside everything else."""
    return max(parts.input, _joined(parts.host + parts.copy, parts.device, waits))


def _in_turn(parts: Parts, waits: float) -> float:
    """The input on the host's own time."""
    return _joined(parts.input + parts.host + parts.copy, parts.device, waits)


def _joined(host: float, device: float, waits: float) -> float:
    return max(host, device) + waits * min(host, device)


def _clipped(part: float) -> float:
    return min(1.0, max(0.0, part))
