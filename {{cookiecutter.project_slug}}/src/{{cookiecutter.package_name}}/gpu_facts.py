"""What this machine and its TensorFlow show about GPUs; `gpu_causes` explains it."""

import ctypes
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .runtime import NOISE, memory_limit, start_tensorflow, usable_cpus

ROOT = Path("/")  # where the kernel shows its hardware; tests put a recorded tree here

NVIDIA = "0x10de"  # NVIDIA's vendor number on the PCI bus
DISPLAY = "0x03"  # the PCI class of display devices; an NVIDIA card has an audio device too

# TensorFlow's first start from a cold network disk takes a minute. Compiling kernels for a GPU it
# has none for can take half an hour: that is then reported, not waited for.
PROBE_S = 180.0

# What TensorFlow writes on every start beside `runtime.NOISE`.
PLEASANTRIES = (
    *NOISE,
    "This TensorFlow binary is optimized",
    "To enable the following instructions",
    "Successfully opened dynamic library",
)


@dataclasses.dataclass(frozen=True)
class Card:
    """A GPU as nvidia-smi lists it; memory in bytes, None where nvidia-smi does not tell."""

    index: int
    name: str
    memory_total: int | None
    memory_used: int | None


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU as TensorFlow lists it."""

    name: str
    compute_capability: tuple[int, int] | None


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a machine and its TensorFlow show. Empty where there is none of it.

    Attributes:
      system, machine: such as "Linux" and "x86_64".
      wsl: Linux runs inside Windows (WSL).
      wsl_device: WSL's way to the GPU, /dev/dxg, is there. Any GPU has it, not only NVIDIA's.
      container: docker, podman, apptainer or kubernetes.
      python, tensorflow, keras: versions.
      cuda_build: TensorFlow was built for CUDA; None when it did not get as far as telling.
      cuda_version, cudnn_version: what TensorFlow was built with.
      kernels: the architectures its kernels were compiled for, such as sm_80 or compute_90.
      driver_version: of the NVIDIA module in the running kernel (inside WSL: of Windows).
      pci_drivers: for each NVIDIA display device on the PCI bus, the kernel driver that holds it.
      device_nodes: such as /dev/nvidia0.
      cards: what nvidia-smi lists.
      smi_error: what nvidia-smi says when it fails.
      libcuda_error: why the driver's libcuda.so.1 cannot be loaded.
      cuda_visible_devices, nvidia_visible_devices: these variables; None when not set.
      gpus: what TensorFlow lists.
      missing_libraries: the libraries TensorFlow could not load, each with the place where it lies
        all the same.
      start: how TensorFlow's start in a process of its own ended: "" for well.
      trial: what became of a small computation on every listed GPU: "ok", an error, or "" when
        there was nothing to try.
      log: what TensorFlow wrote meanwhile, without what it always writes.
      usable_cpus: CPUs this process may keep busy.
      memory_total, memory_limit: bytes of memory in the machine, and granted to this process.
      disk_free: bytes free, by directory.
    """

    system: str = "Linux"
    machine: str = "x86_64"
    wsl: bool = False
    wsl_device: bool = False
    container: str = ""
    python: str = ""
    tensorflow: str = ""
    keras: str = ""
    cuda_build: bool | None = None
    cuda_version: str = ""
    cudnn_version: str = ""
    kernels: tuple[str, ...] = ()
    driver_version: str = ""
    pci_drivers: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()
    smi_error: str = ""
    libcuda_error: str = ""
    cuda_visible_devices: str | None = None
    nvidia_visible_devices: str | None = None
    gpus: tuple[Gpu, ...] = ()
    missing_libraries: dict[str, str] = dataclasses.field(default_factory=dict)
    start: str = ""
    trial: str = ""
    log: tuple[str, ...] = ()
    usable_cpus: int = 1
    memory_total: int = 0
    memory_limit: int = 0
    disk_free: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def gpus_present(self) -> int:
        """GPUs the hardware shows this process.

        nvidia-smi first: in a container or under SLURM the PCI bus shows the whole machine, and
        nvidia-smi what was granted.
        """
        within_wsl = self.wsl and self.wsl_device and not self.libcuda_error
        shown = len(self.cards) or len(self.device_nodes) or len(self.pci_drivers)
        shown = shown or int(within_wsl or bool(self.driver_version))
        return max(shown, len(self.gpus))

    @property
    def gpus_selected(self) -> int:
        """How many of them CUDA_VISIBLE_DEVICES leaves. CUDA ends the list at a name it lacks."""
        if self.cuda_visible_devices is None:
            return self.gpus_present
        selected = 0
        for name in self.cuda_visible_devices.split(","):
            known = name.strip().isdigit() and int(name) < self.gpus_present
            if not known and not name.strip().startswith(("GPU-", "MIG-")):
                break
            selected += 1
        return selected


