"""Names as weapons: a topic that is a path, a group that is a line of a file, a key of 100 KB. Whoever can connect
chooses them, and they become directories, keys of tables, rows of files and words of answers."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from mqspark.base.names import ID, NAME, check, is_sound, path_below
from mqspark.client.consumer.offset_stores import LocalOffsets
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.errors import IllegalName, InvalidMessage, ProtocolError
from mqspark.message import retry_topic
from mqspark.namesrv.kvconfig import KVConfig
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.admin_headers import DeleteTopicRequestHeader
from mqspark.protocol.named import NAMES
from mqspark.testing import Broker
from tests.security.requests.hostile_names import hostile_names
from tests.support.processes import run_to_end
from tests.support.protocol_classes import STRUCTS
from tests.unit.broker_kit import SEND, Bench, send_ext

NAMELESS = [
    "DELETE_EXPIRED_COMMITLOG",
    "DELETE_KV_CONFIG",
    "EXCHANGE_BROKER_HA_INFO",
    "EXPORT_ROCKSDB_CONFIG_TO_JSON",
    "POP_ROLLBACK",
    "PUT_KV_CONFIG",
    "REMOVE_COLD_DATA_FLOW_CTR_CONFIG",
    "RESET_MASTER_FLUSH_OFFSET",
    "UPDATE_BROKER_CONFIG",
    "UPDATE_COLD_DATA_FLOW_CTR_CONFIG",
    "UPDATE_NAMESRV_CONFIG",
]
"""Changing requests that have no name in them, those of the name server's table, whose keys may be any text, and those
of cold reads, whose groups are checked line by line (``tests/unit/broker/state/test_coldreads.py``)."""

HERE = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ("everything", 4),
        pytest.param("everything", 1, marks=pytest.mark.slow("all names; a fourth of them is the fast twin")),
        pytest.param("default", 1, marks=pytest.mark.slow("with everything on is the fast twin")),
    ],
)
def test_no_request_touches_a_file_that_the_store_has_no_name_for(
    tmp_path: Path, settings: str, step: int
) -> None:
    """All codes of both servers, every text of every header and body, and properties that the broker acts on, under
    ``sys.addaudithook``; with light message queues and timers, too."""
    run = run_to_end(
        [
            sys.executable,
            "-B",
            "-m",
            "tests.security.requests.hostile_names",
            str(tmp_path),
            settings,
            str(step),
        ],
        cwd=HERE,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["strange"] == []
    assert found["outside"] == ["outside/file"]
    assert found["root"] == ["namesrv", "outside", "store"]
    assert found["requests"] > 10_000 / step
    assert found["broken"] == []
    assert found["long"] == []
    assert [name for name in found["accepted"] if not name.startswith(("GET_", "CLEAN_"))] == NAMELESS
    assert found["code"] == ResponseCode.SUCCESS
    assert found["kept"] == ["precious", "still here"]
    assert found["restarted"]


def test_a_topic_that_is_a_directory_cannot_be_deleted(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    with Broker(store=tmp_path / "store") as broker:
        connection = BlockingConnection(broker.address)
        for name in (
            str(outside),
            str(broker.store_path),
            "../../outside",
            str(broker.store_path / "commitlog"),
        ):
            asked = connection.send(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=name))
            answer = connection.wait(asked)
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "illegal characters" in (answer.remark or "")
        connection.close()
        assert (outside / "file").read_text() == "precious"
        assert (broker.store_path / "commitlog").is_dir()


def test_a_directory_of_the_store_is_no_topic(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    peer.ask(SEND, send_ext("T"), b"kept")
    for name in ("commitlog", "config", "consumequeue", "a.b", "x" * 254 + ".", "a b"):
        peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
    assert [message.body for message in bench.records("T")] == [b"kept"]
    bench.reopen()
    assert [message.body for message in bench.records("T")] == [b"kept"]
    with pytest.raises(InvalidMessage):
        bench.store.delete_topic("../commitlog")
    with pytest.raises(InvalidMessage):
        bench.store.delete_topic("T\n00000000000000000000 U")


@pytest.mark.parametrize(
    ("request_code", "ext", "code"),
    [
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "../x"}, ResponseCode.INVALID_PARAMETER),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "../x"}, ResponseCode.INVALID_PARAMETER),
        (RequestCode.GET_TOPIC_CONFIG, {"topic": "../x"}, ResponseCode.TOPIC_NOT_EXIST),
        (
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            {"group": "../x"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ),
        (RequestCode.SEND_MESSAGE_V2, send_ext("../x"), ResponseCode.INVALID_PARAMETER),
        (
            RequestCode.GET_MAX_OFFSET,
            {"topic": "x" * 60_000, "queueId": "0"},
            ResponseCode.INVALID_PARAMETER,
        ),
    ],
)
def test_a_refusal_has_the_code_of_its_request_and_a_short_remark(
    tmp_path: Path, request_code: RequestCode, ext: dict[str, str], code: int
) -> None:
    bench = Bench(tmp_path)
    answer = bench.peer().ask(request_code, ext, b"x")
    assert answer.code == code
    assert len(answer.remark or "") < 200


@pytest.mark.parametrize("code", [SEND, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
@pytest.mark.parametrize(
    "name", ["../x", "/etc", "..", "a\0b", "x" * 60_000, "", "%RETRY%../x", "%LMQ%../x", "a@b"]
)
def test_a_send_makes_no_topic_of_what_is_no_name(tmp_path: Path, code: RequestCode, name: str) -> None:
    """The one request whose handler checks by itself."""
    bench = Bench(tmp_path, store_settings={"enable_lmq": True, "enable_multi_dispatch": True})
    before = set(bench.broker.state.topics.names())
    answer = bench.peer().ask(code, send_ext(name), b"x")
    assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL)
    assert len(answer.remark or "") < 200
    assert set(bench.broker.state.topics.names()) == before


def test_no_remark_is_longer_than_its_bound(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ext = {"topic": "T", "key": "k", "maxNum": "y" * 60_000, "beginTimestamp": "0", "endTimestamp": "0"}
    assert len(bench.peer().ask(RequestCode.QUERY_MESSAGE, ext).remark or "") <= 4096
    answer = bench.peer().ask(RequestCode.GET_ALL_PRODUCER_INFO, {"subscription": "z" * 60_000})
    assert len(answer.remark or "") <= 4096


@pytest.mark.parametrize(
    "name", [name for name in hostile_names(Path("/store"), Path("/outside")) if "/" in name]
)
def test_a_path_is_no_name(name: str) -> None:
    assert not is_sound(name)
    with pytest.raises(IllegalName):
        path_below(Path("/store/consumequeue"), name)


@pytest.mark.parametrize(
    "name",
    [
        "T",
        "x" * 127,
        "%RETRY%" + "g" * 120,
        "%RETRY%" + "g" * 120 + "+" + "t" * 127,
        "%DLQ%my-group_1",
        "%LMQ%a|b%c",
        "ns%topic",
        "%RETRY%ns%group",
        "broker-0.broker.example.com",
        "DefaultCluster_REPLY_TOPIC",
        "rmq_sys_REVIVE_LOG_my.cluster",
        "Warteschlange-für-Bücher",
        "主题",
        "CID_ONS-HTTP-PROXY",
        "a producer of the C++ client",
    ],
)
def test_an_honest_name_passes(name: str) -> None:
    check("topic", name)


@pytest.mark.parametrize(
    "name", ["10.0.0.1@4711#123456@unit", "[fe80::1%eth0]:10911", "PID@" + "10.0.0.1:9876;" * 40]
)
def test_an_honest_id_passes(name: str) -> None:
    check("client id", name, ID)


@given(
    st.lists(
        st.one_of(
            st.text(max_size=20),
            st.sampled_from(["..", ".", "", "/", "/etc", "a/..", "\0", "x" * 256, "ü" * 128, "\ud800"]),
            st.integers(-2, 1 << 40),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_a_path_from_names_lies_below_its_directory(names: list[str | int]) -> None:
    directory = Path("/store/consumequeue")
    try:
        path = path_below(directory, *names)
    except IllegalName:
        return
    assert path.parts[:3] == directory.parts
    assert len(path.parts) == 3 + len(names)
    assert ".." not in path.parts
    assert "\0" not in str(path)


@given(st.text(max_size=300))
def test_the_fast_answer_is_that_of_the_rule(name: str) -> None:
    first = is_sound(name)
    assert is_sound(name) == first
    assert first == (len(name) <= NAME.limit and (not name or NAME.pattern.fullmatch(name) is not None))


FREE_TEXTS = """
    action actions attachments attributes batch_uniq_id bit_map bname boundary_type broker_controller_ids_to_clean
    config_path config_table config_type consume_from_where consume_result consume_stats_list consume_type
    consumer_table controller_leader_address controller_leader_id damage data data_version decision default_topic
    exp exp_type expression expression_type extend_data_json extra_info filter filter_data filter_groups
    filter_server_list filter_server_table group_meta id incarnation index_type jstack known_set language last_key
    lmq_offset_table message_model message_queue_table mode mq_pop_table mq_table mqspark_want msg msg_id
    msg_offset_info ns offset_msg_id offset_table operation options order_count_info order_topic_conf
    order_topic_string origin_msg_id password peers policy_type properties reaches recall_handle
    register_check_code remark remote_ip resource resource_filter retry runtime_table scope silences source_ips
    start_offset_info state_id stats_key stats_name store_type strategy_name sub_string subject subject_filter
    subscription table tags_set topic_filter_type topic_meta transaction_id tries type user_consumer_info
    user_status user_type value version
