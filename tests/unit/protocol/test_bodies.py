"""Bodies against RocketMQ's own output, and the oddities of real peers."""

from __future__ import annotations

import json
import pathlib
import zlib
from typing import Any

import msgspec
import pytest

from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.filter.tags import parse_tags
from mqspark.message import MessageQueue, crc32, java_hash
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.admin_bodies import ConsumeStats, ResetOffsetBody
from mqspark.protocol.bodies.body import (
    BODY_SLICE_BYTES,
    ENTRIES_AT_ONCE,
    Queue,
    decode_body,
    encode_body,
    encode_in_slices,
    queue_key,
    queue_of,
    to_document,
)
from mqspark.protocol.bodies.client_bodies import (
    ConnectionInfo,
    ConsumerConnection,
    HeartbeatData,
    ProducerInfo,
    ProducerTableInfo,
    SubscriptionData,
    build_subscription,
)
from mqspark.protocol.bodies.topic_bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicList,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from mqspark.protocol.servers.registration import decode_topic_line
from mqspark.protocol.slices import finished
from tests.support.frames import decode_register_body, encode_register_body, encode_topic_line
from tests.support.protocol_classes import BODIES as BODIES_BY_NAME
from tests.support.slices import sliced

VECTORS = pathlib.Path(__file__).parents[2] / "golden" / "vectors"


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (VECTORS / name).read_text().splitlines() if line.strip()]


BODIES = lines("bodies.jsonl")
NO_JSON = {"PopCheckPoint"}
"""A message body of the broker's own, not one of the protocol."""
NOT_CARRIED = {
    "BrokerSyncInfo",
    "ConsumeByWho",
    "OffsetMovedEvent",
    "TopicQueueMappingOne",
    "TopicQueueMappingSerializeWrapper",
    "TopicRemappingDetailWrapper",
}
"""Files and internals of tools and broker, which no request carries."""


def unordered(value: Any, key: str = "") -> Any:
    """Sets have no order on the wire."""
    if isinstance(value, dict):
        return {name: unordered(item, name) for name, item in value.items()}
    if isinstance(value, list):
        items = [unordered(item) for item in value]
        return sorted(items, key=repr) if key.endswith("Set") else items
    return value


@pytest.mark.parametrize(
    "vector",
    [
        vector
        for vector in BODIES
        if "json" in vector and vector["json"][0] == "{" and vector["class"] not in NO_JSON
    ],
    ids=lambda vector: vector["name"],
)
def test_body_vectors(vector: dict[str, Any]) -> None:
    body_type = BODIES_BY_NAME[vector["class"]]
    expected = fastjson.loads(vector["json"].encode())
    body = decode_body(body_type, vector["json"].encode())
    encoded = encode_body(body)
    assert unordered(fastjson.loads(encoded)) == unordered(expected)
    assert decode_body(body_type, encoded) == body
    if "pretty" in vector:
        assert fastjson.loads(vector["pretty"].encode()) == expected
        assert decode_body(body_type, vector["pretty"].encode()) == body


@pytest.mark.parametrize("vector", lines("body_defaults.jsonl"), ids=lambda vector: vector["class"])
def test_body_defaults(vector: dict[str, Any]) -> None:
    if vector["class"] in NOT_CARRIED:
        pytest.skip("not a body of the protocol")
    body_type = BODIES_BY_NAME.get(vector["class"])
    if body_type is None:
        pytest.skip("a body that nothing here sends or reads")
    for text in (vector.get("default"), vector.get("scalarsFilled")):
        if text is None:  # the Java class has no default constructor
            continue
        body = decode_body(body_type, text.encode())
        written = json.loads(encode_body(body))
        for name, value in json.loads(text).items():
            assert written[name] == value, name


@pytest.mark.parametrize("vector", [vector for vector in BODIES if "expression" in vector])
def test_subscription_vectors(vector: dict[str, Any]) -> None:
    expected = json.loads(vector["json"])
    built = json.loads(encode_body(build_subscription("T", vector["expression"], version=1)))
    assert unordered(built) == unordered(expected)
    tags = parse_tags(vector["expression"])
    assert tags.names == set(expected["tagsSet"])
    assert tags.codes == set(expected["codeSet"])


def test_tags() -> None:
    tags = parse_tags("TagA || TagB||TagA")
    assert tags.names == {"TagA", "TagB"}
    assert tags.codes == {java_hash("TagA"), java_hash("TagB")}
    assert tags.matches("TagA")
    assert not tags.matches("TagC")
    assert not tags.matches(None)
    assert parse_tags("*").matches(None)
    with pytest.raises(InvalidMessage):
        parse_tags("||")


