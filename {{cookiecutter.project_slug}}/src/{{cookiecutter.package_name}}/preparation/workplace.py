"""The directory a data set grows in: beside its target, locked, with a journal of what is done."""

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ..durable import sync
from ..errors import UserError


class Workplace:
    """`.TARGET.partial` while it is held by this process.

    | file | |
    |---|---|
    | `lock` | held by the kernel until the process ends, however it ends |
    | `journal.jsonl` | what is made of what, then a line for each finished part |
    | `data/` | becomes the target by one rename, when all is in it |
    """

    def __init__(self, target: Path) -> None:
        """Makes the directory, or takes over what a killed process has left.

        Raises:
          UserError: another process holds it, or it cannot be made.
        """
        self._target = target
        self._root = target.parent / f".{target.name}.partial"
        self.data = self._root / "data"
        self._journal = self._root / "journal.jsonl"
        try:
            self._lock = self._hold()
            self.data.mkdir(exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UserError(f"{error.filename} is a file: name another DST") from None

    def resume(self, made: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What is done already, as `record` was given it.

        Work that was begun otherwise is dropped where no shard is finished, or `--on_bad` differs.

        Args:
          made: what determines the bytes: the source and the flags.

        Raises:
          UserError: shards were finished from another source or with other flags.
        """
        lines = self._lines()
        if not lines:
            self.record(dict(made))
            return []
        begun = lines[0]
        changed = [
            f"{name} was {begun.get(name)!r}, is {made.get(name)!r}"
            for name in {**begun, **made}
            if begun.get(name) != made.get(name)
        ]
        if not changed:
            return lines[1:]
        finished = any("shard" in line for line in lines)
        # With --on_bad=skip, which an error recommends, other records go to other shards.
        if finished and begun.get("on_bad") == made.get("on_bad"):
            raise UserError(
                f"{self._root} holds unfinished work that was begun otherwise "
                f"({'; '.join(changed)}): repeat that to finish it, or delete that directory"
            )
        print(f"unfinished work that was begun otherwise is dropped ({'; '.join(changed)})")
        self._journal.unlink()
        self.record(dict(made))
        return []

    def record(self, entry: Mapping[str, Any]) -> None:
        """Notes durably that a part is done."""
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def publish(self) -> None:
        """Gives the data set its name, and removes everything else."""
        for path in self.data.iterdir():
            sync(path)
        sync(self.data)
        try:
            os.rename(self.data, self._target)  # over an empty directory, or none
        except OSError as error:
            raise UserError(f"{self._target} is not empty ({error.strerror}): move it") from None
        sync(self._target.parent)
        self.discard()

    def discard(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self._root)

    def __enter__(self) -> "Workplace":
        return self

    def __exit__(self, *error: object) -> None:
        if self._root.exists() and not self._journal.exists():
            self.discard()  # nothing was begun
        self._lock.close()

    def _hold(self) -> TextIO:
        while True:
            self._root.mkdir(parents=True, exist_ok=True)
            path = self._root / "lock"
            lock = path.open("a+", encoding="utf-8")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                lock.close()
                raise UserError(
                    f"{self._target} is being prepared by {holder}: wait for it, or name another"
                ) from None
            # The one before may have removed the directory between the opening and the locking.
            if path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                lock.truncate(0)
                lock.write(f"process {os.getpid()} on {socket.gethostname()}")
                lock.flush()
                return lock
            lock.close()

    def _lines(self) -> list[dict[str, Any]]:
        """The journal without the half line that a kill leaves at its end."""
        if not self._journal.exists():
            return []
        whole, lines = 0, []
        with self._journal.open("rb") as file:
            for line in file:
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    lines.pop()
                    break
                whole += len(line)
        os.truncate(self._journal, whole)
        return lines
