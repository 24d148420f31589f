"""Many connections to one broker, from loopback addresses of their own. A process of its own:

    python -m tests.benchmarks.connection_load idle --port P --count 9500 --source 127.0.0.2
    python -m tests.benchmarks.connection_load active --port P --count 200 --seconds 20
    python -m tests.benchmarks.connection_load probe --port P --seconds 20

- **idle**: connects all, then each sends a heartbeat every 30 s, as a member of a group of 100. Prints a JSON line when
  all are connected and have their first answer, and another one when its standard input ends.
- **active**: each connection has one send of 100 bytes in flight.
- **probe**: one connection asks for an offset 100 times a second; how long the answers take is how late the loop is.

Knows only the wire, so it runs against any broker. A refused request or a lost connection is an error.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
import time
from typing import Any

from tests.benchmarks.raw_load import _PREFIX, _header

HEART_BEAT, SEND_MESSAGE_V2, GET_MAX_OFFSET = 34, 310, 30
BEAT_S = 30.0
GROUP_MEMBERS = 100
PROBES_A_SECOND = 100
CONNECTED_AT_ONCE = 50
BODY = b"x" * 100


def frame(code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    header = _header(code, ext, "10000000")
    return _PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body


def heartbeat(client: str, group: str) -> bytes:
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
        "subscriptionDataSet": [{"topic": "bench", "subString": "*", "subVersion": 1, "expressionType": "TAG"}],
    }  # fmt: skip
    body = {"clientID": client, "consumerDataSet": [consumer], "producerDataSet": []}
    return frame(HEART_BEAT, {}, json.dumps(body).encode())


def send_frame(queue_id: int) -> bytes:
    ext = {
        "a": "bench", "b": "bench", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000",
        "h": "0", "i": "WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return frame(SEND_MESSAGE_V2, ext, BODY)


class Peer:
    """One connection; counts the answers to its requests."""

    __slots__ = ("_data", "answers", "began", "sock")

    def __init__(self, port: int, source: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 60, (source, 0))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self.answers = 0
        self.began = 0.0

    def ask(self, request: bytes) -> None:
        self.began = time.perf_counter()
        self.sock.sendall(request)

    def read(self) -> int:
        """Take what has come. Returns how many answers; notices are none. Raises ConnectionError, AssertionError."""
        chunk = self.sock.recv(1 << 16)
        if not chunk:
            raise ConnectionError("the broker closed a connection")
        data, count = self._data + chunk, 0
        while len(data) >= 8 and len(data) >= 4 + (size := int.from_bytes(data[:4])):
            header = json.loads(data[8 : 8 + (int.from_bytes(data[4:8]) & 0xFFFFFF)])
            data = data[4 + size :]
            if header.get("flag", 0) & 1:
                assert header["code"] == 0, header
                count += 1
        self._data = data
        self.answers += count
        return count


def quantiles_ms(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    at = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {
        name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3 for name, share in at.items()
    }


def idle(port: int, count: int, source: str) -> None:
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    peers: list[Peer] = []
    beats = []
    began = time.perf_counter()

    def take(timeout: float) -> bool:
        """Returns False when the standard input has ended."""
        goes_on = True
        for key, _ in selector.select(timeout):
            if key.data is None:
                goes_on = bool(sys.stdin.buffer.read1(1))
            else:
                key.data.read()
        return goes_on

    for number in range(count):
        peer = Peer(port, source)
        peers.append(peer)
        beats.append(
            heartbeat(f"{source}@{number}", f"bench-{source.replace('.', '-')}-{number // GROUP_MEMBERS}")
        )
        selector.register(peer.sock, selectors.EVENT_READ, peer)
        peer.ask(beats[-1])
        if number % CONNECTED_AT_ONCE == 0:
            take(0)
    while not all(peer.answers for peer in peers):
        take(1)
    print(json.dumps({"connected": count, "seconds": time.perf_counter() - began}), flush=True)
    at, pause = 0, BEAT_S / count
    due = time.perf_counter()
    while take(max(0.0, due - time.perf_counter())):
        while due <= time.perf_counter():
            peers[at % count].ask(beats[at % count])
            at += 1
            due += pause
    print(json.dumps({"heartbeats": at, "answers": sum(peer.answers for peer in peers) - count}), flush=True)


def active(port: int, count: int, source: str, seconds: float) -> dict[str, Any]:
    selector = selectors.DefaultSelector()
    frames = [send_frame(number % 4) for number in range(count)]
    for request in frames:
        peer = Peer(port, source)
        selector.register(peer.sock, selectors.EVENT_READ, (peer, request))
    for key in list(selector.get_map().values()):
        key.data[0].ask(key.data[1])
    times: list[float] = []
    began = time.perf_counter()
    cpu_began_s = time.process_time()
    while time.perf_counter() < began + seconds:
        for key, _ in selector.select(5):
            peer, request = key.data
            if peer.read():
                times.append(time.perf_counter() - peer.began)
                peer.ask(request)
    took = time.perf_counter() - began
    own_us = (time.process_time() - cpu_began_s) / len(times) * 1e6
    return {"per_second": len(times) / took, "own_cpu_us": own_us, **quantiles_ms(times)}


def probe(port: int, source: str, seconds: float) -> dict[str, Any]:
    peer, request = Peer(port, source), frame(GET_MAX_OFFSET, {"topic": "bench", "queueId": "0"})
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        peer.ask(request)
        while not peer.read():
            continue
        times.append(time.perf_counter() - peer.began)
        time.sleep(max(0.0, 1 / PROBES_A_SECOND - (time.perf_counter() - now)))
    return {"probes": len(times), **quantiles_ms(times)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["idle", "active", "probe"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--source", default="127.0.0.1")
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    if asked.what == "idle":
        idle(asked.port, asked.count, asked.source)
    elif asked.what == "active":
        print(json.dumps(active(asked.port, asked.count, asked.source, asked.seconds)))
    else:
        print(json.dumps(probe(asked.port, asked.source, asked.seconds)))


if __name__ == "__main__":
    main()
