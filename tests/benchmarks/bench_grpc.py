"""RocketMQ's gRPC service: sends, and messages that are received and acknowledged, a body of 1 KB each.

Sides, one round of each after the other: an echo of the same messages by grpc's asyncio server alone, which is the
least that a service on it can cost; a broker with grpcEnable; ``mqspark proxy run`` before such a broker; with --java
RocketMQ's own proxy before it, in cluster mode. The load is prepared bytes over one connection (``grpc_load``). Each
round checks that all messages are there.

    python -m tests.benchmarks grpc [--count N] [--rounds R] [--at-once N] [--java] [--store DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc.aio

from mqspark.client.sync import AdminClient
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcservice import SERVICE
from tests.benchmarks.grpc_load import Http2Load, header_block, timed
from tests.benchmarks.report import figure, spelled
from tests.support.clusters import Cluster, mqspark_cluster
from tests.support.grpcclients import message, receive_request, resource
from tests.support.processes import HOST, mqspark_command, process, ready_line, set_options

TOPIC, GROUP = "Bench", "BenchGroup"
BODY = b"x" * 1024
BATCH = 32
ECHO, BROKER, PROXY, JAVA = "grpc's echo", "mqspark broker", "mqspark proxy", "RocketMQ proxy"


class Side(NamedTuple):
    address: str
    cpu_s: Callable[[], float]
    """The processor time of its server, and of the broker behind it."""


def process_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


# --- servers ----------------------------------------------------------------------------------------------------


async def serve_echo() -> None:
    """Answers each send as a broker that does nothing would."""
    answer = pb.SendMessageResponse(status=pb.Status(code=pb.OK, message="OK"))
    answer.entries.add(status=answer.status, message_id="0" * 32, transaction_id="0" * 32, offset=1)

    async def send(request: pb.SendMessageRequest, context: object) -> pb.SendMessageResponse:
        return answer

    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", 4096)])
    handler = grpc.unary_unary_rpc_method_handler(
        send, pb.SendMessageRequest.FromString, pb.SendMessageResponse.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"SendMessage": handler}),)
    )
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    print(f"READY grpc={HOST}:{port}", flush=True)
    await server.wait_for_termination()


@contextlib.contextmanager
def echo(folder: Path) -> Iterator[Side]:
    log = folder / "echo.err"
    command = [sys.executable, "-m", "tests.benchmarks.bench_grpc", "--serve-echo"]
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield Side(ready_line(child, log)["grpc"], lambda: process_cpu_s(child.pid))


@contextlib.contextmanager
def our_proxy(folder: Path, cluster: Cluster) -> Iterator[Side]:
    log = folder / "proxy.err"
    command = [*mqspark_command(), "proxy", "run", "-n", cluster.namesrv]
    command += set_options({"listenPort": 0, "bindAddress": HOST})
    with process(command, log, stdout=subprocess.PIPE) as child:
        address = ready_line(child, log)["grpc"]
        yield Side(address, lambda: process_cpu_s(child.pid) + cluster.cpu_seconds())


@contextlib.contextmanager
def their_proxy(folder: Path, cluster: Cluster) -> Iterator[Side]:
    from tests.interop.proxy import fetch_proxy, running_proxy

    options = [
        "-Xmx1g",
        "-XX:+TieredCompilation",
        "-XX:TieredStopAtLevel=4",
    ]  # as it would run, not as tests start it
    with running_proxy(fetch_proxy(), folder / "java", cluster, options=options) as running:
        yield Side(running.grpc, lambda: process_cpu_s(running.pid) + cluster.cpu_seconds())


# --- rounds -----------------------------------------------------------------------------------------------------


class Round:
    """One connection to a side. ``sends`` and ``receives`` return messages a second, and µs of processor a message."""

    def __init__(self, side: Side, at_once: int) -> None:
        self._side = side
        self._at_once = at_once
        self._load = Http2Load(side.address)
        self._metadata = {
            "x_mq_client_id": f"bench@{uuid.uuid4().hex[:8]}",
            "x_mq_language": "PYTHON",
            "x_mq_client_version": "5.1.2",
        }

    def _block(self, method: str, **more: str) -> bytes:
        return header_block(f"/{SERVICE}/{method}", **self._metadata, **more)

    def sends(self, count: int) -> tuple[float, float]:
        requests = [
            pb.SendMessageRequest(messages=[message(TOPIC, BODY)]).SerializeToString() for _ in range(count)
        ]
        outcome, cpu_s = timed(
            self._load, self._block("SendMessage"), requests, self._at_once, self._side.cpu_s
        )
        for (answer,) in outcome.answers:
            status = pb.SendMessageResponse.FromString(answer).status
            if status.code != pb.OK:
                raise RuntimeError(f"a send was refused: {status}")
        return count / outcome.seconds, cpu_s * 1e6 / count

    def receives(self, count: int) -> tuple[float, float]:
        receive, ack = self._block("ReceiveMessage", grpc_timeout="30S"), self._block("AckMessage")
        request = receive_request(TOPIC, GROUP).SerializeToString()
        received, seconds, cpu_s = 0, 0.0, 0.0
        while received < count:
            outcome, taken_s = timed(self._load, receive, [request], 1, self._side.cpu_s)
            seconds, cpu_s = seconds + outcome.seconds, cpu_s + taken_s
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
            outcome, taken_s = timed(self._load, ack, [given.SerializeToString()], 1, self._side.cpu_s)
            seconds, cpu_s = seconds + outcome.seconds, cpu_s + taken_s
            if pb.AckMessageResponse.FromString(outcome.answers[0][0]).status.code != pb.OK:
                raise RuntimeError("an acknowledgement was refused")
            received += len(got)
        return received / seconds, cpu_s * 1e6 / received

    def close(self) -> None:
        self._load.close()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks grpc")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--java", action="store_true", help="RocketMQ's own proxy, too")
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--serve-echo", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve_echo:
        asyncio.run(serve_echo())
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.store)))
        cluster = stack.enter_context(mqspark_cluster(folder, "--set", "flushDiskType=ASYNC_FLUSH"))
        with AdminClient(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=4)
        idle = figure(
            "idle memory of a broker with gRPC", "MB", [resident_mb(cluster.broker_pid)], less_is_better=True
        )
        print(f"{idle.name:50} {spelled(idle)}", flush=True)
        sides = {
            ECHO: stack.enter_context(echo(folder)),
            BROKER: Side(cluster.grpc, cluster.cpu_seconds),
            PROXY: stack.enter_context(our_proxy(folder, cluster)),
        }
        if options.java:
            sides[JAVA] = stack.enter_context(their_proxy(folder, cluster))
        measured: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for number in range(options.rounds + 1):
            for name, side in sides.items():
                with contextlib.closing(Round(side, options.at_once)) as round_:
                    made = {"sends": round_.sends(options.count)}
                    if name != ECHO:
                        made["receive + ack"] = round_.receives(options.count)
                if number:  # the first one warms up
                    for what, outcome in made.items():
                        measured.setdefault((what, name), []).append(outcome)
        for (what, name), values in measured.items():
            for unit, column, less in (("/s", 0, False), ("µs of CPU a message", 1, True)):
                rounds = [each[column] for each in values]
                shown = figure(f"gRPC, {what}", unit, rounds, side=name, less_is_better=less)
                print(f"{what:15} {name:18} {spelled(shown)}", flush=True)


if __name__ == "__main__":
    main()
