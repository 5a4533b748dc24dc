"""`runs/ledger.jsonl`: what was tried on this machine and what came of it, a line each."""

import datetime
import fcntl
import json
import os
from pathlib import Path
from typing import Any

NAME = "ledger.jsonl"  # beside the directories of the runs


def append(path: Path, row: dict[str, Any]) -> None:
    """Adds a line, whole and at once, however many processes write at the same time.

    Args:
      path: of the ledger; its directory is made if need be.
      row: what was tried and what came of it; `when` is added.
    """
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    line = json.dumps({"when": now, **row}).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # the kernel frees it when the process dies
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # half a line that a kill left stays one line
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a ledger, oldest first; none if there is no ledger."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a kill or a full disk cut it off
        if isinstance(row, dict):
            rows.append(row)
    return rows


def benchmark_row(document: dict[str, Any], flags: list[str]) -> dict[str, Any]:
    """The line of a benchmark.

    Args:
      document: as benchmark.json holds it.
      flags: those that differ from the defaults.
    """
    validation, environment = document.get("validation") or {}, document["environment"]
    return {
        "what": "benchmark",
        "flags": flags,
        "examples_per_second": document["throughput"]["examples_per_second"],
        "metric": {"name": validation.get("metric"), "mean": validation.get("value")},
        "verdict": document["verdict"]["cause"],
        "tensorflow": environment["tensorflow"],
        "devices": environment["devices"],
    }


def comparison_row(comparison: dict[str, Any]) -> dict[str, Any]:
    """The line of a comparison, as comparison.json holds it."""
    a, b = comparison["a"], comparison["b"]
    return {
        "what": "comparison",
        "flags": [a["name"], b["name"]],
        "examples_per_second": [a["examples_per_second"], b["examples_per_second"]],
        "metric": [a["metric"], b["metric"]],
        "speedup": comparison["speedup"],
        "metric_difference": comparison["metric_difference"],
        "verdict": comparison["verdict"]["sentence"],
        **comparison.get("environment", {}),
    }
