"""mqspark.testing: a broker in a test, and nothing left of it afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.metadata
import os
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark import Message, MessageExt, MessageQueue, TransactionState
from mqspark.errors import ClientError, ConfigError, StoreLocked
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.record.record import decode_records
from mqspark.testing import Broker, Clients, Cluster, FakeClock
from mqspark_server.broker_app import BrokerApp
from mqspark_server.dev_cluster import DevCluster
from tests.support.inbox import Inbox
from tests.support.invariants import lock_holders
from tests.support.processes import run_python, run_to_end
from tests.support.remoting import Reply, ask, send_fields
from tests.support.waiting import eventually

pytest_plugins = ["mqspark.testing.pytest_plugin"]


def send(broker: Broker, topic: str, body: bytes) -> Reply:
    return ask(broker.address, RequestCode.SEND_MESSAGE_V2, body, **send_fields(topic))


def test_a_broker_serves_and_is_known_at_once(mq_broker: Broker, mq_topic: str) -> None:
    assert send(mq_broker, mq_topic, b"hello").code == ResponseCode.SUCCESS
    cluster = ask(mq_broker.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
    assert mq_broker.address.encode() in cluster.body


def open_files() -> Counter[str]:
    """What this process has open, by kind: numbers of descriptors are reused, and listing them takes one."""
    kinds: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{number}")
            kinds[target.partition(":[")[0] if ":[" in target else target] += 1
    return kinds


def test_nothing_is_left() -> None:
    with Broker(http=True) as first:  # what is loaded once stays
        store = first.store_path
    gc.collect()
    threads = set(threading.enumerate())
    files = open_files()
    for _ in range(3):
        with Broker(http=True) as broker:
            assert send(broker, "t", b"x").code == ResponseCode.SUCCESS
            assert broker.store_path.exists()
            store = broker.store_path
        assert not store.exists()
    gc.collect()
    assert set(threading.enumerate()) == threads
    assert open_files() - files == Counter()


def test_a_given_store_is_kept_and_reopened(tmp_path: Path) -> None:
    with Broker(store=tmp_path) as broker:
        assert send(broker, "kept", b"x").ext["queueOffset"] == "0"
    assert not (tmp_path / "abort").exists()
    with Broker(store=tmp_path) as broker:
        assert send(broker, "kept", b"y").ext["queueOffset"] == "1"


def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    with Broker(store=tmp_path):
        threads = threading.active_count()
        with pytest.raises(StoreLocked):
            Broker(store=tmp_path).start()
        assert threading.active_count() == threads
    with pytest.raises(ConfigError, match="unknown setting"):
        Broker(settings={"noSuchKey": 1})


def test_a_taken_port_is_named() -> None:
    with Broker() as broker:
        port = int(broker.address.rpartition(":")[2])
        with pytest.raises(
            OSError, match=f"broker cannot listen on 127.0.0.1:{port}: Address already in use"
        ):
            Broker(broker_port=port).start()


def test_a_cluster_has_brokers_with_stores_of_their_own() -> None:
    with Cluster(brokers=2) as cluster:
        info = ask(cluster.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO).body
        assert all(address.encode() in info for address in cluster.addresses)
        assert len(set(cluster.store_paths)) == 2
        assert cluster.call(lambda: [app.lifecycle.ready for app in cluster.apps]) == [True, True]


def test_a_fake_clock_stands_still() -> None:
    clock = FakeClock(now_ms=5_000)
    with Broker(clock=clock) as broker:
        assert send(broker, "t", b"x").code == ResponseCode.SUCCESS
        stored = broker.call(lambda: broker.apps[0].store.offsets.store_timestamp_at("t", 0, 0))
        assert stored == 5_000
        clock.advance(1_000)
        send(broker, "t", b"y")
        assert broker.call(lambda: broker.apps[0].store.offsets.store_timestamp_at("t", 0, 1)) == 6_000
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


# --- time that moves ---------------------------------------------------------------------------------------


def refusing(times: int) -> Callable[[MessageExt], None]:
    """Refuses each message so often."""

    def answer(message: MessageExt) -> None:
        if message.reconsume_times < times:
            raise ValueError("not yet")

    return answer


def stored(broker: Cluster, topic: str) -> list[bytes]:
    """Every body that consumers could find in a topic now."""
    store = broker.apps[0].store
    assert store is not None

    def bodies() -> list[bytes]:
        found = []
        for queue_id in range(16):
            buffers = store.reads.get(topic, queue_id, 0, 1_000, 1 << 24).buffers
            found += [record.body for record in decode_records(b"".join(buffers))]
        return found

    return broker.call(bodies)


@pytest.mark.slow("many moments; a retry after its delay is the fast twin")
def test_delays_and_timers_come_when_the_clock_says_so(
    mq_broker: Broker, mq_client: Clients, mq_clock: FakeClock
) -> None:
    topic = mq_client.topic()
    producer = mq_client.producer()
    producer.send(Message.of(topic, b"level", delay_level=3))
    producer.send(Message.of(topic, b"timer", delay_ms=20_000))
    producer.send(Message.of(topic, b"tomorrow", deliver_at_ms=mq_clock.now_ms() + 24 * 3_600_000))
    mq_clock.advance(9_999)
    assert stored(mq_broker, topic) == []
    mq_clock.advance(1)
    assert stored(mq_broker, topic) == [b"level"]
    mq_clock.advance(9_999)
    assert stored(mq_broker, topic) == [b"level"]
    mq_clock.advance(1_001)
    assert sorted(stored(mq_broker, topic)) == [b"level", b"timer"]
    mq_clock.advance(24 * 3_600_000 - 30_000)
    assert len(stored(mq_broker, topic)) == 2
    mq_clock.advance(30_000)
    assert sorted(stored(mq_broker, topic)) == [b"level", b"timer", b"tomorrow"]


@pytest.mark.mq_broker(settings={"flushDiskType": "SYNC_FLUSH"})
def test_a_retry_comes_after_its_delay(mq_client: Clients, mq_clock: FakeClock) -> None:
    topic = mq_client.topic(queues=1)
    inbox = Inbox(refusing(2))
    consumer = mq_client.push_consumer(topic, inbox)
    mq_client.producer().send(Message.of(topic, b"x"))
    inbox.deliveries(1)
    eventually(lambda: set(consumer.progress().values()) == {0, 1}, "the first failure is with the broker")
    mq_clock.advance(9_000)
    assert len(inbox.deliveries()) == 1
    mq_clock.advance(1_000)
    inbox.deliveries(2)
    eventually(
        lambda: 1 in [n for q, n in consumer.progress().items() if q.topic != topic], "the second, too"
    )
    mq_clock.advance(30_000)
    assert inbox.deliveries(3) == [(b"x", 0), (b"x", 1), (b"x", 2)]


def test_an_open_transaction_is_asked_for(mq_broker: Broker, mq_client: Clients, mq_clock: FakeClock) -> None:
    topic = mq_client.topic()
    asked: list[str] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.body.decode())
        return TransactionState.COMMIT

    producer = mq_client.transaction_producer(check=check, execute=lambda _: TransactionState.UNKNOWN)
    producer.send_in_transaction(Message.of(topic, b"open"))
    mq_clock.advance(1_000)
    assert (asked, stored(mq_broker, topic)) == ([], [])
    mq_clock.advance(31_000)  # one round of checks: the answer takes what time it takes
    eventually(lambda: stored(mq_broker, topic) == [b"open"], "the commit")
    assert asked == ["open"]


def test_what_was_popped_and_not_acknowledged_comes_again(mq_client: Clients, mq_clock: FakeClock) -> None:
    topic = mq_client.topic()
    inbox = Inbox(refusing(1))
    mq_client.pop_consumer(topic, inbox, invisible_ms=30_000)
    mq_client.producer().send(Message.of(topic, b"x"))
    inbox.deliveries(1)
    mq_clock.advance(9_000)
    assert len(inbox.deliveries()) == 1
    for _ in range(60):  # the answer to the listener's failure may be on its way
        mq_clock.advance(1_000)
    assert inbox.deliveries(2) == [(b"x", 0), (b"x", 1)]


@pytest.mark.slow("many heartbeats; the tests of the clock beside it are the fast twins")
def test_nobody_is_forgotten_while_time_flies(
    mq_broker: Broker, mq_client: Clients, mq_clock: FakeClock
) -> None:
    topic = mq_client.topic(queues=2)
    inbox = Inbox()
    consumer = mq_client.push_consumer(topic, inbox, ordered=True)
    producer = mq_client.producer()
    producer.send(Message.of(topic, b"before"))
    inbox.deliveries(1)
    eventually(lambda: len(consumer.assignment()) == 3, "the queue of its retry topic, too")
    core = mq_broker.apps[0].parts.core
    assert core is not None
    before = mq_broker.call(lambda: lock_holders(core.state.locks))
    assert before
    mq_clock.advance(6 * 3_600_000)  # what is silent is forgotten after minutes
    members = mq_broker.call(lambda: list(core.state.clients.consumer(consumer.group).members))  # type: ignore[union-attr]
    assert members == [consumer.client_id]
    assert mq_broker.call(lambda: lock_holders(core.state.locks)) == before
    producer.send(Message.of(topic, b"after"))
    assert inbox.deliveries(2) == [(b"before", 0), (b"after", 0)]


def test_a_clock_moves_several_clusters(mq_clock: FakeClock) -> None:
    with Broker(clock=mq_clock) as first, Cluster(brokers=2, clock=mq_clock) as second:
        for cluster in (first, second):
            with Clients(cluster.namesrv) as clients:
                clients.producer().send(Message.of("T", b"x", delay_level=2))
        mq_clock.advance(5_000)
        assert stored(first, "T") == [b"x"]
        assert mq_clock.now_ms() == first.apps[0].clock.now_ms() == second.apps[1].clock.now_ms()
        with pytest.raises(RuntimeError, match="wait for itself"):
            first.call(lambda: mq_clock.advance(1))
    before_ms = mq_clock.now_ms()
    mq_clock.advance(500)  # nobody follows any more
    assert mq_clock.now_ms() == before_ms + 500


# --- brokers that come and go ------------------------------------------------------------------------------


@pytest.mark.mq_cluster(brokers=3, settings={"flushDiskType": "SYNC_FLUSH"})
def test_a_broker_is_killed_and_comes_back(mq_cluster: Cluster, mq_client: Clients) -> None:
    topic = mq_client.topic(queues=1)
    inbox = Inbox()
    mq_client.push_consumer(topic, inbox)
    producer = mq_client.producer()
    addresses = mq_cluster.addresses
    for number in range(6):
        producer.send(Message.of(topic, b"%d" % number))
    inbox.deliveries(6)
    mq_cluster.kill(1)
    assert (mq_cluster.store_paths[1] / "abort").exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(addresses[1].rpartition(":")[2])), timeout=5)
    names = mq_client.admin().cluster_info().broker_addr_table or {}
    assert sorted(names) == ["dev-0", "dev-2"]
    for number in range(6, 12):
        producer.send(Message.of(topic, b"%d" % number))
    mq_cluster.restart(1)
    mq_cluster.restart(2)
    assert mq_cluster.addresses == addresses
    for number in range(12, 18):
        producer.send(Message.of(topic, b"%d" % number))
    eventually(lambda: len({body for body, _ in inbox.deliveries()}) == 18, "all are consumed")
    assert sum(len(stored_of(app, topic)) for app in mq_cluster.apps) >= 18


def stored_of(app: BrokerApp, topic: str) -> list[MessageExt]:
    assert app.store is not None
    return decode_records(b"".join(app.store.reads.get(topic, 0, 0, 1_000, 1 << 24).buffers))


def test_a_cluster_grows(mq_cluster: Cluster, mq_client: Clients) -> None:
    assert mq_cluster.add_broker() == 2
    topic = mq_client.topic(queues=1)
    sent = mq_client.producer().send(Message.of(topic, b"x"), queue=MessageQueue(topic, "dev-2", 0))
    assert sent.queue.broker_name == "dev-2"
    mq_cluster.shut_down(2)
    assert sorted(mq_client.admin().cluster_info().broker_addr_table or {}) == ["dev-0", "dev-1"]
    mq_cluster.restart(2)
    assert [message.body for message in stored_of(mq_cluster.apps[2], topic)] == [b"x"]


def test_a_single_broker_does_not_grow_and_is_restarted(mq_broker: Broker) -> None:
    with pytest.raises(ValueError, match="two brokers or more"):
        mq_broker.add_broker()
    assert send(mq_broker, "t", b"x").code == ResponseCode.SUCCESS
    mq_broker.kill()
    mq_broker.kill()
    mq_broker.restart()
    assert send(mq_broker, "t", b"y").ext["queueOffset"] == "1"


# --- clients -----------------------------------------------------------------------------------------------


def test_clients_of_every_kind_end_with_the_test(mq_broker: Broker) -> None:
    threads = set(threading.enumerate())
    inbox, popped = Inbox(), Inbox()
    with Clients(mq_broker.namesrv) as clients:
        topic = clients.topic(queues=2)
        clients.push_consumer(topic, inbox, tags="a")
        clients.pop_consumer(topic, popped)
        reader = clients.lite_pull_consumer(topic)
        clients.transaction_producer(check=lambda _: TransactionState.COMMIT)
        sender = clients.producer("senders")
        assert sender.group == "senders"
        for tag in ("a", "b"):
            sender.send(Message.of(topic, tag.encode(), tags=tag))
        assert inbox.deliveries(1) == [(b"a", 0)]
        popped.deliveries(2)
        found: list[MessageExt] = []
        deadline = time.monotonic() + 60
        while len(found) < 2 and time.monotonic() < deadline:
            found += reader.poll(timeout_ms=1_000)
        assert sorted(message.body for message in found) == [b"a", b"b"]
        sender.stop()  # earlier than the rest
    assert set(threading.enumerate()) == threads
    with pytest.raises(ClientError, match="already stopped"):
        reader.poll(timeout_ms=1)


# --- nothing is left ---------------------------------------------------------------------------------------


def test_nothing_is_left_of_clusters_clients_and_killed_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def use() -> None:
        clock = FakeClock()
        with Cluster(clock=clock, brokers=2, http=True) as cluster, Clients(cluster.namesrv) as clients:
            topic = clients.topic(queues=1)
            inbox = Inbox()
            clients.push_consumer(topic, inbox)
            clients.producer().send(Message.of(topic, b"x"))
            inbox.deliveries(1)
            cluster.kill(0)
            cluster.kill(1)
            cluster.restart(1)
            clock.advance(1_000)

    use()  # what is loaded once stays
    gc.collect()
    threads, files = set(threading.enumerate()), open_files()
    for _ in range(2):
        use()
    gc.collect()
    assert set(threading.enumerate()) == threads
    assert open_files() - files == Counter()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_no_task_is_left(ending: str) -> None:
    before = asyncio.all_tasks()
    async with DevCluster(brokers=2) as cluster:
        assert asyncio.all_tasks() > before
        if ending == "kill":
            await cluster.kill(0)
            await cluster.kill(1)
    assert asyncio.all_tasks() == before


# --- as a stranger's project has it ------------------------------------------------------------------------

STRANGER = """
import threading

