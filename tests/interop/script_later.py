"""Chapters about messages that are not for now: delays, timers, transactions, POP, replies."""

# ruff: noqa: C408 (fields of a header read best as keyword arguments)

import base64
import json
import time
from collections.abc import Callable

from tests.interop.differential import POLL_S, WAIT_S, Play
from tests.interop.remoting import Reply
from tests.interop.script_consuming import HEARTBEAT, MAX_I64, consumer_data, heartbeat
from tests.interop.script_messages import (
    BORN_MS,
    MAX_OFFSET,
    SEND,
    create_group,
    create_topic,
    properties,
    pull_fields,
    read_back,
    send,
    send_fields,
    settled,
)

END_TRANSACTION, CHECK_TRANSACTION, RECALL = 37, 39, 370
POP, ACK, PEEK, CHANGE, NOTIFICATION, POLLING_INFO, BATCH_ACK = (
    200050,
    200051,
    200052,
    200053,
    200054,
    200055,
    200151,
)
QUERY_ASSIGNMENT, SET_MODE = 400, 401
SEND_REPLY, PUSH_REPLY = 325, 326
DAY_S = 86_400


def delays(play: Play) -> None:
    topic = create_topic(play, "Delays", 1)
    handles: dict[str, Reply] = {}
    for label, props in {
        "level 1": {"DELAY": 1},
        "level 0": {"DELAY": 0},
        "level -1": {"DELAY": -1},
        "level 19": {"DELAY": 19},
        "level 18": {"DELAY": 18},
        "level 1000": {"DELAY": 1000},
        "level x": {"DELAY": "x"},
        "level empty": {"DELAY": ""},
        "level 1.5": {"DELAY": "1.5"},
        "level blank": {"DELAY": " 1"},
        "level plus": {"DELAY": "+1"},
        "delay of 1 s": {"TIMER_DELAY_MS": 1000},
        "delay of -1": {"TIMER_DELAY_MS": -1},
        "delay of x": {"TIMER_DELAY_MS": "x"},
        "delay of a day": {"TIMER_DELAY_SEC": DAY_S},
        "delay of 2 s": {"TIMER_DELAY_SEC": 2},
        "delay of 4 days": {"TIMER_DELAY_SEC": 4 * DAY_S},
        "delay of 4 days in ms": {"TIMER_DELAY_MS": 4 * DAY_S * 1000},
        "at the beginning": {"TIMER_DELIVER_MS": 0},
        "at -1": {"TIMER_DELIVER_MS": -1},
        "long ago": {"TIMER_DELIVER_MS": BORN_MS},
        "far ahead": {"TIMER_DELIVER_MS": MAX_I64},
        "at x": {"TIMER_DELIVER_MS": "x"},
        "level and timer": {"DELAY": 1, "TIMER_DELAY_MS": 1000},
        "two timers": {"TIMER_DELAY_SEC": 2, "TIMER_DELAY_MS": 1000},
        "tomorrow": {"TIMER_DELIVER_MS": int(time.time() * 1000) + DAY_S * 1000},
    }.items():
        ext = send_fields(play, topic, properties(UNIQ_KEY=f"D-{label}", TAGS="A", **props))
        handles[label] = reply = play.quietly(SEND, label.encode(), **ext)
        # Not where in the system topic: that depends on what others have sent.
        ext = {
            name: value for name, value in reply.ext.items() if name not in ("queueOffset", "recallHandle")
        }
        play.note(label, Reply(0, reply.code, reply.remark, ext, b"", serialize=reply.serialize))
    for label in ("tomorrow", "delay of a day", "delay of 1 s"):
        handle = handles[label].ext.get("recallHandle", "")
        parts = base64.urlsafe_b64decode(handle).decode().split(" ")
        play.fact(f"handle of {label}", [parts[0], parts[1] == topic, parts[2], len(parts[3]), parts[4]])
    good = handles["tomorrow"].ext["recallHandle"]
    play.ask("recall", RECALL, topic=topic, recallHandle=good, producerGroup=play.name("producers"))
    play.ask("recall again", RECALL, topic=topic, recallHandle=good)
    play.ask("recall, another topic", RECALL, topic=play.name("Nowhere"), recallHandle=good)
    play.ask("recall, another existing topic", RECALL, topic=create_topic(play, "Else", 1), recallHandle=good)
    for label, text in {
        "not base64": "%%%",
        "empty": "",
        "too few parts": "v1 a b",
        "another version": f"v2 {topic} diff 9999999999999 id",
        "the past": f"v1 {topic} diff 1000 id",
        "another broker": f"v1 {topic} other 1899999999999 id",
        "time x": f"v1 {topic} diff x id",
        "beyond the limit": f"v1 {topic} diff 1999999999999 id",
    }.items():
        encoded = (
            text if label in ("not base64", "empty") else base64.urlsafe_b64encode(text.encode()).decode()
        )
        play.ask(f"recall: {label}", RECALL, topic=topic, recallHandle=encoded)

    def bodies() -> set[str]:
        reply = play.quietly(11, **pull_fields(play.name("readers-none"), topic))
        return {str(record["body"]) for record in play.records(reply)}

    deadline = time.monotonic() + 30
    wanted = {"level 1", "delay of 1 s", "delay of 2 s", "two timers"}
    while not wanted <= bodies():
        assert time.monotonic() < deadline, bodies()
        time.sleep(0.1)
    reply = play.quietly(11, **pull_fields(play.name("readers-none"), topic))
    for record in sorted(play.records(reply), key=lambda record: str(record["body"])):
        # Times that a broker notes on the way, in the order in which messages happened to come.
        for name in ("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_OUT_MS", "TIMER_DELIVER_MS"):
            if name in record["properties"]:
                record["properties"][name] = "<time>"
        play.fact(f"delivered: {record['body']}", record | {"offset": 0, "physical": ""})


