"""slurm/train.sbatch in a real SLURM of two nodes, both of them this machine."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import losses, rows
from test_multi_worker import free_ports
from test_sources import write_records
from test_training import newest_checkpoint, tensors

SCRIPT = Path(__file__).parents[1] / "slurm" / "train.sbatch"
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "srun")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
# No core is bound and nothing accounted for, which takes rights that a container lacks. The port of
# a training follows from its job's number, which must not be that of another SLURM on this machine.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={base}/run/munge.sock
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
FirstJobId={ports[0]}
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool-%n
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmdPidFile={base}/run/slurmd-%n.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
PropagateResourceLimits=NONE
ReturnToService=2
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus}
PartitionName=test Nodes=node1,node2 Default=YES State=UP
"""


class Slurm:
    """Its commands, and the jobs of train.sbatch."""

    def __init__(self, base):
        self.base = base
        self.environment = {**os.environ, "SLURM_CONF": str(base / "slurm.conf")}

    def start(self):
        for name in ("run", "state", "log", "spool-node1", "spool-node2"):
            (self.base / name).mkdir()
        key = self.base / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(
            base=self.base, host=host, ports=free_ports(3), cpus=os.cpu_count()
        )
        (self.base / "slurm.conf").write_text(text)
        munge = {"key-file": key, "log-file": self.base / "log" / "munged.log"}
        munge |= {"socket": "run/munge.sock", "pid-file": "run/munged.pid", "seed-file": "seed"}
        self.run("munged", "--force", *(f"--{k}={self.base / v}" for k, v in munge.items()))
        self.run("slurmctld", "-c")
        for node in ("node1", "node2"):
            self.run("slurmd", "-N", node)
        wait_for(lambda: self.run("sinfo", "-h", "-o", "%D %T") == "2 idle", 60, "no idle nodes")

    def stop(self):
        """Ends the jobs, then the daemons, those alone that name this directory or its files."""
        with contextlib.suppress(Exception):
            self.run("scancel", "--user=root")
            wait_for(lambda: not self.run("squeue", "-h"), 60, "jobs do not end")
        for file in sorted((self.base / "run").glob("*.pid")):
            pid = int(file.read_text())
            with contextlib.suppress(OSError):  # gone: its number may be another's by now
                words = Path(f"/proc/{pid}/environ").read_bytes()
                words += Path(f"/proc/{pid}/cmdline").read_bytes()
                if str(self.base).encode() in words:
                    os.kill(pid, signal.SIGTERM)
                    wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 30, file.name)

    def run(self, *command, **options):
        done = subprocess.run(
            [str(word) for word in command],
            env={**self.environment, **options.pop("environment", {})},
            capture_output=True,
            text=True,
            timeout=60,
            **options,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, directory, *options, environment=None, **flags):
        """Submits train.sbatch there, without GPUs; returns the job."""
        own = {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "-1", **(environment or {})}
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        command = ["sbatch", "--parsable", "--gpus-per-node=0", *options, SCRIPT, *arguments]
        directory.mkdir(exist_ok=True)
        return Job(self, int(self.run(*command, cwd=directory, environment=own)), directory)


class Job:
    def __init__(self, slurm, number, directory):
        self.slurm, self.number, self.restarts = slurm, number, 0
        self.run_dir = directory / "runs" / f"slurm-{number}"
        self.log = directory / f"slurm-{number}.out"

    def shown(self, name):
        """A field of `scontrol show job`."""
        text = self.slurm.run("scontrol", "show", "job", self.number)
        return re.search(rf"\b{name}=(\S*)", text)[1]

    def output(self):
        return self.log.read_text() if self.log.exists() else "no output"

    def trained(self, step):
        """Waits until it is beyond a step."""
        log = self.run_dir / "metrics.jsonl"

        def beyond():
            assert self.shown("JobState") not in OVER, self.output()
            return log.exists() and any(row["step"] > step for row in rows(self.run_dir))

        wait_for(beyond, 180, self.output)

    def last_step(self):
        """As the training has left it when it was asked to stop."""
        result = json.loads((self.run_dir / "result.json").read_text())
        assert result["exit_reason"] == "terminated"
        return result["last_step"]

    def signalled(self):
        """What SLURM does two minutes before the limit."""
        self.slurm.run("scancel", "--batch", "--signal=USR1", self.number)

    def requeued(self):
        """Waits until it is pending again, and has SLURM start it at once, not in two minutes."""
        self.restarts += 1

        def pending():
            state = self.shown("JobState")
            assert state not in OVER, f"{state}: {self.output()}"
            return state == "PENDING" and self.shown("Restarts") == str(self.restarts)

        wait_for(pending, 120, self.output)
        # slurmd takes a start within the second of the end for a late message, and refuses it.
        time.sleep(2)
        self.slurm.run("scontrol", "update", f"JobId={self.number}", "StartTime=now")

    def end(self):
        """Waits until it is over, without a further requeue; returns its state and exit code."""

        def over():
            assert self.shown("Restarts") == str(self.restarts), self.output()
            return self.shown("JobState") in OVER

        wait_for(over, 240, self.output)
        return self.shown("JobState"), self.shown("ExitCode")


