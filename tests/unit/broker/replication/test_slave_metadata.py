"""What a slave copies beside the log, and what it makes of it once it is a master."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark.broker.config import BrokerRole
from mqspark.broker.replication.metadata import Metadata, Request, TableRound, adopt_queues
from mqspark.broker.replication.tablenotices import is_table_notice
from mqspark.broker.tables.consumer_offsets import FOLLOWED_AT_ONCE as FOLLOWED_OFFSETS
from mqspark.broker.tables.consumer_offsets import NOT_FOUND
from mqspark.broker.tables.followed import FOLLOWED_AT_ONCE, followed
from mqspark.errors import ProtocolError, TableFull
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.connection import Connection
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.savedtables import SavedTable
from tests.support.remoting import topic_fields
from tests.unit.broker.replication.test_follower import STORE, connected, make_master, make_slave, pieces
from tests.unit.broker_kit import SEND, Bench, expire_segments, send_ext
from tests.unit.static_kit import TOPIC, mapping, part

GROUP = {"groupName": "G", "retryQueueNums": 3}


def metadata_of(slave: Bench) -> Metadata:
    assert slave.broker.role.metadata is not None
    return slave.broker.role.metadata


def next_request(requests: TableRound[None], answer: Command | None = None) -> Request:
    """What a round asks next; between its slices nobody else has to be served."""
    request = next(requests) if answer is None else requests.send(answer)
    while request is None:
        request = next(requests)
    return request


def one_round(
    master: Bench, slave: Bench, change: Callable[[Request, Command], None] = lambda *_: None
) -> list[int]:
    """Let the slave ask the master once; the codes that it asked."""
    peer, asked = master.peer(), list[int]()
    requests = metadata_of(slave).read()
    try:
        request = next_request(requests)
        while True:
            asked.append(request.code)
            answer = peer.ask(request.code, request.ext)
            change(request, answer)
            request = next_request(requests, answer)
    except StopIteration:
        return asked


def copy_log(master: Bench, slave: Bench) -> None:
    with connected(master, slave) as link:
        link.carry(pieces(1))


def names(bench: Bench) -> set[str]:
    return {topic.name for topic in bench.broker.state.topics}


def put_topic(master: Bench, name: str, queues: int = 2) -> None:
    assert master.peer().ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name, queues)).code == 0


def test_nothing_is_copied_from_a_broker_that_is_a_slave_itself(master: Bench, slave: Bench) -> None:
    """A master that lost its disk comes back as one, with no topics, and at the address that is known."""
    put_topic(master, "Orders")
    one_round(master, slave)
    master.broker.state.topics.remove("Orders")
    master.broker.state.config.broker_role = BrokerRole.SLAVE
    with pytest.raises(ProtocolError, match="is a slave"):
        one_round(master, slave)
    assert "Orders" in names(slave)


def test_a_slave_has_its_masters_topics_and_groups(master: Bench, slave: Bench) -> None:
    put_topic(master, "Orders")
    state = master.broker.state
    group = state.subscriptions.find("G", master.peer().session)
    assert group is not None
    state.subscriptions.forbid_read("G", "Orders", True)
    one_round(master, slave)
    copied = slave.broker.state
    assert names(slave) == names(master)
    assert copied.topics.data_version == state.topics.data_version
    assert list(copied.subscriptions.names()) == list(state.subscriptions.names())
    assert copied.subscriptions.is_read_forbidden("G", "Orders")
    generation = copied.topics.generation
    one_round(master, slave)
    assert copied.topics.generation == generation, (
        "nothing has changed, so nothing is saved or registered again"
    )
    assert master.peer().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"}).code == 0
    state.subscriptions.remove("G")
    one_round(master, slave)
    assert "Orders" not in names(slave)
    assert "G" not in copied.subscriptions.names()
    slave.run_jobs()
    slave.close()
    slave.open()
    assert names(slave) == names(master)


def test_a_slave_gets_what_a_save_wrote_before_its_master_was_killed(master: Bench, slave: Bench) -> None:
    """A save writes each row as it is then, under the version of its beginning, which the slave has already."""
    put_topic(master, "Orders")
    put_topic(master, "Gone")
    peer = master.peer()
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(GROUP)).code == 0
    one_round(master, slave)
    state = master.broker.state
    saves = [
        SavedTable(table, ConfigFile(master.store.paths.config / name)).job()
        for table, name in ((state.topics, "topics.json"), (state.subscriptions, "subscriptionGroup.json"))
    ]
    state.topics.put(TopicConfig(topic_name="Orders", read_queue_nums=7, write_queue_nums=7))
    state.topics.remove("Gone")
    state.subscriptions.remove("G")
    for save in saves:
        save.run()
    master.crash()
    one_round(master, slave)
    restarted, copied = master.broker.state, slave.broker.state
    assert [topic.config for topic in copied.topics] == [topic.config for topic in restarted.topics]
    assert "Gone" not in names(slave)
    assert "G" not in copied.subscriptions
    assert list(copied.subscriptions) == list(restarted.subscriptions)


def test_a_slave_has_its_masters_static_topics(master: Bench, slave: Bench) -> None:
    name = master.config.broker_name
    body = encode_body(mapping(name, {0: [part(name, 0), part("other", 10_000, gen=1)]}))
    master.peer().give(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, topic_fields(TOPIC), body)
    master.broker.turn()
    one_round(master, slave)
    copied = slave.broker.state.mappings
    assert copied.details() == master.broker.state.mappings.details()
    assert list(copied.table) == [TOPIC]
    refused = slave.peer().ask(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, topic_fields(TOPIC), body)
    assert (refused.code, "from slave broker" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    slave.reopen()
    assert list(slave.broker.state.mappings.table) == [TOPIC]
    master.peer().give(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    while master.broker.work():
        pass
    one_round(master, slave)
    assert not slave.broker.state.mappings.table


def test_a_slave_is_told_of_changes_by_operators(master: Bench, slave: Bench) -> None:
    peer = master.peer()
    requests = metadata_of(slave).read()
    request = next(requests)
    with contextlib.suppress(StopIteration):
        while True:
            request = requests.send(peer.ask(request.code, request.ext))
    other = master.peer()
    assert other.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {}).code == 0
    assert not peer.session.out
    put_topic(master, "Orders")
    assert not other.session.out, "a slave of RocketMQ does not ask for it"
    (notice,) = Connection().receive_data(b"".join(peer.session.take()))
    assert is_table_notice(notice)
    assert notice.is_oneway
    peer.session.close()
    put_topic(master, "More")
    assert not peer.session.out


def test_progress_at_a_place_of_another_masters_log_is_not_taken_over(master: Bench, slave: Bench) -> None:
    """The other master's log was longer, so its progress would never be due, and that of the next one not taken."""
    metadata = metadata_of(slave)

    def commit(offset: int) -> None:
        ext = {"topic": "Orders", "consumerGroup": "G", "queueId": "0", "commitOffset": str(offset)}
        assert master.peer().ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext).code == 0

    def known() -> int:
        return slave.broker.state.offsets.query("G", "Orders", 0)

    put_topic(master, "Orders")
    assert master.broker.state.subscriptions.find("G", master.peer().session) is not None
    assert master.peer().ask(SEND, send_ext("Orders", 0), b"only here").code == 0
    commit(1)
    one_round(master, slave)
    assert (known(), metadata.copied_ms) == (NOT_FOUND, None)
    rounds = metadata.read()
    asked = next_request(rounds)
    metadata.begin()
    copy_log(master, slave)
    metadata.apply()
    assert known() == NOT_FOUND
    try:
        while True:
            asked = next_request(rounds, master.peer().ask(asked.code, asked.ext))
    except StopIteration:
        pass
    assert known() == NOT_FOUND, "the round began before the connection"
    commit(1)
    one_round(master, slave)
    assert known() == 1
    assert metadata.is_fresh


