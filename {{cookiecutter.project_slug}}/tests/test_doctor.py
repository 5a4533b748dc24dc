"""The doctor tells each cause of "TensorFlow does not use my GPU" apart, from recorded facts.

No test needs a GPU: what a machine shows is recorded here, log lines as TensorFlow 2.21 wrote them.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from {{cookiecutter.package_name}} import doctor, gpu_facts
from {{cookiecutter.package_name}}.gpu_causes import diagnose
from {{cookiecutter.package_name}}.gpu_facts import Card, Facts, Gpu

GIB = 2**30
PCI = "sys/bus/pci/devices/01/"
KERNELS = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")  # of TensorFlow 2.21's CUDA wheel

LAPTOP = Facts(python="3.11.7", tensorflow="2.21.0", cuda_build=False, usable_cpus=8)
SERVER = dataclasses.replace(
    LAPTOP,
    cuda_build=True,
    cuda_version="12.5.1",
    cudnn_version="9",
    kernels=KERNELS,
    driver_version="550.54.14",
    pci_drivers=("nvidia", "nvidia"),
    device_nodes=("/dev/nvidia0", "/dev/nvidia1"),
    cards=(Card(0, "A100", 40 * GIB, GIB), Card(1, "A100", 40 * GIB, GIB)),
)
A100 = Gpu("A100", (8, 0))
WORKING = dataclasses.replace(SERVER, gpus=(A100, A100), trial="ok")
# The CUDA wheel on a machine with one card, whose TensorFlow lists nothing.
SILENT = dataclasses.replace(
    SERVER, pci_drivers=("nvidia",), device_nodes=("/dev/nvidia0",), cards=()
)
# An unprivileged container on such a machine: the bus and the module show, the card does not.
CONTAINER = dataclasses.replace(
    SILENT, container="docker", device_nodes=(), libcuda_error="libcuda.so.1: cannot open"
)
WSL = dataclasses.replace(LAPTOP, cuda_build=True, wsl=True, wsl_device=True)
CUINIT = "E0000 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: "
CUINIT += "Failed call to cuInit: "
MISMATCH = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported display driver / cuda "
MISMATCH += "driver combination"
CUDNN = "E0000 cuda_dnn.cc:530] Loaded runtime CuDNN library: 9.1.0 but source was compiled with: "
CUDNN += "9.3.0.  CuDNN library needs to have matching major version"
PTX = "killed by signal 6: LLVM ERROR: PTX version 8.5 does not support target 'sm_120'"


def facts(base: Facts, **changes: object) -> Facts:
    return dataclasses.replace(base, **changes)


def one_gpu(name: str, capability: tuple[int, int], trial: str = "ok", **changes: object) -> Facts:
    return facts(SILENT, gpus=(Gpu(name, capability),), trial=trial, **changes)


# What was recorded, --gpus, the cause at the front, a part of its remedy, the exit code.
CASES = {
    "two GPUs in order": (WORKING, -1, "gpus_usable", "", 0),
    "a job granted two GPUs of eight": (
        facts(WORKING, pci_drivers=("nvidia",) * 8),
        -1,
        "gpus_usable",
        "",
        0,
    ),
    "more wanted than there are": (WORKING, 4, "too_few_gpus", "--gpus=2", 1),
    "one of two has failed": (facts(WORKING, gpus=(A100,)), -1, "too_few_gpus", "dmesg", 1),
    "no GPU and none wanted": (LAPTOP, -1, "cpu_usable", "", 0),
    "no GPU but one wanted": (LAPTOP, 1, "no_nvidia_gpu", "sbatch --gpus=1", 1),
    "a Mac": (facts(LAPTOP, system="Darwin", machine="arm64"), -1, "cpu_usable", "", 0),
    "GPUs that are not asked for": (facts(SERVER, cuda_build=False), 0, "cpu_usable", "", 0),
    "no driver": (
        facts(SILENT, device_nodes=(), driver_version="", pci_drivers=("nouveau",)),
        -1,
        "no_driver",
        "modprobe nvidia",
        1,
    ),
    "docker without --gpus": (CONTAINER, -1, "no_device_nodes", "docker run --gpus all", 1),
    "docker told to show none": (
        facts(CONTAINER, nvidia_visible_devices="void"),
        -1,
        "no_device_nodes",
        "-e NVIDIA_VISIBLE_DEVICES=all",
        1,
    ),
    "apptainer without --nv": (
        facts(CONTAINER, container="apptainer"),
        -1,
        "no_device_nodes",
        "apptainer exec --nv",
        1,
    ),
    "a pod without a limit": (
        facts(CONTAINER, container="kubernetes"),
        -1,
        "no_device_nodes",
        "nvidia.com/gpu: 1",
        1,
    ),
    "device nodes not made": (
        facts(SILENT, device_nodes=()),
        -1,
        "no_device_nodes",
        "nvidia-modprobe",
        1,
    ),
    "docker without the compute capability": (
        facts(SILENT, container="docker", libcuda_error="libcuda.so.1: cannot open"),
        -1,
        "no_libcuda",
        "NVIDIA_DRIVER_CAPABILITIES=compute",
        1,
    ),
    "half a driver": (
        facts(SILENT, libcuda_error="libcuda.so.1: cannot open"),
        -1,
        "no_libcuda",
        "libnvidia-compute-550",
        1,
    ),
    "WSL 1": (facts(WSL, wsl_device=False), 1, "wsl_without_gpu", "wsl --set-version", 1),
    "WSL without NVIDIA's driver": (
        facts(WSL, libcuda_error="libcuda.so.1: cannot open"),
        1,
        "wsl_without_driver",
        "NVIDIA's driver for Windows",
        1,
    ),
    "WSL on a machine that may have no NVIDIA GPU": (
        facts(WSL, libcuda_error="libcuda.so.1: cannot open"),
        -1,
        "wsl_without_driver",
        "NVIDIA's driver for Windows",
        0,
    ),
    "docker in WSL": (
        facts(WSL, wsl_device=False, container="docker"),
        1,
        "no_device_nodes",
        "docker run --gpus all",
        1,
    ),
    "WSL with the CPU wheel": (
        facts(WSL, cuda_build=False),
        -1,
        "cpu_only_wheel",
        "make install-cuda",
        1,
    ),
    "native Windows": (
        facts(SERVER, system="Windows", cuda_build=False, device_nodes=(), pci_drivers=()),
        -1,
        "windows",
        "wsl --install",
        1,
    ),
    "the CPU wheel beside GPUs": (
        facts(SERVER, cuda_build=False),
        -1,
        "cpu_only_wheel",
        "make install-cuda",
        1,
    ),
    "cards that nvidia-smi lists prove the driver": (
        facts(SERVER, cuda_build=False, device_nodes=()),
        -1,
        "cpu_only_wheel",
        "make install-cuda",
        1,
    ),
    "CUDA libraries not installed": (
        facts(SERVER, missing_libraries={"libcudnn.so.9": "", "libcublas.so.12": ""}),
        -1,
        "cuda_libraries",
        "make install-cuda",
        1,
    ),
    "a CUDA library installed where TensorFlow does not look": (
        facts(SERVER, missing_libraries={"libcusolver.so.11": "/v/nvidia/cusolver/lib"}),
        -1,
        "cuda_libraries",
        "export LD_LIBRARY_PATH=/v/nvidia/cusolver/lib",
        1,
    ),
    "driver updated, module not": (
        facts(SILENT, log=(CUINIT + MISMATCH,)),
        -1,
        "driver_mismatch",
        "reboot",
        1,
    ),
    "the same, said by nvidia-smi": (
        facts(SILENT, smi_error="Failed to initialize NVML: Driver/library version mismatch"),
        -1,
        "driver_mismatch",
        "reboot",
        1,
    ),
    "a driver packed into the image": (
        facts(SILENT, container="docker", log=(CUINIT + MISMATCH,)),
        -1,
        "driver_mismatch",
        "out of the image",
        1,
    ),
    "a driver below NVIDIA's minimum": (
        facts(SERVER, driver_version="470.256.02"),
        -1,
        "driver_too_old",
        "update the NVIDIA driver",
        1,
    ),
    "a driver the CUDA runtime refuses": (
        one_gpu("A100", (8, 0), "CUDA driver version is insufficient for CUDA runtime version"),
        -1,
        "driver_too_old",
        "update the NVIDIA driver",
        1,
    ),
    "cuInit finds no device": (
        facts(SILENT, log=(CUINIT + "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",)),
        -1,
        "cuda_init",
        "nvidia-smi -L",
        1,
    ),
    "no reason to be seen": (SILENT, -1, "unknown", "TF_CPP_MAX_VLOG_LEVEL", 1),
    "hidden by an empty variable": (
        facts(SERVER, cuda_visible_devices=""),
        -1,
        "hidden",
        "CUDA_VISIBLE_DEVICES=0,1",
        1,
    ),
    "hidden by -1": (
        facts(SERVER, cuda_visible_devices="-1"),
        -1,
        "hidden",
        "unset CUDA_VISIBLE_DEVICES",
        1,
    ),
    "a number this machine lacks": (
        facts(SERVER, cuda_visible_devices="2,0"),
        -1,
        "hidden",
        "CUDA_VISIBLE_DEVICES=0,1",
        1,
    ),
    "one selected, two wanted": (
        facts(WORKING, cuda_visible_devices="1", gpus=(A100,)),
        2,
        "hidden",
        "CUDA_VISIBLE_DEVICES=0,1",
        1,
    ),
    "one selected of two": (
        facts(WORKING, cuda_visible_devices="1", gpus=(A100,)),
        -1,
        "gpus_usable",
        "",
        0,
    ),
    "a GPU older than every kernel": (
        one_gpu("GTX 980", (5, 2)),
        -1,
        "gpu_too_old",
        "newer GPU",
        1,
    ),
    "a binary of the same major version": (one_gpu("T4", (7, 5)), -1, "gpus_usable", "", 0),
    "compute_90 is a binary too": (one_gpu("H100", (9, 0)), -1, "gpus_usable", "", 0),
    "RTX 50: LLVM knows no sm_120": (
        one_gpu("RTX 5090", (12, 0), PTX),
        -1,
        "gpu_too_new",
        "nvcr.io/nvidia/tensorflow",
        1,
    ),
    "RTX 50 that computes all the same": (
        one_gpu("RTX 5090", (12, 0)),
        -1,
        "compiles_kernels",
        "CUDA_CACHE_MAXSIZE",
        0,
    ),
    "RTX 50 with a build for it": (
        one_gpu("RTX 5090", (12, 0), kernels=("sm_90", "compute_120")),
        -1,
        "gpus_usable",
        "",
        0,
    ),
    "kernels compiled from PTX": (
        one_gpu("H100", (9, 0), kernels=("sm_80", "compute_86")),
        -1,
        "compiles_kernels",
        "CUDA_CACHE_MAXSIZE",
        0,
    ),
    "another package's cuDNN": (
        one_gpu("A100", (8, 0), "DNN library initialization failed.", log=(CUDNN,)),
        -1,
        "cudnn_mismatch",
        "make install-cuda",
        1,
    ),
    "a GPU that cannot compute": (
        one_gpu("A100", (8, 0), "CUDA_ERROR_ECC_UNCORRECTABLE"),
        -1,
        "trial_failed",
        "nvidia-smi -q",
        1,
    ),
    "no memory for a trial": (
        one_gpu("A100", (8, 0), "failed to allocate: CUDA_ERROR_OUT_OF_MEMORY"),
        -1,
        "gpu_memory",
        "nvidia-smi",
        1,
    ),
    "memory taken by another process": (
        facts(WORKING, cards=(Card(0, "A100", 40 * GIB, 39 * GIB), WORKING.cards[1])),
        -1,
        "gpu_memory",
        "nvidia-smi",
        0,
    ),
    "memory taken on a GPU that is not selected": (
        facts(
            WORKING,
            gpus=(A100,),
            cuda_visible_devices="1",
            cards=(Card(0, "A100", 40 * GIB, 39 * GIB), WORKING.cards[1]),
        ),
        -1,
        "gpus_usable",
        "",
        0,
    ),
    "no TensorFlow": (facts(LAPTOP, tensorflow=""), -1, "no_tensorflow", "make install", 1),
    "TensorFlow dies at import": (
        facts(LAPTOP, cuda_build=None, start="killed by signal 4", log=("illegal instruction",)),
        -1,
        "no_start",
        "make install",
        1,
    ),
}


@pytest.mark.parametrize(
    ("recorded", "wanted", "name", "remedy", "code"), CASES.values(), ids=CASES
)
def test_cause_remedy_and_exit_code(recorded, wanted, name, remedy, code):
    findings = diagnose(recorded, wanted)
    first = findings[0]
    assert (first.name, doctor.exit_code(findings)) == (name, code)
    assert remedy in first.remedy and bool(remedy) == bool(first.remedy)
    assert "\n" not in first.reason + first.remedy
    assert (findings[-1].severity == "ok") == (code == 0)


def test_independent_causes_are_all_named():
    recorded = facts(SERVER, cuda_build=False, cuda_visible_devices="-1")
    assert [finding.name for finding in diagnose(recorded, 1)] == ["hidden", "cpu_only_wheel"]


def test_reasons_carry_what_was_found():
    missing = facts(SERVER, missing_libraries={"libcudnn.so.9": "", "libcuda.so.1": ""})
    assert diagnose(missing, 1)[0].reason == "TensorFlow cannot load libcudnn.so.9"
    old = diagnose(facts(SERVER, driver_version="470.256.02"), 1)[0].reason
    assert "470.256.02" in old and "525.60.13" in old
    mismatch = diagnose(one_gpu("A100", (8, 0), "failed", log=(CUDNN,)), 1)[0].reason
    assert "9.1.0" in mismatch and "9.3.0" in mismatch


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An empty machine to put hardware into: what /dev, /proc and /sys would show."""
    monkeypatch.setattr(gpu_facts, "ROOT", tmp_path / "root")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()

    def put(path: str, text: str = "") -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("files", "present"),
    [
        ({}, False),
        ({"dev/nvidiactl": ""}, False),
        ({"dev/nvidia0": ""}, True),
        ({"proc/driver/nvidia/version": "NVRM version: ..."}, True),
        ({PCI + "vendor": "0x10de", PCI + "class": "0x030200"}, True),
        ({PCI + "vendor": "0x10de", PCI + "class": "0x040300"}, False),
        ({PCI + "vendor": "0x1002", PCI + "class": "0x030000"}, False),
        ({"dev/dxg": ""}, False),
        ({"dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": ""}, True),
    ],
)
def test_hardware_is_seen_without_tensorflow(machine, files, present):
    for path, text in files.items():
        machine(f"root/{path}", text)
    assert doctor.gpu_hardware_present() is present


