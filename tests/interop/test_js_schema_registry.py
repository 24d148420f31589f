"""npm's @kafkajs/confluent-schema-registry, an unmodified client of schema registries, on a broker of ours."""

from __future__ import annotations

import base64
import json
import subprocess

import pytest

from mqspark.schemas.schemaprefix import decode_prefix
from mqspark.testing import Broker
from tests.interop.other_clients import JS_SCHEMAS
from tests.support.maven import or_skip
from tests.unit.registry_kit import field, record

AVRO, CHANGED = (record(field("id"), field("count", kind), name="shop.Order") for kind in ("int", "string"))
PROTOBUF = 'syntax = "proto3"; package shop; message Letter { string id = 1; int32 pages = 2; }'
JSON = json.dumps({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]})
ASKED = [
    {"type": "AVRO", "schema": AVRO, "value": {"id": "o-1", "count": 3}},
    {"type": "PROTOBUF", "schema": PROTOBUF, "value": {"id": "l-1", "pages": 2}},
    {"type": "JSON", "schema": JSON, "value": {"id": "d-1"}},
    {"type": "AVRO", "schema": CHANGED, "value": {"id": "o-1", "count": "3"}},
]


@pytest.mark.slow("the client is fetched; tests/integration/schemas has Confluent's for Python")
def test_it_registers_encodes_and_decodes() -> None:
    program = or_skip(JS_SCHEMAS)
    asked = [{**each, "subject": f"Js-{each['type']}-value"} for each in ASKED]
    with Broker(http=True) as broker:
        command = ["node", str(program), str(broker.http_url), json.dumps(asked)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    *told, refused = json.loads(ran.stdout)
    assert [each["value"] for each in told] == [each["value"] for each in ASKED[:3]]
    assert [(each["id"], each["latest"]) for each in told] == [(1, 1), (2, 2), (3, 3)]
    prefixes = [decode_prefix(base64.b64decode(each["body"])) for each in told]
    assert [prefix.schema_id for prefix in prefixes if prefix is not None] == [1, 2, 3]
    assert "incompatible" in refused["refused"]
