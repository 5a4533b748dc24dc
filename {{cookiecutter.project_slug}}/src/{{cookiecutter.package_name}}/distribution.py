"""Which devices a run uses, and how they share a step: one, several mirrored, several hosts."""

import dataclasses
import functools
import os

import tensorflow as tf

from .cluster import Cluster, find_cluster
from .errors import UserError
from .hosts import Hosts
from .multi_worker import join
from .settings import Settings

SMALL_BATCH = 8  # examples a replica; below, a GPU is mostly launching kernels


@dataclasses.dataclass(frozen=True)
class Devices:
    """What a run computes on.

    Attributes:
      strategy: MultiWorkerMirroredStrategy over several hosts, MirroredStrategy over several
        devices; TensorFlow's default for one, so that there no scope is needed and XLA stays
        possible.
      kind: "GPU" or "CPU".
      names: this host's logical device names, one a replica.
      compute_capability: the lowest among the GPUs, such as (8, 0); None on CPUs.
      hosts: those of the run, with as many replicas on each.
    """

    strategy: tf.distribute.Strategy
    kind: str
    names: tuple[str, ...]
    compute_capability: tuple[int, int] | None
    hosts: Hosts = dataclasses.field(default_factory=Hosts)

    @property
    def replicas(self) -> int:
        """Of all hosts."""
        return len(self.names) * self.hosts.count

    def __str__(self) -> str:
        how = "one device" if self.replicas == 1 else f"mirrored over {self.replicas}"
        if self.hosts.count > 1:
            how += f" on {self.hosts.count} hosts, found in {self.hosts.source}"
        return f"{how} ({', '.join(self.names)}{' on each' * (self.hosts.count > 1)})"


def choose_cluster(strategy: str) -> Cluster | None:
    """The several hosts to train with, if the strategy asks for them, or leaves it open: None else.

    Raises:
      UserError: TF_CONFIG or SLURM's environment is broken, or not there where it is asked for.
    """
    if strategy not in ("auto", "multi_worker"):
        return None
    cluster = find_cluster()
    if cluster and len(cluster.addresses) > 1:
        return cluster
    if strategy == "multi_worker":
        found = f"{cluster.source} has one host" if cluster else "there is no TF_CONFIG, nor srun"
        raise UserError(
            f"--strategy=multi_worker: {found}: start one process on each host, with srun or with "
            "TF_CONFIG set, or use --strategy=auto"
        )
    return None


def choose_devices(settings: Settings, cluster: Cluster | None = None) -> Devices:
    """Finds the devices and builds the strategy. Call it before any other use of TensorFlow.

    Args:
      settings: the flags.
      cluster: the hosts to train with, as `choose_cluster` found them.

    Raises:
      UserError: what was asked for is not there. GPUs that are present and that TensorFlow does
        not see are an error under every strategy: training on the CPU by surprise wastes days.
    """
    strategy = settings.strategy
    if settings.logical_devices:
        kind, number = "CPU", _split_cpu(settings.logical_devices)
    else:
        # Physical ones: to list the logical ones starts TensorFlow, and no host can join then.
        number = len(tf.config.list_physical_devices("GPU"))
        kind = "GPU" if number else "CPU"
        if not number:
            number = 1
            _refuse_hidden_gpus(strategy)
    if strategy == "mirrored" and number < 2:
        raise UserError(
            f"--strategy=mirrored: TensorFlow sees one {kind}, mirroring takes two: "
            "use --strategy=auto, or --logical_devices=2 to try it on a CPU"
        )
    capability = _compute_capability(kind)
    if cluster:
        return _on_hosts(cluster, kind, number, capability, settings)
    if strategy == "multi_worker" or choose_cluster(strategy):
        raise UserError(
            f"--strategy={strategy}: several hosts are for training: measure on one of them, with "
            "--strategy=mirrored or one_device"
        )
    names = tuple(device.name for device in tf.config.list_logical_devices(kind)[:number])
    names = names[:1] if strategy == "one_device" else names
    chosen = tf.distribute.get_strategy() if len(names) == 1 else _mirrored(names)
    return Devices(chosen, kind, names, capability)


def _on_hosts(
    cluster: Cluster,
    kind: str,
    number: int,
    capability: tuple[int, int] | None,
    settings: Settings,
) -> Devices:
    all_reduce, pack_bytes = settings.all_reduce, settings.pack_mb << 20
    if all_reduce == "nccl" and kind == "CPU":
        raise UserError("--all_reduce=nccl: NCCL is between GPUs, here are none: use auto or ring")
    strategy = join(cluster, kind, number, all_reduce, pack_bytes, settings.stall_seconds)
    hosts = Hosts(strategy, len(cluster.addresses), cluster.index, cluster.source)
    if capability:  # the lowest of all hosts', or they would choose different precisions
        capability = min((int(major), int(minor)) for major, minor in hosts.gather(capability))
    names = tuple(f"/device:{kind}:{i}" for i in range(number))
    return Devices(strategy, kind, names, capability, hosts)


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


def _split_cpu(parts: int) -> int:
    """Makes so many logical CPUs of one, and returns how many."""
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
    return parts


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
