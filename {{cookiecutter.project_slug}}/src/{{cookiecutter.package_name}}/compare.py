"""Compares two runs, or two sets of flags run alternately: `python -m <package>.compare A B`.

The work is in `benchmark/experiment.py`; here arguments are told from flags, since a set of flags
begins with `--` too.
"""

import dataclasses
import sys
from collections.abc import Sequence

from .command_line import parse
from .errors import run_command
from .settings import CompareSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Compares; returns the exit code.

    Args:
      argv: the arguments without the program's name; None takes the process's.
    """
    own, sides = split(list(sys.argv[1:] if argv is None else argv))
    settings = parse(CompareSettings, [*own, "--", *sides])
    return run_command("compare", lambda: _run(settings, len(sides)))


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Parts the command's own flags from A and B.

    Whatever is not one of its own flags is A or B: "", "--batch_size=32", a directory.
    """
    names = [f.name for f in dataclasses.fields(CompareSettings) if "argument" not in f.metadata]
    switches = [f.name for f in dataclasses.fields(CompareSettings) if f.default is False]
    own: list[str] = []
    sides: list[str] = []
    rest = iter(argv)
    for text in rest:
        name, equals, _ = text.lstrip("-").partition("=")
        if text in ("--help", "-h", "--helpfull"):
            own.append(text)
        elif text.startswith("-") and name in names:
            own.append(text)
            if not equals and name not in switches:
                own += [value for value in [next(rest, None)] if value is not None]
        elif text.startswith("--no") and name.removeprefix("no") in switches:
            own.append(text)
        else:
            sides.append(text)
    return own, sides


def _run(settings: CompareSettings, sides: int) -> int:
    from .errors import UserError

    if settings.ladder:
        if sides:
            raise UserError("--ladder takes no A and B: give the flags as --common")
        from .experiments.ladder import ladder  # imported late: --help needs none of it

        return ladder(settings)
    if sides != 2:
        raise UserError('give A and B: two runs, or two sets of flags in quotes ("" for none)')
    from .experiments.experiment import compare

    return compare(settings)


if __name__ == "__main__":
    raise SystemExit(main())
