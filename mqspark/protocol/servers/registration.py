"""The body of REGISTER_BROKER: a broker's topics, as JSON or in RocketMQ's compressed form
(RegisterBrokerBody).

It is the longest request that a server accepts, so it is read in slices. Anybody can send one: the inflated
size, the number of topics and their cost are limited before objects are created. What the name server does
not need (filter servers, the parts of static topics) is skipped.

Must not know which numbers are valid for a topic.

Facts: docs/rocketmq/nameserver.md#registration.
"""

from __future__ import annotations

import zlib

from mqspark.base.names import check
from mqspark.errors import ProtocolError
from mqspark.protocol.bodies.body import decode_body, decode_nameless
from mqspark.protocol.bodies.longtables import MAX_ENTRY_BYTES, copied, parts_of_table, read_parts
from mqspark.protocol.bodies.topic_bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
    TopicQueueMappingInfo,
)
from mqspark.protocol.named import check_names
from mqspark.protocol.slices import Work

MAX_REGISTER_BYTES = 16 * 1024 * 1024
"""Limit of an inflated registration: that of an uncompressed one, some 200,000 topics."""

STATIC_TOPIC_VERSION = 413
"""V5_0_0: from this version on a compressed registration ends with the static topic mappings."""

SMALL_BYTES = 64 * 1024
"""Bodies up to this size are read in one slice."""

MAX_MAPPING_BYTES = MAX_ENTRY_BYTES

MAX_PART_BYTES = 64 * 1024
"""Limit of everything else in a compressed registration: a line is a name, some numbers and a few attributes."""

TOPICS_A_SLICE = 250
_INFLATE_STEP = 256 * 1024


def read_registration(
    body: bytes | memoryview, version: int, max_bytes: int = MAX_REGISTER_BYTES
) -> Work[RegisterBrokerBody]:
    """The data version, the topics and the mappings of static ones, from a sender of this version. An empty body means
    no topics. Raises ProtocolError, IllegalName.

    Compressed bodies are recognised by their first byte, because brokers deflate them and still send
    ``compressed=false``.
    """
    if not body:
        return RegisterBrokerBody()
    if body[0] == 0x78:
        return (yield from _read_compressed(body, version, max_bytes))
    if len(body) <= SMALL_BYTES:
        return decode_body(RegisterBrokerBody, body)
    return (yield from _read_json(body, max_bytes))


def _read_json(body: bytes | memoryview, max_bytes: int) -> Work[RegisterBrokerBody]:
    if len(body) > max_bytes:
        raise ProtocolError(f"a registration of {len(body)} bytes, at most {max_bytes} are read")
    text = yield from copied(body)
    topics: dict[str, TopicConfig] = {}
    mappings: dict[str, TopicQueueMappingInfo] = {}

    def add_topics(part: bytes) -> None:
        for name, topic in decode_nameless(TopicConfigSerializeWrapper, part).topic_config_table.items():
            check("topic", name)
            topics[name] = topic

    def add_mappings(part: bytes) -> None:
        found = decode_body(TopicConfigAndMappingSerializeWrapper, part)
        mappings.update(found.topic_queue_mapping_info_map)

    text = yield from read_parts(parts_of_table(text, "topicConfigTable", depth=2), add_topics)
    # A mapping may be long, so each is a part.
    text = yield from read_parts(parts_of_table(text, "topicQueueMappingInfoMap", 0, 2), add_mappings)
    text = yield from read_parts(
        parts_of_table(text, "topicQueueMappingDetailMap", depth=2), lambda part: None
    )
    if len(text) > SMALL_BYTES:
        raise ProtocolError(
            f"a registration with {len(text)} bytes beside its tables, at most {SMALL_BYTES} are read"
        )
    found = decode_body(RegisterBrokerBody, text)
    wrapper = found.topic_config_serialize_wrapper
    wrapper.topic_config_table, wrapper.topic_queue_mapping_info_map = topics, mappings
    return found


def _read_compressed(body: bytes | memoryview, version: int, max_bytes: int) -> Work[RegisterBrokerBody]:
    reader = _Parts((yield from _inflate(body, max_bytes)))
    wrapper = TopicConfigAndMappingSerializeWrapper(data_version=decode_body(DataVersion, reader.part()))
    for number in range(reader.count()):
        if number % TOPICS_A_SLICE == TOPICS_A_SLICE - 1:
            yield
        topic = decode_topic_line(reader.part())
        wrapper.topic_config_table[topic.topic_name] = topic
    filter_servers = decode_body(list[str], reader.part())
    if version >= STATIC_TOPIC_VERSION and reader.left:
        for number in range(reader.count()):
            if number % TOPICS_A_SLICE == TOPICS_A_SLICE - 1:
                yield
            mapping = decode_body(TopicQueueMappingInfo, reader.part(MAX_MAPPING_BYTES))
            wrapper.topic_queue_mapping_info_map[mapping.topic or ""] = mapping
    check_names(wrapper)
    return RegisterBrokerBody(wrapper, filter_servers)


def _inflate(body: bytes | memoryview, max_bytes: int) -> Work[bytearray]:
    inflater = zlib.decompressobj()
    plain = bytearray()
    try:
        for start in range(0, len(body), _INFLATE_STEP):
            rest: bytes | memoryview = body[start : start + _INFLATE_STEP]
            while rest and not inflater.eof:
                plain += inflater.decompress(rest, _INFLATE_STEP)
                if len(plain) > max_bytes:
                    raise ProtocolError(f"compressed registration: it inflates past {max_bytes} bytes")
                rest = inflater.unconsumed_tail
                if len(plain) > _INFLATE_STEP:
                    yield
    except zlib.error as error:
        raise ProtocolError(f"compressed registration: {error}") from None
    if not inflater.eof:
        raise ProtocolError("compressed registration: it ends too early")
    return plain


def decode_topic_line(line: bytes) -> TopicConfig:
    """``name readNums writeNums perm filterType attributes``, separated by spaces; the attributes may be missing
    (TopicConfig.encode). Raises ProtocolError."""
    try:
        name, read, write, perm, filter_type, *rest = str(line, "utf-8").split(" ", 5)
        return TopicConfig(
            topic_name=name,
            read_queue_nums=int(read[:11]),
            write_queue_nums=int(write[:11]),
            perm=int(perm[:11]),
            topic_filter_type=filter_type,
            attributes=decode_body(dict[str, str], rest[0].encode()) if rest else {},
        )
    except ValueError:
        raise ProtocolError(f"not a topic configuration: {line[:80]!r}") from None


class _Parts:
    """Length-prefixed parts of an inflated registration."""

    def __init__(self, data: bytearray) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def count(self) -> int:
        if self.left < 4:
            raise ProtocolError("compressed registration: it ends too early")
        self._position += 4
        return int.from_bytes(self._data[self._position - 4 : self._position], "big")

    def part(self, most: int = MAX_PART_BYTES) -> bytes:
        length = self.count()
        if length > most:
            raise ProtocolError(f"compressed registration: a part of {length} bytes, at most {most} are read")
        if length > self.left:
            raise ProtocolError(f"compressed registration: a part of {length} bytes, {self.left} are left")
        self._position += length
        return bytes(self._data[self._position - length : self._position])
