"""Which directory a data set is staged to, what is refused there, and whether there is room."""

import dataclasses
import glob
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ..errors import NO_SPACE, UserError

MOUNTS = Path("/proc/self/mountinfo")
VARIABLE = "TFSTAGE_SCRATCH"
BATCH_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")  # a scheduler's: TMPDIR is its
# Where clouds and clusters put a local SSD: Google, GKE, Amazon, DGX, Azure, then habits.
HABITS = (
    "/mnt/disks/ssd*",
    "/mnt/localssd",
    "/mnt/stateful_partition/kube-ephemeral-ssd",
    "/opt/dlami/nvme",
    "/raid",
    "/mnt/nvme*",
    "/mnt/resource",
    "/local",
    "/scratch",
    "/tmp",
)
SHARED = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "9p", "afs", "ceph"),
    *("glusterfs", "panfs", "pvfs2", "orangefs", "virtiofs", "overlay", "fuse", "fuseblk"),
}
LEAST_RESERVE = 1 << 30  # bytes; a full disk stops more than this command
RESERVED_PART = 0.02  # of the disk


class NoRoom(UserError):
    """Not enough bytes, inodes or quota."""

    code = NO_SPACE


@dataclasses.dataclass(frozen=True)
class Need:
    """What a copy takes, in bytes of content and in files."""

    sizes: tuple[int, ...]
    directories: int = 0

    def bytes_on(self, block: int) -> int:
        """Bytes on a file system that gives out blocks of `block` bytes."""
        return sum(-(-max(size, 0) // block) * block for size in self.sizes) + (
            self.directories * block
        )

    @property
    def inodes(self) -> int:
        """Files and directories."""
        return len(self.sizes) + self.directories


@dataclasses.dataclass(frozen=True)
class Limits:
    """What must stay free, and what may be used.

    Attributes:
      reserve: bytes left free; -1: 2 % of the disk and at least 1 GiB.
      quota: bytes that all staged data sets may take together; 0: no limit.
    """

    reserve: int = -1
    quota: int = 0

    def room(self, root: Path, used: Callable[[], int]) -> "Room":
        """What may still be written below `root`; `used` tells the bytes that are staged there."""
        status = os.statvfs(root)
        reserve = self.reserve
        if reserve < 0:
            reserve = max(LEAST_RESERVE, int(RESERVED_PART * status.f_blocks * status.f_frsize))
        free = status.f_bavail * status.f_frsize - reserve
        if self.quota:
            free = min(free, self.quota - used())
        inodes = status.f_favail if status.f_files else None  # btrfs counts none
        return Room(max(0, free), inodes, status.f_frsize)


@dataclasses.dataclass(frozen=True)
class Room:
    """Bytes and inodes (None: not counted) that may be used, and the size of a block."""

    free: int
    inodes: int | None
    block: int

    def holds(self, need: Need) -> bool:
        """Whether `need` fits."""
        enough = self.inodes is None or need.inodes <= self.inodes
        return enough and need.bytes_on(self.block) <= self.free


def roots(scratch: str, allow_shared: bool, say: Callable[[str], None]) -> list[Path]:
    """The usable `tfstage-UID` directories, best first, made if need be.

    Args:
      scratch: as `--scratch` gives it, then the only one; "" to look in the usual places.
      allow_shared: take network file systems too.
      say: prints a line.

    Raises:
      UserError: none is usable.
    """
    found: list[Path] = []
    refused: list[str] = []
    for base, chosen in _candidates(scratch, os.environ):
        try:
            root = _usable(base, allow_shared)
        except UserError as error:
            if scratch not in ("", "auto"):
                raise
            refused.append(str(error))
            if chosen:  # somebody has set it, and will wonder
                say(f"{error}; looking further")
            continue
        if root not in found:
            found.append(root)
    if not found:
        raise UserError(
            "no directory for staged data: name one on a local disk with --scratch"
            f" ({'; '.join(refused) or 'none of the usual places exists'})"
        )
    return found


def nearest(allow_shared: bool = False) -> Path | None:
    """The directory that `auto` would try first, as far as can be told without writing there."""
    for base, _ in _candidates("", os.environ):
        if base.is_dir() and os.access(base, os.W_OK) and (allow_shared or not _shared(base)):
            return base
    return None


def file_system(path: Path, mounts: Path | None = None) -> str:
    """The type of the file system that `path` lies on, such as ext4; "" if that cannot be told."""
    try:
        lines = (mounts or MOUNTS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""  # no Linux
    real = os.path.realpath(path)
    best, kind = -1, ""
    for line in lines:
        mounted, _, described = line.partition(" - ")
        point = _unescaped(mounted.split()[4])
        # Of two at the same place the later one covers the earlier.
        if len(point) >= best and os.path.commonpath([real, point]) == point:
            best, kind = len(point), described.split()[0]
    return kind


def _candidates(scratch: str, environ: Mapping[str, str]) -> Iterable[tuple[Path, bool]]:
    """(directory, whether someone has named it), in the order they are tried."""
    if scratch and scratch != "auto":
        yield Path(scratch).expanduser().absolute(), True
        return
    names = [VARIABLE, "SLURM_TMPDIR", "LOCAL_SCRATCH", "PBS_JOBFS", "JOBFS"]
    yield from ((Path(environ[name]).absolute(), True) for name in names if environ.get(name))
    if environ.get("SLURM_JOB_ID"):
        yield Path("/scratch") / environ["SLURM_JOB_ID"], False
    if environ.get("TMPDIR") and any(environ.get(name) for name in BATCH_JOB):
        yield Path(environ["TMPDIR"]).absolute(), True
    for habit in HABITS:
        yield from ((Path(match), False) for match in sorted(glob.glob(habit)))


def _usable(base: Path, allow_shared: bool) -> Path:
    if not base.is_dir():
        raise UserError(f"{base} is no directory: make it, or choose another --scratch")
    if not allow_shared and (kind := _shared(base)):
        raise UserError(
            f"{base} is on {kind}, no local disk: choose another --scratch, or --allow_shared"
        )
    root = base / f"tfstage-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        _refuse_strangers(root)
        with tempfile.TemporaryFile(dir=root):
            pass
        (root / ".locks").mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise UserError(f"{root} is no directory: remove it, or choose another --scratch") from None
    except OSError as error:
        kind_of = NoRoom if error.errno == NO_SPACE else UserError
        raise kind_of(f"{base}: {error.strerror}: choose another --scratch") from None
    return root


def _shared(base: Path) -> str:
    """The kind of network file system that `base` is on; "" for a local disk."""
    kind = file_system(base)
    return kind if kind in SHARED or kind.startswith("fuse.") else ""


def _refuse_strangers(root: Path) -> None:
    """Whoever owns the directory, or the link in its place, could change what is trained on."""
    status = os.lstat(root)
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise UserError(f"{root} is a link or no directory: remove it, or choose another --scratch")
    if status.st_uid != os.getuid():
        raise UserError(
            f"{root} belongs to user {status.st_uid}: choose another --scratch, or have it removed"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(root, 0o700)


def _unescaped(point: str) -> str:
    """A mount point as mountinfo writes it, with blanks as octal numbers."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, character)
    return point
