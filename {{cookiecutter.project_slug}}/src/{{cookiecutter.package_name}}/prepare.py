"""Turns a data set into training shards, or verifies one: `python -m <package>.prepare SRC DST`.

The work is in `preparation/`; here flags are read, so that `--help` answers at once.
"""

from .command_line import parse
from .errors import run_command
from .settings import PrepareSettings


def main(argv: list[str] | None = None) -> int:
    """Prepares, or with --check verifies; returns the exit code.

    Args:
      argv: the arguments without the program's name; None takes the process's.
    """
    settings = parse(PrepareSettings, argv)
    return run_command("prepare", lambda: _run(settings))


def _run(settings: PrepareSettings) -> int:
    if settings.check:
        from .preparation.checking import check  # imported late: --help needs none of it

        return check(settings)
    from .preparation.preparing import prepare

    return prepare(settings)


if __name__ == "__main__":
    raise SystemExit(main())
