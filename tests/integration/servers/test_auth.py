"""Users over real sockets: our clients with and without rights, `mqspark user add`, the audit log, a slave."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mqspark import (
    AdminClient,
    ConsumeFromWhere,
    Credentials,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from mqspark.errors import BrokerError, MQError
from mqspark.protocol.codes import RequestCode
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.commands import Outcome, mqspark
from tests.support.processes import mqspark_command, process, ready_line, set_options
from tests.support.remoting import ask
from tests.support.static_topics import StaticTopicTool
from tests.support.waiting import eventually

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
SUPER = Credentials("root", "root-canary-secret")
INNER = {"accessKey": "inner", "secretKey": "inner-canary-secret"}
DENIED = 16


def guarded_settings(directory: Path) -> dict[str, object]:
    return {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "authConfigPath": directory,
        "innerClientAuthenticationCredentials": json.dumps(INNER),
    }


def add_user(directory: Path, name: str, secret: str, *more: str) -> Outcome:
    return mqspark("user", "add", name, "--directory", str(directory), *more, stdin=f"{secret}\n".encode())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and a broker that know the user SUPER and no other."""
    folder = tmp_path_factory.mktemp("guarded")
    for place in ("names", "users"):
        done = add_user(folder / place, SUPER.access_key, SUPER.secret_key)
        assert (done.code, done.out) == (0, "user root was created\n"), done.err
    with mqspark_namesrv(folder, guarded_settings(folder / "names")) as namesrv:
        settings = {"brokerName": "b", "brokerClusterName": "C", **guarded_settings(folder / "users")}
        with mqspark_broker(folder, namesrv, settings) as cluster:
            with AdminClient(namesrv, credentials=SUPER) as admin:
                admin.create_topic("Orders", queues=2)
                admin.create_group("orders")
            yield cluster


def test_brokers_sign_what_they_ask_each_other(guarded: Cluster, tmp_path: Path) -> None:
    """For the earlier part of a static topic's queue, which another broker has."""
    add_user(tmp_path / "users", SUPER.access_key, SUPER.secret_key)
    settings = {"brokerName": "b2", "brokerClusterName": "C", **guarded_settings(tmp_path / "users")}
    with mqspark_broker(tmp_path, guarded.namesrv, settings) as other:
        masters = {"b": guarded.broker, "b2": other.broker}
        tool = StaticTopicTool(guarded.namesrv, masters, "Moving", SUPER)
        tool.create(1, "b")
        queue = MessageQueue("Moving", "__syslo__global__", 0)
        with (
            Producer(guarded.namesrv, group="movers", credentials=SUPER) as producer,
            AdminClient(guarded.namesrv, credentials=SUPER) as admin,
        ):
            producer.send(Message.of("Moving", b"one"), queue=queue)
            tool.remap("b2")
            producer.send(Message.of("Moving", b"two"), queue=queue)
            admin.topic_route("Moving")
            assert admin.queue_bounds(queue) == (0, 10_001)
            assert [message.body for message in admin.read(queue, 0).messages] == [b"one"]
        tool.close()


def test_clients_that_sign_are_let_in(guarded: Cluster) -> None:
    with Producer(guarded.namesrv, group="p", credentials=SUPER) as producer:
        producer.send(Message.of("Orders", b"one", keys="ключ"))
        producer.send_batch([Message.of("Orders", b"two"), Message.of("Orders", b"three")])
    got: set[bytes] = set()

    def listen(message: MessageExt) -> None:
        got.add(message.body)

    push = PushConsumer(
        guarded.namesrv, group="orders", listener=listen, consume_from=FIRST, credentials=SUPER
    )
    push.subscribe("Orders")
    with push:
        eventually(lambda: got == {b"one", b"two", b"three"}, "all messages", 60)