def test_pretty_is_what_rocketmq_writes_to_config_files() -> None:
    wanted = {"TopicConfigSerializeWrapper", "ClusterInfo", "KVTable", "ResetOffsetBody", "HeartbeatData"}
    for vector in BODIES:
        if "pretty" in vector and vector["class"] in (
            "TopicConfigSerializeWrapper",
            "KVTable",
            "ClusterInfo",
        ):
            body = decode_body(BODIES_BY_NAME[vector["class"]], vector["json"].encode())
            ours = fastjson.dumps_pretty(to_document(body))
            # fastjson breaks lines in a map with integer keys in an odd way; nothing reads that.
            assert "".join(ours.split()) == "".join(vector["pretty"].split())
            if vector["class"] != "ClusterInfo":
                assert ours == vector["pretty"]
            wanted.discard(vector["class"])
    assert wanted == {"ResetOffsetBody", "HeartbeatData"}


def test_object_keys_references_and_integer_keys() -> None:
    text = (
        b'{"consumeTps":1.5,"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"Orders"}:'
        b'{"brokerOffset":100,"consumerOffset":90,"lastTimestamp":1,"pullOffset":0}}}'
    )
    stats = decode_body(ConsumeStats, text)
    queue = MessageQueue("Orders", "b-a", 0)
    assert list(stats.offset_table) == [queue_key(queue)]
    assert queue_of(queue_key(queue)) == queue
    assert stats.offset_table[queue_key(queue)].broker_offset == 100
    assert encode_body(stats) == text
    assert decode_body(ConsumeStats, encode_body(stats)) == stats
    # Only keys: a value that looks like one stays a text.
    table = KVTable(table={"k": '{"a":"b"}', 'q"': "{}", "{": "}"})
    assert decode_body(KVTable, encode_body(table)) == table

    text = (
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"timestamp":7},'
        b'"mappingDataVersion":{"$ref":"$.topicConfigSerializeWrapper.dataVersion"}}}'
    )
    wrapper = decode_register_body(text, 479).topic_config_serialize_wrapper
    assert wrapper.mapping_data_version == DataVersion(counter=3, timestamp=7) == wrapper.data_version

    text = b'{"brokerDatas":[{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"b"}],"queueDatas":null}'
    route = decode_body(TopicRouteData, text)
    assert route.broker_datas[0].broker_addrs == {0: "h:1", 1: "h:2"}
    assert route.queue_datas == []
    assert b'"0":"h:1"' in encode_body(route)
    assert b"orderTopicConf" not in encode_body(route)


