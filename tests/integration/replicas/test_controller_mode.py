"""Our brokers under our controller: who is master changes, and nothing that was acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqspark import Message, MessageExt, MessageQueue, Producer, SendStatus
from mqspark.broker.replication.metadata import Metadata, Request
from mqspark.errors import ConfigError, MQError, ProtocolError
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.testing import Broker, Clients, Cluster, FakeClock
from mqspark_server.broker_app import BrokerApp
from mqspark_server.controlled_app import controlled_or_plain
from mqspark_server.process.phases import Phase
from mqspark_server.settings.settings import Layer, broker_settings
from tests.support.clusters import Cluster as Process
from tests.support.clusters import mqspark_broker, mqspark_controller, mqspark_namesrv
from tests.support.remoting import SEND_MESSAGE_V2, RawConnection, ask, log_end, request_frame, send_fields
from tests.support.replicaset import state_of
from tests.support.scripted import SILENCE, Answer, Scripted
from tests.support.storefiles import log_bytes
from tests.support.waiting import eventually, eventually_async

ALL = {0, 1, 2}
Place = tuple[int, int]
"""A queue id and an offset in it."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replication": "raft"}, "replication='raft' is not 'controller'"),
        ({"replication": "controller", "slaves": 1}, "leave out slaves=1"),
        ({"replication": "controller", "brokers": 1}, "two brokers or more"),
        ({"replication": "controller", "clock": FakeClock()}, "omit the clock"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Cluster(**{"brokers": 3, **changes})


def test_a_cluster_of_replicas_has_one_master_and_all_are_in_sync(tmp_path: Path) -> None:
    with Cluster(brokers=3, replication="controller", store=tmp_path) as cluster:
        assert cluster.master == 0
        assert cluster.sync_state_set == {0, 1, 2}
        with Clients(cluster.namesrv) as clients:
            topic = clients.topic(queues=1)
            assert clients.producer().send(Message(topic, b"one")).status is SendStatus.SEND_OK
            consumer = clients.lite_pull_consumer(topic)
            assert [message.body for message in consumer.poll(timeout_ms=30_000)] == [b"one"]
        with pytest.raises(ValueError, match="does not grow"):
            cluster.add_broker()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["controller", "dev-0", "dev-1", "dev-2"]


def test_a_topic_that_no_slave_has_copied_yet_outlives_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's new master does not know it (apache/rocketmq 9804)."""

    def none_again(metadata: Metadata) -> Generator[Request, Command, None]:
        raise ProtocolError("the test lets no more tables be copied")
        yield

    def knows_topics(number: int) -> bool:
        parts = cluster.apps[number].parts
        metadata = None if parts is None else parts.core.role.metadata
        return metadata is not None and metadata.topics_known_at is not None

    with Cluster(brokers=3, replication="controller", store=tmp_path) as cluster:
        first = cluster.master
        assert first is not None
        eventually(lambda: all(knows_topics(number) for number in ALL - {first}))
        monkeypatch.setattr(Metadata, "read", none_again)
        with Clients(cluster.namesrv) as clients:
            topic = clients.topic(queues=3)
            queues = [MessageQueue(topic, "dev", number) for number in range(3)]
            for queue in queues:
                assert clients.producer().send(Message(topic, b"x"), queue=queue).status is SendStatus.SEND_OK
            cluster.kill(first)
            eventually(lambda: cluster.master not in (None, first))
        with Clients(cluster.namesrv) as clients:
            assert set(read_all(clients, topic, 3)) == {(number, 0) for number in range(3)}


def controlled(store: Path, *controllers: Scripted, **settings: str) -> BrokerApp:
    """A broker that asks these controllers."""
    values = {
        "enableControllerMode": "true",
        "controllerAddr": ";".join(each.address for each in controllers),
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "listenPort": "0",
        "haListenPort": "0",
        "storePathRootDir": str(store),
        "mappedFileSizeCommitLog": str(1 << 22),
        **settings,
    }
    return controlled_or_plain(broker_settings({}, Layer("test", values), use_environment=False))


async def test_a_leader_gets_heartbeats_again_after_its_connection_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that only other controllers know, while a configured one is away: heartbeats go to every address all
    the time, not to those that answered lately (apache/rocketmq 10812)."""

    def answer(command: Command) -> Answer:
        fields = {
            RequestCode.CONTROLLER_GET_METADATA_INFO: {"controllerLeaderAddress": leader.address},
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: {"nextBrokerId": "1"},
        }
        return 0, fields.get(RequestCode(command.code), {}), b""

    def beats(controller: Scripted) -> int:
        return controller.codes().count(RequestCode.BROKER_HEARTBEAT)

    monkeypatch.setattr("mqspark_server.controlled_app.ROLE_WAIT_S", 0.1)
    leader, follower = Scripted(answer), Scripted(answer)
    async with leader.serving(), follower.serving():
        app = controlled(
            tmp_path, follower, controllerAddr=f"127.0.0.1:9;{follower.address}", brokerHeartbeatInterval="50"
        )
        starting = asyncio.get_running_loop().create_task(app.start())
        try:
            await eventually_async(lambda: beats(leader) > 2 and beats(follower) > 2)
            for controller in (leader, follower):
                for writer in controller.writers:
                    writer.close()
                controller.asked.clear()
            await eventually_async(lambda: beats(leader) > 2 and beats(follower) > 2, "heartbeats again")
        finally:
            await starting
            await app.kill()


async def test_a_silent_controller_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader names itself; another one still names the silent one, because it has not heard of the change."""

    def says(address: Callable[[], str]) -> Scripted:
        def answer(command: Command) -> Answer:
            is_leader = str(address() == leads.address).lower()
            return 0, {"controllerLeaderAddress": address(), "isLeader": is_leader, "nextBrokerId": "1"}, b""

        return Scripted(answer)

    monkeypatch.setattr("mqspark_server.controlled_app.ROLE_WAIT_S", 0.1)
    monkeypatch.setattr("mqspark_server.controlled_app.REQUEST_TIMEOUT_S", 60.0)
    silent = Scripted(lambda command: SILENCE)
    late, leads = says(lambda: silent.address), says(lambda: leads.address)
    async with silent.serving(), late.serving(), leads.serving():
        app = controlled(tmp_path, silent, late, leads)
        began_s = time.monotonic()
        starting = asyncio.get_running_loop().create_task(app.start())
        try:
            await eventually_async(lambda: RequestCode.CONTROLLER_APPLY_BROKER_ID in leads.codes())
            assert time.monotonic() - began_s < 30
            assert RequestCode.CONTROLLER_GET_NEXT_BROKER_ID not in silent.codes() + late.codes()
        finally:
            await starting
            await app.kill()


async def test_a_slave_leaves_a_silent_master_as_soon_as_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has asked the old one, and what it asks it now, would take a minute to fail."""
    monkeypatch.setattr("mqspark_server.peers.following.REQUEST_TIMEOUT_S", 60.0)

    def answer(command: Command) -> Answer:
        fields = {
            "controllerLeaderAddress": controller.address,
            "isLeader": "true",
            "nextBrokerId": "1",
            "masterBrokerId": "2" if master is old else "3",
            "masterAddress": master.address,
            "masterEpoch": "1" if master is old else "2",
            "syncStateSetEpoch": "1",
        }
        return 0, fields, b""

    def was_asked(broker: Scripted) -> bool:
        """For the log and for the tables."""
        return {RequestCode.EXCHANGE_BROKER_HA_INFO, RequestCode.GET_ALL_TOPIC_CONFIG} <= {*broker.codes()}

    controller = Scripted(answer)
    old, new = (Scripted(lambda command: SILENCE) for _ in range(2))
    master = old
    async with controller.serving(), old.serving(), new.serving():
        app = controlled(tmp_path, controller, syncBrokerMetadataPeriod="100")
        await app.start()
        try:
            await eventually_async(lambda: was_asked(old))
            master, since_s = new, time.monotonic()
            await eventually_async(lambda: was_asked(new))
            assert time.monotonic() - since_s < 30
        finally:
            await app.kill()


async def test_a_slave_follows_its_master_to_another_address_in_the_same_epoch(tmp_path: Path) -> None:
    """As pods that are started again have other addresses; RocketMQ's controllers give no new epoch for that."""

    def answer(command: Command) -> Answer:
        fields = {
            "controllerLeaderAddress": controller.address,
            "isLeader": "true",
            "nextBrokerId": "1",
            "masterBrokerId": "2",
            "masterAddress": address,
            "masterEpoch": "4",
            "syncStateSetEpoch": "1",
        }
        return 0, fields, b""

    controller = Scripted(answer)
    old, new = (Scripted(lambda command: SILENCE) for _ in range(2))
    async with controller.serving(), old.serving(), new.serving():
        address = old.address
        app = controlled(tmp_path, controller, syncBrokerMetadataPeriod="100")
        await app.start()
        try:
            await eventually_async(lambda: RequestCode.EXCHANGE_BROKER_HA_INFO in old.codes())
            address = new.address
            await eventually_async(lambda: RequestCode.EXCHANGE_BROKER_HA_INFO in new.codes())
        finally:
            await app.kill()


async def test_two_controllers_with_states_of_their_own_are_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def leader(state_id: str) -> Scripted:
        def answer(command: Command) -> Answer:
            is_leader = str(state_id in leading).lower()
            fields = {"controllerLeaderAddress": server.address, "isLeader": is_leader, "nextBrokerId": "1"}
            return 0, fields | ({"stateId": state_id} if state_id in leading else {}), b""

        server = Scripted(answer)
        return server

    def asked(code: RequestCode) -> int:
        return (first.codes() + second.codes()).count(code)

    leading = {"A", "B"}
    monkeypatch.setattr("mqspark_server.controlled_app.ROLE_WAIT_S", 0.1)
    monkeypatch.setattr("mqspark_server.controlled_app.CONTROLLER_RETRY_S", 0.05)
    first, second = leader("A"), leader("B")
    async with first.serving(), second.serving():
        app = controlled(tmp_path, first, second)
        starting = asyncio.get_running_loop().create_task(app.start())
        try:
            await eventually_async(lambda: asked(RequestCode.CONTROLLER_GET_METADATA_INFO) > 6)
            assert asked(RequestCode.CONTROLLER_APPLY_BROKER_ID) == 0
            assert "have states of their own, and each would make a master" in caplog.text
            leading.remove("B")
            await eventually_async(lambda: asked(RequestCode.CONTROLLER_APPLY_BROKER_ID) > 0)
            assert RequestCode.CONTROLLER_APPLY_BROKER_ID not in second.codes()
        finally:
            await starting
            await app.kill()


def test_slaves_know_at_once_what_an_operator_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqspark_server.peers.following.METADATA_S", 3_600.0)
    monkeypatch.setattr("mqspark.broker.replication.metadata.FRESH_MS", 3_600_000)
    with Cluster(brokers=3, replication="controller", store=tmp_path) as cluster:
        with Clients(cluster.namesrv) as clients:
            topic = clients.topic(queues=1)
            admin = clients.admin()
            admin.create_group("G")
            admin.set_consume_mode(topic, "G", "POP")
        eventually(lambda: all(knows(cluster, number, topic) for number in ALL))
        for number in ALL:
            path = cluster.store_paths[number] / "config" / "messageRequestMode.json"
            eventually(lambda: path.exists() and topic in path.read_text(), f"the mode at {number}")  # noqa: B023


def test_a_slave_counts_only_once_it_has_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elected before, it would not know what groups have consumed."""
    right = Metadata.read

    def none(metadata: Metadata) -> Generator[Request, Command, None]:
        raise ProtocolError("the test lets no tables be copied")
        yield

    def end(number: int) -> int:
        store = cluster.apps[number].store
        return 0 if store is None else cluster.call(lambda: store.pipeline.stored_end)

    settings = {"minInSyncReplicas": 1, "checkSyncStateSetPeriod": 200}
    with Cluster(brokers=2, replication="controller", store=tmp_path, settings=settings) as cluster:
        with Clients(cluster.namesrv) as clients:
            topic = clients.topic(queues=1)
            clients.producer().send(Message(topic, b"before"))
            cluster.kill(1)
            eventually(lambda: cluster.sync_state_set == {0})
            monkeypatch.setattr(Metadata, "read", none)
            cluster.restart(1)
            clients.producer().send(Message(topic, b"after"))
        eventually(lambda: end(1) == end(0) > 0)
        time.sleep(1)
        assert cluster.sync_state_set == {0}
        monkeypatch.setattr(Metadata, "read", right)
        eventually(lambda: cluster.sync_state_set == {0, 1})


def test_a_send_outlives_the_master_that_it_was_sent_to(tmp_path: Path) -> None:
    with Cluster(brokers=3, replication="controller", store=tmp_path) as cluster:
        first = cluster.master
        assert first is not None
        with Clients(cluster.namesrv) as clients:
            topic = clients.topic(queues=1)
            # The new master refuses until a slave has caught up.
            producer = clients.producer(send_timeout_ms=60_000, retries=50)
            assert producer.send(Message(topic, b"0")).queue_offset == 0
            eventually(lambda: all(knows(cluster, number, topic) for number in ALL))
            cluster.kill(first)
            results = [producer.send(Message(topic, b"%d" % number)) for number in range(1, 20)]
            assert {result.status for result in results} == {SendStatus.SEND_OK}
            assert cluster.master not in (None, first)
            assert {b"%d" % number for number in range(20)} <= set(read_all(clients, topic, 20).values())


def test_a_broker_that_is_stopped_while_its_part_changes_leaves_nothing_open(tmp_path: Path) -> None:
    with Cluster(brokers=3, replication="controller", store=tmp_path) as cluster:

        async def stop_in_change() -> int:
            while True:
                for number in (1, 2):
                    app = cluster.apps[number]
                    if app.lifecycle.phase is Phase.STOPPING:
                        await app.stop()
                        assert app.lifecycle.phase is Phase.STOPPED
                        return number
                await asyncio.sleep(0)

        async def kill() -> int:
            async with asyncio.timeout(60):
                _, stopped = await asyncio.gather(cluster.processes.kill(0), stop_in_change())
            return stopped

        path = cluster.store_paths[cluster.run(kill())]
        assert not (path / "abort").exists(), "the store was not closed cleanly"
        with Broker(store=path):
            pass  # nobody holds the lock


class Sender:
    """Sends one message after the other, and notes where those are that were acknowledged."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self.acked: dict[Place, bytes] = {}
        self._ending = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="sender")
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()

    def _run(self) -> None:
        number = 0
        while not self._ending.is_set():
            number += 1
            body = b"%d" % number
            try:
                result = self._producer.send(Message(self._topic, body))
            except MQError:
                continue  # not acknowledged: it may be there or not
            if result.status is SendStatus.SEND_OK:
                place = result.queue.queue_id, result.queue_offset
                assert place not in self.acked, "two messages were acknowledged at one place"
                self.acked[place] = body

    def sends(self, count: int = 100) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acked) + count
        eventually(lambda: len(self.acked) >= wanted, f"{count} more messages to be acknowledged")


