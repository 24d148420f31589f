"""Requests of tools that several tests make."""

from __future__ import annotations

import json
from typing import Any

from mqspark.protocol import fastjson
from mqspark.protocol.codes import RequestCode
from tests.support.remoting import topic_fields
from tests.unit.broker_kit import Peer


def create(peer: Peer, topic: str, **more: str) -> int:
    return peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, 3) | more).code


def body_of(peer: Peer, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Any:
    answer = peer.ask(code, ext, body)
    assert answer.code == 0, answer.remark
    return fastjson.loads(answer.body)


def commit(peer: Peer, group: str, topic: str, queue_id: int, offset: int) -> int:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    return peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext).code


def group(peer: Peer, name: str) -> None:
    body = json.dumps({"groupName": name}).encode()
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body).code == 0
