"""Several hosts: real processes on loopback that train in step, stop together and lose nothing."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import losses, rows
from test_sources import write_folder, write_records
from test_training import assert_same_weights, newest_checkpoint

from {{cookiecutter.package_name}} import settings
from {{cookiecutter.package_name}} import train as command
from {{cookiecutter.package_name}}.cluster import (
    Cluster,
    await_hosts,
    expand_counts,
    expand_nodes,
    find_cluster,
)
from {{cookiecutter.package_name}}.data import pipeline
from {{cookiecutter.package_name}}.data.catalog import open_data
from {{cookiecutter.package_name}}.errors import RunFailed, UserError

PACKAGE = settings.__package__
ASKED = {"data": "digits", "steps": 50, "evaluate_steps": 20, "ema": 0.9}


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Run:
    """Processes that are the hosts of one run; none outlives the test."""

    def __init__(self, directory, hosts=2, script=None, own=None, **flags):
        self.path = directory
        addresses = [f"127.0.0.1:{port}" for port in free_ports(hosts)]
        command = ["-c", script] if script else ["-m", f"{PACKAGE}.train"]
        self.hosts = []
        name = f"{directory.name}-{addresses[0].rpartition(':')[2]}"
        self.outputs = [directory.parent / f"{name}-{index}.txt" for index in range(hosts)]
        for index in range(hosts):
            place = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            asked = {"run_dir": directory, **ASKED, **flags, **(own or {}).get(index, {})}
            environment = {**os.environ, "TF_CONFIG": json.dumps(place) if hosts > 1 else ""}
            arguments = [f"--{name}={value}" for name, value in asked.items()]
            with self.outputs[index].open("w") as out:
                process = subprocess.Popen(
                    [sys.executable, *command, *arguments],
                    env=environment,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            self.hosts.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.hosts:
            process.kill()  # one that stands still too
            process.wait()

    def end(self, seconds=120):
        """Waits for all; returns their exit codes."""
        limit = time.monotonic() + seconds
        return [process.wait(max(0.1, limit - time.monotonic())) for process in self.hosts]

    def output(self, index):
        return self.outputs[index].read_text()

    def last_words(self, index):
        """The command's own lines, of which an error gives one, and no traceback."""
        assert "Traceback" not in self.output(index), self.output(index)
        lines = self.output(index).splitlines()
        return [line for line in lines if line.startswith("train: ") and " step/s, " not in line]

    def trained(self, step):
        """Waits until it is beyond a step."""
        limit = time.monotonic() + 90
        log = self.path / "metrics.jsonl"
        while not (log.exists() and any(row["step"] > step for row in rows(self.path))):
            assert all(p.poll() is None for p in self.hosts), self.output(0) + self.output(-1)
            assert time.monotonic() < limit, "nothing happened"
            time.sleep(0.05)


def steps_of(run_dir):
    return [row["step"] for row in rows(run_dir)]


def train_alone(run_dir):
    """The same training in this process, on one device."""
    asked = {"run_dir": run_dir, "strategy": "one_device", **ASKED}
    return command.main([f"--{name}={value}" for name, value in asked.items()])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    path = tmp_path_factory.mktemp("alone") / "run"
    assert train_alone(path) == 0
    return path


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """On two hosts."""
    path = tmp_path_factory.mktemp("unbroken") / "run"
    with Run(path, dropout=0.2) as run:
        assert run.end() == [0, 0], run.output(0) + run.output(1)
    return path


def same_figures(run_dir, other):
    assert steps_of(run_dir) == list(range(1, 51))
    np.testing.assert_allclose(losses(run_dir), losses(other), atol=1e-5)
    for name in ("val_loss", "val_accuracy"):
        got, expected = ([row[name] for row in rows(d, name)] for d in (run_dir, other))
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_two_hosts_of_two_devices_train_as_one_device_does(alone, tmp_path):
    with Run(tmp_path / "run", logical_devices=2) as run:
        assert run.end() == [0, 0], run.output(0) + run.output(1)
    assert "mirrored over 4 on 2 hosts, found in TF_CONFIG" in run.output(0)
    assert run.output(1) == ""  # the chief speaks for all
    same_figures(run.path, alone)
    assert {path.name for path in run.path.iterdir()} == {path.name for path in alone.iterdir()}


