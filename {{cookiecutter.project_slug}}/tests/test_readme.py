"""Every command of the README: its flags are there, and it runs, or it is said why not here."""

import os
import re
import subprocess
import sys

import pytest
from test_playbook import PACKAGE, PROJECT, check, commands_shown
from test_sources import write_folder

README = (PROJECT / "README.md").read_text(encoding="utf-8")
SHOWN = [" ".join(words).rstrip(")") for words in commands_shown(README)]
MAKEFILE = (PROJECT / "Makefile").read_text(encoding="utf-8")
TARGETS = sorted(set(re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)", README)))

# A command: what is added to it, so that it takes seconds. In this order, in one directory.
RUN = {
    "prepare folder:photos data/photos": [],
    "prepare --check=data/photos": [],
    "train --data=records:data/photos --augment=device": [
        "--steps=2",
        "--batch_size=4",
        "--image_size=32",
        "--model=small_convnet",
    ],
    "train": ["--data=digits", "--steps=20", "--run_dir=runs/one"],
    "train --data=digits --epochs=5": ["--run_dir=runs/another"],
    "compare runs/one runs/another": [],
    "stage ls": [],
    "doctor": [],
}
MINUTES = {
    "compare --batch_size=32 --batch_size=128 --common=--data=digits": ["--pairs=2"],
    "train --find_batch_size --data=digits": [],
    "train --benchmark --scale=1,2 --logical_devices=1 --data=digits": [],
    "train --benchmark": ["--data=digits"],
}
A_BUCKET = "needs a bucket: test_staging_remote.py does it with a server on loopback"
MACHINES = "needs other machines: test_service.py does it with processes"
NOT_HERE = {
    "stage s3://bucket/photos": A_BUCKET,
    "train --data=records:$DATA": A_BUCKET,
    "train --data=records:s3://bucket/photos --stage_to=auto": A_BUCKET,
    "serve --port=5050": MACHINES,
    "serve --dispatcher=HOST:5050": MACHINES,
    "train --data_service=grpc://HOST:5050 --data=records:/shared/photos": MACHINES,
    "compare --ladder --common=--data=synthetic": "takes an hour: test_compare.py has the ladder",
    "train --benchmark --data=... --confirm": "takes ten minutes: test_real_bottlenecks.py has it",
}


def run(directory, command, more):
    name, *flags = command.split(" ")
    return subprocess.run(
        [sys.executable, "-m", f"{PACKAGE}.{name}", *flags, *more],
        cwd=directory,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TFSTAGE_SCRATCH": str(directory)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("words", commands_shown(README), ids=" ".join)
def test_a_command_is_there_and_takes_its_flags(words):
    check([word.rstrip(")") for word in words])


def test_every_command_is_run_or_it_is_said_why_not():
    assert {*RUN, *MINUTES, *NOT_HERE} == set(SHOWN)


@pytest.mark.parametrize("target", TARGETS)
def test_a_make_target_is_there(target):
    assert re.search(rf"^{target}:.*##", MAKEFILE, re.MULTILINE)


def test_the_commands_run_one_after_the_other(tmp_path):
    write_folder(tmp_path / "photos")
    for command, more in RUN.items():
        done = run(tmp_path, command, more)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("command", MINUTES)
def test_a_command_that_takes_minutes_runs(tmp_path, command):
    done = run(tmp_path, command, MINUTES[command])
    assert done.returncode == 0, done.stderr
