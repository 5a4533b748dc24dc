"""`--stage_to`: the data copied to a local disk first, and read from there."""

import os

from .data.tfds import prepared_directory
from .errors import UserError
from .staging.request import Staged
from .staging.scratch import nearest
from .staging.staging import stage

KINDS = ("records", "folder", "tfds")  # of --data: those that lie in files

# What this process reads, held to its end: nobody removes a data set in use to make room.
_in_use: list[Staged] = []


def staged_data(data: str, stage_to: str) -> str:
    """`data`, as `--data` takes it, moved to the local disk; copied if it is not there yet.

    Args:
      data: records:DIR, folder:DIR or tfds:NAME, where DIR may be a URL and NAME a URL too.
      stage_to: a directory on a local disk; auto: see `stage --help`.

    Raises:
      UserError: data that lies in no files, no usable directory, no room.
      RunFailed: the source cannot be read whole.
    """
    kind, _, place = data.partition(":")
    if kind not in KINDS or not place:
        raise UserError(f"--stage_to copies records:, folder: or tfds: data, not --data={data}")
    staged = stage(_files(kind, place), scratch=stage_to)
    _in_use.append(staged)
    print(f"data       staged: {staged.files:,} files in {staged.path}", flush=True)
    return f"{kind}:{staged.path}"


def could_be_staged(data: str) -> bool:
    """Whether `--stage_to=auto` would read from another disk than now."""
    kind, _, place = data.partition(":")
    if kind not in KINDS or not place:
        return False
    scratch = nearest()
    if scratch is None:
        return False
    try:
        files = _files(kind, place)
        return "://" in files or os.stat(files).st_dev != os.stat(scratch).st_dev
    except (UserError, OSError):
        return False


def _files(kind: str, place: str) -> str:
    """The directory or URL that holds the files."""
    if kind == "tfds" and "://" not in place:
        return str(prepared_directory(place))
    return place if "://" in place else os.path.expanduser(place)