import pytest

from mqspark import Message, TransactionState


def test_broker(mq_broker, mq_topic):
    from mqspark import Producer

    with Producer(mq_broker.namesrv, group="g") as producer:
        assert producer.send(Message.of(mq_topic, b"x")).queue_offset == 0


def test_client(mq_client):
    got = threading.Event()
    topic = mq_client.topic()
    mq_client.push_consumer(topic, lambda message: got.set())
    mq_client.producer().send(Message.of(topic, b"x"))
    assert got.wait(60)


@pytest.mark.mq_cluster(brokers=2, settings={"flushDiskType": "SYNC_FLUSH"})
def test_cluster(mq_cluster, mq_client):
    topic = mq_client.topic(queues=1)
    mq_cluster.kill(0)
    mq_client.producer().send(Message.of(topic, b"x"))
    mq_cluster.restart(0)
    assert len(mq_cluster.addresses) == 2


def test_clock(mq_client, mq_clock):
    topic = mq_client.topic()
    reader = mq_client.lite_pull_consumer(topic)
    mq_client.producer().send(Message.of(topic, b"x", delay_ms=3_600_000))
    assert reader.poll(timeout_ms=200) == []
    mq_clock.advance(3_601_000)
    assert [message.body for message in reader.poll(timeout_ms=60_000)] == [b"x"]


