"""Extension points: what extensions see, what they may refuse, and what becomes of their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mqspark.auth.authority import Authority
from mqspark.base.logs import forget
from mqspark.broker.state.writer import Draft, StoredPosition
from mqspark.errors import ConfigError, InvalidMessage
from mqspark.extensions import (
    Arrival,
    AuthenticationProvider,
    ConsumeAttempt,
    ConsumeHook,
    ConsumeOutcome,
    ReadMessages,
    RefusedByExtension,
    RpcHook,
    RpcRequest,
    SendAttempt,
    SendHook,
    SendOutcome,
    StoreObserver,
    TransactionListener,
)
from mqspark.message import encode_properties
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import encode_response
from mqspark.protocol.extending import EVERY_ROLE, Answer, Extensions, TappedSession
from mqspark.protocol.session import Session
from mqspark_server.settings.entrypoints import GROUP, load_extensions
from mqspark_server.settings.settings import Layer, broker_settings, controller_settings, namesrv_settings
from tests.support.clocks import ManualClock
from tests.support.extension_examples import (
    PAGE,
    Deliveries,
    KeysRequired,
    LastBody,
    NoDeletions,
    Tokens,
    Undecided,
    install_examples,
)
from tests.unit.auth_kit import SECRET, SignedPeer, allow, authority
from tests.unit.broker_kit import SEND, Bench, namesrv_peer, pull_ext, send_ext
from tests.unit.transaction_kit import COMMIT, Kit

KEYED = encode_properties({"KEYS": "k1", "UNIQ_KEY": "U1"}).decode()


def having(*things: object) -> Extensions:
    extensions = Extensions(ManualClock())
    for thing in things:
        assert extensions.add(type(thing).__name__, thing)
    return extensions


def orders_ext(group: str = "G", offset: int = 0) -> dict[str, str]:
    return pull_ext("Orders", 0, offset, consumerGroup=group, sysFlag="6", expressionType="TAG")


# --- each extension point, by the examples of the page ---------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True])
def test_a_send_hook_refuses_and_sees_what_was_stored(tmp_path: Path, sync: bool) -> None:
    hook = KeysRequired()
    bench = Bench(tmp_path, sync=sync, extensions=having(hook))
    peer = bench.peer()
    refused = peer.ask(SEND, send_ext("Orders"), b"x")
    assert (refused.code, refused.remark) == (13, "a message of Orders needs a key")
    assert bench.store.appender.put_count == 0
    assert hook.stored == []
    peer.give(SEND, send_ext("Orders", properties=KEYED), b"x")
    assert hook.stored == []  # not before it is safe
    bench.broker.turn()
    bench.housekeeping()
    assert hook.stored == ["Orders/0/0"]
    assert len(peer.heard()) == 1
    assert peer.ask(SEND, send_ext("T"), b"x").code == 0
    assert hook.stored == ["Orders/0/0", "T/0/0"]
    peer.give(SEND, send_ext("T"), b"x", oneway=True)
    bench.broker.turn()
    assert len(hook.stored) == 2


def test_a_consume_hook_refuses_and_counts_what_is_delivered_late(tmp_path: Path) -> None:
    hook = Deliveries()
    bench = Bench(tmp_path, extensions=having(hook))
    producer, consumer = bench.peer(), bench.peer()
    for _ in range(3):
        producer.ask(SEND, send_ext("Orders"), b"x" * 100)
    refused = consumer.ask(RequestCode.PULL_MESSAGE, orders_ext("Frozen"))
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "the group is frozen")
    assert consumer.ask(RequestCode.PULL_MESSAGE, orders_ext()).code == 0
    assert hook.records == {"G": 3}
    consumer.give(RequestCode.PULL_MESSAGE, orders_ext(offset=3))  # parked
    bench.broker.turn()
    assert not consumer.heard()
    producer.ask(SEND, send_ext("Orders"), b"later")
    assert len(consumer.heard()) == 1
    assert hook.records == {"G": 4}
    pop = {
        "consumerGroup": "P",
        "topic": "Orders",
        "maxMsgNums": "2",
        "invisibleTime": "60000",
        "queueId": "0",
    }
    assert consumer.ask(RequestCode.POP_MESSAGE, {**pop, "initMode": "0"}).code == 0
    assert hook.records == {"G": 4, "P": 2}


def test_a_transaction_listener_sees_checks_ends_and_what_is_given_up(tmp_path: Path) -> None:
    listener = Undecided()
    kit = Kit(tmp_path, extensions=having(listener), transaction_check_max=2)
    kit.producer.ask(SEND, send_ext(), b"so that the topic exists")
    kit.live_producer("c2", "Payments")
    assert kit.end(kit.prepare("U1"), COMMIT).code == 0
    assert listener.ended == [("U1", True)]
    kit.prepare("U2")
    kit.prepare("U3", b"pay", properties={"PGROUP": "Payments"})
    kit.run(40_000)
    assert sorted(listener.due) == ["U2", "U3"]
    payments = kit.alive[1][2]
    assert len(kit.checks()) == 1
    assert not kit.checks(payments)
    kit.run(180_000)
    assert b"pay" in listener.given_up


@pytest.mark.parametrize("also_kept", [False, True])
def test_a_transaction_listener_decides(tmp_path: Path, also_kept: bool) -> None:
    listener = Undecided()
    kit = Kit(tmp_path, extensions=having(listener), transaction_check_max=2)
    kit.producer.ask(SEND, send_ext(), b"so that the topic exists")
    stock = kit.live_producer("c2", "Stock")
    if also_kept:  # a round passes it
        kit.prepare("U0", b"later", properties={"PGROUP": "Stock", "CHECK_IMMUNITY_TIME_IN_SECONDS": "1000"})
    some = kit.prepare("U1", b"some", properties={"PGROUP": "Stock", "left": "3"})
    none = kit.prepare("U2", b"none", properties={"PGROUP": "Stock", "left": "0"})
    kit.run(40_000)
    assert listener.due == ["U1", "U2"]
    assert listener.ended == [("U1", True), ("U2", False)]
    assert not kit.checks(stock)
    assert [message.body for message in kit.messages()] == [b"so that the topic exists", b"some"]
    assert kit.broker.transactions.open_count == also_kept
    for ext in (some, none):  # the producer comes too late
        assert kit.end({**ext, "producerGroup": "Stock"}, COMMIT).code == 0
    kit.run(10_000)
    kit.close()
    kit = Kit(tmp_path, extensions=having(listener), transaction_check_max=2)
    kit.run(80_000)
    assert len(kit.messages()) == 2
    assert listener.due == ["U1", "U2"]


def test_a_decision_that_cannot_be_carried_out_is_the_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(draft: Draft) -> StoredPosition:
        raise InvalidMessage(draft.topic, field="topic")

    listener = Undecided()
    kit = Kit(tmp_path, extensions=having(listener), transaction_check_max=2)
    kit.producer.ask(SEND, send_ext(), b"so that the topic exists")
    stock = kit.live_producer("c2", "Stock")
    kit.prepare("U1", b"some", properties={"PGROUP": "Stock", "left": "3"})
    monkeypatch.setattr(kit.broker.state.writer, "put", refuse)
    kit.run(40_000)
    assert listener.due == ["U1"]
    assert listener.ended == []
    assert len(kit.checks(stock)) == 1


def test_a_store_observer_reads_what_has_become_visible(tmp_path: Path) -> None:
    observer = LastBody()
    bench = Bench(tmp_path, sync=True, extensions=having(observer))
    peer = bench.peer()
    peer.give(SEND, send_ext("Orders"), b"first")
    bench.broker.turn()
    assert observer.bodies == {}  # a power cut could take it back
    bench.flush()
    assert observer.bodies == {"Orders": b"first"}
    assert len(peer.heard()) == 1
    peer.ask(SEND, send_ext("Orders"), b"second")
    assert observer.bodies == {"Orders": b"second"}


def test_an_rpc_hook_refuses_and_sees_all_answers(tmp_path: Path) -> None:
    hook = NoDeletions()
    bench = Bench(tmp_path, extensions=having(hook))
    peer = bench.peer()
    peer.ask(SEND, send_ext("Orders"), b"x")
    refused = peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "Orders stays")
    peer.ask(RequestCode.PULL_MESSAGE, orders_ext())
    peer.ask(RequestCode.PULL_MESSAGE, orders_ext(offset=9))
    peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert hook.answers == {
        (SEND, 0): 1,
        (RequestCode.PULL_MESSAGE, 0): 1,
        (RequestCode.PULL_MESSAGE, ResponseCode.PULL_OFFSET_MOVED): 1,
        (RequestCode.GET_BROKER_RUNTIME_INFO, 0): 1,
    }


def test_an_rpc_hook_of_a_name_server() -> None:
    hook = NoDeletions()
    core, _, peer = namesrv_peer(extensions=having(hook))
    assert peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST
    assert hook.answers == {(RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST): 1}
    core.disconnected(peer.session)


def with_tokens(directory: Path, provider: object) -> Callable[[], Authority]:
    def new() -> Authority:
        extensions = Extensions(ManualClock())
        assert extensions.add("tokens", provider, (AuthenticationProvider,))
        one = authority(directory, clock=ManualClock())
        one.provider = extensions.provider
        allow(one, "anna", "Topic:Orders Pub,Sub", "Group:* Sub")
        allow(one, "bert", "Topic:Orders Pub")
        return one

    return new


def test_an_authentication_provider_says_who_it_is_and_policies_what_they_may(tmp_path: Path) -> None:
    provider = Tokens()
    bench = Bench(tmp_path / "store", new_authority=with_tokens(tmp_path / "auth", provider))
    peer = bench.peer()

    def ask(topic: str, **proof: str) -> tuple[int, str]:
        answer = peer.ask(SEND, {**send_ext(topic), **proof}, b"x")
        return answer.code, answer.remark or ""

    token = {"AccessKey": "token", "Signature": "s3cret-token-of-anna"}
    assert ask("Orders", **token)[0] == 0
    assert ask("Other", **token)[0] == ResponseCode.NO_PERMISSION
    assert ask("Orders", AccessKey="token", Signature="guess") == (16, "this token is not known")
    assert ask("Orders")[0] == 16  # nobody
    provider.users["t2"] = "nobody-of-ours"
    assert ask("Orders", AccessKey="token", Signature="t2")[0] == 16
    # Whom it leaves to the signature has to sign.
    assert SignedPeer(bench.peer(), "bert", SECRET).ask(SEND, send_ext("Orders"), b"x").code == 0
    assert SignedPeer(bench.peer(), "bert", "wrong").ask(SEND, send_ext("Orders"), b"x").code == 16


def test_who_guesses_tokens_waits(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", new_authority=with_tokens(tmp_path / "auth", Tokens()))
    remarks = [
        bench.peer().ask(SEND, {**send_ext("Orders"), "AccessKey": "token", "Signature": f"{n}"}, b"x").remark
        for n in range(30)
    ]
    assert remarks[0] == "this token is not known"
    assert "too many wrong signatures" in (remarks[-1] or "")


# --- errors ----------------------------------------------------------------------------------------------------


class Broken(SendHook, ConsumeHook, TransactionListener, StoreObserver):
    """Fails wherever its contract says that an error is ignored."""

    def before_send(self, attempt: SendAttempt, body: bytes | memoryview) -> None:
        raise ValueError("before")

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        raise RefusedByExtension("too late")

    def before_consume(self, attempt: ConsumeAttempt) -> None:
        raise KeyError("before")

    def after_consume(self, attempt: ConsumeAttempt, outcome: ConsumeOutcome) -> None:
        raise OSError("after")

    def arrived(self, arrivals: Sequence[Arrival], read: ReadMessages) -> None:
        raise RuntimeError("arrived")


def test_errors_that_are_ignored_are_counted_and_logged_with_the_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forget()
    extensions = having(Broken())
    bench = Bench(tmp_path, extensions=extensions)
    peer = bench.peer()
    assert peer.ask(SEND, send_ext("Orders"), b"x").code == 0
    assert peer.ask(RequestCode.PULL_MESSAGE, orders_ext()).code == 0
    counts = extensions.counts["Broken"]
    assert (counts.errors, counts.refusals) == (4, 1)
    failed = [record.getMessage() for record in caplog.records if record.name == "mqspark.extension.Broken"]
    assert "extension Broken failed in before_send" in failed
    assert "extension Broken failed in arrived" in failed


class Failing(RpcHook):
    def before_request(self, request: RpcRequest, body: bytes | memoryview) -> None:
        raise ZeroDivisionError("secret of the extension")


def test_an_error_before_a_request_refuses_it_and_tells_no_secret(tmp_path: Path) -> None:
    bench = Bench(tmp_path, extensions=having(Failing()))
    answer = bench.peer().ask(SEND, send_ext("Orders"), b"x")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the extension Failing failed")
    assert bench.store.appender.put_count == 0


class FailingProvider(Tokens):
    def authenticate(self, credentials: object) -> str | None:
        raise ZeroDivisionError


def test_an_error_of_the_authentication_provider_lets_nobody_in(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", new_authority=with_tokens(tmp_path / "auth", FailingProvider()))
    answer = SignedPeer(bench.peer(), "bert", SECRET).ask(SEND, send_ext("Orders"), b"x")
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "the extension tokens failed")


@pytest.mark.parametrize("code", [0, -1, 1 << 40, None, "13"])
def test_a_refusal_is_never_a_success(code: Any) -> None:
    class Odd(RpcHook):
        def before_request(self, request: RpcRequest, body: bytes | memoryview) -> None:
            raise RefusedByExtension("no", code)

    _, _, peer = namesrv_peer(extensions=having(Odd()))
    assert peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.NO_PERMISSION


def test_what_cannot_be_read_of_an_answer_is_sent_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    session = TappedSession(1, "127.0.0.1", 1, [])
    session.expect(1, lambda answer: None, 10, Extensions(ManualClock()).ledger)
    session.send(b"no frame")
    assert session.take() == [b"no frame"]
    assert "extensions could not be told about an answer" in caplog.text


def test_a_slow_extension_is_named(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    clock = ManualClock()

    class Slow(RpcHook):
        def before_request(self, request: RpcRequest, body: bytes | memoryview) -> None:
            clock.advance(250)

    extensions = Extensions(clock)
    extensions.add("sleepy", Slow())
    _, _, peer = namesrv_peer(extensions=extensions)
    peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert (extensions.counts["sleepy"].slow, extensions.counts["sleepy"].slowest_ms) == (1, 250)
    assert "extension sleepy took 250 ms in before_request" in caplog.text


# --- answers ---------------------------------------------------------------------------------------------------


def test_without_extensions_nothing_is_wrapped(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert type(bench.peer().session) is Session
    assert bench.broker.extensions is None


def test_what_waits_for_answers_is_bounded_and_freed(tmp_path: Path) -> None:
    extensions = having(NoDeletions(), Deliveries())
    bench = Bench(tmp_path, extensions=extensions)
    bench.peer().ask(SEND, send_ext("Orders"), b"x")
    peer = bench.peer()
    for _ in range(100):
        peer.give(RequestCode.PULL_MESSAGE, orders_ext(offset=1))
    bench.broker.turn()
    assert extensions.ledger.entries == 200  # each is parked, and two hooks wait for its answer
    assert extensions.ledger.bytes > 100 * 500
    peer.disconnect()
    assert (extensions.ledger.entries, extensions.ledger.bytes) == (0, 0)


def test_answers_are_found_in_whatever_buffers_they_are_sent() -> None:
    frames = encode_response(1, 0, {"a": "1"}, b"one") + encode_response(2, 19, remark="no")
    head, records = encode_response(3, 0, None, b"x" * 40)[:-40], [b"x" * 25, memoryview(b"x" * 15)]
    extensions = Extensions(ManualClock())
    session = TappedSession(1, "127.0.0.1", 1, [])
    seen: list[Answer] = []
    for opaque in (1, 2, 3, 4):
        session.expect(opaque, seen.append, 10, extensions.ledger)
    session.send(frames)
    session.send_sized(head, records, 40)
    assert [(each.command.opaque, each.command.code, each.body_bytes) for each in seen] == [
        (1, 0, 3),
        (2, 19, 0),
        (3, 0, 40),
    ]
    assert seen[0].command.ext == {"a": "1"}
    assert [bytes(part) for part in seen[2].body] == [b"x" * 25, b"x" * 15]
    assert extensions.ledger.entries == 1


# --- loading ---------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the examples as entry points, and one that says when it is imported."""
    install_examples(
        tmp_path,
        "unasked = shop_unasked:Unasked\nnothing = collections:OrderedDict\nasync-hook = shop_hooks:Async\n",
    )
    (tmp_path / "shop_unasked.py").write_text("raise RuntimeError('nobody asked for this')\n")
    (tmp_path / "shop_hooks.py").write_text(
        "class Async:\n    async def before_send(self, a, b): ...\n    def after_send(self, a, b): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_what_the_settings_name_is_loaded_and_nothing_else(installed: Path) -> None:
    found = load_extensions(
        ManualClock(), "keys-required, no-deletions", observers="last-body", provider="tokens"
    )
    assert found is not None
    assert list(found.counts) == ["keys-required", "no-deletions", "last-body", "tokens"]
    assert [type(each.hooks) for each in (*found.sends, *found.rpc, *found.observers)] == [
        KeysRequired,
        NoDeletions,
        LastBody,
    ]
    assert found.provider is not None
    assert load_extensions(ManualClock(), " , ") is None


@pytest.mark.parametrize(
    ("settings", "key", "text"),
    [
        ({"names": "missing"}, "extensions", "no installed package has an entry point"),
        ({"names": "unasked"}, "extensions", "RuntimeError: nobody asked for this"),
        ({"names": "nothing"}, "extensions", "does not implement ConsumeHook or RpcHook or SendHook"),
        ({"names": "tokens"}, "extensions", "does not implement "),
        ({"names": "async-hook"}, "extensions", "before_send is a coroutine function"),
        ({"names": "no-deletions,no-deletions"}, "extensions", "twice"),
        ({"names": "../x"}, "extensions", "not a valid name of an entry point"),
        ({"names": "x\nINFO forged"}, "extensions", "not a valid name of an entry point"),
        (
            {"names": "", "observers": "keys-required"},
            "messageStorePlugIn",
            "does not implement StoreObserver",
        ),
        ({"names": "", "observers": "org.example.Plugin"}, "messageStorePlugIn", "no installed package"),
        (
            {"names": "", "provider": "last-body"},
            "authenticationProvider",
            "does not implement AuthenticationProvider",
        ),
    ],
)
def test_what_cannot_be_loaded_stops_the_start(
    installed: Path, settings: dict[str, str], key: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)) as caught:
        load_extensions(ManualClock(), **settings)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_two_packages_with_one_name_are_an_error(installed: Path) -> None:
    other = installed / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text(f"[{GROUP}]\nlast-body = shop_unasked:Unasked\n")
    with pytest.raises(ConfigError, match="several packages provide it"):
        load_extensions(ManualClock(), "last-body")


