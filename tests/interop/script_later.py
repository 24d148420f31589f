"""Chapters about messages that are not for now: delays, timers, transactions; replies; queues given by the broker."""

import base64
import json
import time
from collections.abc import Callable

from tests.interop.differential import POLL_S, WAIT_S, Play
from tests.interop.script_consuming import MAX_I64
from tests.interop.script_groups import HEARTBEAT, consumer_data, heartbeat
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
    v2_fields,
)
from tests.interop.script_pop import note_but
from tests.support.remoting import Reply

END_TRANSACTION, CHECK_TRANSACTION, RESUME_CHECK, RECALL = 37, 39, 323, 370
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
        note_but(play, label, reply, "queueOffset", "recallHandle")
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
        if label not in ("not base64", "empty"):
            text = base64.urlsafe_b64encode(text.encode()).decode()
        play.ask(f"recall: {label}", RECALL, topic=topic, recallHandle=text)

    def bodies() -> set[str]:
        reply = play.quietly(11, **pull_fields(play.name("readers-none"), topic))
        return {str(record["body"]) for record in play.records(reply)}

    deadline = time.monotonic() + 30
    at_once = {"level -1", "level 0", "level empty", "at -1", "at the beginning", "long ago", "delay of -1"}
    wanted = at_once | {
        "level 1", "level plus", "level and timer", "delay of 1 s", "delay of 2 s", "two timers",
    }  # fmt: skip
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
        fields = {"sysFlag": 4, "producerGroup": group, **fields}
        return send(play, f"half {label}", topic, label.encode(), text, on="tx", **fields)

    def end(label: str, reply: Reply, how: int, **fields: object) -> None:
        usual = {
            "producerGroup": group, "tranStateTableOffset": reply.ext["queueOffset"],
            "commitLogOffset": int(reply.ext["msgId"][16:], 16), "commitOrRollback": how, "fromTransactionCheck": False,
            "msgId": reply.ext["transactionId"], "transactionId": reply.ext["transactionId"], "topic": topic,
        }  # fmt: skip
        play.ask(label, END_TRANSACTION, on="tx", **(usual | fields))

    def until_delivered(label: str, end: str) -> None:
        play.until(label, lambda reply: reply.ext["offset"] == end, MAX_OFFSET, topic=topic, queueId=0)

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
    text = properties(TRAN_MSG="true", PGROUP=group, UNIQ_KEY="T-x")
    send(play, "half without the flag", topic, b"x", text, producerGroup=group, on="tx")
    text = properties(TRAN_MSG="false", PGROUP=group, UNIQ_KEY="T-y")
    send(play, "half, TRAN_MSG false", topic, b"y", text, on="tx")
    until_delivered("delivered", "3")
    settled(play, topic)
    read_back(play, "committed", topic, 1)
    open_half = half("open", bornTimestamp=int(time.time() * 1000))  # of what is old nobody is asked
    while play.records(request := play.next_request(CHECK_TRANSACTION, on="tx"))[0]["body"] != "open":
        pass  # others are undecided, too
    play.fact("the check", sorted(request.ext))
    unique = play.records(request)[0]["properties"]["UNIQ_KEY"]
    play.fact("it asks for", [request.ext["transactionId"], unique])
    place = {
        "tranStateTableOffset": request.ext["tranStateTableOffset"],
        "commitLogOffset": int(request.ext["commitLogOffset"]),
    }
    end("answer to the check", open_half, 8, fromTransactionCheck=True, **place)
    until_delivered("delivered after the check", "4")
    nowhere = open_half.ext["msgId"][:16] + f"{MAX_I64:016X}"
    play.ask("resume: no id", RESUME_CHECK, topic=topic)
    play.ask("resume: not an id", RESUME_CHECK, topic=topic, msgId="none")
    play.ask("resume: no such message", RESUME_CHECK, topic=topic, msgId=nowhere)


def replies(play: Play) -> None:
    requester, client = play.name("requesters"), f"requester-{play.suffix}"
    play.ask("requester", HEARTBEAT, heartbeat(client, producers=[requester]), on="requester")
    reply_topic = "DiffCluster_REPLY_TOPIC"

    def answer(label: str, **props: object) -> tuple[str, int]:
        usual = {
            "MSG_TYPE": "reply", "CORRELATION_ID": "c1", "REPLY_TO_CLIENT": client, "TTL": 3000, "UNIQ_KEY": "Q-1",
        }  # fmt: skip
        text = properties(**(usual | props))
        fields = v2_fields(play, reply_topic, text, producerGroup=requester, batch=None)
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
        "topic": topic, "consumerGroup": group, "clientId": "a1", "strategyName": "AVG", "messageModel": "CLUSTERING",
    }  # fmt: skip
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
            queues = (
                (str(each.get("mode")), (each.get("messageQueue") or {}).get("queueId")) for each in found
            )
            play.fact(label, sorted(queues))

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
    "replies": replies,
    "assignments": assignments,
}
