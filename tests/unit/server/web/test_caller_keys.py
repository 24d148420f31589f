"""The keys of a caller in whose name a cluster is asked."""

from __future__ import annotations

import base64

import pytest
from fastapi import Request

from mqspark.client.remoting.credentials import Credentials
from mqspark_server.web.callers import MAX_CREDENTIALS_LENGTH, keys_of
from mqspark_server.web.problems import Problem


def request(header: bytes | None) -> Request:
    headers = [] if header is None else [(b"authorization", header)]
    return Request({"type": "http", "headers": headers})


def basic(pair: bytes) -> bytes:
    return b"Basic " + base64.b64encode(pair)


def test_basic_credentials_are_keys() -> None:
    assert keys_of(request(None)) is None
    assert keys_of(request(basic(b"reader:a:b"))) == Credentials("reader", "a:b")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Basic",
        b"Basic !",
        b"Bearer x",
        basic(b"no colon"),
        basic(b":"),
        basic(b"reader:"),
        basic(b":secret"),
        basic(b"\xff:x"),
        basic(b"reader:" + b"x" * MAX_CREDENTIALS_LENGTH),
    ],
)
def test_what_is_no_keys_is_refused(header: bytes) -> None:
    with pytest.raises(Problem) as caught:
        keys_of(request(header))
    assert caught.value.status == 401
