"""The benchmark on bottlenecks that are real: no simulator, this machine's CPUs as the device.

On a machine that is busy with other things a verdict may be `undecided`; it may never be wrong.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import noise_jpeg

from {{cookiecutter.package_name}} import task
from {{cookiecutter.package_name}}.data import shards as stored_shards
from {{cookiecutter.package_name}}.data.indexed import Indexed
from {{cookiecutter.package_name}}.data.sources import Splits

pytestmark = pytest.mark.real_time
SMALL = {"model": "small_convnet", "image_size": 16, "batch_size": 32, "learning_rate": 0.001}


def verdict_of(run_dir):
    document = json.loads((run_dir / "benchmark.json").read_text())
    return document, document["verdict"]


def assert_never_wrong(run_dir, *causes):
    """The cause is one of these, or `undecided` with one of these among what it allows."""
    document, verdict = verdict_of(run_dir)
    if verdict["cause"] == "undecided":
        assert set(verdict["also"]) & set(causes), verdict
    else:
        assert verdict["cause"] in causes, verdict
    return document


SLOW_READS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
/* Waits after each read of a file under SLOW_DIR, as one disk of SLOW_MB_PER_S would: whoever else
   reads meanwhile stands in the same queue. */
static void as_slow(int descriptor, ssize_t count) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static double idle_from;
  char link[64], path[4096];
  const char *directory = getenv("SLOW_DIR"), *rate = getenv("SLOW_MB_PER_S");
  if (!directory || !rate || count <= 0) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return;
  path[length] = 0;
  if (strncmp(path, directory, strlen(directory))) return;
  pthread_mutex_lock(&lock);
  if (idle_from < now()) idle_from = now();
  double done = idle_from += count / (atof(rate) * 1e6);
  pthread_mutex_unlock(&lock);
  double left = done - now();
  struct timespec wait = {(time_t)left, (long)((left - (time_t)left) * 1e9)};
  if (left > 0) nanosleep(&wait, 0);
}
ssize_t read(int fd, void *to, size_t count) {
  static ssize_t (*real)(int, void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "read");
  ssize_t got = real(fd, to, count);
  as_slow(fd, got);
  return got;
}
ssize_t pread(int fd, void *to, size_t count, off_t at) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread");
  ssize_t got = real(fd, to, count, at);
  as_slow(fd, got);
  return got;
}
ssize_t pread64(int fd, void *to, size_t count, off_t at) { return pread(fd, to, count, at); }
"""


