"""Names in the paths of the console and of the HTTP API: what is no name is the caller's fault, whatever it is."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from mqspark.testing import Broker
from mqspark_server.actions.fields import ChoiceField, LineField, NameField, fields_of
from mqspark_server.console.pages import SECTIONS

WRONG = {
    "NUL": "%00",
    "line break": "a%0Ab",
    "DEL": "a%7Fb",
    "C1": "%C2%85",
    "line separator": "%E2%80%A8",
    "above": "..",
    "above, escaped": "%2E%2E",
    "slash": "a%2Fb",
    "backslash": "a%5Cb",
    "no UTF-8": "%FF",
    "surrogate": "%ED%A0%80",
    "long": "x" * 10_000,
}
NAME = re.compile(r"\{(\w+)\}")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True, settings={"schemaRegistryEnable": True}) as running:
        yield running


@pytest.fixture
def connection(broker: Broker) -> Iterator[http.client.HTTPConnection]:
    place = urlsplit(str(broker.http_url))
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    yield connection
    connection.close()


def console_paths() -> list[str]:
    paths = {path for each in SECTIONS for table in (each.views, each.streams) for path in table}
    return [f"/console{path}" for path in sorted(paths) if "{" in path]


def status_of(connection: http.client.HTTPConnection, method: str, path: str, token: str = "") -> int:
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"} if token else {}
    connection.request(method, path, b"{}" if method in ("PUT", "POST") else None, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_each_name_in_a_path_of_the_console_is_checked() -> None:
    """By its field, before anybody is asked."""
    for section in SECTIONS:
        kinds = {path: kind for path, (kind, _) in [*section.views.items(), *section.changes.items()]}
        for path, kind in {**kinds, **section.streams}.items():
            for name in NAME.findall(path):
                field = fields_of(kind)[name]
                is_checked = isinstance(field, LineField) and field.check is not None
                assert is_checked or isinstance(field, NameField | ChoiceField), (path, name, field)


@pytest.mark.parametrize("wrong", WRONG)
def test_the_console_refuses_what_is_no_name(connection: http.client.HTTPConnection, wrong: str) -> None:
    for path in console_paths():
        status = status_of(connection, "GET", NAME.sub(WRONG[wrong], path))
        assert status in (400, 404), (path, status)


@pytest.mark.parametrize("wrong", WRONG)
def test_http_refuses_what_is_no_name(
    broker: Broker, connection: http.client.HTTPConnection, wrong: str
) -> None:
    token = broker.apps[0].loopback_token
    connection.request("GET", "/openapi.json")
    described = json.loads(connection.getresponse().read())["paths"]
    asked = [(path, method.upper()) for path, methods in described.items() for method in methods]
    named = [each for each in asked if NAME.search(each[0])]
    assert len(named) > 40
    for path, method in named:
        status = status_of(connection, method, NAME.sub(WRONG[wrong], path), token)
        has_none = path.startswith("/api/v1/users")  # as it says with 501
        assert 400 <= status < 500 or (has_none and status == 501), (method, path, status)
