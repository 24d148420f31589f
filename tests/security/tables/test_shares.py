"""One user who takes all that there is: of each table, of what is parked and of what waits. They get their share and
are refused the rest with a code and a remark that names the setting, others go on, and what is over gives its room
back. ``HARD`` limits are reached by four or so entries of a user.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqspark.auth.gate import Audited
from mqspark.base.bounded import Ledger
from mqspark.base.shares import NOBODY, Holders, Shares
from mqspark.broker.config import BrokerConfig
from mqspark.broker.pop import acting_revival
from mqspark.broker.pull import held_pulls
from mqspark.broker.statictopic.peers import Question, Talk
from mqspark.message import TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE, decode_offset_id
from mqspark.protocol.codes import RequestCode as R
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.dispatch import Handler, dispatch, ok
from mqspark.protocol.session import Session
from mqspark.store.oldermessages import NotAtHand
from tests.support.invariants import validate
from tests.support.remoting import heartbeat_body, subscription, topic_fields
from tests.unit import pop_kit
from tests.unit.auth_kit import ROOT, SignedPeer, allow, authority
from tests.unit.broker.pop.test_poprevive import put_record
from tests.unit.broker.replication.test_acting import Pair
from tests.unit.broker_kit import Bench, Peer, pull_ext, send_ext
from tests.unit.pop_kit import Popped, ack_ext, batch_body, handed_out, pass_time, pop_ext

BUSY, FULL = ResponseCode.SYSTEM_BUSY, ResponseCode.POLLING_FULL
HARD = {
    "max_table_share_per_user": 1,
    "max_topics": 400,
    "max_subscription_groups": 400,
    "pull_thread_pool_queue_capacity": 400,
    "max_pop_polling_size": 400,
    "max_lite_subscription_count": 400,
    "max_offset_table_bytes": 320_000,
    "max_client_table_bytes": 600_000,
    "max_half_table_bytes": 220_000,
    "max_lock_table_bytes": 500_000,
    "max_waiting_bytes": 1_800_000,
    "max_delayed_messages_per_user": 4,
    "max_check_points_per_user": 4,
    "max_acknowledgements_per_user": 4,
    "auto_create_subscription_group": True,
}
RULES = ("Topic:* Pub,Sub,Create,Delete", "Group:* Sub,Create,Update,Delete")


class Greed(NamedTuple):
    """A broker with HARD limits, one who wants everything, and another user."""

    bench: Bench
    root: SignedPeer
    mallory: SignedPeer
    bob: SignedPeer
    audited: list[Audited]

    def shares(self, kind: str) -> Shares:
        (found,) = [each for each in self.bench.broker.shares if each.kind == kind]
        return found

    def again(self, who: SignedPeer) -> SignedPeer:
        """Another connection of the same user."""
        return SignedPeer(self.bench.peer(), "mallory" if who is self.mallory else "bob")


@pytest.fixture
def greed(tmp_path: Path) -> Iterator[Greed]:
    with greedy(tmp_path, {"enable_lmq": True, "enable_multi_dispatch": True}) as greed:
        yield greed


@contextmanager
def greedy(tmp_path: Path, store_settings: dict[str, Any], **settings: int) -> Iterator[Greed]:
    audited: list[Audited] = []
    bench = Bench(
        tmp_path,
        new_authority=lambda: authority(tmp_path / "auth", audited),
        store_settings=store_settings,
        **{**HARD, **settings},
    )
    root = SignedPeer(bench.peer(), *ROOT)
    users = []
    for name in ("mallory", "bob"):
        assert bench.broker.authority is not None
        allow(bench.broker.authority, name, *RULES)
        users.append(SignedPeer(bench.peer(), name))
    for topic in ("T", "U"):
        assert make_topic(root, topic).code == 0
    yield Greed(bench, root, *users, audited)
    validate(bench.broker)
    bench.close()


class ProxyPeer(SignedPeer):
    """A connection of a proxy, which serves one client of a user."""

    def __init__(self, bench: Bench, user: str) -> None:
        super().__init__(bench.peer(), *ROOT)
        self.signer = self.signer.on_behalf_of(user)


def test_users_behind_a_proxy_have_a_share_each(greed: Greed) -> None:
    mallory, bob = (ProxyPeer(greed.bench, name) for name in ("mallory", "bob"))
    count, refusal = until_refused(lambda number: heartbeat(mallory, f"m{number}", "G"))
    assert (count > 0, refusal.code) == (True, BUSY)
    assert (greed.audited[-1].user, greed.audited[-1].request) == ("mallory", "HOLD")
    assert heartbeat(bob, "b", "G").code == 0
    again = ProxyPeer(greed.bench, "mallory")
    assert heartbeat(again, "another", "G").code == BUSY, "all connections of a user count together"
    assert heartbeat(greed.mallory, "direct", "G").code == BUSY
    assert heartbeat(ProxyPeer(greed.bench, ROOT[0]), "r", "G").code == 0
    assert heartbeat(ProxyPeer(greed.bench, "nobody-known"), "n", "G").code == 0


def test_only_a_super_user_asks_on_behalf_of_others(greed: Greed) -> None:
    greed.mallory.signer = greed.mallory.signer.on_behalf_of("bob")
    until_refused(lambda number: heartbeat(greed.mallory, f"m{number}", "G"))
    assert heartbeat(greed.bob, "b", "G").code == 0
    assert greed.shares("clients").held("mallory")[1] > greed.shares("clients").held("bob")[1] > 0


def make_topic(who: SignedPeer, name: str, attributes: str = "") -> Command:
    return who.ask(R.UPDATE_AND_CREATE_TOPIC, topic_fields(name, 8, attributes=attributes))


def delete_topic(who: SignedPeer, name: str) -> Command:
    return who.ask(R.DELETE_TOPIC_IN_BROKER, {"topic": name})


def sent(who: SignedPeer, topic: str = "T", **properties: str) -> Command:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return who.ask(R.SEND_MESSAGE_V2, send_ext(topic, properties=text), b"x")


def committed(who: SignedPeer, group: str, topic: str = "T", queue_id: int = 0) -> Command:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": "0"}
    return who.ask(R.UPDATE_CONSUMER_OFFSET, ext)


def made_group(who: SignedPeer, name: str) -> Command:
    return who.ask(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps({"groupName": name}).encode())


def heartbeat(who: SignedPeer, client: str, *groups: str, topics: tuple[str, ...] = ()) -> Command:
    wanted = [subscription(topic) for topic in topics]
    return who.ask(R.HEART_BEAT, {}, heartbeat_body(client, dict.fromkeys(groups, wanted)))


def parked(who: SignedPeer, code: int, ext: dict[str, str]) -> Command | None:
    """None: the request waits. Otherwise its answer."""
    peer = who.peer
    peer.give(code, who.signer.signed(ext, b""))
    peer.core.turn()
    answers = peer.heard()
    return answers[0] if answers else None


def handled(greed: Greed, who: SignedPeer, handler: Handler, ext: dict[str, str]) -> Command | None:
    """What a handler answers to a request of a user; None: the request waits."""
    assert who.ask(R.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0, "whose connection it is"
    session, long_work = who.peer.session, greed.bench.broker.state.long_work
    commands = Connection().receive_data(encode_request(R.PULL_MESSAGE, 77, ext))
    dispatch({R.PULL_MESSAGE: handler}, session, commands, long_work)
    answers = who.peer.heard()
    return answers[0] if answers else None


def until_refused(ask: Callable[[int], Command | None]) -> tuple[int, Command]:
    """How many requests are allowed, and the first refusal."""
    for number in range(50):
        answer = ask(number)
        if answer is not None and answer.code != 0:
            return number, answer
    raise AssertionError("nothing is refused")


def is_named(answer: Command, code: int, setting: str, kind: str) -> bool:
    remark = answer.remark or ""
    return answer.code == code and setting in remark and f"{kind} of User:mallory" in remark


def test_topics(greed: Greed) -> None:
    count, refusal = until_refused(lambda number: make_topic(greed.mallory, f"m{number}"))
    assert (count, is_named(refusal, BUSY, "maxTableSharePerUser", "topics")) == (4, True), refusal.remark
    assert sent(greed.again(greed.mallory), "automatic").code == BUSY, "sends make topics as well"
    assert make_topic(greed.mallory, "m0").code == 0, "what is there may be changed"
    assert make_topic(greed.bob, "b0").code == 0
    assert [make_topic(greed.root, f"r{number}").code for number in range(6)] == [0] * 6
    assert greed.shares("topics").held("mallory")[0] == 4
    assert delete_topic(greed.root, "m0").code == 0, "whoever deletes it"
    assert make_topic(greed.mallory, "m5").code == 0
    for name in ("m1", "m2", "m3", "m5"):
        delete_topic(greed.root, name)
    assert greed.shares("topics").held("mallory") == (0, 0)


def test_groups(greed: Greed) -> None:
    count, refusal = until_refused(lambda number: made_group(greed.mallory, f"m{number}"))
    assert (count, is_named(refusal, BUSY, "maxTableSharePerUser", "groups")) == (4, True), refusal.remark
    assert greed.mallory.ask(R.PULL_MESSAGE, pull_ext(consumerGroup="m9")).code == BUSY
    assert made_group(greed.bob, "b").code == 0
    assert greed.root.ask(R.DELETE_SUBSCRIPTIONGROUP, {"groupName": "m0", "cleanOffset": "true"}).code == 0
    assert made_group(greed.mallory, "m9").code == 0


def test_offsets(greed: Greed) -> None:
    made_group(greed.root, "shared")
    for number in range(10):
        make_topic(greed.root, f"t{number}")
    count, refusal = until_refused(lambda number: committed(greed.mallory, "shared", f"t{number}"))
    assert 2 <= count <= 8
    assert is_named(refusal, BUSY, "maxTableSharePerUser", "offsets"), refusal.remark
    assert committed(greed.mallory, "shared", "t0").code == 0, "what is there goes on"
    assert committed(greed.mallory, "shared", f"t{count - 1}", 7).code in (0, BUSY)
    assert committed(greed.bob, "shared", "t9").code == 0, "and others begin"
    assert greed.mallory.ask(R.POP_MESSAGE, pop_ext(greed.bench, "t8", "shared")).code == BUSY
    greed.root.ask(R.DELETE_SUBSCRIPTIONGROUP, {"groupName": "shared", "cleanOffset": "true"})
    assert greed.shares("offsets").held("mallory") == (0, 0)
    made_group(greed.root, "shared")
    assert committed(greed.mallory, "shared", "t8").code == 0


def test_offsets_of_pulls_that_nobody_commits(greed: Greed) -> None:
    """How far a queue was served is a row of the same table, which is left out when there is no room."""
    made_group(greed.root, "G")
    for number in range(10):
        make_topic(greed.root, f"t{number}")
        sent(greed.root, f"t{number}")
        assert (
            greed.mallory.ask(R.PULL_MESSAGE, pull_ext(f"t{number}", consumerGroup="G", sysFlag="4")).code
            == 0
        )
    share = 0.01 * HARD["max_offset_table_bytes"]
    assert 0 < greed.shares("offsets").held("mallory")[1] <= share
    assert greed.shares("offsets").refused > 0
    assert committed(greed.bob, "G", "T").code == 0


def test_parked_pulls(greed: Greed) -> None:
    made_group(greed.root, "G")
    ext = pull_ext(consumerGroup="G", sysFlag="6")
    mallory = greed.mallory
    count, refusal = until_refused(lambda number: parked(mallory, R.PULL_MESSAGE, ext))
    assert (count, is_named(refusal, BUSY, "maxTableSharePerUser", "parkedPulls")) == (4, True), (
        refusal.remark
    )
    refused = parked(greed.again(mallory), R.PULL_MESSAGE, ext)
    assert refused is not None
    assert refused.code == BUSY, "connections do not multiply it"
    assert parked(greed.bob, R.PULL_MESSAGE, ext) is None
    assert [parked(greed.root, R.PULL_MESSAGE, ext) for _ in range(6)] == [None] * 6
    sent(SignedPeer(greed.bench.peer(), *ROOT))
    assert greed.shares("parkedPulls").held("mallory") == (0, 0), "they are answered"
    mallory.peer.heard()
    at_end = {**ext, "queueOffset": "1"}
    assert [parked(mallory, R.PULL_MESSAGE, at_end) for _ in range(4)] == [None] * 4
    mallory.peer.disconnect()
    greed.bench.run_for(16_000)
    assert greed.shares("parkedPulls").held("mallory") == (0, 0), "or their connection ends"


@pytest.mark.parametrize(
    ("code", "kind"), [(R.POP_MESSAGE, "parkedPops"), (R.NOTIFICATION, "parkedNotifications")]
)
def test_parked_pops_and_notifications(greed: Greed, code: int, kind: str) -> None:
    made_group(greed.root, "G")
    ext = pop_ext(greed.bench, group="G", pollTime="15000")

    def is_full(answer: Command | None) -> bool:
        return answer is not None and (answer.code == FULL or answer.ext.get("pollingFull") == "true")

    answers = [parked(greed.mallory, code, ext) for _ in range(6)]
    assert [answer is None for answer in answers] == [True] * 4 + [False] * 2
    refusal = answers[4]
    assert refusal is not None
    assert is_full(refusal)
    assert f"{kind} of User:mallory" in (refusal.remark or "")
    assert "maxTableSharePerUser" in (refusal.remark or "")
    assert is_full(parked(greed.again(greed.mallory), code, ext))
    assert parked(greed.bob, code, ext) is None
    greed.bench.run_for(16_000)
    assert greed.shares(kind).held("mallory") == (0, 0)
    later = pop_ext(greed.bench, group="G", pollTime="15000")
    greed.mallory.peer.heard()
    assert parked(greed.mallory, code, later) is None


def test_clients_and_subscriptions(greed: Greed) -> None:
    made_group(greed.root, "G")
    count, refusal = until_refused(lambda number: heartbeat(greed.mallory, f"m{number}", "G"))
    assert 2 <= count <= 8
    assert is_named(refusal, BUSY, "maxTableSharePerUser", "clients"), refusal.remark
    assert heartbeat(greed.mallory, "m0", "G").code == 0, "members stay"
    assert heartbeat(greed.bob, "b", "G", topics=("T", "U")).code == 0
    greed.mallory.peer.disconnect()
    while greed.bench.broker.work():
        pass
    assert greed.shares("clients").held("mallory") == (0, 0)
    mallory = greed.again(greed.mallory)
    topics = tuple(f"x{number}" for number in range(30))
    refusal = heartbeat(mallory, "m", "S", topics=topics)
    assert is_named(refusal, BUSY, "maxTableSharePerUser", "clients"), refusal.remark
    mallory.peer.disconnect()
    while greed.bench.broker.work():
        pass
    assert greed.shares("clients").held("mallory") == (0, 0)


def locked(who: SignedPeer, group: str, queue_id: int, *, unlock: bool = False) -> Command:
    queue = {"topic": "T", "brokerName": "b-a", "queueId": queue_id}
    body = {"consumerGroup": group, "clientId": f"client of {group}", "mqSet": [queue]}
    return who.ask(R.UNLOCK_BATCH_MQ if unlock else R.LOCK_BATCH_MQ, {}, json.dumps(body).encode())


def test_locks(greed: Greed) -> None:
    for group in ("GM", "GB"):
        made_group(greed.root, group)
    count, refusal = until_refused(lambda number: locked(greed.mallory, "GM", number))
    assert 2 <= count <= 7
    assert is_named(refusal, BUSY, "maxTableSharePerUser", "queueLocks"), refusal.remark
    assert locked(greed.again(greed.mallory), "GM", 0).code == 0, "what is locked is renewed"
    taken = json.loads(bytes(locked(greed.bob, "GB", 7).body))
    assert [each["queueId"] for each in taken["lockOKMQSet"]] == [7], "and others lock"
    assert locked(greed.mallory, "GM", 0, unlock=True).code == 0
    assert locked(greed.mallory, "GM", 6).code == 0
    greed.bench.run_for(70_000, step_ms=5_000)
    assert greed.shares("queueLocks").held("mallory") == (0, 0), "locks that nobody renews"
    assert locked(greed.mallory, "GM", 1).code == 0


def test_reads_of_an_archive(greed: Greed) -> None:
    greed.shares("waitingReads").limit_entries(400)
    waiting, is_there = greed.bench.broker.requests.waiting_reads, False

    def read(session: Session, command: Command) -> bytes:
        if not is_there:
            raise NotAtHand("chunk")
        return ok(command)

    (handler,) = waiting.wrap({R.PULL_MESSAGE: read}).values()
    ext = pull_ext(consumerGroup="G")
    count, refusal = until_refused(lambda number: handled(greed, greed.mallory, handler, ext))
    assert (count, is_named(refusal, BUSY, "maxTableSharePerUser", "waitingReads")) == (4, True)
    assert handled(greed, greed.bob, handler, ext) is None
    assert greed.shares("waitingReads").held("bob")[0] == 1
    is_there = True
    waiting.fetched("chunk")
    greed.bench.broker.turn()
    while greed.bench.broker.work():
        pass
    assert [answer.code for answer in greed.bob.peer.heard()] == [0]
    assert [answer.code for answer in greed.mallory.peer.heard()] == [0] * 4
    is_there = False
    assert handled(greed, greed.mallory, handler, ext) is None
    greed.bench.clock.advance(greed.bench.config.archive_read_timeout)
    waiting.expire()
    assert greed.shares("waitingReads").held("mallory") == (0, 0)


def test_requests_that_wait_for_other_brokers(greed: Greed) -> None:
    peers = greed.bench.broker.state.peers

    def ask(session: Session, command: Command) -> bytes | None:
        def talk() -> Talk:
            yield Question("b-b", R.GET_MAX_OFFSET, {"topic": "T"})
            return ok(command)

        return peers.talk(session, command, talk())

    count, refusal = until_refused(lambda number: handled(greed, greed.mallory, ask, {}))
    assert 2 <= count <= 5
    assert is_named(refusal, BUSY, "maxTableSharePerUser", "talksWithBrokers"), refusal.remark
    assert handled(greed, greed.bob, ask, {}) is None
    number, _ = peers.due()[-1]
    peers.failed(number, "the other broker is away")
    assert [answer.code for answer in greed.bob.peer.heard()] == [ResponseCode.SYSTEM_ERROR]
    greed.bench.clock.advance(greed.bench.config.forward_timeout)
    peers.expire()
    assert greed.shares("talksWithBrokers").held("mallory") == (0, 0)


def test_held_pulls_of_cold_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pulls, "MAX_HELD", 400)
    cold = {"access_message_in_memory_hot_ratio": 0, "cold_data_flow_control_enable": True}
    with greedy(tmp_path, cold, cg_cold_read_threshold=1) as greed:
        made_group(greed.root, "G")
        sent(greed.root)
        ext = pull_ext(consumerGroup="G")
        assert greed.mallory.ask(R.PULL_MESSAGE, ext).code == 0, "which is more than the group may read"
        answers = [parked(greed.mallory, R.PULL_MESSAGE, ext) for _ in range(5)]
        assert answers[:4] == [None] * 4
        assert answers[4] is not None
        assert answers[4].code == BUSY
        assert greed.shares("heldPulls").refused == 1
        assert parked(greed.bob, R.PULL_MESSAGE, ext) is None
        greed.bench.run_for(held_pulls.HOLD_MS, step_ms=1_000)
        assert greed.shares("heldPulls").held("mallory") == (0, 0)
        assert [answer.code for answer in greed.bob.peer.heard()] == [0]


def half(who: SignedPeer, unique_id: str) -> Command:
    return sent(who, TRAN_MSG="true", PGROUP="PG", UNIQ_KEY=unique_id)


def end(who: SignedPeer, prepared: Command, decision: int, offset: int) -> Command:
    _, _, position = decode_offset_id(prepared.ext["msgId"])
    return who.ask(
        R.END_TRANSACTION,
        {
            "topic": "T", "producerGroup": "PG", "tranStateTableOffset": str(offset),
            "commitLogOffset": str(position), "commitOrRollback": str(decision), "fromTransactionCheck": "false",
            "msgId": prepared.ext.get("transactionId", ""),
        },
    )  # fmt: skip


@pytest.mark.parametrize("ids", ["each its own", "all the same"])
def test_half_messages(greed: Greed, ids: str) -> None:
    prepared: list[Command] = []

    def prepare(number: int) -> Command:
        answer = half(greed.mallory, f"id{number}" if ids == "each its own" else "id")
        prepared.append(answer)
        return answer

    count, refusal = until_refused(prepare)
    assert 2 <= count <= 8
    assert is_named(refusal, BUSY, "maxTableSharePerUser", "halfMessages"), refusal.remark
    assert half(greed.bob, "b").code == 0
    assert half(greed.root, "r").code == 0
    assert sent(greed.mallory).code == 0, "ordinary messages are none"
    assert end(greed.mallory, prepared[0], TRANSACTION_COMMIT_TYPE, 0).code == 0
    assert end(greed.mallory, prepared[1], TRANSACTION_ROLLBACK_TYPE, 1).code == 0
    assert [half(greed.mallory, f"later{number}").code for number in range(3)] == [0, 0, BUSY]
    validate(greed.bench.broker)


def test_half_messages_that_are_given_up(greed: Greed) -> None:
    until_refused(lambda number: half(greed.mallory, f"id{number}"))
    greed.bench.config.transaction_check_max = 1
    for _ in range(4):
        greed.bench.clock.advance(40_000)
        greed.bench.run_for(1_000)
    assert greed.shares("halfMessages").held("mallory") == (0, 0)
    assert half(greed.mallory, "later").code == 0


@pytest.mark.parametrize(
    "delayed",
    [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "10"}, {"TIMER_DELIVER_MS": "1700000010000"}],
    ids=lambda each: min(each),
)
def test_delayed_messages(greed: Greed, delayed: dict[str, str]) -> None:
    count, refusal = until_refused(lambda number: sent(greed.mallory, **delayed))
    assert count == 4
    assert is_named(refusal, BUSY, "maxDelayedMessagesPerUser", "delayedMessages"), refusal.remark
    assert sent(greed.bob, **delayed).code == 0
    assert sent(greed.mallory).code == 0
    greed.bench.run_for(15_000, step_ms=5_000)
    greed.bench.clock.advance(120_000)
    assert sent(greed.mallory, DELAY="3").code == 0, "those before are delivered"


def test_delayed_replies(greed: Greed) -> None:
    for _ in range(10):
        greed.mallory.ask(R.SEND_REPLY_MESSAGE_V2, send_ext(properties="DELAY\x013\x02"), b"x")
    assert len(greed.bench.records("SCHEDULE_TOPIC_XXXX", 2)) == 4
    assert is_named(sent(greed.mallory, DELAY="3"), BUSY, "maxDelayedMessagesPerUser", "delayedMessages")
    assert sent(greed.bob, DELAY="3").code == 0


def test_a_delay_that_begins_with_a_commit(greed: Greed) -> None:
    for _ in range(3):
        assert sent(greed.mallory, DELAY="3").code == 0
    prepared = [
        sent(greed.mallory, TRAN_MSG="true", PGROUP="PG", UNIQ_KEY=f"h{number}", DELAY="3")
        for number in range(2)
    ]
    assert [answer.code for answer in prepared] == [0, 0]
    first, second = (
        end(greed.mallory, each, TRANSACTION_COMMIT_TYPE, number) for number, each in enumerate(prepared)
    )
    assert first.code == 0
    assert "maxDelayedMessagesPerUser" in (second.remark or "")


def test_check_points(greed: Greed) -> None:
    made_group(greed.root, "G")
    for _ in range(8):
        sent(greed.root)
        sent(greed.root, "U")

    def popped(who: SignedPeer, topic: str = "T") -> Command:
        return who.ask(R.POP_MESSAGE, pop_ext(greed.bench, topic, "G", maxMsgNums="1"))

    count, refusal = until_refused(lambda number: popped(greed.mallory))
    assert count == 4
    assert is_named(refusal, BUSY, "maxCheckPointsPerUser", "checkPoints"), refusal.remark
    assert popped(greed.bob).code == 0, "the next message is not lost"
    greed.bench.clock.advance(30 * 60_000)
    assert popped(greed.mallory, "U").code == 0


def test_acknowledgements(greed: Greed) -> None:
    """Receipts are not signed: what is acknowledged need not have been handed out."""
    made_group(greed.root, "G")
    for _ in range(3):
        sent(greed.root)
    held = greed.shares("acknowledgements").held

    def popped(who: SignedPeer) -> Popped:
        (one,) = handed_out(who.ask(R.POP_MESSAGE, pop_ext(greed.bench, "T", "G", maxMsgNums="1")), "T", "G")
        return one

    real, bobs = popped(greed.mallory), popped(greed.bob)

    def forged(number: int) -> Popped:
        receipt = real.receipt
        return real._replace(receipt=receipt._replace(pop_time_ms=receipt.pop_time_ms + number))

    count, refusal = until_refused(lambda n: greed.mallory.ask(R.ACK_MESSAGE, ack_ext(forged(n), "G")))
    assert (count, held("mallory")) == (4, (4, 0))
    assert is_named(refusal, BUSY, "maxAcknowledgementsPerUser", "acknowledgements"), refusal.remark
    mallory = greed.again(greed.mallory)
    batch = batch_body([forged(9)], "G")
    assert mallory.ask(R.BATCH_ACK_MESSAGE, {}, batch).code == BUSY
    check_points = greed.shares("checkPoints").held("mallory")
    later = ack_ext(forged(9), "G", invisibleTime="30000")
    assert mallory.ask(R.CHANGE_MESSAGE_INVISIBLETIME, later).code == BUSY
    assert greed.shares("checkPoints").held("mallory") == check_points, "nothing is half done"
    assert held("mallory") == (4, 0)
    assert greed.bob.ask(R.ACK_MESSAGE, ack_ext(bobs, "G")).code == 0
    greed.bench.clock.advance(120_000)
    assert mallory.ask(R.ACK_MESSAGE, ack_ext(forged(120_000), "G")).code == 0, "the others are over"
    assert held("mallory") == (1, 0)
    far = forged(1 << 50)
    assert mallory.ask(R.ACK_MESSAGE, ack_ext(far, "G")).code != 0
    assert held("mallory") == (1, 0), "what could not be stored holds nothing"


def test_acknowledgements_of_one_turn(greed: Greed) -> None:
    """Those of one check point are one record for each 64 of them."""
    made_group(greed.root, "G")
    for _ in range(70):
        sent(greed.root)
    (one,) = handed_out(
        greed.mallory.ask(R.POP_MESSAGE, pop_ext(greed.bench, "T", "G", maxMsgNums="1")), "T", "G"
    )
    many = [one._replace(receipt=one.receipt._replace(offset=offset)) for offset in range(65)]
    assert greed.mallory.ask(R.BATCH_ACK_MESSAGE, {}, batch_body(many, "G")).code == 0
    assert greed.shares("acknowledgements").held("mallory") == (2, 0)
    for each in many[:64]:
        ext = greed.mallory.signer.signed(ack_ext(each, "G"), b"")
        greed.mallory.peer.give(R.ACK_MESSAGE, ext)
    greed.bench.broker.turn()
    assert {answer.code for answer in greed.mallory.peer.heard()} == {0}
    assert greed.shares("acknowledgements").held("mallory") == (3, 0)


def test_acknowledgements_without_a_check_point(greed: Greed) -> None:
    """They wait a moment for it, in a table in which one user's leave room for those of others."""
    bench = greed.bench
    greed.shares("revivals").limit_entries(400)
    for who, group in ((greed.mallory, "m"), (greed.mallory, "m2"), (greed.bob, "b"), (greed.root, "r")):
        made_group(who, group)
    sent(greed.root)
    bench.broker.state.offsets.commit("b", "T", 0, 1)
    pass_time(bench, 1_000)
    now_ms = bench.clock.now_ms()

    def put(tag: str, group: str, popped_ms: int, **more: object) -> None:
        key = {"bn": "b-a", "c": group, "pt": popped_ms, "q": 0, "so": 0, "t": "T"}
        put_record(bench, tag, {**key, **more})

    for number in range(10):
        for group in ("m", "m2", "r", "unknown"):
            put("ack", group, now_ms - 59_000 - number, ao=0)
    pass_time(bench, 400, step_ms=200)
    held = greed.shares("revivals").held
    assert [held(name)[0] for name in ("mallory", "Group:m", "Group:r", "Group:unknown")] == [4, 0, 4, 0]
    assert greed.shares("revivals").refused > 0
    put("ack", "b", now_ms - 59_000, ao=0)
    put("ck", "b", now_ms - 59_000, bm=0, d=[0], n=1, it=60_000, ro=0, reviveTime=now_ms + 1_000)
    pass_time(bench, 10_000)
    assert popped_bodies(greed, "b") == [], "another user's early acknowledgement counts"
    put("ack", "b", now_ms, ao=0)
    pass_time(bench, 1_000)
    assert held("mallory")[0] == 0, "and theirs have not been waited for any longer"


