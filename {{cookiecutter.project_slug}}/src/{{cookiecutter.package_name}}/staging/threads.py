"""Threads that stop at the first failure, and that a signal need not wait for."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from .retrying import Stopped

GRACE = 1.2  # seconds for threads to end after a signal: the command is to be gone within two
POLL = 0.1  # seconds between looks at the progress

T = TypeVar("T")


def run_all(
    jobs: Iterable[T],
    work: Callable[[T], None],
    workers: int,
    stop: threading.Event,
    poll: Callable[[], None],
) -> None:
    """Works through `jobs` in order, several at a time; returns when all are done.

    The threads are daemons, not an executor's: Python waits for those at its exit, and one may hang
    in a read from a dead server.

    Args:
      jobs: what is to be done.
      work: does one; ends soon once `stop` is set.
      workers: threads.
      stop: is set at the first failure, or by a signal's exception in this thread.
      poll: called every tenth of a second in this thread.

    Raises:
      Exception: what failed first; not what failed because of it.
    """
    waiting = deque(jobs)
    failures: list[BaseException] = []
    ended = threading.Semaphore(0)

    def loop() -> None:
        try:
            while waiting and not stop.is_set():
                try:
                    job = waiting.popleft()
                except IndexError:
                    return
                work(job)
        except Stopped:
            pass
        except BaseException as error:
            failures.append(error)
            stop.set()
        finally:
            ended.release()

    count = max(1, min(workers, len(waiting)))
    try:
        for _ in range(count):
            threading.Thread(target=loop, daemon=True).start()
        for _ in range(count):
            while not ended.acquire(timeout=POLL):
                poll()
        poll()
    except BaseException:
        stop.set()
        ended.acquire(timeout=GRACE)  # one is enough where most are gone: parts are dropped anyway
        raise
    if failures:
        raise failures[0]
