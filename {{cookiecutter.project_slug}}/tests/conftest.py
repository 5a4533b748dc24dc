"""Tests run offline on a CPU split into two devices, so that MirroredStrategy is really run."""

import json
from pathlib import Path

import pytest

from {{cookiecutter.package_name}} import runtime

runtime.start_tensorflow()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from {{cookiecutter.package_name}} import train as command  # noqa: E402

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture(autouse=True, scope="module")
def fresh_keras():
    """Frees the models of a module's tests; after each test it took a sixth of a second."""
    yield
    keras.backend.clear_session()


@pytest.fixture
def train(tmp_path):
    """Trains in this process with flags as keywords; returns (exit code, run directory)."""

    def run(run_dir: str = "run", **flags) -> tuple[int, Path]:
        path = tmp_path / run_dir
        flags = {"data": "digits", "run_dir": path, **flags}
        return command.main([f"--{name}={value}" for name, value in flags.items()]), path

    return run


def rows(run_dir: Path, key: str = "loss") -> list[dict]:
    """The lines of a run's metrics.jsonl that have `key`."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if key in row]


def losses(run_dir: Path) -> list[float]:
    """The losses of a run's log lines."""
    return [row["loss"] for row in rows(run_dir)]


def noise_jpeg(height: int, width: int, seed: int) -> bytes:
    """A JPEG of blurred noise: cheap, and different everywhere."""
    small = tf.random.stateless_uniform([height // 32 + 2, width // 32 + 2, 3], [seed, 1])
    pixels = tf.image.resize(small * 255, [height, width], "bicubic")
    return bytes(tf.io.encode_jpeg(tf.saturate_cast(pixels, tf.uint8), quality=95).numpy())
