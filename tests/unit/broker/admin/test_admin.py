"""Topics, groups and settings as tools ask for them, and when a change is answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark.base.config import is_live, known_keys, rocketmq_key
from mqspark.broker.config import BrokerConfig
from mqspark.errors import ConfigError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.store.config import StoreConfig
from mqspark.store.recovery.deletions import STEPS_PER_ROUND
from mqspark.store.topicdeletion import REMOVED_AT_ONCE
from mqspark_server.settings.settingsfile import SettingsFile
from tests.support.draws import some
from tests.support.remoting import topic_fields
from tests.support.store_tools import put
from tests.unit.broker.admin.admin_kit import body_of, commit, create, group
from tests.unit.broker_kit import SEND, Bench, Peer, last_registration, send_ext

GOLDEN = Path(__file__).parents[3] / "golden"


# --- topics ---


def test_create_change_and_delete_a_topic(bench: Bench, peer: Peer) -> None:
    assert create(peer, "New") == 0
    config = body_of(peer, RequestCode.GET_TOPIC_CONFIG, {"topic": "New", "lo": "true"})
    assert config == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "New",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }
    version = bench.broker.state.topics.data_version
    assert create(peer, "New") == 0  # equal: no change
    assert bench.broker.state.topics.data_version == version
    assert create(peer, "New", writeQueueNums="5") == 0
    assert bench.broker.state.topics.data_version.counter == version.counter + 1
    assert peer.ask(SEND, send_ext("New", 4), b"x").code == 0
    assert commit(peer, "CG", "New", 4, 1) == 26
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "New"}).code == 0
    assert "New" not in bench.broker.state.topics
    assert bench.store.offsets.max_offset("New", 4) == 0
    gone = peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "New"})
    assert gone.code == ResponseCode.TOPIC_NOT_EXIST


def test_topics_of_a_list_are_deleted_all_or_none(bench: Bench) -> None:
    peer, code = bench.peer(), RequestCode.DELETE_TOPIC_IN_BROKER_LIST
    for topic in ("One", "Two"):
        assert create(peer, topic) == 0
        assert peer.ask(SEND, send_ext(topic), b"x").code == 0
    for names in ([], ["One", " "], ["One", "SELF_TEST_TOPIC"], ["One", "../x"], ["One"] * 20_000):
        answer = peer.ask(code, {}, json.dumps({"topicList": names}).encode())
        assert answer.code == ResponseCode.INVALID_PARAMETER, answer.remark
        assert bench.store.offsets.max_offset("One", 0) == 1
    names = ["One", "Two", "One", "Never"]
    assert peer.ask(code, {}, json.dumps({"topicList": names}).encode()).code == 0
    for topic in ("One", "Two"):
        assert topic not in bench.broker.state.topics
        assert bench.store.offsets.max_offset(topic, 0) == 0


@pytest.mark.parametrize("clean", [False, True])
def test_groups_of_a_list_are_deleted_all_or_none(bench: Bench, clean: bool) -> None:
    """Those of lite topics lose their offsets anyway, as in RocketMQ: nobody else cleans them."""
    peer, code = bench.peer(), RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST
    assert create(peer, "T") == 0
    assert peer.ask(SEND, send_ext("T"), b"x").code == 0
    for name, attributes in (("One", {}), ("Lite", {"+lite.bind.topic": "T"})):
        config = {"groupName": name, "attributes": attributes}
        body = json.dumps(config).encode()
        assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0
        assert commit(peer, name, "T", 0, 1) == 0
    for names in ([], ["One", ""], ["One"] * 20_000):
        answer = peer.ask(code, {}, json.dumps({"groupNameList": names, "cleanOffset": True}).encode())
        assert answer.code == ResponseCode.INVALID_PARAMETER, answer.remark
    names = ["One", "Lite", "One", "Never"]
    body = json.dumps({"groupNameList": names, "cleanOffset": clean}).encode()
    assert peer.ask(code, {}, body).code == 0
    state = bench.broker.state
    assert [state.subscriptions.configured(group) for group in names] == [None] * 4
    assert [state.offsets.query(group, "T", 0) for group in ("One", "Lite")] == [-1 if clean else 1, -1]


@pytest.mark.parametrize(
    "code", some([RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.CLEAN_UNUSED_TOPIC], 1)
)
def test_a_topic_of_many_queues_is_answered_before_its_files_go(bench: Bench, code: RequestCode) -> None:
    peer, queues = bench.peer(), 5 * STEPS_PER_ROUND // 2 * REMOVED_AT_ONCE
    assert create(peer, "Wide") == 0
    for queue_id in range(queues):
        put(bench.store, "Wide", queue_id, b"x")
    bench.broker.turn()
    if code == RequestCode.CLEAN_UNUSED_TOPIC:
        bench.broker.state.topics.remove("Wide")
    opaque = peer.give(code, {"topic": "Wide"})
    while bench.broker.work():
        pass
    bench.run_jobs()
    answers = peer.heard()
    assert [(answer.opaque, answer.code) for answer in answers] == [(opaque, 0)]
    directory = bench.directory / "consumequeue/Wide"
    assert len(list(directory.iterdir())) > queues // 2, "most files go afterwards"
    while bench.broker.jobs_due:
        bench.run_jobs()
    assert not directory.exists()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_deletion_is_answered_when_no_crash_takes_it_back(
    bench: Bench, peer: Peer, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Also of a topic that has queues, but is not configured."""
    assert create(peer, "New") == 0
    assert peer.ask(SEND, send_ext("New", 0), b"x").code == 0
    if not is_known:
        bench.broker.state.topics.remove("New")
        bench.run_jobs()
    monkeypatch.setattr(bench, "run_jobs", lambda: None)
    opaque = peer.give(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "New"})
    bench.broker.turn()
    assert bench.broker.jobs_due
    assert peer.heard() == []
    monkeypatch.undo()
    bench.run_jobs()
    assert not bench.store.deletions.unsaved
    assert [(answer.opaque, answer.code) for answer in peer.heard()] == [(opaque, 0)]


