"""Times of the console in the zone that a browser has chosen: shown and read in it, by forms and by addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from mqspark import AdminClient, Message, Producer
from mqspark.testing import Broker, FakeClock
from tests.support.visits import browser, check_safe, csrf, page

HOUR_MS = 3_600_000
BEGIN_MS = 1_769_860_800_000
"""2026-01-31 12:00 in UTC."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A message an hour, from 12:00 to 15:00 in UTC."""
    clock = FakeClock(BEGIN_MS)
    with Broker(http=True, clock=clock) as running:
        with AdminClient(running.namesrv) as admin:
            admin.create_topic("Hours", read_queues=1, write_queues=1)
            admin.create_group("walkers")
        with Producer(running.namesrv, group="console_tests") as producer:
            for number in range(4):
                producer.send(Message.of("Hours", f"hour {number}"))
                clock.advance(HOUR_MS)
        yield running


def choose(visitor: httpx.Client, zone: str) -> httpx.Response:
    token = csrf(visitor.get("/zone").text)
    return visitor.post("/zone", data={"csrf": token, "zone": zone, "back": "/console/topics"})


@pytest.mark.slow("a server for each zone; the time that a page shows is the fast twin")
def test_a_page_says_in_which_zone_it_is(broker: Broker) -> None:
    text = page(broker, "/topics/Hours/messages")
    assert "Times are in UTC." in text
    assert "<time>2026-01-31 15:00:00.000Z</time>" in text
    assert 'data-zone="UTC"' in text


@pytest.mark.parametrize(
    ("zone", "shown", "wall", "offset"),
    [
        ("UTC", "2026-01-31 14:00:00.000Z", "2026-01-31T14:00", 2),
        ("Asia/Shanghai", "2026-01-31 22:00:00.000+08:00", "2026-01-31T22:00", 2),
        ("America/New_York", "2026-01-31 09:00:00.000-05:00", "2026-01-31T09:00", 2),
    ],
)
def test_a_group_goes_to_the_time_that_the_page_shows(
    visitor: httpx.Client, broker: Broker, zone: str, shown: str, wall: str, offset: int
) -> None:
    answer = choose(visitor, zone)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/topics")
    assert f"Times are in {zone}." in visitor.get("/topics").text
    assert f"<time>{shown}</time>" in visitor.get("/topics/Hours/messages").text
    assert f"a time in {zone}" in visitor.get("/groups/walkers/reset?topic=Hours").text
    token = csrf(visitor.get("/topics").text)
    for given in (shown, wall, f"  {wall}"):
        form = {"csrf": token, "topic": "Hours", "to": "time", "time": given}
        asked = visitor.post("/groups/walkers/reset", data=form)
        check_safe(asked.text)
        assert f"<dd>{shown}</dd>" in asked.text
        # The form is answered from another zone: the time stays the one that was confirmed.
        (settled,) = re.findall(r'name="time" value="([^"]+)"', asked.text)
        choose(visitor, "Pacific/Kiritimati")
        visitor.post("/groups/walkers/reset", data={**form, "time": settled, "sure": "yes"})
        choose(visitor, zone)
        with AdminClient(broker.namesrv) as admin:
            (found,) = admin.group_offsets("walkers", "Hours").values()
        assert found.committed == offset
    found_messages = visitor.get("/topics/Hours/messages", params={"by": "time", "value": wall}).text
    assert ("hour 1</pre>" in found_messages, "hour 2</pre>" in found_messages) == (False, True)


def test_who_is_not_logged_in_chooses_too(broker: Broker) -> None:
    with browser(broker) as client:
        names = re.findall(r"<option( selected)?>([^<]+)</option>", client.get("/zone").text)
        assert (" selected", "UTC") in names
        answer = client.post("/zone", data={"zone": "Asia/Kolkata", "back": "https://elsewhere.example/"})
        assert answer.headers["location"] == "/console"
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("mqspark-zone=Asia/Kolkata; Path=/console; ")
        assert "HttpOnly" in cookie
        assert "2026-01-31 20:30:00.000+05:30" in client.get("/topics/Hours").text
        for wrong in ("", "Europe/Nowhere", "../../etc/passwd"):
            answer = client.post("/zone", data={"zone": wrong})
            assert (answer.status_code, "knows no time zone" in answer.text) == (400, True)
        assert client.post("/zone", data={"zone": "UTC"}, headers={"origin": "http://x"}).status_code == 403
        client.cookies.clear()
        client.cookies.set("mqspark-zone", "Nowhere")
        assert "Times are in UTC." in client.get("/topics").text


@pytest.mark.parametrize("time", ["2026-03-29T02:30", "2026-10-25T02:30", "1969-12-31T23:59:59.999Z"])
def test_a_time_that_is_not_one_moves_nothing(visitor: httpx.Client, broker: Broker, time: str) -> None:
    choose(visitor, "Europe/Berlin")
    form = {"csrf": csrf(visitor.get("/topics").text), "topic": "Hours", "to": "time", "time": time}
    for sure in ({}, {"sure": "yes"}):
        answer = visitor.post("/groups/walkers/reset", data={**form, **sure})
        assert answer.status_code == 400