def knows(cluster: Cluster, number: int, topic: str) -> bool:
    parts = cluster.apps[number].parts
    return parts is not None and topic in {found.name for found in parts.core.state.topics}


def log_of(cluster: Cluster, number: int) -> bytes:
    store = cluster.apps[number].store
    assert store is not None
    end = cluster.call(lambda: store.log.position)
    return log_bytes(cluster.store_paths[number], end)


def read_all(clients: Clients, topic: str, count: int) -> dict[Place, bytes]:
    """Everything, until ``count`` have come and nothing more comes."""
    found: dict[Place, bytes] = {}
    consumer = clients.lite_pull_consumer(topic)

    def poll() -> bool:
        messages = consumer.poll(timeout_ms=200)
        for message in messages:
            place = message.queue_id, message.queue_offset
            assert place not in found, "one queue offset was read twice"
            found[place] = message.body
        return not messages and len(found) >= count

    eventually(poll, lambda: f"{count} messages, {len(found)} of which have come")
    return found


@pytest.mark.parametrize(
    "flush",
    ["SYNC_FLUSH", pytest.param("ASYNC_FLUSH", marks=pytest.mark.slow("SYNC_FLUSH is the fast twin"))],
)
def test_what_is_acknowledged_outlives_two_masters(tmp_path: Path, flush: str) -> None:
    settings = {"flushDiskType": flush, "mappedFileSizeCommitLog": 1 << 20}
    seen: dict[Place, set[bytes]] = {}
    in_order: dict[int, list[int]] = {}

    def see(message: MessageExt) -> None:
        seen.setdefault((message.queue_id, message.queue_offset), set()).add(message.body)

    def see_in_order(message: MessageExt) -> None:
        in_order.setdefault(message.queue_id, []).append(message.queue_offset)

    with (
        Cluster(brokers=3, replication="controller", store=tmp_path, settings=settings) as cluster,
        Clients(cluster.namesrv) as clients,
    ):
        topic = clients.topic(queues=2)
        eventually(
            lambda: cluster.call(lambda: all(knows(cluster, number, topic) for number in ALL)), "the topic"
        )
        sender = Sender(clients.producer(send_timeout_ms=3_000), topic)
        clients.push_consumer(topic, see)
        clients.push_consumer(topic, see_in_order, ordered=True)
        with sender.running():
            for _ in range(2):
                sender.sends()
                killed = cluster.master
                assert killed is not None
                cluster.kill(killed)
                eventually(lambda: cluster.master not in (None, killed), "another master")  # noqa: B023
                sender.sends()
                cluster.restart(killed)
                eventually(lambda: cluster.sync_state_set == ALL, "the killed one to be in sync")
            sender.sends()
        found = read_all(clients, topic, len(sender.acked))
        assert {place: found.get(place) for place in sender.acked} == sender.acked
        for queue_id in range(2):  # dense
            offsets = sorted(offset for queue, offset in found if queue == queue_id)
            assert offsets == list(range(len(offsets)))
        eventually(lambda: seen.keys() >= sender.acked.keys(), "the consumer that was there all the time")
        assert all(seen[place] == {found[place]} for place in seen)
        last = {queue: max(offset for each, offset in found if each == queue) for queue, _ in found}
        eventually(lambda: {queue: max(offsets) for queue, offsets in in_order.items()} == last, "in order")
        for (
            offsets
        ) in in_order.values():  # nothing is passed over, and what comes again does in its order, too
            firsts = list(dict.fromkeys(offsets))
            assert firsts == list(range(firsts[0], firsts[0] + len(firsts)))
            assert all(after <= before + 1 for before, after in itertools.pairwise(offsets))
        logs = eventually(
            lambda: (logs := [log_of(cluster, number) for number in ALL]).count(logs[0]) == 3 and logs,
            "equal logs",
        )
        assert len(logs[0]) > 100 * len(sender.acked)


