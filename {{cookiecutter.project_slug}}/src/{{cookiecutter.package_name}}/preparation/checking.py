"""`prepare --check DIR`: is a prepared data set whole and, if not, which records are damaged."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ..data.shards import MANIFEST, Shard, crc32_of, read_manifest
from ..data.tfrecord import Damaged, read, spans
from ..errors import UserError
from ..progress import Progress
from ..runtime import start_tensorflow, usable_cpus
from ..settings import PrepareSettings
from .preparing import BAD_RECORDS

NAMED = 20  # damaged records named of one file


def check(settings: PrepareSettings) -> int:
    """Reads every file of `--check`; prints what is damaged. Returns 0 if nothing is, else 1.

    Raises:
      UserError: no such directory, no manifest in it.
    """
    if settings.source:
        raise UserError(f"--check={settings.check} takes no further argument: {settings.source!r}")
    directory = Path(settings.check).expanduser()
    if not directory.is_dir():
        raise UserError(f"--check={directory}: there is no such directory")
    manifest = read_manifest(directory)
    shards = [Shard(**row) for rows in manifest["splits"].values() for row in rows]
    damage = []
    with (
        ThreadPoolExecutor(settings.workers or usable_cpus()) as threads,
        Progress("check", len(shards), "file") as progress,
    ):
        for found in threads.map(lambda shard: _damage(directory, shard, manifest), shards):
            damage += found
            progress.advance(1)
    listed = {shard.file for shard in shards} | {MANIFEST, BAD_RECORDS}
    for name in sorted(set(os.listdir(directory)) - listed):
        damage.append(f"{directory / name}: not in {MANIFEST}")
    for line in damage:
        print(line)
    records = sum(shard.records for shard in shards)
    verdict = f"damaged: {len(damage)} findings" if damage else "whole"
    print(f"{directory}: {len(shards)} files, {records} records, {verdict}")
    return int(bool(damage))


def _damage(directory: Path, shard: Shard, manifest: Mapping[str, Any]) -> list[str]:
    path = directory / shard.file
    try:
        size = path.stat().st_size
        if size == shard.bytes and crc32_of(path) == shard.crc32:
            return []
        if manifest.get("format") == "raw":
            found = _damaged_rows(path, shard, manifest["size"])
        else:
            found = _damaged_records(path, shard)
    except FileNotFoundError:
        return [f"{path}: missing"]
    except OSError as error:
        return [f"{path}: cannot be read ({error.strerror})"]
    if size != shard.bytes:
        found.insert(0, f"{size} bytes, {MANIFEST} says {shard.bytes}")
    if not found:
        found = [f"its CRC-32 is not that of {MANIFEST}, though each record is whole: replaced?"]
    return [f"{path}: {what}" for what in found]


def _damaged_records(path: Path, shard: Shard) -> list[str]:
    """Of a TFRecord file: which records fail their own checksums."""
    found, index = [], 0
    try:
        for offset, length in spans(path):
            try:
                read(path, offset, length)
            except Damaged as error:
                found.append(f"record {index}: {error}")
            index += 1
    except Damaged as error:
        lost = max(shard.records - index, 1)
        found.append(f"record {index}: {error}; {lost} records from there are lost")
        return found
    if index != shard.records:
        found.append(f"{index} records, {MANIFEST} says {shard.records}")
    return _first(found)


def _damaged_rows(path: Path, shard: Shard, size: int) -> list[str]:
    """Of a raw file: which rows fail their fingerprints."""
    if path.stat().st_size != shard.bytes:
        return []  # the table lies at the end, wherever that was
    start_tensorflow()
    from ..data.raw import CHANNELS, fingerprint_of, read_rows

    rows = read_rows(path, shard.records, size)
    shape = (shard.records, size, size, CHANNELS)
    pixels = np.memmap(path, np.uint8, mode="r", shape=shape)
    found = [
        f"record {index}: its pixels or fingerprint have changed"
        for index in range(shard.records)
        if fingerprint_of(pixels[index]) != rows[index]["fingerprint"]
    ]
    return _first(found) or ["labels, aspect ratios or padding of its table have changed"]


def _first(found: list[str]) -> list[str]:
    more = len(found) - NAMED
    return found[:NAMED] + ([f"and {more} records more"] if more > 0 else [])