def test_sigterm_to_one_host_stops_all_after_the_same_step(alone, tmp_path):
    with Run(tmp_path / "run", steps_per_call=1) as run:
        run.trained(5)
        run.hosts[1].send_signal(signal.SIGTERM)
        assert run.end(60) == [143, 143], run.output(0) + run.output(1)
    result = json.loads((run.path / "result.json").read_text())
    assert result["exit_reason"] == "terminated"
    step = result["last_step"]
    assert 5 < step < 50
    assert newest_checkpoint(run.path).name == f"ckpt-{step:08d}"
    with Run(run.path) as resumed:
        assert resumed.end() == [0, 0], resumed.output(0) + resumed.output(1)
    assert f"after step {step} of 50" in resumed.output(0)
    same_figures(run.path, alone)


def test_a_host_that_dies_ends_the_other_and_the_run_goes_on_on_one_host(alone, tmp_path, capfd):
    with Run(tmp_path / "run", steps_per_call=1) as run:
        run.trained(22)
        run.hosts[1].kill()
        assert run.hosts[0].wait(60) == 1
    [line] = run.last_words(0)
    assert "host 0: another host has gone" in line
    assert newest_checkpoint(run.path).name == "ckpt-00000020"
    assert train_alone(run.path) == 0
    assert "after step 20 of 50" in capfd.readouterr().out
    same_figures(run.path, alone)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_host_that_stands_still_ends_the_other(tmp_path, frozen):
    with Run(tmp_path / "run", steps_per_call=1, steps=100_000) as run:
        run.trained(5)
        run.hosts[frozen].send_signal(signal.SIGSTOP)
        assert run.hosts[1 - frozen].wait(60) == 1
    [line] = run.last_words(1 - frozen)
    assert "another host has gone" in line


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)])
def test_killed_at_random_and_started_again_the_weights_are_the_same(unbroken, tmp_path, victims):
    rng = np.random.default_rng(len(victims))
    # One that is killed before the others have met it is waited for.
    asked = {"dropout": 0.2, "steps_per_call": 3, "checkpoint_seconds": 1, "stall_seconds": 20}
    for _ in range(4):
        with Run(tmp_path / "run", **asked) as run:
            time.sleep(rng.uniform(0, 15))
            for victim in victims:
                run.hosts[victim].kill()
            codes = run.end(60)
        assert all(code in (0, 1, -signal.SIGKILL) for code in codes), codes
    with Run(tmp_path / "run", dropout=0.2) as run:
        assert run.end() == [0, 0], run.output(0) + run.output(1)
    assert steps_of(run.path) == list(range(1, 51))
    assert losses(run.path) == losses(unbroken)
    assert_same_weights(run.path, unbroken)


@pytest.mark.slow
def test_the_hosts_of_a_second_run_in_the_directory_are_refused_all(tmp_path):
    with Run(tmp_path / "run", steps=100_000) as first:
        first.trained(1)
        with Run(tmp_path / "run", steps=100_000) as second:
            assert second.end(60) == [2, 2]
        for index in range(2):
            [line] = second.last_words(index)
            assert "host 0: --run_dir" in line and "in use by another process" in line
        assert [process.poll() for process in first.hosts] == [None, None]


@pytest.mark.slow
def test_other_settings_are_refused_on_all_hosts_with_what_differs(unbroken):
    with Run(unbroken, learning_rate=0.5, dropout=0.2) as run:
        assert run.end() == [2, 2]
    for index in range(2):
        [line] = run.last_words(index)
        assert "host 0: --run_dir" in line and "--learning_rate was 0.0, is 0.5" in line


@pytest.mark.slow
def test_hosts_that_were_given_other_flags_are_refused(tmp_path):
    with Run(tmp_path / "run", own={1: {"seed": 7}}) as run:
        assert run.end() == [2, 2]
    for index in range(2):
        [line] = run.last_words(index)
        assert "host 1: --seed is 7, on host 0 0" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_one_host_alone_cannot_open_ends_all_with_its_line(tmp_path):
    data = f"folder:{os.path.relpath(write_folder(tmp_path / 'photos'))}"
    # As a directory that is mounted on one machine and not on the other.
    script = f"""
import os, sys
if '"index": 1' in os.environ["TF_CONFIG"]:
    os.chdir("/")
from {PACKAGE}.train import main
sys.exit(main(sys.argv[1:]))
"""
    with Run(tmp_path / "run", script=script, data=data, batch_size=4, image_size=16) as run:
        assert run.end() == [2, 2], run.output(0) + run.output(1)
    for index in range(2):
        [line] = run.last_words(index)
        assert "host 1: " in line and "no directory" in line