async def test_asyncio(mq_broker, mq_topic):
    from mqspark.aio import Producer

    async with Producer(mq_broker.namesrv, group="g") as producer:
        await producer.send(Message.of(mq_topic, b"x"))
"""


@pytest.mark.slow("a pytest of its own; the pages' tests in test_readme.py are the fast twins")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_strangers_project_needs_no_configuration(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_orders.py").write_text(STRANGER)
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "--strict-markers"]
    if not is_registered():  # an installation from before there was the entry point
        command += ["-p", "mqspark.testing.pytest_plugin"]
    if workers:
        command += ["-n", str(workers)]
    done = run_to_end(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def is_registered() -> bool:
    points = importlib.metadata.entry_points(group="pytest11")
    return any(point.value == "mqspark.testing.pytest_plugin" for point in points)


def test_the_plugin_loads_nothing_before_it_is_used() -> None:
    code = (
        "import sys, mqspark.testing.pytest_plugin; "
        "print([name for name in sys.modules if name.split('.')[0] in ('numpy', 'msgspec', 'mqspark_server')])"
    )
    done = run_python(code, check=True)
    assert done.stdout.strip() == "[]"


def test_a_broker_with_grpc_loads_it_when_the_first_peer_comes() -> None:
    code = """
import socket, sys, time
from mqspark.testing import Broker

