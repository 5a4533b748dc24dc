"""Threads that read ahead, and that nobody waits for at the end of the process."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

J = TypeVar("J")
R = TypeVar("R")
POLL = 0.1  # seconds between looks at the stop event


class Readers:
    """A pool of daemon threads with room for a limited number of results.

    Not an executor: Python waits for its threads at the exit, and one may hang in a read from a
    dead server.
    """

    def __init__(self, threads: int) -> None:
        """Takes the number of threads, which is also that of results that are held in memory."""
        self._threads = threads
        self._room = threading.Semaphore(threads)
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._started = 0
        self._lock = threading.Lock()

    def in_order(
        self, jobs: Iterable[J], read: Callable[[J], R], stop: threading.Event
    ) -> Iterator[tuple[J, Future[R]]]:
        """Each job and its result, which is ready, in the order of the jobs; several run at a time.

        Args:
          jobs: what is to be read.
          read: reads one.
          stop: ends the reading.
        """
        waiting, running = iter(jobs), deque[tuple[J, Future[R]]]()
        job = next(waiting, None)
        try:
            while (job is not None or running) and not stop.is_set():
                # A caller with nothing under way waits for room, one with something takes what is
                # free: so each gets on, and gives room back.
                while job is not None and self._take_room(patient=not running):
                    running.append((job, self._submit(read, job)))
                    job = next(waiting, None)
                if running:
                    done = running.popleft()
                    while not done[1].done() and not stop.is_set():
                        wait([done[1]], timeout=POLL)
                    self._give_room_back(done[1])
                    if stop.is_set():
                        return
                    yield done
        finally:
            for _, future in running:
                future.cancel()
                self._give_room_back(future)

    def close(self) -> None:
        """Ends the threads as soon as they have nothing to do."""
        with self._lock:
            for _ in range(self._started):
                self._jobs.put(None)
            self._started = 0

    def _take_room(self, patient: bool) -> bool:
        return self._room.acquire(timeout=POLL) if patient else self._room.acquire(blocking=False)

    def _give_room_back(self, future: "Future[Any]") -> None:
        # When the thread has ended, not when nobody waits for it any more.
        future.add_done_callback(lambda _: self._room.release())

    def _submit(self, read: Callable[[J], R], job: J) -> "Future[R]":
        future: Future[R] = Future()
        self._jobs.put((future, lambda: read(job)))
        with self._lock:
            if self._started < self._threads:
                self._started += 1
                threading.Thread(target=self._loop, daemon=True).start()
        return future

    def _loop(self) -> None:
        while (item := self._jobs.get()) is not None:
            future, action = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)
