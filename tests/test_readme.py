"""Every command of the README is there; those of its first screen are run, here or by name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECTS = (ROOT / "{{cookiecutter.project_slug}}" / "Makefile").read_text(encoding="utf-8")
# The first screen, and what runs each of its lines.
FIRST = {
    "pip install cookiecutter": "requirements/dev.txt brings it",
    "cookiecutter gh:org/tf-gpu-template": "below, from this clone",
    "cd my-training-project": "below",
    "make install": "test_generated_project.py",
    "make benchmark": "test_generated_project.py: its quick tests, and `make demo`",
}


def targets(text):
    return set(re.findall(r"^([a-z-]+):.*##", text, re.MULTILINE))


def test_the_first_screen_is_what_is_tested():
    assert BLOCKS[0].splitlines() == list(FIRST)


def test_the_project_comes_from_the_command_of_the_first_screen(tmp_path):
    clone = tmp_path / "template"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    line = list(FIRST)[1].replace("gh:org/tf-gpu-template", str(clone))
    command = [sys.executable, "-m", *line.split()]
    done = subprocess.run(command, cwd=tmp_path, input="\n" * 8, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my-training-project" / "Makefile").exists()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)", README))))
def test_a_make_target_is_there(name):
    assert name in targets(MAKEFILE) | targets(PROJECTS)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_a_linked_file_is_there(path):
    assert (ROOT / path).exists()
