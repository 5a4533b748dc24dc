"""Why TensorFlow does not use the GPUs: rules from recorded facts to findings.

Nothing here looks at the machine, so that every rule is tested without the machine it is about.
"""

import dataclasses
import re

from .gpu_facts import Facts, Gpu, gib

# Lowest driver that runs programs built with each major version of CUDA, on Linux: NVIDIA's
# documented rule of minor version compatibility (docs.nvidia.com/deploy/cuda-compatibility). It was
# not measured here.
LOWEST_DRIVERS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}

# From here on the PTX in TensorFlow's wheels is not enough: LLVM knows no such target and aborts,
# or the driver refuses the kernels (tensorflow#111958, #97387).
BLACKWELL = (10, 0)

# Above this part of a GPU's memory in use by others, training is likely to run out of it.
NEARLY_FULL = 0.9

REINSTALL = "make install-cuda (it installs requirements/cuda.txt)"

# Part of the NVIDIA driver, not of CUDA: no pip package brings them.
DRIVER_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
      severity: ok, warning, or error (what was asked for is not usable).
      name: of the cause, for scripts.
      reason: what is so, in one line.
      remedy: what to do, in one line; empty where there is nothing to do.
    """

    severity: str
    name: str
    reason: str
    remedy: str = ""


def diagnose(facts: Facts, gpus_wanted: int) -> list[Finding]:
    """What keeps TensorFlow from using GPUs, the cause to mend first at the front.

    Args:
      facts: what was gathered.
      gpus_wanted: GPUs that must be usable; -1: as many as the hardware shows, or as
        CUDA_VISIBLE_DEVICES leaves of them.

    Returns:
      At least one finding; errors if and only if what is wanted is not usable.
    """
    if not facts.tensorflow:
        reason = f"TensorFlow is not installed for this Python {facts.python}"
        return [Finding("error", "no_tensorflow", reason, "make install")]
    wanted = gpus_wanted
    if gpus_wanted < 0:
        # Some selected: that is what was asked for. None: nobody notices, until training is slow.
        wanted = facts.gpus_selected or facts.gpus_present
    findings = _broken_start(facts)
    if len(facts.gpus) < wanted and not findings:
        findings = _missing(facts, wanted)
    findings += _listed(facts)
    if not wanted and not findings and facts.wsl_device and (cause := _without_wsl_driver(facts)):
        # Windows lends /dev/dxg for any GPU: whether this one is NVIDIA's cannot be told from here.
        findings = [cause]
    if not wanted:  # what is wrong with GPUs fails nothing, but is said all the same
        findings = [f if f.name == "no_start" else _warning(f) for f in findings]
    if any(finding.severity == "error" for finding in findings):
        return findings
    return [*findings, _usable(facts)]


def _warning(finding: Finding) -> Finding:
    return dataclasses.replace(finding, severity="warning")


def _usable(facts: Facts) -> Finding:
    if facts.gpus:
        names = ", ".join(gpu.name for gpu in facts.gpus)
        how = "computes on" if facts.trial == "ok" else "lists"
        reason = f"TensorFlow {how} {_count(len(facts.gpus), 'GPU')}: {names}"
        return Finding("ok", "gpus_usable", reason)
    why = "no GPU is asked for" if facts.gpus_present else "no NVIDIA GPU in this machine"
    cpus = _count(facts.usable_cpus, "CPU")
    return Finding("ok", "cpu_usable", f"{why}: TensorFlow trains on {cpus}")


def _broken_start(facts: Facts) -> list[Finding]:
    if not facts.start or facts.cuda_build is not None:  # it got past the import
        return []
    last = f": {facts.log[-1]}" if facts.log else ""
    reason = f"TensorFlow does not start ({facts.start}){last}"
    return [Finding("error", "no_start", reason, "make install, into a new environment")]


def _missing(facts: Facts, wanted: int) -> list[Finding]:
    """Why fewer GPUs than wanted are listed: independent causes, each mended on its own."""
    causes = [_hidden(facts, wanted), _without_driver(facts), _wrong_wheel(facts)]
    findings = [cause for cause in causes if cause]
    if not findings and not facts.gpus:
        findings = [_uninitialised(facts)]
    return findings or [_too_few(facts, wanted)]


def _hidden(facts: Facts, wanted: int) -> Finding | None:
    value, present = facts.cuda_visible_devices, facts.gpus_present
    if value is None or not present or facts.gpus_selected >= min(wanted, present):
        return None
    everything = ",".join(map(str, range(present)))
    leaves = f"leaves {facts.gpus_selected or 'none'} of {_count(present, 'GPU')}"
    reason = f"CUDA_VISIBLE_DEVICES={value!r} {leaves}; the numbers here are {everything}"
    remedy = f"unset CUDA_VISIBLE_DEVICES, or export CUDA_VISIBLE_DEVICES={everything}"
    return Finding("error", "hidden", reason, remedy)


def _without_driver(facts: Facts) -> Finding | None:
    """The first thing missing between the card and CUDA: card, driver, device node, library."""
    if facts.system == "Windows":
        reason = "TensorFlow has had no GPU support on native Windows since 2.11"
        remedy = "wsl --install in PowerShell, then make install-cuda inside WSL2"
        return Finding("error", "windows", reason, remedy)
    if facts.wsl:
        return _without_wsl_driver(facts)
    if not facts.gpus_present:
        reason = "no NVIDIA GPU in this machine: none on the PCI bus, no driver, no /dev/nvidia0"
        remedy = f"run on a machine that has one ({_ask_for_gpus(facts.container)})"
        return Finding("error", "no_nvidia_gpu", reason, remedy)
    if facts.gpus or facts.cards:
        return None
    if not facts.driver_version and not facts.device_nodes:
        held = ", ".join(sorted({driver or "no driver" for driver in facts.pci_drivers}))
        reason = f"an NVIDIA GPU is on the PCI bus, held by {held}: the NVIDIA driver is not loaded"
        where = " on the host" if facts.container else ""
        remedy = f"sudo modprobe nvidia{where}; if that fails, install the NVIDIA driver"
        return Finding("error", "no_driver", reason, f"{remedy}{where} and reboot")
    if not facts.device_nodes:
        reason = f"driver {facts.driver_version} is loaded, but there is no /dev/nvidia0"
        remedy = "sudo nvidia-modprobe -u -c 0"
        if facts.container:
            remedy = _ask_for_gpus(facts.container)
        if facts.nvidia_visible_devices in ("", "void", "none"):
            reason += f", and NVIDIA_VISIBLE_DEVICES={facts.nvidia_visible_devices!r}"
            remedy += " -e NVIDIA_VISIBLE_DEVICES=all"
        return Finding("error", "no_device_nodes", reason, remedy)
    return None


def _without_wsl_driver(facts: Facts) -> Finding | None:
    if not facts.wsl_device and facts.container:
        reason = "this container in WSL has no /dev/dxg"
        return Finding("error", "no_device_nodes", reason, _ask_for_gpus(facts.container))
    if not facts.wsl_device:
        reason = "WSL has no /dev/dxg: it is version 1, or older than GPU support"
        remedy = "wsl --update, then wsl --set-version <distribution> 2, in PowerShell"
        return Finding("error", "wsl_without_gpu", reason, remedy)
    if facts.libcuda_error:
        reason = "Windows lends WSL a GPU but no libcuda.so.1: not NVIDIA's, or without driver"
        remedy = (
            "install NVIDIA's driver for Windows (none inside WSL), then wsl --shutdown in "
            "PowerShell; in a container: docker run --gpus all"
        )
        return Finding("error", "wsl_without_driver", reason, remedy)
    return None


def _wrong_wheel(facts: Facts) -> Finding | None:
    """TensorFlow's own part: the build, and the CUDA libraries beside it."""
    if facts.gpus or not facts.gpus_present:
        return None
    if facts.cuda_build is False and facts.system != "Windows":
        reason = f"TensorFlow {facts.tensorflow} is the CPU-only build"
        return Finding("error", "cpu_only_wheel", reason, REINSTALL)
    missing = {
        name: place
        for name, place in facts.missing_libraries.items()
        if not name.startswith(DRIVER_LIBRARIES)
    }
    if not missing:
        return None
    reason = f"TensorFlow cannot load {', '.join(missing)}"
    if all(missing.values()):
        # TensorFlow 2.21.0 is such a case: it looks in the directories of the other CUDA packages
        # but not in that of libcusolver.so.11 (RUNPATH of libtensorflow_framework.so.2).
        places = ":".join(sorted(set(missing.values())))
        reason += ", which is installed where it does not look"
        remedy = f"export LD_LIBRARY_PATH={places}:$LD_LIBRARY_PATH"
    else:
        remedy = REINSTALL
    return Finding("error", "cuda_libraries", reason, remedy)