"""
"""Attributes whose texts are not names. Their users check them."""


def test_every_text_of_a_header_or_body_is_a_name_or_declared_free() -> None:
    """So that nobody adds a field without a thought of it."""
    unknown, free = set(), frozenset(FREE_TEXTS.split())
    for kind in STRUCTS:
        for each in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
            if holds_text(each.type) and each.name not in NAMES and each.name not in free:
                unknown.add(f"{kind.__name__}.{each.name}")
    assert unknown == set()


def test_no_path_is_made_of_a_name_by_hand() -> None:
    """``path_below`` is the one way; what comes from a directory listing or is a constant is joined as it is."""
    by_hand = re.compile(
        r"""/\ (topic|group|client_id|broker_name|queue|queue_id|str\(queue_id\))\b(?!\s*[/*+-]?=)
        |(directory|root|path|folder)\}/\{(topic|group|client_id|queue)""",
        re.VERBOSE,
    )
    found = [
        f"{path.relative_to(HERE)}:{number}: {line.strip()}"
        for folder in ("mqspark", "server", "datasource", "jobs")
        for path in sorted((HERE / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if by_hand.search(line)
    ]
    assert [line for line in found if "api/v1" not in line] == []


def holds_text(info: Any) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(map(holds_text, info.types))
    if isinstance(info, inspect.ListType | inspect.SetType):
        return holds_text(info.item_type)
    if isinstance(info, inspect.DictType):
        return holds_text(info.key_type) or holds_text(info.value_type)
    return isinstance(info, inspect.StrType)


def test_rows_of_files_that_nothing_may_be_called_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    peer.ask(SEND, send_ext("T"), b"x")
    bench.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name="CG"))
    peer.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"},
    )
    bench.close()
    hostile = ["../../outside", "a\nb", "..", "x" * 300]
    for file, table, key in (
        ("topics.json", "topicConfigTable", "T"),
        ("subscriptionGroup.json", "subscriptionGroupTable", "CG"),
        ("consumerOffset.json", "offsetTable", "T@CG"),
    ):
        path = tmp_path / "config" / file
        document = fastjson.loads(path.read_bytes())
        row = document[table][key]
        for name in hostile:
            document[table][f"{name}@CG" if "@" in key else name] = row
        path.write_text(json.dumps(document))
    with caplog.at_level(logging.WARNING):
        bench.open()
    state = bench.broker.state
    assert not set(hostile) & {*state.topics.names(), *state.subscriptions.names()}
    assert {topic for topic, _ in state.offsets.pairs()} == {"T"}
    assert state.offsets.query("CG", "T", 0) == 1
    for what in ("topics", "groups", "offsets"):
        assert any(text.startswith(f"{what}: 4 rows are left out") for text in caplog.messages)
    assert all("\n" not in text and len(text) < 1000 for text in caplog.messages)


def test_a_key_value_table_from_a_file_keeps_only_what_can_be_a_key() -> None:
    kv = KVConfig()
    kv.load(
        json.dumps({"configTable": {"NS": {"key": "v", "a\nb": "v"}, "x\0": {}, "y" * 2000: {}}}).encode()
    )
    assert kv.namespace("NS") == {"key": "v"}
    assert kv.get("NS", "key") == "v"
    assert kv.namespace("x\0") is None
    assert kv.namespace("y" * 2000) is None


@pytest.mark.parametrize("name", ["../../x", "b\0", "x" * 300])
def test_a_client_takes_no_route_with_a_hostile_broker_name(name: str) -> None:
    route = {"brokerDatas": [{"brokerName": name, "cluster": "C", "brokerAddrs": {"0": "127.0.0.1:1"}}]}
    with pytest.raises(ProtocolError):
        decode_body(TopicRouteData, json.dumps(route).encode())


@pytest.mark.parametrize(("client_id", "group"), [("../..", "G"), ("c", "../../G"), ("c/d", "G"), ("c", "")])
def test_local_offsets_stay_below_their_directory(tmp_path: Path, client_id: str, group: str) -> None:
    with pytest.raises(IllegalName):
        LocalOffsets(tmp_path, client_id, group)


def test_a_group_cannot_name_the_offsets_of_another(tmp_path: Path) -> None:
    """``topic@group`` is a key in a file: a topic ``T@G`` would be another row after a restart."""
    bench = Bench(tmp_path)
    answer = bench.peer().ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "x", "topic": f"{retry_topic('G')}@G", "queueId": "0", "commitOffset": "9"},
    )
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_each_name_of_a_topic_list_is_checked(tmp_path: Path) -> None:
    """Several names with a separator may be longer than one name, and are none together."""
    bench = Bench(tmp_path)
    peer = bench.peer()
    topics = [f"T{number}" * 30 for number in range(8)]
    for topic in topics:
        peer.ask(SEND, send_ext(topic), b"x")

    def ask(topic_list: str) -> Any:
        return peer.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", "topicList": topic_list})

    answer = ask(";".join(topics) + ";")
    assert answer.code == ResponseCode.SUCCESS
    asked = {key["topic"] for key in _keys_of(bytes(answer.body))}
    assert asked == set(topics)
    for bad in ("../x", "a\nb", "x" * 256, ".."):
        answer = ask(f"{topics[0]};{bad};{topics[1]}")
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "topic" in (answer.remark or "")


def _keys_of(body: bytes) -> list[dict[str, Any]]:
    """The keys of a table whose keys are objects."""
    return [json.loads(key) for key in re.findall(rb'(\{[^{}]*"topic"[^{}]*\}):\{', body)]
