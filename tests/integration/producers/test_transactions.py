"""Our transactional producer against a broker of ours over real sockets."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import mqspark
from mqspark.aio import (
    ClientOptions,
    LitePullConsumer,
    Message,
    MessageExt,
    TransactionProducer,
    TransactionState,
)
from mqspark.errors import ConfigError, InvalidMessage
from mqspark.testing import Broker, Cluster
from tests.support.waiting import eventually_async

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
QUICK = {
    "transactionTimeOut": "100",
    "transactionCheckInterval": "200",
    "transactionOpBatchInterval": "200",
}


@pytest.fixture(scope="module")
def broker() -> Any:
    with Broker(settings=QUICK) as running:
        yield running


async def bodies(broker: Cluster, topic: str, expected: int, rest_ms: int = 1_000) -> list[str]:
    """The bodies in a topic: ``expected`` of them, and whatever comes within ``rest_ms`` after."""
    async with LitePullConsumer(broker.namesrv, group=f"{topic}-all") as consumer:
        queues = await consumer.fetch_message_queues(topic)
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek_to_begin(queue)
        found: list[str] = []
        deadline = time.monotonic() + 45
        while len(found) < expected and time.monotonic() < deadline:
            found += [message.body.decode() for message in await consumer.poll(1_000)]
        while more := await consumer.poll(rest_ms):
            found += [message.body.decode() for message in more]
        return sorted(found)


def never(message: MessageExt) -> TransactionState:
    raise AssertionError(f"nobody should ask for {message.body!r}")


async def test_commit_rollback_and_unknown(broker: Cluster) -> None:
    asked: list[MessageExt] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message)
        return COMMIT if len(asked) > 2 else UNKNOWN

    executed: list[str | None] = []

    def execute(message: Message) -> TransactionState:
        executed.append(message.unique_id)
        return {b"commit": COMMIT, b"rollback": ROLLBACK}.get(message.body, UNKNOWN)

    async with TransactionProducer(broker.namesrv, group="tx1", check=check, execute=execute) as producer:
        results = [
            await producer.send_in_transaction(Message.of("Tx1", body, tags="A", keys="k", flag=3))
            for body in ("commit", "rollback", "unknown")
        ]
        assert [result.state for result in results] == [COMMIT, ROLLBACK, UNKNOWN]
        assert executed == [result.transaction_id for result in results]
        assert await bodies(broker, "Tx1", 2) == ["commit", "unknown"]
    assert {message.message_id for message in asked} == {results[2].transaction_id}
    (message,) = {(message.topic, message.tags, message.keys, message.flag) for message in asked}
    assert message == ("Tx1", "A", "k", 3)
    assert [message.properties["TRANSACTION_CHECK_TIMES"] for message in asked] == ["1", "2", "3"]


async def test_an_exception_leaves_it_open_and_is_raised(broker: Cluster) -> None:
    asked: list[str] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.message_id)
        if len(asked) == 1:
            raise OSError("the database is away")
        return ROLLBACK

    def execute(message: Message) -> TransactionState:
        raise LookupError("no such account")

    async with TransactionProducer(broker.namesrv, group="tx2", check=check) as producer:
        with pytest.raises(LookupError, match="no such account"):
            await producer.send_in_transaction(Message.of("Tx2", "x"), execute=execute)
        with pytest.raises(TypeError, match="TransactionState"):
            await producer.send_in_transaction(Message.of("Tx2", "y"), execute=lambda message: True)
        await eventually_async(lambda: len(asked) >= 3, "both are asked for, and one again")
        assert await bodies(broker, "Tx2", 0) == []


async def test_functions_do_not_block_the_loop_and_coroutines_run_on_it(broker: Cluster) -> None:
    release = threading.Event()
    threads: list[str] = []

    def execute(message: Message) -> TransactionState:
        threads.append(threading.current_thread().name)
        assert release.wait(30)
        return COMMIT

    async def execute_here(message: Message) -> TransactionState:
        threads.append(threading.current_thread().name)
        release.set()
        return COMMIT

    async with TransactionProducer(broker.namesrv, group="tx3", check=lambda message: None) as producer:
        await asyncio.gather(
            producer.send_in_transaction(Message.of("Tx3", "a"), execute=execute),
            producer.send_in_transaction(Message.of("Tx3", "b"), execute=execute_here),
        )
    assert sorted(threads)[0] == threading.current_thread().name
    assert sorted(threads)[1].startswith("mqspark-execute")
    assert await bodies(broker, "Tx3", 2) == ["a", "b"]


async def test_another_member_of_the_group_is_asked_when_the_first_is_gone(broker: Cluster) -> None:
    async with TransactionProducer(
        broker.namesrv, group="tx4", check=lambda message: None, execute=lambda message: UNKNOWN
    ) as first:
        await first.send_in_transaction(Message.of("Tx4", "x"))
    async with TransactionProducer(broker.namesrv, group="tx4", check=lambda message: COMMIT):
        assert await bodies(broker, "Tx4", 1) == ["x"]


async def test_checks_run_a_few_at_a_time(broker: Cluster) -> None:
    running, most = 0, 0
    lock = threading.Lock()
    done: set[str] = set()

    def check(message: MessageExt) -> TransactionState:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1
            done.add(message.message_id)
        return COMMIT

    async with TransactionProducer(broker.namesrv, group="tx5", check=check, concurrency=3) as producer:

        async def unknown(message: Message) -> TransactionState:
            return UNKNOWN

        await asyncio.gather(
            *(producer.send_in_transaction(Message.of("Tx5", str(n)), execute=unknown) for n in range(60))
        )
        assert await bodies(broker, "Tx5", 60) == sorted(map(str, range(60)))
    assert most <= 3
    assert len(done) == 60


async def test_stop_waits_for_what_runs(broker: Cluster) -> None:
    started, release = threading.Event(), threading.Event()

    def check(message: MessageExt) -> TransactionState:
        started.set()
        assert release.wait(45)
        return COMMIT

    async with TransactionProducer(broker.namesrv, group="tx10", check=check) as producer:
        await producer.send_in_transaction(Message.of("Tx10", "x"), execute=lambda message: UNKNOWN)
        await eventually_async(started.is_set, "it is asked")
        stopping = asyncio.create_task(producer.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        release.set()
        await stopping
    assert await bodies(broker, "Tx10", 1) == ["x"]


async def test_what_is_compressed_stays_so(broker: Cluster) -> None:
    body = "0123456789" * 2_000
    async with TransactionProducer(broker.namesrv, group="tx6", check=never) as producer:
        await producer.send_in_transaction(Message.of("Tx6", body), execute=lambda message: COMMIT)
    assert await bodies(broker, "Tx6", 1) == [body]


async def test_under_a_namespace(broker: Cluster) -> None:
    asked: list[str] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.topic)
        return COMMIT

    async with TransactionProducer(
        broker.namesrv, group="tx8", check=check, options=ClientOptions(namespace="shop")
    ) as producer:
        result = await producer.send_in_transaction(Message.of("Tx8", "x"), execute=lambda message: UNKNOWN)
        assert result.queue.topic == "Tx8"
        assert await bodies(broker, "shop%Tx8", 1) == ["x"]
    assert set(asked) == {"Tx8"}


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
async def test_a_delayed_message_is_refused(name: str) -> None:
    """Before it is sent, and before the local transaction; as in RocketMQ's client since 5.5."""
    producer = TransactionProducer("127.0.0.1:1", group="g", check=never)
    message = Message.of("T", "x", properties={name: "1"})
    for send in (
        producer.send_in_transaction(message, execute=lambda message: pytest.fail("executed")),
        producer.prepare(message),
    ):
        with pytest.raises(InvalidMessage, match="has no delay"):
            await send


