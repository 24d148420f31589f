"""Programs that are interrupted, that end without a stop, and that stop from within a callback: nothing is lost, and
nothing hangs. Real signals, real processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import mqspark
from mqspark import aio
from mqspark.errors import ClientError
from mqspark.testing import Broker
from tests.support.draws import some
from tests.support.processes import run_python
from tests.support.waiting import eventually, eventually_async

FIRST = mqspark.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
MESSAGES = 600
WAIT_S = 90


class Interrupted(Exception):
    """What the signal handler raises."""


class Signals:
    """Interrupts the main thread at chance moments of what it does ``within``."""

    def __init__(self, pause_s: float = 0.002) -> None:
        self.count = 0
        self._pause_s = pause_s
        self._is_armed = False
        self._is_over = False
        self._thread = threading.Thread(target=self._shoot, daemon=True)

    def _shoot(self) -> None:
        chance = random.Random(1)
        while not self._is_over:
            time.sleep(chance.random() * self._pause_s)
            if self._is_armed:
                os.kill(os.getpid(), signal.SIGUSR1)

    def _raise(self, *_: object) -> None:
        if self._is_armed:
            self._is_armed = False
            self.count += 1
            raise Interrupted

    def __enter__(self) -> Signals:
        self._before = signal.signal(signal.SIGUSR1, self._raise)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_armed, self._is_over = False, True
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)

    @contextmanager
    def armed(self) -> Iterator[None]:
        try:
            self._is_armed = True
            yield
        finally:
            self._is_armed = False


def fill(namesrv: str, topic: str, count: int = MESSAGES) -> None:
    with mqspark.Producer(namesrv, group="fill") as producer:
        for number in range(count):
            producer.send_async(mqspark.Message.of(topic, str(number)))


@pytest.mark.parametrize("how", ["poll", "next"])
def test_an_interrupted_poll_loses_nothing(mq_broker: Broker, mq_topic: str, how: str) -> None:
    """What was not handed to the program comes next, once; what it has not got is not committed."""
    fill(mq_broker.namesrv, mq_topic)
    got: list[bytes] = []
    consumer = mqspark.LitePullConsumer(
        mq_broker.namesrv, group=f"g-{mq_topic}", consume_from=FIRST, pull_batch_size=3
    )
    consumer.subscribe(mq_topic)
    deadline = time.monotonic() + WAIT_S
    with consumer, Signals() as signals:
        while len(got) < MESSAGES and time.monotonic() < deadline:
            messages: list[mqspark.MessageExt] = []
            try:
                with signals.armed():
                    messages = consumer.poll(20) if how == "poll" else [next(consumer)]
            except Interrupted:
                # Interrupted within ``armed``, after the call: then the program has them.
                messages = messages or []
            got += [message.body for message in messages]
    assert Counter(got) == Counter(b"%d" % number for number in range(MESSAGES))
    assert signals.count > 10
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        assert admin.group_lag(f"g-{mq_topic}", mq_topic) == 0


def test_what_the_interrupted_program_did_not_get_is_not_committed(mq_broker: Broker, mq_topic: str) -> None:
    fill(mq_broker.namesrv, mq_topic, 400)
    got: set[bytes] = set()
    deadline = time.monotonic() + WAIT_S
    with Signals(0.1) as signals:
        while len(got) < 400 and time.monotonic() < deadline:
            consumer = mqspark.LitePullConsumer(
                mq_broker.namesrv, group=f"g-{mq_topic}", consume_from=FIRST, pull_batch_size=20
            )
            consumer.subscribe(mq_topic)
            with consumer:
                for _ in range(30):
                    messages: list[mqspark.MessageExt] = []
                    try:
                        with signals.armed():
                            messages = consumer.poll(50)
                    except Interrupted:
                        got.update(message.body for message in messages)
                        break
                    got.update(message.body for message in messages)
    assert len(got) == 400
    assert signals.count


def test_an_interrupted_producer_goes_on(mq_broker: Broker, mq_topic: str) -> None:
    """Neither the room in flight nor the wake-up of the loop gets lost, whatever an interruption cuts short."""
    acknowledged = 0
    with (
        mqspark.Producer(mq_broker.namesrv, group="p", max_in_flight=2, send_timeout_ms=60_000) as producer,
        Signals() as signals,
    ):
        deadline = time.monotonic() + WAIT_S
        while (acknowledged < 100 or signals.count < 40) and time.monotonic() < deadline:
            try:
                with signals.armed():
                    if acknowledged % 2:
                        producer.send(mqspark.Message.of(mq_topic, b"x"))
                    else:
                        producer.send_async(mqspark.Message.of(mq_topic, b"x")).result(WAIT_S)
                    acknowledged += 1
            except Interrupted:
                continue
    assert acknowledged >= 100
    assert signals.count >= 40
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        stored = sum(bounds.max_offset for bounds in admin.topic_stats(mq_topic).values())
    assert stored >= acknowledged


def test_an_interrupted_start_leaves_no_member(mq_broker: Broker, mq_topic: str) -> None:
    fill(mq_broker.namesrv, mq_topic, 1)
    with Signals(0.01) as signals:
        for _ in range(20):
            consumer = mqspark.PushConsumer(mq_broker.namesrv, group=f"g-{mq_topic}", listener=print)
            consumer.subscribe(mq_topic)
            try:
                with signals.armed():
                    consumer.start()
            except Interrupted:
                pass  # it may come when the start is over
            consumer.stop()
    assert signals.count
    eventually(
        lambda: "mqspark-client" not in [thread.name for thread in threading.enumerate()],
        "the threads are over",
    )


# --- the end of a program -------------------------------------------------------------------------------

PROGRAM = """
    import multiprocessing, sys, threading
    import mqspark

    namesrv, topic, how = sys.argv[1:]

    def fill():
        batch = mqspark.AutoBatch(max_delay_ms=3_000) if how == "auto_batch" else None
        producer = mqspark.Producer(namesrv, group="g", auto_batch=batch, send_timeout_ms=30_000)
        producer.start()
        if how != "first":
            producer.send(mqspark.Message.of(topic, b"first"))
        for number in range(1_000):
            message = mqspark.Message.of(topic, str(number))
            if how == "oneway":
                producer.send_oneway(message)
            else:
                producer.send_async(message)

    if how == "daemon":
        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        thread.join()
    elif how == "child":
        child = multiprocessing.get_context("fork").Process(target=fill)
        child.start()
        child.join()
    else:
        fill()
    if how == "exception":
        raise ValueError
    if how == "exit":
        sys.exit(3)
