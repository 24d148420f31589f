"""Chapters about who is connected: heartbeats, members of groups, queue locks."""

import json
from collections.abc import Callable

from tests.interop.differential import Play
from tests.interop.script_messages import create_group, create_topic, pull_fields

HEARTBEAT, UNREGISTER, CONSUMER_LIST, CHANGED = 34, 35, 38, 40
LOCK, UNLOCK, CHECK_CLIENT = 41, 42, 46


def heartbeat(
    client: str, *, producers: list[str] | None = None, consumers: list[dict[str, object]] | None = None
) -> bytes:
    sets = {
        "producerDataSet": [{"groupName": group} for group in producers or []],
        "consumerDataSet": consumers or [],
    }
    return json.dumps({"clientID": client, **sets}).encode()


def consumer_data(group: str, *topics: str, **fields: object) -> dict[str, object]:
    every = {
        "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1, "classFilterMode": False,
        "expressionType": "TAG",
    }  # fmt: skip
    return {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
        "subscriptionDataSet": [{"topic": topic, **every} for topic in topics], **fields,
    }  # fmt: skip


def groups(play: Play) -> None:
    topic, group = create_topic(play, "Groups", 2), create_group(play, "members")
    consumer = consumer_data(group, topic)
    play.ask("list of nobody", CONSUMER_LIST, consumerGroup=group)
    play.ask("list of an unknown group", CONSUMER_LIST, consumerGroup=play.name("noone"))
    play.ask("list without a group", CONSUMER_LIST)
    play.ask("first heartbeat", HEARTBEAT, heartbeat("c1", consumers=[consumer]), on="one")
    play.ask("list of one", CONSUMER_LIST, consumerGroup=group)
    both = heartbeat("c2", producers=[play.name("makers")], consumers=[consumer])
    play.ask("second heartbeat", HEARTBEAT, both, on="two")
    play.asked("the first is told", CHANGED, on="one")
    members = json.loads(play.quietly(CONSUMER_LIST, consumerGroup=group).body)["consumerIdList"]
    play.fact("list of two", sorted(members))
    play.ask("heartbeat again", HEARTBEAT, heartbeat("c2", consumers=[consumer]), on="two")
    play.ask("connections", 203, consumerGroup=group)
    play.ask("connections of nobody", 203, consumerGroup=play.name("noone"))
    play.ask("producers", 204, producerGroup=play.name("makers"))
    play.ask("producers of nobody", 204, producerGroup=play.name("noone"))
    play.ask("pull by subscription on the broker", 11, on="one", **pull_fields(group, topic, sysFlag=0))
    play.ask("older version", 11, on="one", **pull_fields(group, topic, sysFlag=0, subVersion=0))
    play.ask("newer version", 11, on="one", **pull_fields(group, topic, sysFlag=0, subVersion=9))
    other = create_topic(play, "Other", 1)
    play.ask("topic not subscribed", 11, on="one", **pull_fields(group, other, sysFlag=0))
    play.ask("consumer's topics", 343, group=group)
    play.ask("who consumes", 300, topic=topic)
    play.ask("subscription", 345, group=group, topic=topic)
    play.ask("subscription of another topic", 345, group=group, topic=play.name("Other"))
    play.ask("status of an unknown client", 307, consumerGroup=group, clientId="c9")
    leaving = {"clientID": "c2", "consumerGroup": group, "producerGroup": play.name("makers")}
    play.ask("unregister the second", UNREGISTER, on="two", **leaving)
    play.asked("the first is told again", CHANGED, on="one")
    play.ask("list after it", CONSUMER_LIST, consumerGroup=group)
    play.ask("unregister a stranger", UNREGISTER, clientID="c7", consumerGroup=group)
    play.ask("unregister without a client", UNREGISTER, consumerGroup=group)
    play.ask("unregister nothing", UNREGISTER, clientID="c1", on="one")
    play.ask("list still", CONSUMER_LIST, consumerGroup=group)
    play.leave("one")
    play.until(
        "closed connection leaves", lambda got: b"c1" not in got.body, CONSUMER_LIST, consumerGroup=group
    )
    bad_sql = {"topic": topic, "subString": "a >", "expressionType": "SQL92"}
    for label, body in {
        "nothing": b"",
        "no object": b"[]",
        "no json": b"hello",
        "empty object": b"{}",
        "no client": heartbeat(""),
        "unknown fields": b'{"clientID":"c5","x":1,"consumerDataSet":[],"producerDataSet":[]}',
        "unknown model": heartbeat("c6", consumers=[consumer_data(group, topic, messageModel="X")]),
        "no group name": b'{"clientID":"c6","consumerDataSet":[{}],"producerDataSet":[]}',
        "producer without name": b'{"clientID":"c6","consumerDataSet":[],"producerDataSet":[{}]}',
        "null sets": b'{"clientID":"c6","consumerDataSet":null,"producerDataSet":null}',
        "bad sql": heartbeat("c6", consumers=[consumer_data(group, subscriptionDataSet=[bad_sql])]),
        "long group": heartbeat("c6", consumers=[consumer_data(play.name("g" * 200), topic)]),
        "illegal group": heartbeat("c6", consumers=[consumer_data("a b$" + play.suffix, topic)]),
        "new group": heartbeat("c6", consumers=[consumer_data(play.name("fresh"), topic)]),
    }.items():
        play.ask(f"heartbeat: {label}", HEARTBEAT, body, on="odd")
    play.ask("retry topic of the new group", 351, topic=f"%RETRY%{play.name('fresh')}")
    play.ask("config of the new group", 352, group=play.name("fresh"))
    for label, fields in {
        "right": {"topic": topic, "subString": "a > 1", "expressionType": "SQL92"},
        "wrong": bad_sql,
        "tags": {"topic": topic, "subString": "A", "expressionType": "TAG"},
        "none": {},
    }.items():
        asked = {"clientId": "c1", "group": group, "subscriptionData": fields, "namespace": None}
        play.ask(f"check of a filter: {label}", CHECK_CLIENT, json.dumps(asked).encode())
    play.ask("check of nothing", CHECK_CLIENT)
    play.ask("check of no json", CHECK_CLIENT, b"x")


