"""A load generator that costs as little as it can and still checks everything. A process of its own:

    python -m tests.benchmarks.raw_load send --port P --count 200000
    python -m tests.benchmarks.raw_load pull --port P --count 200000

Knows only the wire (docs/rocketmq/protocol.md#frame, docs/rocketmq/messages.md#record). It shares no code with
mqspark, so it runs against any broker and does not repeat a bug of mqspark. Prints one JSON line; a lost, duplicated
or damaged message is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import selectors
import socket
import struct
import time
from typing import Any

import numpy as np

BASE = 10_000_000
"""Opaques and sequence numbers start here: eight digits wide, so that every frame has the same length."""

_DIGITS = 8
_POWERS = 10 ** np.arange(_DIGITS - 1, -1, -1)
_MARK = b'"opaque":'
_OPAQUE = re.compile(rb'"opaque":(\d{8})')
_PREFIX = struct.Struct(">II")
_COMMON = {"flag": 0, "language": "JAVA", "opaque": 0, "serializeTypeCurrentRPC": "JSON", "version": 479}
"""In the order in which the Java client writes them."""


def _connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _header(code: int, ext: dict[str, str], opaque: str) -> bytes:
    text = json.dumps({"code": code, "extFields": ext, **_COMMON}, separators=(",", ":"))
    return text.replace('"opaque":0', f'"opaque":{opaque}').encode()


class _Sender:
    """One connection and its window of requests in flight."""

    def __init__(
        self, port: int, topic: str, queue_id: int, body_bytes: int, topics: int, window: int
    ) -> None:
        """``topics`` > 1: the messages go to so many in turn, whose names end in numbers of eight digits."""
        self._topics = topics
        if topics > 1:
            topic += "%d"
        self.sock = _connect(port)
        self.sock.setblocking(False)
        self.unsent: memoryview = memoryview(b"")
        self.partial = b""
        self.in_flight = 0
        properties = "UNIQ_KEY\x017F00000100002A139A55000000%d\x02WAIT\x01true\x02"
        # fmt: off
        ext = {"a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000",
               "h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}
        # fmt: on
        header = _header(310, ext, "%d")
        length = len(header % ((BASE,) * (2 + (topics > 1))))
        prefix = _PREFIX.pack(4 + length + body_bytes, length)
        filler = (b"mqspark." * (body_bytes // 8))[: body_bytes - 8]
        parts = [prefix, *header.split(b"%d"), filler]
        parts[:2] = [prefix + parts[1]]
        self._places = [sum(map(len, parts[:n])) + _DIGITS * (n - 1) for n in range(1, len(parts))]
        frame = np.frombuffer((b"0" * _DIGITS).join(parts), np.uint8)
        self._frames = np.tile(frame, (window, 1))
        """Rewritten in place: only the digits of the numbers differ from frame to frame."""

    def frames(self, first: int, count: int) -> memoryview:
        """Valid until the next call."""
        numbers = np.arange(first, first + count)
        rows, digits = self._frames[:count], _digits(numbers)
        for place in self._places:
            rows[:, place : place + _DIGITS] = digits
        if self._topics > 1:  # the header names the topic before the properties, then comes the opaque
            place = self._places[0]
            rows[:, place : place + _DIGITS] = _digits(BASE + numbers % self._topics)
        return rows.reshape(-1).data


def _digits(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (numbers[:, None] // _POWERS % 10 + ord("0")).astype(np.uint8)


def _sum_of(digits: bytes) -> int:
    """The sum of numbers of eight digits, one after the other."""
    rows = np.frombuffer(digits, np.uint8).reshape(-1, _DIGITS).astype(np.int64) - ord("0")
    return int((rows @ _POWERS).sum())


def send(
    port: int, topic: str, connections: int, window: int, count: int, body_bytes: int, topics: int = 1
) -> dict[str, Any]:
    """Closed loop: every answer frees one place of its connection's window."""
    senders = [
        _Sender(port, topic, number if topics == 1 else 0, body_bytes, topics, window)
        for number in range(connections)
    ]
    selector = selectors.DefaultSelector()
    for sender in senders:
        selector.register(sender.sock, selectors.EVENT_READ, sender)
    next_number, end = BASE, BASE + count
    answered = opaque_sum = failed = 0
    first_failure = b""

    def push(sender: _Sender) -> None:
        nonlocal next_number
        room = min(window - sender.in_flight, end - next_number)
        if room > 0 and not sender.unsent:
            sender.unsent = sender.frames(next_number, room)
            next_number += room
            sender.in_flight += room
        if sender.unsent:
            with contextlib.suppress(BlockingIOError):
                sender.unsent = sender.unsent[sender.sock.send(sender.unsent) :]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if sender.unsent else 0)
        if selector.get_key(sender.sock).events != wanted:
            selector.modify(sender.sock, wanted, sender)

    began, cpu_began_s = time.perf_counter(), time.process_time()
    for sender in senders:
        push(sender)
    while answered < count:
        for key, events in selector.select(30):
            sender = key.data
            if events & selectors.EVENT_READ:
                chunk = sender.sock.recv(1 << 18)
                if not chunk:
                    raise ConnectionError("the broker closed the connection")
                chunk = sender.partial + chunk
                # The number comes last of what is read of an answer, and what is behind it may be read later.
                last = chunk.rfind(_MARK)
                if last + len(_MARK) + _DIGITS >= len(chunk):
                    last = chunk.rfind(_MARK, 0, last)
                complete = last + len(_MARK) + _DIGITS if last >= 0 else 0
                sender.partial, chunk = chunk[complete:], chunk[:complete]
                opaques = _OPAQUE.findall(chunk)
                bad = len(opaques) - chunk.count(b'"code":0,')
                if bad and not failed:
                    first_failure = chunk[:500]
                failed += bad
                answered += len(opaques)
                if opaques:
                    opaque_sum += _sum_of(b"".join(opaques))
                sender.in_flight -= len(opaques)
            push(sender)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began_s
    for sender in senders:
        sender.sock.close()
    if failed or opaque_sum != sum(range(BASE, end)):
        raise AssertionError(f"{failed} sends failed or an answer is missing or doubled: {first_failure!r}")
    return {
        "messages": count,
        "seconds": seconds,
        "per_second": count / seconds,
        "own_cpu_us": cpu_s * 1e6 / count,
    }


