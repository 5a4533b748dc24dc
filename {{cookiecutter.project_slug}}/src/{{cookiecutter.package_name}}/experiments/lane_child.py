"""The process behind a `Lane`: trains on request, in the flags it was started with.

    python -m PACKAGE.experiments.lane_child DESCRIPTOR DIRECTORY [--flag=value ...]

Requests come on standard input and answers go to the pipe DESCRIPTOR, a JSON object a line.

| request | answer |
|---|---|
| {"do": "describe"} | facts, see `Training.facts` |
| {"do": "rate", "seconds": S} | facts and the rate over S seconds of steady training |
| {"do": "train", "seed": K, "steps": N} | facts and, as "value", the validation metric of a |
| | fresh model after N steps |

The first request builds a model, and so does every "train"; the others go on with it. An answer is
{"error": one line, "kind": "usage" | "failed" | "memory"} where the request could not be met.
"""

import contextlib
import dataclasses
import gc
import json
import os
import queue
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from ..command_line import parse
from ..errors import RunFailed, UserError
from ..runtime import start_tensorflow
from ..settings import Settings


class SteadyClock:
    """Examples and wall time of steady training.

    After each start or pause nothing counts until `skip` examples have been trained on: what the
    pipeline made ahead meanwhile would count as made in no time, and the first call compiles.
    """

    def __init__(self, skip: int) -> None:
        self._skip = skip
        self.restart()

    def restart(self) -> None:
        """Forgets what was counted."""
        self.examples, self.seconds = 0, 0.0
        self.pause()

    def pause(self) -> None:
        """Something else is done now: what comes after it is not steady at once."""
        self._left, self._since = self._skip, 0.0

    def count(self, examples: int) -> None:
        """A call has ended that trained on so many."""
        now = time.perf_counter()
        if self._left > 0:
            self._left -= examples
        else:
            self.examples += examples
            self.seconds += now - self._since
        self._since = now


class Training:
    """A fresh model in training, called as `training.py` calls it."""

    def __init__(self, settings: Settings, run_path: Path) -> None:
        from ..data.pipeline import examples_ahead
        from ..job import build
        from ..loop import CallPace
        from ..training import start_callbacks

        self.job = build(settings, run_path)
        filled = self.job.settings
        ahead = examples_ahead(filled.batch_size, filled.host_threads)
        self.clock = SteadyClock(ahead + filled.batch_size)
        self.step = 0
        self._pace = CallPace(filled.steps_per_call)
        self._callbacks = start_callbacks(self.job)
        self._iterator = iter(self.job.loop.distribute(self.job.training_batches()))

    def run(self, until: int, seconds: float = 0.0) -> None:
        """Trains up to a step, or beyond it until so much steady training is on the clock."""
        from ..training import call

        batch_size = self.job.settings.batch_size
        while self.step < until or self.clock.seconds < seconds:
            left = until - self.step
            steps = self._pace.take(left if left > 0 else self._pace.steps)
            losses = call(self.job, self._iterator, self._pace, self.step, steps, "none")
            self.step += steps
            self._callbacks.on_train_batch_end(self.step - 1, {"loss": float(losses[-1])})
            self.clock.count(steps * batch_size)

    def evaluate(self) -> dict[str, float]:
        """Loss and metrics of the validation split."""
        from ..training import evaluate

        values = evaluate(self.job) or {}
        self.clock.pause()
        return values

    def facts(self) -> dict[str, Any]:
        """What runs, and what it takes."""
        import tensorflow as tf

        from .. import task

        job, optimizer = self.job, self.job.optimizer
        inner = getattr(optimizer, "inner_optimizer", optimizer)  # within loss scaling
        return {
            "batch_size": job.settings.batch_size,
            "learning_rate": job.settings.learning_rate,
            "augment": job.settings.augment,
            "precision": job.precision,
            "xla": job.jit,
            "training_examples": job.splits.train.count,
            "validation_examples": job.splits.validation.count,
            "replicas": job.devices.replicas,
            "device": job.devices.kind,
            "devices": list(job.devices.names),
            "gradient_bytes": _bytes(job.model.trainable_variables),
            "optimizer": type(inner).__name__,
            "metric": f"val_{task.METRIC}",
            "higher_is_better": task.HIGHER_IS_BETTER,
            "tensorflow": tf.__version__,
            "memory_peak_bytes": _memory_peak(job.devices.kind),
        }

    def rate(self) -> dict[str, Any]:
        """The rate on the clock."""
        examples, seconds = self.clock.examples, self.clock.seconds
        rate = examples / seconds
        return {"examples_per_second": rate, "timed_examples": examples, "seconds": seconds}


