"""Which hosts train together, and which of them this is: from TF_CONFIG or from SLURM.

Read before TensorFlow starts its devices; nothing here imports it.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from .errors import RunFailed, UserError

CHIEFS = ("chief", "master")  # Kubeflow says either; it is the first host
# Below Linux's ephemeral ports (32768 and up), any of which may be taken by a client.
FIRST_PORT, PORTS = 12_000, 20_000
TF_CONFIG_FORM = (
    '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}'
)
SAID_AFTER = 5.0  # seconds of waiting for a host


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The hosts of a run.

    Attributes:
      addresses: HOST:PORT of each, the chief first.
      index: which of them this process is.
      source: where this was read, for messages.
    """

    addresses: tuple[str, ...]
    index: int
    source: str


def find_cluster(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster this process was started in, TF_CONFIG before SLURM; None if in none.

    Raises:
      UserError: TF_CONFIG is no cluster or half of one, or SLURM's layout is not understood.
    """
    text = environment.get("TF_CONFIG", "").strip()
    if text not in ("", "{}"):
        return _from_tf_config(text)
    # Set for the tasks that srun starts and, unlike SLURM_NTASKS, not for the batch script itself.
    if "SLURM_STEP_NUM_TASKS" in environment:
        return _from_slurm(environment)
    return None


def await_hosts(cluster: Cluster, patience: float) -> None:
    """Waits until something listens at every host's address, this one's too.

    TensorFlow waits for absent hosts in native code that holds Python's lock and takes SIGTERM for
    itself: neither a signal nor another thread could end it, or say which host is missing.

    Args:
      cluster: the hosts.
      patience: seconds to wait for all of them; 0: for ever.

    Raises:
      UserError: this host's own port is taken.
      RunFailed: a host has not come.
    """
    began, told = time.monotonic(), False
    own = cluster.addresses[cluster.index]
    missing = set(cluster.addresses) - {own}
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", int(own.rpartition(":")[2])))
        except OSError as error:
            raise UserError(
                f"{own}, which {cluster.source} gives this host, is taken ({error.strerror}): end "
                "what holds it, or give another port"
            ) from None
        # Closed at the end for TensorFlow to listen there: who comes later reaches that.
        listener.listen(len(cluster.addresses))
        while missing:
            missing = {address for address in missing if not _answers(address)}
            waited = time.monotonic() - began
            if missing and waited > SAID_AFTER and not told:
                told = True
                print(f"waiting for {', '.join(sorted(missing))}", file=sys.stderr, flush=True)
            if missing and patience and waited > patience:
                raise RunFailed(
                    f"host {cluster.index} has waited {patience:g} s (--stall_seconds) for "
                    f"{', '.join(sorted(missing))}: start one process on each host"
                )
            time.sleep(0.2 if missing else 0)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 2).close()
    except OSError:
        return False
    return True


def expand_nodes(text: str) -> list[str]:
    """SLURM's list of nodes, in its order: "n[08-10,2],x" -> n08, n09, n10, n2, x."""
    nodes = []
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", entry)  # every second one stood in brackets
        choices = [_expand_ranges(p) if i % 2 else [p] for i, p in enumerate(pieces)]
        nodes += ["".join(choice) for choice in itertools.product(*choices)]
    return nodes


def expand_counts(text: str) -> list[int]:
    """SLURM's tasks of each node: "2(x3),1" -> 2, 2, 2, 1."""
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def _expand_ranges(text: str) -> list[str]:
    """ "08-10,2" -> 08, 09, 10, 2: as wide as the first number is written."""
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += [f"{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1)]
    return numbers


def _from_tf_config(text: str) -> Cluster:
    def wrong(why: str) -> UserError:
        return UserError(f"TF_CONFIG: {why}; give {TF_CONFIG_FORM}, or unset it")

    try:
        config = json.loads(text)
    except ValueError as error:
        raise wrong(f"not JSON ({error})") from None
    cluster, task = _part(config, "cluster"), _part(config, "task")
    if not cluster or not task:
        raise wrong(f"it has no {'task' if cluster else 'cluster'}")
    unknown = set(cluster) - {*CHIEFS, "worker"}
    if unknown:
        raise wrong(f"there is no use here for {', '.join(sorted(unknown))}, only for workers")
    kinds = [kind for kind in (*CHIEFS, "worker") if kind in cluster]
    hosts = [(kind, i, a) for kind in kinds for i, a in enumerate(_addresses(cluster[kind]))]
    addresses = tuple(address for _, _, address in hosts)
    bad = [a for a in addresses if not re.fullmatch(r"\S+:\d+", a)]
    if bad or not addresses:
        raise wrong(f"{bad[0]!r} is not HOST:PORT" if bad else "it lists no hosts")
    if len(set(addresses)) < len(addresses):
        raise wrong("an address stands in it twice")
    places = [(kind, i) for kind, i, _ in hosts]
    mine = (task.get("type"), task.get("index"))
    if mine not in places:
        raise wrong(f"its task {mine[0]!r} {mine[1]!r} is not in its cluster")
    return Cluster(addresses, places.index(mine), "TF_CONFIG")


def _part(config: Any, name: str) -> dict[str, Any]:
    part = config.get(name) if isinstance(config, dict) else None
    return part if isinstance(part, dict) else {}


def _addresses(listed: Any) -> list[str]:
    return [str(address) for address in listed] if isinstance(listed, list) else [str(listed)]


def _from_slurm(environment: Mapping[str, str]) -> Cluster:
    try:
        nodes = expand_nodes(environment["SLURM_STEP_NODELIST"])
        counts = expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
        job, rank = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_PROCID"])
        place = int(environment["SLURM_NODEID"]), int(environment["SLURM_LOCALID"])
        tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    except (KeyError, ValueError) as error:
        raise UserError(
            f"SLURM's environment is not whole ({error}): start with srun, or set TF_CONFIG"
        ) from None
    places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    if len(places) != tasks or len(counts) != len(nodes) or places[rank] != place:
        raise UserError(
            "SLURM has not laid the tasks out node by node: use srun --distribution=block, or set "
            "TF_CONFIG"
        )
    if tasks == 1:
        return Cluster(("localhost:0",), 0, f"SLURM job {job}")
    addresses = {node: _resolved(nodes[node]) for node, _ in places}
    # A port for each task, since two may share a node; the same in a requeued job.
    port = FIRST_PORT + job % (PORTS - tasks)
    listed = tuple(f"{addresses[node]}:{port + i}" for i, (node, _) in enumerate(places))
    return Cluster(listed, rank, f"SLURM job {job}")


def _resolved(node: str) -> str:
    """A name or number under which a node is found: TensorFlow waits for ever for one that is not.

    A node's name need not be its host's: then `scontrol` knows the address.
    """
    for look_up in (str, _node_address):
        with contextlib.suppress(OSError):
            address = look_up(node)
            socket.getaddrinfo(address, None)
            return address
    raise UserError(f"SLURM's node {node} has no address that this machine knows: set TF_CONFIG")


def _node_address(node: str) -> str:
    command = ["scontrol", "show", "node", node]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"NodeAddr=(\S+)", shown)
    return found[1] if found else ""
