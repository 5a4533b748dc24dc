"""A staged data set on disk, and what of it can be trusted after a kill or a power cut."""

import contextlib
import dataclasses
import itertools
import json
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..durable import write_durably
from .disk import sync_file_system

SCHEMA = 1
BOOT = Path("/proc/sys/kernel/random/boot_id")
TRASH = ".trash-"


class Row(NamedTuple):
    """A file that is whole."""

    path: str
    size: int  # bytes
    identity: str  # of the source's version
    xxh3: str  # 128 bits, hexadecimal


@dataclasses.dataclass(frozen=True)
class Complete:
    """What COMPLETE.json says.

    Attributes:
      url: of the source, without secrets.
      rows: the files.
      rest: names that did not fit and are links to the source.
      made: how the data set was made, for people.
    """

    url: str
    rows: Mapping[str, Row]
    rest: tuple[str, ...] = ()
    made: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(row.size for row in self.rows.values())


class Store:
    """The directory of one version of one source.

    | | |
    |---|---|
    | `data.partial/` | is being filled; a file appears in it whole, by rename |
    | `parts/` | files that are being written; apart, where no name of the source can clash |
    | `journal.jsonl` | the boot it was written in, then a line for each finished file |
    | `data/` | all of it; appears once, by rename |
    | `COMPLETE.json` | written last: without it nothing in `data/` is trusted unseen |
    """

    def __init__(self, root: Path, key: str) -> None:
        self.key = key
        self.directory = root / key
        self.data = self.directory / "data"
        self.partial = self.directory / "data.partial"
        self.parts = self.directory / "parts"
        self.journal = self.directory / "journal.jsonl"
        self.complete_file = self.directory / "COMPLETE.json"
        self.lock = root / ".locks" / f"{key}.lock"  # held by who copies
        self.use = root / ".locks" / f"{key}.use"  # shared by who copies or reads
        self._written = -1
        self._names = itertools.count()
        self._mark = f"{os.getpid()}.{secrets.token_hex(4)}."
        self._part = f"{self.parts}{os.sep}{self._mark}"

    @property
    def place(self) -> Path:
        """Where the files lie: `data`, or `data.partial` until then."""
        return self.data if self.data.exists() else self.partial

    def complete(self) -> Complete | None:
        """What COMPLETE.json says; None if there is none, or it is damaged."""
        try:
            found = json.loads(self.complete_file.read_bytes())
            text = json.dumps(found["set"], sort_keys=True)
            if found["schema"] != SCHEMA or found["crc32"] != zlib.crc32(text.encode()):
                return None
            body = found["set"]
            rows = {fields[0]: Row(*fields) for fields in body["files"]}
            return Complete(body["url"], rows, tuple(body["rest"]), body["made"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def noted(self) -> tuple[dict[str, Row], bool]:
        """The journal's rows, and whether they were written since this machine started.

        Files finished before a power cut may hold zeros at their full length. The half line that a
        kill leaves, and whatever else is no row, is left out.
        """
        rows: dict[str, Row] = {}
        boot = None
        with contextlib.suppress(OSError):
            for line in self.journal.read_bytes().splitlines():
                try:
                    found = json.loads(line)
                    if isinstance(found, dict):
                        boot = found["boot"]
                    else:
                        rows[found[0]] = Row(*found)
                except (ValueError, KeyError, TypeError, IndexError):
                    continue
        return rows, boot == boot_id()

    def present(self, rows: Iterable[Row]) -> dict[str, Row]:
        """Those whose file is there, a plain file of the right size."""
        base = f"{self.place}{os.sep}"
        found = {}
        for row in rows:
            try:
                status = os.lstat(base + row.path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size == row.size:
                found[row.path] = row
        return found

    def linked(self, names: Iterable[str]) -> bool:
        """Whether all of these are links, as `link` makes them."""
        return all(os.path.islink(self.place / name) for name in names)

    def begin(self, kept: Mapping[str, Row]) -> None:
        """Makes ready to write: what is `kept` stays noted, parts left by a kill go."""
        for directory in (self.directory, self.parts):
            directory.mkdir(mode=0o700, exist_ok=True)
        if not self.data.exists():
            self.partial.mkdir(mode=0o700, exist_ok=True)
        for part in self.parts.iterdir():
            part.unlink(missing_ok=True)
        lines = [json.dumps({"boot": boot_id()}), *(json.dumps(row) for row in kept.values())]
        # Not synced: lost in a power cut, it costs a copy; a sync costs on a busy disk 0.1 s.
        fresh = self.directory / "journal.new"
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.replace(fresh, self.journal)
        self.complete_file.unlink(missing_ok=True)
        self._written = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def make_directories(self, paths: Iterable[str]) -> None:
        """Makes the directories that files of these paths lie in."""
        place = self.place
        for directory in sorted({path.rpartition("/")[0] for path in paths}):
            os.makedirs(place / directory, mode=0o700, exist_ok=True)

    def new_part(self) -> tuple[str, int]:
        """The path and descriptor of an empty file that no other process writes."""
        path = f"{self._part}{next(self._names)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return path, os.open(path, flags, 0o600)

    def note(self, rows: Iterable[Row]) -> None:
        """Adds finished files to the journal; in one write, so that threads do not mix lines."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if text:
            os.write(self._written, text.encode())

    def link(self, name: str, target: str) -> None:
        """Makes a file of the data set a link to where it lies at the source."""
        self.make_directories([name])
        part = f"{self._part}{next(self._names)}.part"
        os.symlink(target, part)
        os.replace(part, self.place / name)

    def drop_parts(self) -> None:
        """Removes what this process has begun to write."""
        with contextlib.suppress(FileNotFoundError):
            for part in os.listdir(self.parts):
                if part.startswith(self._mark):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.parts / part)

    def end(self) -> None:
        """Stops writing, finished or not."""
        if self._written >= 0:
            os.close(self._written)
            self._written = -1
        self.drop_parts()

    def publish(self, complete: Complete) -> None:
        """Gives the data set its name once all of it is on the disk; COMPLETE.json comes last."""
        if not self.data.exists():
            os.rename(self.partial, self.data)
        sync_file_system(self.data)
        body = {
            "url": complete.url,
            "rest": list(complete.rest),
            "made": dict(complete.made),
            "files": list(complete.rows.values()),
        }
        crc = zlib.crc32(json.dumps(body, sort_keys=True).encode())
        text = json.dumps({"schema": SCHEMA, "crc32": crc, "set": body})
        write_durably(self.complete_file, text + "\n")

    def remove(self) -> None:
        """Removes all but the locks; the name is gone at once, the files soon."""
        trash = self.directory.parent / f"{TRASH}{self._mark}{self.key}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.directory, trash)
        shutil.rmtree(trash, ignore_errors=True)


def boot_id() -> str:
    """Differs after each start of this machine; "" where that cannot be told."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""