class _Puller:
    """One connection that drains one queue, a pull in flight at a time, into a buffer of its own."""

    def __init__(self, port: int, topic: str, queue_id: int, batch: int) -> None:
        self.sock = _connect(port)
        # fmt: off
        ext = {"consumerGroup": "bench-pull", "topic": topic, "queueId": str(queue_id), "queueOffset": "%d",
               "maxMsgNums": str(batch), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
               "subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        # fmt: on
        self._template = _header(11, ext, "1")
        self._buffer = bytearray(1 << 20)
        self._view = memoryview(self._buffer)
        self._have = 0
        self.restart()

    def restart(self) -> None:
        self.offset = self.pulls = self.moved_bytes = 0
        self.drained = False

    def ask(self) -> None:
        header = self._template % self.offset
        self.sock.sendall(_PREFIX.pack(4 + len(header), len(header)) + header)

    def receive(self, numbers: list[np.ndarray[Any, Any]] | None) -> None:
        """What has come; when the answer is complete, ask for the next one."""
        count = self.sock.recv_into(self._view[self._have :])
        if not count:
            raise ConnectionError("the broker closed the connection")
        self._have += count
        if self._have < 8 or self._have < (length := 4 + int.from_bytes(self._buffer[:4], "big")):
            return
        self._have = 0
        header_end = 8 + (int.from_bytes(self._buffer[4:8], "big") & 0xFFFFFF)
        answer = json.loads(self._buffer[8:header_end])
        if answer["code"] != 0:
            self.drained = True
            return
        after = int(answer["extFields"]["nextBeginOffset"])
        if numbers is not None:
            numbers.append(_sequence_numbers(self._view[header_end:length], self.offset, after))
        self.offset = after
        self.pulls += 1
        self.moved_bytes += length - header_end
        self.ask()


def pull(port: int, topic: str, queues: int, batch: int, count: int, rounds: int) -> dict[str, Any]:
    """Drain every queue from its start, all at once, ``rounds`` times and once more before that to check; with
    no rounds the checking one is timed.

    Checked record by record: magic, dense queue offsets, and that the bodies' sequence numbers are exactly those that
    were sent. The timed rounds compare the number of messages and of bytes.
    """
    pullers = [_Puller(port, topic, number, batch) for number in range(queues)]
    selector = selectors.DefaultSelector()
    for puller in pullers:
        selector.register(puller.sock, selectors.EVENT_READ, puller)
    numbers: list[np.ndarray[Any, Any]] = []
    seconds, pulls, total_bytes, first_bytes = 0.0, 0, 0, 0
    for turn in range(rounds + 1):
        began = time.perf_counter()
        for puller in pullers:
            puller.restart()
            puller.ask()
        while not all(puller.drained for puller in pullers):
            for key, _ in selector.select(30):
                key.data.receive(None if turn else numbers)
        moved = sum(puller.moved_bytes for puller in pullers)
        if (messages := sum(puller.offset for puller in pullers)) != count:
            raise AssertionError(f"{messages} messages came, {count} were sent")
        if not turn:
            first_bytes = moved
            if rounds:
                continue
        seconds += time.perf_counter() - began
        pulls += sum(puller.pulls for puller in pullers)
        total_bytes += moved
        if moved != first_bytes:
            raise AssertionError(f"{moved} bytes came, {first_bytes} the first time")
    for puller in pullers:
        puller.sock.close()
    if not np.array_equal(np.sort(np.concatenate(numbers)), np.arange(BASE, BASE + count)):
        raise AssertionError("the messages pulled are not those sent")
    total = count * max(rounds, 1)
    return {
        "messages": total,
        "pulls": pulls,
        "bytes": total_bytes,
        "seconds": seconds,
        "per_second": total / seconds,
    }


def _sequence_numbers(body: memoryview, offset: int, after: int) -> np.ndarray[Any, Any]:
    """Those of one pull's records, which are all equally long."""
    size = int.from_bytes(body[:4], "big")
    rows = np.frombuffer(body, dtype=np.uint8).reshape(-1, size)
    if not (rows[:, 4:8] == rows[0, 4:8]).all() or bytes(body[4:8]) != b"\xda\xa3\x20\xa7":
        raise AssertionError("a record without its magic")
    offsets = np.ascontiguousarray(rows[:, 20:28]).view(">i8").ravel()
    if not np.array_equal(offsets, np.arange(offset, after)):
        raise AssertionError("queue offsets are not dense")
    body_start = 4 + 4 + 4 + 4 + 4 + 8 + 8 + 4 + 8 + 8 + 8 + 8 + 4 + 8 + 4
    digits = rows[:, body_start : body_start + 8].astype(np.int64) - ord("0")
    return np.asarray(digits @ _POWERS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["send", "pull"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", default="BenchmarkTest")
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--topics", type=int, default=1)
    asked = parser.parse_args()
    if asked.what == "send":
        result = send(
            asked.port,
            asked.topic,
            asked.connections,
            asked.window,
            asked.count,
            asked.body_bytes,
            asked.topics,
        )
    else:
        result = pull(asked.port, asked.topic, asked.connections, asked.batch, asked.count, asked.rounds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
