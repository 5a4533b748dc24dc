"""The generated package's Python is Python: checked and typed where it lies in the template."""

import ast
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from soundness import run

PROJECT = ROOT / "{{cookiecutter.project_slug}}"
PACKAGE = PROJECT / "src" / "{{cookiecutter.package_name}}"
MODULES = sorted(PACKAGE.rglob("*.py"))
# What pyproject.toml asks for, by the names it is imported by.
DEPENDENCIES = {
    "PIL",
    "absl",
    "boto3",
    "compression",  # of Python 3.14's standard library, imported where it is there
    "cykooz_resizer",
    "google",
    "google_crc32c",
    "keras",
    "numpy",
    "obstore",
    "pynvml",
    "tensorboard",
    "tensorflow",
    "tensorflow_datasets",
    "tqdm",
    "urllib3",
    "xxhash",
}


def test_the_package_is_there() -> None:
    assert MODULES


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_holds_no_jinja_and_imports_its_siblings_relatively(module: Path) -> None:
    text = module.read_text()
    assert not any(mark in text for mark in ("cookiecutter", "{%", "{{"))
    roots = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots.add(node.module.split(".")[0])
    assert roots - DEPENDENCIES <= sys.stdlib_module_names


@pytest.mark.parametrize("check", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff_finds_nothing(check: list[str]) -> None:
    checked = run(["ruff", *check, "--no-cache", str(PACKAGE)], ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_mypy_finds_nothing(tmp_path: Path) -> None:
    # mypy takes no folder whose name is not an identifier.
    (tmp_path / "package").symlink_to(PACKAGE)
    options = ["--config-file", str(PROJECT / "pyproject.toml"), "--cache-dir", str(tmp_path / "c")]
    checked = run(["mypy", *options, "package"], tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
