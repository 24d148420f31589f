"""A master and its slave in this process: ``mqspark.testing.Cluster(slaves=1)``."""

from __future__ import annotations

from mqspark.testing import Cluster
from tests.support.storefiles import log_bytes
from tests.support.waiting import eventually

MASTER, SLAVE = 0, 1


def end_of(cluster: Cluster, number: int) -> int:
    store = cluster.apps[number].store
    assert store is not None
    return cluster.call(lambda: store.pipeline.stored_end)


def until_copied(cluster: Cluster) -> None:
    eventually(lambda: end_of(cluster, SLAVE) == end_of(cluster, MASTER) > 0, "the slave to have everything")


def log_of(cluster: Cluster, number: int) -> bytes:
    return log_bytes(cluster.store_paths[number], end_of(cluster, number))
