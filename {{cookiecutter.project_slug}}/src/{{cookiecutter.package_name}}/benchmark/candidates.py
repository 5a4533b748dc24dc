"""The causes that a training's rates allow, each with what would be gained without it."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from .remedies import Means, Repeats, means_of, model_of
from .statistics import Estimate, estimate_of, ratio_of, time_of

WORTH = 1.08  # a gain under 8 % is not worth a remedy's trouble, nor safely above the noise
HEALTHY = 1.05  # nothing that gives more than 5 %: stop tuning
COLLIDES = 1.15  # end to end above the slower of input and step: they must be in each other's way
PART = 0.12  # of the input's time that must go with a stage, for the stage to be the slow one
MOSTLY = 0.6  # of the largest gain (in logarithms), for a cause that explains it
TALKS = 0.20  # of the device's time spent on the other replicas, to be named
COPIES = 0.25  # of a step spent copying, to be named
CALLS = 0.15  # of a step spent between the device's work, to be named
COLD = 1.10  # a warm device is this much slower than it was cold: it has been slowed
BUSY = 0.5  # of the time that the device must compute, for computing to be the limit
FIXED = 0.5  # doublings of a step's time for a doubled batch; below, most of the step is fixed cost
COMPUTING = ("precision", "jit", "double_batch")  # remedies for a device that is busy
MERGED = 1.3  # what XLA gains where the step is mostly launches


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A cause that the rates allow.

    Attributes:
      cause: the contract's word.
      gain: of the training without it.
      sentence: what it means here.
      change: the remedy; "" for none.
    """

    cause: str
    gain: Estimate
    sentence: str
    change: str = ""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known beside the rates.

    Attributes:
      device: what computes, "GPU" or "CPU".
      throttled: why it slowed its clocks, in NVML's words; empty if it did not, or nobody knows.
      python_source: the records come from Python code, such as a generator.
      where: where the records lie, for the sentence.
    """

    device: str = "GPU"
    throttled: tuple[str, ...] = ()
    python_source: bool = False
    where: str = "their place"


class Evidence:
    """The rates of one training, and what follows from them."""

    def __init__(self, repeats: Repeats, gains: dict[str, Estimate], facts: Facts) -> None:
        self.repeats, self.gains, self.facts = repeats, gains, facts
        self.means = means_of(repeats)
        self.model = model_of(self.means)
        self.ceiling = self.estimate(lambda m: m["end_to_end"] / model_of(m).without_input())

    def estimate(self, function: Callable[[Means], float]) -> Estimate:
        return estimate_of(function, self.repeats)

    def best(self, changes: Sequence[str]) -> tuple[str, Estimate | None]:
        """The change among these that gives most, and what; ("", None) if none was measured."""
        known = [change for change in changes if change in self.gains]
        change = max(known, key=lambda change: self.gains[change].mean, default="")
        return change, self.gains.get(change)

    def throttling(self) -> list[Candidate]:
        if not self.facts.throttled or "device_cold" not in self.repeats:
            return []
        slowed = ratio_of(self.repeats["device"], self.repeats["device_cold"])
        if slowed.low < COLD:
            return []
        reasons = ", ".join(self.facts.throttled)
        sentence = (
            f"Your {self.facts.device} has slowed its clocks ({reasons}): computing a step "
            f"takes {times(slowed)} what it took cold. Cool it, or raise its power limit."
        )
        return [Candidate("throttled", slowed, sentence, "cool")]

    def of_the_input(self) -> list[Candidate]:
        """Causes on the way from the records to the device."""
        if self.ceiling.mean < WORTH:
            return []
        means, device = self.means, self.facts.device
        waits = self.ceiling.map(lambda ceiling: max(0.0, 1 - 1 / ceiling))
        waiting = f"Your {device} waits {_percent(waits)} of the time for"
        found = []

        def stage(cause: str, change: str, probe: str, what: str) -> bool:
            part = 1 - means[probe] / means["input"] if probe in means else 0.0
            if part <= PART or change not in self.gains:
                return False
            gain = self.gains[change]
            sentence = f"{waiting} {what}: without that, training would be {times(gain)} faster."
            found.append(Candidate(cause, gain, sentence, change))
            return True

        singles = [
            not self.facts.python_source
            and stage(
                "storage",
                "stage",
                "input_from_memory",
                f"records to arrive from {self.facts.where}",
            ),
            self.facts.python_source
            and stage(
                "python_input", "stage", "input_from_memory", "the Python code that makes records"
            ),
            stage("decode", "prepare", "input_without_decode", "images to be decoded and cropped"),
            stage("python_input", "native_map", "input_without_python", "Python code in the input"),
        ]
        self._leave_python_to_itself(found)
        both = self.gains.get("stage+prepare")
        if both and not any(singles) and both.mean > WORTH:
            sentence = (
                f"{waiting} records and for decoding alike: either alone would leave the other in "
                f"the way; both together would make training {times(both)} faster."
            )
            found.append(Candidate("input_co_limited", both, sentence, "stage+prepare"))
        return self._collisions(found)

    def _leave_python_to_itself(self, found: list[Candidate]) -> None:
        """Drops decoding where the Python in it is what takes the time."""
        gains = {candidate.cause: math.log(candidate.gain.mean) for candidate in found}
        if gains.get("python_input", 0.0) > 0.85 * gains.get("decode", math.inf):
            found[:] = [candidate for candidate in found if candidate.cause != "decode"]

    def _collisions(self, found: list[Candidate]) -> list[Candidate]:
        """Adds what two parts in each other's way cost, beside what each costs alone."""
        means, best = self.means, max((c.gain.mean for c in found), default=1.0)
        prefetch = self.gains.get("prefetch")
        if prefetch and prefetch.low > WORTH and _log_share(prefetch.mean, best) > MOSTLY:
            sentence = (
                "The input and the device take turns: no batch is made while the device computes. "
                f"With prefetch(2) at the end of the input, training is {times(prefetch)} faster."
            )
            return [Candidate("no_overlap", prefetch, sentence, "prefetch")]
        alone = model_of(means).without_input()
        collision = self.estimate(
            lambda m: m["end_to_end"] / max(m["input"], model_of(m).without_input())
        )
        if collision.low < COLLIDES or _log_share(collision.mean, best) < MOSTLY:
            return found
        shared = "the same CPUs" if self.facts.device == "CPU" else "the host's CPUs"
        sentence = (
            f"Input and computing take turns on {shared}: together they take {times(collision)} "
            f"the time of the slower alone ({means['input']:.3g} and {alone:.3g} ms). "
            "Give the input fewer CPU-seconds (prepared data, smaller images) or more CPUs."
        )
        # The same time seen from the input's side, unless that side has much more to give.
        more = [c for c in found if _log_share(collision.mean, c.gain.mean) < 0.8]
        return [Candidate("contention", collision, sentence), *more]

    def of_the_step(self) -> list[Candidate]:
        """Causes between the batch's arrival and the next step."""
        means, device, found = self.means, self.facts.device, []
        copy = max(0.0, means.get("feed", 0.0) - means["host"])

        def add(cause: str, change: str, sentence: str) -> None:
            if change in self.gains:
                gain = self.gains[change]
                found.append(Candidate(cause, gain, sentence.format(times(gain)), change))

        if "device_one_replica" in means:
            talk = 1 - means["device_one_replica"] / means["device"]
            if talk > TALKS:
                add(
                    "communication",
                    "hide_communication",
                    f"Each step spends {100 * talk:.0f} % of its time on agreeing among replicas: "
                    "without it, training would be {} faster.",
                )
        if copy > COPIES * self.model.without_input() and copy > means["host"]:
            add(
                "host_to_device_copy",
                "copy",
                f"Copying a batch to the {device} takes {copy:.3g} ms of a step: without it, "
                "training would be {} faster.",
            )
        between = 1 - means["device"] / means["step_resident"]
        if between > CALLS:
            best, _ = self.best(("callbacks", "steps_per_call"))
            what = "callbacks" if best == "callbacks" else "the host's work between calls"
            add(
                "host_per_step",
                best,
                f"The {device} stands idle {100 * between:.0f} % of a step, during {what}: without "
                "that, training would be {} faster.",
            )
        return found + self._of_the_device()

    def _of_the_device(self) -> list[Candidate]:
        """Whether computing is bound by fixed costs of a step, or by its arithmetic."""
        means, device, gains = self.means, self.facts.device, self.gains
        if "device_2x_batch" not in means:
            return []
        doublings = math.log2(means["device_2x_batch"] / means["device"])
        merged = means["device"] / means["device_xla"] if "device_xla" in means else 0.0
        found = []
        if doublings < FIXED and merged > MERGED and "jit" in gains:
            sentence = (
                f"The {device} spends most of a step starting small kernels: a batch twice as "
                f"large takes only {2**doublings:.2f}x as long, and with XLA (--jit=on) training "
                f"would be {times(gains['jit'])} faster."
            )
            found.append(Candidate("launch", gains["jit"], sentence, "jit"))
        elif doublings < FIXED and "double_batch" in gains:
            sentence = (
                f"The batch does not fill the {device}: one twice as large takes only "
                f"{2**doublings:.2f}x as long, so training would be "
                f"{times(gains['double_batch'])} faster in examples a second."
            )
            found.append(Candidate("small_batch", gains["double_batch"], sentence, "double_batch"))
        elif doublings >= FIXED and means["device"] > BUSY * means["end_to_end"]:
            best, _ = self.best(COMPUTING)
            if best:
                sentence = (
                    f"{self.computes()} Of what was tried, {best} would help most: "
                    f"{times(gains[best])}."
                )
                found.append(Candidate("device", gains[best], sentence, best))
        return found

    def computes(self) -> str:
        busy = self.estimate(lambda m: min(1.0, m["device"] / m["end_to_end"]))
        return (
            f"The {self.facts.device} computes {_percent(busy)} of the time: no change of the "
            f"input can give more than {max(1.0, self.ceiling.high):.2f}x."
        )

    def figures(self) -> str:
        """The rates that decided, for whoever wants to check."""
        said = {"end_to_end": "A step takes", "device": "computing alone", "input": "input alone"}
        if self.ceiling.mean > WORTH:
            said["input_from_memory"] = "and from memory"
        else:
            said["host"] = "and the host's part"
        return ", ".join(f"{words} {_ms(self.repeats[name])}" for name, words in said.items()) + "."


def _log_share(gain: float, best: float) -> float:
    """A gain as part of another, as factors add up."""
    return math.log(gain) / math.log(best) if best > 1 else math.inf


def _ms(repeats: Sequence[float]) -> str:
    estimate = time_of(repeats)
    return f"{estimate.mean:.3g} ms ({estimate.low:.3g}-{estimate.high:.3g})"


def times(estimate: Estimate) -> str:
    """A ratio and its interval, in words."""
    return f"{estimate.mean:.2f}x ({estimate.low:.2f}-{estimate.high:.2f})"


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.0f} %"
