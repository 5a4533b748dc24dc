"""`--profile`: a trace of a few steps, for TensorBoard's profile tab (XProf)."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tqdm import tqdm

from .errors import UserError
from .loop import Agree, CallPace


def parse_window(text: str) -> range:
    """The steps that `--profile=START:STOP` asks for, by how many were made before; "" for none.

    Raises:
      UserError: it is not START:STOP with START below STOP.
    """
    if not text:
        return range(0)
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise UserError(
            f"--profile={text}: give START:STOP, the step after which to begin and the last one to "
            "trace, such as 100:110"
        )
    return range(int(found[1]), int(found[2]))


def check_window(window: range, steps: int) -> None:
    """Raises `UserError` if the window ends beyond the last of the run's `steps`."""
    if window and window.stop > steps:
        raise UserError(
            f"--profile={window.start}:{window.stop} ends beyond the run's last step: give a STOP "
            f"of at most {steps}"
        )


class Profile:
    """Traces the steps of a window, each marked as a step: without marks, XProf finds none.

    While it traces, a call of the loop makes one step. The arithmetic stays the same, so the
    weights do too. Entered around the whole training: where that ends inside the window, by a
    signal or an error, the trace is still written.
    """

    def __init__(self, window: range, directory: Path, step: int, agree: Agree = int) -> None:
        """Sets the window, and says so if it lies behind a resumed run.

        Args:
          window: the steps to trace, by how many were made before.
          directory: TensorBoard's; the trace goes below its plugins/profile.
          step: how many steps the run has made.
          agree: see `CallPace`.
        """
        self._window, self._directory = window, directory
        if window and window.stop <= step:
            print(f"profile: step {window.stop} is behind: nothing is traced", file=sys.stderr)
        self._single = CallPace(1, agree)
        self._traced: list[int] = []  # steps, in the trace that is being made

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *error: object) -> None:
        self._finish()

    def pace(self, step: int, usual: CallPace) -> CallPace:
        """What says how many steps the next call makes, after `step` steps: `usual` or one."""
        return self._single if step in self._window else usual

    def cut(self, step: int, steps: int) -> int:
        """`steps` of the next call, after `step` steps, or so many that it ends at the window."""
        return min(steps, self._window.start - step) if step < self._window.start else steps

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Around a call that begins after `step` steps; does nothing outside the window."""
        if step not in self._window:
            yield
            return
        if not self._traced:
            self._start()
        self._traced.append(step + 1)
        # XProf takes for steps the marks whose name begins with "train"; _r=1 makes it a root.
        with tf.profiler.experimental.Trace("train", step_num=step + 1, _r=1):
            yield
        if step + 1 == self._window.stop:
            self._finish()

    def _start(self) -> None:
        try:
            tf.profiler.experimental.start(str(self._directory))
        except tf.errors.AlreadyExistsError:
            raise UserError(
                "--profile: something else profiles this process already, such as a callback's "
                "profile_batch: leave one of them out"
            ) from None

    def _finish(self) -> None:
        """Writes the trace, if one is being made, and says where it is."""
        if not self._traced:
            return
        tf.profiler.experimental.stop()
        first, last, self._traced = self._traced[0], self._traced[-1], []
        newest = max((self._directory / "plugins" / "profile").iterdir())  # named by the time
        with contextlib.suppress(ImportError):  # of a part of TensorFlow that is not public
            for trace in newest.glob("*.xplane.pb"):
                _take_for_one_iteration(trace)
        tqdm.write(
            f"profile: steps {first} to {last} are traced in {newest}; to look at them: "
            f"pip install xprof; tensorboard --logdir={self._directory}, and its tab Profile",
            file=sys.stderr,
        )


def _take_for_one_iteration(trace: Path) -> None:
    """Rewrites a trace so that no loop within a step is taken for the steps.

    XProf takes each iteration of any TensorFlow loop for a step, and then finds no marks
    (ProcessTensorFlowLoop in its group_events.cc). Here a call of one step is a loop of one
    iteration, and evaluation and accumulation are loops too. With all their iterations numbered 0,
    as TensorFlow numbers what is in no loop, XProf goes by the marks.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(trace.read_bytes())
    for plane in space.planes:
        iterations = _numbers(plane.stat_metadata, "iter_num")
        executions = _numbers(plane.event_metadata, "ExecutorState::Process")
        for event in (event for line in plane.lines for event in line.events):
            if event.metadata_id in executions:
                for stat in event.stats:
                    if stat.metadata_id in iterations:
                        stat.int64_value = 0
    temporary = trace.with_suffix(".new")
    temporary.write_bytes(space.SerializeToString())
    os.replace(temporary, trace)


def _numbers(kinds: Mapping[int, Any], name: str) -> set[int]:
    """The numbers that a trace has given to a name."""
    return {number for number, kind in kinds.items() if kind.name == name}