def popped_bodies(greed: Greed, group: str) -> list[bytes]:
    answer = greed.root.ask(R.POP_MESSAGE, pop_ext(greed.bench, "T", group))
    return [each.body for each in handed_out(answer, "T", group)]


def test_lite_subscriptions(greed: Greed) -> None:
    assert make_topic(greed.root, "P", "+message.type=LITE").code == 0
    for group in ("GM", "GB"):
        body = json.dumps({"groupName": group, "attributes": {"+lite.bind.topic": "P"}}).encode()
        assert greed.root.ask(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0

    def subscribed(
        who: SignedPeer, client: str, group: str, *names: str, action: str = "PARTIAL_ADD"
    ) -> Command:
        entry = {
            "action": action, "clientId": client, "group": group, "topic": "P", "liteTopicSet": list(names),
        }  # fmt: skip
        return who.ask(R.LITE_SUBSCRIPTION_CTL, {}, json.dumps({"subscriptionSet": [entry]}).encode())

    count, refusal = until_refused(lambda number: subscribed(greed.mallory, "m", "GM", f"l{number}"))
    assert count == 3, "and the client itself"
    assert is_named(refusal, BUSY, "maxTableSharePerUser", "liteSubscriptions"), refusal.remark
    assert subscribed(greed.bob, "b", "GB", "l0").code == 0
    assert subscribed(greed.mallory, "m", "GM", "l0", action="PARTIAL_REMOVE").code == 0
    assert subscribed(greed.mallory, "m", "GM", "l7").code == 0
    assert subscribed(greed.mallory, "m", "GM", action="COMPLETE_REMOVE").code == 0
    assert greed.shares("liteSubscriptions").held("mallory") == (0, 0)


def test_all_tables_of_a_user_together(greed: Greed) -> None:
    """Somebody who fills one table after the other leaves room in all of them."""
    config = greed.bench.config
    config.max_table_share_per_user, config.max_tables_bytes = 10, 60_000
    made_group(greed.root, "G")
    _, refusal = until_refused(lambda number: make_topic(greed.mallory, f"m{number}"))
    assert "with all other tables, of User:mallory" in (refusal.remark or "")
    assert "maxTableSharePerUser" in (refusal.remark or "")
    assert committed(greed.mallory, "G").code == BUSY
    assert committed(greed.bob, "G").code == 0
    config.max_table_share_per_user = 0
    assert committed(greed.mallory, "G", "U").code == 0, "0: no limit"


def test_refusals_are_audited_and_counted_by_kind(greed: Greed) -> None:
    before = len(greed.audited)
    until_refused(lambda number: make_topic(greed.mallory, f"m{number}"))
    last = [each for each in greed.audited[before:] if not each.allowed]
    assert [(each.user, each.request, each.resources) for each in last] == [("mallory", "HOLD", ("topics",))]
    assert "maxTableSharePerUser" in last[0].reason
    assert last[0].peer.startswith("127.0.0.1:")
    assert greed.shares("topics").refused == 1
    gate = greed.bench.broker.gate
    assert gate is not None
    assert gate.decisions["limited"] == 1


def test_what_a_start_finds_is_nobodys(greed: Greed) -> None:
    until_refused(lambda number: make_topic(greed.mallory, f"m{number}"))
    made_group(greed.mallory, "mg")
    assert committed(greed.mallory, "mg", "m0").code == 0
    prepared = half(greed.mallory, "h")
    assert sent(greed.mallory, DELAY="3").code == 0
    greed.bench.run_jobs()
    greed.bench.reopen()
    mallory, root = SignedPeer(greed.bench.peer(), "mallory"), SignedPeer(greed.bench.peer(), *ROOT)
    assert [
        greed.shares(kind).held("mallory") for kind in ("topics", "groups", "offsets", "halfMessages")
    ] == [(0, 0)] * 4
    assert committed(mallory, "mg", "m0", 1).code == 0
    assert end(mallory, prepared, TRANSACTION_COMMIT_TYPE, 0).code == 0
    assert make_topic(mallory, "later").code == 0
    for name in ("m0", "m1", "later"):
        assert delete_topic(root, name).code == 0
    assert root.ask(R.DELETE_SUBSCRIPTIONGROUP, {"groupName": "mg", "cleanOffset": "true"}).code == 0
    assert [greed.shares(kind).held("mallory") for kind in ("topics", "groups", "offsets")] == [(0, 0)] * 3


def test_without_users_nobody_is_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, **{**HARD, "max_topics": 100})
    try:
        peer = bench.peer()
        for number in range(10):
            answer = peer.ask(R.SEND_MESSAGE_V2, send_ext(f"t{number}", properties="DELAY\x013\x02"), b"x")
            assert answer.code == 0, answer.remark
        assert bench.broker.shares == []
        assert bench.broker.state.delayed.held(NOBODY) == (0, 0)
    finally:
        bench.close()


