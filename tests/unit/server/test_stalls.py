"""The line that names what the event loop was doing when it stood still, and the log as JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import threading
import time

import pytest

from mqspark.base.logs import JsonLines, forget
from mqspark.errors import ConfigError
from mqspark_server.commands.local.servers_cli import SWITCH_S, serve
from mqspark_server.process.stalls import StallWatch
from mqspark_server.settings.serverconfig import ServerConfig

STALL_S = 0.05


def slow_handler(how: str) -> None:
    until = time.monotonic() + 4 * STALL_S
    if how == "sleep":
        time.sleep(4 * STALL_S)
    while how == "work" and time.monotonic() < until:
        sum(range(1_000))


def stalled(how: str) -> StallWatch:
    async def main() -> StallWatch:
        forget()
        watch = StallWatch(STALL_S)
        watch.start(asyncio.get_running_loop())
        await asyncio.sleep(STALL_S)
        if how:
            slow_handler(how)
        await asyncio.sleep(2 * STALL_S)
        watch.stop()
        return watch

    return asyncio.run(main())


@pytest.mark.parametrize(
    # On a busy machine, work waits for a processor most of the time.
    ("how", "causes"),
    [("sleep", ["waiting for"]), ("work", ["work in one turn", "or a processor"])],
)
def test_a_stall_is_named(caplog: pytest.LogCaptureFixture, how: str, causes: list[str]) -> None:
    watch = stalled(how)
    lines = [record.getMessage() for record in caplog.records if record.name == "mqspark.stall"]
    assert watch.stalls >= 1
    # A busy machine has stalls of its own.
    (line,) = [line for line in lines if "slow_handler (server/test_stalls.py:" in line]
    assert any(cause in line for cause in causes)


def test_callbacks_are_taken_back() -> None:
    before = list(gc.callbacks)
    stalled("")
    assert gc.callbacks == before


def test_without_a_thread_the_loop_is_watched_all_the_same(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert stalled("sleep").stalls >= 1
    assert "no thread watches the event loop" in caplog.text


def record(message: str, *arguments: object, error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("mqspark.x", logging.WARNING, "x.py", 1, message, arguments, info)


def test_json_lines() -> None:
    text = JsonLines().format(record('a "%s"\nsecond', "ü\x1b"))
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["logger"]) == ("WARNING", "mqspark.x")
    assert line["message"] == 'a "ü\\x1b"\\nsecond'
    assert line["time"].endswith("Z")
    failed = json.loads(JsonLines().format(record("failed", error=ValueError("why"))))
    assert failed["exception"].endswith("ValueError: why")


def test_the_setting() -> None:
    ServerConfig(log_format="json").check()
    with pytest.raises(ConfigError, match="logFormat"):
        ServerConfig(log_format="xml").check()


def test_a_server_waits_little_for_its_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own interval is as long as ten of the longest turns."""
    asked: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", asked.append)

    class Failing:
        async def start(self) -> None:
            raise OSError(f"started after {asked}")

        async def stop(self) -> None:
            raise AssertionError("it never ran")

    with pytest.raises(OSError, match="started after") as found:
        serve(Failing(), lambda: "READY")
    assert asked == [SWITCH_S]
    assert str(SWITCH_S) in str(found.value)
    assert SWITCH_S <= 0.001
