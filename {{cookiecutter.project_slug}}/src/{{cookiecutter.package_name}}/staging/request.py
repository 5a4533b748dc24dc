"""What `stage` is asked for, and what comes of it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..progress import Progress
from .lock import Lock
from .scratch import Limits


@dataclasses.dataclass(frozen=True)
class Asked:
    """The arguments of `stage`."""

    scratch: str
    include: str
    workers: int
    checksums: str
    deep: bool
    on_full: str
    lock_timeout: float
    evict: bool
    limits: Limits
    allow_shared: bool
    untar: bool
    say: Callable[[str], None]
    progress: Callable[[int, int], Progress]


@dataclasses.dataclass
class Staged:
    """A data set on the local disk, kept from being removed until `close` or the process's end.

    Attributes:
      path: the directory that holds the files.
      key: names this version of the source.
      url: of the source, without secrets.
      files, bytes: all of the data set that is staged.
      seconds: it took.
      reused, copied: files that were there already, and that were not.
      retries: how often a read was tried again.
      rest: names that did not fit, links to the source.
      lock: shared, on this data set.
    """

    path: Path
    key: str
    url: str
    files: int
    bytes: int
    seconds: float
    reused: int
    copied: int
    retries: int
    rest: tuple[str, ...]
    lock: Lock = dataclasses.field(repr=False)

    def close(self) -> None:
        """Allows the data set to be removed; twice does no harm."""
        self.lock.close()

    def __enter__(self) -> "Staged":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def report(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del found["lock"]
        return {**found, "path": str(self.path), "rest": list(self.rest)}
