"""Every flag of every command: name, default, meaning, check. Nothing else defines a flag."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from .command_line import argument, flag
from .errors import UserError

# The answers given when this project was generated; the one place where they are rendered.
ANSWERS = json.loads(Path(__file__).with_name("defaults.json").read_text(encoding="utf-8"))
DATA_DEFAULTS = {"tfds": "tfds:cifar10", "records": "records:data", "folder": "folder:data"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Trains, evaluates and checkpoints a model; resumes what --run_dir holds.

    With --benchmark it measures instead, and says which resource limits the training.
    """

    data: str = flag(
        DATA_DEFAULTS.get(ANSWERS["data"], ANSWERS["data"]),
        "digits (embedded), synthetic (photo-like, made once), tfds:NAME, records:DIR, folder:DIR",
    )
    model: str = flag("auto", "a backbone by name, or auto; a wrong name prints them all")
    image_size: int = flag(0, "side of the model's square input in pixels; 0: by data", low=0)
    batch_size: int = flag(0, "examples per step over all replicas; 0: by data", low=0)
    epochs: int = flag(20, "passes over the training examples", low=1)
    steps: int = flag(0, "training steps; 0: as many as --epochs gives", low=0)
    precision: str = flag(
        "auto",
        "auto: bfloat16 or float16 where the GPU computes faster in it, else float32",
        choices=("auto", "float32", "mixed_float16", "mixed_bfloat16"),
    )
    strategy: str = flag(
        "auto",
        "how replicas share a step; auto: multi_worker where TF_CONFIG or srun name several hosts, "
        "else mirrored over all GPUs, one_device for fewer than two",
        choices=("auto", "one_device", "mirrored", "multi_worker"),
        free=True,
    )
    all_reduce: str = flag(
        "auto",
        "how the hosts of multi_worker add up gradients; auto: nccl between GPUs, else ring",
        choices=("auto", "nccl", "ring"),
        free=True,
    )
    pack_mb: int = flag(
        0, "MiB of gradients that multi_worker adds up at a time; 0: all at once", low=0, free=True
    )
    logical_devices: int = flag(
        0, "split the CPU into this many devices, to try --strategy=mirrored", low=0, free=True
    )
    steps_per_call: int = flag(
        0, "steps in one call of the compiled loop; 0: about 0.2 s of them", low=0, free=True
    )
    jit: str = flag(
        "auto",
        "compile forward and backward with XLA; auto: on a GPU",
        choices=("auto", "on", "off"),
    )
    augment: str = flag(
        "auto",
        "where crops and flips are made; auto: device on a GPU, host on a CPU",
        choices=("auto", "host", "device", "none"),
    )
    cache: str = flag(
        "none",
        "keep the training records, as they are stored, in memory or on a local disk",
        choices=("none", "memory", "disk"),
    )
    cache_dir: str = flag(
        "", "of synthetic photos and --cache=disk; default: the user's cache", free=True
    )
    stage_to: str = flag(
        "", "copy the data to this directory first, or auto: a local disk; see stage", free=True
    )
    data_service: str = flag(
        "", "grpc://HOST:PORT of a tf.data service (see serve) that reads and decodes"
    )
    bad_records: str = flag(
        "error",
        "what a damaged record does: stop the run, or be left out after a check of all of them",
        choices=("error", "skip"),
    )
    bad_budget: float = flag(
        0.01, "part of a split's records that --bad_records=skip may leave out", low=0, high=1
    )
    nan_budget: int = flag(
        0,
        "batches whose loss is NaN or infinite that a run may leave out, each after going back to "
        "its last checkpoint",
        low=0,
        free=True,
    )
    host_threads: int = flag(
        0, "batches decoded at a time; 0: one for each usable CPU, and one more", low=0, free=True
    )
    fused_decode: bool = flag(True, "of a training JPEG decode only what its crop needs")
    shuffle_memory: int = flag(256, "MiB of encoded records that a shuffle buffer holds", low=1)
    learning_rate: float = flag(0.0, "peak of the schedule; 0: by data", low=0)
    warmup: float = flag(0.05, "part of the steps spent warming up", low=0, high=1)
    weight_decay: float = flag(0.05, "AdamW's decay; biases and norms are left alone", low=0)
    accumulate: int = flag(1, "parts a batch is computed in, to save device memory", low=1)
    ema: float = flag(
        0.0, "decay of averaged weights, for evaluation; 0: none", low=0, high=0.99999
    )
    colour_jitter: float = flag(
        0.0, "strength of random brightness, contrast and saturation; 0: none", low=0, high=1
    )
    mixup: float = flag(0.0, "alpha of mixup; 0: none", low=0)
    cutmix: float = flag(
        0.0, "alpha of cutmix; 0: none; beside mixup, every example gets one of the two", low=0
    )
    label_smoothing: float = flag(0.0, "probability spread over the classes", low=0, high=0.99)
    dropout: float = flag(0.0, "drop-out rate before the head", low=0, high=0.99)
    seed: int = flag(0, "of weights, order and augmentation", low=0, high=2**31 - 1)
    deterministic: bool = flag(False, "the same bits every time on a GPU too, at some cost")
    run_dir: str = flag("", "where the run is kept and resumed from; default: a new one in runs/")
    evaluate_steps: int = flag(0, "steps between evaluations; 0: every epoch", low=0, free=True)
    checkpoint_seconds: int = flag(
        300, "longest time between checkpoints; each evaluation makes one too", low=1, free=True
    )
    stall_seconds: int = flag(
        600,
        "without progress, after which the run says where it stands and ends; 0: never",
        low=0,
        free=True,
    )
    profile: str = flag(
        "", "START:STOP: trace the steps after START up to STOP, for TensorBoard", free=True
    )
    benchmark: bool = flag(False, "measure, explain and stop", free=True)
    confirm: bool = flag(
        False, "with --benchmark: try its best remedies, prediction beside what came", free=True
    )
    scale: str = flag(
        "",
        "with --benchmark: only what 1,2,4 (say) replicas give, --batch_size being of each",
        free=True,
    )
    find_batch_size: bool = flag(False, "measure batch after batch, recommend one", free=True)

    def filled(self, **values: Any) -> "Settings":
        """Replaces those of these settings that nobody gave: 0, "" or auto."""
        given = {name: getattr(self, name) for name in values}
        blank = [name for name, value in given.items() if value in (0, "", "auto")]
        return dataclasses.replace(self, **{name: values[name] for name in blank})

    def __post_init__(self) -> None:
        """Raises `UserError` if flags are given that do not go together."""
        given = [n for n in ("benchmark", "find_batch_size", "profile") if getattr(self, n)]
        if len(given) > 1:
            raise UserError(f"--{given[0]} and --{given[1]} do not go together: run one at a time")
        if self.scale and (self.confirm or not self.benchmark):
            raise UserError("--scale is a measurement of its own: give --benchmark --scale=1,2")
        if self.confirm and not self.benchmark:
            raise UserError("--confirm tries what --benchmark predicts: add --benchmark")


