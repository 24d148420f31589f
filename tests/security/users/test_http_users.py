"""HTTP of a broker with users, and changes on one without: who is let in, what they may do, what the audit log says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from mqspark.auth import failures as of_failures
from mqspark.auth.failures import FAILURES, Attempts, Failures
from mqspark.auth.policies import AclPolicy, Action, Entry, PolicyType
from mqspark.auth.users import MAX_ENTRIES, Users, UserStatus, UserType
from mqspark.errors import ConfigError
from mqspark.testing import Broker
from mqspark_server.broker_app import BrokerApp
from mqspark_server.net.guards import CONNECTION_S
from mqspark_server.net.servertls import TlsStream
from mqspark_server.settings.settings import Layer, broker_settings, consent_to_anonymous
from mqspark_server.web import httpguard
from mqspark_server.web.logins import IDLE_MS, LONGEST_MS, MAX_LOGINS, MAX_LOGINS_OF_ONE, Logins
from mqspark_server.web.requestbodies import STRANGERS_BYTES
from tests.support.users import with_users
from tests.support.waiting import eventually

ROOT = ("root", "root-canary-secret")
READER = ("reader", "reader-canary-secret")
SESSION = "/api/v1/session"
ORDERS = "/api/v1/topics/Orders/messages"
PROTECTED = (
    "/metrics",
    "/api/v1/cluster",
    "/api/v1/topics",
    "/api/v1/topics/Orders",
    "/api/v1/groups",
    "/api/v1/groups/g",
)


def settings_of(folder: Path, **more: Any) -> dict[str, Any]:
    return with_users(ROOT, None, authConfigPath=str(folder / "users"), **more)


def users_of(broker: Broker) -> Users:
    parts = broker.apps[0].parts
    assert parts is not None
    authority = parts.core.authority
    assert authority is not None
    return authority.users


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http-users")


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[Broker]:
    with Broker(http=True, settings=settings_of(folder)) as running:

        def add() -> None:
            users = users_of(running)
            users.add(*READER)
            entries = (
                Entry.parse("Topic:Orders", ["Get", "Pub"], "Allow", []),
                Entry.parse("Topic:Elsewhere", ["Get"], "Allow", ["10.0.0.0/8"]),
            )
            users.update_acl(READER[0], [AclPolicy(PolicyType.CUSTOM, entries)])

        running.call(add)
        yield running


@pytest.fixture
def http(guarded: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.http_url or "", timeout=60) as client:
        yield client


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test may fail to log in as often as it likes, unless it says otherwise."""
    monkeypatch.setattr(Failures, "most", 10_000)


def log_in(http: httpx.Client, user: tuple[str, str], **more: Any) -> dict[str, Any]:
    answer = http.post(SESSION, json={"accessKey": user[0], "secretKey": user[1], **more})
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


# --- who ---


