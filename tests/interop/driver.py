"""Unmodified clients in processes of their own, called from a test: see java/Driver.java for the other end."""

import base64
import itertools
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.interop.jars import Jars
from tests.interop.rocketmq import java_command
from tests.support.processes import process, tail

CALL_TIMEOUT_S = 60.0

JSON_FIRST = ["JSON", pytest.param("ROCKETMQ", marks=pytest.mark.slow("json is the fast twin"))]
"""Both header serialisations, for tests that take longer. Not for POP: its codes do not fit a binary header, and what
the Java client makes of them RocketMQ refuses, too."""


class DriverError(Exception):
    """The client failed: the exception's class, its response code (-1: none) and its text."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.type: str = error["type"]
        self.code: int = error["code"]
        self.text: str = error["text"]
        super().__init__(f"{self.type}({self.code}): {self.text}")


class JavaError(DriverError):
    """What the Java client threw."""


class Driver:
    """One process. Calls may be made from several threads and may overlap."""

    error: type[DriverError] = DriverError

    def __init__(self, child: subprocess.Popen[str], log: Path) -> None:
        self._child = child
        self._log = log
        self._ids = itertools.count(1)
        ready: Future[Any] = Future()
        self._waiting: dict[int, Future[Any]] = {0: ready}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="driver", daemon=True)
        self._reader.start()
        ready.result(CALL_TIMEOUT_S)

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            reply = json.loads(line)
            with self._lock:
                future = self._waiting.pop(reply["id"])
            if "error" in reply:
                future.set_exception(self.error(reply["error"]))
            else:
                future.set_result(reply.get("result"))
        with self._lock:
            orphans, self._waiting = list(self._waiting.values()), {}
        for future in orphans:
            future.set_exception(RuntimeError(f"the driver died\n{tail(self._log)}"))

    def submit(self, verb: str, /, **arguments: Any) -> "Future[Any]":
        """Start a call; the future has its result or a DriverError."""
        future: Future[Any] = Future()
        with self._lock:
            call = next(self._ids)
            self._waiting[call] = future
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps({"id": call, "do": verb, "with": arguments}) + "\n")
            self._child.stdin.flush()
        return future

    def call(self, verb: str, /, **arguments: Any) -> Any:
        return self.submit(verb, **arguments).result(CALL_TIMEOUT_S)

    def kill(self) -> None:
        """The process and all its clients are gone at once, and say goodbye to nobody."""
        self._child.kill()
        self._child.wait()


class JavaDriver(Driver):
    """One JVM."""

    error = JavaError

    def push(self, namesrv: str, topic: str, group: str, **settings: Any) -> int:
        """The handle of a push consumer, by default one that gets all messages from the first on."""
        usual = {"model": "CLUSTERING", "expression": "*", "from": "CONSUME_FROM_FIRST_OFFSET"}
        started = self.call("push.start", namesrv=namesrv, topic=topic, group=group, **(usual | settings))
        return int(started["handle"])

    def take(self, consumer: int, count: int, timeout_ms: int = 30_000) -> list[dict[str, Any]]:
        """What its listener was given: ``count`` messages, or those that came within the time."""
        taken: list[dict[str, Any]] = self.call(
            "push.take", handle=consumer, count=count, timeout_ms=timeout_ms
        )
        return taken

    def mqadmin(self, *arguments: str) -> str:
        """What the mqadmin command printed. A stack trace or error text on stderr fails the caller."""
        result = self.call("mqadmin", arguments=list(arguments))
        assert "Exception" not in result["err"], (
            f"mqadmin {' '.join(arguments)}:\n{result['err']}\n{result['out']}"
        )
        return str(result["out"])


AnyDriver = TypeVar("AnyDriver", bound=Driver)


@contextmanager
def running(
    driver: Callable[[subprocess.Popen[str], Path], AnyDriver],
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    stop_signal: signal.Signals = signal.SIGKILL,
) -> Iterator[AnyDriver]:
    """A process that is a driver. It writes its logs, and what it keeps at home, in ``folder``."""
    log = folder / "driver.err"
    own = {"HOME": str(folder), **(environment or {})}
    with process(command, log, env=own, stdout=subprocess.PIPE, stop_signal=stop_signal) as child:
        yield driver(child, log)


@dataclass(frozen=True)
class Program:
    """A driver in another language around an unmodified client."""

    build: Callable[[], Path]
    """Fetches and compiles what is not in the cache yet. Raises ToolMissing."""
    command: Callable[[Path], list[str]]
    """What runs it, by what ``build`` returned."""

    def running(
        self, folder: Path, environment: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Driver]:
        return running(Driver, self.command(self.build()), folder, environment)


def java_driver(
    jars: Jars, folder: Path, serialize_type: str, options: Sequence[str] = ()
) -> AbstractContextManager[JavaDriver]:
    """A driver JVM whose requests have JSON or ROCKETMQ headers."""
    options = [
        *options,
        "-XX:TieredStopAtLevel=1",
        f"-Drocketmq.serialize.type={serialize_type}",
        f"-Drocketmq.client.localOffsetStoreDir={folder / 'offsets'}",
        "-Drocketmq.client.logUseSlf4j=true",
        "-Drocketmq.client.rebalance.waitInterval=1000",
    ]
    command = java_command(jars, "Driver", folder, heap_mib=256, options=options)
    # Stopped, not killed: then it writes the archive of its classes if ``options`` ask for one.
    return running(JavaDriver, command, folder, stop_signal=signal.SIGTERM)


def message(topic: str, body: bytes, **fields: Any) -> dict[str, Any]:
    """A message in the driver's JSON form: tags, keys, flag, wait, properties."""
    return {"topic": topic, "body": base64.b64encode(body).decode(), **fields}


def body_of(received: dict[str, Any]) -> bytes:
    return base64.b64decode(received["body"])
