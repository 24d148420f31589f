"""What is asked of a cluster for commands, pages and charts: rows without a cluster."""

from __future__ import annotations

import pytest

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