@pytest.mark.parametrize(
    ("topic", "more", "code"),
    [
        ("bad name!", {}, 29),
        ("TBW102", {}, 29),
        ("C", {}, 29),  # the cluster's own
        ("rmq_sys_x", {}, 29),
        ("X", {"readQueueNums": "-1"}, 29),
        ("X", {"writeQueueNums": "1000000"}, 29),
        ("X", {"perm": "99"}, 29),
        ("X", {"topicFilterType": "NONE"}, 1),
        ("X", {"attributes": "+queue.type=TripleCQ"}, 1),
        ("X", {"attributes": "+cleanup.policy=COMPACT"}, 1),
        ("X", {"attributes": "+message.type=MIXED"}, 29),
        ("X", {"attributes": "+queue.type=BatchCQ,+cleanup.policy=COMPACTION"}, 29),
        ("X", {"attributes": "+unknown=1"}, 1),
        ("X", {"attributes": "nonsense"}, 1),
        ("X", {"readQueueNums": "x"}, 1),
    ],
)
def test_topics_that_are_refused(bench: Bench, topic: str, more: dict[str, str], code: int) -> None:
    answer = bench.peer().ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, 3, **more))
    assert answer.code == code
    assert answer.remark
    assert "X" not in bench.broker.state.topics


def test_attributes(bench: Bench, peer: Peer) -> None:
    assert create(peer, "F", attributes="+message.type=FIFO,+reserve.time=5") == 0
    topic = bench.broker.state.topics.get("F")
    assert topic is not None
    assert topic.config.attributes == {"message.type": "FIFO", "reserve.time": "5"}
    assert create(peer, "F", attributes="-reserve.time") == 0
    assert topic.config.attributes == {"message.type": "FIFO"}
    assert create(peer, "F", writeQueueNums="4") == 0  # attributes stay
    assert topic.config.attributes == {"message.type": "FIFO"}


def test_a_list_of_topics(bench: Bench, peer: Peer) -> None:
    body = {
        "topicConfigList": [
            {"topicName": "L1", "attributes": {"+message.type": "DELAY"}},
            {"topicName": "L2"},
        ]
    }
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, json.dumps(body).encode()).code == 0
    topic = bench.broker.state.topics.get("L1")
    assert topic is not None
    assert topic.config.attributes == {"message.type": "DELAY"}
    assert "L2" in bench.broker.state.topics


