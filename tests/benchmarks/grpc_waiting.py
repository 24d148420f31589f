"""Thousands of ReceiveMessage streams that wait for messages: the memory of their broker, and how long a send takes
meanwhile."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcservice import SERVICE
from tests.benchmarks.grpc_load import Http2Load
from tests.support.barehttp2 import (
    BEGIN,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    frame,
    header_block,
)
from tests.support.clusters import Cluster
from tests.support.grpcclients import message, receive_request
from tests.support.processes import resident_bytes

CONNECTIONS = 20
POLL_S = 20
"""The longest that the service takes."""
SETTLED_S = 2.0
PROBES = 100
PROBE_EVERY_S = 0.01
MB = 1 << 20


class Seen(NamedTuple):
    streams: int
    before_mb: float
    after_mb: float
    probes: dict[str, list[float]]
    """Milliseconds of each send: before, while streams begin, while they wait."""

    def __str__(self) -> str:
        each = (self.after_mb - self.before_mb) * 1024 / self.streams
        times = ", ".join(
            f"{when} median {median(ms):.1f}, most {max(ms):.1f} ({len(ms)} sends)"
            for when, ms in self.probes.items()
        )
        return (
            f"{self.streams} streams that wait: {self.before_mb:.0f} to {self.after_mb:.0f} MB, {each:.1f} KiB each;"
            f" ms of a send: {times}"
        )


class Prober:
    def __init__(self, address: str, topic: str) -> None:
        self._load = Http2Load(address)
        self._topic = topic
        self._block = header_block(f"/{SERVICE}/SendMessage", x_mq_client_id="probe")

    def took_ms(self) -> float:
        request = pb.SendMessageRequest(messages=[message(self._topic, b"probe")]).SerializeToString()
        outcome = self._load.run(self._block, [request], 1)
        if pb.SendMessageResponse.FromString(outcome.answers[0][0]).status.code != pb.OK:
            raise RuntimeError("a send was refused")
        time.sleep(PROBE_EVERY_S)
        return outcome.seconds * 1000

    def close(self) -> None:
        self._load.close()


def calls(group: str, topic: str, count: int) -> Iterator[bytes]:
    request = receive_request(topic, group)
    request.long_polling_timeout.seconds = POLL_S
    data = request.SerializeToString()
    payload = struct.pack(">BI", 0, len(data)) + data
    block = header_block(f"/{SERVICE}/ReceiveMessage", x_mq_client_id=group, grpc_timeout="60S")
    for stream in range(1, 1 + 2 * count, 2):
        yield frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, payload)


def waiting(cluster: Cluster, groups: list[str], topic: str, probed: str, streams: int) -> Seen:
    """A connection a group. ``topic`` has no messages."""
    host, _, port = cluster.grpc.rpartition(":")
    each = streams // len(groups)
    with contextlib.ExitStack() as stack:
        prober = stack.enter_context(contextlib.closing(Prober(cluster.grpc, probed)))
        prober.took_ms()
        probes = {"before": [prober.took_ms() for _ in range(PROBES)]}
        before = resident_bytes(cluster.broker_pid)
        bare = [stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in groups]

        def begin() -> None:
            for connection, group in zip(bare, groups, strict=True):
                connection.sendall(BEGIN + frame(SETTINGS, 0, 0) + b"".join(calls(group, topic, each)))

        beginning = threading.Thread(target=begin)
        beginning.start()
        until = time.monotonic() + SETTLED_S
        probes["while they begin"] = []
        while beginning.is_alive() or time.monotonic() < until:
            probes["while they begin"].append(prober.took_ms())
        beginning.join()
        probes["while they wait"] = [prober.took_ms() for _ in range(PROBES)]
        after = resident_bytes(cluster.broker_pid)
    return Seen(each * len(groups), before / MB, after / MB, probes)
