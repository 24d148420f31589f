"""The client against brokers that misbehave: scripted servers over real sockets, one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mqspark.aio import (
    ClientOptions,
    LitePullConsumer,
    Message,
    MessageQueue,
    PopConsumer,
    Producer,
    PushConsumer,
    SendStatus,
)
from mqspark.base.logs import printable
from mqspark.client.consumer import offset_stores
from mqspark.client.consumer.rebalance import RebalanceTimer
from mqspark.client.remoting.instance import ClientInstance
from mqspark.errors import BadRoute, BrokerError, ClientError, ConnectionLost, NoRoute, RequestTimeout
from mqspark.protocol.bodies.body import Queue, decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    MessageQueueAssignment,
    QueryAssignmentResponseBody,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request, encode_response
from tests.support.scripted import (
    SILENCE,
    STORED,
    Answer,
    Scripted,
    broker,
    cluster,
    namesrv,
    refusal,
    route_of,
    sends,
)
from tests.support.waiting import eventually_async


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    ],
)
async def test_a_code_that_another_broker_may_cure_is_retried_there(code: int) -> None:
    a, b = broker(then=refusal(code)), broker(then=refusal(code))
    b.script = broker().script
    async with cluster(a=a, b=b) as address, Producer(address, group="g") as producer:
        for _ in range(2):
            result = await producer.send(Message.of("T", "x"))
            assert (result.status, result.queue.broker_name) == (SendStatus.SEND_OK, "b")
    assert sends(a) <= 1, "a broker that refused is left alone for a while"


async def test_a_broker_that_leaves_the_route_between_choice_and_send_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, gone = ClientInstance.broker_address, list[str]()

    def address_of(self: ClientInstance, name: str) -> str | None:
        if not gone:
            gone.append(name)
            return None
        return real(self, name)

    a, b = broker(), broker()
    async with cluster(a=a, b=b) as address, Producer(address, group="g") as producer:
        monkeypatch.setattr(ClientInstance, "broker_address", address_of)
        result = await producer.send(Message.of("T", "x"))
    assert len(gone) == 1
    assert result.status is SendStatus.SEND_OK
    assert sends(a) + sends(b) == 1


async def test_a_topic_that_moves_is_waited_for_and_not_made_anew() -> None:
    """Its master dies: its queues are not writable, then nobody knows it, and then the new master does."""
    a, b = broker(STORED, then=refusal(ResponseCode.SYSTEM_BUSY)), broker()
    async with a.serving(), b.serving():
        template = route_of({"a": a.address}, queues=8)
        of_topic = [
            route_of({"a": a.address}),
            route_of({"a": a.address}, perm=4),
            None,
            None,
            route_of({"b": b.address}),
        ]

        def script(command: Command) -> Answer:
            if command.ext.get("topic") != "T":
                return 0, None, template
            body = of_topic.pop(0) if len(of_topic) > 1 else of_topic[0]
            return (ResponseCode.TOPIC_NOT_EXIST, None, b"") if body is None else (0, None, body)

        async with Scripted(script).serving() as names, Producer(names.address, group="g") as producer:
            for name in "ab":
                result = await producer.send(Message.of("T", "x"))
                assert (result.queue.broker_name, result.queue.queue_id) == (name, 0)
    assert (sends(a), sends(b)) == (2, 1)


async def test_a_broker_that_moves_is_found_by_sends_that_are_not_retried() -> None:
    """Its name has another address, as after a failover, and the known one is dead."""
    old, new = broker(), broker()
    now = old

    def script(command: Command) -> Answer:
        return 0, None, route_of({"a": now.address})

    async with Scripted(script).serving() as names, Producer(names.address, group="g", retries=0) as producer:
        queue = MessageQueue("T", "a", 0)
        async with old.serving():
            await producer.send(Message.of("T", "x"), queue=queue)
        async with new.serving():
            now, result = new, None
            for _ in range(60):  # 3 s, a tenth of the time after which routes are refreshed anyhow
                with contextlib.suppress(ConnectionLost):
                    result = await producer.send(Message.of("T", "x"), queue=queue)
                    break
                await asyncio.sleep(0.05)
    assert result is not None
    assert result.status is SendStatus.SEND_OK
    assert sends(new) >= 1


def speaks_no_more(old: Scripted) -> Callable[[], bool]:
    """This broker answers nothing from now on. Returns whether it has been asked something since."""
    old.script = lambda command: SILENCE
    before = len(old.asked)
    return lambda: len(old.asked) > before


@pytest.mark.parametrize("is_connected", [True, False])
@pytest.mark.parametrize("retries", [0, 2])
async def test_a_send_leaves_a_silent_broker_once_another_has_its_place(
    is_connected: bool, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait until its time is over."""
    monkeypatch.setattr("mqspark.client.remoting.silence.SILENCE_LOOK_S", 0.02)
    monkeypatch.setattr("mqspark.client.remoting.silence.SILENT_S", 0.02)
    old, new = broker(), broker()
    now = old
    async with old.serving(), new.serving():
        names = Scripted(lambda command: (0, None, route_of({"a": now.address})))
        async with names.serving(), Producer(names.address, group="g", retries=retries) as producer:
            if is_connected:
                await producer.send(Message.of("T", "x"))
            was_asked = speaks_no_more(old)
            sending = asyncio.ensure_future(producer.send(Message.of("T", "y"), timeout_ms=60_000))
            await eventually_async(was_asked)
            now = new
            async with asyncio.timeout(30):
                if retries:
                    assert (await sending).status is SendStatus.SEND_OK
                else:
                    with pytest.raises(ConnectionLost, match=r"silent|says nothing"):
                        await sending
                    assert (await producer.send(Message.of("T", "z"))).status is SendStatus.SEND_OK
    assert sends(new) == 1


