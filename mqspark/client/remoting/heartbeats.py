"""The contents of the next heartbeat to a broker. Facts: RocketMQ's MQClientInstance.sendHeartbeatToBrokerV2,
HeartbeatData, ClientManageProcessor. No sockets.

Version 2 avoids repeating the subscriptions. A heartbeat carries a fingerprint of its contents, and it may omit the
subscriptions while the broker has stored the same fingerprint. A broker that has another fingerprint for a group, or
none, answers that the subscriptions changed; the next heartbeat then contains them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from mqspark.message import java_hash
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import ConsumerData, HeartbeatData, ProducerData
from mqspark.protocol.command import Command

SUPPORTED, CHANGED = "IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"
"""Fields of the answer."""


class Grouped(Protocol):
    @property
    def producer_group(self) -> str | None: ...

    def consumer_data(self) -> ConsumerData | None: ...


_MAX_BROKERS = 10_000
"""Limit of remembered brokers, because addresses come from name servers. A forgotten broker gets a full heartbeat."""


class Heartbeats:
    """The heartbeat state of one client, by broker address."""

    def __init__(self, client_id: str, *, with_fingerprint: bool) -> None:
        self._client_id = client_id
        self._with_fingerprint = with_fingerprint
        self._versions: dict[str, int] = {}
        self._supporting: set[str] = set()
        self._known: dict[str, int] = {}
        """The fingerprint that the broker has stored with all subscriptions."""

    def next(self, address: str, members: Iterable[Grouped]) -> tuple[bytes, int]:
        """The body and its fingerprint; 0: no fingerprint."""
        data = self._data(members)
        if not self._with_fingerprint or address not in self._supporting:
            return encode_body(data), 0
        fingerprint = _fingerprint(data)
        data.heartbeat_fingerprint = fingerprint
        if self._known.get(address) == fingerprint:
            data.without_sub = True
            data.consumer_data_set = [
                msgspec.structs.replace(each, subscription_data_set=[]) for each in data.consumer_data_set
            ]
        return encode_body(data), fingerprint

    def answered(self, address: str, fingerprint: int, answer: Command) -> None:
        """The broker answered SUCCESS to a heartbeat with that fingerprint."""
        if len(self._versions) >= _MAX_BROKERS and address not in self._versions:
            self._versions.clear()
            self._supporting.clear()
            self._known.clear()
        self._versions[address] = answer.version
        if answer.ext.get(SUPPORTED) != "true":
            self._supporting.discard(address)
            self._known.pop(address, None)
            return
        self._supporting.add(address)
        if fingerprint and answer.ext.get(CHANGED) != "true":
            self._known[address] = fingerprint
        else:
            self._known.pop(address, None)

    def forget(self, address: str) -> None:
        """The connection is new, so the broker may have lost what it knew."""
        self._supporting.discard(address)
        self._known.pop(address, None)

    def version(self, address: str) -> int | None:
        """Version of the broker in its last answer (an ordinal of MQVersion); None before the first."""
        return self._versions.get(address)

    def _data(self, members: Iterable[Grouped]) -> HeartbeatData:
        producers: list[ProducerData] = []
        consumers: list[ConsumerData] = []
        for member in members:
            if member.producer_group is not None:
                producers.append(ProducerData(group_name=member.producer_group))
            if (data := member.consumer_data()) is not None:
                consumers.append(data)
        return HeartbeatData(
            client_id=self._client_id, producer_data_set=producers, consumer_data_set=consumers
        )


def _fingerprint(data: HeartbeatData) -> int:
    """A fingerprint of the body without the client id and the subscriptions' versions; never 0
    (computeHeartbeatFingerprint)."""
    consumers = [
        msgspec.structs.replace(
            each,
            subscription_data_set=[
                msgspec.structs.replace(subscription, sub_version=0)
                for subscription in each.subscription_data_set
            ],
        )
        for each in data.consumer_data_set
    ]
    nameless = msgspec.structs.replace(data, client_id="", consumer_data_set=consumers)
    return java_hash(encode_body(nameless).decode()) or 1
