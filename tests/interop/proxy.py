"""RocketMQ's own Proxy before a cluster, and the gRPC client for it: unmodified, in processes of their own."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop import jars as jar_cache
from tests.interop.driver import Driver, running
from tests.interop.jars import HERE, Jars
from tests.interop.rocketmq import PATIENT, either_cluster, java_command
from tests.support.clusters import Cluster, brokers_known_to, mqspark_cluster, write_conf
from tests.support.maven import or_skip
from tests.support.processes import HOST, free_port, process, set_options, tail, wait_for_start
from tests.support.waiting import eventually

STARTED = "rocketmq-proxy startup successfully"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy: where it takes gRPC, and where remoting. To remoting clients it is their name server, too."""

    cluster: Cluster
    grpc: str
    remoting: str
    folder: Path
    pid: int


def fetch_proxy() -> Jars:
    """The proxy's jars. Raises as ``jars.fetch`` does."""
    folder = jar_cache.dependencies(HERE / "pom-proxy.xml")
    return Jars(folder, folder)


def fetch_grpc_client() -> Jars:
    """The gRPC client with java/GrpcDriver.java compiled against it. Raises as ``jars.fetch`` does."""
    return jar_cache.driver_with(HERE / "pom-grpc.xml", HERE / "java" / "GrpcDriver.java")


# What is looked up seldom in production is looked up soon here: tests change topics and groups all the time.
PROXY_SETTINGS = {
    "proxyMode": "CLUSTER",
    "localServeAddr": HOST,
    "rocketmqMQClientNum": 1,
    "topicRouteServiceCacheRefreshSeconds": 1,
    "topicConfigCacheRefreshSeconds": 1,
    "subscriptionGroupConfigCacheRefreshSeconds": 1,
    "transactionHeartbeatPeriodSecond": 1,
}


@contextmanager
def running_proxy(
    jars: Jars,
    folder: Path,
    cluster: Cluster,
    settings: Mapping[str, object] | None = None,
    options: Sequence[str] = (),
    heap_mib: int = 256,
) -> Iterator[Proxy]:
    """A proxy in cluster mode. It is killed at the end, since its clean stop takes long. ``options`` are Java's."""
    values = {
        "namesrvAddr": cluster.namesrv,
        "rocketMQClusterName": cluster.cluster_name,
        **(settings or {}),
    }
    with _proxy(jars, folder, values, (), options, heap_mib) as (grpc, remoting, pid):
        yield Proxy(cluster, grpc, remoting, folder, pid)


@contextmanager
def unproxied(folder: Path, settings: Mapping[str, object]) -> Iterator[Proxy]:
    """Our broker's own service; remoting clients have its name server."""
    with mqspark_cluster(folder, *set_options(settings)) as cluster:
        yield Proxy(cluster, cluster.grpc, cluster.namesrv, folder, cluster.broker_pid)


@contextmanager
def served(request: pytest.FixtureRequest, folder: Path, settings: Mapping[str, object]) -> Iterator[Proxy]:
    """By the fixture's parameter a cluster of that kind with RocketMQ's proxy before it; ``without``: ours has none."""
    if request.param == "without":
        with unproxied(folder, settings) as running:
            yield running
        return
    jars = or_skip(fetch_proxy)
    with either_cluster(request, folder / "cluster", settings, PATIENT) as cluster:
        with running_proxy(jars, folder / "proxy", cluster) as running:
            yield running


@contextmanager
def running_local_proxy(
    jars: Jars,
    folder: Path,
    namesrv: str,
    settings: Mapping[str, object],
    options: Sequence[str] = (),
    heap_mib: int = 512,
) -> Iterator[Proxy]:
    """A proxy in local mode: the broker is in its process. ``settings`` are the broker's."""
    store, port = folder / "store", free_port(neighbours=2)
    broker = {
        "brokerClusterName": "LocalCluster",
        "brokerName": "local-a",
        "brokerId": 0,
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "listenPort": port,
        "namesrvAddr": namesrv,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        **settings,
    }
    conf = write_conf(folder / "broker.conf", broker)
    values = {"proxyMode": "LOCAL", "namesrvAddr": namesrv, "rocketMQClusterName": "LocalCluster"}
    with _proxy(jars, folder, values, ("-bc", str(conf)), options, heap_mib) as (grpc, remoting, pid):
        eventually(lambda: "local-a" in brokers_known_to(namesrv), "registration of the proxy's broker")
        cluster = Cluster(
            "rocketmq", namesrv, f"{HOST}:{port}", "local-a", "LocalCluster", store, pid, grpc=grpc
        )
        yield Proxy(cluster, grpc, remoting, folder, pid)


@contextmanager
def _proxy(
    jars: Jars,
    folder: Path,
    settings: Mapping[str, object],
    arguments: Sequence[str],
    options: Sequence[str],
    heap_mib: int,
) -> Iterator[tuple[str, str, int]]:
    """Where it takes gRPC, and where remoting; its process."""
    folder.mkdir(parents=True, exist_ok=True)
    grpc, remoting = free_port(), free_port()
    values = {**PROXY_SETTINGS, "grpcServerPort": grpc, "remotingListenPort": remoting, **settings}
    conf = folder / "rmq-proxy.json"
    conf.write_text(json.dumps(values))
    command = java_command(
        jars, "org.apache.rocketmq.proxy.ProxyStartup", folder, "-pc", str(conf), *arguments,
        heap_mib=heap_mib, options=["-XX:TieredStopAtLevel=1", "-Dtls.server.mode=disabled", *options],
    )  # fmt: skip
    log = folder / "proxy.out"
    environment = {"RMQ_PROXY_HOME": str(folder), "ROCKETMQ_HOME": str(folder)}
    with process(command, log, env=environment) as child:
        wait_for_start(lambda: STARTED in tail(log), "proxy", child, log)
        yield f"{HOST}:{grpc}", f"{HOST}:{remoting}", child.pid
        child.kill()


def grpc_driver(
    jars: Jars, folder: Path, *, options: Sequence[str] = (), heap_mib: int = 128
) -> AbstractContextManager[Driver]:
    """A JVM with the gRPC client."""
    start = ["-XX:TieredStopAtLevel=1", *options]
    command = java_command(jars, "GrpcDriver", folder, heap_mib=heap_mib, options=start)
    return running(Driver, command, folder)