@pytest.mark.parametrize("path", PROTECTED)
def test_nobody_reads(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"] == 'Bearer realm="mqspark"'
    assert answer.json()["status"] == 401


def test_nobody_writes(http: httpx.Client) -> None:
    assert http.post(ORDERS, json={"body": "x"}).status_code == 401
    lines = {"content-type": "application/x-ndjson"}
    for topic, user, status in (("Orders", None, 401), ("Elsewhere", READER, 403), ("Orders", READER, 200)):
        answer = http.post(f"/api/v1/topics/{topic}/ingest", headers=lines, auth=user)
        assert answer.status_code == status, (
            "it would hold a place of those who may, as long as its body comes"
        )


@pytest.mark.parametrize("path", [SESSION, ORDERS, "/subjects/Orders-value/versions"])
def test_nobody_sends_more_than_a_login_takes(http: httpx.Client, path: str) -> None:
    """A document is parsed before its route knows who has sent it: 5 MB of fields held the broker for 3 s."""
    fields = {"accessKey": "x", "secretKey": "y", "schema": "z" * STRANGERS_BYTES}
    for credentials in (None, ("reader", "guess")):
        answer = http.post(path, json=fields, auth=credentials)
        assert (answer.status_code, len(answer.content) < 1_000) == (401, True), answer.text
    answer = http.post("/console/login", data={"user": "x", "secret": "y" * STRANGERS_BYTES})
    assert (answer.status_code, f"at most {STRANGERS_BYTES} bytes" in answer.text) == (400, True)
    assert http.post(ORDERS, json={"body": "x" * 100_000}, auth=READER).status_code == 201


def test_nobody_learns_more_of_the_health_than_whether_it_is_well(http: httpx.Client) -> None:
    assert http.get("/health/live").json() == {"status": "live"}
    assert http.get("/health/ready").json() == {"status": "ready"}
    assert "store" in http.get("/health/ready", auth=ROOT).json()


@pytest.mark.parametrize(
    "authorization",
    [
        "Basic",
        "Basic !",
        "Basic cm9vdA==",
        "Basic /w==",
        "Bearer",
        "Bearer x",
        "Bearer \xe9",
        "Digest x",
        "",
        "Basic " + "A" * 5000,
    ],
)
def test_credentials_that_are_none_are_refused_not_ignored(http: httpx.Client, authorization: str) -> None:
    answer = http.get("/health/live", headers={"authorization": authorization.encode("latin-1")})
    assert answer.status_code == 200
    answer = http.get("/api/v1/cluster", headers={"authorization": authorization.encode("latin-1")})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "user", [("root", "x"), ("root", ""), ("nobody", ROOT[1]), ("", ""), ("root", "\x00"), ("r" * 500, "x")]
)
def test_wrong_secrets_are_refused_alike(http: httpx.Client, user: tuple[str, str]) -> None:
    answer = http.get("/api/v1/cluster", auth=user)
    assert answer.status_code == 401
    assert answer.json()["detail"] == "the access key or the secret is wrong, or the user is disabled"


def test_credentials_may_not_come_twice(http: httpx.Client) -> None:
    headers = [("authorization", "Bearer x"), ("authorization", "Bearer y")]
    assert http.get("/api/v1/cluster", headers=headers).status_code == 400


def test_a_super_user_may_do_everything(http: httpx.Client) -> None:
    for path in PROTECTED:
        assert http.get(path, auth=ROOT).status_code in (200, 404)
    assert http.post(ORDERS, json={"body": "x"}, auth=ROOT).status_code == 201


def test_metrics_say_of_what_users_were_refused_more(http: httpx.Client) -> None:
    text = http.get("/metrics", auth=ROOT).text
    kinds = set(re.findall(r'mqspark_user_share_refused_total\{[^}]*kind="(\w+)"', text))
    assert {"topics", "groups", "offsets", "clients", "parkedPulls", "parkedPops", "halfMessages"} <= kinds
    assert {"delayedMessages", "checkPoints", "liteSubscriptions", "queueLocks"} <= kinds