class Child:
    """Answers requests, one after the other."""

    def __init__(self, settings: Settings, run_path: Path) -> None:
        self._settings, self._run_path = settings, run_path
        self._training: Training | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request; raises what training raises."""
        if request["do"] == "train":
            return self._train(request["seed"], request["steps"])
        if self._training is None:
            self._training = self._fresh(self._settings)
        if request["do"] == "describe":
            return self._training.facts()
        self._training.clock.restart()
        self._training.run(0, request["seconds"])
        return {**self._training.facts(), **self._training.rate()}

    def _train(self, seed: int, steps: int) -> dict[str, Any]:
        self._training = None  # before the next one is built, for its memory
        settings = dataclasses.replace(self._settings, seed=seed, steps=steps)
        training = self._fresh(settings)
        training.run(steps)
        values, facts = training.evaluate(), training.facts()
        self._training = training  # its rate can be asked for, beyond its end
        value = values.get(facts["metric"].removeprefix("val_"))
        examples = steps * facts["batch_size"]
        return {**facts, "examples": examples, "value": value}

    def _fresh(self, settings: Settings) -> Training:
        import keras

        keras.backend.clear_session()
        gc.collect()
        return Training(settings, self._run_path)


def _serve(child: Child, requests: "queue.Queue[str]", answers: IO[str]) -> None:
    """Answers every request, until `_read` ends the process."""
    while True:
        request = json.loads(requests.get())
        try:
            reply = child.answer(request)
        except UserError as error:
            reply = {"error": str(error), "kind": "usage"}
        except RunFailed as error:
            reply = {"error": str(error), "kind": "failed"}
        except Exception as error:
            if not _out_of_memory(error):
                raise
            reply = {"error": str(error).splitlines()[0], "kind": "memory"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def main(argv: list[str]) -> None:
    """Serves until standard input ends, as it does when the parent is closed, killed or gone."""
    answers = os.fdopen(int(argv[0]), "w", encoding="utf-8")
    settings = parse(Settings, argv[2:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    with contextlib.suppress(OSError):
        # Where memory runs out the kernel is to end this process, not the user's others.
        Path("/proc/self/oom_score_adj").write_text("1000")
    requests: queue.Queue[str] = queue.Queue()
    directory = Path(argv[1])
    threading.Thread(target=_read, args=(requests, directory), daemon=True).start()
    start_tensorflow()
    _serve(Child(settings, directory), requests, answers)


def _read(requests: "queue.Queue[str]", directory: Path) -> None:
    for line in sys.stdin:
        requests.put(line)
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)  # from a thread, since the main one may be in the middle of a training


def _out_of_memory(error: Exception) -> bool:
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(
        sign in words for sign in ("out of memory", "oom when", "resource_exhausted", "bad_alloc")
    )


def _bytes(variables: list[Any]) -> int:
    """Of their gradients, which are of the variables' own dtype."""
    import numpy as np

    return sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables)


def _memory_peak(device: str) -> int:
    """Bytes of device memory at the peak so far; on a CPU, of the process's resident memory."""
    if device == "GPU":
        import tensorflow as tf

        names = [gpu.name.partition("device:")[2] for gpu in tf.config.list_logical_devices("GPU")]
        return max(tf.config.experimental.get_memory_info(name)["peak"] for name in names)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


if __name__ == "__main__":
    main(sys.argv[1:])
