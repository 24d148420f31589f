"""mqspark clusters in separate processes, started as by a user. (``mqspark.testing`` runs them in a thread.)"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import (
    HOST,
    free_port,
    mqspark_command,
    process,
    ready_line,
    set_options,
    text_of,
)
from tests.support.remoting import GET_BROKER_CLUSTER_INFO, ask


@dataclass(frozen=True, slots=True)
class Cluster:
    """The addresses of a running name server and broker, and the broker's process."""

    kind: str
    namesrv: str
    broker: str
    broker_name: str
    cluster_name: str
    store: Path
    broker_pid: int
    http: str = ""
    grpc: str = ""
    """Empty without a service of its own for gRPC clients."""

    def cpu_seconds(self) -> float:
        """User and system time the broker process has used so far."""
        fields = Path(f"/proc/{self.broker_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def brokers_known_to(namesrv: str) -> dict[str, dict[str, str]]:
    """Broker name -> broker id -> address, from the name server. Empty while it does not answer."""
    try:
        reply = ask(namesrv, GET_BROKER_CLUSTER_INFO)
    except OSError:
        return {}
    table = json.loads(_quoted_keys(reply.body)).get("brokerAddrTable") or {}
    return {name: data["brokerAddrs"] for name, data in table.items()}


def _quoted_keys(body: bytes) -> bytes:
    """RocketMQ's JSON has bare integer keys: {0:"..."}."""
    return re.sub(rb"([{,])(\d+):", rb'\1"\2":', body)


def write_conf(path: Path, values: Mapping[str, object]) -> Path:
    """Write a ``broker.conf``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={text_of(value)}\n" for key, value in values.items()))
    return path


@contextmanager
def mqspark_namesrv(folder: Path, more: Mapping[str, object] | None = None) -> Iterator[str]:
    """Run `mqspark namesrv run` in a process; yields its address."""
    log = folder / "namesrv.err"
    values = {"listenPort": 0, "bindAddress": HOST, "kvConfigPath": folder / "kvConfig.json", **(more or {})}
    settings = set_options(values)
    with process([*mqspark_command(), "namesrv", "run", *settings], log, stdout=subprocess.PIPE) as child:
        yield ready_line(child, log)["namesrv"]


@contextmanager
def mqspark_controller(folder: Path, port: int = 0, **settings: object) -> Iterator[tuple[str, int]]:
    """Run `mqspark controller run` in a process, which is killed at the end; yields its address and process id."""
    log = folder / "controller.err"
    store = folder / "controller"
    values = set_options({"listenPort": port, "bindAddress": HOST, "controllerStorePath": store, **settings})
    command = [*mqspark_command(), "controller", "run", *values]
    with process(command, log, stdout=subprocess.PIPE, stop_signal=signal.SIGKILL) as child:
        ready = ready_line(child, log)
        assert "etcdEndpoints" in settings or ready["store"] == str(store)
        yield ready["controller"], child.pid


@contextmanager
def mqspark_broker(
    folder: Path,
    namesrv: str,
    settings: Mapping[str, object],
    *,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[Cluster]:
    """Run `mqspark broker run` with a broker.conf. It is registered at namesrv when it is ready."""
    values = {
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "listenPort": free_port(neighbours=2),
        "httpPort": 0,
        "namesrvAddr": namesrv,
        "storePathRootDir": folder / "store",
        "flushDiskType": "ASYNC_FLUSH",
        "brokerRole": "ASYNC_MASTER",
        "deleteWhen": "04",
        **settings,
    }
    log = folder / "broker.err"
    command = [*mqspark_command(), "broker", "run", "-c", str(write_conf(folder / "broker.conf", values))]
    with process(command, log, stdout=subprocess.PIPE, stop_signal=stop_signal) as child:
        ready = ready_line(child, log)
        yield Cluster(
            "mqspark",
            namesrv,
            ready["broker"],
            str(values["brokerName"]),
            str(values["brokerClusterName"]),
            Path(ready["store"]),
            child.pid,
            ready["http"],
        )


@contextmanager
def mqspark_cluster(folder: Path, *arguments: str) -> Iterator[Cluster]:
    """Run `mqspark dev` in a process."""
    store = folder / "store"
    log = folder / "mqspark.err"
    ports = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
    command = [*mqspark_command(), "dev", "--store", str(store), *ports, *arguments]
    with process(command, log, stdout=subprocess.PIPE) as child:
        ready = ready_line(child, log)
        ((name, addresses),) = brokers_known_to(ready["namesrv"]).items()
        assert addresses == {"0": ready["broker"]}, addresses
        info = json.loads(_quoted_keys(ask(ready["namesrv"], GET_BROKER_CLUSTER_INFO).body))
        (cluster_name,) = info["clusterAddrTable"]
        yield Cluster(
            "mqspark", ready["namesrv"], ready["broker"], name, cluster_name, store, child.pid, ready["http"],
            ready.get("grpc", ""),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BrokerHost:
    """A running `mqspark host run`."""

    child: subprocess.Popen[str]
    log: Path
    ready: Mapping[str, str]

    @property
    def brokers(self) -> list[str]:
        return self.ready["broker"].split(",")

    @property
    def page(self) -> str:
        return self.ready["http"]

    def pids(self) -> dict[str, int]:
        """Name → process of the brokers that serve, by the supervisor's log."""
        said = re.findall(
            r"mqspark\.host: (\S+) (?:serves again )?\(pid (\d+)\) (?:serves )?at", self.log.read_text()
        )
        return {name: int(pid) for name, pid in said}


@contextmanager
def mqspark_host(
    folder: Path,
    namesrv: str,
    count: int,
    settings: Mapping[str, object] | None = None,
    *more: str,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[BrokerHost]:
    """Run `mqspark host run` in a process, with a broker.conf; its stores are in ``folder / "host"``."""
    values = {
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "listenPort": 0,
        "httpPort": 0,
        "brokerName": "h",
        "namesrvAddr": namesrv,
        "storePathRootDir": folder / "host",
        **(settings or {}),
    }
    log = folder / "host.err"
    conf = str(write_conf(folder / "host.conf", values))
    command = [*mqspark_command(), "host", "run", "--brokers", str(count), "-c", conf, *more]
    with process(command, log, stdout=subprocess.PIPE, stop_signal=stop_signal) as child:
        yield BrokerHost(child, log, ready_line(child, log))