def test_progress_is_copied_anew_after_the_log_was_taken_back(master: Bench, slave: Bench) -> None:
    """It counts messages as delivered that are gone: with it, the slave may not be counted in."""
    metadata, store = metadata_of(slave), slave.broker.store
    for body in (b"kept", b"gone"):
        assert master.peer().ask(SEND, send_ext("Orders", 0), body).code == 0
    copy_log(master, slave)
    one_round(master, slave)
    metadata.begin()
    assert metadata.is_fresh
    first = store.copy.last_whole_record(0, store.log.position - 1)
    assert first
    store.copy.cut_back(first)
    slave.flush()
    slave.run_jobs()
    assert store.log.position == first
    metadata.begin()
    assert not metadata.is_fresh
    copy_log(master, slave)
    assert not metadata.is_fresh
    one_round(master, slave)
    assert metadata.is_fresh


def test_a_new_master_has_the_topics_of_messages_that_were_copied_faster(master: Bench, slave: Bench) -> None:
    peer = master.peer()

    def send(topic: str, queue_id: int) -> None:
        assert peer.ask(SEND, send_ext(topic, queue_id), b"x").code == 0

    for name in ("Kept", "Gone"):
        put_topic(master, name, queues=2)
        send(name, 1)
    copy_log(master, slave)
    assert metadata_of(slave).topics_known_at is None
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"}).code == 0
    one_round(master, slave)
    assert metadata_of(slave).topics_known_at == slave.store.log.position
    put_topic(master, "Young", queues=3)
    put_topic(master, "Kept", queues=5)
    send("Young", 2)
    send("Kept", 4)
    copy_log(master, slave)

    topics, known_at = slave.broker.state.topics, metadata_of(slave).topics_known_at
    assert known_at is not None
    adopt_queues(topics, slave.store, known_at)
    assert names(slave) - names(master) == set()
    found = {name: topics.get(name) for name in ("Young", "Kept", "Gone")}
    assert {
        name: topic and (topic.read_queue_nums, topic.write_queue_nums) for name, topic in found.items()
    } == {
        "Young": (3, 3),
        "Kept": (5, 5),
        "Gone": None,
    }


