"""What the hosts of a run tell one another between the steps, so that all do the same."""

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from .errors import RunFailed, UserError

# What a collective raises on the hosts that are left when one has gone. Measured on loopback: one
# that died is noticed in 0.1 to 9 s, one that stands still in 9 to 10 s, by the heartbeats that
# TensorFlow's hosts send each other.
GONE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)
SHARED = {kind.__name__: kind for kind in (UserError, RunFailed)}


class Hosts:
    """The hosts of a run, of which host 0 is the chief: it alone writes the run directory.

    Every method that exchanges something must be called by all hosts, in the same order. With one
    host nothing is exchanged, and no TensorFlow operation is run.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy | None = None,
        count: int = 1,
        index: int = 0,
        source: str = "",
    ) -> None:
        """Describes the hosts.

        Args:
          strategy: over the replicas of all hosts, as many on each; None for one host.
          count: how many hosts.
          index: which of them this is.
          source: where that is known from, in words.
        """
        self.count, self.index, self.source = count, index, source
        self.chief = index == 0
        self._strategy = strategy
        self._sum = tf.function(self._sum_of, reduce_retracing=True)

    def gather(self, values: Iterable[float]) -> np.ndarray:
        """Float32 [hosts, n]: the n numbers that each host gave."""
        row = np.asarray(list(values), np.float32)
        if self.count == 1:
            return row[np.newaxis]
        rows = np.zeros([self.count, row.size], np.float32)
        rows[self.index] = row
        return self._sum(tf.constant(rows)).numpy()

    def least(self, value: int) -> int:
        """The least of the numbers that the hosts gave."""
        return int(self.gather([value]).min())

    def any(self, value: bool) -> bool:
        """True if one of the hosts says so."""
        return bool(self.gather([value]).any())

    def texts(self, text: str) -> list[str]:
        """The text that each host gave."""
        if self.count == 1:
            return [text]
        encoded = text.encode()
        lengths = self.gather([len(encoded)])[:, 0].astype(int)
        padded = encoded.ljust(lengths.max(), b"\0")
        rows = self.gather(padded).astype(np.uint8) if lengths.max() else [b""] * self.count
        return [bytes(row)[:n].decode() for row, n in zip(rows, lengths, strict=True)]

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is done within fails on all hosts if it fails on one, with that one's message.

        Without it the others would wait, and then say no more than that a host has gone. Nothing
        may be exchanged within.

        Raises:
          UserError, RunFailed: of the first host that raised one.
        """
        if self.count == 1:
            yield
            return
        told = ""
        try:
            yield
        except tuple(SHARED.values()) as error:
            kind = next(k for k in SHARED if isinstance(error, SHARED[k]))
            told = json.dumps([kind, f"host {self.index}: {error}"])
        failed = next(filter(None, self.texts(told)), "")
        if failed:
            kind, message = json.loads(failed)
            raise SHARED[kind](message)

    def follow_chief(self, variables: Iterable[tf.Variable]) -> None:
        """Gives the variables of all hosts the chief's values, bit for bit."""
        if self.count == 1:
            return
        for variable in variables:
            value = variable.numpy()
            if not self.chief:
                value = np.zeros_like(value)
            # Two bytes a float, which holds them exactly: any dtype goes, and what sums gradients
            # sums these.
            halves = np.frombuffer(value.tobytes() + b"\0" * (value.nbytes % 2), np.uint16)
            agreed = self._sum(tf.constant(halves, tf.float32)).numpy().astype(np.uint16)
            agreed_bytes = agreed.tobytes()[: value.nbytes]
            variable.assign(np.frombuffer(agreed_bytes, value.dtype).reshape(value.shape))

    def copy_from_chief(self, path: Path) -> None:
        """Writes the chief's file, if it has it, on the other hosts too; text, not large."""
        text = self.texts(path.read_text("utf-8") if self.chief and path.exists() else "")[0]
        if text and not self.chief:
            path.write_text(text, "utf-8")

    def require_same(self, values: dict[str, Any], own: Collection[str]) -> None:
        """Raises `UserError` on all hosts unless they have the same settings.

        Args:
          values: settings by name, JSON values.
          own: names of those that may differ.
        """
        theirs = json.loads(self.texts(json.dumps(values))[0])
        differing = [
            f"--{name} is {values[name]!r}, on host 0 {theirs[name]!r}"
            for name in values
            if name not in own and values[name] != theirs[name]
        ]
        with self.together():
            if differing:
                raise UserError(f"{'; '.join(differing)}: start all hosts with the same flags")

    def say(self, *lines: str) -> None:
        """Prints lines, on the chief alone."""
        if self.chief:
            print(*lines, sep="\n", flush=True)

    @contextlib.contextmanager
    def noticing_absence(self) -> Iterator[None]:
        """Turns what TensorFlow raises when another host has gone into one line.

        Raises:
          RunFailed: another host has gone.
        """
        try:
            yield
        except GONE as error:
            reason = re.search(r"ollective ops is aborted by: *(.+)", error.message)
            if self.count == 1 or not reason:
                raise
            raise RunFailed(
                f"host {self.index}: another host has gone ({reason[1].strip(': ')}); its own last "
                "line may say why; start all hosts again to resume"
            ) from error

    def _sum_of(self, values: Any) -> Any:
        """The sum over the hosts; each host's first replica alone brings what it has."""
        assert self._strategy is not None
        strategy = self._strategy
        each = strategy.num_replicas_in_sync // self.count

        def replica(values: Any) -> Any:
            context = tf.distribute.get_replica_context()
            first = context.replica_id_in_sync_group % each == 0
            return context.all_reduce("SUM", tf.where(first, values, tf.zeros_like(values)))

        return strategy.experimental_local_results(strategy.run(replica, (values,)))[0]
