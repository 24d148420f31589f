"""A real RocketMQ to run clients against, as processes with a folder of their own."""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.jars import HERE, Jars
from tests.support.clusters import Cluster, brokers_known_to, mqspark_cluster, write_conf
from tests.support.jvm import with_classes_of
from tests.support.processes import HOST, free_port, listens, process, set_options, wait_for_start
from tests.support.remoting import ask
from tests.support.waiting import eventually

NAMESRV = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER = "org.apache.rocketmq.broker.BrokerStartup"
CONTROLLER = "org.apache.rocketmq.controller.ControllerStartup"
GET_METADATA = 1005
LARGE_HEAP_MIB = 1024
"""With less, a JVM is taken to live for seconds: compiling well would cost more than it saves. Benchmarks have more."""
EITHER = ["mqspark", pytest.param("rocketmq", marks=pytest.mark.slow("a real RocketMQ starts first"))]
"""Parameters of a fixture that yields ``either_cluster``."""

# Checks of transactions come soon, and op messages sooner: a real broker asks for what is decided when they come late.
SOON = {"transactionTimeOut": 1000, "transactionCheckInterval": 500, "transactionOpBatchInterval": 100}
PATIENT = {"transactionCheckInterval": 2500}
"""For a real broker: it asks again, and delivers again, when an answer and its op message are not there by the next
round."""


def java_command(
    jars: Jars, main_class: str, folder: Path, *arguments: str, heap_mib: int, options: list[str]
) -> list[str]:
    """A java command line that writes below folder only.

    Servers start without TLS unless ``options`` say otherwise: each would make two RSA keys, which takes seconds.
    """
    collector = "-XX:+UseSerialGC" if heap_mib < LARGE_HEAP_MIB else "-XX:+UseG1GC"
    return [
        "java", f"-Xms{heap_mib}m", f"-Xmx{heap_mib}m", collector, "-XX:-UsePerfData", "-Dtls.server.mode=disabled",
        f"-Duser.home={folder}", f"-Djava.io.tmpdir={folder}", "-Djava.net.preferIPv4Stack=true",
        f"-Drmq.logback.configurationFile={HERE / 'java' / 'logback.xml'}",
        f"-Dinterop.log.file={folder / 'rocketmq.log'}",
        *with_classes_of(jars.class_archive(main_class)), *options, "-cp", jars.classpath, main_class, *arguments,
    ]  # fmt: skip


@contextmanager
def rocketmq_namesrv(
    jars: Jars, folder: Path, options: Sequence[str] = (), settings: Mapping[str, object] | None = None
) -> Iterator[str]:
    """A real name server; its address. ``options`` are Java's."""
    values = {"listenPort": free_port(), "bindAddress": HOST, **(settings or {})}
    port = values["listenPort"]
    conf = write_conf(folder / "namesrv.conf", values)
    command = java_command(
        jars, NAMESRV, folder, "-c", str(conf), heap_mib=128, options=["-XX:TieredStopAtLevel=1", *options]
    )
    address = f"{HOST}:{port}"
    log = folder / "namesrv.out"
    with process(command, log, env={"ROCKETMQ_HOME": str(folder)}) as child:
        wait_for_start(lambda: listens(address), "name server", child, log)
        yield address


# Small files and no services that the tests do not use; everything else as RocketMQ ships it.
ROCKETMQ_BROKER_SETTINGS = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 6000 * 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "mappedFileSizeTimerLog": 1 << 20,
    # It writes the whole timer wheel each time.
    "timerFlushIntervalMs": 20_000,
    # A thread spins until this time after the start is over: ten seconds as shipped.
    "transactionMetricFlushInterval": 300,
    "autoCreateTopicEnable": True,
    "enablePropertyFilter": True,
    "diskMaxUsedSpaceRatio": 99,
    "bindAddress": HOST,
    # It refuses sends that waited for 200 ms, as they do on a busy machine.
    "waitTimeMillsInSendQueue": 10_000,
}


def _slow_down_spinning(pid: int) -> None:
    """Give the thread that writes decided transactions the lowest priority: once it has written one, it spins for
    the rest of the broker's life. On other systems than Linux, tests wait for it."""
    threads = Path(f"/proc/{pid}/task")
    for thread in threads.iterdir() if threads.exists() else ():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            if (thread / "comm").read_text().startswith("TransactionalOp"):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)


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
    options: Sequence[str] = (),
) -> Iterator[Cluster]:
    """A real broker, registered at namesrv (it takes about ten seconds to); not ``registered``: it only listens.
    ``options`` are Java's.

    It is killed at the end, since its clean stop takes 15 s; ask for SIGTERM when its files are wanted.
    """
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
    port = int(str(values["listenPort"]))
    conf = write_conf(folder / "broker.conf", values)
    compiler = ["-XX:TieredStopAtLevel=1"] if heap_mib < LARGE_HEAP_MIB else []
    options = [*compiler, *options]
    command = java_command(jars, BROKER, folder, "-c", str(conf), heap_mib=heap_mib, options=options)
    log = folder / "broker.out"
    with process(command, log, env={"ROCKETMQ_HOME": str(folder)}, stop_signal=stop_signal) as child:
        name = str(values["brokerName"])
        if registered:
            wait_for_start(lambda: name in brokers_known_to(namesrv), "broker registration", child, log)
        else:
            wait_for_start(lambda: listens(f"{HOST}:{port}"), "broker", child, log)
        _slow_down_spinning(child.pid)
        yield Cluster(
            "rocketmq", namesrv, f"{HOST}:{port}", name, str(values["brokerClusterName"]), store, child.pid
        )


@contextmanager
def rocketmq_controller(
    jars: Jars, folder: Path, settings: Mapping[str, object] | None = None
) -> Iterator[str]:
    """One controller of RocketMQ, which has its consensus (DLedger) with itself; its address."""
    address = f"{HOST}:{free_port()}"
    values = {
        "controllerDLegerGroup": "group",
        "controllerDLegerPeers": f"n0-{address}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": folder / "controller",
        **(settings or {}),
    }
    folder.mkdir(parents=True)
    conf = write_conf(folder / "controller.conf", values)
    command = java_command(
        jars, CONTROLLER, folder, "-c", str(conf), heap_mib=256, options=["-XX:TieredStopAtLevel=1"]
    )
    log = folder / "controller.out"
    with process(command, log, env={"ROCKETMQ_HOME": str(folder)}, stop_signal=signal.SIGKILL) as child:
        wait_for_start(lambda: listens(address), "controller", child, log)
        eventually(lambda: ask(address, GET_METADATA).ext.get("isLeader") == "true", "a leader")
        yield address


@contextmanager
def rocketmq_cluster(jars: Jars, folder: Path, **options: object) -> Iterator[Cluster]:
    with rocketmq_namesrv(jars, folder / "namesrv") as namesrv:
        with rocketmq_broker(jars, folder / "broker", namesrv, **options) as cluster:  # type: ignore[arg-type]
            yield cluster


@contextmanager
def either_cluster(
    request: pytest.FixtureRequest,
    folder: Path,
    settings: Mapping[str, object],
    theirs: Mapping[str, object] | None = None,
) -> Iterator[Cluster]:
    """A cluster of the kind that the fixture's parameter names; ``theirs`` are settings for a real one alone.

    The jars are asked for only if it is a real one: ours needs no Java.
    """
    if request.param == "rocketmq":
        jars: Jars = request.getfixturevalue("newest_jars")
        with rocketmq_cluster(jars, folder, settings={**settings, **(theirs or {})}) as running:
            yield running
    else:
        with mqspark_cluster(folder, *set_options(settings)) as running:
            yield running
