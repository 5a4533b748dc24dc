"""Controlled experiments: two sets of flags, or two finished runs; the remedies of a benchmark."""

import datetime
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..command_line import parse, to_flags
from ..durable import write_durably
from ..errors import UserError
from ..progress import Progress
from ..report.wording import flags_text, times
from ..settings import CompareSettings, Settings
from . import ledger
from .comparison import FASTER, WORSE, Result, alternate, compared, screen, spread
from .finished_runs import compare_runs
from .lanes import Lanes, LaneTrainer, Side, lanes

RUN_SECONDS = 20.0  # of one training, at most, where no number of examples is given
# Flags that say what the command does or where it writes: no part of what is compared.
NO_TRAINING = ("run_dir", "benchmark", "confirm", "scale", "find_batch_size", "profile")
REMEDIES = 2  # of a benchmark that are tried, beside their combination
WORTH_TRYING = 1.05  # a smaller prediction is not worth the minutes


def compare(settings: CompareSettings) -> int:
    """Compares A with B, prints the verdict, writes comparison.json. Returns the exit code."""
    paths = [Path(text).expanduser() for text in (settings.a, settings.b)]
    out = output_directory(settings.out, "compare")
    if any(str(path) != "." and path.is_dir() for path in paths):
        comparison = compare_runs(paths[0], paths[1], settings.tolerance)
    else:
        sides = _sides(settings)
        with (
            Progress("compare", runs_of(settings.pairs), "run") as progress,
            lanes(progress.say) as opened,
        ):
            comparison = compare_sides(
                opened, sides, progress, settings.pairs, settings.examples, settings.tolerance
            )
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(comparison, indent=1)
    write_durably(out / "comparison.json", text + "\n")
    ledger.append(out.parent / ledger.NAME, ledger.comparison_row(comparison))
    print(text if settings.json else f"{screen(comparison)}\n{out / 'comparison.json'}")
    return 0


def compare_sides(
    opened: Lanes,
    sides: tuple[Side, Side],
    progress: Progress,
    pairs: int,
    examples: int = 0,
    tolerance: float = 0.01,
    run_seconds: float = RUN_SECONDS,
) -> dict[str, Any]:
    """Trains both sides in turn, as often as there are pairs, on the same number of examples.

    Args:
      opened: where they train.
      sides: A and B.
      progress: advances by `runs_of(pairs)` in all.
      pairs: how often each trains.
      examples: that each training takes; 0: as many as A's flags ask for, but at most what fits
        into `run_seconds`.
      tolerance: part of A's metric whose loss would not matter.
      run_seconds: see `examples`.

    Returns:
      What comparison.json holds.
    """
    facts = []
    for side in sides:
        facts.append(opened.facts(side))
        progress.advance(1, f"{side.name or 'the defaults'}: warm")
    settings = parse(Settings, sides[0].flags)
    wanted = examples or _own_examples(settings, facts[0])
    if not examples:
        slower = min(fact["examples_per_second"] for fact in facts)
        wanted = min(wanted, round(run_seconds * slower))
    steps = _steps(wanted, [fact["batch_size"] for fact in facts])

    trainers = [LaneTrainer(opened, *pair) for pair in zip(sides, steps, strict=True)]
    seeds = [settings.seed + pair for pair in range(pairs)]
    results = alternate(trainers[0], trainers[1], seeds, lambda note: progress.advance(1, note))
    comparison = compared((sides[0].name, sides[1].name), *results, tolerance)
    environment = {name: facts[0][name] for name in ("tensorflow", "devices")}
    rows = {side: [_kept(r) for r in rs] for side, rs in zip("ab", results, strict=True)}
    return {**comparison, "seeds": seeds, "results": rows, "environment": environment}


def confirm(
    settings: Settings,
    predictions: Sequence[Mapping[str, Any]],
    pairs: int = 5,
    run_seconds: float = RUN_SECONDS / 2,
) -> list[dict[str, Any]]:
    """Tries a benchmark's best remedies that are flags, and the two best together.

    Args:
      settings: what was benchmarked.
      predictions: each with "change", "flags" (text or list; none for what no flag does),
        "speedup", "low" and "high".
      pairs: how often each way is trained.
      run_seconds: of one training, at most.

    Returns:
      Comparisons with "change", "flags" and "predicted" (mean, low, high; None for a pair of which
      there is no prediction).
    """
    base = Side("as it is", tuple(to_flags(settings, NO_TRAINING)))
    chosen = remedies(predictions)
    done: list[dict[str, Any]] = []
    total = (len(chosen) + (len(chosen) > 1)) * runs_of(pairs)
    with Progress("confirm", total, "run") as progress, lanes(progress.say) as opened:

        def attempt(change: str, flags: list[str]) -> dict[str, Any]:
            side = Side(" ".join(flags), (*base.flags, *flags))
            comparison = compare_sides(
                opened, (base, side), progress, pairs, run_seconds=run_seconds
            )
            predicted = _prediction(change, predictions)
            return {**comparison, "change": change, "flags": flags, "predicted": predicted}

        for prediction in chosen:
            done.append(attempt(prediction["change"], _flags(prediction)))
        pair = combination(done)
        if pair:
            done.append(attempt(*pair))
    return done