# --- processes -----------------------------------------------------------------------------------------------

SUCCESS = 0
NAME = "three"
SEND = send_fields("Frozen")
LEASE_MS = 2_000


state = partial(state_of, name=NAME)


def in_sync(controller: str) -> int:
    return len(state(controller).get("inSyncReplicas", ()))


def answer_to_send(broker: Process, body: bytes) -> int | None:
    """The response code; None while nobody is there."""
    try:
        return ask(broker.broker, SEND_MESSAGE_V2, body, **SEND).code
    except OSError:
        return None


def process_log(broker: Process) -> bytes:
    end = log_end(broker.broker)
    return log_bytes(broker.store, end)


def codes_of_the_rest(connection: RawConnection, count: int) -> list[int]:
    """The codes of up to ``count`` answers, until the connection ends."""
    codes: list[int] = []
    try:
        while len(codes) < count:
            codes.append(connection.read().code)
    except ConnectionError:
        pass  # a broker that changes its part closes its connections
    return codes


@pytest.mark.slow("waits for time to pass; the simulator freezes masters, too")
def test_a_master_that_was_frozen_acknowledges_nothing_when_it_wakes(tmp_path: Path) -> None:
    settings = {
        "brokerClusterName": "Three",
        "brokerName": NAME,
        "enableControllerMode": True,
        "minInSyncReplicas": 2,
        "controllerHeartBeatTimeoutMills": LEASE_MS,
        "brokerHeartbeatInterval": 200,
        "autoCreateTopicEnable": True,
        "mappedFileSizeCommitLog": 1 << 20,
        "httpEnable": False,
    }
    with ExitStack() as stack:
        enter = stack.enter_context
        namesrv = enter(mqspark_namesrv(tmp_path / "namesrv"))
        controller, _ = enter(mqspark_controller(tmp_path, scanNotActiveBrokerInterval=200))
        brokers = [
            enter(
                mqspark_broker(
                    tmp_path / f"broker{number}",
                    namesrv,
                    {**settings, "controllerAddr": controller},
                    stop_signal=signal.SIGKILL,
                )
            )
            for number in ALL
        ]
        old = brokers[0]
        eventually(lambda: in_sync(controller) == 3, lambda: state(controller))
        assert state(controller)["masterAddress"] == old.broker
        eventually(lambda: answer_to_send(old, b"first") == SUCCESS, "the first message")

        connection = enter(RawConnection(old.broker))
        assert connection.request(SEND_MESSAGE_V2, b"before", **SEND).code == SUCCESS
        os.kill(old.broker_pid, signal.SIGSTOP)
        for number in range(20):
            connection.write(request_frame(SEND_MESSAGE_V2, 100 + number, dict(SEND), b"frozen"))
        eventually(lambda: state(controller)["masterAddress"] not in (old.broker, None, ""), "another master")
        (new,) = (each for each in brokers if each.broker == state(controller)["masterAddress"])
        eventually(lambda: answer_to_send(new, b"after") == SUCCESS, "a message at the new master")
        for number in range(20):
            connection.write(request_frame(SEND_MESSAGE_V2, 200 + number, dict(SEND), b"frozen"))
        os.kill(old.broker_pid, signal.SIGCONT)
        assert SUCCESS not in codes_of_the_rest(connection, 40)

        def is_back() -> bool:
            assert answer_to_send(old, b"frozen") != SUCCESS
            return in_sync(controller) == 3

        eventually(is_back, lambda: state(controller))
        assert answer_to_send(new, b"last") == SUCCESS
        logs = eventually(
            lambda: (logs := [process_log(each) for each in brokers]).count(logs[0]) == 3 and logs,
            "equal logs",
        )
        for body in (b"first", b"before", b"after", b"last"):
            assert body in logs[0]
        assert b"frozen" not in logs[0]