def test_system_topics_are_there_from_the_start(bench: Bench, peer: Peer) -> None:
    expected = {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "C": (16, 7),
        "b-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "C_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_C": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_b-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }
    configs = {
        topic.name: (topic.config.write_queue_nums, topic.config.perm) for topic in bench.broker.state.topics
    }
    assert configs == expected
    listed = body_of(bench.peer(), RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"]
    assert set(listed) == set(expected)
    for topic in ("TBW102", "C", "b-a"):
        assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 29


def test_pages_of_topics(peer: Peer) -> None:
    for number in range(10):
        create(peer, f"P{number}")
    whole = peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    table = json.loads(whole.body)
    names = sorted(table["topicConfigTable"])
    assert whole.ext["totalTopicNum"] == str(len(names))
    version = json.dumps(table["dataVersion"])
    seen: list[str] = []
    while len(seen) < len(names):
        ext = {"topicSeq": str(len(seen)), "maxTopicNum": "7", "dataVersion": version}
        page = peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG, ext)
        seen += json.loads(page.body)["topicConfigTable"]
    assert seen == names
    stale = {
        "topicSeq": "5",
        "maxTopicNum": "2",
        "dataVersion": '{"counter":1,"stateVersion":0,"timestamp":1}',
    }
    page = peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG, stale)
    assert list(json.loads(page.body)["topicConfigTable"]) == names[:2]
    bad = peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": "x"})
    assert bad.code == ResponseCode.SYSTEM_ERROR


def test_unused_queues_are_cleaned(bench: Bench, peer: Peer) -> None:
    peer.ask(SEND, send_ext("Gone"), b"x")
    bench.broker.state.topics.remove("Gone")
    peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    assert "Gone" not in bench.store.offsets.queues()


# --- when a change is answered ---


def test_a_change_is_answered_when_it_is_saved_and_published(tmp_path: Path) -> None:
    bench = Bench(tmp_path, namesrv_addr="127.0.0.1:9876")
    peer = bench.peer()
    peer.give(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("New"))
    bench.broker.turn()
    assert bench.broker.publication.due
    assert bench.broker.jobs_due
    registration = last_registration(bench.broker)
    bench.broker.publication.accepted(registration)
    assert peer.heard() == []
    bench.run_jobs()
    assert [answer.code for answer in peer.heard()] == [0]
    # A name server that is down delays the answer, no more.
    peer.give(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Newer"))
    bench.broker.turn()
    bench.run_jobs()
    assert peer.heard() == []
    bench.later(3_000)
    assert [answer.code for answer in peer.heard()] == [0]
    # A disk that is full makes it an error.
    peer.give(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Newest"))
    bench.broker.turn()
    bench.broker.publication.accepted(last_registration(bench.broker))
    bench.later(3_000)
    assert [answer.code for answer in peer.heard()] == [ResponseCode.SYSTEM_ERROR]


def test_registration_carries_the_broker_permission(tmp_path: Path) -> None:
    bench = Bench(tmp_path, broker_permission=4)
    table = json.loads(last_registration(bench.broker).body)["topicConfigSerializeWrapper"][
        "topicConfigTable"
    ]
    assert table["BenchmarkTest"]["perm"] == 4
    bench.broker.turn()
    bench.broker.publication.due = False
    peer = bench.peer()
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=6\n").code == 0
    assert bench.broker.publication.due
    table = json.loads(last_registration(bench.broker).body)["topicConfigSerializeWrapper"][
        "topicConfigTable"
    ]
    assert table["BenchmarkTest"]["perm"] == 6


def test_ordered_topics_come_with_the_answer_to_a_registration(bench: Bench) -> None:
    create(bench.peer(), "O")
    bench.broker.publication.accepted(
        last_registration(bench.broker), b'{"table":{"O":"b-a:3","Unknown":"x:1"}}'
    )
    topic = bench.broker.state.topics.get("O")
    assert topic is not None
    assert topic.order


# --- groups ---


def test_groups(bench: Bench, peer: Peer) -> None:
    group(peer, "G1")
    config = body_of(peer, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G1"})
    assert (config["groupName"], config["retryMaxTimes"], config["consumeEnable"]) == ("G1", 16, True)
    body = json.dumps(
        {"groupConfigList": [{"groupName": "G2"}, {"groupName": "G3", "retryMaxTimes": 3}]}
    ).encode()
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, body).code == 0
    table = body_of(peer, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert {"G1", "G2", "G3", "TOOLS_CONSUMER"} <= table["subscriptionGroupTable"].keys()
    page = peer.ask(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        {"groupSeq": "0", "maxGroupNum": "1", "dataVersion": json.dumps(table["dataVersion"])},
    )
    assert page.ext["totalGroupNum"] == str(len(table["subscriptionGroupTable"]))
    assert len(json.loads(page.body)["subscriptionGroupTable"]) == 1
    peer.ask(SEND, send_ext(), b"x")
    commit(peer, "G1", "T", 0, 1)
    delete = {"groupName": "G1", "cleanOffset": "true"}
    assert peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, delete).code == 0
    assert bench.broker.state.offsets.queues("G1", "T") == {}
    bad = b'{"groupName":"no spaces"}'
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, bad).code == 29


def test_an_unknown_group_may_not_be_creatable(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_subscription_group=False)
    answer = bench.peer().ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "none"})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert bench.peer().pull().code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# --- settings ---


