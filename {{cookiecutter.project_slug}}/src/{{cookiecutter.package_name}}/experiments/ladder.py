"""`compare --ladder`: the known practices turned on one after the other, and what each gives here.

Each rung is measured beside the one before it, in turn, in two processes; all the others are off.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..benchmark.statistics import ratio_of
from ..durable import write_durably
from ..errors import RunFailed, UserError
from ..progress import Progress
from ..report.wording import times
from ..runtime import usable_cpus
from ..settings import CompareSettings, Settings
from . import ledger
from .bar_chart import Bar, chart
from .comparison import FASTER, NO_DIFFERENCE, SLOWER, columns, in_turn, rate_estimate, spread
from .experiment import (
    compare_sides,
    output_directory,
    runs_of,
    split_flags,
    training_settings,
)
from .lanes import Lanes, LaneTrainer, Side, lanes

LAST_SECONDS = 10.0  # of each training that compares the whole ladder with nothing

# A training with every practice off: one batch decoded at a time, whole images, one step a call.
PLAIN = (
    "--host_threads=1",
    "--fused_decode=false",
    "--augment=host",
    "--cache=none",
    "--precision=float32",
    "--jit=off",
    "--steps_per_call=1",
)


@dataclasses.dataclass(frozen=True)
class Rung:
    """A practice: its name and flags, or why it does not apply here."""

    name: str
    flags: tuple[str, ...]
    absent: str = ""


def ladder(settings: CompareSettings) -> int:
    """Measures every rung, prints the table, writes ladder.json and ladder.svg."""
    common = split_flags(settings.common, "--common")
    training = training_settings(common, "--common")
    out = output_directory(settings.out, "ladder")
    out.mkdir(parents=True, exist_ok=True)
    plain = Side("plain", (*common, *PLAIN))
    with lanes(lambda line: print(line, file=sys.stderr)) as opened:
        facts = opened.facts(plain)
        practices = rungs(training, facts, out)
        applying = sum(not rung.absent for rung in practices)
        total = applying * (2 + settings.pairs) + runs_of(settings.pairs)
        with Progress("ladder", total, "run") as progress:
            rows, top = _climb(opened, plain, practices, settings, progress)
            whole = None
            if top != plain:
                last = Side("all of them", top.flags)
                whole = compare_sides(
                    opened,
                    (plain, last),
                    progress,
                    settings.pairs,
                    settings.examples,
                    settings.tolerance,
                    LAST_SECONDS,
                )
    document = {"schema": 1, "rungs": rows, "all": whole, "environment": _environment(facts)}
    text = json.dumps(document, indent=1)
    write_durably(out / "ladder.json", text + "\n")
    write_durably(out / "ladder.svg", drawing(rows))
    ledger.append(out.parent / ledger.NAME, _row(document, common))
    print(text if settings.json else f"{screen(document)}\n{out / 'ladder.svg'}")
    return 0


def rungs(training: Settings, facts: Mapping[str, Any], out: Path) -> list[Rung]:
    """The practices in the order they are turned on.

    Args:
      training: what is asked for beside them.
      facts: of a training without them, see `lane_child.Training.facts`.
      out: where prepared data goes.
    """
    digits, on_cpu = training.data == "digits", facts["device"] == "CPU"
    double = 2 * facts["batch_size"]
    small = double > facts["training_examples"]
    kind, _, directory = training.data.partition(":")
    prepared = kind == "records" and (Path(directory).expanduser() / "manifest.json").exists()
    return [
        Rung(
            "parallel map",
            ("--host_threads=0",),
            "there is one CPU" if usable_cpus() == 1 else "",
        ),
        Rung(
            "fused decode",
            ("--fused_decode=true",),
            "the digits are PNG, which is decoded whole" if digits else "",
        ),
        Rung(
            "prepared data",
            (f"--data=records:{out / 'prepared'}",),
            "the digits are small already"
            if digits
            else "the data is prepared already"
            if prepared
            else "",
        ),
        Rung("device augmentation", ("--augment=device",)),
        Rung(
            "cache",
            ("--cache=memory",),
            "the digits are in memory already" if digits else "",
        ),
        Rung(
            "mixed precision",
            ("--precision=auto",),
            "a CPU gains nothing from it" if on_cpu else "",
        ),
        Rung("XLA", ("--jit=on",)),
        Rung("more steps a call", ("--steps_per_call=0",)),
        Rung(
            "double batch",
            (f"--batch_size={double}",),
            f"{double} examples are more than the training split has" if small else "",
        ),
    ]


def _climb(
    opened: Lanes,
    plain: Side,
    practices: list[Rung],
    settings: CompareSettings,
    progress: Progress,
) -> tuple[list[dict[str, Any]], Side]:
    """A row for each rung, and the side with all of them that apply."""
    rows: list[dict[str, Any]] = []
    below, in_all = plain, 1.0
    for rung in practices:
        side = Side(rung.name, (*below.flags, *rung.flags))
        row: dict[str, Any] = {"name": rung.name, "flags": list(rung.flags), "absent": rung.absent}
        if not rung.absent:
            try:
                if rung.name == "prepared data":
                    _prepare(settings, rung)
                measured = _beside(opened, below, side, settings.pairs, progress)
            except (RunFailed, UserError) as error:
                row["absent"] = " ".join(str(error).split())
            else:
                if not rows:
                    first = measured["below"]
                    rows.append({"name": "plain", "flags": list(PLAIN), "in_all": 1.0, **first})
                # Rates are of different times: only those of one pair make a ratio.
                in_all *= measured["speedup"]["mean"]
                row |= {**measured, "in_all": in_all}
                del row["below"]
                below = side
        rows.append(row)
    return rows, below


def _beside(
    opened: Lanes, below: Side, side: Side, rounds: int, progress: Progress
) -> dict[str, Any]:
    """The rates of two rungs that take turns, and what the upper one gives."""

    for one in (below, side):
        facts = opened.facts(one)
        progress.advance(1, f"{one.name}: warm")
    if "--precision=auto" in side.flags[-1:] and facts["precision"] == "float32":
        raise UserError("this GPU has no Tensor Cores")
    trainers = [LaneTrainer(opened, one) for one in (below, side)]
    rates: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        timed = in_turn(trainers[0], trainers[1], "ABBA" if turn % 2 == 0 else "BAAB")
        for kept, result in zip(rates, timed, strict=True):
            kept.append(result["examples_per_second"])
        progress.advance(1, f"{side.name}: {rates[1][-1]:,.0f} examples/s")
    gain = ratio_of(rates[1], rates[0])
    word = FASTER if gain.low > 1 else SLOWER if gain.high < 1 else NO_DIFFERENCE
    return {
        "below": {"examples_per_second": rate_estimate(rates[0]), "absent": ""},
        "examples_per_second": rate_estimate(rates[1]),
        "speedup": dataclasses.asdict(gain),
        "speed": word,
    }


def _prepare(settings: CompareSettings, rung: Rung) -> None:
    """Writes the prepared data that a rung trains on."""
    training = training_settings(split_flags(settings.common, "--common"), "--common")
    destination = rung.flags[0].partition("records:")[2]
    package = (__package__ or "").rpartition(".")[0]
    command = [sys.executable, "-m", f"{package}.prepare", training.data, destination]
    if training.cache_dir:
        command.append(f"--cache_dir={training.cache_dir}")
    # Standard output is for the table; what `prepare` says is progress.
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode:
        raise RunFailed(f"prepare ended with exit code {done.returncode}")


def screen(document: Mapping[str, Any]) -> str:
    """The table, what to leave off, and the whole ladder against nothing."""
    table = [("", "examples/s", "in all", "gave")]
    for row in document["rungs"]:
        if row["absent"]:
            table.append((row["name"], "", "", f"does not apply here: {row['absent']}"))
            continue
        gave = f"{spread(row['speedup'], times)} {row['speed']}" if "speedup" in row else ""
        rate = spread(row["examples_per_second"])
        table.append((row["name"], rate, times(row["in_all"]), gave))
    lines = columns(table)
    slower = [row["name"] for row in document["rungs"] if row.get("speed") == SLOWER]
    if slower:
        lines.append(f"Leave off here: {', '.join(slower)}.")
    if document["all"]:
        lines += ["", f"All of them (B) against none (A): {document['all']['verdict']['sentence']}"]
    return "\n".join(lines)


def drawing(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ladder as an SVG: a bar a rung, with its own gain's interval.

    A bar is the product of the gains up to there. Rates would not do: rungs are measured at
    different times, and only the two of a pair see the machine alike.
    """
    note = "times as fast as plain, each practice added to those above it; the line is its own "
    note += "gain's interval"
    return chart("What each practice gives on this machine", note, [_bar(row) for row in rows])


def _bar(row: Mapping[str, Any]) -> Bar:
    if row["absent"]:
        return Bar(row["name"], f"does not apply here: {row['absent']}")
    reached = row["in_all"]
    if "speedup" not in row:
        return Bar(row["name"], times(reached), reached)
    gain = row["speedup"]
    low, high = (reached * gain[end] / gain["mean"] for end in ("low", "high"))
    words = f"{times(reached)}, gave {spread(gain, times)}"
    return Bar(row["name"], words, reached, low, high, worse=row["speed"] == SLOWER)


def _environment(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in ("tensorflow", "devices")}


def _row(document: Mapping[str, Any], common: list[str]) -> dict[str, Any]:
    measured = [row for row in document["rungs"] if not row["absent"]]
    return {
        "what": "ladder",
        "flags": common,
        "examples_per_second": measured[-1]["examples_per_second"] if measured else None,
        "rungs": {row["name"]: row["speedup"] for row in measured if "speedup" in row},
        "verdict": document["all"]["verdict"]["sentence"] if document["all"] else None,
        **document["environment"],
    }
