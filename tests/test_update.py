"""A project is made again from its answers file, and takes up what changes in the template."""

import shutil
import subprocess
import sys
from pathlib import Path

import cruft
import pytest
from conftest import Bake, environment
from soundness import faults, files_of


def git(where: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, check=True).stdout


def commit_all(where: Path) -> None:
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "--message", "change")


def test_the_answers_file_makes_the_same_project_again(
    bake: Bake, template: Path, tmp_path: Path
) -> None:
    text = 'O\'Brien "X" \\ 日本 🎉'
    project = bake(
        project_name=text,
        description=text,
        author=text,
        package_name="net",
        license="proprietary",
        data="folder",
        ci="gitlab",
    )
    command = ["cookiecutter", str(template), "--no-input", "--config-file", ".cookiecutter.yml"]
    subprocess.run(
        [sys.executable, "-m", *command, "--output-dir", str(tmp_path)],
        cwd=project,
        env=environment(HOME=str(tmp_path)),
        check=True,
    )
    assert files_of(tmp_path / project.name) == files_of(project)


def test_cruft_brings_a_template_change_to_a_project_with_edits_of_its_own(
    template: Path, cookiecutter_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("GIT_DIR", raising=False)
    upstream = tmp_path / "upstream"
    shutil.copytree(template, upstream)
    git(upstream, "init", "--quiet")
    commit_all(upstream)
    project = cruft.create(
        str(upstream),
        output_dir=tmp_path / "made",
        config_file=cookiecutter_config,
        extra_context={"package_name": "net", "ci": "none"},
        no_input=True,
    )
    git(project, "init", "--quiet")
    with (project / "src" / "net" / "train.py").open("a") as train:
        train.write("# ours\n")
    with (project / "Makefile").open("a") as makefile:
        makefile.write("\nours:\n\techo ours\n")
    commit_all(project)

    makefile_upstream = upstream / "{{cookiecutter.project_slug}}" / "Makefile"
    makefile_upstream.write_text("# theirs\n" + makefile_upstream.read_text())
    (upstream / "{{cookiecutter.project_slug}}" / "NEW.txt").write_text("{{cookiecutter.ci}}\n")
    commit_all(upstream)
    assert not cruft.check(project)
    assert cruft.update(project, skip_apply_ask=True)

    makefile = (project / "Makefile").read_text()
    assert makefile.startswith("# theirs\n") and makefile.endswith("\techo ours\n")
    assert (project / "NEW.txt").read_text() == "none\n"
    assert (project / "src" / "net" / "train.py").read_text().endswith("# ours\n")
    assert not list(project.rglob("*.rej"))
    assert cruft.check(project)
    assert faults(project) == []