def loaded():
    return {"google.protobuf", "mqspark_server.proxy.grpcserver"} <= set(sys.modules)

with Broker(settings={"grpcEnable": True}) as broker:
    before = {name for name in sys.modules if name.startswith("google.") or ".http2" in name}
    host, _, port = broker.grpc_address.rpartition(":")
    with socket.create_connection((host, int(port))):
        while not loaded():
            time.sleep(0.01)
print(before)
"""
    done = run_python(code)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_a_plain_cluster_loads_neither_users_nor_a_controller() -> None:
    code = (
        "import sys, mqspark_server.dev_cluster; "
        "print([name for name in ('mqspark.auth.authority', 'mqspark.auth.users', 'mqspark_server.authfiles', "
        "'mqspark.controller.controller', 'mqspark_server.controlled_app') if name in sys.modules])"
    )
    done = run_python(code, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_missing_is_named() -> None:
    code = "import sys; sys.modules['numpy'] = None\nfrom mqspark.testing import Broker"
    done = run_python(code)
    assert "pip install 'mqspark[testing]'" in done.stderr


# --- the clock of clients -------------------------------------------------------------------------------


def test_a_queue_that_rests_goes_on_when_the_clock_is_moved(
    mq_client: Clients, mq_clock: FakeClock, mq_topic: str
) -> None:
    mq_client.topic(mq_topic, queues=1)
    deliveries: list[int] = []

    def listen(message: MessageExt) -> None:
        deliveries.append(message.reconsume_times)
        if len(deliveries) < 3:
            raise ValueError("not yet")

    mq_client.push_consumer(mq_topic, listen, ordered=True, suspend_queue_ms=30_000)
    mq_client.producer().send(Message.of(mq_topic, "x"))
    for count in (1, 2):
        eventually(lambda count=count: len(deliveries) == count, "a delivery")
        mq_clock.advance(10_000)
        assert len(deliveries) == count
        mq_clock.advance(20_001)
    eventually(lambda: len(deliveries) == 3, "the last delivery")
    assert deliveries == [0, 1, 2]


def stuck_listener() -> tuple[list[int], threading.Event, Callable[[MessageExt], None]]:
    """A listener that does not return from its first call until the event; the attempts that it has seen."""
    deliveries: list[int] = []
    end = threading.Event()

    def listen(message: MessageExt) -> None:
        deliveries.append(message.reconsume_times)
        if len(deliveries) == 1:
            end.wait(60)

    return deliveries, end, listen


@pytest.mark.slow("several clients; the tests of the clock beside it are the fast twins")
def test_a_listener_takes_too_long_when_the_clock_is_moved(
    mq_client: Clients, mq_clock: FakeClock, mq_topic: str
) -> None:
    mq_client.topic(mq_topic, queues=1)
    deliveries, end, listen = stuck_listener()
    mq_client.push_consumer(mq_topic, listen, consume_timeout_ms=15 * 60_000)
    mq_client.producer().send(Message.of(mq_topic, "x"))
    eventually(lambda: deliveries == [0], "the first delivery")
    mq_clock.advance(17 * 60_000)

    def is_again() -> bool:
        mq_clock.advance(
            10_000
        )  # the broker's delay before the next delivery, from whenever it has the message back
        return deliveries == [0, 1]

    eventually(is_again, "the second delivery")
    end.set()


def test_a_popped_message_is_held_for_its_invisible_time(
    mq_client: Clients, mq_clock: FakeClock, mq_topic: str
) -> None:
    """Moving the time past it, at the broker and at the consumer, delivers the message again."""
    mq_client.topic(mq_topic, queues=1)
    deliveries, end, listen = stuck_listener()
    mq_client.pop_consumer(mq_topic, listen, invisible_ms=60_000)
    mq_client.producer().send(Message.of(mq_topic, "x"))
    eventually(lambda: deliveries == [0], "the first delivery")
    mq_clock.advance(30_000)
    assert deliveries == [0]

    def is_again() -> bool:
        mq_clock.advance(10_000)
        return len(deliveries) == 2

    eventually(is_again, "the second delivery")
    end.set()
