"""RocketMQ's own Proxy before a cluster, and the gRPC client for it: unmodified, in processes of their own."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop import jars as jar_cache
from tests.interop.driver import Driver, running
from tests.interop.jars import HERE, Jars
from tests.interop.rocketmq import java_command
from tests.support.clusters import Cluster
from tests.support.processes import HOST, free_port, process, tail, wait_for_start

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
) -> Iterator[Proxy]:
    """A proxy in cluster mode. It is killed at the end, since its clean stop takes long. ``options`` are Java's."""
    folder.mkdir(parents=True, exist_ok=True)
    grpc, remoting = free_port(), free_port()
    values = {
        **PROXY_SETTINGS,
        "namesrvAddr": cluster.namesrv,
        "rocketMQClusterName": cluster.cluster_name,
        "grpcServerPort": grpc,
        "remotingListenPort": remoting,
        **(settings or {}),
    }
    conf = folder / "rmq-proxy.json"
    conf.write_text(json.dumps(values))
    command = java_command(
        jars, "org.apache.rocketmq.proxy.ProxyStartup", folder, "-pc", str(conf),
        heap_mib=256, options=["-XX:TieredStopAtLevel=1", "-Dtls.server.mode=disabled", *options],
    )  # fmt: skip
    log = folder / "proxy.out"
    environment = {"RMQ_PROXY_HOME": str(folder), "ROCKETMQ_HOME": str(folder)}
    with process(command, log, env=environment) as child:
        wait_for_start(lambda: STARTED in tail(log), "proxy", child, log)
        yield Proxy(cluster, f"{HOST}:{grpc}", f"{HOST}:{remoting}", folder, child.pid)
        child.kill()


def grpc_driver(jars: Jars, folder: Path) -> AbstractContextManager[Driver]:
    """A JVM with the gRPC client."""
    command = java_command(jars, "GrpcDriver", folder, heap_mib=128, options=["-XX:TieredStopAtLevel=1"])
    return running(Driver, command, folder)