async def test_a_send_waits_for_a_silent_broker_that_its_route_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark.client.remoting.silence.SILENCE_LOOK_S", 0.02)
    monkeypatch.setattr("mqspark.client.remoting.silence.SILENT_S", 0.02)
    a = broker(then=SILENCE)
    async with cluster(a=a) as address, Producer(address, group="g") as producer:
        with pytest.raises(RequestTimeout):
            await producer.send(Message.of("T", "x"), timeout_ms=300)
    assert (sends(a), a.accepted) == (1, 1)


async def test_when_all_refuse_the_last_refusal_is_raised_after_three_attempts() -> None:
    a, b = broker(then=refusal(2)), broker(then=refusal(2))
    async with cluster(a=a, b=b) as address, Producer(address, group="g") as producer:
        with pytest.raises(BrokerError) as caught:
            await producer.send(Message.of("T", "x"))
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    assert caught.value.address in (a.address, b.address)
    assert sends(a) + sends(b) == 3


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.FLOW_CONTROL])
async def test_a_refusal_that_no_broker_would_cure_is_raised_at_once(code: int) -> None:
    a, b = broker(then=refusal(code)), broker(then=refusal(code))
    async with cluster(a=a, b=b) as address, Producer(address, group="g") as producer:
        with pytest.raises(BrokerError):
            await producer.send(Message.of("T", "x"))
    assert sends(a) + sends(b) == 1


async def test_a_message_for_one_queue_is_not_tried_elsewhere() -> None:
    a, b = broker(then=refusal(2)), broker()
    async with cluster(a=a, b=b) as address, Producer(address, group="g") as producer:
        for choice in ({"queue": MessageQueue("T", "a", 0)}, {"selector": lambda queues, _: queues[0]}):
            with pytest.raises(BrokerError):
                await producer.send(Message.of("T", "x"), **choice)  # type: ignore[arg-type]
    assert (sends(a), sends(b)) == (2, 0)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_what_was_stored_is_a_result_not_an_error(code: int, status: SendStatus) -> None:
    a = broker((code, {"msgId": "M", "queueId": "0", "queueOffset": "3"}, b""))
    async with cluster(a=a) as address, Producer(address, group="g") as producer:
        result = await producer.send(Message.of("T", "x"))
    assert (result.status, result.queue_offset, sends(a)) == (status, 3, 1)


async def test_a_connection_that_breaks_is_opened_again_for_the_retry() -> None:
    a = broker(None, None)
    async with cluster(a=a) as address, Producer(address, group="g") as producer:
        result = await producer.send(Message.of("T", "x"))
    assert (result.status, sends(a)) == (SendStatus.SEND_OK, 3)


async def test_a_connection_that_always_breaks_is_the_error_in_the_end() -> None:
    a = broker(then=None)
    async with cluster(a=a) as address, Producer(address, group="g") as producer:
        with pytest.raises(ConnectionLost) as caught:
            await producer.send(Message.of("T", "x"))
    assert caught.value.address == a.address