STALLED = f"""
import sys, time
import tensorflow as tf
from {PACKAGE} import job as jobs
batches = jobs.training_batches
def stalling(*args):
    def wait(index):
        time.sleep(1000 * (index[0] >= 32 * 7))
        return index
    def slow(features, labels, index):
        return features, labels, tf.ensure_shape(tf.numpy_function(wait, [index], tf.int64), [32])
    return batches(*args).map(slow)
jobs.training_batches = stalling
from {PACKAGE}.train import main
sys.exit(main(sys.argv[1:]))
"""


def test_an_input_that_stalls_ends_the_run_with_where_it_stands(tmp_path):
    asked = {"strategy": "one_device", "stall_seconds": 5, "steps_per_call": 1}
    with Run(tmp_path / "run", 1, script=STALLED, **asked) as run:
        assert run.end(60) == [1]
    [line] = run.last_words(0)
    assert "nothing has moved for 5 s: after step 7 the input" in line
    assert 'loop.py", line' in run.output(0)  # the stacks
    assert steps_of(run.path) == list(range(1, 8))


def test_a_host_that_never_comes_is_named():
    ports = free_ports(2)
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    with pytest.raises(RunFailed, match=rf"has waited 0.5 s .* for {addresses[0]}: start"):
        await_hosts(Cluster(addresses, 1, "TF_CONFIG"), 0.5)
    with socket.socket() as held:
        held.bind(("127.0.0.1", ports[1]))
        held.listen()
        with pytest.raises(UserError, match=f"{addresses[1]}, which TF_CONFIG gives .* is taken"):
            await_hosts(Cluster(addresses, 1, "TF_CONFIG"), 0.5)
        await_hosts(Cluster(addresses, 0, "TF_CONFIG"), 0.5)  # the other one is there


def tf_config(cluster=None, task=None):
    parts = {"cluster": cluster, "task": task}
    return {"TF_CONFIG": json.dumps({k: v for k, v in parts.items() if v is not None})}


def test_tf_config_names_the_hosts_the_chief_first():
    workers = {"worker": ["b:1", "c:2"]}
    found = find_cluster(tf_config(workers, {"type": "worker", "index": 1}))
    assert found == Cluster(("b:1", "c:2"), 1, "TF_CONFIG")
    led = {**workers, "chief": ["a:3"]}
    assert find_cluster(tf_config(led, {"type": "chief", "index": 0})).addresses[0] == "a:3"
    assert find_cluster(tf_config(led, {"type": "worker", "index": 1})).index == 2
    assert find_cluster({}) is None
    assert find_cluster({"TF_CONFIG": "{}"}) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not JSON"),
        ("[1]", "it has no cluster"),
        (tf_config({"worker": ["a:1"]})["TF_CONFIG"], "it has no task"),
        (tf_config(task={"type": "worker", "index": 0})["TF_CONFIG"], "it has no cluster"),
        (tf_config({"worker": ["a:1"]}, {"type": "worker", "index": 1}), "task 'worker' 1 is not"),
        (tf_config({"worker": ["a"]}, {"type": "worker", "index": 0}), "'a' is not HOST:PORT"),
        (tf_config({"worker": ["a:1"] * 2}, {"type": "worker", "index": 0}), "stands in it twice"),
        (tf_config({"ps": ["a:1"]}, {"type": "ps", "index": 0}), "no use here for ps"),
        (tf_config({"worker": []}, {"type": "worker", "index": 0}), "lists no hosts"),
    ],
)
def test_half_a_tf_config_is_one_line_that_says_what_is_missing(text, expected):
    environment = text if isinstance(text, dict) else {"TF_CONFIG": text}
    with pytest.raises(UserError, match=expected) as raised:
        find_cluster(environment)
    assert "TF_CONFIG" in str(raised.value) and "\n" not in str(raised.value)


