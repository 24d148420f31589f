"""Lists of the console of a real broker: topics with type, rate and groups, settings, producers; and the API's page."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark import AdminClient, Message, Producer
from mqspark.errors import BrokerError
from mqspark.testing import Broker
from mqspark_server.console.sections import clusterpages
from mqspark_server.settings.declarations import settings_of
from tests.support.processes import mqspark_command, ready_line, start, stop
from tests.support.visits import check_safe, page
from tests.support.web import get

COUNTS = {"Alpha": 3, "Beta": 7, "gamma": 1}
GROUPS = [f"readers-{number}" for number in range(5)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with (
        Broker(http=True, settings={"fileReservedTime": 48}) as running,
        AdminClient(running.namesrv) as admin,
    ):
        for number, topic in enumerate(COUNTS):
            attributes = {"message.type": "FIFO"} if topic == "Beta" else None
            admin.create_topic(topic, read_queues=number + 1, write_queues=number + 1, attributes=attributes)
        with Producer(running.namesrv, group="shop") as producer:
            for topic, count in COUNTS.items():
                for _ in range(count):
                    producer.send(Message.of(topic, "x"))
            for group in GROUPS:
                admin.create_group(group)
                admin.reset_offsets(group, "Beta", 0)
            yield running


def rows(text: str, gap: str = "") -> list[list[str]]:
    body = re.search(r"<tbody>(.*?)</tbody>", text, re.DOTALL)
    assert body is not None
    return [
        [
            " ".join(re.sub("<[^>]*>", gap, cell).split())
            for cell in re.findall(r"<t[hd]\b.*?</t[hd]>", row, re.DOTALL)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", body[1], re.DOTALL)
    ]


def test_topics_have_their_type_rate_and_groups(broker: Broker) -> None:
    text = page(broker, "/topics")
    found = {row[0]: row[1:] for row in rows(text)}
    assert {name: row[:4] for name, row in found.items()} == {
        "Alpha": ["normal", "NORMAL", "1", "3"],
        "Beta": ["normal", "FIFO", "2", "7"],
        "gamma": ["normal", "NORMAL", "3", "1"],
    }
    with AdminClient(broker.namesrv) as admin:
        for name, row in found.items():
            try:
                minute = admin.broker_stats(broker.apps[0].address, "TOPIC_PUT_NUMS", name).stats_minute
            except BrokerError:
                minute = None
            assert row[4] == f"{minute.tps if minute else 0.0:,.1f}"
        assert admin.topic_groups("Beta") == GROUPS
    assert found["Beta"][6] == "readers-0, readers-1, readers-2 and 2 more"
    assert found["Alpha"][6] == "\N{EN DASH}"
    assert 'href="/console/groups/readers-1"' in text


@pytest.mark.parametrize(
    ("query", "order"),
    [
        ("", ["Alpha", "Beta", "gamma"]),
        ("sort=topic&down=1", ["gamma", "Beta", "Alpha"]),
        ("sort=messages", ["gamma", "Alpha", "Beta"]),
        ("sort=messages&down=1", ["Beta", "Alpha", "gamma"]),
        ("sort=queues&down=1", ["gamma", "Beta", "Alpha"]),
        ("sort=group_count&down=1", ["Beta", "Alpha", "gamma"]),
        ("sort=type", ["Beta", "Alpha", "gamma"]),
    ],
)
def test_topics_are_sorted_by_a_column(broker: Broker, query: str, order: list[str]) -> None:
    text = page(broker, f"/topics?{query}")
    assert [row[0] for row in rows(text)] == order
    assert text.count("aria-sort") == bool(query)


def test_a_column_links_to_its_order_and_turns_it_around(broker: Broker) -> None:
    text = page(broker, "/topics?q=a&every=1")
    assert 'href="/console/topics?q=a&amp;every=1&amp;sort=messages&amp;down=1">Messages</a>' in text
    text = page(broker, "/topics?sort=messages&down=1")
    assert (
        'class="num" aria-sort="descending"><a href="/console/topics?sort=messages&amp;down=">Messages</a>'
        in text
    )
    assert '<input type="hidden" name="sort" value="messages">' in text  # a search keeps the order
    page(broker, "/topics?sort=price", 400)


# --- settings ---


def settings(broker: Broker, query: str) -> dict[str, list[str]]:
    name = broker.apps[0].config.broker_name
    return {row[0].split(" ")[0]: row for row in rows(page(broker, f"/brokers/{name}/config?{query}"), " ")}


def test_a_setting_has_its_description_default_unit_and_range(broker: Broker) -> None:
    each = next(each for each in settings_of("broker") if each.key == "haHousekeepingInterval")
    row = settings(broker, "q=haHousekeepingInterval")["haHousekeepingInterval"]
    assert row == [f"haHousekeepingInterval {each.text}", "20000", "20000", "ms", each.bounds, "", ""]
    row = settings(broker, "q=fileReservedTime")["fileReservedTime"]
    assert row[1:6] == ["48", "72", "hours", "from 0", "changed"]
    assert settings(broker, "q=enablePropertyFilter")["enablePropertyFilter"][6] == "at run time"
    assert "Without an effect here" in settings(broker, "q=accountStatsEnable")["accountStatsEnable"][0]


def test_a_description_is_found_and_only_what_is_changed_is_shown(broker: Broker) -> None:
    assert settings(broker, "q=a+slave+that+is+silent").keys() == {"haHousekeepingInterval"}
    name = broker.apps[0].config.broker_name  # why a setting has no effect is no description of it
    assert "No setting contains this" in page(broker, f"/brokers/{name}/config?q=how+RocketMQ+maps")
    found = settings(broker, "changed=1")
    assert found["fileReservedTime"][5] == "changed"
    assert found["namesrvAddr"][5] == "given, or found at the start"
    assert "haHousekeepingInterval" not in found
    assert all(row[5] for row in found.values())


def test_every_reported_setting_has_the_default_of_its_declaration(broker: Broker) -> None:
    found = settings(broker, "")
    declared = {each.key: each for each in settings_of("broker")}
    for key, row in found.items():
        if key in declared:
            assert row[2:5] == [declared[key].default, declared[key].unit, declared[key].bounds], key
            assert bool(row[5]) == (not declared[key].is_default(row[1])), key


def test_a_broker_of_rocketmq_has_no_defaults_of_ours(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reported(admin: object, name: str) -> tuple[str, dict[str, str]]:
        return "h:1", {"fileReservedTime": "48", "flushDiskType": "ASYNC_FLUSH"}

    monkeypatch.setattr(clusterpages, "_settings_of", reported)
    text = page(broker, "/brokers/dev/config")
    assert rows(text)[0][1:6] == ["48", "", "hours", "from 0", ""]
    assert "it is no broker of mqspark" in text


# --- producers, and the page of the API ---


def test_producers_are_paged_and_found_by_group(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row[0] for row in rows(page(broker, "/producers?q=SHOP"))] == ["shop"]
    assert "No producer of such a group is connected" in page(broker, "/producers?q=nobody")

    async def many(admin: object, address: str) -> dict[str, list[Any]]:
        def client(number: int) -> Any:
            return SimpleNamespace(
                client_id=f"c{number:04}",
                remote_ip="127.0.0.1:1",
                language="PYTHON",
                version=1,
                last_update_timestamp=1,
            )

        return {"shop": [client(number) for number in range(2_345)]}

    monkeypatch.setattr("mqspark.client.admin.AdminClient.producers", many)
    text = page(broker, "/producers?page=47")
    assert [row[1] for row in rows(text)] == [f"c{number:04}" for number in range(2_300, 2_345)]
    assert "2,301\N{EN DASH}2,345 of 2,345" in text


def test_the_command_has_the_page_of_the_api_too(broker: Broker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [*mqspark_command(), "console", "-n", broker.namesrv, "--port", "0"]
    process = start(command, log, stdout=subprocess.PIPE)
    try:
        origin = ready_line(process, log)["console"].removesuffix("/console")
        answer = get(f"{origin}/docs")
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        check_safe(answer.text.replace('href="/openapi.json"', ""))
        own = get(f"{broker.http_url}/docs").text
        sections = re.findall(r'<section class="card operation" id="([^"]+)"', answer.text)
        assert sections == re.findall(r'<section class="card operation" id="([^"]+)"', own)
        assert "get-api-v1-topics-topic-messages" in sections
        assert get(f"{origin}/openapi.json").json() == get(f"{broker.http_url}/openapi.json").json()
        assert '<a href="/docs">HTTP API</a>' in get(f"{origin}/console").text
    finally:
        stop(process)
