"""Chapters about POP: handing out, acknowledgements, order, what comes again."""

import base64
import json
import time
from collections.abc import Callable

from tests.interop.differential import POLL_S, WAIT_S, Play
from tests.interop.script_messages import create_group, create_topic, properties, send, settled
from tests.support.remoting import Reply

POP, ACK, PEEK, CHANGE, NOTIFICATION, POLLING_INFO, BATCH_ACK = (*range(200050, 200056), 200151)


def pop_fields(group: str, topic: str, **fields: object) -> dict[str, object]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": -1, "maxMsgNums": 2, "invisibleTime": 60_000, "pollTime": 0,
        "initMode": 0, "expType": "TAG", "exp": "*", "order": False, **fields,
    }  # fmt: skip


def receipt(play: Play, reply: Reply, offset: int) -> str:
    """The handle of a message that an answer to a pop has."""
    ext, start = reply.ext, reply.ext["startOffsetInfo"].split(" ")[2]
    parts = (
        start,
        ext["popTime"],
        ext["invisibleTime"],
        ext["reviveQid"],
        0,
        play.cluster.broker_name,
        0,
        offset,
    )
    return " ".join(map(str, parts))


def note_but(play: Play, label: str, reply: Reply, *names: str, body: bytes = b"") -> Reply:
    """Write down an answer without these fields."""
    ext = {name: value for name, value in reply.ext.items() if name not in names}
    return play.note(label, Reply(0, reply.code, reply.remark, ext, body, serialize=reply.serialize))


def pops(play: Play) -> None:
    topic, group = create_topic(play, "Pops", 1), create_group(play, "poppers")
    for number in range(8):
        text = properties(TAGS="AB"[number % 2], UNIQ_KEY=f"O-{number}")
        send(play, f"message {number}", topic, b"%d" % number, text)
    settled(play, topic)
    unknown = {
        "unknown topic": {"topic": play.name("Nowhere")},
        "unknown group": {"consumerGroup": play.name("noone")},
    }

    def pop(label: str, **fields: object) -> Reply:
        reply = play.in_time(POP, **(pop_fields(group, topic) | fields))
        note_but(play, label, reply, "reviveQid")  # which of the revive queues is by turns
        for record in play.records(reply):
            record["properties"].pop("POP_CK", None)
            play.fact(f"{label}: record", record)
        return reply

    def offsets(reply: Reply) -> list[int]:
        return [int(offset) for offset in reply.ext["msgOffsetInfo"].split(" ")[2].split(",")]

    first = pop("first two")
    whose = {"consumerGroup": group, "topic": topic, "queueId": 0}
    of_first = {**whose, "extraInfo": receipt(play, first, offsets(first)[0]), "offset": offsets(first)[0]}
    play.ask("ack", ACK, **of_first)
    play.ask("ack again", ACK, **of_first)
    second = pop("next two", queueId=0)
    of_second = {
        **whose,
        "extraInfo": receipt(play, second, offsets(second)[1]),
        "offset": offsets(second)[1],
    }
    for label, fields in {
        "another offset": {"offset": 99},
        "no such queue": {"queueId": 5},
        **unknown,
        "no receipt": {"extraInfo": ""},
        "broken receipt": {"extraInfo": "1 2 3"},
        "wordy receipt": {"extraInfo": "a b c d e f g h"},
        "negative offset": {"offset": -1},
    }.items():
        play.ask(f"ack: {label}", ACK, **(of_second | fields))

    def change(label: str, **fields: object) -> None:
        reply = play.quietly(CHANGE, **(of_second | {"invisibleTime": 30_000} | fields))
        note_but(play, label, reply, "reviveQid", body=reply.body)

    change("longer invisible")
    change("old receipt, unknown topic", topic=play.name("Nowhere"))
    change("no such queue", queueId=5)
    change("another offset", offset=99)
    change("broken receipt", extraInfo="x")
    pop("tag A", exp="A", consumerGroup=create_group(play, "popA"))
    pop("the last", maxMsgNums=32)
    pop("nothing left")
    born = {"pollTime": 20_000, "bornTime": int(time.time() * 1000)}
    ticket = play.start(POP, on="popper", **(pop_fields(group, topic) | born))
    asked = {"consumerGroup": group, "topic": topic, "queueId": -1}
    play.until("one waits", lambda reply: reply.ext.get("pollingNum") == "1", POLLING_INFO, **asked)
    send(play, "wakes a pop", topic, b"awake", properties(TAGS="A", UNIQ_KEY="O-9"))
    reply = play.collect(ticket)
    play.fact("woken pop", (reply.code, [record["body"] for record in play.records(reply)]))
    for label, fields in {
        **unknown,
        "queue 7": {"queueId": 7},
        "33 messages": {"maxMsgNums": 33},
        "0 messages": {"maxMsgNums": 0},
        "-1 messages": {"maxMsgNums": -1},
        "invisible 0": {"invisibleTime": 0},
        "sql": {"expType": "SQL92", "exp": "a IS NULL"},
        "wrong sql": {"expType": "SQL92", "exp": "a >"},
        "unknown filter": {"expType": "XPATH", "exp": "x"},
        "disabled group": {"consumerGroup": create_group(play, "popoff", consumeEnable=False)},
        "no read permission": {"topic": create_topic(play, "NoPop", 1, perm=2)},
        "no born time": {"bornTime": 0},
        "polling too old": {"bornTime": int(time.time() * 1000) - 60_000, "pollTime": 1000},
        "a clock far behind": {"bornTime": 1000, "pollTime": 1000},
        "retry topic": {"topic": f"%RETRY%{group}"},
    }.items():
        pop(label, **fields)
    ahead = create_group(play, "popmax")
    pop("new group from the end", consumerGroup=ahead, initMode=1)

    def notice(label: str, **fields: object) -> None:
        play.note(f"notification{label}", play.in_time(NOTIFICATION, **(asked | {"pollTime": 0} | fields)))

    notice(" of nothing")
    send(play, "one more", topic, b"more", properties(UNIQ_KEY="O-10"))
    settled(play, topic)
    notice(" of one")
    notice(" by queue", queueId=0)
    notice(", unknown topic", topic=play.name("Nowhere"))
    notice(", unknown group", consumerGroup=play.name("noone"))
    notice(" of queue 7", queueId=7)
    for label, fields in {
        "": {},
        "all queues": {"queueId": -1},
        "queue 7": {"queueId": 7},
        **unknown,
    }.items():
        reply = play.quietly(PEEK, **(whose | {"maxMsgNums": 4} | fields))
        play.fact(f"peek {label}", (reply.code, [record["body"] for record in play.records(reply)]))
    for label, fields in {"": {}, **unknown, "queue 7": {"queueId": 7}}.items():
        play.ask(f"polling info{', ' * bool(label)}{label}", POLLING_INFO, **(asked | fields))
    play.ask("batch ack of nothing", BATCH_ACK, b"")
    play.ask("batch ack of an empty list", BATCH_ACK, b'{"acks":[],"brokerName":"diff"}')
    play.ask("batch ack, broken", BATCH_ACK, b"x")
    ordered(play)


