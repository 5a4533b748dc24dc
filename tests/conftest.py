"""What the tests share: a clean copy of the template, and a way to bake it that leaks nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cookiecutter.main import cookiecutter

ROOT = Path(__file__).resolve().parent.parent
Bake = Callable[..., Path]
# Set by an outer make, virtual environment or git hook, and not for a test's commands to see.
OUTER = ("GIT_DIR", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH", "VIRTUAL_ENV")


def environment(**added: str) -> dict[str, str]:
    """The environment of a newcomer's shell, for the commands that tests run."""
    return {key: value for key, value in os.environ.items() if key not in OUTER} | added


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template as a clean clone has it: cookiecutter would also bake what caches lie about."""
    copy = tmp_path_factory.mktemp("template") / "tf-gpu-template"
    left_out = shutil.ignore_patterns(
        ".git", ".venv", "build", "__pycache__", "*_cache", "*.egg-info"
    )
    shutil.copytree(ROOT, copy, ignore=left_out)
    return copy


@pytest.fixture(scope="session")
def cookiecutter_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that takes the place of the user's, whose answers would leak into bakes."""
    home = tmp_path_factory.mktemp("cookiecutter")
    config = home / "config.yml"
    config.write_text(f'replay_dir: "{home}/replay"\ncookiecutters_dir: "{home}/cookiecutters"\n')
    return config


@pytest.fixture(scope="session")
def bake(
    template: Path, cookiecutter_config: Path, tmp_path_factory: pytest.TempPathFactory
) -> Bake:
    """bake(output_dir=None, hooks=True, replay=None, **answers) -> the new project's folder."""

    def bake_once(
        output_dir: Path | None = None,
        hooks: bool = True,
        replay: Path | None = None,
        **answers: str,
    ) -> Path:
        project = cookiecutter(
            str(template),
            no_input=replay is None,
            extra_context=answers or None,
            replay=str(replay) if replay else False,
            output_dir=str(output_dir or tmp_path_factory.mktemp("bake")),
            config_file=str(cookiecutter_config),
            accept_hooks=hooks,
        )
        return Path(project)

    return bake_once


@pytest.fixture(scope="session")
def default_project(bake: Bake) -> Path:
    """One bake with every default, for tests that only read it."""
    return bake()