def test_a_bad_tf_config_ends_the_command_with_exit_code_2(train, capfd, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    assert train(steps=5)[0] == 2  # --strategy=auto reads it too
    assert "train: TF_CONFIG: not JSON" in capfd.readouterr().err
    monkeypatch.delenv("TF_CONFIG")
    assert train(steps=5, strategy="multi_worker")[0] == 2
    assert "there is no TF_CONFIG, nor srun" in capfd.readouterr().err
    assert train(steps=5, strategy="one_device")[0] == 0


@pytest.mark.parametrize("strategy", ["auto", "multi_worker"])
def test_a_benchmark_does_not_take_one_of_several_hosts_for_the_whole(
    train, capfd, monkeypatch, strategy
):
    hosts = ["127.0.0.1:12001", "127.0.0.1:12002"]
    place = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    code, _ = train(benchmark=True, strategy=strategy)
    assert code == 2
    (line,) = capfd.readouterr().err.strip().splitlines()[-1:]
    assert "several hosts are for training" in line


def test_slurm_lists_are_expanded_in_their_order():
    assert expand_nodes("n[08-10,2],x") == ["n08", "n09", "n10", "n2", "x"]
    assert expand_nodes("r[1-2]n[0-1]-i,g") == ["r1n0-i", "r1n1-i", "r2n0-i", "r2n1-i", "g"]
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]


SLURM = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "127.0.0.[2,10]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}


def test_slurm_gives_each_task_an_address_in_the_order_of_the_nodes():
    found = find_cluster(SLURM)
    assert found.index == 2 and found.source == "SLURM job 1234567"
    hosts, ports = zip(*(address.split(":") for address in found.addresses), strict=True)
    assert hosts == ("127.0.0.2", "127.0.0.2", "127.0.0.10")
    assert len(set(ports)) == 3 and all(12_000 <= int(port) < 32_768 for port in ports)
    first = {**SLURM, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert find_cluster(first).addresses == found.addresses
    batch_script = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    assert find_cluster(batch_script) is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"SLURM_NODEID": "0", "SLURM_LOCALID": "1"}, "--distribution=block"),
        ({"SLURM_PROCID": ""}, "not whole"),
        ({"SLURM_STEP_NODELIST": "no-such-node.invalid,127.0.0.1"}, "no-such-node.invalid has no"),
    ],
)
def test_a_slurm_that_is_not_understood_is_refused(changed, expected):
    with pytest.raises(UserError, match=expected):
        find_cluster({**SLURM, **changed})


def read_label(records, index):
    return index, records["label"]


@pytest.fixture(scope="module", params=["folder", "records", "digits"])
def source(request, tmp_path_factory):
    write = {"folder": write_folder, "records": write_records}.get(request.param)
    if not write:
        return open_data("digits").train
    return open_data(f"{request.param}:{write(tmp_path_factory.mktemp('data') / 'd')}").train


@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize(("batch_size", "start"), [(12, 0), (12, 48), (768, 0)])
def test_the_hosts_share_every_global_batch_between_them(source, hosts, batch_size, start):
    def read(host=0, hosts=1):
        batches = pipeline.training_batches(
            source, read_label, batch_size, 3, start, host=host, hosts=hosts
        )
        taken = [(index.numpy(), labels.numpy()) for _, labels, index in batches.take(9)]
        return [np.stack(column) for column in zip(*taken, strict=True)]

    whole = read()
    parts = zip(*(read(host, hosts) for host in range(hosts)), strict=True)
    for got, expected in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(np.concatenate(got, axis=1), expected)
    np.testing.assert_array_equal(whole[0].ravel(), start + np.arange(9 * batch_size))


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_every_validation_example_counts_on_one_host_alone(source, hosts):
    found, batch_size = [], 12
    for host in range(hosts):
        batches = list(pipeline.evaluation_batches(source, read_label, batch_size, host, hosts))
        assert len(batches) == pipeline.evaluation_count(source, batch_size)
        for _, labels, weights in batches:
            assert weights.shape == [batch_size // hosts]
            found += labels.numpy()[weights.numpy() > 0].tolist()
    stored = source.in_order().batch(source.count)
    [elements] = [e if isinstance(e, tuple) else (e,) for e in stored]
    assert found == source.read(*elements)["label"].numpy().tolist()
