"""MultiWorkerMirroredStrategy: one process a host, replicas of all of them in step."""

import faulthandler
import functools
from typing import Any

import tensorflow as tf

from .cluster import Cluster, await_hosts
from .errors import RunFailed


@functools.cache  # a process joins its cluster once
def join(
    cluster: Cluster, kind: str, each: int, all_reduce: str, pack_bytes: int, patience: int
) -> tf.distribute.Strategy:
    """Waits for the other hosts and builds the strategy; TensorFlow must not have run anything yet.

    Args:
      cluster: the hosts.
      kind: "GPU" or "CPU".
      each: replicas on each host.
      all_reduce: auto, nccl or ring.
      pack_bytes: of gradients reduced at a time; 0: all at once.
      patience: seconds to wait for the others; 0: for ever.

    Raises:
      UserError: this host's port is taken.
      RunFailed: another host has not come, or has gone again.
    """
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=pack_bytes,
        implementation=tf.distribute.experimental.CommunicationImplementation(all_reduce.upper()),
    )
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.index,
        num_accelerators={"GPU": each} if kind == "GPU" else {},
        rpc_layer="grpc",
    )
    await_hosts(cluster, patience)
    if patience:  # a host that dies at this moment: only a thread without Python can end the wait
        faulthandler.dump_traceback_later(patience, exit=True)
    try:
        if kind == "CPU" and each > 1:
            strategy = _over_logical_cpus(resolver, options, each)
        else:
            strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    except tf.errors.OpError as error:  # one of an earlier start still answered, say
        reason = error.message.splitlines()[0]
        raise RunFailed(
            f"host {cluster.index} cannot join the others ({reason}): start all hosts again"
        ) from error
    faulthandler.cancel_dump_traceback_later()
    # Ours are whole on every host. Else TensorFlow asks all hosts at each step whether they have
    # one: a collective more.
    strategy.extended.experimental_enable_get_next_as_optional = False
    return strategy


def _over_logical_cpus(resolver: Any, options: Any, each: int) -> tf.distribute.Strategy:
    """The same on several logical CPUs a host, of which TensorFlow would use the first alone."""
    from tensorflow.python.distribute import collective_all_reduce_strategy as collective

    class Extended(collective.CollectiveAllReduceExtended):
        def _initialize_local_devices(
            self, cluster_resolver: Any, worker_device: str
        ) -> tuple[tuple[str, ...], str]:
            del cluster_resolver
            return tuple(f"{worker_device}/device:CPU:{i}" for i in range(each)), "CPU"

    class Strategy(tf.distribute.Strategy):
        _collective_key_base = 0

        def __init__(self) -> None:
            extended = Extended(self, cluster_resolver=resolver, communication_options=options)
            super().__init__(extended)

    return Strategy()
