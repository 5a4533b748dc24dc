"""Which devices a run uses, and how they share a step: one, or several mirrored."""

import dataclasses
import functools
import os

import tensorflow as tf

from .errors import UserError

SMALL_BATCH = 8  # examples a replica; below, a GPU is mostly launching kernels


@dataclasses.dataclass(frozen=True)
class Devices:
    """What a run computes on.

    Attributes:
      strategy: MirroredStrategy over several devices; TensorFlow's default for one, so that there
        no scope is needed and XLA stays possible.
      kind: "GPU" or "CPU".
      names: logical device names, one a replica.
      compute_capability: the lowest among the GPUs, such as (8, 0); None on CPUs.
    """

    strategy: tf.distribute.Strategy
    kind: str
    names: tuple[str, ...]
    compute_capability: tuple[int, int] | None

    @property
    def replicas(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        how = "one device" if self.replicas == 1 else f"mirrored over {self.replicas}"
        return f"{how} ({', '.join(self.names)})"


def choose_devices(strategy: str, logical_devices: int) -> Devices:
    """Finds the devices and builds the strategy. Call it before any other use of TensorFlow.

    Args:
      strategy: auto, one_device or mirrored.
      logical_devices: split the CPU into this many devices, to try mirroring without GPUs; 0: no.

    Raises:
      UserError: what was asked for is not there. GPUs that are present and that TensorFlow does
        not see are an error under every strategy: training on the CPU by surprise wastes days.
    """
    if logical_devices:
        names, kind = _split_cpu(logical_devices), "CPU"
    else:
        gpus = tf.config.list_physical_devices("GPU")
        kind = "GPU" if gpus else "CPU"
        names = tuple(device.name for device in tf.config.list_logical_devices(kind))
        if not gpus:
            names = names[:1]
            _refuse_hidden_gpus(strategy)
    if strategy == "mirrored" and len(names) < 2:
        raise UserError(
            f"--strategy=mirrored: TensorFlow sees one {kind}, mirroring takes two: "
            "use --strategy=auto, or --logical_devices=2 to try it on a CPU"
        )
    names = names[:1] if strategy == "one_device" else names
    chosen = tf.distribute.get_strategy() if len(names) == 1 else _mirrored(names)
    return Devices(chosen, kind, names, _compute_capability(kind))


def check_batch(batch_size: int, replicas: int, accumulate: int) -> None:
    """Raises `UserError` unless a global batch divides into replicas and accumulated parts."""
    parts = replicas * accumulate
    if batch_size % parts:
        below = batch_size // parts * parts
        nearest = f"{below} or {below + parts}" if below else f"{parts}"
        shares = f"{replicas} replicas" + (f" x --accumulate={accumulate}" * (accumulate > 1))
        raise UserError(
            f"--batch_size={batch_size} does not divide among {shares}: the nearest: {nearest}"
        )


def batch_warning(batch_size: int, devices: Devices) -> str | None:
    """A line about a batch too small to fill a GPU, or None."""
    each = batch_size // devices.replicas
    if devices.kind == "GPU" and each < SMALL_BATCH:
        return (
            f"each GPU gets {each} examples a step: too few to fill it; "
            f"try --batch_size={SMALL_BATCH * 4 * devices.replicas}"
        )
    return None


def choose_precision(precision: str, devices: Devices) -> tuple[str, str]:
    """The dtype policy of a run, and the reason in words.

    Args:
      precision: auto, float32, mixed_float16 or mixed_bfloat16.
      devices: what it runs on.
    """
    if precision != "auto":
        return precision, "as asked"
    if devices.compute_capability is None:
        return "float32", "a CPU gains nothing from less"
    major, minor = devices.compute_capability
    if major >= 8:
        return "mixed_bfloat16", f"compute capability {major}.{minor} has bfloat16 Tensor Cores"
    if major == 7:
        # The GTX 16 series reports 7.5 too and has no Tensor Cores: it loses time, not accuracy.
        return "mixed_float16", f"compute capability {major}.{minor} has float16 Tensor Cores"
    return "float32", f"compute capability {major}.{minor} has no Tensor Cores"


@functools.cache
def _mirrored(names: tuple[str, ...]) -> tf.distribute.Strategy:
    # One for each set of devices in a process: every strategy numbers its collectives from 100, and
    # a second one then meets the first one's tensors ("Shape mismatch in the collective instance").
    return tf.distribute.MirroredStrategy(list(names))


def _split_cpu(parts: int) -> tuple[str, ...]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * parts
        )
    except RuntimeError:
        # TensorFlow has started (a second run in one process): its devices cannot change any more.
        if len(tf.config.list_logical_devices("CPU")) < parts:
            raise UserError(
                f"--logical_devices={parts}: TensorFlow has already started in this process"
            ) from None
    return tuple(device.name for device in tf.config.list_logical_devices("CPU")[:parts])


def _refuse_hidden_gpus(strategy: str) -> None:
    from .doctor import gpu_hardware_present, why_no_gpus

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden_on_purpose = visible in ("", "-1")
    expected = not hidden_on_purpose and (visible is not None or gpu_hardware_present())
    if strategy == "mirrored" or expected:
        raise UserError(
            f"TensorFlow sees no GPU: {why_no_gpus()} (to train on the CPU set "
            "CUDA_VISIBLE_DEVICES=-1; to try mirroring there, --logical_devices=2)"
        )


def _compute_capability(kind: str) -> tuple[int, int] | None:
    if kind != "GPU":
        return None
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices(kind))
    return min(detail.get("compute_capability", (0, 0)) for detail in details)