async def test_the_time_for_a_send_is_the_time_for_all_its_attempts() -> None:
    a = broker(then=SILENCE)
    async with cluster(a=a) as address, Producer(address, group="g") as producer:
        began = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimeout):
            await producer.send(Message.of("T", "x"), timeout_ms=200)
        assert 0.19 < asyncio.get_running_loop().time() - began < 2
    assert sends(a) == 1


async def test_a_retry_carries_the_same_id_and_a_new_opaque() -> None:
    a = broker(refusal(2))
    async with cluster(a=a) as address, Producer(address, group="g") as producer:
        result = await producer.send(Message.of("T", "x"))
    first, second = (c for c in a.asked if c.code == RequestCode.SEND_MESSAGE_V2)
    assert first.ext["i"] == second.ext["i"] == f"UNIQ_KEY\x01{result.message_id}\x02"
    assert first.opaque != second.opaque


async def test_go_away_moves_to_a_new_connection() -> None:
    a = broker(refusal(ResponseCode.GO_AWAY))
    async with cluster(a=a) as address, Producer(address, group="g") as producer:
        result = await producer.send(Message.of("T", "x"))
        assert result.status is SendStatus.SEND_OK
    assert a.codes().count(RequestCode.HEART_BEAT) == 2, "each connection starts with a heartbeat"


async def test_an_answer_that_lacks_its_fields_is_an_error_not_a_hang() -> None:
    a = broker((0, {"msgId": "M"}, b""))
    async with cluster(a=a) as address, Producer(address, group="g") as producer:
        with pytest.raises(Exception, match="queueId"):
            await producer.send(Message.of("T", "x"))


async def test_a_broker_whose_host_cannot_be_cannot_be_reached() -> None:
    a = broker()
    a.address = "a..b:1"
    async with namesrv({"a": a}).serving() as names, Producer(names.address, group="g") as producer:
        with pytest.raises(ConnectionLost) as caught:
            await producer.send(Message.of("T", "x"))
    assert caught.value.address == a.address