def stored(directory, count, side, shards=4):
    """TFRecord shards of JPEGs, noise of that side."""
    images = [noise_jpeg(side, side, seed) for seed in range(8)]
    with stored_shards.NewDirectory(directory) as partial:
        splits = {
            split: [
                stored_shards.write_shard(
                    partial / f"{split}-{shard:05d}.tfrecord",
                    (stored_shards.serialize(images[i % 8], i % 10) for i in range(many // shards)),
                )
                for shard in range(shards)
            ]
            for split, many in (("train", count), ("validation", 64))
        }
        stored_shards.write_manifest(partial, tuple("0123456789"), splits, {"source": "noise"})
    return directory


@pytest.fixture
def another_disk(tmp_path):
    """A directory on another file system than `tmp_path`."""
    memory = "/dev/shm"
    if not os.path.isdir(memory) or os.stat(memory).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is one file system alone")
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


@pytest.mark.skipif(not shutil.which("gcc"), reason="the slow disk is a small C library")
def test_a_slow_disk_is_storage_and_staging_gives_what_was_foretold(tmp_path, another_disk):
    # Few shards of not so small records, as on real disks: what the readers of many shards hold
    # would take this one seconds to bring back, for one probe while the next is timed.
    data = stored(another_disk / "data", 4096, 128, shards=2)
    (tmp_path / "slow.c").write_text(SLOW_READS)
    library = tmp_path / "slow.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "slow.c", "-ldl"], check=True
    )
    size = sum(file.stat().st_size for file in data.glob("train-*"))
    env = {**os.environ, "LD_PRELOAD": str(library), "SLOW_DIR": str(data)}
    env["SLOW_MB_PER_S"] = str(800 * size / 4096 / 1e6)  # 800 records a second
    env["TFSTAGE_SCRATCH"] = str(tmp_path)
    flags = {"data": f"records:{data}", "run_dir": tmp_path / "run", "shuffle_memory": 1, **SMALL}
    command = [sys.executable, "-m", task.__name__.replace(".task", ".train"), "--benchmark"]
    command += ["--confirm", *(f"--{name}={value}" for name, value in flags.items())]
    subprocess.run(command, env=env, check=True, timeout=1200)
    document = assert_never_wrong(tmp_path / "run", "storage")
    (proof,) = [c for c in document["confirmations"] if c["change"] == "stage"]
    assert proof["flags"] == ["--stage_to=auto"] and list(tmp_path.glob("tfstage-*/*/data"))
    assert proof["verdict"]["speed"] == "faster"
    assert proof["speedup"]["mean"] == pytest.approx(proof["predicted"]["mean"], rel=0.35)


def test_a_py_function_is_python(train, monkeypatch):
    decode = task.decode_training

    def slow(labels):
        return np.int64(sum(range(4_000_000)) < 0) + labels

    def with_python(records, index, settings, classes):
        features, labels = decode(records, index, settings, classes)
        return features, tf.ensure_shape(tf.numpy_function(slow, [labels], tf.int64), labels.shape)

    monkeypatch.setattr(task, "decode_training", with_python)
    code, run_dir = train(benchmark=True, strategy="one_device")
    assert code == 0
    assert_never_wrong(run_dir, "python_input")


def test_a_generator_is_python(train, monkeypatch):
    image, count = np.zeros([16, 16, 3], np.uint8), 512

    class Generated(Indexed):
        def shuffled(self, seed, start):
            def generate():
                while True:
                    for number in range(self.count):
                        sum(range(60_000))
                        yield number

            return tf.data.Dataset.from_generator(
                generate, output_signature=tf.TensorSpec([], tf.int64)
            )

        in_order = lambda self: self.shuffled(0, 0).take(self.count)  # noqa: E731

    def read(index):
        size = tf.shape(index)[0]
        return {
            "pixels": tf.broadcast_to(image, [size, 16, 16, 3]),
            "label": index % 10,
            "aspect": tf.ones([size]),
        }

    held = Indexed(64, read)
    splits = Splits(Generated(count, read), held, tuple("0123456789"))
    monkeypatch.setattr(task, "open_splits", lambda settings: splits)
    code, run_dir = train(benchmark=True, strategy="one_device", **SMALL)
    assert code == 0
    assert_never_wrong(run_dir, "python_input")


def test_huge_jpegs_are_decoding(train, tmp_path):
    for split, many in (("train", 40), ("validation", 8)):
        for label in ("a", "b"):
            folder = tmp_path / "photos" / split / label
            folder.mkdir(parents=True)
            photo = noise_jpeg(3000, 4000, ord(label))
            for number in range(many // 2):
                (folder / f"{number}.jpg").write_bytes(photo)
    data = f"folder:{tmp_path / 'photos'}"
    flags = {**SMALL, "batch_size": 4, "data": data}
    code, run_dir = train(benchmark=True, strategy="one_device", **flags)
    assert code == 0
    assert_never_wrong(run_dir, "decode")


def test_a_small_net_with_a_small_batch_does_not_fill_the_device(train, monkeypatch):
    def three_layers(settings, classes, precision):
        size = settings.image_size
        layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(32)]
        return keras.Sequential(
            [keras.Input([size, size, 3]), *layers, keras.layers.Dense(classes)]
        )

    monkeypatch.setattr(task, "make_model", three_layers)
    # All records decoded once: what is left of a step is what it costs to start it.
    code, run_dir = train(benchmark=True, strategy="one_device", batch_size=8, augment="none")
    assert code == 0
    assert_never_wrong(run_dir, "small_batch", "launch", "host_per_step", "contention")


def test_an_over_long_callback_is_the_host(train, monkeypatch):
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.2)

    monkeypatch.setattr(task, "make_callbacks", lambda settings: [Slow()])
    code, run_dir = train(benchmark=True, strategy="one_device")
    assert code == 0
    document = assert_never_wrong(run_dir, "host_per_step")
    gains = {p["change"]: p["speedup"] for p in document["predictions"]}
    assert gains["callbacks"] > 1.5