@dataclasses.dataclass(frozen=True)
class ServeSettings:
    """Reads and decodes for trainings elsewhere: the dispatcher or a worker of a data service.

    One dispatcher, any number of workers; the trainings are started with --data_service.
    """

    port: int = flag(
        -1,
        "to listen on; -1: 5050 for the dispatcher, any free one for a worker",
        low=-1,
        high=65535,
    )
    dispatcher: str = flag("", "HOST:PORT of it: be one of its workers; default: be the dispatcher")
    host: str = flag("", "under which others reach this machine; default: its host name")


@dataclasses.dataclass(frozen=True)
class DoctorSettings:
    """Says whether TensorFlow sees the GPUs of this machine and, if not, why not and what to do."""

    gpus: int = flag(-1, "GPUs that must be usable; -1: as many as the hardware shows", low=-1)
    json: bool = flag(False, "print the facts and findings as JSON")


@dataclasses.dataclass(frozen=True)
class PrepareSettings:
    """Turns a data set into training shards: shuffled once, of even size, under a manifest.

    Killed or short of disk space, the same command continues where it was. The files depend on the
    source and the flags alone, not on the number of workers.
    """

    source: str = argument(
        "SRC", "what --data takes: folder:DIR, records:DIR, tfds:NAME, synthetic"
    )
    destination: str = argument("DST", "the directory to make; train with --data=records:DST")
    check: str = flag("", "instead of SRC and DST: verify this prepared directory, name the damage")
    format: str = flag(
        "jpeg",
        "jpeg: squares of --size, encoded again; raw: their pixels; keep: the original bytes",
        choices=("jpeg", "raw", "keep"),
    )
    size: int = flag(256, "side of the stored squares in pixels", low=1, high=8192)
    quality: int = flag(90, "of the JPEGs", low=1, high=100)
    shards: int = flag(
        0, "files of the training split; 0: a power of two, 100 to 200 MB each", low=0
    )
    seed: int = flag(0, "of the order the records are stored in", low=0, high=2**31 - 1)
    workers: int = flag(0, "processes that decode and encode; 0: one for each usable CPU", low=0)
    on_bad: str = flag(
        "error",
        "what a file that cannot be decoded does: stop, or be left out and listed",
        choices=("error", "skip"),
    )
    bad_budget: float = flag(0.01, "part of the records that may be skipped", low=0, high=1)
    cache_dir: str = flag("", "where synthetic photos are kept; default: the user's cache")