def remedies(predictions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The predictions to try: flags, surely a gain, worth the time; the largest first."""
    good = [
        one
        for one in predictions
        if _flags(one) and one["low"] > 1 and one["speedup"] >= WORTH_TRYING
    ]
    return sorted(good, key=lambda one: -one["speedup"])[:REMEDIES]


def combination(done: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]] | None:
    """The change and flags of two remedies together, if both gave speed and took no metric."""
    words = [(one["verdict"]["speed"], one["verdict"]["metric"]) for one in done]
    helped = [
        one
        for one, (speed, metric) in zip(done, words, strict=True)
        if speed == FASTER and metric != WORSE
    ]
    if len(helped) < 2:
        return None
    first, second = helped[:2]
    changes = [part for one in (first, second) for part in one["change"].split("+")]
    names = [flag.partition("=")[0] for flag in (*first["flags"], *second["flags"])]
    if len(set(changes)) < len(changes) or len(set(names)) < len(names):
        return None
    return "+".join(changes), [*first["flags"], *second["flags"]]


def confirmation_line(confirmation: Mapping[str, Any]) -> str:
    """Predicted beside obtained, and what became of the metric, in a line."""

    predicted = confirmation["predicted"]
    foretold = f"predicted {spread(predicted, times)}" if predicted else "no prediction"
    verdict = confirmation["verdict"]
    metric = {"same": "metric the same", "not measured": "metric not measured"}.get(
        verdict["metric"], f"metric {verdict['metric']}"
    )
    if verdict["metric"] == "same" and verdict["speed"] == FASTER and not verdict["improvement"]:
        metric = "metric not told apart"
    flags = flags_text(confirmation["flags"])
    return f"{flags}: {foretold}, came {spread(confirmation['speedup'], times)}; {metric}"


def runs_of(pairs: int) -> int:
    """How often `compare_sides` advances the progress: warm-ups, trainings, timed turns."""
    return 2 + 3 * pairs


def output_directory(given: str, what: str) -> Path:
    """The directory given, or a new directory in runs/ named after the time; not made yet."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    path = Path(given or f"runs/{what}-{now}").expanduser()
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file: name a directory")
    return path


def split_flags(text: str, where: str) -> list[str]:
    """Flags as a shell would split them.

    Raises:
      UserError: a quote is not closed, or what stands there is neither a flag nor a directory.
    """
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{where}={text!r}: {error}") from None
    if parts and not parts[0].startswith("-"):
        raise UserError(f"{where}={text!r} is no directory, and flags begin with --")
    return parts


def training_settings(flags: Sequence[str], where: str) -> Settings:
    """The settings that flags of a training make; exits with 2 on a bad flag, as `parse` does.

    Raises:
      UserError: a flag that asks for something else than a training.
    """
    settings = parse(Settings, flags)
    for name in ("benchmark", "confirm", "scale", "find_batch_size"):
        if getattr(settings, name):
            raise UserError(f"{where}: --{name} is not for a training that is compared: leave it")
    return settings


def _sides(settings: CompareSettings) -> tuple[Side, Side]:
    common = split_flags(settings.common, "--common")
    sides, seeds = [], []
    for name, text in (("A", settings.a), ("B", settings.b)):
        flags = [*common, *split_flags(text, name)]
        seeds.append(training_settings(flags, name).seed)
        sides.append(Side(text, tuple(flags)))
    if seeds[0] != seeds[1]:
        raise UserError("--seed differs: both train from the same seeds, a new one each pair")
    if sides[0].flags == sides[1].flags:
        raise UserError("A and B are the same: give them different flags")
    return sides[0], sides[1]


def _own_examples(settings: Settings, facts: Mapping[str, Any]) -> int:
    batch_size = facts["batch_size"]
    steps = settings.steps or settings.epochs * facts["training_examples"] // batch_size
    return steps * batch_size


def _steps(examples: int, batch_sizes: Sequence[int]) -> list[int]:
    """The steps of each side: as many examples for both, exactly so wherever that is possible."""
    together = math.lcm(*batch_sizes)
    if examples >= together:
        examples -= examples % together
    return [max(1, round(examples / batch_size)) for batch_size in batch_sizes]


def _prediction(change: str, predictions: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    for one in predictions:
        if sorted(one["change"].split("+")) == sorted(change.split("+")):
            return {"mean": one["speedup"], "low": one["low"], "high": one["high"]}
    return None


def _flags(prediction: Mapping[str, Any]) -> list[str]:
    return shlex.split(flags_text(prediction.get("flags")))


def _kept(result: Result) -> dict[str, Any]:
    names = ("examples_per_second", "step_ms", "value", "examples", "memory_peak_bytes")
    return {name: result[name] for name in names}