def test_the_settings_of_each_process() -> None:
    default = "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"
    layer = Layer("broker.conf", {"messageStorePlugIn": "last-body", "authenticationProvider": default})
    settings = broker_settings({}, layer, use_environment=False)
    assert (settings.broker.message_store_plug_in, settings.auth.authentication_provider) == ("last-body", "")
    assert settings.unused == []
    with pytest.raises(ConfigError, match="authenticationProvider needs authenticationEnabled"):
        broker_settings({}, Layer("broker.conf", {"authenticationProvider": "tokens"}))
    assert namesrv_settings({}, Layer("n.conf", {"extensions": "no-deletions"})).server.extensions
    with pytest.raises(ConfigError, match="setting of brokers"):
        namesrv_settings({}, Layer("n.conf", {"messageStorePlugIn": "last-body"}))
    with pytest.raises(ConfigError, match="a controller has no extension points"):
        controller_settings({}, Layer("c.conf", {"extensions": "no-deletions"}))


def test_no_request_changes_which_extensions_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    answer = bench.peer().ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"messageStorePlugIn=last-body\n")
    assert answer.code == ResponseCode.NO_PERMISSION


# --- the page --------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page_are_those_that_are_tested() -> None:
    tested = [KeysRequired, Deliveries, Undecided, LastBody, NoDeletions, Tokens]
    assert re.findall(r"^class (\w+)\(", PAGE, re.MULTILINE) == [each.__name__ for each in tested]


def test_the_page_names_every_extension_point() -> None:
    assert all(f"`{role.__name__}`" in PAGE for role in (*EVERY_ROLE, AuthenticationProvider))
