"""RocketMQ's gRPC service: sends, and messages that are received and acknowledged, a body of 1 KB each.

Sides, one round of each after the other: an echo of the same messages by our listener alone, which is the least that a
service on it can cost, and by grpc's asyncio server; a broker with grpcEnable; ``mqspark proxy run`` before such a
broker; with --java RocketMQ 5.5.0's proxy in local mode (its broker in its process), and in cluster mode before
RocketMQ's broker. The load is prepared bytes over one connection (``grpc_load``); with --java there are rows with the
unmodified rocketmq-client-java as well, with 256 sends or 4 receipts under way, which acknowledges message by message.
Each round checks that all messages are there. Processor time is that of all processes that serve: the broker's, and the
proxy's if there is one, which is shown alone as well. Java's processes are stopped while the others have their turn.
Rounds that warm up come first, so that they are compiled.

    python -m tests.benchmarks grpc [--count N] [--rounds R] [--warm-up R] [--at-once N] [--java] [--only SIDE ...]
                                    [--load raw|client|both] [--client-count N]
    python -m tests.benchmarks grpc --streams N      N streams that wait, instead (``grpc_waiting``)
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import grpc.aio

from mqspark_server.net.addresses import bind
from mqspark_server.net.grpc.grpclistener import GrpcListener
from mqspark_server.net.grpc.servedcalls import GrpcMethod
from mqspark_server.net.guards import ConnectionLimits
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcservice import SERVICE
from tests.benchmarks.grpc_load import Http2Load
from tests.benchmarks.grpc_waiting import CONNECTIONS, waiting
from tests.benchmarks.report import figure, spelled
from tests.interop import jars as jar_cache
from tests.interop.driver import Driver
from tests.interop.proxy import (
    fetch_grpc_client,
    fetch_proxy,
    grpc_driver,
    running_local_proxy,
    running_proxy,
)
from tests.interop.rocketmq import rocketmq_cluster, rocketmq_namesrv
from tests.interop.topics import create_group, create_topic
from tests.support.barehttp2 import header_block
from tests.support.clusters import Cluster, mqspark_cluster
from tests.support.grpcclients import BareCaller, bare_caller, message, receive_request, resource
from tests.support.processes import HOST, mqspark_command, process, ready_line, resident_bytes, set_options

TOPIC, GROUP = "Bench", "BenchGroup"
BODY = b"x" * 1024
BATCH = 32
QUEUES = 4
ECHO, GRPC_ECHO, BROKER, PROXY = "our echo", "grpc's echo", "mqspark broker", "mqspark proxy"
ECHOES = {ECHO: "ours", GRPC_ECHO: "grpc"}
JAVA_LOCAL, JAVA_CLUSTER = "RocketMQ local", "RocketMQ cluster"
WARM_UP = 3
JAVA_HEAP_MIB = 512
JAVA_BROKER = {
    "flushDiskType": "ASYNC_FLUSH",
    "diskMaxUsedSpaceRatio": 99,
    "bindAddress": HOST,
    "waitTimeMillsInSendQueue": 10_000,  # a busy machine makes requests wait
}
COMPILED = ["-XX:TieredStopAtLevel=4"]
"""As it would run; tests start it faster."""
BY_CLIENT = 256
"""Sends of rocketmq-client-java that are under way at a time."""
RECEIVERS = 4
"""Receipts of rocketmq-client-java that are under way at a time."""


class Cpu(NamedTuple):
    """Seconds of processor time: of all processes of a side, and of the first, which speaks gRPC."""

    all_s: float
    first_s: float

    def since(self, before: Cpu) -> Cpu:
        return Cpu(self.all_s - before.all_s, self.first_s - before.first_s)


class Side(NamedTuple):
    address: str
    pids: tuple[int, ...]
    """Its server, and the broker behind it."""
    is_java: bool = False

    def cpu(self) -> Cpu:
        each = [process_cpu_s(pid) for pid in self.pids]
        return Cpu(sum(each), each[0])


class Figures(NamedTuple):
    per_s: float
    cpu_us: float
    """Microseconds of processor time a message."""
    first_cpu_us: float

    @classmethod
    def of(cls, count: int, seconds: float, cpu: Cpu) -> Figures:
        return cls(count / seconds, cpu.all_s * 1e6 / count, cpu.first_s * 1e6 / count)


def process_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- servers ----------------------------------------------------------------------------------------------------


ANSWER = pb.SendMessageResponse(status=pb.Status(code=pb.OK, message="OK"))
ANSWER.entries.add(status=ANSWER.status, message_id="0" * 32, transaction_id="0" * 32, offset=1)
"""To each send, as of a broker that does nothing."""


async def answered(request: pb.SendMessageRequest, context: object) -> pb.SendMessageResponse:
    return ANSWER


async def serve_echo() -> None:
    sock = bind("echo", HOST, 0)
    path, parse = f"/{SERVICE}/SendMessage", pb.SendMessageRequest.FromString
    listener = GrpcListener(
        {path: GrpcMethod("SendMessage", parse, answered)},
        None,
        name="echo",
        max_message_bytes=1 << 23,
        max_calls=20_000,
        limits=ConnectionLimits(),
    )
    await listener.listen(sock)
    print(f"READY grpc={HOST}:{sock.getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().create_future()


async def serve_grpc_echo() -> None:
    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", 4096)])
    handler = grpc.unary_unary_rpc_method_handler(
        answered, pb.SendMessageRequest.FromString, pb.SendMessageResponse.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"SendMessage": handler}),)
    )
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    print(f"READY grpc={HOST}:{port}", flush=True)
    await server.wait_for_termination()


@contextlib.contextmanager
def echo(folder: Path, kind: str) -> Iterator[Side]:
    log = folder / f"echo-{kind}.err"
    command = [sys.executable, "-m", "tests.benchmarks.bench_grpc", "--serve-echo", kind]
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield Side(ready_line(child, log)["grpc"], (child.pid,))


@contextlib.contextmanager
def our_proxy(folder: Path, cluster: Cluster) -> Iterator[Side]:
    log = folder / "proxy.err"
    command = [*mqspark_command(), "proxy", "run", "-n", cluster.namesrv]
    command += set_options({"listenPort": 0, "bindAddress": HOST})
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield Side(ready_line(child, log)["grpc"], (child.pid, cluster.broker_pid))


@contextlib.contextmanager
def java_local(folder: Path) -> Iterator[Side]:
    jars = fetch_proxy()
    with (
        rocketmq_namesrv(jar_cache.fetch(), folder / "namesrv") as namesrv,
        running_local_proxy(
            jars, folder / "proxy", namesrv, JAVA_BROKER, options=COMPILED, heap_mib=JAVA_HEAP_MIB
        ) as running,
    ):
        create_topic(running.cluster, TOPIC, QUEUES)
        create_group(running.cluster, GROUP)
        yield Side(running.grpc, (running.pid,), is_java=True)


@contextlib.contextmanager
def java_cluster(folder: Path) -> Iterator[Side]:
    broker = rocketmq_cluster(
        jar_cache.fetch(), folder / "cluster", settings=JAVA_BROKER, heap_mib=JAVA_HEAP_MIB, options=COMPILED
    )
    with (
        broker as cluster,
        running_proxy(
            fetch_proxy(), folder / "proxy", cluster, options=COMPILED, heap_mib=JAVA_HEAP_MIB
        ) as running,
    ):
        create_topic(cluster, TOPIC, QUEUES)
        create_group(cluster, GROUP)
        yield Side(running.grpc, (running.pid, cluster.broker_pid), is_java=True)


@contextlib.contextmanager
def turn_of(side: Side) -> Iterator[None]:
    if not side.is_java:
        yield
        return
    for pid in side.pids:
        os.kill(pid, signal.SIGCONT)
    try:
        yield
    finally:
        for pid in side.pids:
            os.kill(pid, signal.SIGSTOP)


# --- rounds -----------------------------------------------------------------------------------------------------


class Round:
    """One connection to a side."""

    def __init__(self, side: Side, at_once: int, *, speaks: bool) -> None:
        self._side = side
        self._at_once = at_once
        self._load = Http2Load(side.address)
        self._stack = contextlib.ExitStack()
        caller = self._stack.enter_context(bare_caller(side.address))
        self._metadata = {name.replace("-", "_"): value for name, value in caller.metadata.items()}
        if speaks:
            self._say_settings(caller)

    def _say_settings(self, caller: BareCaller) -> None:
        """Without them RocketMQ's proxy lets nobody receive."""
        said: queue.Queue[pb.TelemetryCommand | None] = queue.Queue()
        subscription = pb.Subscription(group=resource(GROUP))
        subscription.subscriptions.add(
            topic=resource(TOPIC), expression=pb.FilterExpression(type=pb.TAG, expression="*")
        )
        settings = pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription)
        settings.request_timeout.seconds = 3
        said.put(pb.TelemetryCommand(settings=settings))
        stream = caller.Telemetry(iter(said.get, None), timeout=None)
        next(stream)
        self._stack.callback(stream.cancel)
        self._stack.callback(said.put, None)

    def _block(self, method: str, **more: str) -> bytes:
        return header_block(f"/{SERVICE}/{method}", **self._metadata, **more)

    def sends(self, count: int) -> Figures:
        requests = [
            pb.SendMessageRequest(messages=[message(TOPIC, BODY)]).SerializeToString() for _ in range(count)
        ]
        before = self._side.cpu()
        outcome = self._load.run(self._block("SendMessage"), requests, self._at_once)
        cpu = self._side.cpu().since(before)
        for (answer,) in outcome.answers:
            status = pb.SendMessageResponse.FromString(answer).status
            if status.code != pb.OK:
                raise RuntimeError(f"a send was refused: {status}")
        return Figures.of(count, outcome.seconds, cpu)

    def receives(self, count: int) -> Figures:
        receive, ack = self._block("ReceiveMessage", grpc_timeout="30S"), self._block("AckMessage")
        request = receive_request(TOPIC, GROUP).SerializeToString()
        received, seconds, before = 0, 0.0, self._side.cpu()
        while received < count:
            outcome = self._load.run(receive, [request], 1)
            seconds += outcome.seconds
            answers = [pb.ReceiveMessageResponse.FromString(each) for each in outcome.answers[0]]
            got = [each.message for each in answers if each.HasField("message")]
            if not got:
                raise RuntimeError(f"{count - received} messages are missing: {answers[0].status}")
            given = pb.AckMessageRequest(topic=resource(TOPIC), group=resource(GROUP))
            for each in got:
                given.entries.add(
                    message_id=each.system_properties.message_id,
                    receipt_handle=each.system_properties.receipt_handle,
                )
            outcome = self._load.run(ack, [given.SerializeToString()], 1)
            seconds += outcome.seconds
            if pb.AckMessageResponse.FromString(outcome.answers[0][0]).status.code != pb.OK:
                raise RuntimeError("an acknowledgement was refused")
            received += len(got)
        return Figures.of(received, seconds, self._side.cpu().since(before))

    def close(self) -> None:
        self._stack.close()
        self._load.close()


