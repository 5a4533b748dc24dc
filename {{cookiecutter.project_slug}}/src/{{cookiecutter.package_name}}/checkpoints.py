"""Durable checkpoints: written whole or not at all, checked before they are trusted.

A checkpoint is a directory `ckpt-STEP` with TensorFlow's own checkpoint files and `state.json`: the
host's state, and the size and CRC-32 of every file. It is written under another name, synchronised
to the disk and renamed, so that a kill or a power cut leaves the old ones and perhaps some litter,
never half of one.
"""

import dataclasses
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import tensorflow as tf

from .durable import PARTIAL, Following, fingerprint, sync, write_durably
from .errors import RunFailed

STATE = "state.json"


@dataclasses.dataclass(frozen=True)
class Restored:
    """What was restored: where from, and the host state that was saved with it."""

    path: Path
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run: the newest `keep`, and the best."""

    def __init__(
        self, directory: Path, tracked: dict[str, Any], keep: int = 3, chief: bool = True
    ) -> None:
        """Makes the directory and removes the litter of killed saves.

        Args:
          directory: holds the `ckpt-STEP` directories.
          tracked: what to save, by name: trackable objects such as models, optimizers, variables.
          keep: how many of the newest to keep.
          chief: False on all but one of several hosts: nothing is written or read then.
        """
        self._directory, self._keep, self._chief = directory, keep, chief
        self._deleting: list[threading.Thread] = []
        self._checkpoint = tf.train.Checkpoint(**tracked)
        directory.mkdir(parents=True, exist_ok=True)
        for litter in directory.glob(f"{PARTIAL}*"):
            shutil.rmtree(litter, ignore_errors=True)

    def save(
        self, step: int, state: dict[str, Any], best: bool = False, needed: bool = True
    ) -> Path:
        """Saves durably; returns the checkpoint's directory. The older ones go only afterwards.

        Args:
          step: names the checkpoint.
          state: the host's state, JSON values.
          best: True to keep it until a better one comes.
          needed: False if there will be another: one that cannot be written is then no more than a
            line on standard error.

        Raises:
          RunFailed: it cannot be written (a full disk, say); the earlier ones are still there.
        """
        target = self._directory / f"ckpt-{step:08d}"
        if not self._chief:
            return target
        while self._deleting:
            self._deleting.pop().join()  # its room may be needed
        if not target.exists() or damage(target):
            partial = self._directory / f"{PARTIAL}{os.getpid()}-{step}"
            try:
                self._write(partial, step, state)
            except (OSError, tf.errors.OpError) as error:
                shutil.rmtree(partial, ignore_errors=True)
                failure = f"{target}: cannot be saved ({_first_line(error)}); last good "
                failure += f"checkpoint: {self.newest()}; make room"
                if needed:
                    message = f"{failure} and start the same command again"
                    raise RunFailed(message) from error
                print(f"{failure}: training goes on", file=sys.stderr, flush=True)
                return target
            shutil.rmtree(target, ignore_errors=True)
            os.rename(partial, target)
            sync(self._directory)
        if best:
            write_durably(self._directory / "best", target.name)
        self._prune()
        return target

    def _write(self, partial: Path, step: int, state: dict[str, Any]) -> None:
        partial.mkdir()
        with Following(partial) as following:
            self._checkpoint.write(str(partial / "tensors"))
        tensors = sorted(partial.iterdir())
        files = {file.name: following.fingerprint(file) for file in tensors}
        document = {"step": step, "state": state, "files": files}
        (partial / STATE).write_text(json.dumps(document, indent=1), encoding="utf-8")
        for path in [*partial.iterdir(), partial]:
            sync(path)

    def restore(self) -> Restored | None:
        """Restores the newest checkpoint that is whole; None if there has never been one.

        A damaged one is named on standard output and the one before it is taken.

        Raises:
          RunFailed: there are checkpoints and all of them are damaged: training would silently
            start again from nothing.
        """
        paths = self.paths()
        for path in reversed(paths):
            reason = damage(path)
            if reason:
                print(f"checkpoint {path} is damaged ({reason}): trying the one before it")
                continue
            self._checkpoint.read(str(path / "tensors")).assert_consumed()
            return Restored(path, json.loads((path / STATE).read_text(encoding="utf-8"))["state"])
        if paths:
            raise RunFailed(
                f"{self._directory}: all {len(paths)} checkpoints are damaged: restore a copy"
            )
        return None

    def paths(self) -> list[Path]:
        """The checkpoints' directories, oldest first, whole or not."""
        return sorted(self._directory.glob("ckpt-*"))

    def newest(self) -> str:
        """The newest checkpoint's path, or words for none, for a message."""
        if not self._chief:
            return "host 0 names it"
        return str(self.paths()[-1]) if self.paths() else "none yet"

    def _prune(self) -> None:
        best = self._directory / "best"
        kept = best.read_text(encoding="utf-8") if best.exists() else ""
        for path in self.paths()[: -self._keep]:
            if path.name != kept:
                self._delete(path)

    def _delete(self, path: Path) -> None:
        """Beside the training: a gigabyte takes the disk half a second."""
        litter = path.with_name(f"{PARTIAL}{path.name}")
        os.rename(path, litter)
        thread = threading.Thread(target=shutil.rmtree, args=(litter, True), name="deleting")
        thread.start()
        self._deleting.append(thread)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint directory, or None if every byte is as it was written."""
    try:
        files = json.loads((path / STATE).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{STATE} is missing or unreadable"
    for name, expected in files.items():
        if not (path / name).is_file():
            return f"{name} is missing"
        if fingerprint(path / name) != expected:
            return f"{name} has changed"
    return None