@pytest.mark.parametrize(
    "keys",
    [None, Credentials("nobody", "canary-secret"), Credentials("root", "canary-wrong")],
    ids=["none", "an unknown user", "a wrong key"],
)
def test_others_are_not(guarded: Cluster, keys: Credentials | None, caplog: pytest.LogCaptureFixture) -> None:
    with Producer(guarded.namesrv, group="p", credentials=keys) as producer:
        with pytest.raises(MQError) as caught:
            producer.send(Message.of("Orders", b"x"))
    assert "canary" not in f"{caught.value}{caplog.text}"
    for address in (guarded.namesrv, guarded.broker):
        assert ask(address, 105 if address == guarded.namesrv else 26, topic="Orders").code == DENIED


def test_an_unsigned_broker_does_not_get_into_a_route(guarded: Cluster, tmp_path: Path) -> None:
    settings = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": guarded.namesrv,
        "storePathRootDir": tmp_path / "store",
        "brokerClusterName": "C",
        "brokerName": "rogue",
        "httpEnable": False,
    }
    log = tmp_path / "rogue.err"
    command = [*mqspark_command(), "broker", "run", *set_options(settings)]
    with process(command, log, stdout=subprocess.PIPE) as child:
        ready_line(child, log)
        eventually(lambda: "response code 16" in log.read_text(), "the refusal", 30)
    with AdminClient(guarded.namesrv, credentials=SUPER) as admin:
        assert {data.broker_name for data in admin.cluster_info().broker_addr_table.values()} == {"b"}


def test_no_secret_is_in_a_file_a_log_or_a_metric(guarded: Cluster) -> None:
    folder = guarded.store.parent
    found = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name != "broker.conf" and b"canary-secret" in path.read_bytes()
    ]
    assert found == []


def test_the_audit_log_tells_what_was_refused(guarded: Cluster) -> None:
    path = guarded.store.parent / "users" / "audit.log"
    assert path.stat().st_mode & 0o777 == 0o600
    with LitePullConsumer(guarded.namesrv, group="orders", credentials=SUPER):
        pass
    assert ask(guarded.broker, 26).code == DENIED
    eventually(lambda: '"request": "GET_BROKER_CONFIG"' in path.read_text(), "the line", 10)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    told = [line for line in lines if line["request"] == "GET_BROKER_CONFIG"][-1]
    assert (told["decision"], told["user"], told["code"]) == ("denied", "", 26)
    created = [line for line in lines if line["request"] == "UPDATE_AND_CREATE_TOPIC"]
    assert created[0]["user"] == "root"


def test_tools_do_not_change_the_users_of_a_running_server(guarded: Cluster) -> None:
    done = add_user(guarded.store.parent / "users", "late", "x")
    assert done.code != 0
    assert "is in use" in done.err
    assert len(done.err.splitlines()) == 1