class JavaRound:
    """rocketmq-client-java as the load."""

    def __init__(self, side: Side, driver: Driver) -> None:
        self._side = side
        self._driver = driver

    def sends(self, count: int) -> Figures:
        handle = self._started("producer.start", topics=[TOPIC])
        message = {"topic": TOPIC, "body": base64.b64encode(BODY).decode()}
        before = self._side.cpu()
        made = self._driver.call(
            "producer.flood", handle=handle, message=message, count=count, at_once=BY_CLIENT
        )
        if made["failed"]:
            raise RuntimeError(f"{made['failed']} sends failed")
        return self._figures(handle, count, made["seconds"], before)

    def receives(self, count: int) -> Figures:
        subscriptions = {TOPIC: ["TAG", "*"]}
        handle = self._started("simple.start", group=GROUP, await_ms=5_000, subscriptions=subscriptions)
        before = self._side.cpu()
        made = self._driver.call(
            "simple.drain", handle=handle, count=count, max=BATCH, at_once=RECEIVERS, invisible_ms=60_000
        )
        received = int(made["count"])  # more than were sent: some came twice
        if received < count or made["bytes"] != received * len(BODY):
            raise RuntimeError(f"{received} messages of {made['bytes']} bytes were received")
        return self._figures(handle, received, made["seconds"], before)

    def _started(self, verb: str, **options: object) -> int:
        return int(self._driver.call(verb, endpoints=self._side.address, **options)["handle"])

    def _figures(self, handle: int, count: int, seconds: float, before: Cpu) -> Figures:
        made = Figures.of(count, seconds, self._side.cpu().since(before))
        self._driver.call("stop", handle=handle)
        return made


