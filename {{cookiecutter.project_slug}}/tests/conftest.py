"""Tests run offline on a CPU split into two devices, so that MirroredStrategy is really run."""

import json
from pathlib import Path

import numpy as np
import pytest

from {{cookiecutter.package_name}} import runtime

runtime.start_tensorflow()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from {{cookiecutter.package_name}} import train as command  # noqa: E402

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def pytest_addoption(parser):
    parser.addoption("--scenarios", help="a directory of scenario files, for test_scenarios.py")


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


def bilinear_crop(image, box, size):
    """A crop in plain numpy: `box` is top, left, height, width in parts of the image."""

    def places(begin, extent, pixels):
        centres = np.clip((begin + (np.arange(size) + 0.5) / size * extent) * pixels - 0.5, 0, None)
        lower = np.minimum(np.floor(centres).astype(int), pixels - 1)
        return lower, np.minimum(lower + 1, pixels - 1), centres - lower

    top, bottom, down = places(box[0], box[2], image.shape[0])
    left, right, across = places(box[1], box[3], image.shape[1])
    down, across = down[:, None, None], across[None, :, None]
    upper = image[top][:, left] * (1 - across) + image[top][:, right] * across
    lower = image[bottom][:, left] * (1 - across) + image[bottom][:, right] * across
    return upper * (1 - down) + lower * down
