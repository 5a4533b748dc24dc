"""Trains, evaluates, checkpoints and resumes; with --benchmark measures instead.

    python -m PACKAGE.train --data=digits

The story itself is in `training.py`. This file stays apart because TensorFlow takes seconds to
import: the flags are read first, so that --help and a typo answer at once, and the environment that
TensorFlow reads when it starts is settled before it does.
"""

from .command_line import parse
from .errors import run_command
from .runtime import end_process, start_tensorflow
from .settings import Settings


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    settings = parse(Settings, argv)
    if settings.find_batch_size:
        from .experiments.batch_size import find_batch_size

        # TensorFlow starts in each trial's process, and not in this one, which would hold a GPU.
        return run_command("train", lambda: find_batch_size(settings))
    if settings.scale:
        from .experiments.scaling import scale

        return run_command("train", lambda: scale(settings))
    start_tensorflow()

    def body() -> int:
        if settings.benchmark:
            from .benchmark.run import benchmark

            return benchmark(settings)
        from .training import train

        return train(settings)

    return run_command("train", body)


if __name__ == "__main__":
    end_process(main())
