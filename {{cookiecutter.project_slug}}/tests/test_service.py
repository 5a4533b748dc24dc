"""--data_service: a real dispatcher and real workers, in processes of their own, on loopback."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
import tensorflow as tf
from test_sources import write_folder, write_raw, write_records

from {{cookiecutter.package_name}} import serve
from {{cookiecutter.package_name}}.data import service
from {{cookiecutter.package_name}}.data.caching import in_memory
from {{cookiecutter.package_name}}.data.catalog import open_data
from {{cookiecutter.package_name}}.errors import UserError

SERVE = serve.__name__


@contextlib.contextmanager
def served(*flags):
    """A process of `serve`; gives (process, what it printed first)."""
    command = [sys.executable, "-m", SERVE, "--host=localhost"]
    process = subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def address():
    """Of a dispatcher with two workers."""
    with served("--port=0") as (_, line), contextlib.ExitStack() as stack:
        address = re.search(r"grpc://localhost:\d+", line)[0]
        for _ in range(2):
            _, said = stack.enter_context(served(f"--dispatcher={address}"))
            assert said.startswith("worker of")
        yield address


def read(records, index):
    return records["source_index"], records["label"]


@pytest.mark.parametrize("kind", ["records", "folder", "digits", "cached"])
def test_every_record_comes_exactly_once_an_epoch_from_two_workers(address, tmp_path, kind):
    if kind == "folder":
        source = open_data(f"folder:{write_folder(tmp_path)}").train
    elif kind == "digits":
        source = open_data("digits").train.slice(0, 600)
    else:
        source = open_data(f"records:{write_records(tmp_path)}").train
        source = in_memory(source) if kind == "cached" else source
    n, steps = source.count, 3 * source.count // 7
    batches = service.service_batches(source, read, 7, 0, 0, steps, address)
    seen = []
    for _, labels, index in batches.take(steps):
        assert labels.shape == index.shape == (7,)
        seen += index.numpy().tolist()
    for epoch in range(2):
        expected = list(range(epoch * n, (epoch + 1) * n))
        assert sorted(seen[epoch * n : (epoch + 1) * n]) == expected
        assert seen[epoch * n : (epoch + 1) * n] != expected


def test_a_training_with_a_data_service_learns_and_ends(address, train):
    code, run = train("run", steps=50, data_service=address, seed=1)
    assert code == 0
    assert (run / "result.json").exists()


def test_an_epoch_that_comes_short_is_an_error():
    numbers = tf.range(10, dtype=tf.int64)
    batches = tf.data.Dataset.from_tensor_slices((numbers, numbers)).batch(4)
    assert [len(b[1]) for b in service._complete(batches, 10)] == [4, 4, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gave\] \[10\] \[of\] \[11\]"):
        list(service._complete(batches, 11))


def test_an_address_without_a_dispatcher_is_refused(monkeypatch, train, capfd):
    monkeypatch.setattr(service, "REACHED_SECONDS", 0.1)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    code, _ = train(data_service=f"grpc://localhost:{port}", steps=1)
    assert code == 2 and "no dispatcher answers" in capfd.readouterr().err
    with pytest.raises(UserError, match="give grpc://HOST:PORT"):
        service.service_batches(open_data("digits").train, read, 4, 0, 0, 1, "localhost:5050")


def test_raw_records_are_refused_where_there_is_nothing_to_take_over(tmp_path):
    source = open_data(f"records:{write_raw(tmp_path)}").train
    with pytest.raises(UserError, match="raw"):
        service.service_batches(source, read, 4, 0, 0, 1, "grpc://localhost:1")


def test_serving_ends_with_sigterm_and_refuses_a_taken_port():
    with served("--port=0") as (process, line):
        port = re.search(r"localhost:(\d+)", line)[1]
        command = [sys.executable, "-m", SERVE, f"--port={port}"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert second.returncode == 2 and "Traceback" not in second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
