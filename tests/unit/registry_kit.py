"""A broker with a schema registry, asked as its HTTP server asks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.admin_headers import SchemaRequestHeader
from mqspark.protocol.schemaoperations import OPERATIONS, STATUS_FIELD
from tests.unit.broker_kit import Bench, Peer

VALUE = "Orders-value"


class Told(NamedTuple):
    status: int
    document: Any

    @property
    def code(self) -> int:
        return int(self.document["error_code"])


def record(*fields: dict[str, Any], name: str = "Order") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


def field(name: str, kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


FIRST = record(field("id"))
SECOND = record(field("id"), field("note", default=""))
BREAKING = record(field("id"), field("count", "int"))


def header_of(
    operation: str,
    subject: str | None = None,
    version: object = None,
    schema_id: object = None,
    options: str | None = None,
) -> SchemaRequestHeader:
    texts = (None if each is None else str(each) for each in (version, schema_id))
    return SchemaRequestHeader(operation, subject, *texts, options)


def told(answer: Command) -> Told:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    body = bytes(answer.body)
    return Told(int(answer.ext[STATUS_FIELD]), json.loads(body))


class RegistryBench(Bench):
    def __init__(self, directory: Path, **more: Any) -> None:
        super().__init__(directory, **{"schema_registry_enable": True, **more})
        self.caller = self.peer()

    def reopen(self, *args: Any, **more: Any) -> None:
        super().reopen(*args, **more)
        self.caller = self.peer()

    def answer(
        self,
        operation: str,
        subject: str | None = None,
        body: object = None,
        *,
        peer: Peer | None = None,
        **place: Any,
    ) -> Command:
        self.broker.tick()
        content = b"" if body is None else json.dumps(body).encode()
        header = header_of(operation, subject, **place)
        return (peer or self.caller).ask(OPERATIONS[operation].code, header, content)

    def told(self, operation: str, subject: str | None = None, body: object = None, **more: Any) -> Told:
        return told(self.answer(operation, subject, body, **more))

    def register(self, schema: str, subject: str = VALUE, **more: Any) -> Told:
        return self.told("register", subject, {"schema": schema, **more})

    def registered(self, schema: str, subject: str = VALUE, **more: Any) -> tuple[int, int]:
        """Id and version."""
        answer = self.register(schema, subject, **more)
        assert answer.status == 200, answer.document
        return answer.document["id"], answer.document["version"]
