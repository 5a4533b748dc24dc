"""Contenders side by side: each in its own process, warm, one at a time, in alternating rounds."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker import processes

HERE = Path(__file__).resolve().parent
WARM_SECONDS = 4.0  # tf.data's autotuning needs about two; by then each kernel has run, too
# A pipeline that idled has some batches ready. They are used up before a window's clock starts.
DRAIN_SECONDS = 0.7
START_LIMIT = 900.0  # seconds: ffcv converts the data set first
WINDOW_LIMIT = 300.0
SAMPLE_SECONDS = 0.5  # between readings of memory; one costs about 5 ms of one CPU


@dataclasses.dataclass(frozen=True)
class Contender:
    """Something that makes batches of images as fast as it can.

    Attributes:
      name: in the table.
      kind: peer, limit or ours.
      module: its Python module.
      options: what its function is called with.
      function: gives (images, count) without end.
      side: of the images it must give, in pixels; 0 where it gives none.
      ahead: whether it works ahead of its consumer, so that it must be drained before the clock.
      cores: the CPUs it may use, by number; empty for all.
    """

    name: str
    kind: str
    module: str
    options: dict[str, Any]
    function: str = "batches"
    side: int = 0
    ahead: bool = True
    cores: tuple[int, ...] = ()


@dataclasses.dataclass
class Result:
    """A contender's windows, one a round, or the reason why it has none."""

    contender: Contender
    windows: list[dict[str, float]] = dataclasses.field(default_factory=list)
    memory: list[int] = dataclasses.field(default_factory=list)  # bytes, highest of each round
    gives: str = ""
    error: str = ""

    @property
    def per_second(self) -> list[float]:
        return [w["images"] / w["seconds"] for w in self.windows]

    @property
    def per_cpu_second(self) -> list[float]:
        return [w["images"] / max(w["cpu_seconds"], 1e-9) for w in self.windows]


class Failed(Exception):
    """A contender that gives no figures; the message says why."""


class Process:
    """A contender's worker."""

    def __init__(
        self, contender: Contender, log: Path, path: Sequence[str], warm: float, drain: float
    ) -> None:
        job = dataclasses.asdict(contender)
        job |= {"warm": warm, "drain": drain} if contender.ahead else {"warm": 0, "drain": 0}
        folders = [*path, str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        added = {"PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"}
        cores = contender.cores
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "worker.py"), json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | added,
                start_new_session=True,  # the session is what CPU time and memory are summed over
                preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
            )

    def started(self) -> dict[str, Any]:
        """Waits until it is warm; what it says of itself."""
        return self._answer(START_LIMIT)

    def window(self, seconds: float) -> tuple[dict[str, float], int]:
        """Measures one window: its figures, and the highest memory in bytes."""
        over, highest = threading.Event(), [0]

        def watch() -> None:
            while not over.wait(SAMPLE_SECONDS):
                highest[0] = max(highest[0], memory_of(self._process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            assert self._process.stdin
            print(json.dumps({"seconds": seconds}), file=self._process.stdin, flush=True)
            figures = self._answer(WINDOW_LIMIT)
        except BrokenPipeError:
            raise Failed(self._death()) from None
        finally:
            over.set()
            watcher.join()
        return figures, max(highest[0], memory_of(self._process.pid))

    def end(self) -> None:
        """Ends it and whatever it started."""
        for process in processes(self._process.pid):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()

    def _answer(self, limit: float) -> dict[str, Any]:
        late = threading.Timer(limit, self.end)
        late.start()
        assert self._process.stdout
        line = self._process.stdout.readline()
        timely = late.is_alive()
        late.cancel()
        if not line:
            raise Failed(self._death() if timely else f"no answer in {limit:.0f} s")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _death(self) -> str:
        self._process.wait()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"ended with {self._process.returncode}: {' '.join(lines[-1:])[:200]}"


def call(module: str, function: str, log: Path, path: Sequence[str], **options: Any) -> Any:
    """Calls a function in a process of its own; its value.

    Raises:
      Failed: with the last thing that the process wrote.
    """
    process = Process(Contender("", "", module, options, function), log, path, 0, 0)
    try:
        return process.started()["value"]
    finally:
        process.end()


def measure(
    contenders: Sequence[Contender],
    rounds: int,
    seconds: float,
    logs: Path,
    path: Sequence[str] = (),
    warm: float = WARM_SECONDS,
    drain: float = DRAIN_SECONDS,
) -> list[Result]:
    """Measures contenders that all live at once, one at a time: forwards, backwards, forwards...

    One that fails is reported and left out from there on; the others go on.

    Args:
      contenders: what to measure.
      rounds: windows of each.
      seconds: of a window, at least.
      logs: directory for what they write on standard error.
      path: directories to import their modules from.
      warm: seconds that each runs before its first window, the imports aside.
      drain: seconds that each runs before each window's clock starts.
    """
    logs.mkdir(parents=True, exist_ok=True)
    results = [Result(contender) for contender in contenders]
    alive: dict[int, Process] = {}
    clock = Clock(len(contenders), rounds, seconds + drain)
    try:
        for number, result in enumerate(results):
            name = result.contender.name
            alive[number] = Process(result.contender, logs / f"{number:02}.log", path, warm, drain)
            try:
                result.gives = alive[number].started()["gives"]
            except Failed as failed:
                result.error = str(failed)
                alive.pop(number).end()
            clock.started(number + 1, f"{name}: {result.error or 'is warm'}")
        for turn in range(rounds):
            order = list(alive) if turn % 2 == 0 else list(reversed(alive))
            for place, number in enumerate(order):
                result, name = results[number], results[number].contender.name
                try:
                    figures, memory = alive[number].window(seconds)
                    result.windows.append(figures)
                    result.memory.append(memory)
                    said = f"{figures['images'] / figures['seconds']:,.0f} images/s"
                except Failed as failed:
                    said = result.error = str(failed)
                    alive.pop(number).end()
                left = (rounds - turn - 1) * len(order) + len(order) - place - 1
                clock.measured(left, f"round {turn + 1}/{rounds} {name}: {said}")
    finally:
        for process in alive.values():
            process.end()
    return results


class Clock:
    """Says what was done and how long the rest will take, from what it took so far."""

    def __init__(self, contenders: int, rounds: int, window: float) -> None:
        self._contenders, self._rounds, self._window = contenders, rounds, window
        self._began = time.monotonic()
        self._windows = 0

    def started(self, number: int, what: str) -> None:
        taken = (time.monotonic() - self._began) / number
        left = taken * (self._contenders - number) + self._window * self._contenders * self._rounds
        self._say(left, f"{number}/{self._contenders} {what}")
        if number == self._contenders:
            self._began = time.monotonic()

    def measured(self, left: int, what: str) -> None:
        self._windows += 1
        self._say(left * (time.monotonic() - self._began) / self._windows, what)

    def _say(self, left: float, what: str) -> None:
        print(f"[{left // 60:.0f}:{left % 60:02.0f} left] {what}", file=sys.stderr, flush=True)


def memory_of(session: int) -> int:
    """Bytes of a session's memory that is not a file's: each page once, however many share it.

    Mapped files (libraries, raw shards) are left out: the kernel drops those pages when it must.
    """
    total = 0
    for process in processes(session):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        sizes = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
        total += 1024 * (int(sizes["Pss_Anon"]) + int(sizes["Pss_Shmem"]))
    return total
