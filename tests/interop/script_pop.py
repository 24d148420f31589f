"""Chapters about POP: handing out, acknowledgements, order, what comes again."""

# ruff: noqa: C408 (fields of a header read best as keyword arguments)

import base64
import json
import time
from collections.abc import Callable

from tests.interop.differential import POLL_S, WAIT_S, Play
from tests.interop.script_messages import create_group, create_topic, properties, send, settled
from tests.support.remoting import Reply

POP, ACK, PEEK, CHANGE, NOTIFICATION, POLLING_INFO, BATCH_ACK = (
    200050,
    200051,
    200052,
    200053,
    200054,
    200055,
    200151,
)


def pops(play: Play) -> None:
    topic, group = create_topic(play, "Pops", 1), create_group(play, "poppers")
    for number in range(8):
        send(
            play,
            f"message {number}",
            topic,
            b"%d" % number,
            properties(TAGS="AB"[number % 2], UNIQ_KEY=f"O-{number}"),
        )
    settled(play, topic)

    def pop(label: str, **fields: object) -> Reply:
        ext = (
            dict(
                consumerGroup=group,
                topic=topic,
                queueId=-1,
                maxMsgNums=2,
                invisibleTime=60_000,
                pollTime=0,
                initMode=0,
                expType="TAG",
                exp="*",
                order=False,
            )
            | fields
        )
        reply = play.in_time(POP, **ext)
        infos = {name: value for name, value in reply.ext.items() if name.endswith("Info")}
        # Which of the revive queues is by turns.
        rest = {name: value for name, value in reply.ext.items() if name not in infos and name != "reviveQid"}
        play.note(label, Reply(0, reply.code, reply.remark, rest | infos, b"", serialize=reply.serialize))
        for record in play.records(reply):
            record["properties"].pop("POP_CK", None)
            play.fact(f"{label}: record", record)
        return reply

    def receipt(reply: Reply, place: int = 0) -> tuple[str, int]:
        start = reply.ext["startOffsetInfo"].split(" ")[2]
        offset = int(reply.ext["msgOffsetInfo"].split(" ")[2].split(",")[place])
        handle = " ".join(
            (
                start,
                reply.ext["popTime"],
                reply.ext["invisibleTime"],
                reply.ext["reviveQid"],
                "0",
                play.cluster.broker_name,
                "0",
                str(offset),
            )
        )
        return handle, offset

    def ack_fields(handle: str, offset: int) -> dict[str, object]:
        return dict(consumerGroup=group, topic=topic, queueId=0, extraInfo=handle, offset=offset)

    def ack(label: str, handle: str, offset: int, fields: dict[str, object] | None = None) -> None:
        play.ask(label, ACK, **(ack_fields(handle, offset) | (fields or {})))

    first = pop("first two")
    handle, offset = receipt(first)
    ack("ack", handle, offset)
    ack("ack again", handle, offset)
    second = pop("next two", queueId=0)
    handle, offset = receipt(second, 1)
    for label, fields in {
        "another offset": {"offset": 99},
        "no such queue": {"queueId": 5},
        "unknown topic": {"topic": play.name("Nowhere")},
        "unknown group": {"consumerGroup": play.name("noone")},
        "no receipt": {"extraInfo": ""},
        "broken receipt": {"extraInfo": "1 2 3"},
        "wordy receipt": {"extraInfo": "a b c d e f g h"},
        "negative offset": {"offset": -1},
    }.items():
        ack(f"ack: {label}", handle, offset, fields)

    def change(label: str, **fields: object) -> Reply:
        ext = (
            dict(
                consumerGroup=group,
                topic=topic,
                queueId=0,
                extraInfo=handle,
                offset=offset,
                invisibleTime=30_000,
            )
            | fields
        )
        reply = play.quietly(CHANGE, **ext)
        ext = {name: value for name, value in reply.ext.items() if name != "reviveQid"}
        return play.note(
            label, Reply(0, reply.code, reply.remark, ext, reply.body, serialize=reply.serialize)
        )

    change("longer invisible")
    change("old receipt, unknown topic", topic=play.name("Nowhere"))
    change("no such queue", queueId=5)
    change("another offset", offset=99)
    change("broken receipt", extraInfo="x")
    pop("tag A", exp="A", consumerGroup=create_group(play, "popA"))
    pop("the last", maxMsgNums=32)
    pop("nothing left")
    ticket = play.start(
        POP,
        on="popper",
        consumerGroup=group,
        topic=topic,
        queueId=-1,
        maxMsgNums=2,
        invisibleTime=60_000,
        pollTime=20_000,
        bornTime=int(time.time() * 1000),
        initMode=0,
        expType="TAG",
        exp="*",
        order=False,
    )
    play.until(
        "one waits",
        lambda reply: reply.ext.get("pollingNum") == "1",
        POLLING_INFO,
        consumerGroup=group,
        topic=topic,
        queueId=-1,
    )
    send(play, "wakes a pop", topic, b"awake", properties(TAGS="A", UNIQ_KEY="O-9"))
    reply = play.collect(ticket)
    play.fact("woken pop", (reply.code, [record["body"] for record in play.records(reply)]))
    for label, fields in {
        "unknown topic": {"topic": play.name("Nowhere")},
        "unknown group": {"consumerGroup": play.name("noone")},
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
        ext = dict(consumerGroup=group, topic=topic, queueId=-1, pollTime=0) | fields
        play.note(f"notification{label}", play.in_time(NOTIFICATION, **ext))

    notice(" of nothing")
    send(play, "one more", topic, b"more", properties(UNIQ_KEY="O-10"))
    settled(play, topic)
    notice(" of one")
    notice(" by queue", queueId=0)
    notice(", unknown topic", topic=play.name("Nowhere"))
    notice(", unknown group", consumerGroup=play.name("noone"))
    notice(" of queue 7", queueId=7)
    peek = dict(consumerGroup=group, topic=topic, queueId=0, maxMsgNums=4)
    for label, fields in {
        "": {},
        "all queues": {"queueId": -1},
        "queue 7": {"queueId": 7},
        "unknown topic": {"topic": play.name("Nowhere")},
        "unknown group": {"consumerGroup": play.name("noone")},
    }.items():
        reply = play.quietly(PEEK, **(peek | fields))
        play.fact(
            f"peek {label}",
            (reply.code, [record["body"] for record in play.records(reply)]),
        )
    play.ask("polling info", POLLING_INFO, consumerGroup=group, topic=topic, queueId=-1)
    play.ask(
        "polling info, unknown topic",
        POLLING_INFO,
        consumerGroup=group,
        topic=play.name("Nowhere"),
        queueId=-1,
    )
    play.ask(
        "polling info, unknown group", POLLING_INFO, consumerGroup=play.name("noone"), topic=topic, queueId=-1
    )
    play.ask("polling info, queue 7", POLLING_INFO, consumerGroup=group, topic=topic, queueId=7)
    play.ask("batch ack of nothing", BATCH_ACK, b"")
    play.ask("batch ack of an empty list", BATCH_ACK, b'{"acks":[],"brokerName":"diff"}')
    play.ask("batch ack, broken", BATCH_ACK, b"x")
    ordered(play)


def ordered(play: Play) -> None:
    topic, group = (
        create_topic(play, "PopOrder", 1),
        create_group(play, "popordered", consumeMessageOrderly=True),
    )
    for number in range(4):
        send(play, f"ordered {number}", topic, b"%d" % number, properties(UNIQ_KEY=f"R-{number}"))
    settled(play, topic)

    def pop(label: str) -> Reply:
        reply = play.in_time(
            POP,
            consumerGroup=group,
            topic=topic,
            queueId=-1,
            maxMsgNums=2,
            invisibleTime=60_000,
            pollTime=0,
            initMode=0,
            expType="TAG",
            exp="*",
            order=True,
            attemptId=label,
        )
        play.note(label, Reply(0, reply.code, reply.remark, reply.ext, b"", serialize=reply.serialize))
        play.fact(f"{label}: bodies", [record["body"] for record in play.records(reply)])
        return reply

    first = pop("ordered pop")
    pop("blocked")
    start = first.ext["startOffsetInfo"].split(" ")[2]
    for offset in (1, 0):
        handle = " ".join(
            (
                start,
                first.ext["popTime"],
                first.ext["invisibleTime"],
                first.ext["reviveQid"],
                "0",
                play.cluster.broker_name,
                "0",
                str(offset),
            )
        )
        play.ask(
            f"ordered ack of {offset}",
            ACK,
            consumerGroup=group,
            topic=topic,
            queueId=0,
            extraInfo=handle,
            offset=offset,
        )
    pop("free again")


def revival(play: Play) -> None:
    """What is popped and not acknowledged comes again, by the group's retry topic."""
    topic, group = create_topic(play, "Revived", 1), create_group(play, "revivers")
    for number in range(6):
        send(
            play,
            f"message {number}",
            topic,
            b"%d" % number,
            properties(TAGS="A", KEYS="k", UNIQ_KEY=f"V-{number}"),
        )
    settled(play, topic)

    def pop(invisible_ms: int) -> Reply:
        return play.in_time(
            POP,
            consumerGroup=group,
            topic=topic,
            queueId=-1,
            maxMsgNums=8,
            invisibleTime=invisible_ms,
            pollTime=0,
            initMode=0,
            expType="TAG",
            exp="*",
            order=False,
        )

    first = pop(3_000)
    assert [record["body"] for record in play.records(first)] == list("012345")
    ext = first.ext
    bits = base64.b64encode(bytes([0b100110])).decode()  # 1, 2 and 5
    ack = {
        "c": group,
        "t": topic,
        "r": "0",
        "so": 0,
        "q": 0,
        "rq": int(ext["reviveQid"]),
        "pt": int(ext["popTime"]),
        "it": int(ext["invisibleTime"]),
        "b": bits,
    }
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
