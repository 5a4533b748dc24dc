"""Where a run stands, and what it says of itself at its end."""

import dataclasses
from pathlib import Path
from typing import Any

from . import task
from .job import Job


@dataclasses.dataclass
class State:
    """Where a run stands: what a checkpoint keeps beside the tensors."""

    step: int = 0
    seconds: float = 0.0  # of training and evaluation, over all restarts
    best: float | None = None  # validation metric
    best_step: int = 0
    evaluated: int = 0  # the last step after which there was an evaluation
    validation: dict[str, float] | None = None  # the latest
    left_out: list[int] = dataclasses.field(default_factory=list)  # steps, from 1: no finite loss
    window: list[float] = dataclasses.field(default_factory=list)  # losses since the last log line

    def ahead(self) -> list[int]:
        """The steps to leave out that are still to come."""
        return [step for step in self.left_out if step > self.step]

    def named(self) -> dict[str, float]:
        """The latest validation, as log lines and callbacks name its figures."""
        return {f"val_{name}": value for name, value in (self.validation or {}).items()}


def result_of(job: Job, state: State, reason: str) -> dict[str, Any]:
    """What result.json holds; `reason` is why the run ended."""
    final = (state.validation or {}).get(task.METRIC)
    return {
        "schema": 1,
        "last_step": state.step,
        "metric": f"val_{task.METRIC}",
        "final": final,
        "best": state.best,
        "best_step": state.best_step,
        "higher_is_better": task.HIGHER_IS_BETTER,
        "validation_examples": job.splits.validation.count,
        "examples_seen": state.step * job.settings.batch_size,
        "steps_left_out": state.left_out,
        "seconds": round(state.seconds, 3),
        "exit_reason": reason,
    }


def summary_of(path: Path, job: Job, state: State, reason: str) -> str:
    """The same in two lines, for the screen."""
    result = result_of(job, state, reason)
    score = "not evaluated"
    if result["final"] is not None:
        score = f"val_{task.METRIC} {result['final']:.4f}"
        score += f", best {state.best:.4f} at step {state.best_step:,}"
    return (
        f"{reason}: {score}; {state.step:,} steps, {result['examples_seen']:,} examples, "
        f"{state.seconds:.1f} s\n{path}"
    )