def _uninitialised(facts: Facts) -> Finding:
    """All parts are there, and CUDA does not start: versions that do not fit, or something else."""
    text = "\n".join([*facts.log, facts.smi_error])
    if "DRIVER_MISMATCH" in text or "version mismatch" in text:
        reason = "the driver's libraries are of another version than its kernel module"
        remedy = "reboot, which loads the module that was installed last"
        if facts.container:
            remedy = "take NVIDIA driver packages out of the image: the host lends the right ones"
        return Finding("error", "driver_mismatch", reason, remedy)
    if old := _old_driver(facts, text):
        return old
    if facts.libcuda_error:
        reason = f"the driver's own library does not load: {facts.libcuda_error}"
        branch = facts.driver_version.split(".")[0]
        remedy = "install the rest of the NVIDIA driver (Debian: sudo apt install libcuda1; "
        remedy += f"Ubuntu: sudo apt install libnvidia-compute-{branch})"
        if facts.container:
            remedy = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return Finding("error", "no_libcuda", reason, remedy)
    if failed := re.search(r"ailed call to cuInit: (?!\w+: CUDA error)(.+)", text):
        reason = f"CUDA does not start: {failed[1]}"
        remedy = (
            "nvidia-smi -L shows whether this job was granted a GPU; if it lists one: "
            "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm, or reboot"
        )
        return Finding("error", "cuda_init", reason, remedy)
    last = f"; its last word: {facts.log[-1]}" if facts.log else ""
    ended = f" ({facts.start})" if facts.start else ""
    reason = f"TensorFlow lists no GPU and does not say why{ended}{last}"
    remedy = 'TF_CPP_MAX_VLOG_LEVEL=3 python -c "import tensorflow as tf; '
    remedy += "tf.config.list_physical_devices('GPU')\""
    return Finding("error", "unknown", reason, remedy)