@pytest.mark.parametrize("has_pages", [True, False])
def test_large_tables_come_in_pages(tmp_path: Path, has_pages: bool) -> None:
    master, slave = make_master(tmp_path / "m", split_metadata_size=7), make_slave(tmp_path / "s")
    for number in range(40):
        put_topic(master, f"T{number}")
    asked: list[int] = []

    def ancient(request: Request, answer: Command) -> None:
        """As a master before RocketMQ 5.4 would answer."""
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG and not has_pages:
            whole = master.peer().ask(request.code)
            answer.body = whole.body
            answer.ext.clear()

    asked = one_round(master, slave, ancient)
    assert names(slave) == names(master)
    pages = asked.count(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert pages == (-(-len(names(master)) // 7) if has_pages else 1)
    assert one_round(master, slave, ancient).count(RequestCode.GET_ALL_TOPIC_CONFIG) == 1
    assert names(slave) == names(master)


def test_a_table_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    master, slave = make_master(tmp_path / "m", split_metadata_size=5), make_slave(tmp_path / "s")
    for number in range(20):
        put_topic(master, f"T{number}")
    changed: list[str] = []

    def change(request: Request, answer: Command) -> None:
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG and len(changed) < 3:
            changed.append(f"A{len(changed)}")
            put_topic(master, changed[-1])

    one_round(master, slave, change)
    assert names(slave) == names(master)
    assert len(changed) == 3


def commit(bench: Bench, offset: int) -> None:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
    assert bench.peer().ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext).code == 0


def test_large_tables_are_taken_over_in_slices(master: Bench, slave: Bench) -> None:
    """The slave copies the log meanwhile, and the producers of a synchronous master wait for that."""
    topics, offsets = master.broker.state.topics, master.broker.state.offsets
    for number in range(600):
        topics.put(TopicConfig(topic_name=f"T{number:04d}"))
        for queue_id in range(8):
            offsets.commit(f"G{number:04d}", f"T{number:04d}", queue_id, number)
    peer, requests = master.peer(), metadata_of(slave).read()
    copied = slave.broker.state
    most_topics = most_offsets = 0
    request: Request | None = next(requests)
    with contextlib.suppress(StopIteration):
        while True:
            before = len(copied.topics), offsets_of(slave)
            answer = None if request is None else peer.ask(request.code, request.ext)
            request = next(requests) if answer is None else requests.send(answer)
            most_topics = max(most_topics, len(copied.topics) - before[0])
            most_offsets = max(most_offsets, offsets_of(slave) - before[1])
    assert names(slave) == names(master)
    assert offsets_of(slave) == 4_800
    assert 0 < most_topics <= FOLLOWED_AT_ONCE
    assert 0 < most_offsets <= FOLLOWED_OFFSETS + 8


def test_names_that_a_master_lacks_are_removed_in_slices() -> None:
    there = {f"T{number:03d}" for number in range(200)}
    work = followed([tuple(there)], {"T000": 0}, there.remove, lambda some: None)
    left = [len(there) for _ in work]
    assert left == [136, 72, 8]
    assert there == {"T000"}


def test_progress_that_is_taken_over_ends_with_its_connection(master: Bench, slave: Bench) -> None:
    assert master.peer().ask(SEND, send_ext(), b"a").code == 0
    for number in range(600):
        for queue_id in range(8):
            master.broker.state.offsets.commit(f"G{number:04d}", "T", queue_id, 0)
    one_round(master, slave)
    assert offsets_of(slave) == 0, "the log has not come so far"
    copy_log(master, slave)
    metadata = metadata_of(slave)
    metadata.apply()
    begun = offsets_of(slave)
    assert 0 < begun < 4_800
    metadata.begin()
    while slave.broker.work():
        pass
    assert offsets_of(slave) == begun
    assert metadata.copied_ms is None
    one_round(master, slave)
    assert offsets_of(slave) == 4_800
    assert metadata.copied_ms is not None


def offsets_of(bench: Bench) -> int:
    offsets = bench.broker.state.offsets
    return sum(len(offsets.queues(group, topic)) for topic, group in offsets.pairs())


def test_progress_never_runs_ahead_of_the_log(master: Bench, slave: Bench) -> None:
    for number in range(5):
        assert master.peer().ask(SEND, send_ext(), b"%d" % number).code == 0
    master.broker.state.subscriptions.find("G", master.peer().session)
    commit(master, 3)
    one_round(master, slave)
    offsets = slave.broker.state.offsets
    assert offsets.query("G", "T", 0) == -1
    copy_log(master, slave)
    metadata_of(slave).apply()
    assert offsets.query("G", "T", 0) == 3
    assert offsets.data_version == master.broker.state.offsets.data_version
    commit(master, 4)
    one_round(master, slave)
    assert offsets.query("G", "T", 0) == 4
    generation = offsets.generation
    one_round(master, slave)
    assert offsets.generation == generation


def promote(slave: Bench) -> None:
    slave.close()
    slave.settings.update(broker_role=BrokerRole.ASYNC_MASTER, broker_id=0)
    slave.open()


def test_a_promoted_slave_delivers_what_waits_and_nothing_twice(master: Bench, slave: Bench) -> None:
    peer = master.peer()
    start = master.clock.now_ms()
    for seconds in (5, 60):
        at = f"TIMER_DELIVER_MS\x01{start + 1_000 * seconds}\x02"
        assert peer.ask(SEND, send_ext(properties=at), b"timer %d" % seconds).code == 0
    assert peer.ask(SEND, send_ext(properties="DELAY\x011\x02"), b"level 1").code == 0
    assert peer.ask(SEND, send_ext(properties="DELAY\x014\x02"), b"level 4").code == 0
    master.run_for(10_000)
    master.flush()
    master.run_jobs()
    early = [one.body for one in master.records("T")]
    assert sorted(early) == [b"level 1", b"timer 5"]
    copy_log(master, slave)
    slave.clock.advance(10_000)
    one_round(master, slave)
    slave.run_jobs()
    promote(slave)
    assert [one.body for one in slave.records("T")] == early
    slave.run_for(60_000)
    assert sorted(one.body for one in slave.records("T")) == [b"level 1", b"level 4", b"timer 5", b"timer 60"]


def test_a_demoted_master_forgets_its_wheel(master: Bench) -> None:
    at = f"TIMER_DELIVER_MS\x01{master.clock.now_ms() + 60_000}\x02"
    assert master.peer().ask(SEND, send_ext(properties=at), b"t").code == 0
    master.run_for(3_000)
    master.close()
    assert (master.directory / "timerwheel").exists()
    master.settings.update(broker_role=BrokerRole.SLAVE, broker_id=1)
    master.open()
    assert not (master.directory / "timerwheel").exists()
    promote(master)
    master.run_for(70_000)
    assert [one.body for one in master.records("T")] == [b"t"]


def test_a_master_that_talks_nonsense_changes_nothing(master: Bench, slave: Bench) -> None:
    before = names(slave)
    put_topic(master, "Orders")

    def garbage(request: Request, answer: Command) -> None:
        answer.body = b'{"topicConfigTable":[1,2]}'

    with pytest.raises(ProtocolError):
        one_round(master, slave, garbage)

    def refusal(request: Request, answer: Command) -> None:
        answer.code = ResponseCode.SYSTEM_ERROR

    with pytest.raises(ProtocolError, match="the master answers 1"):
        one_round(master, slave, refusal)
    assert names(slave) == before


def test_a_masters_tables_are_bounded(tmp_path: Path) -> None:
    master, slave = make_master(tmp_path / "m"), make_slave(tmp_path / "s", max_topics=20)
    for number in range(30):
        put_topic(master, f"T{number}")
    with pytest.raises(TableFull, match="maxTopics"):
        one_round(master, slave)
    assert len(names(slave)) <= 20


@pytest.mark.parametrize("kind", ["SimpleCQ", "BatchCQ"])
@pytest.mark.parametrize("is_gone", [True, False])
def test_offsets_of_messages_that_a_new_slave_never_gets_are_not_used_again(
    tmp_path: Path, kind: str, is_gone: bool
) -> None:
    """They have left their master's log, or the slave begins behind them (syncFromLastFile)."""
    master = make_master(tmp_path / "m")
    slave = make_slave(tmp_path / "s", sync_from_last_file=not is_gone)
    ext = topic_fields("Old", 2, attributes=f"+queue.type={kind}")
    peer = master.peer()
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0
    for _ in range(3):
        assert peer.ask(SEND, send_ext("Old", 1), b"old").code == 0
    for _ in range(40):
        assert peer.ask(SEND, send_ext("New"), bytes(4_000)).code == 0
    if is_gone:
        expire_segments(master)
        assert master.store.offsets.log_bounds("Old", 1) == (3, 3)
    copy_log(master, slave)
    assert slave.store.offsets.max_offset("Old", 1) == 0
    one_round(master, slave)
    assert metadata_of(slave).is_fresh
    assert RequestCode.GET_TOPIC_STATS_INFO not in one_round(master, slave), "each topic is asked for once"
    bounds = {queue: slave.store.offsets.log_bounds("Old", queue) for queue in (0, 1)}
    assert slave.store.offsets.max_offset("New", 0) == 40
    slave.run_jobs()
    slave.reopen()
    slave.flush()
    slave.run_jobs()
    slave.crash()
    slave.close()
    slave.settings |= {"broker_role": BrokerRole.ASYNC_MASTER, "broker_id": 0}
    slave.open()
    sent = [slave.peer().ask(SEND, send_ext("Old", queue), b"new") for queue in (0, 1)]
    assert [answer.ext["queueOffset"] for answer in sent] == ["0", "3"], bounds
    assert [message.body for message in slave.records("Old", 1, 3)] == [b"new"]


def test_a_light_queue_of_which_a_new_slave_gets_no_message_goes_on_at_its_end(tmp_path: Path) -> None:
    light = {"enable_lmq": True, "enable_multi_dispatch": True}
    master = Bench(tmp_path / "m", store_settings={**STORE, **light})
    slave = make_slave(tmp_path / "s", light)
    peer = master.peer()
    for _ in range(3):
        ext = send_ext("T") | {"i": "INNER_MULTI_DISPATCH\x01%LMQ%one\x02"}
        assert peer.ask(SEND, ext, b"light").code == 0
    where = {"consumerGroup": "%LMQ%g", "topic": "%LMQ%one", "queueId": "0", "commitOffset": "3"}
    assert peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, where).code == 0
    for _ in range(40):
        assert peer.ask(SEND, send_ext("New"), bytes(4_000)).code == 0
    expire_segments(master)
    assert master.store.offsets.log_bounds("%LMQ%one", 0) == (3, 3)
    copy_log(master, slave)
    assert slave.store.offsets.max_offset("%LMQ%one", 0) == 0
    assert RequestCode.GET_MAX_OFFSET in one_round(master, slave)
    assert slave.store.offsets.max_offset("%LMQ%one", 0) == 3
    assert metadata_of(slave).is_fresh
    assert RequestCode.GET_MAX_OFFSET not in one_round(master, slave), "each queue is asked for once"


def test_a_master_that_claims_impossible_ends_is_not_believed(master: Bench, slave: Bench) -> None:
    put_topic(master, "Orders")
    for _ in range(40):
        assert master.peer().ask(SEND, send_ext("New"), bytes(4_000)).code == 0
    expire_segments(master)
    copy_log(master, slave)

    def change(request: Request, answer: Command) -> None:
        if request.code == RequestCode.GET_TOPIC_STATS_INFO:
            answer.body = bytes(answer.body).replace(b'"maxOffset":0', b'"maxOffset":%d' % (1 << 60))

    with pytest.raises(ProtocolError, match="cannot end at"):
        one_round(master, slave, change)
    assert slave.store.offsets.max_offset("Orders", 0) == 0
    assert not metadata_of(slave).is_fresh
