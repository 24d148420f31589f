"""Frames and bodies that no part of this project writes, as a peer of tests sends them."""

from __future__ import annotations

import zlib

from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import RegisterBrokerBody, TopicConfig
from mqspark.protocol.command import Command, _encode_head
from mqspark.protocol.fastjson import encode_sorted
from mqspark.protocol.servers.registration import read_registration
from mqspark.protocol.slices import finished


def encode_command(command: Command) -> bytes:
    """The frame of a decoded command, in its own serialisation."""
    head = _encode_head(
        command.code,
        command.flag,
        command.opaque,
        command.ext if command.has_ext else None,
        len(command.body),
        command.remark,
        command.language,
        command.version,
        command.serialize_type,
    )
    return b"".join((head, command.body)) if command.body else head


def decode_register_body(body: bytes, version: int) -> RegisterBrokerBody:
    """``read_registration`` in one go. Raises ProtocolError."""
    return finished(read_registration(body, version))


def encode_register_body(body: RegisterBrokerBody, *, compress: bool = False) -> bytes:
    """The compressed form loses ``order`` and ``topicSysFlag``, as in RocketMQ."""
    if not compress:
        return encode_body(body)
    wrapper = body.topic_config_serialize_wrapper
    parts = [_part(encode_sorted(wrapper.data_version)), len(wrapper.topic_config_table).to_bytes(4, "big")]
    parts += [_part(encode_topic_line(topic)) for topic in wrapper.topic_config_table.values()]
    parts.append(_part(encode_sorted(body.filter_server_list)))
    parts.append(len(wrapper.topic_queue_mapping_info_map).to_bytes(4, "big"))
    parts += [_part(encode_sorted(mapping)) for mapping in wrapper.topic_queue_mapping_info_map.values()]
    return zlib.compress(b"".join(parts), 9)


def encode_topic_line(topic: TopicConfig) -> bytes:
    """``name readNums writeNums perm filterType attributes``, separated by spaces (TopicConfig.encode)."""
    attributes = encode_sorted(topic.attributes).decode()
    return (
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} "
        f"{topic.topic_filter_type} {attributes}"
    ).encode()


def _part(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