def test_a_user_may_do_what_policies_say_from_where_they_say(http: httpx.Client) -> None:
    assert http.post(ORDERS, json={"body": "x"}, auth=READER).status_code == 201
    assert http.get("/api/v1/topics/Orders", auth=READER).status_code == 200
    for path in (
        "/metrics",
        "/api/v1/cluster",
        "/api/v1/topics",
        "/api/v1/topics/Elsewhere",
        "/api/v1/groups/g",
    ):
        answer = http.get(path, auth=READER)
        assert answer.status_code == 403
        assert "User:reader has no permission" in answer.json()["detail"]
    denied = http.post("/api/v1/topics/Elsewhere/messages", json={"body": "x"}, auth=READER)
    assert denied.status_code == 403
    # A dead-letter topic is its group's, and the broker's own topics are the cluster's, whatever the name says.
    for name in ("%DLQ%g", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"):
        assert http.get(f"/api/v1/topics/{name}", auth=READER).status_code == 403


def test_the_loopback_token_opens_nothing_where_there_are_users(http: httpx.Client, guarded: Broker) -> None:
    token = guarded.apps[0].loopback_token
    assert http.get("/api/v1/cluster", headers={"authorization": f"Bearer {token}"}).status_code == 401
    assert http.post(SESSION, json={"token": token}).status_code == 401


# --- sessions ---


def test_a_session_of_a_page(http: httpx.Client) -> None:
    answer = http.post(SESSION, json={"accessKey": ROOT[0], "secretKey": ROOT[1]})
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert answer.headers["cache-control"] == "no-store"
    token = answer.json()["csrfToken"]
    assert http.get("/api/v1/cluster").status_code == 200
    seen = http.get(SESSION).json()
    assert (seen["user"], seen["how"], seen["csrfToken"], seen["mayChange"]) == (
        "root",
        "session",
        token,
        True,
    )
    for headers in ({}, {"x-csrf-token": ""}, {"x-csrf-token": "x"}, {"x-csrf-token": token[:-1]}):
        assert http.post(ORDERS, json={"body": "x"}, headers=headers).status_code == 403
    assert http.post(ORDERS, json={"body": "x"}, headers={"x-csrf-token": token}).status_code == 201
    assert http.delete(SESSION).status_code == 403
    stolen = {"cookie": "; ".join(f"{name}={value}" for name, value in http.cookies.items())}
    assert http.delete(SESSION, headers={"x-csrf-token": token}).status_code == 204
    assert http.get("/api/v1/cluster", headers=stolen).status_code == 401


def test_a_bearers_token_is_no_cookie_and_a_cookie_no_token(http: httpx.Client) -> None:
    session = log_in(http, ROOT, bearer=True)
    assert session["csrfToken"] is None
    assert not http.cookies
    bearer = {"authorization": f"Bearer {session['bearerToken']}"}
    assert http.post(ORDERS, json={"body": "x"}, headers=bearer).status_code == 201
    cookie = {"cookie": f"mqspark-{http.base_url.port}={session['bearerToken']}"}
    assert http.get("/api/v1/cluster", headers=cookie).status_code == 401
    assert http.post(ORDERS, json={"body": "x"}, headers=cookie).status_code == 401
    http.cookies.clear()
    log_in(http, ROOT)
    (value,) = http.cookies.values()
    http.cookies.clear()
    assert http.get("/api/v1/cluster", headers={"authorization": f"Bearer {value}"}).status_code == 401
    assert http.delete(SESSION, headers=bearer).status_code == 204
    assert http.get("/api/v1/cluster", headers=bearer).status_code == 401


def test_a_token_that_only_reads(http: httpx.Client) -> None:
    session = log_in(http, ROOT, bearer=True, readOnly=True, lastsSeconds=60)
    assert session["expiresInSeconds"] in (59, 60)
    bearer = {"authorization": f"Bearer {session['bearerToken']}"}
    assert http.get("/api/v1/cluster", headers=bearer).status_code == 200
    answer = http.post(ORDERS, json={"body": "x"}, headers=bearer)
    assert (answer.status_code, "only reads" in answer.text) == (403, True)


@pytest.mark.parametrize("change", ["disabled", "another secret", "removed"])
def test_a_session_ends_with_its_user(http: httpx.Client, guarded: Broker, change: str) -> None:
    user = ("leaver", "leaver-canary-secret")
    guarded.call(lambda: users_of(guarded).add(*user, UserType.SUPER))
    try:
        bearer = {"authorization": f"Bearer {log_in(http, user, bearer=True)['bearerToken']}"}
        assert http.get("/api/v1/cluster", headers=bearer).status_code == 200

        def leave() -> None:
            if change == "disabled":
                users_of(guarded).change("leaver", None, None, UserStatus.DISABLE)
            elif change == "removed":
                users_of(guarded).remove("leaver")
            else:
                users_of(guarded).change("leaver", "another-canary-secret", None, None)

        guarded.call(leave)
        assert http.get("/api/v1/cluster", headers=bearer).status_code == 401
    finally:
        guarded.call(lambda: users_of(guarded).remove("leaver"))


def test_sessions_end_and_are_bounded() -> None:
    logins = Logins()
    cookie, _ = logins.open("u", "proof", 0)
    assert logins.find(cookie, IDLE_MS - 1) is not None
    assert logins.find(cookie, 2 * IDLE_MS) is None
    used, login = logins.open("u", "proof", 0)
    for now_ms in range(0, LONGEST_MS, IDLE_MS // 2):
        assert logins.find(used, now_ms) is login
    assert logins.find(used, LONGEST_MS) is None
    first, _ = logins.open("other", "proof", 0)
    many = [logins.open("u", "proof", number)[0] for number in range(MAX_LOGINS_OF_ONE + 1)]
    assert logins.find(many[0], 100) is None
    assert logins.find(many[1], 100) is not None
    assert logins.find(first, 100) is not None
    for number in range(2 * MAX_LOGINS):
        logins.open(f"u{number}", "proof", 200)
    assert len(logins) == MAX_LOGINS
    assert logins.find(f"{cookie}\ud800", 200) is None


def test_a_live_tail_ends_with_its_token(http: httpx.Client) -> None:
    assert http.post(ORDERS, json={"body": "x"}, auth=ROOT).status_code in (200, 201)
    bearer = {"authorization": f"Bearer {log_in(http, ROOT, bearer=True)['bearerToken']}"}
    with http.stream("GET", ORDERS.replace("/messages", "/tail"), headers=bearer) as tail:
        lines = tail.iter_lines()
        assert next(lines).startswith(":")
        assert http.delete(SESSION, headers=bearer).status_code in (200, 204)
        assert http.post(ORDERS, json={"body": "secret of later"}, auth=ROOT).status_code in (200, 201)
        rest = "\n".join(lines)
    assert "the login is over" in rest
    assert "secret of later" not in rest


# --- guessing ---


def test_an_address_that_fails_too_often_has_to_wait(
    http: httpx.Client, guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = log_in(http, ROOT, bearer=True)
    http.get("/health/live")
    monkeypatch.setattr(Failures, "most", FAILURES)
    callers = Attempts()
    api = next(c for c in _callers(guarded))
    monkeypatch.setattr(api, "_failures", callers)
    codes = [
        http.get("/api/v1/cluster", auth=("root", f"guess-{n}")).status_code for n in range(FAILURES + 3)
    ]
    assert codes == [401] * FAILURES + [429] * 3
    refused = http.get("/api/v1/cluster", auth=ROOT)  # a right guess must not show
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 6
    assert http.post(SESSION, json={"accessKey": ROOT[0], "secretKey": ROOT[1]}).status_code == 429
    bearer = {"authorization": f"Bearer {session['bearerToken']}"}
    assert http.get("/api/v1/cluster", headers=bearer).status_code == 200  # who is in stays in


def test_a_stranger_keeps_nobody_else_at_the_address_out(
    http: httpx.Client, guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failures, "most", FAILURES)
    monkeypatch.setattr(next(iter(_callers(guarded))), "_failures", Attempts())
    wrong = [http.get("/api/v1/cluster", auth=("nobody", str(n))).status_code for n in range(FAILURES + 1)]
    assert wrong == [401] * FAILURES + [429]
    assert http.get("/api/v1/cluster", auth=ROOT).status_code == 200


def _callers(broker: Broker) -> list[Any]:
    import gc

    from mqspark_server.web.callers import Callers

    return [one for one in gc.get_objects() if isinstance(one, Callers) and one._app is broker.apps[0]]


def test_failures_are_forgotten_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failures, "most", FAILURES)
    failures = Failures()
    for _ in range(FAILURES):
        assert failures.wait_ms("10.0.0.1", 0) == 0
        failures.note("10.0.0.1", 0)
    assert failures.wait_ms("10.0.0.1", 0) == of_failures.REGAIN_MS
    assert failures.wait_ms("10.0.0.1", of_failures.REGAIN_MS) == 0
    assert failures.wait_ms("10.0.0.2", 0) == 0
    for _ in range(FAILURES):
        failures.note("2001:db8::1", 0)
    assert failures.wait_ms("2001:db8::ffff", 0) > 0
    assert failures.wait_ms("2001:db8:0:1::1", 0) == 0
    for number in range(of_failures.MAX_KEYS + 1_000):
        failures.note(f"10.1.{number // 250}.{number % 250}", number)
    for address, is_known in ((f"10.1.{number // 250}.{number % 250}", True), ("10.1.0.0", False)):
        for _ in range(FAILURES - 1):
            failures.note(address, number)
        assert bool(failures.wait_ms(address, number)) is is_known, "the oldest are forgotten"


# --- what is told ---


def test_everything_is_in_the_audit_log_and_no_secret_is(http: httpx.Client, folder: Path) -> None:
    http.get("/api/v1/cluster", auth=("root", "wrong-canary"))
    log_in(http, ROOT)
    http.cookies.clear()
    http.get("/metrics", auth=READER)
    http.post("/api/v1/topics/Elsewhere/messages", json={"body": "x"}, auth=READER)
    text = (folder / "users" / "audit.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    told = {(line["user"], line["request"], line["decision"]) for line in lines}
    assert {
        ("root", "HTTP LOGIN", "denied"),
        ("root", "HTTP LOGIN", "allowed"),
        ("reader", "GET /metrics", "denied"),
        ("reader", "SEND_MESSAGE_V2", "denied"),
    } <= told
    assert all(
        line["peer"].startswith("127.0.0.1:") and not line["peer"].endswith(":0")
        for line in lines
        if line["user"] == "reader"
    )
    assert "canary" not in text


# --- without users ---


@pytest.fixture(scope="module")
def free() -> Iterator[Broker]:
    with Broker(http=True) as running:
        yield running


def test_the_loopback_token_is_needed_for_more_than_messages(free: Broker) -> None:
    with httpx.Client(base_url=free.http_url or "", timeout=60) as http:
        assert http.get("/api/v1/cluster").status_code == 200
        assert http.post(ORDERS, json={"body": "x"}).status_code == 201
        assert http.get(SESSION).json()["mayChange"] is False
        assert http.post(SESSION, json={"token": "x"}).status_code == 401
        assert http.get("/api/v1/cluster", auth=ROOT).status_code == 403
        token = free.apps[0].loopback_token
        bearer = {"authorization": f"Bearer {token}"}
        assert http.get(SESSION, headers=bearer).json()["mayChange"] is True
        answer = http.post(SESSION, json={"token": token})
        assert answer.status_code == 201
        assert http.get(SESSION).json()["how"] == "session"


# --- TLS ---


def check_turns_of_handshakes(address: tuple[str, int]) -> None:
    """In one iteration of the loop is time for one that is slow, however many peers begin at once."""
    iterations, begun, made = list[None](), list[int](), list[TlsStream]()
    all_sent = threading.Event()

    class Slow(TlsStream):
        def __init__(self, context: ssl.SSLContext) -> None:
            super().__init__(context)
            made.append(self)

        def shake_hands(self) -> bool:
            begun.append(len(iterations))
            asyncio.get_running_loop().call_soon(iterations.append, None)
            all_sent.wait(60)
            time.sleep(2 * CONNECTION_S)
            return False

    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(httpguard, "TlsStream", Slow)
        peers = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(20)]
        eventually(lambda: len(made) == len(peers))
        for peer in peers:
            peer.sendall(b"\x16\x03\x01\x00\x01\x01")
        all_sent.set()
        eventually(lambda: len(begun) == len(peers))
    assert len(set(begun)) == len(peers)


def test_https_alone_with_secure_cookies(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    settings = settings_of(tmp_path, httpTlsCertPath=str(tmp_path / "server.pem"))
    with Broker(http=True, settings=settings) as broker:
        url = broker.http_url or ""
        assert url.startswith("https://127.0.0.1:")
        host, port = "127.0.0.1", int(url.rpartition(":")[2])
        with httpx.Client(base_url=url, verify=context, timeout=60) as http:
            assert http.get("/api/v1/cluster").status_code == 401
            answer = http.post(SESSION, json={"accessKey": ROOT[0], "secretKey": ROOT[1]})
            name, _, rest = answer.headers["set-cookie"].partition("=")
            assert name == f"__Host-mqspark-{port}"
            assert {"Secure", "Path=/"} <= {*rest.split("; ")}
            entered = http.post("/console/login", data={"user": ROOT[0], "secret": ROOT[1]})
            name, _, rest = entered.headers["set-cookie"].partition("=")
            assert name == f"__Host-mqspark-console-{port}"
            assert {"Secure", "Path=/"} <= {*rest.split("; ")}  # a browser drops it with another path
            assert http.get("/console/topics").status_code == 200
            body = "x" * 300_000
            token = {"x-csrf-token": answer.json()["csrfToken"]}
            assert http.post(ORDERS, json={"body": body}, headers=token).status_code == 201
        check_turns_of_handshakes((host, port))
        with socket.create_connection((host, port), timeout=60) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"https alone" in sock.recv(1 << 16)
        with socket.create_connection((host, port), timeout=60) as sock:
            sock.sendall(b"\x16\x03\x01\xff\xff" + b"x" * 1000)
            sock.settimeout(60)
            while sock.recv(1 << 16):
                pass


OPEN = {"httpBindAddress": "192.0.2.1", "listenPort": 0, "bindAddress": "127.0.0.1"}


def test_secrets_in_clear_need_consent(tmp_path: Path) -> None:
    users = settings_of(tmp_path)
    with pytest.raises(ConfigError, match="httpAllowPlaintext"):
        broker_settings({}, Layer("test", {**OPEN, **users}))
    broker_settings({}, Layer("test", {**OPEN, **users, "httpAllowPlaintext": True}))
    broker_settings({}, Layer("test", {**OPEN, **users, "httpEnable": False}))
    shared = broker_settings({}, Layer("test", {**OPEN, **users, "tls.server.certPath": "x.pem"}))
    assert shared.server.http_tls is not None


def test_http_on_an_open_address_without_users_needs_consent() -> None:
    layer = Layer("test", OPEN)
    settings = broker_settings({}, layer)
    with pytest.raises(ConfigError, match="over HTTP"):
        consent_to_anonymous(settings.server, settings.auth, layer)
    layer = Layer("test", {**OPEN, "allowAnonymous": True})
    settings = broker_settings({}, layer)
    assert "over HTTP" in (consent_to_anonymous(settings.server, settings.auth, layer) or "")


@pytest.mark.parametrize("consents", [False, True])
def test_secrets_from_other_hosts_in_clear_are_refused(tmp_path: Path, consents: bool) -> None:
    from mqspark_server.web.callers import Callers
    from mqspark_server.web.problems import Problem

    layer = Layer("test", {"httpAllowPlaintext": consents, "storePathRootDir": str(tmp_path)})
    app = BrokerApp(broker_settings({}, layer))

    def asked(host: str, scheme: str = "http") -> int:
        headers = [(b"authorization", b"Bearer x")]
        scope = {"client": (host, 1), "method": "GET", "path": "/", "scheme": scheme, "headers": headers}
        try:
            Callers(app, "token").identify(scope)
        except Problem as problem:
            return problem.status
        return 200

    assert asked("192.0.2.1") == (401 if consents else 403)
    assert asked("192.0.2.1", "https") == 401
    assert asked("127.0.0.1") == 401
    assert asked("::1") == 401


# --- users, over HTTP ---


@pytest.mark.parametrize("auth", [None, READER])
@pytest.mark.parametrize("headers", [{}, {"if-match": '"x"'}, {"if-none-match": "*"}])
@pytest.mark.parametrize("path", ["/api/v1/topics/{}", "/api/v1/groups/{}/settings"])
def test_who_may_not_change_something_learns_not_whether_it_is_there(
    http: httpx.Client, auth: tuple[str, str] | None, headers: dict[str, str], path: str
) -> None:
    assert http.put(path.format("There"), json={}, auth=ROOT).status_code in (200, 201)
    refused = 401 if auth is None else 403
    for name in ("There", "Elsewhere-not"):
        assert http.put(path.format(name), json={}, headers=headers, auth=auth).status_code == refused
        gone = path.format(name).removesuffix("/settings")
        assert http.delete(gone, headers=headers, auth=auth).status_code == refused
    assert http.put(path.format("There"), json={}, headers={"if-match": '"x"'}, auth=ROOT).status_code == 412


def test_users_and_policies_over_http(http: httpx.Client) -> None:
    http.auth = ROOT
    made = http.put(
        "/api/v1/users/clerk", json={"password": "clerk-canary-secret"}, headers={"if-none-match": "*"}
    )
    assert (made.status_code, made.json()) == (201, {"user": "clerk", "type": "Normal", "status": "enable"})
    assert http.put("/api/v1/users/clerk", json={}, headers={"if-none-match": "*"}).status_code == 412
    assert http.put("/api/v1/users/other", json={}).status_code == 422
    listed = http.get("/api/v1/users")
    assert {"clerk", "root", "reader"} <= {each["user"] for each in listed.json()["items"]}
    assert "canary" not in listed.text
    tag = http.get("/api/v1/users/clerk/policies").headers["etag"]
    rule = {"resource": "Topic:Orders", "actions": ["Get"], "decision": "Allow"}
    policies = {"policies": [{"entries": [rule]}]}
    put = http.put("/api/v1/users/clerk/policies", json=policies, headers={"if-match": tag})
    assert put.status_code == 200, put.text
    assert put.json()["policies"][0]["entries"][0]["resource"] == "Topic:Orders"
    assert (
        http.put("/api/v1/users/clerk/policies", json=policies, headers={"if-match": tag}).status_code == 412
    )
    bad = {"policies": [{"entries": [{**rule, "resource": "Nothing:x"}]}]}
    assert http.put("/api/v1/users/clerk/policies", json=bad).status_code == 400
    clerk = httpx.BasicAuth("clerk", "clerk-canary-secret")
    assert http.get("/api/v1/topics/Orders/messages", auth=clerk).status_code in (200, 404)
    assert http.get("/api/v1/topics/Secret/messages", auth=clerk).status_code == 403
    assert http.get("/api/v1/topics/Secret/tail", auth=clerk).status_code == 403
    assert http.get("/api/v1/dead-letters/any", auth=clerk).status_code == 403
    assert http.post("/api/v1/dead-letters/any/resend", json={}, auth=clerk).status_code == 403
    assert http.get("/api/v1/config", auth=clerk).status_code == 403
    assert http.put("/api/v1/users/clerk", json={"type": "Super"}, auth=clerk).status_code == 403
    changed = http.put("/api/v1/users/clerk", json={"status": "disable"})
    assert changed.json()["status"] == "disable"
    assert http.get("/api/v1/topics/Orders/messages", auth=clerk).status_code == 401
    full = {**rule, "actions": [each for each in Action if each != Action.ALL], "sourceIps": []}
    rules = [{**full, "resource": f"Topic:T{number}"} for number in range(1, MAX_ENTRIES)]
    most = {"policies": [{"policyType": "Custom", "entries": rules}]}
    (policy,) = http.put("/api/v1/users/clerk/policies", json=most).json()["policies"]
    assert len(policy["entries"]) == MAX_ENTRIES
    assert http.delete("/api/v1/users/clerk/policies").status_code == 204
    assert http.delete("/api/v1/users/clerk").status_code == 204
    assert http.get("/api/v1/users/clerk").status_code == 404
