"""The playbook, docs/gpu-utilization.md, names commands, flags and causes that are there."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from {{cookiecutter.package_name}} import compare, settings
from {{cookiecutter.package_name}}.command_line import parse
from {{cookiecutter.package_name}}.report.wording import CAUSES

PACKAGE = settings.__package__
PROJECT = Path(__file__).parents[1]
PLAYBOOK = (PROJECT / "docs" / "gpu-utilization.md").read_text(encoding="utf-8")
COMMANDS = {
    "train": settings.Settings,
    "doctor": settings.DoctorSettings,
    "prepare": settings.PrepareSettings,
    "stage": settings.StageSettings,
    "serve": settings.ServeSettings,
    "compare": settings.CompareSettings,
}
# A make target, and the flags of the command that it starts.
TARGETS = {"train": ["train"], "benchmark": ["train", "--benchmark"], "doctor": ["doctor"]}
OUTSIDE_CODE = re.sub(r"^```.*?^```$", "", PLAYBOOK, flags=re.MULTILINE | re.DOTALL)
IN_PROSE = " ".join(re.findall(r"`([^`\n]+)`", OUTSIDE_CODE))
FLAGS_IN_PROSE = sorted(set(re.findall(r"--(\w+)", IN_PROSE)))


def commands_shown(text):
    """The package's commands in a text, from lines and from `inline code`: each its words."""
    found = []
    for line in re.findall(rf"python -m {PACKAGE}\.([^`\n]*)", text.replace("\\\n", " ")):
        found.append(shlex.split(line, comments=True))
    for target, rest in re.findall(r"\bmake (\w+)([^`\n]*)", text):
        if target in TARGETS:
            given = re.search(r'ARGS="(.*)"', rest)
            found.append([*TARGETS[target], *shlex.split(given[1] if given else "")])
    return found


def check(words):
    """Fails unless a command is there and takes these flags; those in quotes too."""
    command, *arguments = words
    assert command in COMMANDS
    if command != "compare":
        return parse(COMMANDS[command], arguments)
    own, sides = compare.split(arguments)
    parsed = parse(settings.CompareSettings, [*own, "--", *sides])
    for flags in (parsed.common, *(side for side in sides if side.startswith("--"))):
        parse(settings.Settings, shlex.split(flags))
    return parsed


@pytest.mark.parametrize("words", commands_shown(PLAYBOOK), ids=" ".join)
def test_a_command_of_the_playbook_is_there_and_takes_its_flags(words):
    check(words)


def test_every_command_is_shown():
    assert {words[0] for words in commands_shown(PLAYBOOK)} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_flags_checked_are_those_of_the_command(command):
    assert COMMANDS[command].__name__ in vars(importlib.import_module(f"{PACKAGE}.{command}"))


@pytest.mark.parametrize("name", FLAGS_IN_PROSE)
def test_a_flag_named_in_the_text_is_one_of_a_command(name):
    assert any(name in kind.__dataclass_fields__ for kind in COMMANDS.values())


@pytest.mark.parametrize(
    "line",
    [
        "train --bach_size=8",
        "stage data --to=disk",
        'compare "--batch_size=8" "--bach_size=16"',
        'compare "" "" --common="--cache=tape"',
    ],
)
def test_a_wrong_flag_would_be_noticed(line, capsys):
    (words,) = commands_shown(f"python -m {PACKAGE}.{line}")
    with pytest.raises(SystemExit):
        check(words)


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_its_place(cause):
    assert f"`{cause}`" in PLAYBOOK
