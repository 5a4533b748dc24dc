"""A baked project installs from its own files, passes its own checks, and trains the same twice."""

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import Bake, environment
from soundness import files_of

# Tests that start the package by its name or depend on the answers: two bakes differ in no more.
NAMED = (
    "settings",
    "runtime",
    "doctor",
    "service",
    "staged_data",
    "sources",
    "training",
    "playbook",
)
# What depends on the clock or the machine's load; all else must be the same in two runs.
TIMED = ("examples_per_second", "step_ms", "seconds", "time")


def succeed(command: list[str | Path], where: Path, *, limit_s: float = 1200, **added: str) -> str:
    """Runs a command in a newcomer's environment; its output, or the test fails with it."""
    done = subprocess.run(
        command,
        cwd=where,
        env=environment(PYTHONDONTWRITEBYTECODE="1", **added),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, f"{command} in {where}:\n{done.stdout[-8000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def installed(bake: Bake) -> Path:
    """A project with every default, installed fresh by its own `make install`."""
    project = bake()
    output = succeed(["make", "install"], project)
    assert "Installing requirements/c" in output and "nvidia-smi" in output
    return project


@pytest.fixture(scope="session")
def python(installed: Path) -> Path:
    """One environment for every bake: TensorFlow takes most of a minute to install."""
    return installed / ".venv" / "bin" / "python"


def test_what_was_installed_is_what_is_locked(installed: Path, python: Path) -> None:
    succeed([python, "-m", "pip", "check"], installed)
    version = "import tensorflow, keras; print(tensorflow.__version__, keras.__version__)"
    tensorflow, keras = succeed([python, "-c", version], installed).split()[-2:]
    lock = (installed / "requirements" / "cpu.txt").read_text()
    assert f"tensorflow-cpu=={tensorflow} " in lock and f"\nkeras=={keras} " in lock


def test_the_installed_project_passes_its_own_lint(installed: Path, python: Path) -> None:
    succeed(["make", "lint"], installed)


def test_the_installed_commands_answer(installed: Path, python: Path, tmp_path: Path) -> None:
    helped = succeed([python, "-m", "my_training_project.train", "--help"], tmp_path)
    assert "--data" in helped and "--benchmark" in helped
    for command in ("doctor", "prepare", "serve", "compare", "stage"):
        assert "--" in succeed([python, "-m", f"my_training_project.{command}", "--help"], tmp_path)
    assert "make train" in succeed(["make"], installed)


def test_the_wheel_holds_every_file_of_the_package(
    installed: Path, python: Path, tmp_path: Path
) -> None:
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    succeed([python, *build, "--wheel-dir", tmp_path, "."], installed)
    (wheel,) = tmp_path.glob("*.whl")
    packed = zipfile.ZipFile(wheel).namelist()
    source = {name for name in files_of(installed / "src") if "egg-info" not in name}
    assert sorted(name for name in packed if "dist-info" not in name) == sorted(source)
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in packed)


@pytest.mark.parametrize(
    "answers",
    [{}, {"package_name": "zz_9" + "y" * 36, "data": "synthetic", "ci": "none"}],
    ids=["defaults", "odd"],
)
def test_the_projects_own_tests_pass(bake: Bake, python: Path, answers: dict[str, str]) -> None:
    project = bake(**answers)
    # Before the installed package's folder on the path, so that this bake's package is the tested.
    source = os.fspath(project / "src")
    options = ["-p", "no:cacheprovider"]
    if answers:
        options += [f"tests/test_{name}.py" for name in NAMED]
    printed = succeed([python, "-m", "pytest", *options], project, PYTHONPATH=source)
    assert " passed" in printed and " failed" not in printed


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [{k: v for k, v in record.items() if k not in TIMED} for record in records]


def test_training_twice_gives_identical_metrics(
    installed: Path, python: Path, tmp_path: Path
) -> None:
    runs = [tmp_path / "first", tmp_path / "second"]
    for run_dir in runs:
        flags = ["--data=digits", "--steps=20", "--seed=1", f"--run_dir={run_dir}"]
        succeed([python, "-m", "my_training_project.train", *flags], installed)
    first, second = map(metrics_of, runs)
    assert any("loss" in record for record in first)
    assert max(record["step"] for record in first) == 20
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("marker", ["slow", "real_time"])
def test_the_projects_own_tests_that_take_minutes_pass(
    bake: Bake, python: Path, marker: str
) -> None:
    project = bake()
    command: list[str | Path] = [python, "-m", "pytest", "-p", "no:cacheprovider", "-m", marker]
    printed = succeed(command, project, PYTHONPATH=os.fspath(project / "src"), limit_s=7200)
    assert " passed" in printed and " failed" not in printed


@pytest.mark.slow
def test_make_demo_trains_and_gives_a_verdict(template: Path) -> None:
    succeed(["make", "demo"], template)
    runs = template / "build" / "demo" / "my-training-project" / "runs"
    verdicts = [json.loads(path.read_text())["verdict"] for path in runs.rglob("benchmark.json")]
    assert [bool(verdict["cause"] and verdict["explanation"]) for verdict in verdicts] == [True]
    assert max(json.loads(path.read_text())["best"] for path in runs.rglob("result.json")) >= 0.97
