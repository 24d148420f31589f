"""Who gets a signed request of our clients can do nothing with it but that request, once, where it was sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark.auth import bindings
from mqspark.auth.access import NoFacts
from mqspark.auth.config import BindingRule
from mqspark.errors import ConfigError
from mqspark.protocol.binding import BINDING, MARK
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import BINARY, Command, encode_request
from mqspark.protocol.session import Session
from mqspark.protocol.signature import Signer
from tests.security.users.conftest import TOPIC_HEADER, Guarded
from tests.support.clocks import ManualClock
from tests.unit.auth_kit import ROOT, SECRET, BoundPeer, SignedPeer, allow, authority
from tests.unit.broker_kit import Bench, Peer, send_ext

R = RequestCode
DENIED = ResponseCode.NO_PERMISSION
LOCAL = "10.0.0.5:10911"
Fields = dict[str, str]


def connected(guarded: Guarded) -> Peer:
    peer = guarded.bench.peer()
    peer.session.local = LOCAL
    return peer


def root_of(guarded: Guarded, connection: str = "c1", **more: object) -> BoundPeer:
    return BoundPeer(connected(guarded), *ROOT, clock=guarded.clock, connection=connection, **more)  # type: ignore[arg-type]


def test_what_a_client_meant_is_done_in_any_number(guarded: Guarded) -> None:
    root = root_of(guarded)
    assert root.ask(R.UPDATE_AND_CREATE_TOPIC, {"topic": "T", **TOPIC_HEADER}).code == 0
    for _ in range(3):
        assert (
            root.ask(R.SEND_MESSAGE_V2, send_ext("T", properties="KEYS\x01ä\x02"), "bödy".encode()).code == 0
        )
        assert root.ask(R.GET_ALL_TOPIC_CONFIG).code == 0
    assert root.ask(R.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0


# --- as another request ---


def test_a_route_that_is_asked_for_is_no_deletion(guarded: Guarded) -> None:
    """What asks a name server for a topic's route deletes the topic at a broker: of RocketMQ's clients, still."""
    guarded.topic("T", "U")
    route = R.GET_ROUTEINFO_BY_TOPIC
    captured = root_of(guarded).signed(route, {"topic": "T"})
    answer = connected(guarded).ask(R.DELETE_TOPIC_IN_BROKER, captured)
    assert (answer.code, "as code 105, not 215" in str(answer.remark)) == (DENIED, True)
    assert guarded.root.ask(R.GET_TOPIC_CONFIG, {"topic": "T"}).code == 0
    plain = Signer(*ROOT).signed({"topic": "U"})
    assert connected(guarded).ask(R.DELETE_TOPIC_IN_BROKER, plain).code == 0


@pytest.mark.parametrize(
    "code", [R.CLEAN_UNUSED_TOPIC, R.GET_BROKER_CONFIG, R.DELETE_EXPIRED_COMMITLOG, R.GET_ALL_CONSUMER_OFFSET]
)
def test_a_request_without_fields_is_no_other(guarded: Guarded, code: int) -> None:
    captured = root_of(guarded).signed(R.GET_BROKER_CLUSTER_INFO)
    assert connected(guarded).ask(code, captured).code == DENIED


def moved(ext: Fields, source: str, target: str, count: int = 1) -> Fields:
    """The last characters of a value at the beginning of the next one."""
    value = ext[source]
    return {**ext, source: value[:-count], target: value[-count:] + ext[target]}


ALTERED: dict[str, Callable[[Fields], Fields]] = {
    "renamed": lambda ext: {"topics" if name == "topic" else name: value for name, value in ext.items()},
    "another field of the same place": lambda ext: {
        "ordes" if name == "order" else name: value for name, value in ext.items()
    },
    "a letter goes to the next field": lambda ext: moved(ext, "readQueueNums", "topic"),
    "a value goes to an empty field": lambda ext: {**ext, "perm": "", "order": ext["order"] + ext["perm"]},
    "an empty field more": lambda ext: {**ext, "topicSysFlag": ""},
    "an empty field less": lambda ext: {name: value for name, value in ext.items() if name != "attributes"},
    "a part is a field of its own": lambda ext: {**ext, "topic": "T", "topid": "opic"},
    "the description is gone": lambda ext: {
        "!" if name == BINDING else name: value for name, value in ext.items()
    },
    "the description is two fields": lambda ext: {**ext, BINDING: ext[BINDING][:9], "!n": ext[BINDING][9:]},
    "the description comes after nothing": lambda ext: {"": "", **ext},
    "the description ends early": lambda ext: {**ext, BINDING: ext[BINDING][:-1], "!n": ";"},
    "the description goes on": lambda ext: {**ext, BINDING: ext[BINDING] + "r", "AccessKey": "oot"},
    "the signature is gone": lambda ext: {name: value for name, value in ext.items() if name != "Signature"},
}


@pytest.mark.parametrize("how", ALTERED)
def test_fields_are_those_that_were_signed(guarded: Guarded, how: str) -> None:
    header = {"topic": "Topic", "order": "", "attributes": "", **TOPIC_HEADER, "readQueueNums": "44"}
    root = root_of(guarded)
    captured = root.signed(R.UPDATE_AND_CREATE_TOPIC, header)
    altered = ALTERED[how](captured)
    assert altered != captured
    assert connected(guarded).ask(R.UPDATE_AND_CREATE_TOPIC, altered).code == DENIED
    assert root.peer.ask(R.UPDATE_AND_CREATE_TOPIC, captured).code == 0, "nothing was altered on the way"


def test_a_body_is_the_one_that_was_signed_and_begins_where_it_began(guarded: Guarded) -> None:
    guarded.topic("T")
    root = root_of(guarded)
    header = send_ext("T", properties="KEYS\x01k\x02")
    captured = root.signed(R.SEND_MESSAGE_V2, header, b"body")
    last = max(name for name in captured if name not in ("Signature", BINDING))
    shorter = {**captured, last: captured[last][:-1]}
    for ext, body in (
        (captured, b"bodY"),
        (captured, b""),
        (captured, b"bodybody"),
        (shorter, captured[last][-1:].encode() + b"body"),
        ({**captured, last: captured[last] + "b"}, b"ody"),
        (
            {name: value for name, value in captured.items() if name != last},
            captured[last].encode() + b"body",
        ),
    ):
        assert connected(guarded).ask(R.SEND_MESSAGE_V2, ext, body).code == DENIED, (ext, body)
    assert root.peer.ask(R.SEND_MESSAGE_V2, captured, b"body").code == 0


def test_a_field_that_old_clients_do_not_sign_is_not_added(guarded: Guarded) -> None:
    guarded.topic("T")
    root = root_of(guarded)
    ext = {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    captured = root.signed(R.QUERY_MESSAGE, ext)
    answer = connected(guarded).ask(R.QUERY_MESSAGE, {**captured, "_UNIQUE_KEY_QUERY": "true"}, version=300)
    assert answer.code == DENIED
    assert root.peer.ask(R.QUERY_MESSAGE, captured).code != DENIED


def test_a_binary_header_cannot_say_what_was_signed(guarded: Guarded) -> None:
    """It has no empty values: they become none at all."""
    root = root_of(guarded)
    captured = root.signed(R.GET_ALL_TOPIC_CONFIG)
    peer = connected(guarded)
    peer.give_frame(encode_request(R.GET_ALL_TOPIC_CONFIG, 1, captured, serialize_type=BINARY))
    guarded.bench.broker.turn()
    assert [each.code for each in peer.heard()] == [DENIED]


def test_the_user_is_the_one_who_signed(guarded: Guarded) -> None:
    guarded.topic("T")
    allow(guarded.one, "alice", "Topic:T Get")
    captured = root_of(guarded).signed(R.GET_TOPIC_CONFIG, {"topic": "T"})
    for user, secret in (("alice", SECRET), ("alice", ROOT[1]), ("nobody", SECRET)):
        forger = Signer(user, secret)
        ext = {**captured, "AccessKey": user}
        forged = {
            **ext,
            "Signature": forger.signed({k: v for k, v in ext.items() if k != "Signature"})["Signature"],
        }
        assert connected(guarded).ask(R.GET_TOPIC_CONFIG, forged).code == DENIED


def test_a_body_that_begins_like_a_description_is_none(tmp_path: Path) -> None:
    """An extension may know the sender of a request without fields."""
    one = authority(tmp_path)
    judge = bindings.Bindings(one.config, NoFacts(), ManualClock())
    (user,) = one.users
    request = Command(R.GET_BROKER_CONFIG, body=MARK.encode() + b"26 - - c 1 1 0 =;")
    problem = judge.problem(Session(1, "127.0.0.1", 1, []), request, bindings.signed_text({}), user)
    assert "taken away or changed" in problem


# --- to another server ---


@pytest.mark.parametrize(
    ("address", "dialled", "is_meant"),
    [
        (("10.0.0.5", 10911), "", True),
        (("10.0.0.5", 10911), "broker-0.example.com:10911", True),
        (("10.0.0.6", 10911), "", False),
        (("10.0.0.5", 9876), "", False),
        (("10.0.0.6", 10911), "broker-0.example.com:10911", False),
        (("10.0.0.6", 10911), LOCAL, False),
        (("203.0.113.9", 30911), "Public.Example.com:30911", True),
        (("203.0.113.9", 30911), "", False),
        (("192.0.2.1", 7), "", True),
    ],
)
def test_a_request_is_for_the_server_that_was_reached(
    tmp_path: Path, address: tuple[str, int], dialled: str, is_meant: bool
) -> None:
    clock = ManualClock()
    own = "public.example.com:30911; 192.0.2.1:7"
    bench = Bench(
        tmp_path,
        new_authority=lambda: authority(tmp_path / "auth", clock=clock, signature_binding_addresses=own),
    )
    peer = bench.peer()
    peer.session.local = LOCAL
    answer = BoundPeer(peer, *ROOT, clock=clock, address=address, dialled=dialled).ask(R.GET_ALL_TOPIC_CONFIG)
    bench.close()
    assert (answer.code == 0) is is_meant
    assert is_meant or "signatureBindingAddresses" in str(answer.remark)


def test_a_server_knows_the_address_that_it_registers(guarded: Guarded) -> None:
    registered = guarded.bench.broker.state.config.address
    host, _, port = registered.rpartition(":")
    assert root_of(guarded, address=(host, int(port))).ask(R.GET_ALL_TOPIC_CONFIG).code == 0


def test_a_connection_without_a_name_is_no_excuse(guarded: Guarded) -> None:
    nowhere = root_of(guarded, address=(), dialled="-")
    nowhere.peer.session.local = ""
    assert nowhere.ask(R.GET_ALL_TOPIC_CONFIG).code == DENIED


# --- at another time ---


@pytest.mark.parametrize(
    ("ms", "is_meant"), [(0, True), (300_000, True), (300_001, False), (-300_001, False)]
)
def test_a_request_is_for_its_time(guarded: Guarded, ms: int, is_meant: bool) -> None:
    guarded.clock.wall_ms += 400_000
    root = root_of(guarded)
    captured = root.signed(R.GET_ALL_TOPIC_CONFIG)
    guarded.clock.wall_ms += ms
    answer = connected(guarded).ask(R.GET_ALL_TOPIC_CONFIG, captured)
    assert (answer.code == 0) is is_meant, answer.remark
    assert is_meant or "signatureBindingWindowSec" in str(answer.remark)


def test_a_request_is_taken_once(guarded: Guarded) -> None:
    root = root_of(guarded)
    captured = [root.signed(R.GET_ALL_TOPIC_CONFIG) for _ in range(3)]
    for ext in captured:
        assert root.peer.ask(R.GET_ALL_TOPIC_CONFIG, ext).code == 0
    for ext in captured:
        for peer in (root.peer, connected(guarded)):
            answer = peer.ask(R.GET_ALL_TOPIC_CONFIG, ext)
            assert (answer.code, "sent before" in str(answer.remark)) == (DENIED, True)
    root.peer.disconnect()
    assert connected(guarded).ask(R.GET_ALL_TOPIC_CONFIG, captured[-1]).code == DENIED
    later = root.signed(R.GET_ALL_TOPIC_CONFIG)
    assert connected(guarded).ask(R.GET_ALL_TOPIC_CONFIG, later).code == DENIED, "of another connection"
    assert root_of(guarded, "c2").ask(R.GET_ALL_TOPIC_CONFIG).code == 0


def test_nothing_is_taken_twice_across_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    for run in range(2):
        bench = Bench(tmp_path, new_authority=lambda: authority(tmp_path / "auth", clock=clock))
        peer = bench.peer()
        peer.session.local = LOCAL
        if run == 0:
            clock.wall_ms += 1
            captured = BoundPeer(peer, *ROOT, clock=clock).signed(R.GET_ALL_TOPIC_CONFIG)
        codes = peer.ask(R.GET_ALL_TOPIC_CONFIG, captured).code
        bench.close()
        assert codes == (0 if run == 0 else DENIED)
        clock.wall_ms += 2_000


def test_a_clock_that_is_set_back_locks_nobody_out(guarded: Guarded) -> None:
    guarded.clock.wall_ms += 10
    captured = root_of(guarded).signed(R.GET_ALL_TOPIC_CONFIG)
    guarded.clock.wall_ms -= 3_600_000
    root = root_of(guarded, "c2")
    assert root.ask(R.GET_ALL_TOPIC_CONFIG).code == DENIED, (
        "signed in the millisecond in which that is noticed"
    )
    guarded.clock.wall_ms += 1
    sent = root.signed(R.GET_ALL_TOPIC_CONFIG)
    assert root.peer.ask(R.GET_ALL_TOPIC_CONFIG, sent).code == 0
    for ext in (sent, captured):
        assert connected(guarded).ask(R.GET_ALL_TOPIC_CONFIG, ext).code == DENIED


def test_a_full_table_lets_nothing_pass_twice_and_keeps_who_is_there(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "MAX_CONNECTIONS", 4)
    used: list[Fields] = []
    stays = root_of(guarded, "stays")
    for number in range(40):
        guarded.clock.wall_ms += 10
        assert stays.ask(R.GET_ALL_TOPIC_CONFIG).code == 0
        guarded.clock.wall_ms += 10
        one = root_of(guarded, f"n{number}")
        used.append(one.signed(R.GET_ALL_TOPIC_CONFIG))
        assert one.peer.ask(R.GET_ALL_TOPIC_CONFIG, used[-1]).code == 0
    for ext in used:
        assert connected(guarded).ask(R.GET_ALL_TOPIC_CONFIG, ext).code == DENIED
    assert stays.ask(R.GET_ALL_TOPIC_CONFIG).code == 0
    guarded.clock.wall_ms += 10
    assert root_of(guarded, "new").ask(R.GET_ALL_TOPIC_CONFIG).code == 0


# --- from whom it is required ---


@pytest.mark.parametrize(
    ("rule", "exempt", "codes"),
    [
        ("ownClients", "", {"root": 0, "alice": 0}),
        ("superUsers", "", {"root": DENIED, "alice": 0}),
        ("superUsers", "other; root", {"root": 0, "alice": 0}),
        ("all", "", {"root": DENIED, "alice": DENIED}),
        ("all", "alice", {"root": DENIED, "alice": 0}),
    ],
)
def test_whose_requests_need_a_bound_signature(
    tmp_path: Path, rule: str, exempt: str, codes: dict[str, int]
) -> None:
    clock = ManualClock()
    bench = Bench(
        tmp_path,
        new_authority=lambda: authority(
            tmp_path / "auth",
            clock=clock,
            signature_binding_required=BindingRule(rule),
            signature_binding_exempt=exempt,
        ),
    )
    one = bench.broker.authority
    assert one is not None
    allow(one, "alice", "Cluster:* Get,List")
    users = {"root": ROOT[1], "alice": SECRET}
    code = R.GET_ALL_TOPIC_CONFIG
    plain = {name: SignedPeer(bench.peer(), name, secret).ask(code) for name, secret in users.items()}
    for name, secret in users.items():
        peer = bench.peer()
        peer.session.local = LOCAL
        assert BoundPeer(peer, name, secret, clock=clock, connection=name).ask(code).code == 0
    bench.close()
    assert {name: answer.code for name, answer in plain.items()} == codes
    for answer in plain.values():
        assert answer.code == 0 or "signatureBindingRequired" in str(answer.remark)


def test_refusals_are_audited(guarded: Guarded) -> None:
    captured = root_of(guarded).signed(R.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    connected(guarded).ask(R.DELETE_TOPIC_IN_BROKER, captured)
    told = guarded.audited[-1]
    assert (told.user, told.code, told.allowed) == ("root", R.DELETE_TOPIC_IN_BROKER, False)
    assert "code 105, not 215" in told.reason


@pytest.mark.parametrize(
    "settings",
    [
        {"signature_binding_addresses": "host"},
        {"signature_binding_addresses": "h:x"},
        {"signature_binding_window_sec": 0},
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="signatureBinding"):
        authority(tmp_path, **settings)
