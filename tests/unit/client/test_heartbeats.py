"""What heartbeats say, and when they may be short."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqspark.client.remoting.heartbeats import CHANGED, SUPPORTED, Heartbeats
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import ConsumerData, HeartbeatData, SubscriptionData
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import Connection

A, B = "a:1", "b:1"


@dataclass
class Member:
    producer_group: str | None = None
    subscriptions: list[SubscriptionData] = field(default_factory=list)

    def consumer_data(self) -> ConsumerData | None:
        if not self.subscriptions:
            return None
        return ConsumerData(group_name="CG", subscription_data_set=self.subscriptions)


def subscription(topic: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string="*", sub_version=version)


def answer(*, supported: bool = True, changed: bool = False, version: int = 479) -> Command:
    fields = {SUPPORTED: str(supported).lower(), CHANGED: str(changed).lower()}
    (command,) = Connection().receive_data(encode_response(1, 0, fields, version=version))
    return command


def said(beats: Heartbeats, address: str, *members: Member) -> tuple[HeartbeatData, int]:
    body, fingerprint = beats.next(address, members)
    data = decode_body(HeartbeatData, body)
    assert data.heartbeat_fingerprint == fingerprint
    return data, fingerprint


def test_version_1_says_everything_every_time() -> None:
    beats = Heartbeats("me", with_fingerprint=False)
    member = Member("PG", [subscription("T")])
    for _ in range(3):
        data, fingerprint = said(beats, A, member)
        assert (fingerprint, data.without_sub) == (0, False)
        assert [each.group_name for each in data.producer_data_set] == ["PG"]
        assert [each.topic for each in data.consumer_data_set[0].subscription_data_set] == ["T"]
        beats.answered(A, fingerprint, answer())
    assert beats.version(A) == 479
    assert beats.version(B) is None


def test_version_2_leaves_out_what_the_broker_has() -> None:
    beats = Heartbeats("me", with_fingerprint=True)
    member = Member("PG", [subscription("T")])
    data, fingerprint = said(beats, A, member)
    assert fingerprint == 0, "nothing is known of the broker yet"
    beats.answered(A, fingerprint, answer(changed=True))
    data, fingerprint = said(beats, A, member)
    assert fingerprint != 0
    assert data.consumer_data_set[0].subscription_data_set
    beats.answered(A, fingerprint, answer())
    data, again = said(beats, A, member)
    assert (again, data.without_sub) == (fingerprint, True)
    assert [each.group_name for each in data.consumer_data_set] == ["CG"]
    assert data.consumer_data_set[0].subscription_data_set == []
    assert [each.group_name for each in data.producer_data_set] == ["PG"]
    assert member.subscriptions, "the member's own are not touched"
    data, _ = said(beats, B, member)
    assert data.consumer_data_set[0].subscription_data_set, "another broker has nothing yet"


def known(beats: Heartbeats, *members: Member) -> int:
    """A broker that has everything."""
    beats.answered(A, 0, answer())
    _, fingerprint = said(beats, A, *members)
    beats.answered(A, fingerprint, answer())
    data, _ = said(beats, A, *members)
    assert data.without_sub
    return fingerprint


def test_a_change_is_told_in_full() -> None:
    beats = Heartbeats("me", with_fingerprint=True)
    member = Member("PG", [subscription("T")])
    fingerprint = known(beats, member)
    member.subscriptions = [subscription("T", version=2)]
    assert said(beats, A, member)[1] == fingerprint, "when one subscribed does not matter"
    member.subscriptions.append(subscription("U"))
    data, other = said(beats, A, member)
    assert other != fingerprint
    assert not data.without_sub


def test_a_broker_that_forgot_gets_everything_again() -> None:
    beats = Heartbeats("me", with_fingerprint=True)
    member = Member(None, [subscription("T")])
    fingerprint = known(beats, member)
    beats.answered(A, fingerprint, answer(changed=True))
    assert not said(beats, A, member)[0].without_sub
    known(beats, member)
    beats.forget(A)
    data, fingerprint = said(beats, A, member)
    assert (fingerprint, data.without_sub) == (0, False)


def test_an_older_broker_gets_version_1() -> None:
    beats = Heartbeats("me", with_fingerprint=True)
    member = Member(None, [subscription("T")])
    known(beats, member)
    beats.answered(A, 1, answer(supported=False, version=401))
    data, fingerprint = said(beats, A, member)
    assert (fingerprint, data.without_sub) == (0, False)