def test_lenient_values() -> None:
    text = (
        b'{\'clientID\':\'c\',\'consumerDataSet\':[{"groupName":"G","consumeType":1,"messageModel":0,'
        b'"consumeFromWhere":5,"subscriptionDataSet":[{"topic":"T","subVersion":"17","tagsSet":null}],}],}'
    )
    heartbeat = decode_body(HeartbeatData, text)
    (consumer,) = heartbeat.consumer_data_set
    assert consumer.consume_type == "CONSUME_PASSIVELY"
    assert consumer.message_model == "BROADCASTING"
    assert consumer.consume_from_where == "CONSUME_FROM_TIMESTAMP"
    assert consumer.subscription_data_set == [SubscriptionData(topic="T", sub_version=17)]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"counter":"abc"}',
        b'{"counter":99999999999999999999}',
        b'{"counter":[1]}',
        b"{" * 5000,
        b"\xff",
    ],
)
def test_what_is_no_such_body_raises(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_body(DataVersion, text)


def test_defaults_are_not_shared() -> None:
    first, second = RegisterBrokerBody(), RegisterBrokerBody()
    first.topic_config_serialize_wrapper.topic_config_table["T"] = TopicConfig(topic_name="T")
    first.filter_server_list.append("x")
    assert second == RegisterBrokerBody()


# --- registration -------------------------------------------------------------------------------------------


def registration() -> RegisterBrokerBody:
    wrapper = TopicConfigAndMappingSerializeWrapper(data_version=DataVersion(counter=3, timestamp=9))
    for topic in (
        TopicConfig(topic_name="Orders", perm=6, attributes={"message.type": "FIFO"}),
        TopicConfig(topic_name="%RETRY%CG", read_queue_nums=1, write_queue_nums=1),
    ):
        wrapper.topic_config_table[topic.topic_name] = topic
    wrapper.topic_queue_mapping_info_map["S"] = TopicQueueMappingInfo(topic="S", total_queues=4)
    return RegisterBrokerBody(wrapper, ["h:1"])


@pytest.mark.parametrize("compress", [False, True])
def test_registration_round_trip(compress: bool) -> None:
    body = registration()
    assert decode_register_body(encode_register_body(body, compress=compress), 479) == body


def test_registration_vectors() -> None:
    plain = next(vector for vector in BODIES if vector["name"] == "RegisterBrokerBody.encode(compress=false)")
    packed = next(vector for vector in BODIES if vector["name"] == "RegisterBrokerBody.encode(compress=true)")
    for vector in (plain, packed):
        assert crc32(bytes.fromhex(vector["hex"])) == vector["crc32"]
    full = decode_register_body(bytes.fromhex(plain["hex"]), 479)
    short = decode_register_body(bytes.fromhex(packed["hex"]), 479)
    wrappers = full.topic_config_serialize_wrapper, short.topic_config_serialize_wrapper
    assert wrappers[0].topic_config_table == wrappers[1].topic_config_table
    assert wrappers[0].data_version == wrappers[1].data_version
    assert len(wrappers[0].topic_config_table) == 2
    inflated = zlib.decompress(encode_register_body(short, compress=True))
    assert inflated == zlib.decompress(bytes.fromhex(packed["hex"]))


def test_damaged_compressed_registrations_raise() -> None:
    good = zlib.decompress(encode_register_body(registration(), compress=True))
    for length in range(len(good) - 1):
        damaged = good[:length] + (b"\x7f" if length % 2 else b"")
        if damaged != good:
            try:
                decode_register_body(zlib.compress(damaged), 479)
            except ProtocolError:
                continue
    with pytest.raises(ProtocolError):
        decode_register_body(b"x\xda\x01\x02", 479)
    with pytest.raises(ProtocolError):
        decode_register_body(zlib.compress(b"\xff\xff\xff\xff"), 479)
    assert decode_register_body(b"", 479) == RegisterBrokerBody()


def test_topic_line_vectors() -> None:
    vector = BODIES[0]
    topic = decode_body(TopicConfig, vector["json"].encode())
    assert encode_topic_line(topic).decode() == vector["encode"]
    assert decode_topic_line(vector["encode"].encode()) == topic
    assert decode_topic_line(BODIES[1]["json"].encode()).read_queue_nums == 1
    assert decode_topic_line(b"T 1 2 6 SINGLE_TAG").write_queue_nums == 2
    for line in (b"T", b"T a b c d", b"\xff 1 1 6 SINGLE_TAG", b"T 1 1 6 SINGLE_TAG {"):
        with pytest.raises(ProtocolError):
            decode_topic_line(line)


def test_queues_convert() -> None:
    queue = MessageQueue("T", "b", 3)
    assert Queue.of(queue).queue == queue
    assert len({Queue.of(queue), Queue.of(queue)}) == 1
    assert decode_body(ResetOffsetBody, b'{"offsetTable":{{"queueId":1}:5}}').offset_table == {
        '{"queueId":1}': 5
    }


def test_every_body_writes_what_it_reads() -> None:
    assert len(BODIES_BY_NAME) > 50
    for name, body_type in BODIES_BY_NAME.items():
        body = body_type()
        assert decode_body(body_type, encode_body(body)) == body
        optional = {field.encode_name for field in msgspec.structs.fields(body_type) if field.default is None}
        written = json.loads(encode_body(body))
        everything = {field.encode_name for field in msgspec.structs.fields(body_type)}
        assert set(written) == everything - optional, name


@pytest.mark.parametrize("length", [1, 40, 250])
def test_a_large_body_is_encoded_in_slices_and_pieces_however_long_its_entries_are(length: int) -> None:
    names = [f"{'x' * length}{number:06d}" for number in range(20_000)]
    pieces, slices = sliced(encode_in_slices(TopicList(topic_list=names)))
    text = b"".join(pieces)
    assert json.loads(text)["topicList"] == names
    assert max(map(len, pieces)) < 3 * BODY_SLICE_BYTES
    assert min(map(len, pieces[:-1])) >= BODY_SLICE_BYTES
    assert slices >= max(len(text) // (2 * BODY_SLICE_BYTES), len(names) // ENTRIES_AT_ONCE)


def test_a_long_list_below_a_key_is_encoded_in_slices() -> None:
    data = {
        "few": [ProducerInfo(client_id="c")],
        "many": [ProducerInfo(client_id=f"c{number}") for number in range(2_000)],
        "none": [],
    }
    data |= {f"more-{number}": [ProducerInfo(client_id="d")] * 300 for number in range(2)}
    pieces, slices = sliced(encode_in_slices(ProducerTableInfo(data=data)))
    assert decode_body(ProducerTableInfo, b"".join(pieces)).data == data
    assert slices > 2_600 // ENTRIES_AT_ONCE
    assert max(map(len, pieces)) < 2 * BODY_SLICE_BYTES


def test_two_large_tables_of_one_body_are_encoded_in_slices() -> None:
    body = ConsumerConnection(
        connection_set=[ConnectionInfo(client_id=f"c{number}") for number in range(500)],
        subscription_table={f"T{number}": SubscriptionData(topic=f"T{number}") for number in range(500)},
    )
    text = b"".join(finished(encode_in_slices(body)))
    assert json.loads(text) == json.loads(encode_body(body))