def transactions(play: Play) -> None:
    topic, group = create_topic(play, "Transactions", 1), play.name("transactors")
    play.ask("heartbeat of the producer", HEARTBEAT, heartbeat("tx", producers=[group]), on="tx")

    def half(label: str, **fields: object) -> Reply:
        text = properties(TRAN_MSG="true", PGROUP=group, UNIQ_KEY=f"T-{label}", KEYS="k", TAGS="A")
        return send(
            play,
            f"half {label}",
            topic,
            label.encode(),
            text,
            sysFlag=4,
            producerGroup=group,
            on="tx",
            **fields,
        )

    def end(label: str, reply: Reply, how: int, **fields: object) -> None:
        ext = (
            dict(
                producerGroup=group,
                tranStateTableOffset=reply.ext["queueOffset"],
                commitLogOffset=int(reply.ext["msgId"][16:], 16),
                commitOrRollback=how,
                fromTransactionCheck=False,
                msgId=reply.ext["transactionId"],
                transactionId=reply.ext["transactionId"],
                topic=topic,
            )
            | fields
        )
        play.ask(label, END_TRANSACTION, on="tx", **ext)

    committed, rolled = half("committed"), half("rolled back")
    play.fact("offsets", int(rolled.ext["queueOffset"]) - int(committed.ext["queueOffset"]))
    end("commit", committed, 8)
    end("roll back", rolled, 12)
    other = half("other")
    end("foreign group", other, 8, producerGroup=play.name("strangers"))
    end("wrong table offset", other, 8, tranStateTableOffset=MAX_I64)
    end("no such message", other, 8, commitLogOffset=MAX_I64)
    end("inside a message", other, 8, commitLogOffset=int(other.ext["msgId"][16:], 16) + 1)
    end("unknown decision", other, 5)
    plain = send(play, "an ordinary message", topic, b"ordinary", on="tx")
    end("of an ordinary message", plain, 8)
    end("rolled back", other, 12)
    send(
        play,
        "half without the flag",
        topic,
        b"x",
        properties(TRAN_MSG="true", PGROUP=group, UNIQ_KEY="T-x"),
        producerGroup=group,
        on="tx",
    )
    send(
        play,
        "half, TRAN_MSG false",
        topic,
        b"y",
        properties(TRAN_MSG="false", PGROUP=group, UNIQ_KEY="T-y"),
        on="tx",
    )
    play.until("delivered", lambda reply: reply.ext["offset"] == "3", MAX_OFFSET, topic=topic, queueId=0)
    settled(play, topic)
    read_back(play, "committed", topic, 1)
    open_half = half("open", bornTimestamp=int(time.time() * 1000))  # of what is old nobody is asked
    while play.records(request := play.next_request(CHECK_TRANSACTION, on="tx"))[0]["body"] != "open":
        pass  # others are undecided, too
    play.fact("the check", sorted(request.ext))
    play.fact(
        "it asks for", [request.ext["transactionId"], play.records(request)[0]["properties"]["UNIQ_KEY"]]
    )
    checked = int(request.ext["commitLogOffset"])
    end(
        "answer to the check",
        open_half,
        8,
        tranStateTableOffset=request.ext["tranStateTableOffset"],
        commitLogOffset=checked,
        fromTransactionCheck=True,
    )
    play.until(
        "delivered after the check",
        lambda reply: reply.ext["offset"] == "4",
        MAX_OFFSET,
        topic=topic,
        queueId=0,
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
                bornTime=int(time.time() * 1000),
                initMode=0,
                expType="TAG",
                exp="*",
                order=False,
            )
            | fields
        )
        reply = play.quietly(POP, **ext)
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
        "polling too old": {"bornTime": 1000, "pollTime": 1000},
        "retry topic": {"topic": f"%RETRY%{group}"},
    }.items():
        pop(label, **fields)
    ahead = create_group(play, "popmax")
    pop("new group from the end", consumerGroup=ahead, initMode=1)
    notice = dict(consumerGroup=group, topic=topic, queueId=-1, pollTime=0, bornTime=int(time.time() * 1000))
    play.ask("notification of nothing", NOTIFICATION, **notice)
    send(play, "one more", topic, b"more", properties(UNIQ_KEY="O-10"))
    settled(play, topic)
    play.ask("notification of one", NOTIFICATION, **notice)
    play.ask("notification by queue", NOTIFICATION, **(notice | {"queueId": 0}))
    play.ask("notification, unknown topic", NOTIFICATION, **(notice | {"topic": play.name("Nowhere")}))
    play.ask("notification, unknown group", NOTIFICATION, **(notice | {"consumerGroup": play.name("noone")}))
    play.ask("notification of queue 7", NOTIFICATION, **(notice | {"queueId": 7}))
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
        reply = play.quietly(
            POP,
            consumerGroup=group,
            topic=topic,
            queueId=-1,
            maxMsgNums=2,
            invisibleTime=60_000,
            pollTime=0,
            bornTime=int(time.time() * 1000),
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
        return play.quietly(
            POP,
            consumerGroup=group,
            topic=topic,
            queueId=-1,
            maxMsgNums=8,
            invisibleTime=invisible_ms,
            pollTime=0,
            bornTime=int(time.time() * 1000),
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


def replies(play: Play) -> None:
    requester, client = play.name("requesters"), f"requester-{play.suffix}"
    play.ask("requester", HEARTBEAT, heartbeat(client, producers=[requester]), on="requester")
    reply_topic = "DiffCluster_REPLY_TOPIC"

    def answer(label: str, **props: object) -> tuple[str, int]:
        fields = {
            "a": requester,
            "b": reply_topic,
            "c": "TBW102",
            "d": 4,
            "e": 0,
            "f": 0,
            "g": BORN_MS,
            "h": 0,
            "j": 0,
            "k": False,
            "i": properties(
                **(
                    {
                        "MSG_TYPE": "reply",
                        "CORRELATION_ID": "c1",
                        "REPLY_TO_CLIENT": client,
                        "TTL": 3000,
                        "UNIQ_KEY": "Q-1",
                    }
                    | props
                )
            ),
        }
        return play.start(SEND_REPLY, label.encode(), on="replier", **fields)

    ticket = answer("to the requester")
    request = play.asked("pushed", PUSH_REPLY, on="requester")
    play.answer(request, 0, on="requester")
    play.note("answered", play.collect(ticket))
    ticket = answer("refused by the requester")
    play.answer(play.asked("pushed again", PUSH_REPLY, on="requester"), 1, on="requester")
    play.note("answered with its failure", play.collect(ticket))
    play.note("to nobody", play.collect(answer("to nobody", REPLY_TO_CLIENT="nobody")))
    play.note("to nowhere", play.collect(answer("to nowhere", REPLY_TO_CLIENT="")))


def assignments(play: Play) -> None:
    topic, group = create_topic(play, "Assigned", 3), create_group(play, "assigned")
    play.ask("member", HEARTBEAT, heartbeat("a1", consumers=[consumer_data(group, topic)]), on="member")

    whole = {
        "topic": topic,
        "consumerGroup": group,
        "clientId": "a1",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    deadline = time.monotonic() + WAIT_S
    while b"queueId" not in play.quietly(QUERY_ASSIGNMENT, json.dumps(whole).encode(), on="member").body:
        # RocketMQ asks a name server, which it tells of its topics after its first ten seconds.
        assert time.monotonic() < deadline
        time.sleep(POLL_S)

    def query(label: str, **fields: object) -> None:
        reply = play.quietly(QUERY_ASSIGNMENT, json.dumps(whole | fields).encode(), on="member")
        if reply.code or not reply.body:
            play.note(label, reply)
        else:
            found = json.loads(reply.body).get("messageQueueAssignments") or []
            play.fact(
                label,
                sorted(
                    (str(each.get("mode")), (each.get("messageQueue") or {}).get("queueId")) for each in found
                ),
            )

    query("pull by default")
    query("a stranger", clientId="a9")
    query("unknown strategy", strategyName="X")
    query("circle", strategyName="AVG_BY_CIRCLE")
    query("broadcast", messageModel="BROADCASTING")
    query("unknown topic", topic=play.name("Nowhere"))
    query("unknown group", consumerGroup=play.name("noone"))
    for label, fields in {
        "pop": {},
        "share 1": {"popShareQueueNum": 1},
        "pull again": {"mode": "PULL"},
        "retry topic": {"topic": f"%RETRY%{group}"},
        "unknown mode": {"mode": "X"},
    }.items():
        body = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": -1} | fields
        play.ask(f"set {label}", SET_MODE, json.dumps(body).encode())
        query(f"after {label}")


CHAPTERS: dict[str, Callable[[Play], None]] = {
    "delays": delays,
    "transactions": transactions,
    "pops": pops,
    "revival": revival,
    "replies": replies,
    "assignments": assignments,
}
