"""The CPUs and memory that a process may use, as cgroups of both versions grant them."""

import os

import pytest

from {{cookiecutter.package_name}} import runtime

HERE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, HERE),
        ({"cpu.max": "max 100000"}, HERE),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "6400000 100000"}, HERE),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, HERE),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_cpus_are_those_granted(tmp_path, monkeypatch, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(runtime, "CGROUP", tmp_path)
    assert runtime.usable_cpus() == expected


def test_memory_is_what_the_cgroup_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "CGROUP", tmp_path)
    machine = runtime.memory_limit()
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    assert runtime.memory_limit() == 2**30 < machine
    assert runtime.memory_available() <= 2**29
    (tmp_path / "memory.max").write_text("max\n")
    assert runtime.memory_limit() == machine
