"""Servers in processes of their own, watched from outside: processor time, memory, latency, what they log."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support import web
from tests.support.processes import mqspark_command, process, ready_line
from tests.support.remoting import request_frame, send_fields

FREEZE_S = 1.0
GROWTH_BYTES = 64 << 20
PROBE_EVERY_S = 0.1
SETTLE_S = 3.0

GET_ROUTE, SEND_V2 = 105, 310


class Victim:
    """A running name server or broker: where it is, and what it has used and said."""

    def __init__(self, pid: int, address: str, http: str, log: Path) -> None:
        self.pid = pid
        self.address = address
        self.http = http
        self._log = log
        self._read = 0

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def anonymous_bytes(self) -> int:
        """Memory of its own, without the pages of mapped files."""
        match = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert match is not None
        return int(match.group(1)) * 1024

    def settled_bytes(self) -> int:
        """Least memory seen while nothing is asked of it."""
        least = self.anonymous_bytes()
        for _ in range(int(SETTLE_S / 0.25)):
            time.sleep(0.25)
            least = min(least, self.anonymous_bytes())
        return least

    def new_tracebacks(self) -> str | None:
        """What it logged since the last call, from the first traceback on."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            fresh = log.read()
        self._read += len(fresh)
        at = fresh.find(b"Traceback (most recent call last)")
        return None if at < 0 else fresh[max(at - 500, 0) : at + 4_000].decode("utf-8", "replace")

    def log_bytes(self) -> int:
        return self._log.stat().st_size


@contextmanager
def running(kind: str, folder: Path, *settings: str) -> Iterator[Victim]:
    """A ``namesrv`` or ``broker`` on production defaults, on free ports of the loopback interface."""
    folder.mkdir(parents=True, exist_ok=True)
    sets = ["listenPort=0", "bindAddress=127.0.0.1", "httpPort=0", *settings] if kind == "broker" else [
        "listenPort=0", "bindAddress=127.0.0.1", *settings]  # fmt: skip
    if kind == "broker":
        sets += [f"storePathRootDir={folder / 'store'}", "brokerIP1=127.0.0.1"]
    arguments = [part for setting in sets for part in ("--set", setting)]
    log = folder / f"{kind}.log"
    with process([*mqspark_command(), kind, "run", *arguments], log, stdout=-1) as child:
        ready = ready_line(child, log)
        yield Victim(child.pid, ready.get(kind, ready.get("broker", "")), ready.get("http", ""), log)


class Probe(threading.Thread):
    """An honest peer beside the fuzzer: it asks one small thing at a time and notes how long the answer took.

    A slow answer counts as a freeze only as far as the server was busy meanwhile; a machine that is busy with other
    things delays it too.
    """

    def __init__(self, victim: Victim, kind: str) -> None:
        super().__init__(daemon=True)
        self._victim = victim
        self._kind = kind
        self._ended = threading.Event()
        self.worst_s = 0.0
        self.freezes: list[float] = []
        self.lost = 0

    def run(self) -> None:
        host, _, port = self._victim.address.rpartition(":")
        connection: socket.socket | None = None
        opaque = 0
        while not self._ended.wait(PROBE_EVERY_S):
            opaque += 1
            try:
                if connection is None:
                    connection = socket.create_connection((host, int(port)), 30)
                began, busy = time.monotonic(), self._victim.cpu_seconds()
                connection.sendall(self._request(opaque))
                if not connection.recv(65536):
                    raise ConnectionError("closed")
                took = min(time.monotonic() - began, self._victim.cpu_seconds() - busy)
            except OSError:
                self.lost += 1
                if connection is not None:
                    connection.close()
                connection = None
                continue
            self.worst_s = max(self.worst_s, took)
            if took > FREEZE_S:
                self.freezes.append(took)
        if connection is not None:
            connection.close()

    def _request(self, opaque: int) -> bytes:
        if self._kind == "namesrv":
            return request_frame(GET_ROUTE, opaque, {"topic": "Probe"})
        return request_frame(SEND_V2, opaque, send_fields("Probe"), b"probe")

    def stop(self) -> None:
        self._ended.set()
        self.join()


def http_get(victim: Victim, path: str) -> httpx.Response:
    return web.get(victim.http + path)
