"""`prepare SRC DST`: lists the originals, plans the shards, makes them in order, publishes them."""

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..data.shards import MANIFEST, Shard, crc32_of, read_manifest, write_manifest, write_shard
from ..durable import sync
from ..errors import UserError
from ..progress import Progress
from ..runtime import start_tensorflow, usable_cpus
from ..settings import PrepareSettings
from .editing import versions
from .originals import Original, Originals, list_originals, stat_of
from .plan import PlannedShard, plan
from .working import Bad, Made, Recipe, Workers, examine, make
from .workplace import Workplace

BAD_RECORDS = "bad_records.json"
JPEG_BYTES_A_PIXEL = 0.5  # of photos at quality 90, to tell how many shards there will be
JOURNAL_EVERY = 1.0  # seconds between lines while records are examined: each waits for the disk
NAMED = 3  # bad records named in a message; the report names all


def prepare(settings: PrepareSettings) -> int:
    """Makes the data set, or finishes what a killed run began; returns the exit code.

    Raises:
      UserError: a wrong argument, a source that cannot be read, bad records beyond what is allowed,
        a destination that holds something else or is in use.
    """
    if not settings.source or not settings.destination:
        raise UserError("give SRC and DST, such as: prepare folder:photos prepared")
    target = Path(settings.destination).expanduser().absolute()
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file: name a directory that does not exist")
    with Workplace(target) as workplace:
        originals = list_originals(
            settings.source, settings.cache_dir, keep=settings.format == "keep"
        )
        made = _made(settings, originals)
        if target.exists() and any(target.iterdir()):
            code = _already_there(target, made)
            workplace.discard()
            return code
        begun = {**made, "state": originals.digest(times=True)}
        _Preparation(settings, originals, made, workplace, workplace.resume(begun)).run()
    print(f"{target}: ready; train with --data=records:{settings.destination}")
    return 0


