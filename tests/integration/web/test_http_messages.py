"""/api/v1 of a real broker: reading and following messages, dead letters, members, settings."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from mqspark import Message, MessageExt, Producer, PushConsumer
from mqspark.message import COMPRESSED, retry_topic
from mqspark.testing import Broker
from mqspark_server.web.v1 import storedmessages, tailapi
from tests.integration.client.client_kit import FIRST
from tests.integration.web.test_http_api import check_problem
from tests.support.remoting import RawConnection
from tests.support.waiting import eventually

COUNT = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True, settings={"enablePropertyFilter": True}) as running:
        yield running


@pytest.fixture(scope="module")
def http(broker: Broker) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {broker.apps[0].loopback_token}"}
    with httpx.Client(base_url=f"{broker.http_url}/api/v1", timeout=60, headers=headers) as client:
        yield client


@pytest.fixture(scope="module")
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(broker.namesrv, group="http_messages") as made:
        yield made


@pytest.fixture(scope="module")
def numbers(http: httpx.Client, producer: Producer) -> list[dict[str, Any]]:
    """What the API says of ten messages in two queues, in the order of sending."""
    http.put("/topics/Numbers", json={"readQueueNums": 2, "writeQueueNums": 2})
    for number in range(COUNT):
        sent = http.post(
            "/topics/Numbers/messages",
            json={
                "body": f"n{number}",
                "keys": [f"k{number}", "all"],
                "tags": ("even", "odd")[number % 2],
                "properties": {"n": str(number)},
                "queueId": number % 2,
            },
        )
        assert sent.status_code == 201, sent.text
    shown: list[dict[str, Any]] = http.get("/topics/Numbers/messages").json()["items"]
    return sorted(shown, key=lambda each: (each["queueOffset"], each["queueId"]))


def bodies(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["body"] for each in answer.json()["items"]]


def test_a_message_is_shown_whole(numbers: list[dict[str, Any]]) -> None:
    first = numbers[0]
    assert (first["topic"], first["queueId"], first["queueOffset"]) == ("Numbers", 0, 0)
    assert (first["body"], first["bodyBase64"], first["size"]) == ("n0", None, 2)
    assert (first["tags"], first["keys"], first["properties"]["n"]) == ("even", ["k0", "all"], "0")
    assert [each["body"] for each in numbers] == [f"n{number}" for number in range(COUNT)]


def test_by_offset_and_page_by_page(http: httpx.Client, numbers: list[dict[str, Any]]) -> None:
    path = "/topics/Numbers/messages"
    assert bodies(http.get(path, params={"queueId": 1, "offset": 3})) == ["n7", "n9"]
    assert bodies(http.get(path, params={"queueId": 1, "offset": 99})) == []
    read, after, pages = [], None, 0
    while True:
        answer = http.get(path, params={"limit": 3} | ({"after": after} if after else {}))
        read += bodies(answer)
        pages += 1
        after = answer.json()["next"]
        if after is None:
            break
    assert read == ["n0", "n2", "n4", "n6", "n8", "n1", "n3", "n5", "n7", "n9"]
    assert pages == 4
    check_problem(http.get(path, params={"after": "bm9wZQ"}), 400)
    check_problem(http.get(path, params={"offset": 1}), 422)
    check_problem(http.get("/topics/Nowhere/messages"), 404)
    check_problem(http.get(path, params={"limit": 1_001}), 422)


def test_by_time(http: httpx.Client, numbers: list[dict[str, Any]]) -> None:
    path = "/topics/Numbers/messages"
    begin, end = numbers[0]["storeTime"], numbers[-1]["storeTime"]
    assert len(bodies(http.get(path, params={"since": begin}))) == COUNT
    assert bodies(http.get(path, params={"since": end + 1})) == []
    assert bodies(http.get(path, params={"until": begin})) == []
    assert len(bodies(http.get(path, params={"until": end + 1}))) == COUNT


def test_by_key_and_by_id(http: httpx.Client, numbers: list[dict[str, Any]]) -> None:
    path = "/topics/Numbers/messages"
    eventually(lambda: len(bodies(http.get(path, params={"key": "all"}))) == COUNT)
    assert bodies(http.get(path, params={"key": "k3"})) == ["n3"]
    assert bodies(http.get(path, params={"key": "all", "tags": "odd"})) == ["n1", "n3", "n5", "n7", "n9"]
    assert bodies(http.get(path, params={"key": "nobody"})) == []
    pages, after = list[str](), None
    while True:
        page = http.get(path, params={"key": "all", "limit": 3, **({"after": after} if after else {})}).json()
        pages.append(" ".join(each["body"] for each in page["items"]))
        if (after := page["next"]) is None:
            break
    assert pages == ["n7 n8 n9", "n4 n5 n6", "n1 n2 n3", "n0"]
    assert bodies(http.get(path, params={"key": "all", "limit": 9, "tags": "odd"})) == [
        "n1",
        "n3",
        "n5",
        "n7",
        "n9",
    ]
    for wrong in ("MDow", "a2V5OjE", "a2V5Onh4OjE"):
        check_problem(http.get(path, params={"key": "all", "after": wrong}), 400)
    for name in ("msgId", "offsetMsgId"):
        assert http.get(f"{path}/{numbers[4][name]}").json() == numbers[4]
    check_problem(http.get(f"{path}/{'0' * 32}"), 404)
    check_problem(http.get(f"{path}/7F00000100002A9F00000000000000FF"), 404)
    check_problem(http.get(path, params={"key": "k", "last": 1}), 422)


def test_by_filter(http: httpx.Client, numbers: list[dict[str, Any]]) -> None:
    path = "/topics/Numbers/messages"
    assert bodies(http.get(path, params={"tags": "odd || none"})) == ["n1", "n3", "n5", "n7", "n9"]
    assert bodies(http.get(path, params={"sql": "n > 7 and TAGS = 'even'"})) == ["n8"]
    check_problem(http.get(path, params={"sql": "n >"}), 400)
    check_problem(http.get(path, params={"sql": "n = 1", "tags": "odd"}), 422)


def test_the_newest(http: httpx.Client, numbers: list[dict[str, Any]]) -> None:
    path = "/topics/Numbers/messages"
    assert bodies(http.get(path, params={"last": 3})) == ["n9", "n8", "n7"]
    assert bodies(http.get(path, params={"last": 2, "queueId": 0})) == ["n8", "n6"]
    assert len(bodies(http.get(path, params={"last": 1_000}))) == COUNT
    refused = http.get(path, params={"last": 3, "tags": "odd", "since": 1})
    check_problem(refused, 422)
    assert refused.json()["detail"] == "last excludes since, tags"
    check_problem(http.get(path, params={"queueId": 0, "offset": 3, "since": 1}), 422)


def test_bodies_that_are_no_text_and_large_ones(
    http: httpx.Client, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.send(Message.of("Binary", b"\xff\x00"))
    (shown,) = http.get("/topics/Binary/messages").json()["items"]
    assert (shown["body"], base64.b64decode(shown["bodyBase64"])) == (None, b"\xff\x00")
    http.put("/topics/Large", json={"readQueueNums": 1, "writeQueueNums": 1})
    for letter in "abc":
        producer.send(Message.of("Large", letter * 50_000))  # compressed
    monkeypatch.setattr(storedmessages, "PAGE_BYTES", 60_000)
    first = http.get("/topics/Large/messages").json()
    assert [each["body"][0] for each in first["items"]] == ["a"]
    second = http.get("/topics/Large/messages", params={"after": first["next"]}).json()
    assert [each["body"][0] for each in second["items"]] == ["b"]


# --- tails ---


class Tail:
    """The events of a tail, read in a thread."""

    def __init__(self, http: httpx.Client, path: str) -> None:
        self.events: list[tuple[str, str]] = []
        self.begun = threading.Event()
        self.status = 0
        self._http = http
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        name = ""
        with self._http.stream("GET", self._path) as answer:
            self.status = answer.status_code
            for line in answer.iter_lines():
                self.begun.set()
                word, _, value = line.partition(": ")
                if word == "event":
                    name = value
                elif word == "data":
                    self.events.append((name, value))
                if self._stop.is_set():
                    return
        self.begun.set()

    def __enter__(self) -> Tail:
        self._thread.start()
        assert self.begun.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(30)

    @property
    def bodies(self) -> list[str]:
        return [json.loads(data)["body"] for name, data in self.events if name == "message"]


def is_let_in(http: httpx.Client) -> bool:
    """Whether there is room for one more tail."""
    with http.stream("GET", "/topics/TBW102/tail") as answer:
        return answer.status_code == 200


def test_a_tail_shows_what_arrives_and_ends_with_its_client(
    http: httpx.Client, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailapi, "CHECK_S", 0.2)  # so that a reader that wants to stop is woken
    monkeypatch.setattr(tailapi, "MAX_TAILS", 4)  # a half of them for one caller
    producer.send(Message.of("Followed", "before"))
    with (
        Tail(http, "/topics/Followed/tail") as everything,
        Tail(http, "/topics/Followed/tail?tags=red") as red,
    ):
        for number in range(4):
            producer.send(Message.of("Followed", f"m{number}", tags=("red", "blue")[number % 2]))
        assert not is_let_in(http)
        eventually(lambda: sorted(everything.bodies) == ["m0", "m1", "m2", "m3"])
        eventually(lambda: sorted(red.bodies) == ["m0", "m2"])
        assert http.delete("/topics/Followed").status_code == 204
        eventually(lambda: everything.events[-1][0] == "problem")
        assert json.loads(everything.events[-1][1])["status"] == 404
        eventually(lambda: is_let_in(http))
    eventually(lambda: is_let_in(http))


def test_a_tail_that_is_behind_skips(
    http: httpx.Client, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailapi, "CHECK_S", 0.2)
    monkeypatch.setattr(tailapi, "MAX_BEHIND", 5)
    monkeypatch.setattr(tailapi, "TAILS_AT_ONCE", 2)
    monkeypatch.setattr(tailapi, "PAUSE_S", 1.0)
    http.put("/topics/Fast", json={"readQueueNums": 1, "writeQueueNums": 1})
    with Tail(http, "/topics/Fast/tail") as tail:
        lines = b"\n".join(b"%d" % number for number in range(100))
        kind = {"content-type": "application/x-ndjson"}
        assert http.post("/topics/Fast/ingest", content=lines, headers=kind).status_code == 200
        eventually(lambda: tail.bodies == ["98", "99"])
        assert tail.events[0] == ("skipped", "98")


def test_tails_that_are_refused(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    check_problem(http.get("/topics/Nowhere/tail", params={"queueId": 1}), 404)
    check_problem(http.get("/topics/TBW102/tail", params={"sql": "("}), 400)
    monkeypatch.setattr(tailapi, "MAX_TAILS", 0)
    check_problem(http.get("/topics/TBW102/tail"), 503)


# --- dead letters ---


def test_dead_letters_are_shown_and_sent_again(
    http: httpx.Client, broker: Broker, producer: Producer
) -> None:
    well = threading.Event()
    got: list[tuple[str, bytes]] = []

    def listen(message: MessageExt) -> None:
        if not well.is_set():
            raise ValueError("no")
        got.append((message.topic, message.body))

    http.put("/groups/mourners/settings", json={"retryMaxTimes": 0})
    for number in range(4):
        tags = ("even", "odd")[number % 2]
        producer.send(Message.of("Deadly", f"m{number}", keys=f"k{number}", tags=tags))
    consumer = PushConsumer(broker.namesrv, group="mourners", listener=listen, consume_from=FIRST)
    consumer.subscribe("Deadly")
    with consumer:
        eventually(
            lambda: (
                [(each["group"], each["messages"]) for each in http.get("/dead-letters").json()["items"]]
                == [("mourners", 4)]
            )
        )
        path = "/dead-letters/mourners"
        shown = http.get(path).json()
        assert {each["originTopic"] for each in shown["items"]} == {"Deadly"}
        assert sorted(bodies(http.get(path, params={"tags": "even"}))) == ["m0", "m2"]
        assert bodies(http.get(path, params={"key": "k9"})) == []
        assert bodies(http.get(path, params={"topic": "Other"})) == []
        assert len(bodies(http.get(path, params={"limit": 1, "since": 0}))) == 1
        check_problem(http.post(f"{path}/resend", json={"limit": "1"}), 422)
        preview = http.post(f"{path}/resend", json={"key": "k1", "dryRun": True}).json()
        assert (preview["matched"], preview["resent"], preview["next"]) == (1, 0, None)
        assert [each["to"] for each in preview["items"]] == [retry_topic("mourners")]
        with httpx.Client(base_url=f"{broker.http_url}/api/v1", timeout=60) as nobody:
            check_problem(nobody.post(f"{path}/resend", json={"key": "k1"}), 401)
        well.set()
        assert got == []
        with Producer(broker.namesrv, group="http_tests") as forger:
            forged = {"RETRY_TOPIC": "Foreign"}
            forger.send(Message.of(f"%DLQ%{path.rpartition('/')[2]}", "x", keys="f1", properties=forged))
        outcome = http.post(f"{path}/resend", json={"key": "f1"}).json()
        assert (outcome["matched"], outcome["foreign"], outcome["resent"]) == (1, 1, 0)
        assert http.post(f"{path}/resend", json={"key": "k1"}).json()["resent"] == 1
        eventually(lambda: got == [("Deadly", b"m1")])
        one = next(each["msgId"] for each in shown["items"] if each["body"] == "m3")
        assert http.post(f"{path}/resend", json={"ids": [one]}).json()["resent"] == 1
        eventually(lambda: got[1:] == [("Deadly", b"m3")])
        rest = http.post(f"{path}/resend", json={"tags": "even", "to": "topic", "limit": 1}).json()
        assert (rest["resent"], rest["next"] is None) == (1, False)
        last = http.post(f"{path}/resend", json={"tags": "even", "to": "topic", "after": rest["next"]}).json()
        assert (last["resent"], last["next"]) == (1, None)
        eventually(lambda: sorted(body for _, body in got) == [b"m0", b"m1", b"m2", b"m3"])
    check_problem(http.get("/dead-letters/nobody"), 404)
    check_problem(http.get(path, params={"ids": one}), 422)  # a filter of resend alone
    check_problem(http.post(f"{path}/resend", json={"sql": "("}), 400)


def test_a_resend_goes_on_behind_a_dead_letter_that_cannot_be_read(
    http: httpx.Client, broker: Broker, producer: Producer
) -> None:
    producer.send(Message.of("Mourned", "x"))
    assert http.put("/topics/%25DLQ%25readers", json={"writeQueueNums": 1}).status_code == 201
    with RawConnection(broker.apps[0].address, 10.0) as connection:
        for body, sys_flag in ((b"no zlib", COMPRESSED), (b"alive", 0)):
            connection.send("%DLQ%readers", body, 0, "RETRY_TOPIC\x01Mourned\x02", f=sys_flag)
    wanted = {"topic": "Mourned", "to": "topic"}
    outcome = http.post("/dead-letters/readers/resend", json=wanted).json()
    assert (outcome["matched"], outcome["unreadable"], outcome["resent"]) == (2, 1, 1)
    assert [each["to"] for each in outcome["items"]] == [None, "Mourned"]


# --- members, modes, settings, users ---


def test_members_and_what_they_do(http: httpx.Client, broker: Broker, producer: Producer) -> None:
    producer.send(Message.of("Membered", "x"))
    consumer = PushConsumer(broker.namesrv, group="members", listener=lambda message: None)
    consumer.subscribe("Membered")
    with consumer:
        eventually(lambda: len(http.get("/groups/members/members").json().get("items", ())) == 1)
        (member,) = http.get("/groups/members/members").json()["items"]
        path = f"/groups/members/members/{quote(member['clientId'], safe='')}"
        eventually(lambda: "Membered" in http.get(path).text)
        state = http.get(path, params={"stacks": True}).json()
        assert "Membered" in {queue["topic"] for queue in state["queues"]}
        assert state["properties"]["PROP_CONSUMEORDERLY"] == "false"
        check_problem(http.get("/groups/members/members/nobody"), 404)
    check_problem(http.get("/groups/nowhere/members"), 404)


def test_modes(http: httpx.Client) -> None:
    http.put("/topics/Moded", json={})
    http.put("/groups/moded/settings", json={})
    assert http.get("/groups/moded/modes").json() == {"items": []}
    answer = http.put("/groups/moded/modes", json={"topic": "Moded", "mode": "POP", "shareQueues": 2})
    assert answer.json() == {"items": [{"topic": "Moded", "mode": "POP", "shareQueues": 2}]}
    check_problem(http.put("/groups/moded/modes", json={"topic": "Moded", "mode": "PUSH"}), 422)


def test_settings_are_shown_and_changed(http: httpx.Client, broker: Broker) -> None:
    first = http.get("/config")
    assert first.json()["settings"]["enablePropertyFilter"] == "true"
    tag = first.headers["etag"]
    assert http.get("/config").headers["etag"] == tag
    changed = http.put(
        "/config", json={"settings": {"autoCreateTopicEnable": "false"}}, headers={"if-match": tag}
    )
    assert changed.status_code == 200, changed.text
    assert changed.json()["settings"]["autoCreateTopicEnable"] == "false"
    check_problem(
        http.put("/config", json={"settings": {"autoCreateTopicEnable": "true"}}, headers={"if-match": tag}),
        412,
    )
    assert "did you mean" in http.put("/config", json={"settings": {"autoCreateTopicEnabel": "x"}}).text
    check_problem(http.put("/config", json={"settings": {"listenPort": "1"}}), 403)
    for end in "\n\r\x0b\x85\u2028":
        smuggled = {"autoCreateTopicEnable": f"true{end}deleteWhen=05"}
        check_problem(http.put("/config", json={"settings": smuggled}), 422)
    check_problem(http.put("/config", json={"settings": {}}), 422)
    check_problem(http.put("/config", json={"settings": {"autoCreateTopicEnable": "perhaps"}}), 400)
    assert http.put("/config", json={"settings": {"autoCreateTopicEnable": "true"}}).status_code == 200
    with httpx.Client(base_url=f"{broker.http_url}/api/v1", timeout=60) as nobody:
        check_problem(nobody.put("/config", json={"settings": {"autoCreateTopicEnable": "false"}}), 401)


def test_a_broker_without_users_has_none(http: httpx.Client) -> None:
    check_problem(http.get("/users"), 501)
