"""Which dead letters are meant, and where they came from: one answer for commands, pages and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.errors import InvalidMessage
from mqspark.message import DLQ_ORIGIN_TOPIC, RETRY_TOPIC, Message, MessageExt
from mqspark_server.actions import letteractions
from mqspark_server.actions.letteractions import ResendLetters
from mqspark_server.actions.resending import NotAllSent, send_each
from mqspark_server.shown.deadletters import LetterChoice, foreign_origins, origin_of, resent_copy
from tests.support.receivedmessages import received


def letter(message_id: str = "1", origin: str | None = "Orders", **properties: str) -> MessageExt:
    given = {"UNIQ_KEY": message_id, **({} if origin is None else {DLQ_ORIGIN_TOPIC: origin}), **properties}
    return received(topic="%DLQ%g", body=b"", properties=given, offset_message_id=f"at-{message_id}")


def test_the_origin_is_the_one_of_the_broker_before_that_of_a_client() -> None:
    assert origin_of(letter(origin="Orders", **{RETRY_TOPIC: "Other"})) == "Orders"
    assert origin_of(letter(origin=None, **{RETRY_TOPIC: "Other"})) == "Other"
    assert origin_of(letter(origin=None)) is None


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        (LetterChoice(), ["1", "2", "3"]),
        (LetterChoice(origin="Orders"), ["1", "2"]),
        (LetterChoice(tag="a"), ["1", "3"]),
        (LetterChoice(key="k2"), ["1"]),
        (LetterChoice(key="k"), []),
        (LetterChoice(ids=frozenset({"2", "at-3"})), ["2", "3"]),
        (LetterChoice(ids=frozenset()), []),
        (LetterChoice("Orders", "a", "k1", {"1", "2"}), ["1"]),
    ],
)
def test_every_condition_chooses(choice: LetterChoice, taken: list[str]) -> None:
    letters = [
        letter("1", TAGS="a", KEYS="k1 k2"),
        letter("2", TAGS="b"),
        letter("3", origin=None, TAGS="a"),
    ]
    assert [each.message_id for each in letters if choice.takes(each)] == taken


def test_origins_that_the_group_does_not_consume() -> None:
    letters = [letter(origin="Orders"), letter(origin="Secrets"), letter(origin=None)]
    assert foreign_origins(letters, {"Orders"}) == ["Secrets"]


class SendingAll:
    """A producer that sends whatever it gets."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def __aenter__(self) -> SendingAll:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def send_async(self, message: Any) -> Any:
        self.sent.append(message.topic)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def test_a_body_that_cannot_be_read_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = SendingAll()

    def copy(message: MessageExt, *where: Any) -> Message | None:
        if message.message_id == "2":
            raise InvalidMessage("the body does not decompress")
        return resent_copy(message, *where)

    async def consumed(group: str) -> set[str]:
        return {"Orders"}

    monkeypatch.setattr(letteractions, "resent_copy", copy)
    asked: Any = SimpleNamespace(admin=SimpleNamespace(consumed_topics=consumed), producer=lambda: producer)
    found = [letter("1"), letter("2"), letter("3", origin=None), letter("4")]
    done = asyncio.run(ResendLetters("g", found, "topic").apply(asked))
    assert producer.sent == ["Orders", "Orders"]
    assert (done.text, done.left[:15]) == ("dead letters sent again: 2", "2 were not sent")
    assert "body cannot be read" in done.left


@pytest.mark.parametrize("readable", [0, 3])
def test_what_was_sent_before_a_message_that_cannot_be_read_counts(readable: int) -> None:
    stored: list[bytes] = []

    async def store(message: Message) -> None:
        await asyncio.sleep(0)
        stored.append(message.body)

    async def send(message: Message) -> asyncio.Task[None]:
        return asyncio.create_task(store(message))

    async def messages() -> AsyncIterator[Message]:
        for number in range(readable):
            yield Message.of("Orders", str(number))
        raise InvalidMessage("the body does not decompress")

    with pytest.raises(InvalidMessage if not readable else NotAllSent) as failed:
        asyncio.run(send_each(send, messages()))
    assert len(stored) == readable
    if isinstance(failed.value, NotAllSent):
        assert (failed.value.sent, str(failed.value.first)) == (readable, "the body does not decompress")
