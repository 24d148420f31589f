"""A slave's users are its master's: what it asks, what it believes, and what of it is on the wire and on its disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mqspark.auth.authority import Authority
from mqspark.auth.gate import Audited
from mqspark.auth.usercopy import NONCE
from mqspark.errors import ProtocolError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from tests.unit.auth_kit import ROOT, SignedPeer, allow, authority
from tests.unit.broker.replication.test_follower import make_master, make_slave
from tests.unit.broker.replication.test_slave_metadata import next_request
from tests.unit.broker_kit import Bench

R = RequestCode
DENIED = ResponseCode.NO_PERMISSION
INNER = ("inner", "inner-canary")
ALMOST = ("almost", "almost-canary")
ALICE = "alice-canary"
CREDENTIALS = {
    "inner_client_authentication_credentials": json.dumps({"accessKey": INNER[0], "secretKey": INNER[1]})
}


class Pair(NamedTuple):
    master: Bench
    slave: Bench
    audited: list[Audited]
    """At the slave."""

    @property
    def there(self) -> Authority:
        return of(self.master)

    @property
    def here(self) -> Authority:
        return of(self.slave)


def of(bench: Bench) -> Authority:
    one = bench.broker.authority
    assert one is not None
    return one


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Each with a key of its own."""
    audited: list[Audited] = []
    master = make_master(
        tmp_path / "m", new_authority=lambda: authority(tmp_path / "mu", key=b"m" * 32, **CREDENTIALS)
    )
    slave = make_slave(
        tmp_path / "s", new_authority=lambda: authority(tmp_path / "su", audited, b"s" * 32, **CREDENTIALS)
    )
    return Pair(master, slave, audited)


def one_round(pair: Pair, change: Callable[[Command], None] = lambda answer: None) -> Command:
    """Let the slave ask its master once; the answer about users."""
    assert pair.slave.broker.role.metadata is not None
    peer, answer = SignedPeer(pair.master.peer(), *INNER), Command(0)
    requests = pair.slave.broker.role.metadata.read()
    try:
        request = next_request(requests)
        while True:
            answer = peer.ask(request.code, request.ext)
            if request.code == R.AUTH_LIST_USER:
                change(answer)
            request = next_request(requests, answer)
    except StopIteration:
        return answer