def show_memory(sides: Mapping[str, Side]) -> None:
    for name, side in sides.items():
        if name not in ECHOES:
            held = sum(map(resident_bytes, side.pids)) / (1 << 20)
            idle = figure("gRPC, idle memory", "MB", [held], side=name, less_is_better=True)
            print(f"{idle.name:24} {name:18} {spelled(idle)}", flush=True)
        if side.is_java:  # until its turn
            for pid in side.pids:
                os.kill(pid, signal.SIGSTOP)


def measured_round(
    side: Side, name: str, driver: Driver | None, options: argparse.Namespace
) -> dict[str, Figures]:
    made = {}
    with turn_of(side), contextlib.closing(Round(side, options.at_once, speaks=name not in ECHOES)) as round_:
        if options.load != "client":
            made["sends"] = round_.sends(options.count)
            if name not in ECHOES:
                made["receive + ack"] = round_.receives(options.count)
        if driver is not None and name not in ECHOES:
            client = JavaRound(side, driver)
            made["sends by Java"] = client.sends(options.client_count)
            made["receive + ack by Java"] = client.receives(options.client_count)
    return made


@contextlib.contextmanager
def running_sides(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Side]]:
    """Those that are asked for."""
    asked = options.only or [*ECHOES, BROKER, PROXY, *((JAVA_LOCAL, JAVA_CLUSTER) if options.java else ())]
    with contextlib.ExitStack() as stack:
        sides = {
            name: stack.enter_context(echo(folder, kind)) for name, kind in ECHOES.items() if name in asked
        }
        if BROKER in asked or PROXY in asked:
            cluster = stack.enter_context(mqspark_cluster(folder, "--set", "flushDiskType=ASYNC_FLUSH"))
            create_topic(cluster, TOPIC, QUEUES)
            create_group(cluster, GROUP)
            if BROKER in asked:
                sides[BROKER] = Side(cluster.grpc, (cluster.broker_pid,))
            if PROXY in asked:
                sides[PROXY] = stack.enter_context(our_proxy(folder, cluster))
        if JAVA_LOCAL in asked:
            sides[JAVA_LOCAL] = stack.enter_context(java_local(folder / "local"))
        if JAVA_CLUSTER in asked:
            sides[JAVA_CLUSTER] = stack.enter_context(java_cluster(folder / "java"))
        yield sides


