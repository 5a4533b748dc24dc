"""Whatever is answered, cookiecutter makes a sound project or none, and says why."""

import json
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest
from conftest import ROOT, Bake
from soundness import answers_of, faults, files_of, pyproject_of, text_files_of

QUESTIONS = json.loads((ROOT / "cookiecutter.json").read_text())
PUBLIC = [name for name in QUESTIONS if not name.startswith("_")]
CHOICES = [
    (name, choice)
    for name in PUBLIC
    if isinstance(QUESTIONS[name], list)
    for choice in QUESTIONS[name]
]
LICENSE_WORDS = {
    "MIT": "Permission is hereby granted, free of charge",
    "Apache-2.0": "APPENDIX: How to apply the Apache License to your work",
    "BSD-3-Clause": "Neither the name of the copyright holder",
    "proprietary": "All rights reserved",
}


def test_there_are_eight_questions_and_each_is_a_sentence() -> None:
    prompts = QUESTIONS["__prompts__"]
    assert len(PUBLIC) == 8
    assert sorted(prompts) == sorted(PUBLIC)
    for name in PUBLIC:
        if isinstance(QUESTIONS[name], list):
            assert sorted(prompts[name]) == sorted(["__prompt__", *QUESTIONS[name]])


def test_defaults_make_a_sound_project(default_project: Path) -> None:
    assert default_project.name == "my-training-project"
    assert (default_project / "src" / "my_training_project" / "train.py").is_file()
    assert faults(default_project) == []


@pytest.mark.parametrize(("question", "choice"), CHOICES)
def test_every_choice_makes_a_sound_project(bake: Bake, question: str, choice: str) -> None:
    project = bake(**{question: choice})
    assert faults(project) == []
    assert answers_of(project)[question] == choice


@pytest.mark.parametrize("license_", LICENSE_WORDS)
def test_the_licence_is_the_one_asked_for_with_this_year_and_the_author(
    bake: Bake, license_: str
) -> None:
    text = (bake(license=license_, author="Ada Lovelace") / "LICENSE").read_text()
    assert [key for key, words in LICENSE_WORDS.items() if words in text] == [license_]
    year = datetime.now(timezone.utc).year
    assert any(f"{year}" in line and "Ada Lovelace" in line for line in text.splitlines())


def test_only_the_ci_asked_for_is_there(bake: Bake) -> None:
    github, gitlab, none = (files_of(bake(ci=ci)) for ci in ("github", "gitlab", "none"))
    of_github, of_gitlab = ".github/workflows/ci.yml", ".gitlab-ci.yml"
    assert of_github in github and of_gitlab not in github
    assert of_gitlab in gitlab and of_github not in gitlab
    assert of_github not in none and of_gitlab not in none
    assert b"${{ matrix.python }}" in github[of_github]
    for text in (github[of_github], gitlab[of_gitlab]):
        assert all(f"make {target}".encode() in text for target in ("install", "lint", "test"))
        assert all(f'"3.{minor}"'.encode() in text for minor in (10, 11, 12, 13))


def test_the_data_answer_is_the_default_of_the_project(bake: Bake) -> None:
    project = bake(data="synthetic")
    defaults = json.loads((project / "src" / "my_training_project" / "defaults.json").read_text())
    assert defaults["data"].startswith("synthetic")


TEXTS = [
    """O'Brien "X" """.strip(),
    "ends in a backslash \\",
    "日本語 🎉 café",
    "R&D <b>tags</b> 100 % # not a comment: no, {single} braces",
    "$(id) `id` ${HOME} $HOME",
    "שלום עולם",
    'x"""; import os; os.system("touch PWNED")  # ',
    "x'); __import__('os').system('touch PWNED') #",
    "x\\\"; __import__('os').system('touch PWNED') #",
]


@pytest.mark.parametrize("text", TEXTS)
def test_free_text_is_carried_as_data_and_never_runs(bake: Bake, tmp_path: Path, text: str) -> None:
    project = bake(
        tmp_path,
        project_slug="p",
        package_name="p_q",
        **dict.fromkeys(["project_name", "description", "author"], text),
    )
    metadata, answers = pyproject_of(project)["project"], answers_of(project)
    assert metadata["description"] == metadata["authors"][0]["name"] == text
    assert answers["project_name"] == answers["description"] == answers["author"] == text
    assert text in (project / "LICENSE").read_text()
    assert faults(project) == []
    assert list(tmp_path.rglob("PWNED")) == []
    assert not Path("PWNED").exists()
    code = [name for name, content in text_files_of(project).items() if "PWNED" in content]
    assert not [name for name in code if name.endswith((".py", "Makefile", "ci.yml"))]


@pytest.mark.parametrize(
    ("answers", "package"),
    [
        ({"project_name": "日本語"}, "ri_ben_yu"),
        ({"project_name": "🎉"}, "my_project"),
        ({"project_name": "$(id)"}, "id"),
        ({"project_name": "long name " * 20}, "long_name_long_name_long_name_long_name"),
        ({"project_name": "Crème Brûlée — (v2)"}, "creme_brulee_v2"),
        ({"package_name": "a" * 40}, "a" * 40),
        ({"package_name": "zz"}, "zz"),
    ],
)
def test_odd_names_become_a_sound_project(
    bake: Bake, answers: dict[str, str], package: str
) -> None:
    project = bake(**answers)
    assert (project / "src" / package / "__init__.py").is_file()
    assert faults(project) == []


def test_a_path_with_spaces_and_quotes_will_do(bake: Bake, tmp_path: Path) -> None:
    folder = tmp_path / "my 'odd' folder"
    folder.mkdir()
    assert faults(bake(folder)) == []


def test_the_same_project_comes_out_without_hooks(bake: Bake, default_project: Path) -> None:
    assert files_of(bake(hooks=False)) == files_of(default_project)


def test_git_ignores_no_file_of_the_project(default_project: Path, tmp_path: Path) -> None:
    git = ["git", f"--git-dir={tmp_path / 'git'}", f"--work-tree={default_project}"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    asked = "\0".join(files_of(default_project))
    ignored = subprocess.run(
        [*git, "check-ignore", "-z", "--stdin"],
        cwd=default_project,
        input=asked,
        capture_output=True,
        text=True,
    )
    assert ignored.stdout == ""
    assert ignored.returncode == 1


def test_locks_hold_hashes_and_name_no_place(default_project: Path) -> None:
    for name in ("requirements/cpu.txt", "requirements/cuda.txt"):
        lock = (default_project / name).read_text()
        pinned = [line for line in lock.splitlines() if line and not line.startswith((" ", "#"))]
        assert len(pinned) > 50 and all(line.endswith("\\") for line in pinned)
        assert lock.count("--hash=sha256:") >= len(pinned)
        assert not any(
            word in lock for word in ("http", "://", "/tmp", "/work", "-index", "--find")
        )
    for wheel, name in (("cpu", "tensorflow-cpu"), ("cuda", "nvidia-cudnn-cu12")):
        assert f"\n{name}==" in (default_project / f"requirements/{wheel}.txt").read_text()