def test_settings(bench: Bench, peer: Peer) -> None:
    answer = peer.ask(RequestCode.GET_BROKER_CONFIG)
    text = bytes(answer.body).decode()
    assert "brokerName=b-a\n" in text
    assert "flushDiskType=ASYNC_FLUSH\n" in text
    assert json.loads(answer.ext["version"])["counter"] == 0
    change = b"defaultTopicQueueNums=4\nmaxMessageSize=100\n"
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, change).code == 0
    assert bench.config.default_topic_queue_nums == 4
    answer = peer.ask(RequestCode.GET_BROKER_CONFIG)
    assert "defaultTopicQueueNums=4\n" in bytes(answer.body).decode()
    assert json.loads(answer.ext["version"])["counter"] == 1
    assert peer.ask(SEND, send_ext(), b"x" * 101).code == ResponseCode.MESSAGE_ILLEGAL
    assert peer.ask(SEND, send_ext(), b"x" * 100).code == 0


def test_every_setting_that_may_be_changed_takes_its_own_value(peer: Peer) -> None:
    shown = bytes(peer.ask(RequestCode.GET_BROKER_CONFIG).body).decode()
    fields = known_keys(BrokerConfig) | known_keys(StoreConfig)
    live = {rocketmq_key(field) for field in fields.values() if is_live(field)}
    lines = [line for line in shown.splitlines() if line.partition("=")[0] in live]
    assert len(lines) == len(live) > 100
    answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, "\n".join(lines).encode())
    assert (answer.code, answer.remark) == (0, None)
    assert bytes(peer.ask(RequestCode.GET_BROKER_CONFIG).body).decode() == shown


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (b"brokerName=x\n", 16),
        (b"storePathRootDir=/tmp/x\n", 16),
        (b"brokerConfigPath=/x\n", 16),
        (b"rocketmqHome=/x\n", 16),
        (b"noSuchThing=1\n", 1),
        (b"defaultTopicQueueNums=many\n", 1),
        (b"defaultTopicQueueNums=0\n", 1),
        (b"\xff\xfe=1\n", 1),
    ],
)
def test_settings_that_may_not_be_changed(bench: Bench, change: bytes, code: int) -> None:
    before = bench.config.default_topic_queue_nums
    answer = bench.peer().ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"defaultTopicQueueNums=5\n" + change)
    assert answer.code == code
    assert answer.remark
    assert bench.config.default_topic_queue_nums == before


def test_settings_may_be_changed_in_both_spellings(bench: Bench, peer: Peer) -> None:
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"default_topic_queue_nums=5\n").code == 0
    assert bench.config.default_topic_queue_nums == 5
    answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"config_black_list=x\n")
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")


def test_changed_settings_are_answered_once_they_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("# mine\ndefaultTopicQueueNums = 8 # as before\n")
    bench = Bench(tmp_path / "store", start=False)
    bench.settings_file = SettingsFile(path)
    bench.open()
    peer = bench.peer()
    opaque = peer.give(
        RequestCode.UPDATE_BROKER_CONFIG, None, b"defaultTopicQueueNums=5\nfileReservedTime=3\n"
    )
    bench.broker.turn()
    assert not peer.heard()
    bench.housekeeping()
    while bench.broker.work():
        pass
    assert [(each.opaque, each.code) for each in peer.heard()] == [(opaque, 0)]
    assert path.read_text() == "# mine\ndefaultTopicQueueNums = 5 # as before\nfileReservedTime = 3\n"
    peer.give(RequestCode.UPDATE_BROKER_CONFIG, None, b"defaultTopicQueueNums=6\n")
    path.write_text("[half")
    with pytest.raises(ConfigError):
        bench.run_jobs()
    bench.run_for(3_500)
    (late,) = peer.heard()
    assert (late.code, late.remark) == (1, "the change is in force, but could not be saved yet")
    assert bench.config.default_topic_queue_nums == 6
    path.write_text("")
    bench.close()
    assert "defaultTopicQueueNums = 6" in path.read_text()


