"""The broker's registration at name servers: all its topics, in one request, or in several when one frame would
be too long (BrokerController.registerBrokerAll).

RocketMQ splits by number of topics, and only if enableSplitRegistration is set. This module does that too, and in
addition it always splits by size, because clients cannot find a broker whose registration is too large for every
name server. A name server adds the topics of each piece to those it has. A name server with
deleteTopicWithBrokerRegistration forgets the topics that a registration lacks, so it must not get a registration
in pieces.

Must not know connections.

Facts: docs/rocketmq/broker.md#registration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from mqspark.base.config import INT32_MAX
from mqspark.base.crc import crc32 as full_crc32
from mqspark.broker.config import BrokerConfig
from mqspark.broker.state.changes import PendingChanges
from mqspark.broker.statictopic.mappings import Mappings
from mqspark.broker.tables.topics import Topics, copy_config
from mqspark.message import PERM_READ_WRITE
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.topic_bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from mqspark.protocol.headers.cluster_headers import (
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from mqspark.protocol.slices import Work

TOPICS_A_SLICE = 64
"""Topics that are encoded before other work runs: half a millisecond."""
JOINED_AT_ONCE = 4_096
"""Encoded topics that are joined, and whose checksum is computed, before other work runs."""
MAX_PIECE_BYTES = 8 * 1024 * 1024
"""Half of the largest frame that RocketMQ's name server accepts; some 40,000 topics."""

_NO_TOPICS = b'"topicConfigTable":{}'
_NO_MAPPINGS = b'"topicQueueMappingInfoMap":{}'

_encode = msgspec.json.encode


class Registration(NamedTuple):
    """One request to every name server."""

    header: RegisterBrokerRequestHeader
    body: bytes
    generation: int
    """The generation of the topics that a name server has after this request; -1 if more pieces follow."""
    piece: int
    """Number of the piece, from 0."""

    @property
    def is_last(self) -> bool:
        return self.generation >= 0


def registrations(config: BrokerConfig, topics: Topics, mappings: Mappings) -> Iterator[Registration | None]:
    """All registrations, in sending order. Yields None after each millisecond of work at most, so that other work can
    run."""
    version, generation = topics.data_version, topics.generation
    parts: list[bytes] = []
    mapped: list[bytes] = []
    size = piece = 0
    # A name server without this broker would take a first piece of one topic for an addition.
    most = max(2, config.split_registration_size) if config.enable_split_registration else 1 << 60
    for number, topic in enumerate(topic.config for topic in topics):
        if number % TOPICS_A_SLICE == TOPICS_A_SLICE - 1:
            yield None
        part = b"%b:%b" % (_encode(topic.topic_name), encode_body(_permitted(topic, config)))
        static = mappings.table.get(topic.topic_name) if mappings.table else None
        mapping = b""
        if static is not None and static.is_own:
            mapping = b"%b:%b" % (_encode(topic.topic_name), encode_body(static.info))
        if parts and (size + len(part) + len(mapping) > MAX_PIECE_BYTES or len(parts) >= most):
            # Each piece has a version of its own: a name server skips known topics of a registration whose
            # version it already has.
            own = DataVersion(version.state_version, -1 - piece, version.counter)
            yield (yield from _registration(config, parts, mapped, own, -1, piece))
            parts, mapped, size, piece = [], [], 0, piece + 1
        parts.append(part)
        if mapping:
            mapped.append(mapping)
        size += len(part) + len(mapping) + 2
    yield (yield from _registration(config, parts, mapped, version, generation, piece))


def _permitted(topic: TopicConfig, config: BrokerConfig) -> TopicConfig:
    if config.broker_permission & PERM_READ_WRITE == PERM_READ_WRITE:
        return topic
    reduced = copy_config(topic)
    reduced.perm &= config.broker_permission
    return reduced


def _registration(
    config: BrokerConfig,
    parts: list[bytes],
    mapped: list[bytes],
    version: DataVersion,
    generation: int,
    piece: int,
) -> Work[Registration]:
    wrapper = TopicConfigAndMappingSerializeWrapper(data_version=version)
    head, _, tail = encode_body(RegisterBrokerBody(wrapper)).partition(_NO_TOPICS)
    if mapped:
        tail = tail.replace(_NO_MAPPINGS, b"%b%b}" % (_NO_MAPPINGS[:-1], b",".join(mapped)), 1)
    texts = [head, _NO_TOPICS[:-1]]
    checksum = full_crc32(b"".join(texts))
    for first in range(0, len(parts), JOINED_AT_ONCE):
        some = parts[first : first + JOINED_AT_ONCE]
        text = b",".join((b"", *some) if first else some)
        checksum = full_crc32(text, checksum)
        texts.append(text)
        if len(parts) > JOINED_AT_ONCE:
            yield None
    end = b"}" + tail
    body = b"".join((*texts, end))
    header = RegisterBrokerRequestHeader(
        broker_name=config.broker_name,
        broker_addr=config.address,
        cluster_name=config.broker_cluster_name,
        ha_server_addr=config.ha_address,
        broker_id=config.broker_id,
        enable_acting_master=config.enable_slave_acting_master,
        heartbeat_timeout_millis=(
            config.broker_not_active_timeout_millis if config.enable_slave_acting_master else None
        ),
        body_crc32=full_crc32(end, checksum) & INT32_MAX,
    )
    return Registration(header, body, generation, piece)


class Publication:
    """The registrations of this broker, and the generation of its topics that a name server knows. The shell sends
    ``requests`` when they are ``due``, to every name server in order, and reports success with ``accepted``."""

    def __init__(
        self, config: BrokerConfig, topics: Topics, mappings: Mappings, changes: PendingChanges
    ) -> None:
        self._config = config
        self._topics = topics
        self._mappings = mappings
        self._changes = changes
        self._pieces = 1
        self._due_generation = -1
        self.known_generation = -1

    @property
    def due(self) -> bool:
        """Whether topics have changed since this was set to False."""
        return self._topics.generation != self._due_generation

    @due.setter
    def due(self, due: bool) -> None:
        self._due_generation = -1 if due else self._topics.generation

    def requests(self) -> Iterator[Registration | None]:
        """All topics, in as many registrations as needed. None marks a point where other work may run."""
        for registration in registrations(self._config, self._topics, self._mappings):
            if registration is not None and registration.is_last:
                self._pieces = registration.piece + 1
            yield registration

    def accepted(self, registration: Registration, answer: bytes | memoryview = b"") -> None:
        """A name server accepted the registration. ``answer`` is its body: the table of ordered topics, if any.

        Raises ProtocolError if the body is malformed; the registration still counts.
        """
        self.known_generation = max(self.known_generation, registration.generation)
        self._changes.published(self.known_generation)
        if answer:
            self._topics.set_order(frozenset(decode_body(KVTable, answer).table))

    @property
    def problem(self) -> str | None:
        """What an operator should do about the size of the registration; None if nothing."""
        if self._pieces < 2 or self._config.enable_split_registration:
            return None
        return (
            f"{len(self._topics)} topics take {self._pieces} registrations: no name server may have"
            " deleteTopicWithBrokerRegistration, and unused topics and groups should be deleted"
        )

    def version_query(self) -> tuple[QueryDataVersionRequestHeader, bytes]:
        """The request that asks a name server whether it lacks the current registration (322)."""
        config = self._config
        header = QueryDataVersionRequestHeader(
            broker_name=config.broker_name,
            broker_addr=config.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        return header, encode_body(self._topics.data_version)

    def withdrawal(self) -> UnRegisterBrokerRequestHeader:
        config = self._config
        return UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=config.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