def _old_driver(facts: Facts, text: str) -> Finding | None:
    major = int(facts.cuda_version.split(".")[0]) if facts.cuda_version else 0
    lowest = LOWEST_DRIVERS.get(major, ())
    version = tuple(int(part) for part in re.findall(r"\d+", facts.driver_version))
    refused = "INSUFFICIENT_DRIVER" in text or "driver version is insufficient" in text
    # In WSL the numbers are those of the driver for Windows, which has other minimums.
    if not refused and (facts.wsl or not version or version >= lowest):
        return None
    reason = f"NVIDIA driver {facts.driver_version} is too old for CUDA {facts.cuda_version}"
    if version < lowest:
        reason += f", which takes {'.'.join(map(str, lowest))} or newer"
    where = " on the host" if facts.container else ""
    remedy = f"update the NVIDIA driver{where} (Ubuntu: sudo ubuntu-drivers install) and reboot"
    return Finding("error", "driver_too_old", reason, remedy)


def _too_few(facts: Facts, wanted: int) -> Finding:
    listed, present = len(facts.gpus), facts.gpus_present
    reason = f"TensorFlow lists {_count(listed, 'GPU')} of {wanted} wanted"
    if present < wanted:
        reason += f"; this machine shows {present}"
        remedy = f"--gpus={present}, or {_ask_for_gpus(facts.container)}"
    else:
        remedy = "nvidia-smi -L and sudo dmesg | grep -i xid tell whether one has failed"
    return Finding("error", "too_few_gpus", reason, remedy)


def _listed(facts: Facts) -> list[Finding]:
    """What is wrong with GPUs that TensorFlow does list."""
    findings = [finding for gpu in facts.gpus if (finding := _kernels(gpu, facts))]
    if facts.gpus and not findings and (failed := _failed_trial(facts)):
        findings.append(failed)
    return [*dict.fromkeys(findings), *_memory_in_use(facts)]  # the same card eight times: once


