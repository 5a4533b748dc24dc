"""What a data set says of itself: whether it is finished, and what its files must be."""

import dataclasses
import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError
from .checksums import read_sums
from .source import Entry, Refused, Source, Transient, checked_path, included

MANIFEST = "manifest.json"  # as data/shards.py writes it; that module needs what staging does not
LARGEST_LIST = 256 << 20  # bytes of a manifest or a list of sums


@dataclasses.dataclass(frozen=True)
class Promised:
    """Checksums by path, as in `Entry.checksum`; and a digest of the list that the user gave."""

    sums: Mapping[str, tuple[str, ...]]
    digest: str = ""


def promised(
    source: Source, entries: Sequence[Entry], checksums: str, include: str, stop: threading.Event
) -> Promised:
    """Reads the manifest and the list of sums, and looks whether every file they name is there.

    Args:
      source: of which `entries` were listed.
      entries: all files wanted.
      checksums: as `--checksums` gives it.
      include: files that do not match it are not missed.
      stop: ends the reading.

    Raises:
      Refused: the data set is unfinished, or a file is missing or of another size.
      UserError: no such list.
    """
    listed = {entry.path: entry for entry in entries}
    _refuse_unfinished(source.url, listed)
    sums: dict[str, tuple[str, ...]] = {}
    if MANIFEST in listed:
        for shard in _shards(source.url, _read(source, listed[MANIFEST], stop)):
            path = checked_path(str(shard["file"]), f"{source.url}: {MANIFEST}")
            if included(path, include):
                _look(source.url, listed, MANIFEST, path, int(shard["bytes"]))
                sums[path] = (f"crc32:{int(shard['crc32']):08x}",)
    if not checksums:
        return Promised(sums)
    text = _list_of_sums(source, listed, checksums, stop)
    for path, total in read_sums(text, checksums).items():
        if included(path, include):
            _look(source.url, listed, checksums, path, None)
            sums[path] = (*sums.get(path, ()), total)
    return Promised(sums, hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest())


def _refuse_unfinished(url: str, listed: Mapping[str, Entry]) -> None:
    """Spark and Hadoop write to `_temporary/` and add `_SUCCESS` when all is there."""
    if "_SUCCESS" not in listed and any(path.startswith("_temporary/") for path in listed):
        raise Refused(f"{url}: holds _temporary/ and no _SUCCESS: its job is not done")


def _shards(url: str, text: bytes) -> list[Mapping[str, Any]]:
    """The manifest's shards; none if it is a manifest of something else."""
    try:
        manifest = json.loads(text)
    except ValueError:
        raise Refused(f"{url}: {MANIFEST} is damaged or half written: make it anew") from None
    try:
        splits = manifest["splits"]
        rows = [row for rows in splits.values() for row in rows]
        return rows if all({"file", "bytes", "crc32"} <= row.keys() for row in rows) else []
    except (KeyError, TypeError, AttributeError):
        return []


def _look(url: str, listed: Mapping[str, Entry], by: str, path: str, size: int | None) -> None:
    if path not in listed:
        raise Refused(f"{url}: {by} names {path!r}, which is not there: complete the source")
    found = listed[path].size
    if size is not None and found not in (-1, size):
        raise Refused(f"{url}: {path!r} has {found} bytes, {by} says {size}: make the source anew")


def _list_of_sums(
    source: Source, listed: Mapping[str, Entry], checksums: str, stop: threading.Event
) -> str:
    try:
        if checksums in listed:
            content = _read(source, listed[checksums], stop)
        else:
            with open(os.path.expanduser(checksums), "rb") as file:
                content = file.read(LARGEST_LIST)
    except OSError as error:
        raise UserError(
            f"--checksums={checksums}: {error.strerror}: name a file here or in the source"
        ) from None
    return content.decode("utf-8", "surrogateescape")


def _read(source: Source, entry: Entry, stop: threading.Event) -> bytes:
    content = bytearray()
    for block in source.fetch(entry, stop):
        content += block
        if len(content) > LARGEST_LIST:
            raise Refused(f"{source.url}: {entry.path!r} is too large for a list of files")
    if len(content) != entry.size >= 0:
        raise Transient(f"{entry.path}: {len(content)} of {entry.size} bytes came")
    return bytes(content)