"""
ENDS = {
    "end": (0, 1_001),
    "first": (0, 1_000),
    "oneway": (0, 1_001),
    "auto_batch": (0, 1_001),
    "daemon": (0, 1_001),
    "child": (0, 1_001),
    "exception": (1, 1_001),
    "exit": (3, 1_001),
}


def run_program(program: str, *arguments: str, timeout_s: float = WAIT_S) -> subprocess.CompletedProcess[str]:
    return run_python(textwrap.dedent(program), *arguments, timeout_s=timeout_s)


@pytest.mark.parametrize("how", some(ENDS, 2))
def test_the_end_of_a_program_sends_what_waits(mq_broker: Broker, mq_topic: str, how: str) -> None:
    code, count = ENDS[how]
    ended = run_program(PROGRAM, mq_broker.namesrv, mq_topic, how)
    assert ended.returncode == code, ended.stderr
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        stored = sum(bounds.max_offset for bounds in admin.topic_stats(mq_topic).values())
    assert stored == count, ended.stderr


def test_the_end_of_a_program_says_what_is_lost() -> None:
    """No server is there: the program ends in time, and names how many messages of which topic."""
    program = """
        import mqspark
        producer = mqspark.Producer("127.0.0.1:9", group="lonely", send_timeout_ms=500)
        producer.start()
        for number in range(7):
            producer.send_async(mqspark.Message.of("Orders", b"x"))
    """
    ended = run_program(program)
    assert ended.returncode == 0
    assert "producer group lonely stops, but 7 sends have failed (7 to Orders)" in ended.stderr


# --- stop from within -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["push", "ordered", "pop"])
@pytest.mark.parametrize("is_coroutine", [False, True], ids=["function", "coroutine"])
def test_a_listener_stops_its_consumer(
    mq_broker: Broker, mq_topic: str, kind: str, is_coroutine: bool
) -> None:
    """It returns at once, the message counts, and the member is gone."""
    took: list[float] = []
    over = threading.Event()
    group = f"g-{mq_topic}"
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        admin.create_topic(mq_topic, queues=1)
        if kind == "pop":
            admin.set_consume_mode(mq_topic, group, "POP")
        fill(mq_broker.namesrv, mq_topic, 1)

        def stop(message: mqspark.MessageExt) -> None:
            since = time.monotonic()
            consumer.stop()
            took.append(time.monotonic() - since)
            over.set()

        async def stop_later(message: mqspark.MessageExt) -> None:
            stop(message)

        listener: Callable[[mqspark.MessageExt], object] = stop_later if is_coroutine else stop
        consumer: mqspark.PushConsumer | mqspark.PopConsumer
        if kind == "pop":
            consumer = mqspark.PopConsumer(
                mq_broker.namesrv,
                group=group,
                listener=listener,  # type: ignore[arg-type] # either
                consume_from=FIRST,
            )
        else:
            consumer = mqspark.PushConsumer(
                mq_broker.namesrv,
                group=group,
                listener=listener,  # type: ignore[arg-type] # either
                consume_from=FIRST,
                ordered=kind == "ordered",
            )
        consumer.subscribe(mq_topic)
        with consumer:
            assert over.wait(WAIT_S)
        assert max(took) < 25  # the end would wait 30 s for a listener that waits for it
        assert len(took) == 1
        if kind != "pop":  # brokers count acknowledged pops a little later
            assert admin.group_lag(group, mq_topic) == 0
        with pytest.raises(ClientError):
            admin.group_members(group)


async def test_a_coroutine_listener_awaits_the_end(mq_broker: Broker, mq_topic: str) -> None:
    over = asyncio.Event()

    async def stop(message: aio.MessageExt) -> None:
        await asyncio.create_task(consumer.stop())  # a task that it waits for is the same
        over.set()

    consumer = aio.PushConsumer(mq_broker.namesrv, group=f"g-{mq_topic}", listener=stop, consume_from=FIRST)
    consumer.subscribe(mq_topic)
    async with aio.Producer(mq_broker.namesrv, group="p") as producer:
        await producer.send(aio.Message.of(mq_topic, b"x"))
    async with consumer:
        async with asyncio.timeout(WAIT_S / 3):
            await over.wait()
    assert not consumer.is_stopping
    async with aio.AdminClient(mq_broker.namesrv) as admin:
        await eventually_async(lambda: not consumer.is_stopping)
        assert await admin.group_lag(f"g-{mq_topic}", mq_topic) == 0


def test_an_interrupted_stop_goes_on(mq_broker: Broker, mq_topic: str) -> None:
    fill(mq_broker.namesrv, mq_topic, 1)
    entered, leave = threading.Event(), threading.Event()

    def listen(message: mqspark.MessageExt) -> None:
        entered.set()
        assert leave.wait(WAIT_S)

    consumer = mqspark.PushConsumer(
        mq_broker.namesrv, group=f"g-{mq_topic}", listener=listen, consume_from=FIRST
    )
    consumer.subscribe(mq_topic)
    consumer.start()
    assert entered.wait(WAIT_S)
    with Signals() as signals, pytest.raises(Interrupted), signals.armed():
        consumer.stop()
    leave.set()
    consumer.stop()  # waits for the end that goes on
    with mqspark.AdminClient(mq_broker.namesrv) as admin:
        assert admin.group_lag(f"g-{mq_topic}", mq_topic) == 0


# --- threads that are none ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "function"),
    [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")],
)
def test_replaced_threads_are_refused(module: str, function: str) -> None:
    """As a process with that library, all of whose modules are patched."""
    program = f"""
        import sys, types
        patched = types.ModuleType("{module}")
        patched.{function} = lambda name: True
        sys.modules["{module}"] = patched
        import mqspark
        try:
            mqspark.Producer("127.0.0.1:9", group="g").start()
        except mqspark.errors.ClientError as error:
            print(error)
    """
    ended = run_program(program.replace("import mqspark\n", "import mqspark, mqspark.errors\n"))
    assert "mqspark needs a real one" in ended.stdout, ended.stderr
