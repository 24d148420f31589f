"""The classes of published attacks on message brokers, each tried on ours: named by a CVE of RocketMQ or of a peer.

While a request is handled, an audit hook notes what such an attack would need: a process, a class by its name, a
connection to elsewhere, a file outside the store.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.session import Session
from mqspark.testing import Broker
from tests.support.clocks import ManualClock
from tests.support.users import with_users
from tests.unit.auth_kit import ROOT, SignedPeer, allow, authority
from tests.unit.broker_kit import Bench, Peer, pull_ext, send_ext

R = RequestCode
DENIED = ResponseCode.NO_PERMISSION
CANARY = "canary-that-nobody-may-read"
USERS = with_users(("root", CANARY), ("inner", f"{CANARY}-inner"), authorizationEnabled=False)
_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.startfile")
_ELSEWHERE = ("socket.connect", "socket.getaddrinfo", "pickle.find_class", "marshal.loads")
_noted: list[str] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _noted is not None and (event in _STARTS or event in _ELSEWHERE):
        _noted.append(f"{event} {arguments!r}")


sys.addaudithook(_note)


@contextmanager
def nothing_started() -> Iterator[None]:
    """No process, class or connection by the will of the peer."""
    global _noted
    _noted = noted = []
    try:
        yield
    finally:
        _noted = None
    assert not noted


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


@pytest.fixture
def guarded(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store", new_authority=lambda: authority(tmp_path / "auth"))


COMMANDS = [
    "filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch {place};\n",
    "rocketmqHome=$(touch {place})\n",
    "brokerConfigPath={place}\n",
    "configStorePath={place}\n",
    "storePathRootDir={place}\n",
    "configBlackList=\nbrokerConfigPath={place}\n",
]


@pytest.mark.parametrize("text", COMMANDS)
def test_cve_2023_33246_settings_start_no_command_and_name_no_file(
    bench: Bench, tmp_path: Path, text: str
) -> None:
    """RocketMQ 5.1.0 built a shell command of rocketmqHome."""
    place = tmp_path / "touched"
    with nothing_started():
        answer = bench.peer().ask(R.UPDATE_BROKER_CONFIG, {}, text.format(place=place).encode())
        bench.housekeeping()
    assert answer.code != ResponseCode.SUCCESS
    assert not place.exists()


@pytest.mark.parametrize("key", ["configStorePath", "kvConfigPath", "rocketmqHome", "configStorePathName"])
def test_cve_2023_37582_a_name_server_writes_no_file_of_a_peers_choice(tmp_path: Path, key: str) -> None:
    """RocketMQ 5.1.1 wrote its settings, with text of the peer, to a path of the peer."""
    place, outbox = tmp_path / "written", list[Session]()
    core = NameServer(NamesrvConfig(), ManualClock(), outbox=outbox)
    peer = Peer(core, Session(1, "127.0.0.1", 5, outbox))
    for body in (f"{key}={place}\nproductEnvName=* * * * * root sh\n", f"configBlackList=\n{key}={place}\n"):
        with nothing_started():
            answer = peer.ask(R.UPDATE_NAMESRV_CONFIG, {}, body.encode())
            for job in core.jobs():
                job.run()
        assert answer.code != ResponseCode.SUCCESS
    assert not place.exists()


def test_cve_2024_23321_no_answer_contains_a_credential(tmp_path: Path) -> None:
    """RocketMQ 5.2.0 showed its keys in the answer to getBrokerConfig. (CVE-2022-31008 is RabbitMQ's, over HTTP.)"""
    settings = {**USERS, "authConfigPath": str(tmp_path / "users")}
    with Broker(store=tmp_path / "store", http=True, settings=settings) as broker:
        app = broker.apps[0]
        parts = app.parts
        assert parts is not None
        outbox = parts.core.outbox

        def answers() -> list[bytes]:
            peer = SignedPeer(Peer(parts.core, Session(999, "127.0.0.1", 5, outbox)), "root", CANARY)
            told = []
            for code in (
                R.GET_BROKER_CONFIG,
                R.GET_BROKER_RUNTIME_INFO,
                R.AUTH_GET_USER,
                R.AUTH_LIST_USER,
                R.AUTH_LIST_ACL,
            ):
                answer = peer.ask(code, {"username": "root"})
                assert answer.code == ResponseCode.SUCCESS
                told.append(bytes(answer.body) + repr(answer.ext).encode() + (answer.remark or "").encode())
            return told

        told = broker.call(answers)
        assert any(b"brokerName" in each for each in told)
        with httpx.Client(base_url=str(app.http_url), auth=("root", CANARY), timeout=60) as client:
            paths = [path for path in client.get("/openapi.json").json()["paths"] if "{" not in path]
            assert len(paths) > 3
            told += [client.get(path).content for path in paths if path != "/api/v1/events"]
    assert not [each for each in told if CANARY.encode() in each]


def test_cve_2022_31008_no_page_or_answer_over_http_tells_a_secret_of_replication(tmp_path: Path) -> None:
    """RabbitMQ's management told the credentials of its shovels and federations, which are those of other servers."""
    folder = tmp_path / "conf"
    folder.mkdir()
    settings = {
        **USERS,
        "tls.server.keyPassword": CANARY + "-tls",
        "tls.client.keyPassword": CANARY + "-tls",
        "httpTlsKeyPassword": CANARY + "-tls",
    }
    with Broker(store=tmp_path / "store", http=True, settings=settings) as broker:
        with httpx.Client(base_url=str(broker.apps[0].http_url), auth=("root", CANARY), timeout=60) as client:
            paths = [path for path in client.get("/openapi.json").json()["paths"] if "{" not in path]
            paths += ["/metrics", "/health", "/console", "/console/brokers"]
            told = [client.get(path) for path in paths if path != "/api/v1/events"]
        assert sum(answer.status_code == 200 for answer in told) > 5
    assert not [answer for answer in told if CANARY in answer.text]


NAMES_OF_CLASSES = [
    "authenticationProvider=os.system",
    "authorizationProvider=javax.naming.InitialContext",
    "messageStorePlugIn=ldap://127.0.0.1:1/a",
    "sasl.jaas.config=com.sun.security.auth.module.JndiLoginModule required;",
    "transactionalMessageServiceClass=subprocess.Popen",
]


@pytest.mark.parametrize("text", NAMES_OF_CLASSES)
def test_cve_2023_25194_no_setting_of_a_peer_names_a_class(bench: Bench, text: str) -> None:
    """Kafka's clients looked up a class, and a JNDI address, that a setting named."""
    with nothing_started():
        answer = bench.peer().ask(R.UPDATE_BROKER_CONFIG, {}, f"{text}\n".encode())
        bench.housekeeping()
    assert answer.code != ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "member",
    [
        b'"@type":"org.springframework.context.support.ClassPathXmlApplicationContext"',
        b'"@type":"java.net.URL","val":"http://127.0.0.1:1/"',
        b'"__reduce__":"os.system"',
    ],
)
def test_cve_2023_46604_no_body_names_a_class(bench: Bench, member: bytes) -> None:
    """ActiveMQ made an object of any class with a text of the peer; old fastjson did for ``@type``."""
    bodies = {
        R.HEART_BEAT: b'{"clientID":"c",%s,"producerDataSet":[{"groupName":"p",%s}]}' % (member, member),
        R.LOCK_BATCH_MQ: b'{"clientId":"c","consumerGroup":"g","mqSet":[{%s,"topic":"T"}]}' % member,
        R.QUERY_ASSIGNMENT: b'{"topic":"T","consumerGroup":"g","clientId":"c",%s}' % member,
    }
    peer = bench.peer()
    with nothing_started():
        for code, body in bodies.items():
            peer.ask(code, {}, body)
        peer.ask(R.SEND_MESSAGE_V2, {**send_ext("T"), "@type": "java.net.URL"}, b"x")