SMI = """#!/bin/sh
echo '0, NVIDIA A100-SXM4-40GB, 40960, 1024, 550.54.14'
echo '1, NVIDIA A100-SXM4-40GB, [N/A], [N/A], 550.54.14'
"""


def test_facts_of_a_machine_are_gathered(machine, monkeypatch):
    module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build"
    machine("root/proc/driver/nvidia/version", module)
    machine("root/proc/version", "Linux version 5.15.90.1-microsoft-standard-WSL2")
    machine("root/dev/nvidia0")
    machine("root/.dockerenv")
    machine(f"root/{PCI}vendor", "0x10de\n")
    machine(f"root/{PCI}class", "0x030000\n")
    machine("bin/nvidia-smi", SMI)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    found = doctor.gather_facts()
    assert found.driver_version == "550.54.14"
    assert found.device_nodes == ("/dev/nvidia0",)
    assert found.pci_drivers == ("",)
    assert found.wsl and found.container == "docker"
    assert found.cuda_visible_devices == "-1"
    name = "NVIDIA A100-SXM4-40GB"
    assert found.cards == (Card(0, name, 40 * GIB, GIB), Card(1, name, None, None))
    # TensorFlow was really started: only it knows how it was built.
    assert found.cuda_build is not None and found.tensorflow and found.keras
    assert found.usable_cpus >= 1 and 0 < found.memory_limit <= found.memory_total
    assert all(free > 0 for free in found.disk_free.values())
    assert not any("oneDNN" in line for line in found.log)