def test_runtime_info_has_every_row_that_the_tools_read(bench: Bench) -> None:
    table = body_of(bench.peer(), RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    line = (GOLDEN / "frames" / "admin_brokerStatus.jsonl").read_text().splitlines()[1]
    frame = bytes.fromhex(json.loads(line)["frame_hex"])
    recorded = json.loads(frame[frame.index(b'{"table"') :])["table"]
    missing = {key for key in recorded if "/" not in key and not key.startswith("scheduleMessageOffset_")}
    assert missing - table.keys() == set()
    assert all(isinstance(value, str) for value in table.values())
    assert table["mqsparkStorePath"] == str(bench.directory)
    assert table["mqsparkStoreNonce"] == "", "the secret is told to nobody"
    for rate in (
        "putTps",
        "getFoundTps",
        "getMissTps",
        "getTotalTps",
        "getTransferredTps",
        "getTransferedTps",
    ):
        assert [float(number) for number in table[rate].split(" ")] == [0.0, 0.0, 0.0]


def change_topic(peer: Peer, attributes: str) -> Command:
    return peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("X", 3, attributes=attributes))


@pytest.mark.parametrize(
    ("attributes", "remark"),
    [
        ("-message.type", "attempt to delete a nonexistent key: message.type"),
        ("-cleanup.policy", "attempt to delete a nonexistent key: cleanup.policy"),
        ("+queue.type=SimpleCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ("+cleanup.policy=DELETE", "attempt to update an unchangeable attribute. key: cleanup.policy"),
        ("+reserve.time=-2", "value is not in range(-1, 9223372036854775807)"),
        ("+reserve.time=5,-reserve.time", "alter duplication key. key: reserve.time"),
        ("+nothing=1", "unsupported key: nothing"),
        ("+message.type=FIFO", None),
    ],
)
def test_attributes_of_a_topic_that_exists(peer: Peer, attributes: str, remark: str | None) -> None:
    """AttributeUtil.alterCurrentAttributes."""
    assert create(peer, "X") == 0
    answer = change_topic(peer, attributes)
    assert (answer.code, answer.remark) == (0 if remark is None else 1, remark)


def test_attributes_of_a_new_topic_are_only_added(bench: Bench) -> None:
    answer = change_topic(bench.peer(), "-message.type")
    remark = "only add attribute is supported while creating topic. key: message.type"
    assert (answer.code, answer.remark) == (1, remark)


def test_a_list_of_topics_may_say_what_holds_already(bench: Bench, peer: Peer) -> None:
    assert change_topic(peer, "+cleanup.policy=COMPACTION").code == 0
    for attributes, code in (
        ({"cleanup.policy": "COMPACTION", "message.type": "NORMAL"}, 0),
        ({"-message.type": ""}, 0),
        ({"cleanup.policy": "DELETE"}, 1),
        ({"+cleanup.policy": "COMPACTION"}, 1),
    ):
        topic = {
            "topicName": "X",
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
            "attributes": attributes,
        }
        body = json.dumps({"topicConfigList": [topic]}).encode()
        assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).code == code, attributes
    found = bench.broker.state.topics.get("X")
    assert found is not None
    assert found.config.attributes == {"cleanup.policy": "COMPACTION"}


def test_no_password_of_a_url_is_shown(tmp_path: Path) -> None:
    url = "s3://key:pass-canary@host/table?sig=sig-canary&region=eu"
    bench = Bench(tmp_path, archive_url=url)
    try:
        shown = bench.peer().ask(RequestCode.GET_BROKER_CONFIG).body
        assert b"archiveUrl=s3://***@host/table?sig=***&region=eu\n" in bytes(shown)
        assert b"canary" not in bytes(shown)
        assert "canary" not in repr(bench.config)
        assert bench.config.archive_url == url
    finally:
        bench.close()