def gpu_hardware_present() -> bool:
    """Whether this machine shows an NVIDIA GPU to this process. Takes no TensorFlow and no time."""
    return bool(
        _device_nodes()
        or _read("proc/driver/nvidia/version")
        or _pci_drivers()
        # Any GPU of a Windows machine gives WSL /dev/dxg; only NVIDIA's driver adds libcuda.
        or ((ROOT / "dev/dxg").exists() and (ROOT / "usr/lib/wsl/lib/libcuda.so.1").exists())
    )


def gather_facts(limit_s: float = PROBE_S) -> Facts:
    """Looks at hardware, driver, container and environment, and starts TensorFlow beside them.

    Args:
      limit_s: seconds that TensorFlow's start in a process of its own may take.
    """
    driver = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", _read("proc/driver/nvidia/version"))
    cards, smi_driver, smi_error = _nvidia_smi(min(limit_s, 10))
    found = Facts(
        system=platform.system(),
        machine=platform.machine(),
        wsl="microsoft" in _read("proc/version").lower(),
        wsl_device=(ROOT / "dev/dxg").exists(),
        container=_container(),
        python=platform.python_version(),
        tensorflow=_version("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly"),
        keras=_version("keras"),
        driver_version=driver[0] if driver else smi_driver,
        pci_drivers=_pci_drivers(),
        device_nodes=_device_nodes(),
        cards=cards,
        smi_error=smi_error,
        libcuda_error=_libcuda_error(),
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        nvidia_visible_devices=os.environ.get("NVIDIA_VISIBLE_DEVICES"),
        usable_cpus=usable_cpus(),
        memory_total=_memory_total(),
        memory_limit=memory_limit() if _memory_total() else 0,
        disk_free={
            str(path): shutil.disk_usage(path).free
            for path in dict.fromkeys([Path.cwd(), Path(tempfile.gettempdir())])
        },
    )
    return _with_probe(found, limit_s) if found.tensorflow else found


def _with_probe(found: Facts, limit_s: float) -> Facts:
    """Starts TensorFlow as a run does, in a process that may hang or die, and adds what it told."""
    package = __package__ or ""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)]),
        "TF_CPP_MIN_LOG_LEVEL": "0",
        # Without it TensorFlow says that libraries are missing, but not which.
        "TF_CPP_VMODULE": "dso_loader=1",
    }
    command = [sys.executable, "-c", f"from {package} import gpu_facts; gpu_facts.probe()"]
    told: dict[str, Any] = {}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        try:
            code = subprocess.run(
                command, env=environment, stdout=out, stderr=log, timeout=limit_s, check=False
            ).returncode
            ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}" * bool(code)
        except subprocess.TimeoutExpired:
            ended = f"no answer within {limit_s:.0f} s"
        for line in _lines(out):
            if line.startswith("{"):
                told.update(json.loads(line))
        lines = _lines(log)
    news = tuple(filter(_is_news, lines))
    gpus = tuple(
        Gpu(name, tuple(capability) if capability else None)  # type: ignore[arg-type]
        for name, capability in told.get("gpus", [])
    )
    return dataclasses.replace(
        found,
        cuda_build=told.get("is_cuda_build"),
        cuda_version=told.get("cuda_version", ""),
        cudnn_version=told.get("cudnn_version", ""),
        kernels=tuple(told.get("cuda_compute_capabilities", [])),
        gpus=gpus,
        missing_libraries=missing_libraries(lines),
        start="" if "gpus" in told else ended,
        # A process that died in the middle of computing left its reason in the log, if anywhere.
        trial=told.get("trial") or (": ".join([ended, *news[-1:]]) if gpus else ""),
        log=news,
    )