def locks(play: Play) -> None:
    topic, group = create_topic(play, "Locks", 3), create_group(play, "lockers")

    def queues(*ids: int, topic: str = topic) -> list[dict[str, object]]:
        return [{"brokerName": play.cluster.broker_name, "queueId": queue, "topic": topic} for queue in ids]

    def body(client: str, *ids: int, of: str = group, **fields: object) -> bytes:
        return json.dumps({"clientId": client, "consumerGroup": of, "mqSet": queues(*ids)} | fields).encode()

    def lock(label: str, raw: bytes, code: int = LOCK) -> None:
        reply = play.quietly(code, raw)
        if reply.code or not reply.body:
            play.note(label, reply)
        else:
            locked = json.loads(reply.body)["lockOKMQSet"]
            queues = sorted((each["topic"] == topic, each["queueId"], each["brokerName"]) for each in locked)
            play.fact(label, (reply.code, queues))

    lock("two by the first", body("c1", 0, 1))
    lock("again", body("c1", 0, 1))
    lock("all by the second", body("c2", 0, 1, 2))
    lock("unlock by the wrong one", body("c2", 0), UNLOCK)
    lock("still the first's", body("c2", 0))
    lock("unlock", body("c1", 0), UNLOCK)
    lock("now free", body("c2", 0))
    lock("another group", body("c3", 0, 1, 2, of=play.name("others")))
    lock("a queue that is not there", body("c1", 9))
    lock("no queues", body("c1"))
    lock("only this broker", body("c1", 1, onlyThisBroker=True))
    lock("queues are null", body("c1", mqSet=None))
    for label, raw in {
        "nothing": b"",
        "empty": b"{}",
        "no json": b"x",
        "no client": b'{"consumerGroup":"g","mqSet":[]}',
    }.items():
        lock(f"lock: {label}", raw)
        lock(f"unlock: {label}", raw, UNLOCK)


CHAPTERS: dict[str, Callable[[Play], None]] = {"groups": groups, "locks": locks}