def _kernels(gpu: Gpu, facts: Facts) -> Finding | None:
    """Whether the wheel has kernels for a GPU's architecture.

    A binary runs on its own major version from its minor version on; PTX is compiled on the spot
    for anything newer. In TensorFlow's list "sm_XY" is a binary, "compute_XY" a binary and PTX.
    """
    built = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name) for name in facts.kernels]
    binaries = [(int(name[2]), int(name[3])) for name in built if name]
    if not binaries or not gpu.compute_capability:
        return None
    major, minor = gpu.compute_capability
    if any(binary[0] == major and binary[1] <= minor for binary in binaries):
        return None
    what = f"{gpu.name} has compute capability {major}.{minor}; TensorFlow {facts.tensorflow}"
    what += f" has kernels for {', '.join(facts.kernels)}"
    ptx = [(int(name[2]), int(name[3])) for name in built if name and name[1] == "compute"]
    if not any(version <= (major, minor) for version in ptx):
        remedy = f"train on a newer GPU, or build TensorFlow from source for {major}.{minor}"
        return Finding("error", "gpu_too_old", what, remedy)
    if (major, minor) >= BLACKWELL > max(ptx) and facts.trial != "ok":
        tail = f": {facts.trial}" if facts.trial else ""
        remedy = "run in NVIDIA's own build, the newest nvcr.io/nvidia/tensorflow container, or "
        remedy += "install a TensorFlow built for this GPU"
        return Finding("error", "gpu_too_new", f"{what}, and compiling them fails{tail}", remedy)
    remedy = "export CUDA_CACHE_MAXSIZE=4294967296, so that it is only the first start"
    return Finding("warning", "compiles_kernels", f"{what}: start-up takes minutes longer", remedy)


def _failed_trial(facts: Facts) -> Finding | None:
    text = "\n".join([*facts.log, facts.trial])
    versions = r"Loaded runtime CuDNN library: ([\d.]+\d) but source was compiled with: ([\d.]+\d)"
    if found := re.search(versions, text):
        reason = f"cuDNN {found[1]} was loaded, TensorFlow was built with {found[2]}"
        remedy = f"unset LD_LIBRARY_PATH if it leads to another cuDNN, else {REINSTALL}"
        return Finding("error", "cudnn_mismatch", reason, remedy)
    if facts.trial in ("", "ok"):
        return None
    if old := _old_driver(facts, text):
        return old
    if re.search("OUT_OF_MEMORY|RESOURCE_EXHAUSTED|OOM|out of memory", text):
        reason = "no memory is left on the GPU for a small computation"
        return Finding("error", "gpu_memory", reason, "nvidia-smi lists who uses it")
    reason = f"TensorFlow lists a GPU but cannot compute on it: {facts.trial}"
    remedy = f"{REINSTALL}; if it stays, nvidia-smi -q shows the GPU's own errors"
    return Finding("error", "trial_failed", reason, remedy)


def _memory_in_use(facts: Facts) -> list[Finding]:
    findings = []
    selected = (facts.cuda_visible_devices or "").split(",")
    for card in facts.cards:
        if facts.cuda_visible_devices and str(card.index) not in selected:
            continue
        if not card.memory_total or card.memory_used is None:
            continue
        if card.memory_used > NEARLY_FULL * card.memory_total:
            used, total = gib(card.memory_used), gib(card.memory_total)
            reason = f"GPU {card.index} ({card.name}): {used} of {total} in use by another process"
            remedy = "nvidia-smi lists who uses it; CUDA_VISIBLE_DEVICES chooses another GPU"
            findings.append(Finding("warning", "gpu_memory", reason, remedy))
    return findings


def _ask_for_gpus(container: str) -> str:
    """How a job is granted GPUs, as far as the container tells who grants them."""
    return {
        "": "under SLURM ask for one: sbatch --gpus=1",
        "apptainer": "apptainer exec --nv",
        "kubernetes": "ask for it in the pod's resources.limits, as nvidia.com/gpu: 1",
        "podman": "podman run --device nvidia.com/gpu=all",
    }.get(container, "start the container with GPUs: docker run --gpus all")


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