async def test_wrong_use() -> None:
    producer = TransactionProducer("127.0.0.1:1", group="g", check=never)
    with pytest.raises(ConfigError, match="no local transaction"):
        await producer.send_in_transaction(Message.of("T", "x"))
    with pytest.raises(ConfigError):
        TransactionProducer("127.0.0.1:1", group="g", check=never, concurrency=0)
    async with mqspark.aio.Producer("127.0.0.1:1", group="g") as plain:
        with pytest.raises(InvalidMessage, match="TransactionProducer"):
            await plain.send(Message.of("T", "x", properties={"TRAN_MSG": "true"}))


def test_blocking(broker: Cluster) -> None:
    executed_in: list[int] = []

    def execute(message: Message) -> TransactionState:
        executed_in.append(threading.get_ident())
        return {b"commit": COMMIT, b"rollback": ROLLBACK}.get(message.body, UNKNOWN)

    async def execute_on_loop(message: Message) -> TransactionState:
        return COMMIT

    asked = threading.Event()

    def check(message: MessageExt) -> mqspark.TransactionState:
        asked.set()
        return COMMIT

    with mqspark.TransactionProducer(broker.namesrv, group="tx7", check=check, execute=execute) as producer:
        results = [
            producer.send_in_transaction(Message.of("Tx7", body)) for body in ("commit", "rollback", "open")
        ]
        assert set(executed_in) == {threading.get_ident()}
        assert [result.state for result in results] == [COMMIT, ROLLBACK, UNKNOWN]
        assert (
            producer.send_in_transaction(Message.of("Tx7", "loop"), execute=execute_on_loop).state is COMMIT
        )

        def fail(message: Message) -> TransactionState:
            raise LookupError("no")

        with pytest.raises(LookupError):
            producer.send_in_transaction(Message.of("Tx7", "failed"), execute=fail)
        producer.send(Message.of("Tx7", "plain"))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: producer.send_in_transaction(Message.of("Tx7", f"open {n}")), range(8)))
        assert asked.wait(45)
        found = asyncio.run(bodies(broker, "Tx7", 13))
    assert found == sorted(["commit", "failed", "loop", "open", "plain", *(f"open {n}" for n in range(8))])


async def test_a_hidden_coroutine_decides_a_transaction(mq_broker: Broker, mq_topic: str) -> None:
    """A lambda around a coroutine function is awaited, in both APIs."""

    async def commit(message: Message) -> TransactionState:
        await asyncio.sleep(0)
        return TransactionState.COMMIT

    producer = TransactionProducer(mq_broker.namesrv, group="hidden", check=lambda message: commit(message))
    async with producer:
        result = await producer.send_in_transaction(
            Message.of(mq_topic, b"x"), execute=lambda message: commit(message)
        )
        assert result.state is TransactionState.COMMIT

    def blocking() -> TransactionState:
        with mqspark.TransactionProducer(
            mq_broker.namesrv, group="hidden", check=lambda message: commit(message)
        ) as other:
            return other.send_in_transaction(
                Message.of(mq_topic, b"x"), execute=lambda message: commit(message)
            ).state

    assert await asyncio.to_thread(blocking) is TransactionState.COMMIT
