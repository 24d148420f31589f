"""A broker with users, whose super user makes others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqspark.auth.gate import Audited
from mqspark.message import decode_offset_id
from mqspark.protocol.codes import RequestCode as R
from tests.support.clocks import ManualClock
from tests.unit.auth_kit import ROOT, SignedPeer, allow, authority
from tests.unit.broker_kit import Bench, send_ext

TOPIC_HEADER = {
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}


class Guarded(NamedTuple):
    bench: Bench
    root: SignedPeer
    audited: list[Audited]
    clock: ManualClock
    """The authority's."""

    @property
    def one(self) -> Any:
        return self.bench.broker.authority

    def user(self, name: str, *rules: str, address: str = "127.0.0.1") -> SignedPeer:
        allow(self.one, name, *rules)
        return SignedPeer(self.bench.peer(address=address), name)

    def topic(self, *names: str) -> None:
        for name in names:
            assert self.root.ask(R.UPDATE_AND_CREATE_TOPIC, {"topic": name, **TOPIC_HEADER}).code == 0

    def group(self, *names: str) -> None:
        for name in names:
            body = json.dumps({"groupName": name}).encode()
            assert self.root.ask(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0

    def send(self, topic: str, body: bytes = b"secret of others", properties: str = "") -> int:
        """The position of a message of the super user."""
        answer = self.root.ask(R.SEND_MESSAGE_V2, send_ext(topic, properties=properties), body)
        assert answer.code == 0, answer.remark
        return int(decode_offset_id(answer.ext["msgId"])[2])


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    audited: list[Audited] = []
    clock = ManualClock()
    bench = Bench(
        tmp_path,
        auto_create_subscription_group=False,
        new_authority=lambda: authority(tmp_path / "auth", audited, clock=clock),
    )
    return Guarded(bench, SignedPeer(bench.peer(), *ROOT), audited, clock)
