"""The files of a run: settings.json, metrics.jsonl, result.json, checkpoints/ and events/."""

import datetime
import errno
import fcntl
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from .command_line import refuse_changes, to_json
from .durable import write_durably
from .errors import UserError
from .settings import Settings


class RunDirectory:
    """One run's directory, held by one process at a time."""

    def __init__(self, settings: Settings, chief: bool = True) -> None:
        """Opens `--run_dir`, or a new directory named after the time.

        Args:
          settings: of the run.
          chief: False on all but one of several hosts: they write to a temporary directory.

        Raises:
          UserError: it is no directory, another process is using it, or it holds a run that was
            started with other settings.
        """
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        directory = settings.run_dir or f"runs/{now}"
        if not chief:
            self._temporary = tempfile.TemporaryDirectory()
            directory = self._temporary.name
        self.path = Path(directory).expanduser()
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--run_dir={self.path} is a file: name a directory")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"--run_dir={self.path} cannot be made ({error.strerror}): name another"
            ) from None
        self._hold()
        saved = _read_json(self.path / "settings.json")
        if saved is None:
            write_durably(self.path / "settings.json", json.dumps(to_json(settings), indent=1))
        else:
            refuse_changes(settings, saved, str(self.path))
        self._events: tf.summary.SummaryWriter | None = None
        self._said = False  # that the log cannot be written

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def rewind(self, step: int) -> None:
        """Drops the log lines after `step`: a resumed run writes them again."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            rows = (_parsed(line) for line in path.read_text(encoding="utf-8").splitlines())
            kept = [json.dumps(row) + "\n" for row in rows if row and row["step"] <= step]
            write_durably(path, "".join(kept))

    def log(self, row: dict[str, Any]) -> None:
        """Appends one line to metrics.jsonl, and its numbers to TensorBoard's events.

        Where that cannot be written, a line on standard error says so once: training goes on.

        Args:
          row: `step`, and named numbers.
        """
        try:
            _append(self.path / "metrics.jsonl", json.dumps(row).encode() + b"\n")
            self._log_events(row)
        except (OSError, tf.errors.OpError) as error:
            if not self._said:
                print(f"{self.path}: no more log ({error})", file=sys.stderr, flush=True)
            self._said = True

    def _log_events(self, row: dict[str, Any]) -> None:
        if self._events is None:
            self._events = tf.summary.create_file_writer(str(self.path / "events"))
        with self._events.as_default(step=row["step"]):
            for name, value in row.items():
                if name != "step":
                    tf.summary.scalar(name, value)

    def finish(self, result: dict[str, Any]) -> None:
        """Writes result.json, closes the events and frees the directory for another run."""
        write_durably(self.path / "result.json", json.dumps(result, indent=1) + "\n")
        if self._events is not None:
            self._events.close()
        self._lock.close()

    def _hold(self) -> None:
        # The kernel frees the lock when the process dies, however it dies.
        self._lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"--run_dir={self.path} is in use by another process: wait for it or name another"
            ) from None


def _append(path: Path, line: bytes) -> None:
    """Appends all of a line or, on a full disk, nothing."""
    with path.open("ab", buffering=0) as file:
        begin = file.seek(0, os.SEEK_END)
        if file.write(line) < len(line):
            file.truncate(begin)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path} is damaged: restore it, or name another --run_dir") from None


def _parsed(line: str) -> dict[str, Any] | None:
    """A log line, or None for the half line that a kill can leave at the end."""
    try:
        return json.loads(line)
    except ValueError:
        return None
