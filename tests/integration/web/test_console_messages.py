"""The pages of messages of a real broker: paging, queues, texts in bodies, and downloads; who may read what."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import re
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from mqspark import AdminClient, Message, Producer
from mqspark.message import MessageQueue
from mqspark.testing import Broker
from mqspark_server.console.offsetfields import offsets_text
from mqspark_server.console.sections import messagepages
from mqspark_server.survey import messagesurvey
from tests.support.users import with_users
from tests.support.visits import browser, change, log_in, page
from tests.support.web import get

COUNT = 50
QUEUES = 3
FORMULA = '=HYPERLINK("http://evil.example")'
ROOT = ("root", "root-canary-secret")
CLERK = "clerk-canary-secret"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running, Producer(running.namesrv, group="console_tests") as producer:
        with browser(running) as visitor:
            log_in(visitor, secret=running.apps[0].loopback_token)
            for name in ("Paged", "Cells"):
                change(visitor, "/topics", {"name": name, "read_queues": str(QUEUES)})
        queues = [MessageQueue("Paged", running.apps[0].config.broker_name, each) for each in range(QUEUES)]
        for number in range(COUNT):
            body = f"number {number:02d} {'Straße' if number % 10 == 0 else ''}"
            producer.send(
                Message.of("Paged", body, keys=f"k{number}", tags="t"), queue=queues[number % QUEUES]
            )
        for body in (FORMULA, b"\xfb\xff\x00", "@x", "'quoted", "plain, with\nlines"):
            producer.send(Message.of("Cells", body, keys="-1+2", properties={"p": "=1"}))
        yield running


def numbers(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"<pre [^>]*>number (\d\d)", text)]


def links(text: str) -> dict[str, str]:
    nav = re.search(r'<nav class="pages"[^>]*>(.*?)</nav>', text)
    assert nav is not None
    found = re.findall(r'href="/console([^"]+)">([^<]+)<', nav[1])
    return {label: html.unescape(path) for path, label in found}


def test_pages_of_the_newest_go_back_to_the_first_and_return(broker: Broker) -> None:
    text = page(broker, "/topics/Paged/messages")
    shown = numbers(text)
    assert (len(shown), links(text).keys()) == (20, {"Older"})
    texts = [text]
    while "Older" in links(text):
        text = page(broker, links(text)["Older"])
        texts.append(text)
        shown += numbers(text)
    # Those of one millisecond are in the order of their queues.
    assert sorted(shown) == list(range(COUNT))
    assert links(text).keys() == {"Newest", "Newer"}
    text = page(broker, links(text)["Newer"])
    assert numbers(text) == numbers(texts[1])
    assert "20 messages, the newest first." in text
    text = page(broker, links(text)["Newer"])
    assert numbers(text) == numbers(texts[0])
    assert numbers(page(broker, links(text)["Newest"])) == numbers(texts[0])


def test_pages_from_an_offset_or_a_time_go_on_and_back(broker: Broker) -> None:
    text = page(broker, "/topics/Paged/messages?by=offset&value=10")
    assert (min(numbers(text)), len(numbers(text))) == (30, 20)
    assert numbers(text) == sorted(numbers(text))
    assert "20 messages, the oldest first." in text
    assert numbers(page(broker, links(text)["Older"])) == list(range(10, 30))
    text = page(broker, "/topics/Paged/messages?by=time&value=2001-01-01T00:00&view=hex")
    following = links(text)["Newer"]
    assert "view=hex" in following
    shown = numbers(page(broker, following.replace("view=hex", "view=text")))
    assert (min(shown), len(shown)) == (20, 20)
    assert numbers(page(broker, "/topics/Paged/messages?by=time&value=2901-01-01T00:00")) == []


def test_one_queue_is_chosen(broker: Broker) -> None:
    name = broker.apps[0].config.broker_name
    text = page(broker, f"/topics/Paged/messages?queue={name}:1")
    assert numbers(text) == list(range(COUNT - 1, 0, -QUEUES))[: len(numbers(text))]
    assert f"<option selected>{name}:1</option>" in text
    assert "no queue other:1" in page(broker, "/topics/Paged/messages?queue=other:1")
    found = numbers(page(broker, f"/topics/Paged/messages?by=key&value=k4&queue={name}:1"))
    assert (found, numbers(page(broker, f"/topics/Paged/messages?by=key&value=k4&queue={name}:2"))) == (
        [4],
        [],
    )


def test_the_key_is_in_the_row(broker: Broker) -> None:
    text = page(broker, "/topics/Paged/messages?by=key&value=k4")
    assert re.search(r'<summary>.*<span class="mono key" title="Keys">k4</span>.*</summary>', text)


@pytest.mark.parametrize("word", ["stra%C3%9Fe", "STRASSE", "Stra%C3%9Fe"])
def test_a_text_in_bodies_is_found_whatever_its_case(broker: Broker, word: str) -> None:
    text = page(broker, f"/topics/Paged/messages?body={word}")
    assert numbers(text) == [40, 30, 20, 10, 0]
    assert f"{COUNT} were looked at." in text
    assert numbers(page(broker, f"/topics/Paged/messages?body={word}&by=key&value=k20")) == [20]
    assert "None of these messages matches" in page(broker, "/topics/Paged/messages?body=nobody")


def test_a_search_says_how_far_it_came_and_offers_to_go_on(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messagesurvey, "MAX_LOOKED_AT", 9)
    monkeypatch.setattr(messagesurvey, "STEP", 3)
    text = page(broker, "/topics/Paged/messages?body=number+01")
    assert numbers(text) == []
    assert re.search(r"0 messages. \d+ were looked at; Older and Newer go on from there.", text)
    for _ in range(20):
        if numbers(text) or "Older" not in links(text):
            break
        text = page(broker, links(text)["Older"])
    assert numbers(text) == [1]


def test_the_log_was_cleaned_behind_a_page(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    name = broker.apps[0].config.broker_name
    older = links(page(broker, "/topics/Paged/messages"))["Older"]
    newer = links(page(broker, older))["Newer"]
    ends = {MessageQueue("Paged", name, each): 16 for each in range(QUEUES)}

    async def cleaned(admin: object, topic: str) -> messagesurvey.Bounds:
        return dict.fromkeys(ends, (15, 17))

    monkeypatch.setattr(messagepages, "bounds_of", cleaned)
    text = page(broker, older)
    assert f"All older messages of some queues have been deleted since: {name}:0 begins at 15" in text
    assert "There is nothing beyond this place." in text
    text = page(broker, newer)
    assert re.search(r"\d of the messages that follow of some queues have been deleted since", text)
    assert len(numbers(text)) == 5
    far = offsets_text(dict.fromkeys(ends, 1_000))
    text = page(broker, f"/topics/Paged/messages?before={far}")
    assert f"Queues end before this place, as of a topic that was made anew: {name}:0, {name}:1" in text


@pytest.mark.parametrize("offsets", ["x", "e30x", "W10", "eyJhIjp7IjAiOi0xfX0", "A" * 40_000])
def test_what_is_no_place_is_refused(broker: Broker, offsets: str) -> None:
    for name in ("before", "after"):
        for path in ("messages", "messages/download"):
            answer = get(f"{broker.http_url}/console/topics/Paged/{path}?{name}={offsets}")
            assert (answer.status_code, "this is no place of a page" in answer.text) == (400, True)


def test_an_address_with_a_place_in_very_many_queues_may_come_in_pieces(broker: Broker) -> None:
    places = {MessageQueue("Paged", "dev", number): 10**12 + number for number in range(1_000)}
    url = httpx.URL(broker.http_url)
    target = f"/console/topics/Paged/messages?before={offsets_text(places)}"
    with socket.create_connection((url.host, url.port or 80), 30) as sock:
        sock.sendall(f"GET {target[:20_000]}".encode())
        time.sleep(0.2)  # the server has read this piece
        sock.sendall(f"{target[20_000:]} HTTP/1.1\r\nHost: {url.host}\r\nConnection: close\r\n\r\n".encode())
        assert sock.recv(64).startswith(b"HTTP/1.1 200 ")


# --- filters ---


def verdicts(text: str) -> dict[str, list[str]]:
    """By the key of the message: the verdict, and the properties of the filter."""
    found = {}
    for row in re.findall(r"<tr>(<td.*?)</tr>", text, re.DOTALL):
        cells = [html.unescape(re.sub("<[^>]*>", "", each)) for each in re.findall(r"<t[hd].*?</t[hd]>", row)]
        found[cells[4]] = [cells[0], *cells[5:]]
    return found


@pytest.fixture(scope="module")
def tried(broker: Broker) -> Broker:
    with AdminClient(broker.namesrv) as admin, Producer(broker.namesrv, group="console_tests") as producer:
        admin.create_topic("Tried", read_queues=2, write_queues=2)
        for key, tag, amount in (
            ("a", "paid", "5"),
            ("b", "open", "500"),
            ("c", "paid", "x"),
            ("d", None, None),
        ):
            properties = {} if amount is None else {"amount": amount}
            producer.send(Message.of("Tried", "x", keys=key, tags=tag, properties=properties))
        admin.create_group("watchers")
        admin.reset_offsets("watchers", "Tried", 0)
    return broker


@pytest.mark.parametrize(
    ("query", "matching"),
    [
        ("kind=tags&expression=paid", "ac"),
        ("kind=tags&expression=paid+%7C%7C+open", "abc"),
        ("kind=tags&expression=*", "abcd"),
        ("kind=tags&expression=nothing", ""),
        ("kind=SQL92&expression=amount+%3E+100", "b"),
        ("kind=SQL92&expression=TAGS+%3D+%27paid%27+AND+amount+IS+NOT+NULL", "ac"),
        ("kind=SQL92&expression=amount+IS+NULL", "d"),
    ],
)
def test_a_filter_is_tried_and_no_offset_moves(tried: Broker, query: str, matching: str) -> None:
    """Whether brokers may filter by SQL92 or not: this one may not."""
    with AdminClient(tried.namesrv) as admin:
        before = admin.group_offsets("watchers", "Tried")
        text = page(tried, f"/topics/Tried/filter?{query}")
        assert admin.group_offsets("watchers", "Tried") == before
        assert sum(each.committed for each in before.values()) == 0
        assert set(admin.topic_groups("Tried")) == {"watchers"}
    found = verdicts(text)
    assert sorted(found) == list("abcd")
    assert sorted(key for key, (verdict, *_) in found.items() if verdict == "match") == list(matching)
    verb = "matches" if len(matching) == 1 else "match"
    assert f"{len(matching)} of the newest 4 messages {verb}." in text


def test_a_filter_says_why_a_message_does_not_match(tried: Broker) -> None:
    found = verdicts(page(tried, "/topics/Tried/filter?kind=SQL92&expression=amount+%3E+100"))
    assert found["a"] == ["no match", "5"]
    assert found["b"] == ["match", "500"]
    assert (found["c"][0].startswith("no match: "), found["c"][1]) == (True, "x")
    assert found["d"] == ["no match: a property is missing or of another kind", "\N{EN DASH}"]
    assert 'role="alert"' in page(tried, "/topics/Tried/filter?kind=SQL92&expression=amount+%3E")
    assert "no offset of a group moves" in page(tried, "/topics/Tried/filter")
    page(tried, "/topics/Nowhere/filter?expression=a", 404)
    path = re.search(
        r'href="/console(/topics/Tried/messages\?by=offset[^"]+)"',
        page(tried, "/topics/Tried/filter?expression=open"),
    )
    assert path is not None
    assert "amount" in page(tried, html.unescape(path[1]))


# --- downloads ---


def download(broker: Broker, query: str, topic: str = "Paged") -> httpx.Response:
    answer = get(f"{broker.http_url}/console/topics/{topic}/messages/download?{query}")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer


def test_what_is_shown_is_what_is_downloaded(broker: Broker) -> None:
    text = page(broker, links(page(broker, "/topics/Paged/messages"))["Older"])
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]+)"', text))
    assert '<option value="20">what is shown</option>' in text
    answer = download(broker, f"before={fields['before']}&most=20&format=jsonl")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [int(row["body"][7:9]) for row in rows] == numbers(text)
    assert answer.headers["content-type"] == "application/x-ndjson; charset=utf-8"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''Paged.jsonl"
    assert (rows[0]["topic"], rows[0]["tags"]) == ("Paged", "t")
    more = download(broker, f"before={fields['before']}&most=1000&format=jsonl").text.splitlines()
    assert len(more) == COUNT - 20
    assert more[:20] == answer.text.splitlines()


def test_a_download_has_the_filters_of_its_page(broker: Broker) -> None:
    name = broker.apps[0].config.broker_name
    for query, count in (
        ("body=strasse", 5),
        ("tag=t", 20),
        ("tag=other", 0),
        ("by=key&value=k4", 1),
        (f"by=offset&value=10&queue={name}:0&most=100", 7),
    ):
        assert len(download(broker, query).text.splitlines()) == count, query


def test_a_spreadsheet_takes_no_cell_for_a_formula(broker: Broker) -> None:
    answer = download(broker, "format=csv&by=time&value=2001-01-01T00:00", "Cells")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    bodies = {row["body"] for row in rows}
    assert bodies == {f"'{FORMULA}", "'@x", "''quoted", "plain, with\nlines", ""}
    (binary,) = (row for row in rows if row["body_base64"])
    assert base64.b64decode(binary["body_base64"].removeprefix("'")) == b"\xfb\xff\x00"
    assert binary["body_base64"] == "+/8A".join(["'", ""])
    assert {row["keys"] for row in rows} == {"'-1+2"}
    assert json.loads(rows[0]["properties"])["p"] == "=1"
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())


def test_a_download_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messagepages, "MAX_DOWNLOADED_BYTES", 2_000)
    lines = download(broker, "most=1000").text.splitlines()
    assert 3 < len(lines) < 20
    assert json.loads(lines[-1]) == {"problem": "a file has at most 0 MiB: there is more"}
    assert get(f"{broker.http_url}/console/topics/Paged/messages/download?most=10001").status_code == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("Nowhere/messages/download", 404),
        ("Paged/messages/download?format=xml", 400),
        ("Paged/messages/download?by=offset&value=x", 400),
        ("Paged/messages/download?queue=other:0", 400),
        ("Paged/messages/download?sql=a+%3E&tag=b", 400),
    ],
)
def test_a_download_that_cannot_begin_has_a_page(broker: Broker, path: str, status: int) -> None:
    page(broker, f"/topics/{path}", status)


def test_a_broker_that_goes_away_ends_a_download_with_a_word(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked, walk = [], messagesurvey.walk

    async def once(*args: object, **more: object) -> messagesurvey.Walked:
        if walked:
            raise messagepages.InvalidMessage("it went away", field="body")
        walked.append(1)
        return await walk(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(messagepages, "walk", once)
    monkeypatch.setattr(messagepages, "READ_AT_ONCE", 10)
    lines = download(broker, "most=1000").text.splitlines()
    assert len(lines) == 11
    assert "it went away" in json.loads(lines[-1])["problem"]


def test_users_download_only_what_they_may_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("console-message-users")
    settings = with_users(ROOT, ROOT, authConfigPath=str(folder / "users"))
    with Broker(http=True, settings=settings) as guarded, browser(guarded) as root, browser(guarded) as clerk:
        path = "/topics/{}/messages/download"
        assert clerk.get(path.format("Open")).headers["location"].startswith("/console/login")
        log_in(root, user=ROOT[0], secret=ROOT[1])
        for topic in ("Open", "Secret"):
            change(root, "/topics", {"name": topic, "read_queues": "1"}, "/users")
            change(root, f"/topics/{topic}/send", {"body": "canary"}, "/users")
        change(root, "/users", {"name": "clerk", "password": CLERK}, "/users")
        for topic, actions in (("Open", ["Get", "Sub"]), ("Secret", ["Get"])):
            rule: dict[str, str | list[str]] = {
                "resource": f"Topic:{topic}",
                "decision": "Allow",
                "actions": actions,
            }
            change(root, "/users/clerk/rules", rule, "/users")
        group: dict[str, str | list[str]] = {"resource": "Group:*", "decision": "Allow", "actions": ["Sub"]}
        change(root, "/users/clerk/rules", group, "/users")
        log_in(clerk, user="clerk", secret=CLERK)
        assert "canary" in clerk.get(path.format("Open")).text
        refused = clerk.get(path.format("Secret"))
        assert (refused.status_code, "canary" in refused.text) == (403, False)
        assert "canary" not in clerk.get("/topics/Secret/messages").text
