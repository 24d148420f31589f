"""The console's pages of schemas, and messages decoded by theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from mqspark import Message
from mqspark.testing import Broker, Clients
from tests.support.visits import page
from tests.unit.registry_kit import FIRST, SECOND, VALUE, field, record

ESCAPED = "&lt;b&gt;"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        for subject, schema in ((VALUE, FIRST), (VALUE, SECOND), ("<b>-value", record(field("x")))):
            answer = httpx.post(
                f"{running.http_url}/subjects/{subject}/versions", json={"schema": schema}, timeout=60
            )
            assert answer.status_code == 200, answer.text
        yield running


def test_subjects_are_listed_and_found(broker: Broker) -> None:
    text = page(broker, "/schemas")
    assert f'href="/console/schemas/{VALUE}"' in text
    assert f"{ESCAPED}-value" in text
    assert VALUE not in page(broker, "/schemas?q=nothing")
    assert 'href="/console/schemas">Schemas</a>' in page(broker, "/topics")


def test_a_subject_shows_a_version_and_what_it_changes(broker: Broker) -> None:
    text = page(broker, f"/schemas/{VALUE}")
    assert "BACKWARD" in text
    assert "&#34;note&#34;" in text
    assert "note" not in page(broker, f"/schemas/{VALUE}?version=1")
    changed = page(broker, f"/schemas/{VALUE}?version=2&old=1")
    assert "+++ Orders-value version 2" in changed
    assert "is not" not in page(broker, "/schemas/none", 404)


def test_messages_are_decoded_by_their_schema(broker: Broker) -> None:
    with Clients(broker.namesrv) as clients:
        with clients.producer() as producer:
            producer.send(Message.of("Orders", b"\0\0\0\0\x01\x06o-1"))
            producer.send(Message.of("Orders", b"\0\0\0\0\x63\x06o-1"))
    text = page(broker, "/topics/Orders/messages")
    assert "Shown as Avro, Order, schema 1." in text
    assert json.dumps("o-1").replace('"', "&#34;") in text
    assert "bytes that the schema 99 of a registry describes" in text
