"""Four other problems, each by another task.py and nothing else: swaps/*.py, trained to a metric.

What they learn from is real and at hand: Python's table of Unicode, the embedded digits, the
documentation that Keras carries.
"""

import difflib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from {{cookiecutter.package_name}} import task
from {{cookiecutter.package_name}}.data.arrays import open_arrays, pad_to_bucket
from {{cookiecutter.package_name}}.data.pipeline import training_batches

SWAPS = Path(__file__).with_name("swaps")
MOST_LINES = 60  # that may differ
# name: (metric, the least that it must reach, or the most where less is better, flags)
GOALS = {
    "tabular": ("accuracy", 0.92, ["--epochs=20"]),
    "multi_label": ("all_right", 0.85, ["--epochs=20"]),
    "regression": ("degrees", 5.0, ["--epochs=6"]),
    "tokens": ("accuracy", 0.85, ["--epochs=5"]),
}


@pytest.fixture
def swapped(tmp_path):
    """Copies the package, puts another task.py in, runs its `train` there."""

    def run(name: str, *flags: str, **environment: str) -> subprocess.CompletedProcess:
        package = tmp_path / "package"
        if not package.exists():
            copied = shutil.ignore_patterns("__pycache__")
            shutil.copytree(Path(task.__file__).parent, package, ignore=copied)
            shutil.copy(SWAPS / f"{name}.py", package / "task.py")
        return subprocess.run(
            [sys.executable, "-m", "package.train", "--run_dir=run", *flags],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path), **environment},
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.parametrize("name", GOALS)
def test_another_problem_is_less_than_sixty_lines(name):
    before = Path(task.__file__).read_text(encoding="utf-8").splitlines()
    after = (SWAPS / f"{name}.py").read_text(encoding="utf-8").splitlines()
    lines = list(difflib.ndiff(before, after))
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    assert 0 < added < MOST_LINES and removed < MOST_LINES


@pytest.mark.parametrize("name", GOALS)
def test_another_problem_is_learned(swapped, tmp_path, name):
    metric, goal, flags = GOALS[name]
    done = swapped(name, "--strategy=one_device", *flags)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metric"] == f"val_{metric}"
    reached = result["final"]
    assert reached >= goal if result["higher_is_better"] else reached <= goal


@pytest.mark.slow
@pytest.mark.parametrize("name", GOALS)
def test_another_problem_resumes_and_is_benchmarked(swapped, tmp_path, name):
    short = ["--steps=40", "--evaluate_steps=20", "--strategy=one_device"]
    assert swapped(name, *short).returncode == 0
    weights = sorted((tmp_path / "run" / "checkpoints").glob("ckpt-*/tensors.data*"))
    whole = weights[-1].read_bytes()
    shutil.rmtree(weights[-1].parent)  # as if it had been killed after step 20
    assert swapped(name, *short).returncode == 0
    assert weights[-1].read_bytes() == whole
    done = swapped(name, "--benchmark", "--strategy=one_device", "--run_dir=benchmark")
    assert done.returncode == 0, done.stderr
    assert "VERDICT" in done.stdout and (tmp_path / "benchmark" / "benchmark.json").exists()


def test_sequences_train_on_two_replicas_in_parts(swapped):
    """Buckets differ from step to step, and a batch of 256 is made in two parts."""
    flags = ["--steps=6", "--batch_size=256", "--accumulate=2", "--steps_per_call=3"]
    done = swapped("tokens", *flags, "--strategy=mirrored", "--logical_devices=2")
    assert done.returncode == 0, done.stderr


def test_rows_are_split_the_same_way_each_time():
    splits = open_arrays("rows", {"x": np.arange(11.0), "label": np.arange(11)}, ["a", "b"])
    assert (splits.train.count, splits.validation.count, splits.classes) == (9, 2, ("a", "b"))
    records = splits.validation.read(tf.constant([0, 1], tf.int64))
    assert records["x"].numpy().tolist() == [4.0, 9.0]
    assert records["source_file"].numpy().tolist() == [b"rows", b"rows"]


@pytest.mark.parametrize(("longest", "padded"), [(1, 4), (4, 4), (5, 8), (8, 8), (11, 8)])
def test_a_batch_is_padded_to_the_smallest_bucket_that_holds_it(longest, padded):
    sequences = tf.ones([3, longest], tf.int32)
    got = pad_to_bucket(sequences, (4, 8)).numpy()
    assert got.shape == (3, padded)
    assert got.sum() == 3 * min(longest, 8) and (got[:, : min(longest, 8)] == 1).all()


def test_parts_of_unlike_lengths_are_joined_in_their_order():
    """A batch of 256 is made in parts of 128, each padded to its own longest row."""
    rows = tf.RaggedTensor.from_row_lengths(np.arange(1, 151 * 75 + 1), np.arange(1, 151))
    splits = open_arrays("rows", {"row": rows, "label": np.arange(150)})

    def decode(records, index):
        return records["row"], records["label"]

    features, labels, index = next(iter(training_batches(splits.train, decode, 256, seed=0)))
    assert features.shape[0] == labels.shape[0] == index.shape[0] == 256
    for row, label in zip(features.numpy(), labels.numpy(), strict=True):
        first = label * (label + 1) // 2 + 1
        assert row[: label + 1].tolist() == list(range(first, first + label + 1))
        assert not row[label + 1 :].any()
