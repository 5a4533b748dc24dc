"""Flags: what they accept, what they refuse, and how fast they answer."""

import subprocess
import sys

import pytest

from {{cookiecutter.package_name}} import command_line, settings
from {{cookiecutter.package_name}}.command_line import parse
from {{cookiecutter.package_name}}.errors import UserError
from {{cookiecutter.package_name}}.settings import Settings

PACKAGE = settings.__package__


def test_help_exits_0_names_every_flag_and_never_imports_tensorflow():
    code = (
        f"import sys\nfrom {PACKAGE} import train\n"
        "try:\n    train.main(['--help'])\n"
        "except SystemExit as end:\n"
        "    sys.exit(end.code or 3 * ('tensorflow' in sys.modules or 'keras' in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in Settings.__dataclass_fields__:
        assert f"--{name}" in done.stdout


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--bach_size=8", "Did you mean: batch_size"),
        ("--batch_size=-1", "non-negative"),
        ("--batch_size=many", "many"),
        ("--precision=float8", "auto|float32|mixed_float16|mixed_bfloat16"),
        ("--cache=tape", "none|memory|disk"),
        ("--ema=1", "ema"),
        ("digits", "--name=value"),
    ],
)
def test_a_bad_flag_is_one_line_and_exit_code_2(argument, expected, capsys):
    with pytest.raises(SystemExit) as end:
        parse(Settings, [argument])
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert expected in captured.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--benchmark", "--profile=1:2"], "--benchmark and --profile do not go together"),
        (["--benchmark", "--find_batch_size"], "do not go together"),
        (["--confirm"], "add --benchmark"),
    ],
)
def test_flags_that_do_not_go_together_are_one_line_and_exit_code_2(arguments, expected, capsys):
    with pytest.raises(SystemExit) as end:
        parse(Settings, arguments)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and expected in said


def test_a_run_refuses_settings_that_would_give_other_weights():
    saved = command_line.to_json(parse(Settings, ["--seed=1"]))
    command_line.refuse_changes(parse(Settings, ["--seed=1", "--steps_per_call=7"]), saved, "here")
    with pytest.raises(UserError, match="--seed was 1, is 2"):
        command_line.refuse_changes(parse(Settings, ["--seed=2"]), saved, "here")
