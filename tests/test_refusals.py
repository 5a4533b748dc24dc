"""An answer that would make a broken project is refused: one line, what would work, no remains."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import Bake, environment
from cookiecutter.exceptions import FailedHookException, OutputDirExistsException
from soundness import answers_of, faults

REFUSAL = re.compile(r"ERROR: (\w+) ('.*'|\".*\") .+; for example ('[^']+') would work")
REFUSED = [
    ("project_slug", {"project_slug": "../x"}),
    ("project_slug", {"project_slug": "a/../../x"}),
    ("project_slug", {"project_slug": "-x"}),
    ("project_slug", {"project_slug": "x-"}),
    ("project_slug", {"project_slug": "a b"}),
    ("project_slug", {"project_slug": "a\n"}),
    ("project_slug", {"project_slug": "a" * 41}),
    ("project_slug", {"project_slug": "$(id)"}),
    ("project_slug", {"project_name": "tensorflow"}),
    ("project_slug", {"project_slug": "tensorflow-cpu"}),
    ("package_name", {"project_name": "3D Net"}),
    ("package_name", {"project_name": "class"}),
    ("package_name", {"project_name": "match"}),
    ("package_name", {"project_name": "{{7*7}}"}),
    ("package_name", {"package_name": "json"}),
    ("package_name", {"package_name": "none"}),
    ("package_name", {"package_name": "my-model"}),
    ("package_name", {"package_name": "modèle"}),
    ("package_name", {"package_name": "MyModel"}),
    ("package_name", {"package_name": "_x"}),
    ("package_name", {"package_name": "net\n"}),
    ("package_name", {"package_name": "a" * 41}),
    ("package_name", {"package_name": "a/../../../x"}),
    ("package_name", {"package_name": "absl"}),
    ("package_name", {"package_name": "keras"}),
    ("package_name", {"package_name": "numpy"}),
    ("package_name", {"package_name": "pytest"}),
    ("package_name", {"package_name": "src"}),
    ("package_name", {"package_name": "tensorflow_datasets"}),
    ("package_name", {"package_name": "tests"}),
    ("package_name", {"package_name": "tqdm"}),
    ("project_name", {"project_name": "a" * 500}),
    ("project_name", {"project_name": "two\nlines"}),
    ("project_name", {"project_name": "right \u202eto left", "project_slug": "x"}),
    ("description", {"description": "a\x1b[31mb"}),
    ("description", {"description": "{% raw %}{{ 7 * 7 }}{% endraw %}"}),
    ("author", {"author": " "}),
    ("author", {"author": "a\r\nb"}),
]


def refusal_of(capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The variable that the one line printed is about, and the answer that it recommends."""
    printed = "".join(capfd.readouterr())
    found = REFUSAL.fullmatch(printed.strip("\n"))
    assert found and printed.isascii() and len(printed) < 250, printed
    return found[1], found[3].strip("'")


@pytest.mark.parametrize(("variable", "answers"), REFUSED, ids=lambda value: ascii(value)[:50])
def test_a_bad_answer_is_refused_and_the_one_recommended_works(
    bake: Bake,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    variable: str,
    answers: dict[str, str],
) -> None:
    output = tmp_path / "parent" / "output"
    output.mkdir(parents=True)
    with pytest.raises(FailedHookException):
        bake(output, **answers)
    refused, recommended = refusal_of(capfd)
    assert refused == variable
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    if answers.get("project_slug", "").count("/") < 2:  # cookiecutter makes parents, keeps them
        assert list(tmp_path.rglob("*")) == [output.parent, output]
    remedied = bake(output, **{**answers, variable: recommended})
    assert answers_of(remedied)[variable] == recommended
    assert faults(remedied) == []


@pytest.mark.parametrize("slug", ["", ".", ".."])
def test_a_slug_that_is_a_folder_already_there_leaves_it_as_it_was(
    bake: Bake, tmp_path: Path, slug: str
) -> None:
    output = tmp_path / "parent" / "output"
    output.mkdir(parents=True)
    with pytest.raises(OutputDirExistsException):
        bake(output, project_slug=slug)
    assert list(tmp_path.rglob("*")) == [output.parent, output]


@pytest.mark.parametrize("variable", ["license", "data", "ci"])
def test_a_choice_that_a_replay_file_smuggles_in_is_refused(
    bake: Bake,
    default_project: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    variable: str,
) -> None:
    # cookiecutter checks choices given on its command line, and none that it replays.
    replay = tmp_path / "replay.json"
    answers = answers_of(default_project)
    private = {"__spdx": "MIT", **{f"__{name}_escaped": "x" for name in answers}}
    smuggled = {**answers, **private, variable: "$(id)"}
    replay.write_text(json.dumps({"cookiecutter": smuggled}))
    with pytest.raises(FailedHookException):
        bake(tmp_path / "output", replay=replay)
    assert refusal_of(capfd)[0] == variable
    assert list((tmp_path / "output").iterdir()) == []


def test_a_stray_module_in_the_temporary_folder_is_not_run(
    bake: Bake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for name in ("json", "keyword", "re"):
        (temporary / f"{name}.py").write_text(f"open({os.fspath(tmp_path / 'RAN')!r}, 'w')\n")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    bake(tmp_path / "output")
    assert not (tmp_path / "RAN").exists()


@pytest.mark.parametrize("redirected", [">&-", ">/dev/full"])
def test_a_project_survives_an_output_that_cannot_be_written(
    template: Path, tmp_path: Path, redirected: str
) -> None:
    command = f'exec "$0" -m cookiecutter "$1" --no-input --default-config -o "$2" {redirected}'
    subprocess.run(
        ["sh", "-c", command, sys.executable, str(template), str(tmp_path)],
        env=environment(HOME=str(tmp_path)),
        capture_output=True,
    )
    assert (tmp_path / "my-training-project" / "pyproject.toml").is_file()


def test_the_next_three_commands_are_printed_in_any_encoding(
    template: Path, tmp_path: Path
) -> None:
    command = ["-m", "cookiecutter", str(template), "--no-input", "--default-config"]
    done = subprocess.run(
        [sys.executable, *command, "--output-dir", str(tmp_path), "project_name=日本 🎉"],
        env=environment(HOME=str(tmp_path), PYTHONIOENCODING="ascii"),
        capture_output=True,
        text=True,
        check=True,
    )
    printed = [line.strip() for line in done.stdout.splitlines()]
    assert printed[-3:] == ["cd ri-ben", "make install", "make benchmark"]
