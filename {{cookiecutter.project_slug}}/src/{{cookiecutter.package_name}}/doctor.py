"""Does TensorFlow see the GPUs of this machine and, if not, why not and what to do.

`python -m <package>.doctor` exits with 0 when what was asked for is usable, with 1 when it is not.
"""

import dataclasses
import json
import os
import sys

from .command_line import parse
from .errors import run_command
from .gpu_causes import Finding, diagnose
from .gpu_facts import Facts, gather_facts, gib, gpu_hardware_present
from .settings import DoctorSettings

__all__ = ["gpu_hardware_present", "main", "why_no_gpus"]

QUICK_S = 5.0  # an error message may take this long to find its reason

COLOURS = {"ok": 32, "warning": 33, "error": 31}


def main(argv: list[str] | None = None) -> int:
    """Prints facts and findings; returns the exit code.

    Args:
      argv: the arguments without the program's name; None takes the process's.
    """
    settings = parse(DoctorSettings, argv)
    return run_command("doctor", lambda: _examine(settings))


def why_no_gpus() -> str:
    """The reason that TensorFlow lists no GPU, and the remedy, in one line for an error message.

    For a process in which TensorFlow runs already. Takes about 5 seconds, 10 at most.
    """
    import tensorflow as tf

    # A probe cut short must not be taken for a failed start: here TensorFlow has started.
    known = {"start": "", "cuda_build": tf.test.is_built_with_cuda()}
    facts = dataclasses.replace(gather_facts(QUICK_S), **known)
    finding = diagnose(facts, max(1, facts.gpus_present))[0]
    return f"{finding.reason}; {finding.remedy}" if finding.remedy else finding.reason


def exit_code(findings: list[Finding]) -> int:
    """0 when what was asked for is usable, else 1."""
    return int(any(finding.severity == "error" for finding in findings))


def _examine(settings: DoctorSettings) -> int:
    facts = gather_facts()
    findings = diagnose(facts, settings.gpus)
    if settings.json:
        report = {
            "usable": not exit_code(findings),
            "findings": [dataclasses.asdict(finding) for finding in findings],
            "facts": dataclasses.asdict(facts),
        }
        print(json.dumps(report, indent=2))
    else:
        print(_report(facts, findings))
    return exit_code(findings)


def _report(facts: Facts, findings: list[Finding]) -> str:
    """What was found, what is wrong and what to do about it, and last the verdict."""
    lines = [f"{label:<12}{text}" for label, text in _table(facts)]
    for finding in findings:
        if finding.severity != "ok":
            label = _coloured(f"{finding.severity:<12}", finding.severity)
            lines += ["", f"{label}{finding.reason}", f"{'what to do':<12}{finding.remedy}"]
    verdict = _coloured("not usable", "error") + ": mend the first error above, then ask again"
    for finding in findings:
        if finding.severity == "ok":
            verdict = f"{_coloured('usable', 'ok')}: {finding.reason}"
    return "\n".join([*lines, "", verdict])


def _table(facts: Facts) -> list[tuple[str, str]]:
    build = {None: "", False: ", CPU-only build", True: f", built for CUDA {facts.cuda_version}"}
    cudnn = f" and cuDNN {facts.cudnn_version}" if facts.cudnn_version else ""
    where = [f"{facts.system} {facts.machine}"]
    where += ["WSL"] if facts.wsl else []
    where += [f"{facts.container} container"] if facts.container else []
    memory = f"{gib(facts.memory_limit)} of memory"
    if facts.memory_limit < facts.memory_total:
        memory += f" (of the machine's {gib(facts.memory_total)})"
    rows = [
        (
            "TensorFlow",
            f"{facts.tensorflow or 'none'}, Keras {facts.keras or 'none'}, Python {facts.python}"
            f"{build[facts.cuda_build]}{cudnn}",
        ),
        ("machine", ", ".join(where)),
        ("may use", f"{facts.usable_cpus} CPUs, {memory}"),
        ("disk", ", ".join(f"{gib(free)} free in {at}" for at, free in facts.disk_free.items())),
        ("driver", facts.driver_version or "no NVIDIA driver"),
        ("GPUs", f"{facts.gpus_present} in this machine, {len(facts.gpus)} listed by TensorFlow"),
    ]
    for gpu in facts.gpus:
        capability = ".".join(map(str, gpu.compute_capability or ()))
        rows.append(("", f"{gpu.name}, compute capability {capability or 'unknown'}"))
    for card in facts.cards:
        if card.memory_total and card.memory_used is not None:
            used = f"{gib(card.memory_used)} of {gib(card.memory_total)} in use"
            rows.append(("", f"nvidia-smi {card.index}: {card.name}, {used}"))
    return rows


def _coloured(text: str, severity: str) -> str:
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{COLOURS[severity]}m{text}\033[0m"


if __name__ == "__main__":
    raise SystemExit(main())
