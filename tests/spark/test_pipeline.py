"""Sends to brokers that are busy, silent or gone, by a clock that the test moves; what all policies do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqspark.arrow.writing import pipeline
from mqspark.arrow.writing.pipeline import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    WORK_RETRIES,
    Pipeline,
    Send,
    SendPolicy,
    send_header,
)
from mqspark.arrow.writing.routing import Router
from mqspark.client.blocking import BlockingClient
from mqspark.errors import BrokerError, ConnectionLost, RequestTimeout
from mqspark.message import MessageQueue
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from pyspark_pymq.options import WriteOptions
from tests.support.scripted import Scripted, broker, route_of, served

policies = pytest.mark.parametrize("policy", [AT_LEAST_ONCE, EXACTLY_ONCE, WORK_RETRIES])


class Brokers:
    """Stands in for client, connections and router: ``answer`` says what becomes of a send, None for silence."""

    def __init__(self, answer: Callable[[str, bytes], int | None]) -> None:
        self.now = 0.0
        self.sent: list[tuple[float, str, bytes]] = []
        self.stored: list[bytes] = []
        self.most_in_flight = 0
        self.refreshed = 0
        self.moves: dict[MessageQueue, MessageQueue] = {}
        self.addresses: dict[str, str] = {}
        """Brokers that have another address than their name, as a refreshed route says."""
        self.route: dict[str, str] = {}
        self.unsure: list[str] = []
        self._answer = answer
        self._answers: dict[str, dict[int, int]] = {}
        self._silent: dict[str, int] = {}
        self._bodies: dict[int, bytes] = {}

    # the router
    def address(self, queue: MessageQueue) -> str:
        return self.route.get(queue.broker_name, queue.broker_name)

    def refresh(self, topic: str) -> None:
        self.refreshed += 1
        self.route = dict(self.addresses)

    def instead_of(self, queue: MessageQueue) -> MessageQueue:
        return self.moves.get(queue, queue)

    # the client
    def connection(self, address: str) -> Any:
        return SimpleNamespace(
            address=address,
            send=lambda code, header, body, timeout_ms: self._send(address, body),
            poll=lambda opaques, timeout_s: self.poll(address, opaques, timeout_s),
        )

    def forget(self, address: str) -> None:
        self._answers.pop(address, None)
        self._silent.pop(address, None)

    def _send(self, address: str, body: bytes) -> int:
        self.sent.append((self.now, address, body))
        opaque = len(self.sent)
        code = self._answer(address, body)
        self._bodies[opaque] = body
        if code is None:
            self._silent[address] = self._silent.get(address, 0) + 1
        else:
            self._answers.setdefault(address, {})[opaque] = code
        waiting = sum(map(len, self._answers.values())) + sum(self._silent.values())
        self.most_in_flight = max(self.most_in_flight, waiting)
        return opaque

    def poll(self, address: str, opaques: Iterable[int], timeout_s: float) -> dict[int, Command]:
        codes = self._answers.get(address, {})
        if not codes:
            self.now += timeout_s
            return {}
        opaque = min(codes)
        assert opaque in set(opaques)
        code = codes.pop(opaque)
        if code == ResponseCode.SUCCESS:
            self.stored.append(self._bodies[opaque])
        return {opaque: Command(code=code, opaque=opaque, flag=1, remark="so it is")}

    def readable(self, connections: list[Any], timeout_s: float) -> list[Any]:
        ready = [each for each in connections if self._answers.get(each.address)]
        if not ready:
            self.now += timeout_s
        return ready


def run(
    monkeypatch: pytest.MonkeyPatch,
    brokers: Brokers,
    policy: SendPolicy,
    queues: dict[MessageQueue, list[bytes]],
    **more: str,
) -> Pipeline:
    options = WriteOptions.parse({"nameserver": "h:1", "topic": "T", "sendTimeoutMs": "1000"} | more)

    def sleep(seconds: float) -> None:
        brokers.now += seconds

    clock = SimpleNamespace(monotonic=lambda: brokers.now, sleep=sleep)
    monkeypatch.setattr(pipeline, "time", clock)
    monkeypatch.setattr(pipeline, "_readable", brokers.readable)
    made = Pipeline(
        options, cast(Any, brokers), cast(Any, brokers), policy, may_come_twice=brokers.unsure.extend
    )
    for queue, bodies in queues.items():
        for body in bodies:
            header = send_header(options, queue)
            made.add(Send(queue, RequestCode.SEND_BATCH_MESSAGE, header, body, 1, mark=body.decode()))
    made.throttle()
    made.finish()
    return made


BODIES = [bytes([n]) for n in range(20)]
A, B = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)


def in_turn(*codes: int | None) -> Callable[[str, bytes], int | None]:
    """These, then success for ever."""
    left = list(codes)
    return lambda address, body: left.pop(0) if left else ResponseCode.SUCCESS


def test_order_takes_one_send_of_a_queue_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for policy in (AT_LEAST_ONCE, EXACTLY_ONCE):
        brokers = Brokers(in_turn(None, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR))
        assert run(monkeypatch, brokers, policy, {A: BODIES}).messages == 20
        assert sorted(brokers.stored) == BODIES
        if policy is AT_LEAST_ONCE:
            assert (brokers.stored, brokers.most_in_flight) == (BODIES, 1)
        else:
            assert brokers.most_in_flight == 20


@pytest.mark.parametrize(
    "code",
    [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE],
)
def test_a_weaker_guarantee_is_enough_or_not(monkeypatch: pytest.MonkeyPatch, code: ResponseCode) -> None:
    plain, once = Brokers(in_turn(code)), Brokers(in_turn(code))
    assert run(monkeypatch, plain, AT_LEAST_ONCE, {A: [b"x"]}).messages == 1
    assert len(plain.sent) == 1
    assert run(monkeypatch, once, EXACTLY_ONCE, {A: [b"x"]}).messages == 1
    assert len(once.sent) == 2


@policies
def test_what_is_refused_for_good(monkeypatch: pytest.MonkeyPatch, policy: SendPolicy) -> None:
    brokers = Brokers(lambda address, body: ResponseCode.MESSAGE_ILLEGAL)
    with pytest.raises(BrokerError, match="so it is"):
        run(monkeypatch, brokers, policy, {A: [b"x"]})
    assert len(brokers.sent) == 1
    brokers = Brokers(lambda address, body: ResponseCode.SYSTEM_ERROR)
    with pytest.raises(BrokerError, match="so it is"):
        run(monkeypatch, brokers, policy, {A: [b"x"]})
    assert len(brokers.sent) == 6
    assert brokers.now < 10


def test_many_failures_of_one_moment_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(in_turn(*[ResponseCode.SYSTEM_ERROR] * 20))
    assert run(monkeypatch, brokers, EXACTLY_ONCE, {A: BODIES}).messages == 20


@policies
@pytest.mark.parametrize("code", [None, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_an_outage_is_bridged_for_the_retry_timeout(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, policy: SendPolicy, code: int | None
) -> None:
    back_at = 200.0
    brokers = Brokers(lambda address, body: code if brokers.now < back_at else ResponseCode.SUCCESS)
    assert run(monkeypatch, brokers, policy, {A: BODIES}).messages == 20
    assert brokers.now < back_at + 3
    begun, over = (record.getMessage() for record in caplog.records)
    assert "sending again, for 300 s more (retryTimeout)" in begun
    assert over == "a stores messages again"
    assert brokers.refreshed > 50 or code is not None
    back_at = 1e9
    brokers.now = 0.0
    with pytest.raises((BrokerError, RequestTimeout)) as caught:
        run(monkeypatch, brokers, policy, {A: BODIES}, retryTimeout="20s")
    assert caught.value.__notes__ == ["Nothing was stored for retryTimeout (20 s)."]
    assert 20 <= brokers.now < 25


@policies
def test_a_broker_that_is_away_does_not_hold_up_the_other(
    monkeypatch: pytest.MonkeyPatch, policy: SendPolicy
) -> None:
    brokers = Brokers(
        lambda address, body: None if address == "a" and brokers.now < 60 else ResponseCode.SUCCESS
    )
    assert run(monkeypatch, brokers, policy, {A: BODIES, B: BODIES}).messages == 40
    to_b = [at for at, address, _ in brokers.sent if address == "b"]
    assert len(to_b) == 20
    assert max(to_b) == 0.0


@policies
@pytest.mark.parametrize("queues", [(A,), (A, B)], ids=["one broker", "two brokers"])
def test_a_silent_broker_is_left_once_another_has_its_place(
    monkeypatch: pytest.MonkeyPatch, policy: SendPolicy, queues: tuple[MessageQueue, ...]
) -> None:
    """Long before the time of a send is over: it is frozen, and another one was made the master."""

    def answer(address: str, body: bytes) -> int | None:
        if brokers.now >= 8.0:
            brokers.addresses = {"a": "new"}
        return None if address == "a" else ResponseCode.SUCCESS

    brokers = Brokers(answer)
    original = brokers.refresh

    def refresh(topic: str) -> None:
        answer("", b"")
        original(topic)

    monkeypatch.setattr(brokers, "refresh", refresh)
    made = run(monkeypatch, brokers, policy, dict.fromkeys(queues, BODIES), sendTimeoutMs="60000")
    assert made.messages == 20 * len(queues)
    assert brokers.now < 10.0
    assert {address for at, address, _ in brokers.sent if at < 8.0} == {queue.broker_name for queue in queues}
    assert brokers.refreshed <= 12, "about once a second"
    assert set(brokers.unsure) <= {body.decode() for body in BODIES}
    assert brokers.unsure, "they may be stored at the old one"


@policies
def test_answers_of_several_brokers_are_read_as_they_come(policy: SendPolicy) -> None:
    """Over real connections: no send waits until its time is over, and none is made twice."""
    a, b = broker(), broker()
    namesrv = Scripted(lambda command: (0, None, route_of({"a": a.address, "b": b.address})))
    with served(a, b, namesrv):
        options = WriteOptions.parse({"nameserver": namesrv.address, "topic": "T", "sendTimeoutMs": "60000"})
        client = BlockingClient(namesrv.address)
        router = Router(options, client, first_turn=0)
        router.refresh("T")
        made = Pipeline(options, client, router, policy)
        for body in BODIES:
            for queue in (A, B):
                header = send_header(options, queue)
                made.add(Send(queue, RequestCode.SEND_BATCH_MESSAGE, header, body, 1))
        made.finish()
        client.close()
    assert made.messages == 40
    for one in (a, b):
        assert one.codes().count(RequestCode.SEND_BATCH_MESSAGE) == 20


@policies
def test_a_connection_that_breaks_takes_all_of_it_along(
    monkeypatch: pytest.MonkeyPatch, policy: SendPolicy
) -> None:
    brokers = Brokers(lambda address, body: ResponseCode.SUCCESS)
    original, broken = brokers.poll, [0]

    def poll(address: str, opaques: Iterable[int], timeout_s: float) -> dict[int, Command]:
        broken[0] += 1
        if broken[0] % 7 == 3:
            raise ConnectionLost(address, "broken on purpose")
        return original(address, opaques, timeout_s)

    monkeypatch.setattr(brokers, "poll", poll)
    assert run(monkeypatch, brokers, policy, {A: BODIES}).messages == 20
    assert sorted(set(brokers.stored)) == BODIES
    if policy is AT_LEAST_ONCE:
        assert list(dict.fromkeys(brokers.stored)) == BODIES


@policies
def test_bytes_in_flight_and_in_wait_are_bounded(monkeypatch: pytest.MonkeyPatch, policy: SendPolicy) -> None:
    brokers = Brokers(lambda address, body: ResponseCode.SUCCESS)
    large = [bytes(1 << 20)] * 30
    assert run(monkeypatch, brokers, policy, {A: large}).messages == 30
    assert brokers.most_in_flight == (1 if policy is AT_LEAST_ONCE else 8)


@policies
def test_only_sends_that_may_be_stored_are_named_before_they_are_repeated(
    monkeypatch: pytest.MonkeyPatch, policy: SendPolicy
) -> None:
    left = {b"busy": [ResponseCode.SYSTEM_BUSY], b"silent": [None]}

    def answer(address: str, body: bytes) -> int | None:
        waiting = left.get(body)
        return waiting.pop() if waiting else ResponseCode.SUCCESS

    brokers = Brokers(answer)
    queues = {MessageQueue("T", f"b{n}", 0): [body] for n, body in enumerate((b"busy", b"silent", b"plain"))}
    run(monkeypatch, brokers, policy, queues)
    assert sorted(brokers.stored) == [b"busy", b"plain", b"silent"]
    assert brokers.unsure == ["silent"]


def test_failed_messages_leave_a_broker_that_is_gone_and_rows_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, other = MessageQueue("T", "gone", 3), MessageQueue("T", "other", 1)

    def brokers() -> Brokers:
        made = Brokers(lambda address, body: None if address == "gone" else ResponseCode.SUCCESS)
        made.moves[gone] = other
        return made

    moving = brokers()
    run(monkeypatch, moving, WORK_RETRIES, {gone: [b"1", b"2"], other: [b"3"]})
    assert sorted(moving.stored) == [b"1", b"2", b"3"]
    assert moving.now < 5
    assert sorted(moving.unsure) == ["1", "2"]
    for policy in (AT_LEAST_ONCE, EXACTLY_ONCE):
        with pytest.raises(RequestTimeout):
            run(monkeypatch, brokers(), policy, {gone: [b"1"]}, retryTimeout="5s")


def test_no_move_prolongs_retry_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = MessageQueue("T", "one", 0), MessageQueue("T", "two", 0)
    brokers = Brokers(lambda address, body: None)
    brokers.moves |= {one: two, two: one}
    with pytest.raises(RequestTimeout):
        run(monkeypatch, brokers, WORK_RETRIES, {one: [b"1"]}, retryTimeout="10s")
    assert 10 <= brokers.now <= 13


def test_the_number_of_sends_is_bounded_where_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(lambda address, body: ResponseCode.SUCCESS)
    options = WriteOptions.parse({"nameserver": "h:1", "topic": "T"})
    made = Pipeline(options, cast(Any, brokers), cast(Any, brokers), WORK_RETRIES)
    queue = MessageQueue("T", "b", 0)
    for number in range(100):
        header = send_header(options, queue)
        made.add(Send(queue, RequestCode.SEND_MESSAGE_V2, header, b"%d" % number, 1))
        made.throttle(10)
    made.finish()
    assert len(brokers.stored) == 100
    assert brokers.most_in_flight == 10
