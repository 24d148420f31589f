"""Programs with producers of ``mqspark.aio`` that end without ``stop()``: what they handed over is sent, for a bounded
time, or the log names it. Real processes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqspark
from mqspark.errors import ConfigError
from mqspark.testing import Broker
from tests.support.draws import some
from tests.support.processes import process, run_to_end, stop
from tests.support.waiting import eventually

WAIT_S = 60.0
COUNT = 300

PROGRAM = """
    import asyncio, multiprocessing, os, sys, threading
    from mqspark import aio

    namesrv, topic, how, kind = sys.argv[1:]
    kept = []

    async def fill():
        batch = aio.AutoBatch(max_delay_ms=30_000, max_bytes=1 << 20) if kind == "auto_batch" else None
        producer = aio.Producer(namesrv, group="g", auto_batch=batch, send_timeout_ms=30_000)
        await producer.start()
        kept.append(producer)
        for number in range(300):
            message = aio.Message.of(topic, str(number))
            if kind == "oneway":
                kept.append(asyncio.ensure_future(producer.send_oneway(message)))
                await asyncio.sleep(0)
            else:
                kept.append(await producer.send_async(message))
        if how == "interrupt":
            print("waiting", flush=True)
            await asyncio.sleep(60)
        if how == "exception":
            raise ValueError
        if how == "exit":
            sys.exit(3)

    def run():
        asyncio.run(fill())

    if how == "uvloop":
        import uvloop
        uvloop.run(fill())
    elif how == "daemon":  # its loop still runs at the end
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(fill(), loop).result()
    elif how == "open":  # nobody closes the loop
        loop = asyncio.new_event_loop()
        loop.run_until_complete(fill())
    elif how == "child":
        child = multiprocessing.get_context("fork").Process(target=run)
        child.start()
        child.join()
    elif how == "fork":  # the child has nothing of the parent's to send
        loop = asyncio.new_event_loop()
        loop.run_until_complete(fill())
        if os.fork():
            os.wait()
    else:
        run()
"""
ENDS = {
    "end": 0,
    "exception": 1,
    "exit": 3,
    "uvloop": 0,
    "daemon": 0,
    "open": 0,
    "child": 0,
    "fork": 0,
}
KINDS = [(how, "send_async") for how in ENDS] + [
    ("end", "oneway"),
    ("end", "auto_batch"),
    ("exit", "auto_batch"),
]


def ended(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return run_to_end(command, timeout_s=WAIT_S)


def stored(broker: Broker, topic: str) -> int:
    with mqspark.AdminClient(broker.namesrv) as admin:
        return sum(bounds.max_offset for bounds in admin.topic_stats(topic).values())


@pytest.mark.parametrize(("how", "kind"), some(KINDS, 3, several=True))
def test_the_end_of_a_loop_sends_what_waits(mq_broker: Broker, mq_topic: str, how: str, kind: str) -> None:
    program = ended(PROGRAM, mq_broker.namesrv, mq_topic, how, kind)
    said = program.stderr
    assert program.returncode == ENDS[how], said
    assert stored(mq_broker, mq_topic) == COUNT, said
    assert "never retrieved" not in said
    if how != "fork":  # the child lets go of the parent's loop
        assert "was destroyed" not in said


def test_a_program_that_ctrl_c_ends_sends_what_waits(
    mq_broker: Broker, mq_topic: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    arguments = [mq_broker.namesrv, mq_topic, "interrupt", "auto_batch"]
    log = tmp_path / "log"
    with process([*command, *arguments], log, stop_signal=signal.SIGINT) as child:
        eventually(lambda: "waiting" in log.read_text(), "the program waits")
        stop(child, signal.SIGINT)
    assert "KeyboardInterrupt" in log.read_text()
    assert stored(mq_broker, mq_topic) == COUNT, log.read_text()


# --- what is lost ---

LOST = """
    import asyncio, sys
    from mqspark import aio

    how, namesrv = sys.argv[1:]

    async def fill(**settings):
        producer = aio.Producer(namesrv, group="lonely", **settings)
        await producer.start()
        for number in range(7):
            kept.append(await producer.send_async(aio.Message.of("Orders", b"x")))

    kept = []
    if how == "away":
        asyncio.run(fill(send_timeout_ms=500))
    elif how == "bounded":
        asyncio.run(fill(send_timeout_ms=60_000, exit_timeout_ms=300))
    elif how == "at once":
        asyncio.run(fill(send_timeout_ms=60_000, exit_timeout_ms=0))
    elif how == "closed":
        loop = asyncio.new_event_loop()
        loop.run_until_complete(fill())
        loop.close()
    elif how == "batch":
        loop = asyncio.new_event_loop()
        loop.run_until_complete(fill(auto_batch=aio.AutoBatch(max_delay_ms=30_000)))
        loop.close()
"""
SAID = {
    "away": "producer group lonely stops, but 7 sends have failed (7 to Orders)",
    "bounded": "the event loop ends, and of producer group lonely 7 sends are not acknowledged after 300 ms",
    "at once": "the event loop ends, and of producer group lonely 7 sends are not acknowledged after 0 ms",
    "closed": "the program ends, and of producer group lonely 7 sends are not acknowledged after ",
    "batch": "the program ends, and of producer group lonely 7 messages wait for a batch after ",
}


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a name server that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("how", some(SAID, 2))
def test_the_end_of_a_loop_says_what_is_lost(silent: str, how: str) -> None:
    since_s = time.monotonic()
    program = ended(LOST, how, silent)
    said = program.stderr
    assert program.returncode == 0
    assert SAID[how] in said, said
    assert said.count("lonely") == 1, said
    assert "was destroyed" not in said
    assert time.monotonic() - since_s < WAIT_S / 2


def test_the_bound_is_a_setting_of_blocking_producers(silent: str) -> None:
    program = """
        import mqspark, sys
        producer = mqspark.Producer(sys.argv[1], group="lonely", send_timeout_ms=60_000, exit_timeout_ms=300)
        producer.start()
        for number in range(7):
            producer.send_async(mqspark.Message.of("Orders", b"x"))
    """
    said = ended(program, silent).stderr
    assert "the program ends, and of producer group lonely 7 sends" in said, said
    with pytest.raises(ConfigError, match="exit_timeout_ms=-1 is negative"):
        mqspark.Producer("127.0.0.1:9", group="g", exit_timeout_ms=-1)
