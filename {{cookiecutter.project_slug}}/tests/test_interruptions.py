"""100 times kill -9 and 50 times SIGTERM at random moments: not one bit is lost.

A log line holds the mean loss of its steps. Losses equal to an unbroken run's to the last bit so
say that each step saw the same examples in the same order: none twice, none left out.
"""

import random
import signal
import time

import pytest
from conftest import losses, rows
from test_training import KILLED, assert_same_weights, newest_checkpoint, start, wait_for

SECONDS_TO_TRAINING = 8.0  # TensorFlow's start and the first compilation, about

ONE = {"strategy": "one_device"}
TWO = {"strategy": "mirrored", "logical_devices": 2}


def kill(process, rng):
    process.kill()
    process.wait()


def terminate(process, rng):
    """SIGTERM, and in half of the cases a second one while the first is being obeyed."""
    process.send_signal(signal.SIGTERM)
    if rng.random() < 0.5:
        time.sleep(0.3 * rng.random())
        process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert "Traceback" not in out
    # 0: the run was through before the signal came; -15: Python itself had not started.
    assert process.returncode in (143, 0, -signal.SIGTERM), out


def interrupted(run_dir, end, times, rng, flags):
    """Starts the same training so often and ends each at a random moment."""
    for _ in range(times):
        before = newest_checkpoint(run_dir)
        process = start(run_dir, steps_per_call=3, **flags)
        if rng.random() < 0.3:
            time.sleep(SECONDS_TO_TRAINING * rng.random())
        else:
            wait_for(
                lambda before=before: newest_checkpoint(run_dir) not in (None, before), process
            )
            time.sleep(0.3 * rng.random())
        end(process, rng)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [ONE, TWO], ids=["one device", "two replicas"])
@pytest.mark.parametrize(("end", "times"), [(kill, 50), (terminate, 25)])
def test_interrupted_at_random_the_weights_are_the_same_bit_for_bit(
    train, tmp_path, end, times, strategy
):
    flags = {**KILLED, **strategy, "steps": 10 * times + 100}
    _, unbroken = train("unbroken", **flags)
    broken, rng = tmp_path / "broken", random.Random(times)
    interrupted(broken, end, times, rng, flags)
    assert train("broken", steps_per_call=3, **flags)[0] == 0
    assert_same_weights(broken, unbroken)
    assert losses(broken) == losses(unbroken)
    assert [row["val_loss"] for row in rows(broken, "val_loss")] == [
        row["val_loss"] for row in rows(unbroken, "val_loss")
    ]
