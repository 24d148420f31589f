"""The pages of groups and of their dead letters: how long something waits, pages, and the form that moves a group."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from mqspark import AdminClient, Message, Producer
from mqspark.message import dlq_topic
from mqspark.testing import Broker, FakeClock
from tests.support.shownfigures import figures_of
from tests.support.visits import change, csrf, page

MINUTE_MS = 60_000
LETTERS = 50
DEAD = dlq_topic("mourners")


@pytest.fixture(scope="module")
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="module")
def broker(clock: FakeClock) -> Iterator[Broker]:
    """A message a minute, from an hour and a half ago on, to two queues in turn, and a dead letter each."""
    with Broker(http=True, clock=clock) as running:
        with (
            AdminClient(running.namesrv) as admin,
            Producer(running.namesrv, group="console_tests") as producer,
        ):
            for topic in ("Orders", DEAD):
                admin.create_topic(topic, queues=2)
            for group in ("mourners", "walkers"):
                admin.create_group(group)
            queues = {topic: sorted(admin.topic_stats(topic)) for topic in ("Orders", DEAD)}
            for number in range(90):
                producer.send(Message.of("Orders", f"{number}"), queue=queues["Orders"][number % 2])
                if number >= 90 - LETTERS:
                    # The first queue has the older half.
                    letter = Message.of(DEAD, f"letter {number}", properties={"DLQ_ORIGIN_TOPIC": "Orders"})
                    producer.send(letter, queue=queues[DEAD][number >= 90 - LETTERS // 2])
                clock.step_wall_clock(MINUTE_MS)
            admin.reset_offsets("mourners", "Orders", 0)
        yield running


def committed(broker: Broker, group: str = "walkers") -> list[int]:
    with AdminClient(broker.namesrv) as admin:
        return [each.committed for _, each in sorted(admin.group_offsets(group, "Orders").items())]


# --- lag and dead letters ---


def test_a_group_says_how_long_something_waits(broker: Broker) -> None:
    shown = figures_of(page(broker, "/groups/mourners"))
    assert shown.tiles["Lag, messages"] == "90"
    assert shown.tiles["Oldest not consumed"] == "2 h ago"  # 90 minutes, in hours
    assert [row["Oldest not consumed"] for row in shown.tables["Queues"].rows] == ["2 h ago", "1 h ago"]
    with AdminClient(broker.namesrv) as admin:
        first, second = sorted(admin.topic_stats("Orders"))
        admin.reset_offset("mourners", first, 45)
        admin.reset_offset("mourners", second, 40)
    shown = figures_of(page(broker, "/groups/mourners"))
    assert [row["Oldest not consumed"] for row in shown.tables["Queues"].rows] == ["\N{EN DASH}", "9 min ago"]
    with AdminClient(broker.namesrv) as admin:  # a page that looks at times hands nothing out
        assert admin.broker_runtime_info(broker.apps[0].address)["msgGetTotalTodayNow"] == "0"
    (row,) = figures_of(page(broker, "/lags")).tables["Groups that are behind"].rows
    assert row == {"Group": "mourners", "Lag": "5", "Oldest not consumed": "9 min ago"}


def test_groups_and_dead_letters_lead_to_each_other(broker: Broker) -> None:
    (mourners, walkers) = figures_of(page(broker, "/groups")).tables["Consumer groups"].rows
    assert (mourners["Dead letters"], mourners["Oldest"]) == (str(LETTERS), "50 min ago")
    assert (walkers["Dead letters"], walkers["Oldest"]) == ("0", "\N{EN DASH}")
    assert 'href="/console/dead-letters/mourners"' in page(broker, "/groups")
    for path in ("/groups/mourners", "/groups/mourners/config", "/dead-letters/mourners"):
        text = page(broker, path)
        assert 'href="/console/groups/mourners"' in text
        assert 'href="/console/dead-letters/mourners"' in text
    assert "The group has no dead letters" in page(broker, "/dead-letters/walkers")
    page(broker, "/dead-letters/nobody", 404)


def test_how_many_letters_came_in_the_last_hour(broker: Broker, clock: FakeClock) -> None:
    shown = figures_of(page(broker, "/dead-letters/mourners"))
    assert shown.tiles["Dead letters"] == shown.tiles["In the last hour"] == str(LETTERS)
    clock.step_wall_clock(30 * MINUTE_MS)
    shown = figures_of(page(broker, "/dead-letters/mourners"))
    assert (shown.tiles["In the last hour"], shown.tiles["Oldest"]) == ("30", "1 h ago")
    assert shown.tiles["Last one"] == "31 min ago"
    (row,) = figures_of(page(broker, "/lags")).tables["Dead letters"].rows
    assert (row["In the last hour"], row["Last one"]) == ("30", "31 min ago")


def test_dead_letters_have_pages_of_the_newest_of_all_queues(visitor: httpx.Client) -> None:
    def bodies(text: str) -> list[int]:
        return [int(each) for each in re.findall(r">letter (\d+)</pre>", text)]

    first = visitor.get("/dead-letters/mourners").text
    assert bodies(first) == list(range(89, 69, -1))
    assert figures_of(first).pager == "1\N{EN DASH}20, the newest first"
    (older,) = re.findall(r'href="/console([^"]+)">Older<', first)
    second = visitor.get(older.replace("&amp;", "&")).text
    assert bodies(second) == list(range(69, 49, -1))
    assert ">Newer<" in second
    last = visitor.get("/dead-letters/mourners", params={"page": 3}).text
    assert bodies(last) == list(range(49, 39, -1))
    assert ">Older<" not in last
    assert visitor.get("/dead-letters/mourners", params={"page": 0}).status_code == 400
    assert "checked" not in second
    (whole,) = re.findall(r'href="/console([^"]+)">Choose this page<', second)
    ticked = visitor.get(whole.replace("&amp;", "&")).text
    ids = re.findall(r'name="id" value="([^"]+)"[^>]* checked>', ticked)
    assert (len(ids), bodies(ticked)) == (20, bodies(second))
    token = csrf(ticked)
    asked = visitor.post("/dead-letters/mourners/resend", data={"csrf": token, "which": "chosen", "id": ids})
    assert "Send 20 dead letters again?" in asked.text


# --- the form that moves a group ---


def test_nothing_is_chosen_before_it_is_chosen(visitor: httpx.Client) -> None:
    assert "checked" not in visitor.get("/groups/walkers/reset").text
    assert 'name="to"' not in visitor.get("/groups/walkers/reset").text
    text = visitor.get("/groups/walkers/reset", params={"topic": "Orders"}).text
    assert "checked" not in text
    assert len(re.findall(r'name="queue" value="dev:[01]"', text)) == 2
    assert "nothing committed" in text
    assert visitor.get("/groups/walkers/reset", params={"topic": "Nowhere"}).status_code == 404


def test_chosen_queues_are_moved_and_others_stay(visitor: httpx.Client, broker: Broker) -> None:
    path = "/groups/walkers/reset"
    change(visitor, path, {"topic": "Orders", "to": "latest"})
    assert committed(broker) == [45, 45]
    change(visitor, path, {"topic": "Orders", "to": "earliest", "queue": "dev:1"})
    assert committed(broker) == [45, 0]
    change(visitor, path, {"topic": "Orders", "to": "offset", "queue": ["dev:0"], "offset": "7"})
    assert committed(broker) == [7, 0]
    with AdminClient(broker.namesrv) as admin:
        (message,) = admin.read(sorted(admin.topic_stats("Orders"))[1], 20, max_messages=1).messages
    change(
        visitor,
        path,
        {"topic": "Orders", "to": "time", "time": str(message.store_timestamp_ms), "queue": ["dev:1"]},
    )
    assert committed(broker) == [7, 20]
    change(visitor, path, {"topic": "Orders", "to": "latest", "queue": ["dev:0", "dev:1", "dev:0"]})
    assert committed(broker) == [45, 45]


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        ({"to": "time", "time": "soon"}, "give a time"),
        ({"to": "offset", "queue": ["dev:0"], "offset": "99"}, "offsets 0 to 45"),
        ({"to": "offset", "queue": ["dev:0", "dev:1"], "offset": "9"}, "choose the one queue"),
        ({"to": "latest", "queue": ["dev:0", "dev:9"]}, "of a queue of the topic"),
        ({"queue": ["dev:0"]}, "to: choose one of"),
    ],
)
def test_a_form_with_a_mistake_comes_back_filled(
    visitor: httpx.Client, broker: Broker, wrong: dict[str, str | list[str]], mistake: str
) -> None:
    before = committed(broker)
    token = csrf(visitor.get("/topics").text)
    for sure in ({}, {"sure": "yes"}):
        answer = visitor.post(
            "/groups/walkers/reset", data={"csrf": token, "topic": "Orders", **wrong, **sure}
        )
        assert answer.status_code == 400
        (said,) = re.findall(r'role="alert">([^<]+)<', answer.text)
        assert mistake in said
        assert '<input type="hidden" name="topic" value="Orders">' in answer.text
        for name in ("time", "offset"):
            assert f'value="{wrong.get(name, "")}"' in next(
                iter(re.findall(f'<input name="{name}"[^>]*>', answer.text))
            )
        chosen = re.findall(r'name="queue" value="([^"]+)" checked', answer.text)
        assert set(chosen) == set(wrong.get("queue", ())) & {"dev:0", "dev:1"}
        to = re.findall(r'name="to" value="(\w+)" required checked', answer.text)
        assert to == [wrong[each] for each in ("to",) if each in wrong]
    assert committed(broker) == before


def test_other_forms_come_back_filled_too(visitor: httpx.Client) -> None:
    token = csrf(visitor.get("/topics").text)
    answer = visitor.post("/groups", data={"csrf": token, "name": "new ones", "retries": "5"})
    assert answer.status_code == 400
    assert 'value="new ones"' in answer.text
    assert 'name="retries" type="number" value="5"' in answer.text
    sent = {"csrf": token, "body": "<b>\nfor later", "properties": "no pair", "tag": "t"}
    answer = visitor.post("/topics/Orders/send", data=sent)
    assert "properties: NAME=VALUE" in answer.text
    assert re.search(r'name="body"[^>]*>\n&lt;b&gt;\nfor later</textarea>', answer.text)
    assert re.search(r'name="properties"[^>]*>\nno pair</textarea>', answer.text)
    sent = {"csrf": token, "topic": "a b", "mode": "POP", "back": "/console/groups/walkers/config"}
    answer = visitor.post("/groups/walkers/mode", data=sent)
    assert "illegal characters" in answer.text
    assert 'value="a b"' in answer.text
    assert 'name="enabled" value="1" checked' in answer.text  # of the form that was not sent
    # The path of the form that was sent has no page, so nothing of this page leads there but that form.
    assert set(re.findall('name="back" value="([^"]+)"', answer.text)) == {sent["back"]}
    assert all('action="/console/' in each for each in re.findall("<form[^>]*>", answer.text))
    sent = {"csrf": token, "body": "for nobody", "properties": "no pair"}
    answer = visitor.post("/topics/Nowhere/send", data=sent)
    assert (answer.status_code, "properties: NAME=VALUE" in answer.text) == (400, True)
    sent = {"csrf": token, "which": "chosen", "back": "/console/dead-letters/walkers"}
    answer = visitor.post("/dead-letters/walkers/resend", data=sent)
    assert "no dead letter is chosen" in answer.text
    assert all('action="/console/' in each for each in re.findall("<form[^>]*>", answer.text))
