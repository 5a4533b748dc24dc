"""Where a data set goes, and how much of it fits there."""

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..progress import scaled
from .housekeeping import make_room, used_bytes
from .listing import need_of
from .local_source import LocalSource
from .request import Asked
from .scratch import NoRoom, Room, roots
from .source import Entry, Source

MANY, SMALL = 10_000, 256 << 10  # files, and bytes each, from which an archive is the better source


def root_for(source: Source, key: str, entries: Sequence[Entry], asked: Asked) -> Path:
    """Where it lies already, or else the first place with room for it, or else the roomiest.

    Raises:
      UserError: no directory is usable, or the one that was named lies within the source.
    """
    found = roots(asked.scratch, asked.allow_shared, asked.say)
    for root in found:
        if isinstance(source, LocalSource) and _is_within(root, source.root):
            raise UserError(f"{root} lies within {source.url}: choose another --scratch")
    for root in found:
        if (root / key).exists():
            return root
    need = need_of(entries)
    for root in found:
        if room_in(root, asked).holds(need):
            return root
    return max(found, key=lambda root: room_in(root, asked).free)


def room_in(root: Path, asked: Asked) -> Room:
    """What may still be written there."""
    return asked.limits.room(root, lambda: used_bytes(root))


def fitting(
    root: Path, source: Source, missing: Sequence[Entry], asked: Asked
) -> tuple[list[Entry], list[Entry]]:
    """Those of the missing files that fit, and those that are to be read at the source.

    Raises:
      NoRoom: not all fit, and all were asked for.
    """
    _warn_of_many(missing, asked)
    room, need = room_in(root, asked), need_of(missing)
    if not room.holds(need) and asked.evict:
        make_room(root, lambda: room_in(root, asked).holds(need), asked.say)
        room = room_in(root, asked)
    if room.holds(need):
        return list(missing), []
    if asked.on_full == "stream":
        return _divided(room, source, missing, asked)
    inodes = "any number of" if room.inodes is None else room.inodes
    raise NoRoom(
        f"{root} has no room: {source.url} needs {scaled(need.bytes_on(room.block))} and "
        f"{need.inodes} files, of {scaled(room.free)} and {inodes} files that may be used; --evict "
        f"would free {scaled(used_bytes(root, idle=True))}; or choose another --scratch, or "
        "--on_full=stream"
    )


def linkable(source: Source) -> LocalSource:
    """The source, if its files can be linked to.

    Raises:
      UserError: nothing can read them in place.
    """
    if not isinstance(source, LocalSource):
        raise UserError(
            f"--on_full=stream links what does not fit, and {source.url} cannot be linked to: make "
            "room, or choose another --scratch"
        )
    return source


def _divided(
    room: Room, source: Source, missing: Sequence[Entry], asked: Asked
) -> tuple[list[Entry], list[Entry]]:
    """In listing order, as each file that is local gains as much per byte as the next."""
    linkable(source)
    # Links and directories take inodes too, whether the files fit or not.
    spare = None if room.inodes is None else room.inodes - need_of(missing).inodes
    if spare is not None and spare < 0:
        raise NoRoom(f"{source.url} has more files than {asked.scratch or 'the disk'} can hold")
    links = len(missing) * room.block  # tmpfs and XFS may take a block for one
    fit, rest, used = [], [], links
    for entry in missing:
        more = used + need_of([entry]).bytes_on(room.block)
        if more <= room.free:
            fit.append(entry)
            used = more
        else:
            rest.append(entry)
    asked.say(f"{len(rest)} of {len(missing)} files do not fit and are read at the source")
    return fit, rest


def _warn_of_many(missing: Sequence[Entry], asked: Asked) -> None:
    size = sum(max(0, entry.size) for entry in missing)
    if len(missing) > MANY and size < len(missing) * SMALL:
        asked.say(
            f"{len(missing)} files of {scaled(size / len(missing))} on average: shards (prepare) "
            "or one tar (--untar) would be copied and read faster"
        )


def _is_within(path: Path, directory: str) -> bool:
    real = os.path.realpath(directory)
    return os.path.commonpath([os.path.realpath(path), real]) == real