def test_users_of_a_running_cluster_by_the_command_line(
    guarded: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From a user without rights to one that may send to one topic, and out again."""
    monkeypatch.setenv("NAMESRV_ADDR", guarded.namesrv)
    monkeypatch.setenv("MQSPARK_CONTEXTS", str(tmp_path / "contexts"))
    assert mqspark("user", "list").code == 1, "not without keys"
    monkeypatch.setenv("MQSPARK_ACCESS_KEY", SUPER.access_key)
    monkeypatch.setenv("MQSPARK_SECRET_KEY", SUPER.secret_key)
    assert mqspark("user", "add", "ann", stdin=b"\n").code == 2
    assert mqspark("user", "add", "ann", stdin=b"first\n").out == "user ann was created\n"
    assert mqspark("user", "add", "ann", stdin=b"first\n").code == 1
    assert mqspark("user", "password", "ann", stdin=b"second\n").code == 0
    ann = Credentials("ann", "second")

    def send() -> None:
        with Producer(guarded.namesrv, group="ann", credentials=ann) as producer:
            producer.send(Message.of("Orders", "x"))

    with pytest.raises(BrokerError):
        send()
    assert mqspark("user", "allow", "ann", "Orders", "pub").code == 2
    assert mqspark("user", "allow", "ann", "Topic:Orders", "pub", "Get").code == 0
    assert mqspark("user", "allow", "bob", "Topic:Orders", "Pub").code == 3
    send()
    (row,) = [each for each in mqspark("user", "list", "-o", "json").json if each["user"] == "ann"]
    rule = {"kind": "Custom", "decision": "Allow", "resource": "Topic:Orders"}
    assert row["rules"] == [{**rule, "actions": ["Get", "Pub"], "sources": []}]
    assert "second" not in mqspark("user", "list", "-o", "yaml").out
    assert mqspark("user", "deny", "ann", "Topic:Orders", "Pub").code == 0
    with pytest.raises(BrokerError):
        send()
    missing = mqspark("user", "forget", "ann", "Topic:Order")
    assert (missing.code, "did you mean 'Topic:Orders'?" in missing.err) == (3, True)
    assert mqspark("user", "forget", "ann", "Topic:Orders").code == 0
    assert mqspark("user", "disable", "ann").out == "user ann was changed\n"
    assert mqspark("user", "enable", "an").code == 3
    assert mqspark("user", "remove", "ann").code == 2, "it asks"
    assert mqspark("user", "remove", "ann", "--yes").code == 0
    assert "ann" not in mqspark("user", "list").out


def _users_at(address: str) -> dict[str, str]:
    """Names and states of the users of one server."""
    header = {"filter": ""}
    with AdminClient(address, credentials=SUPER) as admin:
        answer = admin.ask(address, RequestCode.AUTH_LIST_USER, header)
    return {each["username"]: each["userStatus"] for each in json.loads(bytes(answer.body))}


@pytest.mark.slow("a cluster of its own; that of the console is the fast twin")
def test_users_changed_over_http_are_changed_at_the_name_server(guarded: Cluster) -> None:
    with httpx.Client(
        base_url=guarded.http, auth=(SUPER.access_key, SUPER.secret_key), timeout=60, trust_env=False
    ) as http:
        made = http.put("/api/v1/users/eve", json={"password": "eve-canary-secret"})
        assert made.status_code == 201, made.text
        rule = {"resource": "Topic:Orders", "actions": ["Pub", "Get"], "decision": "Allow"}
        put = http.put("/api/v1/users/eve/policies", json={"policies": [{"entries": [rule]}]})
        assert put.status_code == 200, put.text
        eve = Credentials("eve", "eve-canary-secret")
        with Producer(guarded.namesrv, group="eve", credentials=eve) as producer:
            producer.send(Message.of("Orders", "x"))
        # A session has no secret of its user, and its changes go as far.
        login = {"accessKey": SUPER.access_key, "secretKey": SUPER.secret_key, "bearer": True}
        token = http.post("/api/v1/session", json=login).json()["bearerToken"]
        bearer = {"authorization": f"Bearer {token}"}
        with httpx.Client(base_url=guarded.http, headers=bearer, timeout=60, trust_env=False) as session:
            assert session.put("/api/v1/users/eve", json={"status": "disable"}).status_code == 200
        assert [_users_at(each)["eve"] for each in (guarded.namesrv, guarded.broker)] == ["disable"] * 2
        assert http.delete("/api/v1/users/eve/policies").status_code == 204
        assert http.delete("/api/v1/users/eve").status_code == 204
    assert "eve" not in _users_at(guarded.namesrv).keys() | _users_at(guarded.broker).keys()


def test_users_changed_in_the_console_are_changed_at_the_name_server(guarded: Cluster) -> None:
    headers = {"origin": guarded.http, "sec-fetch-site": "same-origin"}
    with httpx.Client(
        base_url=f"{guarded.http}/console", headers=headers, timeout=60, trust_env=False
    ) as browser:
        login = {"user": SUPER.access_key, "secret": SUPER.secret_key}
        assert browser.post("/login", data=login).status_code == 303

        def change(path: str, fields: dict[str, str]) -> None:
            found = re.search(r'name="csrf" value="([^"]+)"', browser.get("/users").text)
            assert found is not None
            fields = {**fields, "csrf": found[1]}
            asked = browser.post(path, data=fields)
            assert f"name server {guarded.namesrv}, broker b" in asked.text
            assert browser.post(path, data={**fields, "sure": "yes"}).status_code == 303

        change("/users", {"name": "zoe", "password": "zoe-canary-secret"})
        change("/users/zoe/rules", {"resource": "Topic:Orders", "decision": "Allow", "actions": "Pub"})
        assert [_users_at(each)["zoe"] for each in (guarded.namesrv, guarded.broker)] == ["enable"] * 2
        with AdminClient(guarded.namesrv, credentials=SUPER) as admin:
            header = {"subject": "User:zoe"}
            rules = admin.ask(guarded.namesrv, RequestCode.AUTH_GET_ACL, header)
        assert b"Topic:Orders" in bytes(rules.body)
        change("/users", {"name": "zoe", "status": "disable"})
        assert _users_at(guarded.namesrv)["zoe"] == "disable"
        change("/users/zoe/delete", {})
    assert "zoe" not in _users_at(guarded.namesrv).keys() | _users_at(guarded.broker).keys()


@pytest.mark.slow("several clusters; the changes of users beside it are the fast twins")
def test_where_a_server_does_not_take_part_nothing_is_changed(guarded: Cluster, tmp_path: Path) -> None:
    """A super user of one broker, whom the name server does not know."""
    other = Credentials("other", "other-canary-secret")
    add_user(tmp_path / "users", other.access_key, other.secret_key)
    settings = {"brokerName": "b3", "brokerClusterName": "C", **guarded_settings(tmp_path / "users")}
    with (
        mqspark_broker(tmp_path, guarded.namesrv, settings) as cluster,
        httpx.Client(
            base_url=cluster.http, auth=(other.access_key, other.secret_key), timeout=60, trust_env=False
        ) as http,
    ):
        refused = http.put("/api/v1/users/ned", json={"password": "ned-canary-secret"})
        assert (refused.status_code, "nothing was changed" in refused.json()["detail"]) == (502, True)
        assert http.get("/api/v1/users/ned").status_code == 404
        alone = http.put("/api/v1/users/ned?hereOnly=true", json={"password": "ned-canary-secret"})
        assert alone.status_code == 201
        assert "ned" not in _users_at(guarded.namesrv)


def test_http_shows_no_topic(guarded: Cluster) -> None:
    import urllib.error
    import urllib.request

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{guarded.http}/api/v1/topics", timeout=60)  # noqa: S310
    with caught.value as answer:
        assert answer.code == 401
    metrics = urllib.request.Request(f"{guarded.http}/metrics")  # noqa: S310
    keys = base64.b64encode(f"{SUPER.access_key}:{SUPER.secret_key}".encode()).decode()
    metrics.add_header("authorization", f"Basic {keys}")
    with urllib.request.urlopen(metrics, timeout=60) as answer:  # noqa: S310
        text = answer.read().decode()
    assert 'decision="unauthenticated"' in text
    assert "canary" not in text


def test_a_broker_error_says_what_is_missing(guarded: Cluster) -> None:
    with pytest.raises(BrokerError, match="username cannot be null"):
        with AdminClient(guarded.namesrv) as admin:
            admin.create_topic("Mine", queues=1)


def test_a_slave_signs_to_name_server_and_master(guarded: Cluster, tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert add_user(users, SUPER.access_key, SUPER.secret_key).code == 0
    settings = {
        "brokerName": "b",
        "brokerClusterName": "C",
        "brokerRole": "SLAVE",
        "brokerId": 1,
        **guarded_settings(users),
    }
    with mqspark_broker(tmp_path, guarded.namesrv, settings) as slave:
        topics = slave.store / "config" / "topics.json"
        eventually(lambda: topics.exists() and "Orders" in topics.read_text(), "the master's topics", 60)
    assert "response code 16" not in (tmp_path / "broker.err").read_text()