@pytest.mark.parametrize("text", ["NVML: Driver/library version mismatch", "No devices were found"])
def test_failing_nvidia_smi_is_quoted(machine, text):
    machine("bin/nvidia-smi", f"#!/bin/sh\necho '{text}'\nexit 18\n")
    assert doctor.gather_facts(0.1).smi_error == text


def test_hanging_tensorflow_is_given_up(machine):
    found = doctor.gather_facts(0.1)
    assert found.start.startswith("no answer within") and found.cuda_build is None


def test_missing_libraries_are_named_with_the_place_they_lie_in(tmp_path, monkeypatch):
    place = tmp_path / "nvidia" / "cusolver" / "lib"
    place.mkdir(parents=True)
    (place / "libcusolver.so.11").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    log = [
        "I0000 dso_loader.cc:133] Successfully opened dynamic library libcuda.so.1",
        "I0000 dso_loader.cc:144] Could not load dynamic library 'libcusolver.so.11'; dlerror: ...",
        "I0000 dso_loader.cc:144] Could not load dynamic library 'libnone.so.1'; dlerror: ...",
    ]
    expected = {"libcusolver.so.11": str(place), "libnone.so.1": ""}
    assert gpu_facts.missing_libraries(log) == expected


def test_error_messages_get_one_line(machine, monkeypatch):
    machine("root/dev/nvidia0")
    machine("root/proc/driver/nvidia/version", "NVRM version: NVIDIA 550.54.14")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    line = doctor.why_no_gpus()
    assert line.startswith("CUDA_VISIBLE_DEVICES='-1' leaves none of 1 GPU; ")
    assert line.endswith("export CUDA_VISIBLE_DEVICES=0") and "\n" not in line


