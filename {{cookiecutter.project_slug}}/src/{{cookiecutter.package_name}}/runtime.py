"""What must be settled before TensorFlow starts: the CPUs it may use and its environment."""

import contextlib
import ctypes
import os
import sys
import tempfile
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")

# Set before the first import of TensorFlow, which reads each of them once. A value that the user
# has exported wins.
ENVIRONMENT = {
    # Take GPU memory as needed: by default TensorFlow takes all of it, and a second process on the
    # card (a debugger, an evaluation, tests) then dies.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    # Kernel launches get threads of their own, so that a busy input pipeline cannot delay them.
    "TF_GPU_THREAD_MODE": "gpu_private",
    # Warnings and errors only: the information lines hide the one line that matters.
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


# Parameters of GNU's mallopt, by their numbers in malloc.h.
MALLOC = {
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD: so much may be free at the end before any is returned
    -2: 64 << 20,  # M_TOP_PAD: taken from the kernel at a time
    -3: 2**30,  # M_MMAP_THRESHOLD: what is smaller is not mapped apart, and unmapped when freed
    -8: 1,  # M_ARENA_MAX
}

# What every start of TensorFlow prints at every log level, and nobody can act on.
NOISE = ("All log messages before absl::InitializeLog()", "oneDNN custom operations are on")


def start_tensorflow() -> None:
    """Settles TensorFlow's environment, then imports it; its start-up noise is left out.

    Whatever else TensorFlow writes to standard error meanwhile is passed on.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # TensorFlow starts a thread for each CPU of the affinity mask and knows no cgroup quota.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(usable_cpus()))
    _keep_memory()
    _load_cusolver()
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)  # TensorFlow's C++ writes to the descriptor, not to sys.stderr
        try:
            import keras  # noqa: F401  starts TensorFlow too
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            written.seek(0)
            for line in written.read().decode(errors="replace").splitlines():
                if not any(noise in line for noise in NOISE):
                    print(line, file=sys.stderr)


def end_process(code: int) -> None:
    """Ends the process with an exit code; after a success at once, with nothing taken down.

    A tf.data iterator that is taken down decodes the batches that it has under way to their end:
    with the dozen of a benchmark's probes a process stood for 20 s after its last line.
    """
    if code:
        raise SystemExit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _keep_memory() -> None:
    """Has the C library keep freed memory and give it out again, instead of returning it.

    A batch of images is larger than what malloc hands back to the kernel at once. A new one is then
    new pages, each of which the kernel clears and maps at its first touch: that cost as much as
    copying the pixels twice. One arena, since a thread's own is too small for a batch, and memory
    freed in one is not given out by another: with many, the process grew by half.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "LD_PRELOAD" in os.environ:
        return  # the user has chosen how memory is allocated
    with contextlib.suppress(OSError, AttributeError):  # a C library that is not GNU's
        libc = ctypes.CDLL("libc.so.6")
        for parameter, value in MALLOC.items():
            libc.mallopt(parameter, value)


def _load_cusolver() -> None:
    """Loads cuSOLVER where pip has put it.

    TensorFlow 2.21.0's wheels search all of NVIDIA's packages for their libraries but this one, and
    with one library missing register no GPU at all. A library that is loaded is not searched for.
    """
    for entry in filter(None, sys.path):
        for library in Path(entry).glob("nvidia/cusolver/lib/libcusolver.so.*"):
            with contextlib.suppress(OSError):  # the doctor says what cannot be loaded, and why
                ctypes.CDLL(str(library))


def usable_cpus() -> int:
    """The number of CPUs this process may keep busy: its affinity, cut by the cgroup's quota.

    `os.cpu_count()` is the machine's. In a container limited to 4 of 64 cores it makes 64 threads
    that share 4 cores, and the kernel stops all of them for the rest of each 100 ms period.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cgroup_quota()
    return max(1, min(affinity or 1, round(quota)) if quota else affinity or 1)


def memory_limit() -> int:
    """Bytes of memory this process may use: the machine's, cut by the cgroup's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [CGROUP / "memory.max", CGROUP / "memory" / "memory.limit_in_bytes"]
    return min([total, *(int(text) for text in map(_read, limits) if text.isdigit())])


def memory_available() -> int:
    """Bytes of memory that can still be taken without swapping, within `memory_limit()`."""
    in_use = [CGROUP / "memory.current", CGROUP / "memory" / "memory.usage_in_bytes"]
    free = [memory_limit() - int(text) for text in map(_read, in_use) if text.isdigit()]
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) * 1024)
    return min(free, default=memory_limit())


def _cgroup_quota() -> float | None:
    """CPUs granted by cgroup v2 (`cpu.max`) or v1 (`cpu.cfs_*`); None when there is no limit."""
    quota, _, period = _read(CGROUP / "cpu.max").partition(" ")
    if not quota:
        quota = _read(CGROUP / "cpu" / "cpu.cfs_quota_us")
        period = _read(CGROUP / "cpu" / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.strip().isdigit():  # "max" and -1 mean no limit
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
