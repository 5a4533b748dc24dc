"""The CPUs and memory that a process may use, as cgroups of both versions grant them."""

import os
import platform
import subprocess
import sys

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


FAULTS = """
import ctypes, resource
from {{cookiecutter.package_name}} import runtime
runtime.start_tensorflow()
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for number in range(20):
    if number == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    batch = libc.malloc(48 << 20)
    ctypes.memset(batch, 1, 48 << 20)
    libc.free(batch)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is GNU's")
def test_a_freed_batch_is_given_out_again_instead_of_new_pages():
    def faults(**environment):
        command = [sys.executable, "-c", FAULTS]
        ran = subprocess.run(command, env={**os.environ, **environment}, capture_output=True)
        return float(ran.stdout)

    pages = (48 << 20) / os.sysconf("SC_PAGE_SIZE")
    assert faults() < 0.1 * pages
    assert faults(MALLOC_PERTURB_="0") > 0.5 * pages  # who sets malloc up themselves is left alone


ENDING = """
from {{cookiecutter.package_name}} import runtime
class Iterator:
    def __del__(self): print("taken down")
kept = Iterator()
print("last line", end="")
runtime.end_process(CODE)
"""


@pytest.mark.parametrize(("code", "last"), [(0, "last line"), (2, "last linetaken down\n")])
def test_a_success_ends_with_its_last_line_and_a_failure_takes_all_down(code, last):
    program = ENDING.replace("CODE", str(code))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, last)
