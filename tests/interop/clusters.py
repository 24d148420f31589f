"""Clusters to run clients against: a real RocketMQ and ours, each as processes with a folder of their own."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.interop.jars import HERE, Jars
from tests.support.remoting import GET_BROKER_CLUSTER_INFO, ask

START_TIMEOUT_S = 150.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.1
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running name server and broker, as a client sees them, and the broker's process."""

    kind: str
    namesrv: str
    broker: str
    broker_name: str
    cluster_name: str
    store: Path
    broker_pid: int
    http: str = ""

    def cpu_seconds(self) -> float:
        """User and system time the broker process has used so far."""
        fields = Path(f"/proc/{self.broker_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port(*, neighbours: int = 0) -> int:
    """A port that is free now, as are that many on either side (a broker takes listenPort - 2 and + 1).

    Below the range from which the kernel takes ports for outgoing connections: one of those must not get it
    before the process that it is meant for.
    """
    for _ in range(100):
        port = random.randrange(12_000, 30_000)
        held: list[socket.socket] = []
        try:
            held.extend(
                socket.create_server((HOST, number))
                for number in range(port - neighbours, port + neighbours + 1)
            )
            return port
        except OSError:
            continue
        finally:
            for listener in held:
                listener.close()
    raise RuntimeError(f"no {2 * neighbours + 1} adjacent free ports found")


@contextmanager
def process(
    command: list[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[str]]:
    """A child that is told to stop when the block ends. Its output goes to log, or its stdout to a pipe."""
    with log.open("a") as sink:
        child = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=sink if stdout is None else stdout,
            stderr=sink,
            text=True,
            cwd=log.parent,
        )
    try:
        yield child
    finally:
        stop(child, stop_signal)
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


def stop(child: subprocess.Popen[str], stop_signal: signal.Signals = signal.SIGTERM) -> int:
    """Send the signal, SIGKILL if the child does not end in time. The exit code, negative for a signal."""
    if child.poll() is None:
        child.send_signal(stop_signal)
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    return child.returncode


def java_command(
    jars: Jars, main_class: str, folder: Path, *arguments: str, heap_mib: int, options: list[str]
) -> list[str]:
    """A java command line that writes below folder only."""
    return [
        "java",
        f"-Xms{heap_mib}m",
        f"-Xmx{heap_mib}m",
        "-XX:+UseSerialGC" if heap_mib < 1024 else "-XX:+UseG1GC",
        "-XX:-UsePerfData",
        f"-Duser.home={folder}",
        f"-Djava.io.tmpdir={folder}",
        "-Djava.net.preferIPv4Stack=true",
        f"-Drmq.logback.configurationFile={HERE / 'java' / 'logback.xml'}",
        f"-Dinterop.log.file={folder / 'rocketmq.log'}",
        *options,
        "-cp",
        jars.classpath,
        main_class,
        *arguments,
    ]


def wait_until(
    condition: Callable[[], bool],
    what: str,
    child: subprocess.Popen[str],
    log: Path,
    timeout_s: float = START_TIMEOUT_S,
) -> None:
    """Poll until condition holds. Fails with the tail of the log when the child dies or the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if child.poll() is not None or time.monotonic() > deadline:
            state = "still runs" if child.poll() is None else f"exited with {child.returncode}"
            raise RuntimeError(f"{what}: not within {timeout_s} s; the process {state}\n{tail(log)}")
        time.sleep(POLL_S)


def tail(log: Path, characters: int = 4000) -> str:
    return log.read_text(errors="replace")[-characters:] if log.exists() else "(no log)"


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def brokers_known_to(namesrv: str) -> dict[str, dict[str, str]]:
    """Broker name -> broker id -> address, as the name server answers it. Empty while it cannot."""
    try:
        reply = ask(namesrv, GET_BROKER_CLUSTER_INFO)
    except OSError:
        return {}
    table = json.loads(_quoted_keys(reply.body)).get("brokerAddrTable") or {}
    return {name: data["brokerAddrs"] for name, data in table.items()}


def _quoted_keys(body: bytes) -> bytes:
    """RocketMQ's JSON has bare integer keys: {0:"..."}."""
    return re.sub(rb"([{,])(\d+):", rb'\1"\2":', body)


@contextmanager
def rocketmq_namesrv(jars: Jars, folder: Path) -> Iterator[str]:
    """A real name server; its address."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    conf = folder / "namesrv.conf"
    conf.write_text(f"listenPort={port}\nbindAddress={HOST}\n")
    command = java_command(
        jars, "org.apache.rocketmq.namesrv.NamesrvStartup", folder, "-c", str(conf),
        heap_mib=128, options=["-XX:TieredStopAtLevel=1"],
    )  # fmt: skip
    address = f"{HOST}:{port}"
    log = folder / "namesrv.out"
    with process(command, log, env={"ROCKETMQ_HOME": str(folder)}) as child:
        wait_until(lambda: listens(address), "name server", child, log)
        yield address


# Small files and no services that the tests do not use; everything else as RocketMQ ships it.
ROCKETMQ_BROKER_SETTINGS = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 6000 * 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "mappedFileSizeTimerLog": 1 << 20,
    "autoCreateTopicEnable": True,
    "enablePropertyFilter": True,
    "diskMaxUsedSpaceRatio": 99,
    "bindAddress": HOST,
}


@contextmanager
def rocketmq_broker(
    jars: Jars,
    folder: Path,
    namesrv: str,
    *,
    heap_mib: int = 384,
    settings: Mapping[str, object] | None = None,
    stop_signal: signal.Signals = signal.SIGKILL,
    registered: bool = True,
) -> Iterator[Cluster]:
    """A real broker, registered at namesrv (it takes about ten seconds to); not ``registered``: it only listens.

    It is killed at the end, since its clean stop takes 15 s; ask for SIGTERM when its files are wanted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port(neighbours=2)
    store = folder / "store"
    values = {
        "brokerClusterName": "RocketCluster",
        "brokerName": "rocketmq-a",
        "brokerId": 0,
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "listenPort": port,
        "namesrvAddr": namesrv,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        **ROCKETMQ_BROKER_SETTINGS,
        **(settings or {}),
    }
    conf = folder / "broker.conf"
    conf.write_text("".join(f"{key}={_text(value)}\n" for key, value in values.items()))
    command = java_command(
        jars,
        "org.apache.rocketmq.broker.BrokerStartup",
        folder,
        "-c",
        str(conf),
        heap_mib=heap_mib,
        options=[],
    )
    log = folder / "broker.out"
    with process(command, log, env={"ROCKETMQ_HOME": str(folder)}, stop_signal=stop_signal) as child:
        name = str(values["brokerName"])
        if registered:
            wait_until(lambda: name in brokers_known_to(namesrv), "broker registration", child, log)
        else:
            wait_until(lambda: listens(f"{HOST}:{port}"), "broker", child, log)
        yield Cluster(
            "rocketmq", namesrv, f"{HOST}:{port}", name, str(values["brokerClusterName"]), store, child.pid
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def rocketmq_cluster(jars: Jars, folder: Path, **options: object) -> Iterator[Cluster]:
    with rocketmq_namesrv(jars, folder / "namesrv") as namesrv:
        with rocketmq_broker(jars, folder / "broker", namesrv, **options) as cluster:  # type: ignore[arg-type]
            yield cluster


def mqspark_command() -> list[str]:
    """The installed console script of the interpreter that runs the tests."""
    script = Path(sys.executable).with_name("mqspark")
    found = str(script) if script.exists() else shutil.which("mqspark")
    if found is None:
        raise RuntimeError("the mqspark command is not installed beside this interpreter")
    return [found]


@contextmanager
def mqspark_namesrv(folder: Path) -> Iterator[str]:
    """`mqspark namesrv run` in a process of its own; its address."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "namesrv.err"
    settings = ["--set", "listenPort=0", "--set", f"bindAddress={HOST}"]
    with process([*mqspark_command(), "namesrv", "run", *settings], log, stdout=subprocess.PIPE) as child:
        yield ready_line(child, log)["namesrv"]


@contextmanager
def mqspark_broker(
    folder: Path,
    namesrv: str,
    settings: Mapping[str, object],
    *,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[Cluster]:
    """`mqspark broker run` with a broker.conf; registered at namesrv when it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
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
    conf = folder / "broker.conf"
    conf.write_text("".join(f"{key}={_text(value)}\n" for key, value in values.items()))
    log = folder / "broker.err"
    command = [*mqspark_command(), "broker", "run", "-c", str(conf)]
    with process(command, log, stdout=subprocess.PIPE, stop_signal=stop_signal) as child:
        ready = ready_line(child, log)
        name, cluster_name = str(values["brokerName"]), str(values["brokerClusterName"])
        yield Cluster(
            "mqspark",
            namesrv,
            ready["broker"],
            name,
            cluster_name,
            Path(ready["store"]),
            child.pid,
            ready["http"],
        )


@contextmanager
def mqspark_cluster(folder: Path, *arguments: str) -> Iterator[Cluster]:
    """`mqspark dev` in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
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
            "mqspark", ready["namesrv"], ready["broker"], name, cluster_name, store, child.pid, ready["http"]
        )


def ready_line(child: subprocess.Popen[str], log: Path) -> dict[str, str]:
    """The fields of the line `READY name=value ...` that every process of ours prints once it serves."""
    stdout: IO[str] | None = child.stdout
    assert stdout is not None
    too_late = threading.Timer(START_TIMEOUT_S, child.kill)
    too_late.start()
    try:
        for line in stdout:
            word, *fields = line.split()
            if word == "READY":
                return dict(field.split("=", 1) for field in fields)
    finally:
        too_late.cancel()
    raise RuntimeError(f"the process ended without a READY line, exit code {child.wait()}\n{tail(log)}")
