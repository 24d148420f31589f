"""The metrics of several servers as one text, which a parser of Prometheus reads."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mqspark_server.hosting.mergedmetrics import merge_metrics

ONE = """# HELP up 1 if it {serves}
# TYPE up gauge
up 1.0
# HELP sent_total messages
# TYPE sent_total counter
sent_total{topic="a b{c} # d",kind="\\"x\\"\\n"} 3.0
# TYPE lag histogram
lag_bucket{le="1.0"} 1.0
lag_bucket{le="+Inf"} 2.0
lag_sum 3.0
lag_count 2.0
"""


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = list(text_string_to_metric_families(text))
    assert len(families) == len({each.name for each in families})
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in families
        for each in family.samples
    }


def test_every_sample_gets_the_name_of_its_server() -> None:
    merged = samples(merge_metrics([("a-0", ONE), ('a"\\-1', ONE.replace("3.0", "4.0"))]))
    expected = {
        (name, labels | {("broker", server)}): value if server == "a-0" or value != 3.0 else 4.0
        for (name, labels), value in samples(ONE).items()
        for server in ("a-0", 'a"\\-1')
    }
    assert merged == expected


def test_a_family_is_in_one_place_and_described_once() -> None:
    lines = merge_metrics([("a", ONE), ("b", "# TYPE own gauge\nown 1.0\n" + ONE)]).splitlines()
    assert [line for line in lines if line.startswith("# TYPE")] == [
        "# TYPE up gauge",
        "# TYPE sent_total counter",
        "# TYPE lag histogram",
        "# TYPE own gauge",
    ]
    assert lines[:4] == [
        "# HELP up 1 if it {serves}",
        "# TYPE up gauge",
        'up{broker="a"} 1.0',
        'up{broker="b"} 1.0',
    ]


@pytest.mark.parametrize(
    ("sample", "labelled"),
    [
        ("up 1", 'up{broker="a"} 1'),
        ("up{} 1", 'up{broker="a"} 1'),
        ('up{x="y z"} 1 123', 'up{broker="a",x="y z"} 1 123'),
        ("up", "up"),
    ],
)
def test_where_the_label_goes(sample: str, labelled: str) -> None:
    assert merge_metrics([("a", f"{sample}\n")]) == f"{labelled}\n"


def test_a_text_without_samples_adds_nothing() -> None:
    assert merge_metrics([("a", "# HELP up x\n# TYPE up gauge\n#\n\n")]) == ""
