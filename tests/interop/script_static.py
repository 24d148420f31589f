"""A chapter about static topics. All parts of its logic queues are on the one broker."""

import json
from collections.abc import Callable

from tests.interop.differential import Play
from tests.interop.script_consuming import QUERY_OFFSET, UPDATE_OFFSET
from tests.interop.script_messages import DELETE_TOPIC, MAX_OFFSET, create_group, pull_fields, send
from tests.support.remoting import topic_fields

STATIC_TOPIC, TOPIC_CONFIG, PULL = 513, 351, 11
SEARCH, MIN_OFFSET = 29, 31
BROKER = "diff"

Part = dict[str, object]


def part(queue_id: int, logic: int = 0, gen: int = 0, **fields: object) -> Part:
    return {"gen": gen, "queueId": queue_id, "bname": BROKER, "logicOffset": logic, "startOffset": 0, "endOffset": -1,
            "timeOfStart": -1, "timeOfEnd": -1} | fields  # fmt: skip


def put(play: Play, label: str, topic: str, hosted: dict[int, list[Part]], **fields: object) -> None:
    detail = {"topic": topic, "bname": BROKER, "scope": "__global__", "totalQueues": 2, "epoch": 2000, "dirty": False,
              "currIdMap": {}, "hostedQueues": hosted} | fields  # fmt: skip
    play.ask(label, STATIC_TOPIC, json.dumps(detail).encode(), **topic_fields(topic, 3), force=False)


def static_topics(play: Play) -> None:
    topic, group = play.name("Static"), create_group(play, "static-readers")
    one, other = [part(1)], [part(0)]
    for label, wrong in {
        "a negative gen": [part(1, gen=-1)],
        "a negative queue": [part(-1)],
        "a negative start": [part(1, startOffset=-1)],
        "an unknown logic offset before the last": [part(1, -1), part(2, 5, gen=1)],
        "gens that do not grow": [part(1), part(2, 5)],
        "logic offsets that do not grow": [part(1, 9), part(2, 5, gen=1)],
        "a part longer than its room": [part(1, endOffset=9), part(2, 5, gen=1)],
        "an end before the start": [part(1, startOffset=3, endOffset=2)],
    }.items():
        put(play, f"create: {label}", play.name(f"S-{label}".replace(" ", "-")), {0: wrong, 1: other})
    put(play, "create", topic, {0: one, 1: other})
    for label, fields, hosted in (
        ("an older epoch", {"epoch": 1999}, {0: one, 1: other}),
        ("another scope", {"scope": "here"}, {0: one, 1: other}),
        ("a queue is missing", {}, {0: one}),
        ("another leader", {}, {0: [*one, part(2, 10_000, gen=1)], 1: other}),
        ("no parts", {"epoch": 2001}, {0: [], 1: other}),
    ):
        put(play, f"change: {label}", topic, hosted, **fields)
    play.ask("its configuration", TOPIC_CONFIG, topic=topic)
    play.ask("its configuration and mapping", TOPIC_CONFIG, topic=topic, lo=True)

    for number in range(2):
        send(play, f"send {number} to queue 0", topic, b"%d" % number)
    send(play, "send to queue 1", topic, b"other", queueId=1)
    send(play, "send to queue 2", topic, queueId=2)
    play.until("max offset", lambda reply: reply.ext.get("offset") == "2", MAX_OFFSET, topic=topic, queueId=0)
    where = {"topic": topic, "queueId": 0}
    offsets(play, "one part", where, group)
    for offset in (0, 1, 2, 9):
        pull(play, f"one part: pull at {offset}", group, topic, offset)

    put(play, "a second part", topic, {0: [part(1), part(2, 10_000, gen=1)], 1: other}, epoch=3000)
    send(play, "send to the second part", topic, b"2")
    play.until(
        "max offset of two", lambda r: r.ext.get("offset") == "10001", MAX_OFFSET, topic=topic, queueId=0
    )
    offsets(play, "two parts", where, group)
    for offset in (0, 1, 2, 3, 7_000, 10_000, 10_001):
        pull(play, f"two parts: pull at {offset}", group, topic, offset)
    play.ask("commit in the first part", UPDATE_OFFSET, consumerGroup=group, commitOffset=2, **where)
    play.ask("progress in the first part", QUERY_OFFSET, consumerGroup=group, **where)
    play.ask("commit in the second part", UPDATE_OFFSET, consumerGroup=group, commitOffset=10_001, **where)
    play.ask("progress in the second part", QUERY_OFFSET, consumerGroup=group, **where)
    put(play, "a third part, not decided", topic,
        {0: [part(1), part(2, 10_000, gen=1), part(0, -1, gen=2)], 1: other}, epoch=4000)  # fmt: skip
    send(play, "send to a part that is not decided", topic, b"3")
    pull(play, "pull before a part that is not decided", group, topic, 10_001)
    play.quietly(DELETE_TOPIC, topic=topic)
    play.ask("its configuration after all", TOPIC_CONFIG, topic=topic, lo=True)


def offsets(play: Play, label: str, where: dict[str, object], group: str) -> None:
    play.ask(f"{label}: min offset", MIN_OFFSET, **where)
    play.ask(f"{label}: offset of long ago", SEARCH, timestamp=1000, **where)
    unled = {**where, "queueId": 2}
    for what, code, fields in (
        ("max offset", MAX_OFFSET, {}),
        ("min offset", MIN_OFFSET, {}),
        ("search", SEARCH, {"timestamp": 1000}),
        ("progress", QUERY_OFFSET, {"consumerGroup": group}),
        ("commit", UPDATE_OFFSET, {"consumerGroup": group, "commitOffset": 0}),
    ):
        play.ask(f"{label}: {what} of queue 2", code, **unled, **fields)
    play.ask(f"{label}: max offset of the physical queue", MAX_OFFSET, **where, lo=False)


def pull(play: Play, label: str, group: str, topic: str, offset: int) -> None:
    play.ask(label, PULL, **pull_fields(group, topic, queueOffset=offset))


CHAPTERS: dict[str, Callable[[Play], None]] = {"static topics": static_topics}
