"""Small files written so that neither a kill nor a power cut leaves half of one."""

import os
from pathlib import Path

PARTIAL = ".partial-"  # what a name begins with until its file or directory is whole


def write_durably(path: Path, text: str) -> None:
    """Replaces a small file: after a kill it is the old one or the new one, never a part."""
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}")
    partial.write_text(text, encoding="utf-8")
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
