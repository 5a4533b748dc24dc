"""What every baked project must be, whatever was answered: `faults` lists what it is not."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

JINJA = re.compile(r"\{\{-?\s*cookiecutter|\{%")
PARSERS = {
    ".json": json.loads,
    ".py": ast.parse,
    ".toml": tomllib.loads,
    ".yaml": yaml.safe_load,
    ".yml": yaml.safe_load,
}


def files_of(project: Path) -> dict[str, bytes]:
    """Every file's content by its path in the project; git's own files left out."""
    files = (path for path in sorted(project.rglob("*")) if path.is_file())
    relative = {path.relative_to(project): path for path in files}
    return {
        str(name): path.read_bytes() for name, path in relative.items() if ".git" not in name.parts
    }


def text_files_of(project: Path) -> dict[str, str]:
    binary = (".npz", ".png", ".jpg", ".jpeg", ".pyc")
    files = files_of(project).items()
    return {name: content.decode() for name, content in files if not name.endswith(binary)}


def pyproject_of(project: Path) -> dict[str, Any]:
    return tomllib.loads((project / "pyproject.toml").read_text())


def answers_of(project: Path) -> dict[str, str]:
    return yaml.safe_load((project / ".cookiecutter.yml").read_text())["default_context"]


def run(command: list[str], where: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command of this environment's Python; output is captured, failure is the caller's."""
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=where, capture_output=True, text=True, **options
    )


def parse_fault(name: str, text: str) -> str | None:
    try:
        PARSERS[Path(name).suffix](text)
    except (SyntaxError, ValueError, yaml.YAMLError) as error:
        return f"{name} does not parse: {error}"
    return None


def faults(project: Path) -> list[str]:
    """Everything that is wrong with a freshly baked project, one line or report each."""
    found = []
    for name, text in text_files_of(project).items():
        if JINJA.search(text) or "{" in name:
            found.append(f"{name} holds Jinja")
        if "\r" in text:
            found.append(f"{name} has CRLF line ends")
        if text and not text.endswith("\n"):
            found.append(f"{name} does not end in a newline")
        if Path(name).suffix in PARSERS and (fault := parse_fault(name, text)):
            found.append(fault)
        if text.startswith("#!") and "bash" in text.splitlines()[0]:
            checked = subprocess.run(
                ["bash", "-n", str(project / name)], capture_output=True, text=True
            )
            found += [checked.stderr] if checked.returncode else []
    for command in (["check"], ["format", "--check"]):
        checked = run(["ruff", *command, "--no-cache", "--quiet", "."], project)
        found += (
            [f"ruff {command[0]}: {checked.stdout}{checked.stderr}"] if checked.returncode else []
        )
    return found