def may_ask(bench: Bench, name: str, secret: str) -> bool:
    return (
        SignedPeer(bench.peer(), name, secret).ask(R.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code
        != DENIED
    )


def test_a_slave_lets_in_whom_its_master_lets_in(pair: Pair) -> None:
    allow(pair.there, "alice", "Topic:T Get", secret=ALICE)
    assert not may_ask(pair.slave, "alice", ALICE)
    answer = one_round(pair)
    assert may_ask(pair.slave, "alice", ALICE)
    assert not may_ask(pair.slave, "alice", "guessed")
    other = SignedPeer(pair.slave.peer(), "alice", ALICE).ask(
        R.GET_MAX_OFFSET, {"topic": "U", "queueId": "0"}
    )
    assert other.code == DENIED
    for secret in (ALICE, ROOT[1], INNER[1], "alice", "Topic:T"):
        assert secret.encode() not in bytes(answer.body)
    assert [each.request for each in pair.audited if each.request] == ["COPY_USERS"]


def test_what_is_copied_is_on_disk_under_the_slaves_own_key(pair: Pair, tmp_path: Path) -> None:
    allow(pair.there, "alice", "Topic:T Get", secret=ALICE)
    one_round(pair)
    pair.slave.run_jobs()
    saved = (tmp_path / "su" / "users.auth").read_bytes()
    assert b"alice" in saved
    assert ALICE.encode() not in saved
    pair.slave.close()
    pair.slave.open()
    assert may_ask(pair.slave, "alice", ALICE), "also after a restart, when it may be the master"


def test_what_its_master_takes_away_is_taken_away_at_the_slave(pair: Pair) -> None:
    allow(pair.there, "alice", "Topic:T Get", secret=ALICE)
    allow(pair.there, "bob", "Topic:T Get")
    one_round(pair)
    peer = SignedPeer(pair.slave.peer(), "alice", ALICE)
    ask = (R.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert peer.ask(*ask).code != DENIED
    pair.there.users.change("alice", "another", None, None)
    pair.there.users.remove("bob")
    one_round(pair)
    assert peer.ask(*ask).code == DENIED, "also on a connection that was let in"
    assert may_ask(pair.slave, "alice", "another")
    assert pair.here.users.find("bob") is None


def test_what_has_not_changed_is_neither_sent_nor_saved_again(pair: Pair) -> None:
    for number in range(20):
        allow(pair.there, f"user{number}", "Topic:T Get")
    size = len(one_round(pair).body)
    signer, generation = pair.here.super_signer("inner"), pair.here.users.generation
    answer = one_round(pair)
    assert len(answer.body) < 100 < size
    assert pair.here.users.generation == generation
    pair.there.users.change("user7", "new", None, None)
    one_round(pair)
    assert pair.here.super_signer("inner") is signer, "the proofs of slaves stay valid"


def test_users_of_the_slave_alone_are_forgotten(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    one_round(pair)
    allow(pair.here, "eve", "* All")
    one_round(pair)
    assert pair.here.users.find("eve") is None
    assert "changed on this slave only" in caplog.text


def test_a_change_for_all_brokers_may_reach_the_slave_before_or_after_its_master(pair: Pair) -> None:
    """mqadmin -c sends it to each, in no order."""
    at_master = SignedPeer(pair.master.peer(), *ROOT)
    at_slave = SignedPeer(pair.slave.peer(), *ROOT)
    one_round(pair)
    create = (R.AUTH_CREATE_USER, {"username": "alice"}, json.dumps({"password": ALICE}).encode())
    rule = {"resource": "Topic:T", "actions": ["Get"], "decision": "Allow"}
    policies = json.dumps({"policies": [{"policyType": "Custom", "entries": [rule]}]}).encode()
    put = (R.AUTH_CREATE_ACL, {"subject": "User:alice"}, policies)
    take = (R.AUTH_DELETE_ACL, {"subject": "User:alice"}, b"")
    remove = (R.AUTH_DELETE_USER, {"username": "alice"}, b"")
    for first, second in ((at_slave, at_master), (at_master, at_slave)):
        for request in (create, put, take, remove):
            assert first.ask(*request).code == 0
            if first is at_master:
                one_round(pair)
            assert second.ask(*request).code == 0, request
            one_round(pair)
            assert (pair.here.users.find("alice") is None) == (request is remove)
    assert at_master.ask(*create).code == 0
    assert at_master.ask(*create).remark == "The user is existed", "as in RocketMQ"


@pytest.mark.parametrize("who", [ROOT, ALMOST])
def test_nobody_but_a_server_gets_the_users(pair: Pair, who: tuple[str, str]) -> None:
    """A super user sees no secrets of others; this answer is sealed, but for its asker."""
    allow(pair.there, ALMOST[0], "* All", secret=ALMOST[1])
    answer = SignedPeer(pair.master.peer(), *who).ask(R.AUTH_LIST_USER, {NONCE: "0" * 64})
    assert (answer.code, answer.body) == (DENIED, b"")
    unsigned = pair.master.peer().ask(R.AUTH_LIST_USER, {NONCE: "0" * 64})
    assert (unsigned.code, unsigned.body) == (DENIED, b"")


def test_an_answer_is_good_for_one_question_and_from_its_master_alone(pair: Pair) -> None:
    recorded: list[bytes] = []
    one_round(pair, lambda answer: recorded.append(bytes(answer.body)))
    allow(pair.there, "alice", "Topic:T Get", secret=ALICE)

    def replayed(answer: Command) -> None:
        answer.body = recorded[0]

    def changed(answer: Command) -> None:
        answer.body = bytes(answer.body[:-1]) + bytes([answer.body[-1] ^ 1])

    def forged(answer: Command) -> None:
        answer.body = b'{"version":"1","users":[],"acls":[]}'

    before = pair.here.users.generation
    for lie in (replayed, changed, forged):
        with pytest.raises(ProtocolError, match="another key, or was changed"):
            one_round(pair, lie)
    assert pair.here.users.generation == before
    one_round(pair)
    assert may_ask(pair.slave, "alice", ALICE)


def test_a_slave_with_other_credentials_says_so_and_is_not_complete(pair: Pair) -> None:
    def refused(answer: Command) -> None:
        answer.code, answer.body, answer.remark = DENIED, b"", "only a slave gets the users"

    with pytest.raises(ProtocolError, match="refuses to send its users: only a slave"):
        one_round(pair, refused)
    metadata = pair.slave.broker.role.metadata
    assert metadata is not None
    assert not metadata.is_fresh, "in controller mode it is not counted in"
    one_round(pair)
    assert metadata.is_fresh


def test_a_master_without_users_leaves_the_slave_its_own(tmp_path: Path, pair: Pair) -> None:
    allow(pair.here, "alice", "Topic:T Get", secret=ALICE)

    def rocketmqs(answer: Command) -> None:
        answer.body = b""

    one_round(pair, rocketmqs)
    assert may_ask(pair.slave, "alice", ALICE)
    plain = make_master(tmp_path / "plain")
    one_round(pair._replace(master=plain))
    assert may_ask(pair.slave, "alice", ALICE)


def test_what_cannot_be_the_users_of_a_server_is_not_taken_over(pair: Pair) -> None:
    users, before = pair.here.users, pair.here.users.generation
    root = {"name": "root", "secret": "x", "type": "Super", "status": "enable"}
    acl = {"name": "nobody", "policies": []}
    for document, problem in (
        ({"users": [], "acls": []}, "no enabled super user"),
        ({"users": [{**root, "status": "disable"}], "acls": []}, "no enabled super user"),
        ({"users": [root, root], "acls": []}, "twice"),
        ({"users": [root], "acls": [acl]}, "policies have no user"),
        ({"users": [{**root, "name": "a/../b\n"}], "acls": []}, "illegal characters"),
        ({"users": [{**root, "type": "God"}], "acls": []}, "cannot be read"),
        ({"users": [root], "acls": [{"name": "root", "policies": [{"entries": []}]}]}, "lacks its type"),
        (
            {"users": [root], "acls": [{"name": "root", "policies": [{"policyType": "Custom"}]}]},
            "or its entries",
        ),
        (
            {"users": [{**root, "name": f"u{number}"} for number in range(9_000)], "acls": []},
            "maxAuthTableBytes",
        ),
    ):
        with pytest.raises(ProtocolError, match=problem):
            users.replace(json.dumps(document).encode())
    assert users.generation == before
