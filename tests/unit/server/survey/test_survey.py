"""What is asked of a cluster for commands, pages and charts: rows without a cluster."""

from __future__ import annotations

import pytest

from mqspark_server.commands.local.examination import _clock
from mqspark_server.survey.brokersurvey import figures_of, totals_of
from mqspark_server.survey.topicsurvey import topic_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Orders", "normal"),
        ("%RETRY%g", "retry"),
        ("%DLQ%g", "dead letters"),
        ("SCHEDULE_TOPIC_XXXX", "system"),
        ("c_REPLY_TOPIC", "system"),
    ],
)
def test_kinds_of_topics(name: str, kind: str) -> None:
    assert topic_kind(name) == kind


@pytest.mark.parametrize("said", ["nan", "inf", "-inf", "1e999"])
def test_what_is_no_number_of_anything_is_not_shown(said: str) -> None:
    """JSON has no such number, and a command that cannot subtract shows no broker at all."""
    keys = (
        "putTps",
        "commitLogDiskRatio",
        "commitLogMinOffset",
        "msgPutTotalTodayNow",
        "msgPutTotalTodayMorning",
    )
    found = figures_of(dict.fromkeys(keys, said))
    assert {value for key, value in found.items() if key != "active"} == {None}


def test_a_broker_that_says_to_be_of_all_time_has_no_clock() -> None:
    for days in ("9" * 400, "9" * 5_000):
        runtime = {"runtime": f"[ {days} days, 1 hours, 1 minutes, 1 seconds ]", "bootTimestamp": "1" * 13}
        assert _clock("broker", runtime, 0.0, 0.0) == []


def test_a_broker_that_says_nothing_or_nonsense_has_no_figures() -> None:
    for said in (
        {},
        dict.fromkeys(("putTps", "commitLogDiskRatio", "bootTimestamp", "putLatency99"), "soon"),
    ):
        found = figures_of(said)
        assert {value for key, value in found.items() if key != "active"} == {None}
    said = {
        "putTps": "1.5 2 3",
        "getTransferedTps": "2 3 4",
        "commitLogMinOffset": "3",
        "commitLogMaxOffset": "10",
    }
    found = figures_of(said)
    assert (found["in_tps"], found["out_tps"], found["log_bytes"]) == (1.5, 2, 7)
    silent = {"id": 1, "error": "gone", **figures_of({})}
    totals = totals_of([{"id": 0, "error": "", **found}, silent])
    assert totals == {"answering": 1, "in_tps": 1.5, "out_tps": 2, "disk": None}