def test_the_share_leaves_room_for_others_by_default() -> None:
    config = BrokerConfig()
    assert config.max_table_share_per_user * 3 <= 100
    assert config.max_topics * config.max_table_share_per_user // 100 >= 10_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, max_table_share_per_user=1)
    yield pair
    validate(pair.slave.broker)


def test_acknowledgements_at_an_acting_slave(pair: Pair) -> None:
    """Those of what the dead master handed out wait for its check points, which may never come."""
    pop_kit.put(pair.master, "a", "b")
    real, other = handed_out(
        pair.master.peer().ask(R.POP_MESSAGE, pop_ext(pair.master, invisibleTime="60000"))
    )
    pair.lose_master()
    mallory, bob = pair.slave.peer(), pair.slave.peer()
    users = {id(mallory.session): "mallory", id(bob.session): "bob"}
    refused: list[tuple[str, str]] = []
    holders = Holders(
        lambda session: users[id(session)],
        lambda session, kind, remark: refused.append((users[id(session)], kind)),
        lambda: 1,
        lambda: 1 << 30,
    )
    timed, (kept,) = (
        pair.slave.broker.state.acknowledgements,
        [
            table.shares
            for table in pair.slave.broker.tables
            if isinstance(table, Ledger) and table.name == "actingAcknowledgements"
        ],
    )
    kept.limit_entries(400)
    timed.holders = kept.holders = holders

    def forged(number: int) -> Popped:
        receipt = real.receipt
        return real._replace(receipt=receipt._replace(pop_time_ms=receipt.pop_time_ms + number))

    def acked(peer: Peer, one: Popped) -> Command:
        return peer.ask(R.ACK_MESSAGE, ack_ext(one))

    count, refusal = until_refused(lambda number: acked(mallory, forged(number + 1)))
    assert (count, refusal.code, timed.held("mallory")) == (4, BUSY, (4, 0))
    assert is_named(refusal, BUSY, "maxTableSharePerUser", "actingAcknowledgements"), refusal.remark
    assert refused == [("mallory", "actingAcknowledgements")]
    assert acked(mallory, forged(2)).code == 0, "what is known needs no more room"
    far = forged(1 << 50)
    assert acked(bob, far).code == ResponseCode.SYSTEM_ERROR, "it would stay for ever"
    # In one turn: what one user may not do costs another nothing.
    mallory.give(R.ACK_MESSAGE, ack_ext(forged(9)))
    bob.give(R.ACK_MESSAGE, ack_ext(other))
    pair.slave.broker.turn()
    assert ([each.code for each in mallory.heard()], [each.code for each in bob.heard()]) == ([BUSY], [0])
    pair.slave.config.max_acknowledgements_per_user = timed.held("bob")[0]
    refusal = acked(bob, forged(10))
    assert refusal.code == BUSY
    assert "maxAcknowledgementsPerUser" in (refusal.remark or "")
    assert refused[-1] == ("bob", "acknowledgements")
    assert kept.held("mallory")[0] == 4
    pair.slave.clock.advance(60_000 + acting_revival.FORGOTTEN_MS + 2_000)
    pair.slave.config.max_acknowledgements_per_user = 4
    assert acked(mallory, forged(200_000)).code == 0, "the others are over"
    assert kept.held("mallory")[0] == timed.held("mallory")[0] == 1