@dataclasses.dataclass(frozen=True)
class StageSettings:
    """Copies a data set to a local SSD and prints the path: DATA=$(stage gs://bucket/photos).

    Killed or short of room, the same command continues where it was. Started several times at once,
    one copies and the others wait. Exit codes: 0, 1 (source or content), 2 (usage), 28 (no room),
    75 (waited too long for another copy), 130 or 143 (stopped by a signal).
    """

    source: str = argument(
        "SRC",
        "a directory, a file, s3://, gs://, http(s)://; or ls, check, rm: what is staged already",
    )
    which: str = argument("WHICH", "of check and rm: a key, or a source; check without: all")
    scratch: str = flag(
        "", "where to; default: $TFSTAGE_SCRATCH, the batch job's disk, or a usual place of SSDs"
    )
    include: str = flag("", "globs with commas between them, of the files wanted")
    workers: int = flag(0, "threads that copy; 0: as suits the source", low=0, high=256)
    checksums: str = flag("", "a file such as SHA256SUMS, here or in the source, to verify by")
    untar: bool = flag(False, "unpack SRC, a .tar, .tar.gz, .tgz or .tar.zst, while it is read")
    deep: bool = flag(False, "verify what is staged already by content, not by size alone")
    on_full: str = flag(
        "error",
        "what no room for all does: stop, or stage what fits and link the rest to the source",
        choices=("error", "stream"),
    )
    lock_timeout: float = flag(3600.0, "seconds to wait while another process copies", low=0)
    evict: bool = flag(False, "make room: remove what is not in use, least recently used first")
    reserve: int = flag(-1, "MiB to leave free; -1: 2 % of the disk, at least 1024", low=-1)
    quota: int = flag(0, "MiB that all staged data may take; 0: no limit but the disk", low=0)
    allow_shared: bool = flag(False, "take a network or overlay file system for --scratch too")
    transcode: int = flag(
        0,
        "prepare while staging: squares of this side in pixels, ready to train on; 0: off",
        low=0,
        high=8192,
    )
    measure: bool = flag(False, "first read the source, write and read the scratch directory")
    json: bool = flag(False, "progress and result as lines of JSON on standard error")


@dataclasses.dataclass(frozen=True)
class CompareSettings:
    """Says whether B is faster than A, and whether its validation metric is better or worse.

    A and B are the flags of two trainings, each in quotes ("" for none), run in turn here; or the
    directories of two finished runs.
    """

    a: str = argument("A", 'flags of train in quotes, such as "--batch_size=32"; or a run')
    b: str = argument("B", "the same, for what it is compared with")
    common: str = flag("", "flags of both, in quotes")
    pairs: int = flag(5, "times that each trains, in turn, with a new seed", low=3, high=100)
    examples: int = flag(
        0, "that each trains on; 0: as A's flags say, but at most what takes 20 seconds", low=0
    )
    tolerance: float = flag(0.01, "part of A's metric that may be lost", low=0, high=1)
    out: str = flag("", "directory of the results; default: a new one in runs/")
    json: bool = flag(False, "print the result as JSON")
    ladder: bool = flag(
        False, "instead of A and B: turn known practices on one by one, show what each gives"
    )