def run(*flags: str, **environment: str) -> subprocess.CompletedProcess:
    package = doctor.__name__.split(".")[0]
    source = str(Path(doctor.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", f"{package}.doctor", *flags],
        env={**os.environ, "PYTHONPATH": source, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_command_answers_here():
    result = run("--gpus=0")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("usable: ")
    assert "\033" not in result.stdout  # colours are for terminals


def test_command_demands_gpus_and_reports_as_json():
    result = run("--gpus=99", "--json")
    report = json.loads(result.stdout)
    assert (result.returncode, result.stderr, report["usable"]) == (1, "", False)
    assert report["findings"][0]["severity"] == "error" and report["findings"][0]["remedy"]
    assert report["facts"]["tensorflow"]


def test_command_says_why_not_and_what_to_do():
    result = run("--gpus=99")
    assert (result.returncode, result.stderr) == (1, "")
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("not usable") and "Traceback" not in result.stdout
    error = next(index for index, line in enumerate(lines) if line.startswith("error"))
    assert lines[error + 1].startswith("what to do")


@pytest.mark.parametrize("flag", ["--gpu=1", "--gpus=x", "--gpus=-2", "gpus"])
def test_bad_flag_is_one_line_and_2(flag):
    result = run(flag)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1 and flag.split("=")[0].strip("-") in result.stderr