def wait_for(condition, seconds, said):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, said() if callable(said) else said
        time.sleep(0.2)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    missing = [name for name in DAEMONS if not shutil.which(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed (apt-get install slurm-wlm munge)")
    if os.getuid():
        pytest.skip("SLURM's daemons start tasks as root alone")
    slurm = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


# Half a minute of steps on two cores, so that there is time to interrupt them; each its own call.
LONG = {"data": "digits", "steps": 1000, "evaluate_steps": 250, "dropout": 0.2, "steps_per_call": 1}


def test_the_script_is_bash():
    subprocess.run(["bash", "-n", SCRIPT], check=True)


def test_a_job_that_fails_ends_with_its_exit_code_and_does_not_come_back(slurm, tmp_path):
    job = slurm.submit(tmp_path, steps=-1)
    assert job.end() == ("FAILED", "2:0")
    assert "train: flag --steps=-1" in job.output()


@pytest.mark.slow
def test_requeued_twice_a_job_ends_with_the_weights_of_an_unbroken_one(slurm, tmp_path):
    unbroken = slurm.submit(tmp_path, **LONG)
    assert unbroken.end() == ("COMPLETED", "0:0"), unbroken.output()
    job, stopped = slurm.submit(tmp_path, **LONG), []
    for step in (150, 400):
        job.trained(step)
        job.signalled()
        job.requeued()
        stopped.append(job.last_step())
        assert step < stopped[-1] < LONG["steps"]
        assert newest_checkpoint(job.run_dir).name == f"ckpt-{stopped[-1]:08d}"
    assert job.end() == ("COMPLETED", "0:0"), job.output()
    assert "on 2 hosts, found in SLURM job" in job.output()
    for step in stopped:  # the log was written on
        assert f"resuming runs/slurm-{job.number} after step {step} of 1,000" in job.output()
    assert [row["step"] for row in rows(job.run_dir)] == list(range(5, 1001, 5))
    np.testing.assert_allclose(losses(job.run_dir), losses(unbroken.run_dir), atol=1e-6)
    same_weights(job.run_dir, unbroken.run_dir)


@pytest.mark.slow
def test_a_job_is_requeued_no_more_often_than_allowed(slurm, tmp_path):
    job = slurm.submit(tmp_path, environment={"MOST_REQUEUES": "0"}, **LONG)
    job.trained(20)
    job.signalled()
    assert job.end() == ("FAILED", "143:0"), job.output()
    assert "not requeued: 0 times before" in job.output()
    assert newest_checkpoint(job.run_dir).name == f"ckpt-{job.last_step():08d}"


@pytest.mark.slow
def test_a_cancelled_job_saves_first_and_does_not_come_back(slurm, tmp_path):
    job = slurm.submit(tmp_path, **LONG)
    job.trained(20)
    slurm.run("scancel", job.number)
    assert job.end()[0] == "CANCELLED", job.output()
    wait_for(lambda: (job.run_dir / "result.json").exists(), 30, job.output)
    assert newest_checkpoint(job.run_dir).name == f"ckpt-{job.last_step():08d}"


@pytest.mark.slow
def test_a_training_that_does_not_stop_in_time_is_requeued_all_the_same(slurm, tmp_path):
    asked = {**LONG, "steps": 400, "evaluate_steps": 20}
    job = slurm.submit(tmp_path, environment={"PATIENCE": "3"}, **asked)
    job.trained(30)
    slurm.run("scancel", "--signal=STOP", f"{job.number}.0")
    job.signalled()
    job.requeued()
    assert job.end() == ("COMPLETED", "0:0"), job.output()
    assert f"resuming runs/slurm-{job.number} after step " in job.output()


@pytest.mark.slow
def test_every_node_stages_the_data_and_trains_on_its_copy(slurm, tmp_path):
    data, disk = write_records(tmp_path / "data"), tmp_path / "ssd"
    disk.mkdir()
    asked = {"batch_size": 4, "model": "small_convnet", "image_size": 16, "steps": 3}
    job = slurm.submit(tmp_path, data=f"records:{data}", stage_to=disk, **asked)
    assert job.end() == ("COMPLETED", "0:0"), job.output()
    assert len(re.findall(rf"data +staged: \d+ files in {disk}/", job.output())) == 2


def same_weights(run_dir, other):
    """All of the last checkpoint, Adam's moments too, but for the order of two hosts' sums."""
    expected, got = tensors(other), tensors(run_dir)
    assert expected.keys() == got.keys() and len(expected) > 20
    for name, value in expected.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-6, err_msg=name)
        else:
            assert np.array_equal(got[name], value), name
