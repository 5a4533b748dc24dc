"""Copies a data set to a local SSD and prints where it lies: `python -m <package>.stage SRC`.

The work is in `staging/`; here flags are read, signals caught and results printed.
"""

import json
import signal
import sys
from types import FrameType

from .command_line import parse
from .errors import TERMINATED, UserError, run_command
from .progress import Progress, scaled
from .settings import StageSettings

COMMANDS = ("ls", "check", "rm")


class Terminated(BaseException):
    """SIGTERM came; an exception, so that whatever is half done is cleaned up."""


def main(argv: list[str] | None = None) -> int:
    """Stages, or shows, verifies or removes what is staged; returns the exit code.

    Args:
      argv: the arguments without the program's name; None takes the process's.
    """
    settings = parse(StageSettings, argv)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        return run_command("stage", lambda: _run(settings))
    except Terminated:
        print("stage: stopped; the same command continues", file=sys.stderr)
        return TERMINATED
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _run(settings: StageSettings) -> int:
    if settings.source in COMMANDS:
        return _look_after(settings)
    if settings.which:
        raise UserError(f"unexpected argument {settings.which!r}: stage takes one SRC")
    from .staging.staging import print_to_stderr, stage  # imported late: --help needs none of it

    if settings.measure:
        _measure(settings)
    if settings.transcode:
        from .staging.transcoding import stage_prepared

        staged = stage_prepared(settings)
    else:
        staged = stage(
            settings.source,
            scratch=settings.scratch,
            include=settings.include,
            workers=settings.workers,
            checksums=settings.checksums,
            deep=settings.deep,
            on_full="stream" if settings.on_full == "stream" else "error",
            lock_timeout=settings.lock_timeout,
            evict=settings.evict,
            reserve=settings.reserve << 20 if settings.reserve >= 0 else -1,
            quota=settings.quota << 20,
            allow_shared=settings.allow_shared,
            untar=settings.untar,
            progress=lambda total, start: Progress("stage", total, "B", start, settings.json),
        )
    with staged:
        if settings.json:
            print(json.dumps(staged.report()), file=sys.stderr)
        else:
            again = f", {staged.retries} reads tried again" if staged.retries else ""
            print_to_stderr(
                f"{staged.copied} files copied, {staged.reused} there already, "
                f"{scaled(staged.bytes)} in {staged.seconds:.1f} s{again}"
            )
        print(staged.path, flush=True)
    return 0


def _look_after(settings: StageSettings) -> int:
    from .staging import housekeeping
    from .staging.scratch import roots
    from .staging.staging import print_to_stderr

    found = roots(settings.scratch, settings.allow_shared, print_to_stderr)
    if settings.source == "ls":
        print(housekeeping.table(found))
    elif settings.source == "check":
        show = lambda total, start: Progress("check", total, "B", start, settings.json)  # noqa: E731
        print(housekeeping.check(found, settings.which, settings.deep, show))
    else:
        print(housekeeping.remove(found, settings.which))
    return 0


def _measure(settings: StageSettings) -> None:
    from contextlib import closing

    from .staging.measuring import measure
    from .staging.opening import open_source
    from .staging.scratch import roots
    from .staging.staging import print_to_stderr

    found = roots(settings.scratch, settings.allow_shared, print_to_stderr)
    with closing(open_source(settings.source, settings.include)) as source:
        measure(source, found[0], print_to_stderr)


if __name__ == "__main__":
    raise SystemExit(main())
