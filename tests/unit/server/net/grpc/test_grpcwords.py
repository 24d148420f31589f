"""gRPC's timeouts and trailers."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from mqspark_server.net.grpc.grpcwords import (
    MAX_TEXT,
    GrpcCode,
    end_block,
    failure_block,
    no_grpc_block,
    timeout_s,
)
from tests.unit.http2_kit import fields_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1H", 3600),
        ("2M", 120),
        ("3S", 3),
        ("40m", 0.04),
        ("50u", 5e-5),
        ("60n", 6e-8),
        ("99999999H", 359_999_996_400),
    ],
)
def test_timeouts(text: str, seconds: float) -> None:
    assert timeout_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "1", "1s", "-1S", "+1S", "123456789S", "1 S", "\u0661S", "1.5S"])
def test_what_is_no_timeout_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="grpc-timeout"):
        timeout_s(text)


def test_texts_of_failures_are_encoded_and_cut() -> None:
    said = "100 % of \u00e4 and\nmore"
    found = fields_of(end_block(GrpcCode.INTERNAL, said))
    assert found["grpc-status"] == "13"
    assert found["grpc-message"].isascii()
    assert "\n" not in found["grpc-message"]
    assert unquote(found["grpc-message"]) == said
    assert len(fields_of(end_block(GrpcCode.INTERNAL, "x" * 5_000))["grpc-message"]) == MAX_TEXT


def test_a_failure_without_an_answer_is_one_block() -> None:
    found = fields_of(failure_block(GrpcCode.UNIMPLEMENTED, "no"))
    assert (found[":status"], found["content-type"], found["grpc-status"]) == (
        "200",
        "application/grpc",
        "12",
    )
    assert fields_of(no_grpc_block(415))[":status"] == "415"