def show_waiting(folder: Path, streams: int) -> None:
    with mqspark_cluster(folder, "--set", "flushDiskType=ASYNC_FLUSH") as cluster:
        groups = [f"{GROUP}{number}" for number in range(CONNECTIONS)]
        for group in groups:
            create_group(cluster, group)
        for topic in (TOPIC, "Waited"):
            create_topic(cluster, topic, QUEUES)
        print(waiting(cluster, groups, "Waited", TOPIC, streams), flush=True)


def show_figures(measured: Mapping[tuple[str, str], list[Figures]], sides: Mapping[str, Side]) -> None:
    for (what, name), rounds in measured.items():
        columns = {
            "/s": [each.per_s for each in rounds],
            "µs of CPU a message": [each.cpu_us for each in rounds],
        }
        if len(sides[name].pids) > 1:
            columns["µs of CPU a message, the proxy alone"] = [each.first_cpu_us for each in rounds]
        for unit, values in columns.items():
            shown = figure(f"gRPC, {what}", unit, values, side=name, less_is_better=unit != "/s")
            print(f"{what:22} {name:18} {spelled(shown)}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks grpc")
    parser.add_argument("--count", type=int, default=10_000, help="messages of a row and round")
    parser.add_argument("--client-count", type=int, default=2_048, help="the same of RocketMQ's client")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, help=f"rounds before; {WARM_UP} with Java, or 1")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--java", action="store_true", help="RocketMQ's own proxy, and its client as a load")
    parser.add_argument("--load", choices=("raw", "client", "both"), default="both")
    parser.add_argument("--streams", type=int, help="so many streams that wait, instead of rounds")
    parser.add_argument("--only", nargs="+", help="these sides")
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--serve-echo", choices=ECHOES.values(), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve_echo:
        asyncio.run(serve_echo() if options.serve_echo == ECHOES[ECHO] else serve_grpc_echo())
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.store)))
        if options.streams:
            show_waiting(folder, options.streams)
            return
        sides = stack.enter_context(running_sides(folder, options))
        driver = None
        if options.java and options.load != "raw":
            driver = stack.enter_context(
                grpc_driver(fetch_grpc_client(), folder / "driver", options=COMPILED, heap_mib=JAVA_HEAP_MIB)
            )
        show_memory(sides)
        measured: dict[tuple[str, str], list[Figures]] = {}
        warm_up = options.warm_up
        if warm_up is None:
            warm_up = WARM_UP if options.java else 1
        for number in range(warm_up + options.rounds):
            for name, side in sides.items():
                made = measured_round(side, name, driver, options)
                shown = ", ".join(f"{what} {of.cpu_us:.0f} ({of.per_s:.0f}/s)" for what, of in made.items())
                print(f"round {number - warm_up:2} {name:18} µs of CPU a message: {shown}", flush=True)
                if number >= warm_up:
                    for what, of in made.items():
                        measured.setdefault((what, name), []).append(of)
        print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}", flush=True)
        show_figures(measured, sides)


if __name__ == "__main__":
    main()