class _Preparation:
    """One run: what is done, and what is left to do."""

    def __init__(
        self,
        settings: PrepareSettings,
        originals: Originals,
        made: Mapping[str, Any],
        workplace: Workplace,
        journal: Sequence[dict[str, Any]],
    ) -> None:
        self._settings, self._originals, self._made = settings, originals, made
        self._workplace, self._journal = workplace, journal
        self._recipe = Recipe(settings.format, settings.size, settings.quality, originals.features)
        self._workers = settings.workers or usable_cpus()

    def run(self) -> None:
        kept = self._kept()
        with Workers(self._workers, self._recipe) as workers:
            bad = self._examine(workers) if self._settings.on_bad == "skip" else []
            good = self._without(bad)
            suffix = ".raw" if self._settings.format == "raw" else ".tfrecord"
            counts = {split: len(originals) for split, originals in good.items()}
            shards = plan(
                counts, self._record_bytes(), self._settings.shards, self._settings.seed, suffix
            )
            rows = self._write(workers, shards, good, kept)
        self._publish(rows, bad)

    def _kept(self) -> dict[str, dict[str, Any]]:
        """Journal lines of the shards that are whole; other files are removed."""
        lines = {line["shard"]["file"]: line for line in self._journal if "shard" in line}
        with ThreadPoolExecutor(self._workers) as threads:
            whole = list(threads.map(self._is_whole, lines.values()))
        kept = {file: line for (file, line), ok in zip(lines.items(), whole, strict=True) if ok}
        for path in self._workplace.data.iterdir():
            if path.name not in kept:
                path.unlink()
        if kept:
            print(f"{len(kept)} finished shards are kept")
        return kept

    def _is_whole(self, line: Mapping[str, Any]) -> bool:
        shard = Shard(**line["shard"])
        path = self._workplace.data / shard.file
        return (
            path.exists() and path.stat().st_size == shard.bytes and crc32_of(path) == shard.crc32
        )

    def _examine(self, workers: Workers) -> list[Bad]:
        """Finds the bad records by making all records once; within the budget, or an error."""
        every = [original for part in self._originals.splits.values() for original in part]
        lines = [line for line in self._journal if "examined" in line]
        done = max((line["examined"] for line in lines), default=0)
        rows = [row for line in lines for row in line["bad"]]
        with Progress("looking for bad records", len(every), "record", done) as progress:
            noted, found = time.monotonic(), []
            for reasons in workers.map(examine, every[done:]):
                found += [(done + i, reason) for i, reason in enumerate(reasons) if reason]
                done += len(reasons)
                progress.advance(len(reasons))
                if time.monotonic() - noted > JOURNAL_EVERY or done == len(every):
                    self._workplace.record({"examined": done, "bad": found})
                    rows, found, noted = rows + found, [], time.monotonic()
        bad = [Bad(every[number], reason) for number, reason in rows]
        if len(bad) > self._settings.bad_budget * len(every):
            raise UserError(
                f"{len(bad)} of {len(every)} records are bad, over "
                f"--bad_budget={self._settings.bad_budget:g}: {_named(bad)}"
            )
        return bad

    def _without(self, bad: Sequence[Bad]) -> dict[str, list[Original]]:
        left_out = {b.original for b in bad}
        good = {
            split: [original for original in originals if original not in left_out]
            for split, originals in self._originals.splits.items()
        }
        if not good.get("train"):
            raise UserError(f"{self._settings.source}: no good record is left to train on")
        return good

    def _record_bytes(self) -> int:
        pixels = self._settings.size**2
        if self._settings.format == "raw":
            return 3 * pixels
        if self._settings.format == "jpeg":
            return int(JPEG_BYTES_A_PIXEL * pixels)
        train = self._originals.splits["train"]
        sizes = [len(o.data) or o.length or stat_of(o.path)[0] for o in train]
        return sum(sizes) // max(1, len(sizes))

    def _write(
        self,
        workers: Workers,
        shards: Sequence[PlannedShard],
        good: Mapping[str, Sequence[Original]],
        kept: dict[str, dict[str, Any]],
    ) -> list[dict[str, Any]]:
        """Writes the shards that are not kept, one after the other; returns all journal lines."""
        missing = [shard for shard in shards if shard.file not in kept]
        total, left = (sum(len(s.members) for s in some) for some in (shards, missing))
        wanted = (good[shard.split][member] for shard in missing for member in shard.members)
        with Progress("prepare", total, "record", total - left) as progress:
            made = self._records(workers.map(make, wanted), progress)
            for shard in missing:
                kept[shard.file] = self._write_one(shard, made)
        return [kept[shard.file] for shard in shards]

    def _records(self, chunks: Iterable[list[Any]], progress: Progress) -> Iterator[Made]:
        for chunk in chunks:
            for made in chunk:
                if isinstance(made, Bad):
                    raise UserError(
                        f"{_named([made])}: mend or remove it, or leave it out with --on_bad=skip"
                    )
                yield made
            progress.advance(len(chunk))

    def _write_one(self, planned: PlannedShard, made: Iterator[Made]) -> dict[str, Any]:
        rotated: list[str] = []

        def records() -> Iterator[Any]:
            for _ in planned.members:
                record, name = next(made)
                rotated.extend([name] if name else [])
                yield record

        path = self._workplace.data / planned.file
        try:
            if self._settings.format == "raw":
                start_tensorflow()  # its fingerprints are TensorFlow's
                from ..data.raw import write_raw_shard

                shard = write_raw_shard(path, records())
            else:
                shard = write_shard(path, records())
            sync(path)
        except BaseException:
            path.unlink(missing_ok=True)  # a full disk has room for the journal again
            raise
        line = {
            "split": planned.split,
            "shard": dataclasses.asdict(shard),
            "rotated": len(rotated),
            "rotated_example": rotated[0] if rotated else "",
        }
        self._workplace.record(line)
        return line

    def _publish(self, lines: Sequence[Mapping[str, Any]], bad: Sequence[Bad]) -> None:
        splits: dict[str, list[Shard]] = {split: [] for split in self._originals.splits}
        for line in lines:
            splits[line["split"]].append(Shard(**line["shard"]))
        data, form = self._workplace.data, self._settings.format
        size: int | None = self._settings.size
        if form == "keep":
            size = self._originals.side
            form = "keep" if size is None else "jpeg"  # squares that were prepared before
        if bad:
            rows = [
                {
                    "file": self._originals.short(b.original.path),
                    "record": b.original.number,
                    "reason": b.reason,
                }
                for b in sorted(bad)
            ]
            (data / BAD_RECORDS).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(f"{len(bad)} bad records are left out and listed in {BAD_RECORDS}")
        rotated = [line for line in lines if line["rotated"]]
        if rotated:
            count = sum(line["rotated"] for line in rotated)
            print(
                f"{count} images ask by EXIF to be turned, which training does not do (such as "
                f"{rotated[0]['rotated_example']}): --format=jpeg turns them"
            )
        write_manifest(data, self._originals.classes, splits, self._made, format=form, size=size)
        self._workplace.publish()


def _made(settings: PrepareSettings, originals: Originals) -> dict[str, Any]:
    """What determines the bytes; the same on every machine."""
    edited = settings.format != "keep"
    return {
        "by": "prepare",
        "source": originals.name,
        "source_sha256": originals.digest(times=False),
        "format": settings.format,
        "size": settings.size if edited else None,
        "quality": settings.quality if settings.format == "jpeg" else None,
        "shards": settings.shards,
        "seed": settings.seed,
        "on_bad": settings.on_bad,
        **(versions() if edited else {}),
    }


def _already_there(target: Path, made: Mapping[str, Any]) -> int:
    if not (target / MANIFEST).exists():
        raise UserError(f"{target} is not empty and no prepared data set: name another DST")
    found = read_manifest(target).get("made", {})
    changed = [
        f"{name} {found.get(name)!r}, not {made[name]!r}"
        for name in made
        if found.get(name) != made[name]
    ]
    if changed:
        raise UserError(
            f"{target} holds a data set made otherwise ({'; '.join(changed)}): name another DST"
        )
    print(f"{target} is prepared already, with the same settings")
    return 0


def _named(bad: Sequence[Bad]) -> str:
    names = [f"{b.original.name}: {b.reason}" for b in bad[:NAMED]]
    more = len(bad) - NAMED
    return "; ".join(names) + (f"; and {more} more" if more > 0 else "")