@pytest.mark.parametrize("address", ["127.0.0.1:70000", "127.0.0.1:\u00b2"])
async def test_a_broker_at_no_possible_address_is_left_out(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    a = broker()
    a.address = address
    async with namesrv({"a": a}).serving() as names, Producer(names.address, group="g") as producer:
        with pytest.raises(NoRoute):
            await producer.send(Message.of("T", "x"))
    assert f"{printable(address)}, an address of broker a, is not host:port" in caplog.text


async def test_a_route_with_control_characters_is_refused() -> None:
    a = broker()
    a.address = "a\0b:1"
    async with namesrv({"a": a}).serving() as names, Producer(names.address, group="g") as producer:
        with pytest.raises(BadRoute, match="control characters"):
            await producer.send(Message.of("T", "x"))


@pytest.mark.parametrize(
    ("module", "name"),
    [("mqspark.client.remoting.remoting.Remoting", "connect"), ("mqspark.record.compression", "compress")],
)
async def test_the_unexpected_is_the_callers_and_the_producer_can_stop(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise MemoryError("no more")

    a = broker()
    async with cluster(a=a) as address, Producer(address, group="g") as producer:
        await producer.queues("T")
        monkeypatch.setattr(f"{module}.{name}", fail)
        with pytest.raises(MemoryError, match="no more"):
            await producer.send(Message.of("T", b"x" * 200_000))
    assert sends(a) == 0


async def test_a_new_connection_starts_with_a_heartbeat_and_ends_with_a_goodbye() -> None:
    a = broker()
    async with cluster(a=a) as address, Producer(address, group="pg") as producer:
        await producer.send(Message.of("T", "x"))
        client_id = producer.client_id
    codes = a.codes()
    assert (codes[0], codes[-1]) == (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT)
    heartbeat = decode_body(HeartbeatData, a.asked[0].body)
    assert heartbeat.client_id == client_id
    assert [data.group_name for data in heartbeat.producer_data_set] == ["pg"]
    assert a.asked[-1].ext == {"clientID": client_id, "producerGroup": "pg"}


async def test_who_leaves_waits_for_its_heartbeat() -> None:
    """RocketMQ may handle what comes later first, and would keep a client that has gone."""
    plain, beats = broker(), list[Command]()

    def script(command: Command) -> Answer:
        if command.code != RequestCode.HEART_BEAT:
            return plain.script(command)
        beats.append(command)
        return (0, {}, b"") if len(beats) == 1 else SILENCE

    a = Scripted(script)
    options = ClientOptions(heartbeat_interval_ms=20)
    async with cluster(a=a) as address:
        producer = Producer(address, group="pg", options=options)
        await producer.start()
        await producer.send(Message.of("T", "x"))
        await eventually_async(lambda: len(beats) > 1, "the second heartbeat")
        stopping = asyncio.create_task(producer.stop())
        await asyncio.sleep(0.1)
        assert RequestCode.UNREGISTER_CLIENT not in a.codes()
        for writer in a.writers:
            writer.write(encode_response(beats[1].opaque, 0, {}, b""))
        await stopping
    assert a.codes()[-1] == RequestCode.UNREGISTER_CLIENT


# --- consumers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "taken"), [(0, False), (231, False), (232, True)])
async def test_a_filter_is_refused_for_a_broker_that_is_too_old(version: int, taken: bool) -> None:
    def script(command: Command) -> Answer:
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return 0, {}, encode_body(GetConsumerListByGroupResponseBody(consumer_id_list=[]))
        return SILENCE if command.code == RequestCode.PULL_MESSAGE else (0, {}, b"")

    a = Scripted(script, version=version)
    async with cluster(a=a) as address:
        consumer = PushConsumer(address, group="g", listener=print)
        consumer.subscribe("T", sql="a > 3")
        if taken:
            await consumer.start()
            await consumer.stop()
        else:
            with pytest.raises(ClientError, match=f"its version is {version}, 232 is needed"):
                await consumer.start()
    checks = [command for command in a.asked if command.code == RequestCode.CHECK_CLIENT_CONFIG]
    assert len(checks) == taken
    if taken:
        body = decode_body(CheckClientRequestBody, checks[0].body)
        assert body.group == "g"
        assert body.subscription_data is not None
        assert (body.subscription_data.sub_string, body.subscription_data.expression_type) == (
            "a > 3",
            "SQL92",
        )


LISTS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
TOPICS = [f"T{number}" for number in range(30)]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each rebalance that is over has balanced its topics."""
    over: list[bool] = []
    ran = RebalanceTimer.ran

    def noted(timer: RebalanceTimer, *, balanced: bool) -> None:
        over.append(balanced)
        ran(timer, balanced=balanced)

    monkeypatch.setattr(RebalanceTimer, "ran", noted)
    return over


@pytest.mark.parametrize("answers", [True, False], ids=["answers", "is silent"])
async def test_a_round_of_many_topics_asks_a_broker_once_for_the_members(
    answers: bool, rounds: list[bool]
) -> None:
    def script(command: Command) -> Answer:
        if command.code != LISTS:
            return SILENCE if command.code == RequestCode.PULL_MESSAGE else (0, {"offset": "0"}, b"")
        body = encode_body(GetConsumerListByGroupResponseBody(consumer_id_list=["another"]))
        return (0, {}, body) if answers else SILENCE

    a = Scripted(script)
    options = ClientOptions(request_timeout_ms=300)
    async with cluster(a=a) as address:
        consumer = PushConsumer(address, group="g", listener=print, options=options)
        for topic in TOPICS:
            consumer.subscribe(topic)
        async with consumer:
            await eventually_async(lambda: bool(rounds), "a round")
            assert a.codes().count(LISTS) == 1
            assert rounds == [answers]


async def test_a_silent_broker_keeps_no_topic_from_the_others(
    rounds: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_stores, "_TIMEOUT_MS", 300)
    members: list[str] = []

    def script(command: Command) -> Answer:
        if command.code == RequestCode.HEART_BEAT:
            members[:] = [decode_body(HeartbeatData, command.body).client_id]
        if command.code == LISTS:
            return 0, {}, encode_body(GetConsumerListByGroupResponseBody(consumer_id_list=members))
        return SILENCE if command.code == RequestCode.PULL_MESSAGE else (0, {"offset": "0"}, b"")

    def silence(command: Command) -> Answer:
        asks = command.code in (LISTS, RequestCode.QUERY_CONSUMER_OFFSET)
        return SILENCE if asks else (0, {}, b"")

    a, b = Scripted(silence), Scripted(script)
    options = ClientOptions(request_timeout_ms=300)
    async with cluster(a=a, b=b) as address:
        consumer = PushConsumer(address, group="g", listener=print, options=options)
        for topic in TOPICS:
            consumer.subscribe(topic)
        async with consumer:
            await eventually_async(lambda: bool(rounds), "a round")
            assert rounds == [False]
            assert {queue.broker_name for queue in consumer.owned()} == {"b"}
            assert {queue.topic for queue in consumer.owned()} >= set(TOPICS)
            asked = [command.ext["topic"] for command in a.asked if "topic" in command.ext]
            assert len(set(asked)) <= 1


def consuming_broker(
    pulls: Callable[[Command], Answer], members: Callable[[], list[str]], offset: int | None = 0
) -> Scripted:
    def script(command: Command) -> Answer:
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            body = encode_body(GetConsumerListByGroupResponseBody(consumer_id_list=members()))
            return (0, {}, body) if members() else refusal(ResponseCode.SYSTEM_ERROR)
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            if offset is None:
                return refusal(ResponseCode.QUERY_NOT_FOUND)
            return 0, {"offset": str(offset)}, b""
        if command.code == RequestCode.GET_MAX_OFFSET:
            return 0, {"offset": "77"}, b""
        if command.code == RequestCode.PULL_MESSAGE:
            return pulls(command)
        return 0, {}, b""

    return Scripted(script)


def pulled(code: int, next_offset: int) -> Answer:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": "100",
    }
    return code, fields, b""


@asynccontextmanager
async def consuming(address: str, **options: object) -> AsyncIterator[PushConsumer]:
    async def listen(message: object) -> None:
        raise AssertionError("there is no message")

    consumer = PushConsumer(address, group="cg", listener=listen, **options)  # type: ignore[arg-type]
    consumer.subscribe("T")
    async with consumer:
        yield consumer


async def asked(one: Scripted, count: int, code: int = RequestCode.PULL_MESSAGE) -> list[Command]:
    async with asyncio.timeout(30):
        while True:
            found = [
                command for command in one.asked if command.code == code and "RETRY" not in str(command.ext)
            ]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)


async def test_a_failed_pull_is_tried_again_from_the_same_offset() -> None:
    answers = [refusal(ResponseCode.FLOW_CONTROL), refusal(ResponseCode.FLOW_CONTROL), pulled(19, 5), SILENCE]
    held: list[str] = []

    def pulls(command: Command) -> Answer:
        return SILENCE if "RETRY" in command.ext["topic"] else answers.pop(0)

    a = consuming_broker(pulls, lambda: held, offset=5)
    async with cluster(a=a) as address, consuming(address) as consumer:
        held.append(consumer.client_id)
        found = await asked(a, 4)
        assert [command.ext["queueOffset"] for command in found] == ["5"] * 4
        assert found[0].ext["suspendTimeoutMillis"] == "15000"
        assert (found[0].ext["sysFlag"], found[0].ext["commitOffset"]) == ("3", "5")


async def test_nothing_matched_moves_on_and_commits() -> None:
    answers = [pulled(20, 80), pulled(19, 90), pulled(19, 60), SILENCE]
    held: list[str] = []

    def pulls(command: Command) -> Answer:
        return SILENCE if "RETRY" in command.ext["topic"] else answers.pop(0)

    a = consuming_broker(pulls, lambda: held, offset=None)
    async with cluster(a=a) as address, consuming(address) as consumer:
        held.append(consumer.client_id)
        found = await asked(a, 4)
        assert [command.ext["queueOffset"] for command in found] == ["77", "80", "90", "90"]
    written = [c for c in a.asked if c.code == RequestCode.UPDATE_CONSUMER_OFFSET and c.ext["topic"] == "T"]
    assert written[-1].ext["commitOffset"] == "90", "an offset never goes back by itself"


async def test_a_moved_offset_is_taken_and_written() -> None:
    answers = [pulled(ResponseCode.PULL_OFFSET_MOVED, 3), SILENCE]
    held: list[str] = []

    def pulls(command: Command) -> Answer:
        return SILENCE if "RETRY" in command.ext["topic"] else answers.pop(0)

    a = consuming_broker(pulls, lambda: held, offset=50)
    async with cluster(a=a) as address, consuming(address) as consumer:
        held.append(consumer.client_id)
        found = await asked(a, 2)
        assert [command.ext["queueOffset"] for command in found] == ["50", "3"]
        written = [c for c in a.asked if c.code == RequestCode.UPDATE_CONSUMER_OFFSET]
        assert [c.ext["commitOffset"] for c in written] == ["3"]


async def test_a_notification_makes_the_consumer_look_again() -> None:
    held: list[str] = []
    a = consuming_broker(lambda command: SILENCE, lambda: held)
    async with cluster(a=a) as address, consuming(address) as consumer:
        held += [consumer.client_id]
        await eventually_async(lambda: len(consumer.assignment()) == 2, "a queue of each topic")
        held.insert(0, "0.0.0.0@other")  # sorts before ours and so gets the only queue of each topic
        for writer in a.writers:
            notify = encode_request(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 1, {"consumerGroup": "cg"}, oneway=True
            )
            writer.write(notify)
        await eventually_async(lambda: not consumer.assignment())


@pytest.fixture
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed at once, and a failed pull is soon tried again."""
    for name, seconds in (("SILENCE_LOOK_S", 0.02), ("SILENT_S", 0.05), ("QUIET_S", 0.2)):
        monkeypatch.setattr(f"mqspark.client.remoting.silence.{name}", seconds)
    monkeypatch.setattr("mqspark.client.consumer.queuecalls._ERROR_PAUSE_S", 0.02)


def waiting_consumer(kind: str, address: str) -> PushConsumer | PopConsumer | LitePullConsumer:
    """Its pulls may wait at the broker for a minute."""

    async def listen(message: object) -> None:
        raise AssertionError("there is no message")

    consumer: PushConsumer | PopConsumer | LitePullConsumer
    if kind == "pop":
        consumer = PopConsumer(address, group="cg", listener=listen, poll_ms=60_000)
    elif kind == "push":
        consumer = PushConsumer(address, group="cg", listener=listen, suspend_ms=60_000)
    else:
        consumer = LitePullConsumer(address, group="cg", suspend_ms=60_000)
    consumer.subscribe("T")
    return consumer


LONG_POLLS = {
    "push": RequestCode.PULL_MESSAGE,
    "pop": RequestCode.POP_MESSAGE,
    "lite pull": RequestCode.LITE_PULL_MESSAGE,
}


def holding_broker(code: int, members: list[str]) -> Scripted:
    """Holds the long polls of this code back."""
    usual = consuming_broker(lambda _: SILENCE, lambda: members).script
    queue = Queue(topic="T", broker_name="a", queue_id=0)
    assigned = QueryAssignmentResponseBody([MessageQueueAssignment(message_queue=queue, mode="POP")])

    def script(command: Command) -> Answer:
        if command.code == RequestCode.QUERY_ASSIGNMENT:
            return 0, {}, encode_body(assigned)
        return SILENCE if command.code == code else usual(command)

    return Scripted(script)


@pytest.mark.parametrize("kind", LONG_POLLS)
@pytest.mark.usefixtures("quick_watch")
async def test_a_consumer_leaves_a_frozen_broker_once_another_has_its_place(kind: str) -> None:
    """It does not wait until its pull has timed out, nor until routes are refreshed."""
    members: list[str] = []
    code = LONG_POLLS[kind]
    old, new = holding_broker(code, members), holding_broker(code, members)
    now = old
    async with old.serving(), new.serving():
        names = Scripted(lambda command: (0, None, route_of({"a": now.address})))
        async with names.serving(), waiting_consumer(kind, names.address) as consumer:
            members.append(consumer.client_id)
            await asked(old, 1, code)
            speaks_no_more(old)
            await eventually_async(lambda: old.codes().count(RequestCode.HEART_BEAT) >= 2, "it is knocked at")
            now = new
            async with asyncio.timeout(30):
                await asked(new, 1, code)


@pytest.mark.usefixtures("quick_watch")
async def test_a_consumer_stays_with_a_broker_that_only_has_no_messages() -> None:
    members: list[str] = []
    a = holding_broker(RequestCode.PULL_MESSAGE, members)
    async with a.serving():
        names = namesrv({"a": a})
        async with names.serving(), waiting_consumer("push", names.address) as consumer:
            members.append(consumer.client_id)
            await asked(a, 1)
            looked_up = len(names.asked)
            await eventually_async(lambda: a.codes().count(RequestCode.HEART_BEAT) >= 4, "it is knocked at")
            assert len(names.asked) <= looked_up + 1
    assert a.accepted == 1


async def test_an_unknown_request_of_the_server_is_answered_with_code_3() -> None:
    held: list[str] = []
    a = consuming_broker(lambda command: SILENCE, lambda: held)
    async with cluster(a=a) as address, consuming(address) as consumer:
        held += [consumer.client_id]
        await asked(a, 1)
        for writer in a.writers:
            writer.write(encode_request(9_999, 4_711, None))
        await eventually_async(lambda: any(c.is_response for c in a.asked))
        answer = next(c for c in a.asked if c.is_response)
        assert (answer.code, answer.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 4_711)
