"""`--bad_records=skip`: all records are read and decoded once before training; bad ones left out.

Leaving them out as they are met would be cheaper, and would change what every later position of
the run holds. tf.data's own `ignore_errors` also drops, unsaid, all of a file that lies behind a
damaged record.
"""

import dataclasses
import json
from pathlib import Path

import tensorflow as tf

from ..durable import write_durably
from ..errors import UserError
from ..progress import Progress
from .pipeline import PART, Decode, decoded_in_order, why_bad
from .sources import Source, Splits, as_tuple

NAMED = 3  # bad records named in a message
UNREADABLE = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,  # a file that ends too early
    tf.errors.NotFoundError,
)


@dataclasses.dataclass(frozen=True)
class BadRecord:
    """A record that training cannot use."""

    number: int  # in stored order
    location: str
    reason: str


def leave_out_bad(splits: Splits, decode: Decode, budget: float, kept: Path) -> Splits:
    """The splits without their bad records, which are listed in a file.

    Args:
      splits: as they were opened.
      decode: what the host does with a batch; it must decode all of every record.
      budget: the part of a split's records that may be bad.
      kept: the list of an earlier call, which is believed, or where to write it: a run that is
        resumed must go on with the same records.

    Raises:
      UserError: more are bad.
    """
    if kept.exists():
        rows = json.loads(kept.read_text(encoding="utf-8"))
        found = {name: [BadRecord(**row) for row in rows[name]] for name in rows}
    else:
        sources = {"train": splits.train, "validation": splits.validation}
        found = {name: find_bad(source, decode, name) for name, source in sources.items()}
    train = leave_out(splits.train, found["train"], budget)
    validation = leave_out(splits.validation, found["validation"], budget)
    rows = {name: [dataclasses.asdict(record) for record in bad] for name, bad in found.items()}
    write_durably(kept, json.dumps(rows, indent=1) + "\n")
    return dataclasses.replace(splits, train=train, validation=validation)


def find_bad(source: Source, decode: Decode, what: str) -> list[BadRecord]:
    """Reads and decodes every record; returns those that fail, in stored order.

    Args:
      source: the split.
      decode: what the host does with a batch.
      what: the split's name, for the progress bar.
    """
    bad: list[BadRecord] = []
    with Progress(f"checking {what}", source.count, "record") as progress:
        number = 0

        def advance(records: int) -> None:
            nonlocal number
            number += records
            progress.advance(records, f"{len(bad)} bad")

        def one_by_one() -> None:
            part = source.slice(number, min(number + PART, source.count))
            bad.extend(_one_by_one(part, decode, number))
            advance(part.count)

        while number < source.count:
            counts = iter(decoded_in_order(source.slice(number, source.count), decode))
            try:
                while True:
                    try:
                        advance(int(next(counts)))
                    except tf.errors.InvalidArgumentError:
                        one_by_one()  # of a batch that does not decode; the next ones follow
            except StopIteration:
                pass
            except UNREADABLE:
                one_by_one()  # the iterator has lost its place: a new one starts behind these
    return bad


def leave_out(source: Source, bad: list[BadRecord], budget: float) -> Source:
    """The source without its bad records.

    Raises:
      UserError: they are more than `budget` of all, or all.
    """
    if not bad:
        return source
    names = "; ".join(f"{record.location} ({record.reason})" for record in bad[:NAMED])
    if len(bad) > budget * source.count or len(bad) == source.count:
        raise UserError(
            f"{len(bad):,} of {source.count:,} records are bad, --bad_budget={budget:g} allows "
            f"{int(budget * source.count):,}: {names}{'; ...' if len(bad) > NAMED else ''}"
        )
    print(f"left out {len(bad):,} of {source.count:,} records: {names}", flush=True)
    return source.without([record.number for record in bad])


def _one_by_one(source: Source, decode: Decode, first: int) -> list[BadRecord]:
    """The bad ones among a few records, the first of which is number `first` of all."""
    bad, number = [], 0
    while number < source.count:
        elements = source.slice(number, source.count).in_order().batch(1)
        try:
            for element in elements:
                reason = why_bad(source.read(*as_tuple(element)), decode, number)
                if reason:
                    break
                number += 1
        except tf.errors.DataLossError:
            reason = "damaged: it fails its checksum"
        except tf.errors.FailedPreconditionError:
            reason = "the file ends before it"
        except tf.errors.NotFoundError:
            reason = "the file is gone"
        if number < source.count:
            bad.append(BadRecord(first + number, source.location(number), reason))
            number += 1
    return bad