def test_cve_2021_3127_one_users_rights_open_nothing_of_anothers(guarded: Bench) -> None:
    """NATS let a user of one account import the subjects of another. Here a right to one topic is none to what lies
    beside it, under whatever name."""
    root = SignedPeer(guarded.peer(), *ROOT)
    for topic in ("Mine", "Theirs"):
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
        header = {**fields, "perm": "6", "topicFilterType": "SINGLE_TAG"}
        assert root.ask(R.UPDATE_AND_CREATE_TOPIC, header).code == 0
    for group in ("mine", "theirs"):
        body = json.dumps({"groupName": group}).encode()
        assert root.ask(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0
    one = guarded.broker.authority
    assert one is not None
    allow(one, "mallory", "Topic:Mine Pub,Sub", "Group:mine Sub")
    mallory = SignedPeer(guarded.peer(), "mallory")
    assert mallory.ask(R.SEND_MESSAGE_V2, send_ext("Mine"), b"x").code == 0
    others = ["Theirs", "%RETRY%theirs", "%DLQ%theirs", "%RETRY%mine_Theirs", "SCHEDULE_TOPIC_XXXX"]
    others += ["RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "mine/../Theirs", "Mine%Theirs", "MINE"]
    for topic in others:
        assert mallory.ask(R.PULL_MESSAGE, pull_ext(topic, 0, 0, group="mine")).code != 0, topic
        assert mallory.ask(R.SEND_MESSAGE_V2, send_ext(topic), b"x").code != 0, topic
    assert mallory.ask(R.PULL_MESSAGE, pull_ext("Mine", 0, 0, group="theirs")).code == DENIED


def test_cve_2022_24280_no_peer_chooses_where_a_server_connects(guarded: Bench) -> None:
    """Pulsar's proxy connected to any address that a client named."""
    one = guarded.broker.authority
    assert one is not None
    allow(one, "mallory", "Topic:* All", "Group:* All")
    mallory = SignedPeer(guarded.peer(), "mallory")
    address = "169.254.169.254:80"
    with nothing_started():
        for key in ("namesrvAddr", "haMasterAddress", "controllerAddr", "brokerIP1", "archiveUrl"):
            answer = mallory.ask(R.UPDATE_BROKER_CONFIG, {}, f"{key}={address}\n".encode())
            assert answer.code == DENIED
        for code in (R.EXCHANGE_BROKER_HA_INFO, R.NOTIFY_BROKER_ROLE_CHANGED):
            fields = {"masterAddress": address, "brokerAddr": address, "masterHaAddress": address}
            assert mallory.ask(code, fields).code != 0
