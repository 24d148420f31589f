"""HTTP beside a broker: lines of 100 B stored by /api/v1/topics/{topic}/ingest, on one connection, over loopback.

Every round checks that the topic has all messages. The client is a process of its own that sends prepared bytes.

    python -m tests.benchmarks http [--count N] [--rounds R] [--store DIR]
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from pathlib import Path

from tests.benchmarks.bench_broker import broker
from tests.benchmarks.report import figure, spelled

LINE = b"x" * 100 + b"\n"
LINES_A_REQUEST = 20_000


def asked(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b""
) -> dict[str, object]:
    headers = {"Content-Type": "application/x-ndjson"} if body else {}
    connection.request(method, path, body or None, headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]!r}")
    document: dict[str, object] = json.loads(text)
    return document


def ingest_rate(store: Path, count: int, flush: str) -> float:
    with broker(store, f"flushDiskType={flush}") as process:
        host, _, port = process.ready["http"].removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        asked(
            connection, "POST", "/api/v1/topics/Bench/ingest", LINE
        )  # loads what serves HTTP, and makes the topic
        body = LINE * LINES_A_REQUEST
        began = time.perf_counter()
        for _ in range(count // LINES_A_REQUEST):
            asked(connection, "POST", "/api/v1/topics/Bench/ingest", body)
        seconds = time.perf_counter() - began
        stored = asked(connection, "GET", "/api/v1/topics/Bench/stats")["messagesStored"]
        connection.close()
        sent = count // LINES_A_REQUEST * LINES_A_REQUEST
        if stored != sent + 1:
            raise RuntimeError(f"{stored} messages are in the topic, not {sent + 1}")
        return sent / seconds


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks http")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        rates = [ingest_rate(options.store, options.count, flush) for _ in range(options.rounds)]
        made = figure(f"ingest over HTTP, 100 B, {flush}", "/s", rates)
        print(f"{made.name:40} {spelled(made)}")


if __name__ == "__main__":
    main()
