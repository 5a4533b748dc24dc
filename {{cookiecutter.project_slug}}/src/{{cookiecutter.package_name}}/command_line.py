"""Dataclasses as command lines: a field is a flag, with its default, its meaning and its check."""

import dataclasses
import sys
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from absl import flags

from .errors import USAGE, UserError

T = TypeVar("T")


def flag(
    default: Any,
    meaning: str,
    *,
    choices: Sequence[str] | None = None,
    low: float | None = None,
    high: float | None = None,
    free: bool = False,
) -> Any:
    """A settings field that is also a flag.

    Args:
      default: its value when not given; its type is the flag's type.
      meaning: the help text.
      choices: the values allowed, for a string.
      low, high: the least and greatest value allowed, for a number.
      free: True if a run may be resumed with another value, because the value does not change
        which weights come out.
    """
    metadata = {"meaning": meaning, "choices": choices, "low": low, "high": high, "free": free}
    return dataclasses.field(default=default, metadata=metadata)


def argument(name: str, meaning: str) -> Any:
    """A settings field that is given by position, not by name.

    Args:
      name: what stands for it in the help, such as "SRC".
      meaning: the help text.
    """
    return dataclasses.field(default="", metadata={"argument": name, "meaning": meaning})


def parse(kind: type[T], argv: Sequence[str] | None = None) -> T:
    """Reads the settings of a command from its flags.

    Prints the flags and exits with 0 on --help; prints one line and exits with 2 on a bad flag.

    Args:
      kind: a dataclass whose fields were made by `flag`.
      argv: the arguments without the program's name; None takes the process's.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"--help", "-h", "--helpfull"} & set(argv):
        print(_help_text(kind))
        raise SystemExit(0)
    values = flags.FlagValues()
    values.set_gnu_getopt(True)  # flags may follow arguments
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    arguments = [field for field in fields if "argument" in field.metadata]
    named = [field for field in fields if field not in arguments]
    for field in named:
        _define(field, values)
    try:
        rest = values(["", *argv])[1:]
        if len(rest) > len(arguments):
            extra = rest[len(arguments)]
            raise flags.Error(f"unexpected argument {extra!r}: flags are written --name=value")
    except flags.Error as error:
        print(f"{_command(kind)}: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(USAGE) from None
    given = {field.name: value for field, value in zip(arguments, rest, strict=False)}
    try:
        return kind(**given, **{field.name: values[field.name].value for field in named})
    except UserError as error:
        print(f"{_command(kind)}: {error}", file=sys.stderr)
        raise SystemExit(USAGE) from None


def to_json(settings: Any) -> dict[str, Any]:
    """The settings as a JSON object, flag by flag."""
    return dataclasses.asdict(settings)


def to_flags(settings: Any, leave_out: Collection[str] = ()) -> list[str]:
    """The settings that differ from the defaults, as flags.

    Args:
      settings: of a command.
      leave_out: names of flags that are not wanted.
    """
    given = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name in leave_out or value == field.default:
            continue
        given.append(f"--{field.name}={str(value).lower() if isinstance(value, bool) else value}")
    return given


def refuse_changes(settings: Any, saved: dict[str, Any], where: str) -> None:
    """Raises `UserError` if a run would be resumed with settings that give other weights.

    Args:
      settings: what is asked for now.
      saved: what the run started with, as `to_json` wrote it.
      where: the run's directory, for the message.
    """
    now = to_json(settings)
    free = {f.name for f in dataclasses.fields(settings) if f.metadata["free"]} | {"run_dir"}
    changed = [
        f"--{name} was {saved[name]!r}, is {now[name]!r}"
        for name in now
        if name not in free and name in saved and saved[name] != now[name]
    ]
    if changed:
        raise UserError(
            f"--run_dir={where} holds a run with other settings ({'; '.join(changed)}): "
            "repeat the old ones to resume it, or name a new --run_dir"
        )


def _define(field: dataclasses.Field[Any], values: flags.FlagValues) -> None:
    rules, name = field.metadata, field.name
    default: Any = field.default
    meaning = rules["meaning"]
    bounds = {"lower_bound": rules["low"], "upper_bound": rules["high"], "flag_values": values}
    if rules["choices"]:
        flags.DEFINE_enum(name, default, rules["choices"], meaning, flag_values=values)
    elif isinstance(default, bool):
        flags.DEFINE_boolean(name, default, meaning, flag_values=values)
    elif isinstance(default, int):
        flags.DEFINE_integer(name, default, meaning, **bounds)
    elif isinstance(default, float):
        flags.DEFINE_float(name, default, meaning, **bounds)
    else:
        flags.DEFINE_string(name, default, meaning, flag_values=values)


def _command(kind: type) -> str:
    return kind.__name__.removesuffix("Settings").lower() or "train"


def _help_text(kind: type) -> str:
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    arguments = [field for field in fields if "argument" in field.metadata]
    usage = [f"python -m {__package__}.{_command(kind)}"]
    usage += [field.metadata["argument"] for field in arguments] + ["[--flag=value ...]"]
    lines = [" ".join(usage), ""]
    lines += [line.strip() for line in (kind.__doc__ or "").strip().splitlines()] + [""]
    for field in arguments:
        lines += [f"  {field.metadata['argument']}", f"      {field.metadata['meaning']}"]
    lines += ["", "Flags:"] if arguments else ["Flags:"]
    for field in fields:
        if field in arguments:
            continue
        choices = field.metadata["choices"]
        default = f" [{field.default}]" if field.default != "" else ""
        lines.append(f"  --{field.name}{default}")
        lines.append(f"      {field.metadata['meaning']}")
        if choices:
            lines.append(f"      one of: {', '.join(choices)}")
    return "\n".join(lines)
