"""What fails again and again costs a line when it begins and one when it is over."""

from __future__ import annotations

import logging

import pytest

from mqspark.base.logs import MAX_REASONS, Outages
from mqspark.errors import BrokerError, ClientError

LOG = logging.getLogger("tests.outages")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]


def test_a_line_when_it_begins_and_one_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages(LOG)
    with caplog.at_level(logging.DEBUG):
        outages.over("a", "a works")
        for number in range(100):
            outages.failed("a", ClientError("x"), "a fails: %d", number)
            outages.failed("b", None, "b fails: %d", number)
        outages.over("a", "a works")
        outages.over("a", "a works")
        outages.failed("a", ClientError("x"), "a fails once more")
    assert lines(caplog) == ["a fails: 0", "b fails: 0", "a works", "a fails once more"]
    assert len(caplog.records) == 202  # the others are for debugging


def test_another_reason_is_told(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages(LOG)
    for _ in range(3):
        for code in (1, 16):
            outages.failed("a", BrokerError(code, "no"), "a is refused: %d", code)
    assert lines(caplog) == ["a is refused: 1", "a is refused: 16"]
    for code in range(1_000):
        outages.failed("a", str(code), "a fails for any reason")
    assert lines(caplog).count("a fails for any reason") == MAX_REASONS - 2


def test_what_the_log_knows_from_elsewhere_has_no_end(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages(LOG)
    outages.failed("a", ClientError("away"), "a fails", level=logging.DEBUG)
    outages.over("a", "a works")
    assert lines(caplog) == []


def test_what_is_out_is_bounded(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark.base.logs.MAX_OUT", 3)
    outages = Outages(LOG)
    for number in range(10):
        outages.failed(number, None, "%d fails", number)
    caplog.clear()
    for number in range(10):
        outages.over(number, "%d works", number)
    assert lines(caplog) == ["7 works", "8 works", "9 works"]
