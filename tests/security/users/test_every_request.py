"""Each request of remoting, and each path of HTTP, tried by a user without any right: what comes later is tried, too,
because the requests are those of the table, of the handlers and of the document of the API."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqspark.auth.access import TABLE, NoFacts, header_of
from mqspark.message import decode_offset_id
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.codes import RequestCode as R
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.headers.header import value_types
from mqspark.protocol.schemaoperations import OPERATIONS, Right
from mqspark.protocol.session import Session
from mqspark.testing import Broker
from mqspark_server.web.api import described_api
from tests.support.clocks import ManualClock
from tests.support.invariants import validate
from tests.unit.auth_kit import ROOT, SECRET, SignedPeer, allow, authority
from tests.unit.broker_kit import Bench, Peer, send_ext
from tests.unit.controller_kit import ControllerBench

DENIED = ResponseCode.NO_PERMISSION
NOBODY = ("nobody", SECRET)
SHOWS_WHAT_ONE_MAY_READ = (Right.READ_SOME, Right.READ_ALL)
GROUP = {"groupName": "G", "consumerGroup": "G", "group": "G", "topic": "T", "clientID": "c", "clientId": "c"}
SUBSCRIPTION = {"topic": "T", "subString": "*", "subVersion": 1}
BODY = json.dumps(
    {
        **GROUP,
        "consumerDataSet": [{**GROUP, "subscriptionDataSet": [SUBSCRIPTION]}],
        "mqSet": [{"topic": "T", "brokerName": "b-a", "queueId": 0}],
        "topicConfigList": [{"topicName": "T"}],
        "groupConfigList": [GROUP],
        "topicList": ["T"],
        "groupNameList": ["G"],
        "acks": [{"c": "G", "t": "T", "r": "0"}],
        "subscriptionSet": [{**GROUP, "action": "PARTIAL_ADD", "liteTopicSet": ["l"]}],
        "subscriptionData": SUBSCRIPTION,
        "topics": [{"topic": "T", "queueIds": [0]}],
    }
).encode()
"""Whatever reads one finds the names of others in it."""


def filled(code: int, message_id: str = "") -> dict[str, str]:
    """A header of this request whose names are those of others, as are the places of its messages."""
    position = str(decode_offset_id(message_id)[2]) if message_id else "0"
    kinds = {} if (header := header_of(code)) is None else value_types(header)
    return {wire: _value(attribute, kind, message_id, position) for wire, (attribute, kind) in kinds.items()}


def _value(attribute: str, kind: Any, message_id: str, position: str) -> str:
    if kind is bool:
        return "false"
    if kind is not str:
        return position if attribute in ("offset", "commit_log_offset") else "1"
    if attribute == "msg_id":
        return message_id
    if attribute == "properties":
        return ""
    return "G" if "group" in attribute else "T" if "topic" in attribute else "x"


def refuses_all(
    who: SignedPeer, handlers: Mapping[int, object], message_id: str = "", apart: Collection[int] = ()
) -> None:
    """Every request with a handler is refused, and without one it is not known."""
    for code in sorted({*TABLE, *handlers} - {*apart}):
        answer = who.ask(code, filled(code, message_id), BODY)
        expected = DENIED if code in handlers else ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.code == expected, (R(code).name, answer.code, answer.remark)
        assert not answer.body


def test_a_broker_does_nothing_for_a_user_without_rights(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        new_authority=lambda: authority(tmp_path / "auth"),
        store_settings={"enable_lmq": True, "enable_multi_dispatch": True},
    )
    half = send_ext("T", properties="TRAN_MSG\x01true\x02PGROUP\x01G\x02UNIQ_KEY\x01U\x02", f="4")
    stored = SignedPeer(bench.peer(), *ROOT).ask(R.SEND_MESSAGE_V2, half, b"of others")
    assert stored.code == 0
    nobody, end = nobody_at(bench), bench.store.log.position
    assert len(bench.broker.handlers) > 100
    refuses_all(nobody, bench.broker.handlers, stored.ext["msgId"], {R.READ_SCHEMAS, R.CHANGE_SCHEMAS})
    assert bench.store.log.position == end
    validate(bench.broker)


def nobody_at(bench: Bench) -> SignedPeer:
    assert bench.broker.authority is not None
    allow(bench.broker.authority, NOBODY[0])
    return SignedPeer(bench.peer(), *NOBODY)


def test_a_schema_registry_does_nothing_for_a_user_without_rights(tmp_path: Path) -> None:
    bench = Bench(tmp_path, new_authority=lambda: authority(tmp_path / "auth"), schema_registry_enable=True)
    nobody = nobody_at(bench)
    for operation in OPERATIONS.values():
        if operation.right in SHOWS_WHAT_ONE_MAY_READ:
            continue
        for code in (R.READ_SCHEMAS, R.CHANGE_SCHEMAS):
            header = {"operation": operation.name, "schemaSubject": "T-value", "version": "1", "id": "1"}
            assert nobody.ask(code, header, b"{}").code == DENIED, (operation.name, code)


def test_a_name_server_does_nothing_for_a_user_without_rights(tmp_path: Path) -> None:
    outbox: list[Session] = []
    one = authority(tmp_path)
    allow(one, NOBODY[0])
    core = NameServer(NamesrvConfig(), ManualClock(), outbox=outbox, authority=one)
    refuses_all(SignedPeer(Peer(core, Session(1, "127.0.0.1", 1, outbox)), *NOBODY), core.handlers)


def test_a_controller_does_nothing_for_a_user_without_rights(tmp_path: Path) -> None:
    bench, one = ControllerBench(tmp_path / "state"), authority(tmp_path / "auth")
    allow(one, NOBODY[0])
    bench.core.handlers = one.guard(bench.core.handlers, NoFacts())
    refuses_all(SignedPeer(bench.connect(), *NOBODY), bench.core.handlers)


# --- HTTP ---

EVERYBODYS = {"/health/live", "/health/ready", "/api/v1/session"}
WHOLE = {
    ("put", "/api/v1/users/{user}"): {"password": "x"},
    ("post", "/api/v1/topics/{topic}/messages"): {"body": "x"},
    ("put", "/api/v1/config"): {"settings": {"traceOn": "false"}},
}
"""Documents that need more than their required fields."""


def document(schema: Mapping[str, Any], named: Mapping[str, Any]) -> Any:
    """The smallest one of this schema. ``named``: schemas that it refers to."""
    if reference := schema.get("$ref"):
        return document(named[reference.rpartition("/")[2]], named)
    if options := schema.get("anyOf"):
        return document(options[0], named)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: document(schema["properties"][name], named) for name in schema.get("required", ())}
        case "array":
            return [document(schema["items"], named)] if schema.get("minItems") else []
        case "integer":
            return schema.get("minimum", 1)
        case "boolean":
            return False
    return "T"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("paths")
    settings = {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "authConfigPath": str(folder / "users"),
        "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
        "schemaRegistryEnable": True,
    }
    with Broker(http=True, settings=settings) as broker:
        one = broker.apps[0].parts.core.authority  # type: ignore[union-attr] - it serves
        assert one is not None
        broker.call(lambda: allow(one, NOBODY[0]))
        with httpx.Client(base_url=broker.http_url or "", auth=NOBODY, timeout=60) as client:
            yield client


def test_a_path_does_nothing_for_a_user_without_rights(guarded: httpx.Client) -> None:
    api = described_api(()).openapi()
    operations = {(each.method.lower(), each.path): each for each in OPERATIONS.values()}
    tried, wrong = 0, []
    for path, methods in api["paths"].items():
        place = path.replace("{subject}", "T-value").replace("{version}", "1").replace("{id}", "1")
        place = place.replace("{", "").replace("}", "")
        for method, described in methods.items():
            if path in EVERYBODYS:
                continue
            content = described.get("requestBody", {}).get("content", {})
            kind, body = next(iter(content), "application/json"), b""
            if content:
                schemas = api["components"]["schemas"]
                whole = WHOLE.get((method, path)) or document(content[kind]["schema"], schemas)
                body = json.dumps(whole).encode()
            answer = guarded.request(method, place, content=body, headers={"content-type": kind})
            operation = operations.get((method, path))
            expected = (403,)
            if operation is not None and operation.right in SHOWS_WHAT_ONE_MAY_READ:
                expected = (200, 404)
            if answer.status_code not in expected or "T-value" in answer.text:
                wrong.append((method, path, answer.status_code, answer.text[:300]))
            tried += 1
    assert not wrong
    assert tried > 50