def probe() -> None:
    """Starts TensorFlow, lists its GPUs, computes on each; prints a line of JSON after each part.

    Runs in a process of its own: a driver that does not fit can kill it.
    """
    start_tensorflow()
    import tensorflow as tf

    print(json.dumps(dict(tf.sysconfig.get_build_info())), flush=True)
    devices = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(device) for device in devices]
    gpus = [(d.get("device_name", "GPU"), d.get("compute_capability")) for d in details]
    print(json.dumps({"gpus": gpus}), flush=True)
    if not devices:
        return
    try:
        for device in tf.config.list_logical_devices("GPU"):
            with tf.device(device.name):
                # cuDNN is loaded by the first convolution, and XLA compiles for the GPU's
                # architecture: what goes wrong there, goes wrong before an hour of input is read.
                images = tf.nn.conv2d(tf.ones([1, 8, 8, 4]), tf.ones([3, 3, 4, 4]), 1, "SAME")
                tf.function(tf.reduce_sum, jit_compile=True)(images).numpy()
        trial = "ok"
    except Exception as error:  # whatever TensorFlow raises is the finding
        trial = " ".join(str(error).split())[:500] or type(error).__name__
    print(json.dumps({"trial": trial}), flush=True)


def _lines(file: Any) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").splitlines()


def _is_news(line: str) -> bool:
    return bool(line.strip()) and not any(phrase in line for phrase in PLEASANTRIES)


def missing_libraries(log: list[str]) -> dict[str, str]:
    """The libraries TensorFlow could not load, each with the pip package's directory it lies in."""
    missing = re.findall(r"Could not load dynamic library '([^']+)'", "\n".join(log))
    places = [
        place
        for entry in filter(None, sys.path)
        for place in Path(entry).glob("nvidia/*/lib")
        if place.is_dir()
    ]
    return {
        name: next((str(place) for place in places if (place / name).exists()), "")
        for name in missing
    }


def _nvidia_smi(limit_s: float) -> tuple[tuple[Card, ...], str, str]:
    """What nvidia-smi lists: the cards, the driver's version, and its complaint when it fails."""
    program = shutil.which("nvidia-smi")
    if not program:
        return (), "", ""
    fields = "index,name,memory.total,memory.used,driver_version"
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return (), "", f"nvidia-smi: no answer within {limit_s:.0f} s"
    except OSError as error:
        return (), "", f"nvidia-smi: {error.strerror}"
    if result.returncode:
        return (), "", " ".join((result.stdout + result.stderr).split())
    rows = [[cell.strip() for cell in line.split(",")] for line in result.stdout.splitlines()]
    rows = [row for row in rows if len(row) == 5 and row[0].isdigit()]
    cards = [Card(int(row[0]), row[1], _mebibytes(row[2]), _mebibytes(row[3])) for row in rows]
    return tuple(cards), rows[0][4] if rows else "", ""


def _mebibytes(text: str) -> int | None:
    return int(text) * 2**20 if text.isdigit() else None  # MIG devices have "[N/A]"


def _device_nodes() -> tuple[str, ...]:
    nodes = (ROOT / "dev").glob("nvidia[0-9]*")
    return tuple(sorted(f"/dev/{node.name}" for node in nodes))


def _pci_drivers() -> tuple[str, ...]:
    """The kernel driver of each NVIDIA display device on the PCI bus; "" where none holds it."""
    held = []
    for device in sorted((ROOT / "sys/bus/pci/devices").glob("*")):
        kind = _read(f"sys/bus/pci/devices/{device.name}/class")
        if _read(f"sys/bus/pci/devices/{device.name}/vendor") == NVIDIA and kind.startswith(
            DISPLAY
        ):
            driver = device / "driver"
            held.append(driver.resolve().name if driver.exists() else "")
    return tuple(held)


def _container() -> str:
    """The kind of container this runs in, which decides how it is given GPUs; "" for none."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    marks = {"apptainer": ".singularity.d", "podman": "run/.containerenv", "docker": ".dockerenv"}
    return next((kind for kind, mark in marks.items() if (ROOT / mark).exists()), "")


def _libcuda_error() -> str:
    if platform.system() != "Linux":
        return ""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    return ""


def _memory_total() -> int:
    if not hasattr(os, "sysconf"):  # native Windows, where this command must still say what to do
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _read(path: str) -> str:
    try:
        return (ROOT / path).read_text(errors="replace").strip()
    except OSError:
        return ""


def gib(size: int) -> str:
    """A size in bytes, in words."""
    return f"{size / 2**30:.1f} GiB"
