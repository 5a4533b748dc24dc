"""What the tests of staging share: a source, and the command run in this process."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from {{cookiecutter.package_name}} import stage as command
from {{cookiecutter.package_name}}.staging import retrying

LARGE = (1 << 20) + 17  # bytes; is read block by block, not at once


class Ended(NamedTuple):
    """How the command ended: exit code, the path it printed, what it said."""

    code: int
    path: Path
    said: str

    @property
    def report(self) -> dict:
        """What --json prints at the end."""
        return json.loads(self.said.splitlines()[-1])


@pytest.fixture
def stage(tmp_path, capsys, monkeypatch):
    """Stages in this process; `--allow_shared`, as a container's /tmp may be an overlay."""
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.001)
    (tmp_path / "ssd").mkdir()
    usual = [f"--scratch={tmp_path / 'ssd'}", "--allow_shared", "--reserve=0", "--json"]

    def run(*arguments) -> Ended:
        code = command.main([*usual, *map(str, arguments)])
        printed = capsys.readouterr()
        return Ended(code, Path(printed.out.strip() or "none"), printed.err)

    return run


@pytest.fixture
def source(tmp_path) -> Path:
    """Two large files, and five small ones in a directory below."""
    root = tmp_path / "source"
    (root / "below").mkdir(parents=True)
    for number in range(2):
        (root / f"large{number}").write_bytes(os.urandom(LARGE))
    for number in range(5):
        (root / "below" / f"small{number}").write_bytes(os.urandom(100 + number))
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a directory, by path."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