def ordered(play: Play) -> None:
    topic = create_topic(play, "PopOrder", 1)
    group = create_group(play, "popordered", consumeMessageOrderly=True)
    for number in range(4):
        send(play, f"ordered {number}", topic, b"%d" % number, properties(UNIQ_KEY=f"R-{number}"))
    settled(play, topic)

    def pop(label: str) -> Reply:
        reply = play.in_time(POP, **pop_fields(group, topic, order=True, attemptId=label))
        note_but(play, label, reply)
        play.fact(f"{label}: bodies", [record["body"] for record in play.records(reply)])
        return reply

    first = pop("ordered pop")
    pop("blocked")
    whose = {"consumerGroup": group, "topic": topic, "queueId": 0}
    for offset in (1, 0):
        handle = receipt(play, first, offset)
        play.ask(f"ordered ack of {offset}", ACK, **whose, extraInfo=handle, offset=offset)
    pop("free again")


def revival(play: Play) -> None:
    """What is popped and not acknowledged comes again, by the group's retry topic."""
    topic, group = create_topic(play, "Revived", 1), create_group(play, "revivers")
    for number in range(6):
        text = properties(TAGS="A", KEYS="k", UNIQ_KEY=f"V-{number}")
        send(play, f"message {number}", topic, b"%d" % number, text)
    settled(play, topic)

    def pop(invisible_ms: int) -> Reply:
        return play.in_time(POP, **pop_fields(group, topic, maxMsgNums=8, invisibleTime=invisible_ms))

    first = pop(3_000)
    assert [record["body"] for record in play.records(first)] == list("012345")
    ext = first.ext
    bits = base64.b64encode(bytes([0b100110])).decode()  # 1, 2 and 5
    times = {"rq": int(ext["reviveQid"]), "pt": int(ext["popTime"]), "it": int(ext["invisibleTime"])}
    ack = {"c": group, "t": topic, "r": "0", "so": 0, "q": 0, **times, "b": bits}
    body = json.dumps({"brokerName": play.cluster.broker_name, "acks": [ack]}).encode()
    play.ask("batch ack of 1, 2 and 5", BATCH_ACK, body)
    play.ask("batch ack again", BATCH_ACK, body)
    came: dict[str, dict[str, object]] = {}
    deadline = time.monotonic() + WAIT_S
    while len(came) < 3:
        for record in play.records(pop(120_000)):
            assert str(record["body"]) not in came, f"{record['body']} came twice"
            came[str(record["body"])] = record
        assert time.monotonic() < deadline, sorted(came)
        time.sleep(POLL_S)
    for number, record in sorted(came.items()):
        for name in ("POP_CK", "1ST_POP_TIME"):
            record["properties"].pop(name, None)  # type: ignore[attr-defined]
        play.fact(f"again: {number}", record | {"offset": 0, "physical": "", "size": 0})
    play.fact(
        "topics", sorted(str(record["topic"]).replace(play.suffix, "<run>") for record in came.values())
    )


CHAPTERS: dict[str, Callable[[Play], None]] = {"pops": pops, "revival": revival}
