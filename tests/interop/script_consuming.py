"""Chapters about pulling, offsets, finding messages, and what consumers send back."""

import time
from collections.abc import Callable

from tests.interop.differential import Play
from tests.interop.script_messages import (
    COMMIT,
    LITE_PULL,
    MAX_OFFSET,
    PULL,
    SUBSCRIPTION,
    SUSPEND,
    batch_body,
    create_group,
    create_topic,
    properties,
    pull,
    pull_fields,
    read_back,
    send,
    settled,
)
from tests.support.remoting import Reply

MAX_I32, MAX_I64 = 2**31 - 1, 2**63 - 1
QUERY, QUERY_OFFSET, UPDATE_OFFSET = 12, 14, 15
SEARCH_OFFSET, MIN_OFFSET, EARLIEST, VIEW = 29, 31, 32, 33
SEND_BACK = 36
NO_MATCH = 20


def pulls(play: Play) -> None:
    topic, group = create_topic(play, "Pulls", 2), create_group(play, "pullers")
    for number in range(10):
        props = properties(TAGS="AB"[number % 2], a=number, UNIQ_KEY=f"P-{number}")
        send(play, f"message {number}", topic, b"%d" % number, props)
    settled(play, topic)
    progress = play.asking(QUERY_OFFSET, consumerGroup=group, topic=topic, queueId=0)
    for offset in (0, 3, 9, 10, 11, 100, -1, -100, MAX_I64, -MAX_I64):
        pull(play, f"from {offset}", group, topic, queueOffset=offset)
    for count in (1, 5, 10, 32, 33, 1000, MAX_I32, 0, -1, -MAX_I32):
        pull(play, f"at most {count}", group, topic, maxMsgNums=count)
    for size in (1, 100, 200, 300, 100_000, 0, -1):
        pull(play, f"at most {size} bytes", group, topic, maxMsgBytes=size)
    for queue_id in (1, 2, 9, -1, -100, MAX_I32):
        pull(play, f"queue {queue_id}", group, topic, queueId=queue_id)
    for flags in range(16):
        pull(play, f"flags {flags:04b}", group, topic, sysFlag=flags, commitOffset=flags)
        progress(f"offset after flags {flags:04b}")
    for flags in (0x10, 0x20, 0x100, -1, MAX_I32):
        pull(play, f"flags {flags:#x}", group, topic, sysFlag=flags)
    for offset in (-1, 0, 5, 10, 99, MAX_I64):
        pull(play, f"commit {offset}", group, topic, sysFlag=SUBSCRIPTION | COMMIT, commitOffset=offset)
        progress(f"offset after commit {offset}")
    suspended = {"sysFlag": SUBSCRIPTION | SUSPEND, "queueOffset": 10, "suspendTimeoutMillis": 100}
    several: dict[str, dict[str, object]] = {
        **{f"{wait} ms": suspended | {"suspendTimeoutMillis": wait} for wait in (0, 1, 200, -1, -MAX_I64)},
        "in an empty queue": suspended | {"queueId": 1, "queueOffset": 0},
        "beyond the end": suspended | {"queueOffset": 50},
    }  # RocketMQ looks at parked pulls every 5 s: all at once
    tickets = {
        label: play.start(PULL, on="parked", **pull_fields(group, topic, **fields))
        for label, fields in several.items()
    }
    for label, ticket in tickets.items():
        play.note(f"suspended {label}", play.collect(ticket))
    pull(play, "empty queue, offset 5", group, topic, queueId=1, queueOffset=5)
    for expression in (
        "A", "B", "A || B", "A||B", " A ", "C", "", "*", "||", "A|B", "A &&B", "A || ", "*||A", "a", "Ä",
    ):  # fmt: skip
        pull(play, f"tags {expression!r}", group, topic, subscription=expression)
    for count in (1, 2, 4):
        pull(play, f"{count} with tag A", group, topic, subscription="A", maxMsgNums=count)
        by_sql = {"subscription": "a > 3", "expressionType": "SQL92"}
        pull(play, f"{count} by sql", group, topic, maxMsgNums=count, **by_sql)
    pull(play, "no subscription", group, topic, subscription=None)
    pull(play, "no expression type", group, topic, expressionType=None)
    pull(play, "expression type empty", group, topic, expressionType="")
    pull(play, "tag in lower case", group, topic, expressionType="tag")
    pull(play, "unknown expression type", group, topic, expressionType="XPATH")
    for expression in (
        "a > 3", "a > 3 AND TAGS = 'A'", "a BETWEEN 2 AND 4", "a IN ('1', '2')", "b IS NULL", "b IS NOT NULL",
        "a > '3'", "TRUE", "FALSE", "a = 5 OR FALSE", "NOT (a > 3)", "a >", "", "SELECT", "a = b", "1 = 1",
        "a <> 3", "a LIKE '1%'", "a CONTAINS '1'", "TAGS STARTSWITH 'A'",
    ):  # fmt: skip
        pull(play, f"sql {expression!r}", group, topic, subscription=expression, expressionType="SQL92")
    pull(play, "sql, no subscription", group, topic, subscription=None, expressionType="SQL92")
    pull(play, "without the subscription flag", group, topic, sysFlag=0)
    pull(play, "without the flag, sql", group, topic, sysFlag=0, expressionType="SQL92", subscription="a > 3")
    pull(play, "lite pull", group, topic, code=LITE_PULL)
    pull(play, "unknown topic", group, play.name("Nowhere"))
    pull(play, "unknown group", play.name("noone"), topic)
    pull(play, "illegal group", "a b$", topic)
    pull(play, "illegal topic", group, "a b$")
    pull(play, "too long a group", play.name("g" * 130), topic)
    for field in (
        "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
        "suspendTimeoutMillis", "subVersion",
    ):  # fmt: skip
        play.ask(f"without {field}", PULL, **(pull_fields(group, topic) | {field: None}))
    pull(play, "newer subscription version", group, topic, sysFlag=0, subVersion=MAX_I64)
    for perm in (0, 2, 4):
        pull(play, f"permission {perm}", group, create_topic(play, f"PullPerm{perm}", 1, perm=perm))
    pull(play, "consuming disabled", create_group(play, "disabled", consumeEnable=False), topic)
    pull(play, "system topic", group, "SELF_TEST_TOPIC")
    play.tell(11, **pull_fields(group, topic))
    pull(play, "after a one-way pull", group, topic, maxMsgNums=1)


def long_polls(play: Play) -> None:
    topic, group = create_topic(play, "Polls", 1), create_group(play, "pollers")

    def parked(**fields: object) -> tuple[str, int]:
        waits = {"sysFlag": SUBSCRIPTION | SUSPEND, "suspendTimeoutMillis": 20_000}
        ticket = play.start(PULL, on="poller", **pull_fields(group, topic, **waits, **fields))
        # An answer on the same connection says that the pull before it has been looked at.
        play.quietly(MAX_OFFSET, on="poller", topic=topic, queueId=0)
        time.sleep(0.2)
        return ticket

    def woken(label: str, ticket: tuple[str, int], **fields: object) -> None:
        reply = play.collect(ticket)
        if reply.code == NO_MATCH and play.cluster.kind == "rocketmq":
            # It also looks every five seconds, without a look at properties: by chance between the two messages.
            reply = play.collect(parked(queueOffset=reply.ext["nextBeginOffset"], **fields))
        play.note(label, reply)

    ticket = parked()
    send(play, "wakes", topic, b"one", properties(TAGS="A", UNIQ_KEY="L-1"))
    play.note("woken", play.collect(ticket))
    of_tag: dict[str, object] = {"subscription": "B"}
    ticket = parked(queueOffset=1, **of_tag)
    send(play, "wakes not", topic, b"two", properties(TAGS="A", UNIQ_KEY="L-2"))
    send(play, "wakes by tag", topic, b"three", properties(TAGS="B", UNIQ_KEY="L-3"))
    woken("woken by tag", ticket, **of_tag)
    of_sql: dict[str, object] = {"subscription": "n > 5", "expressionType": "SQL92"}
    ticket = parked(queueOffset=3, **of_sql)
    send(play, "wakes not by sql", topic, b"four", properties(n=5, UNIQ_KEY="L-4"))
    send(play, "wakes by sql", topic, b"five", properties(n=6, UNIQ_KEY="L-5"))
    woken("woken by sql", ticket, **of_sql)
    ticket = parked(queueOffset=5)
    send(play, "wakes by batch", topic, batch_body((b"six", ""), (b"seven", "")), code=320, batch=True)
    reply = play.collect(ticket)
    # RocketMQ may wake it after the first message of the batch or after both: which is a race, and not compared.
    play.fact("woken by batch", (reply.code, reply.ext["nextBeginOffset"] in ("6", "7")))
    settled(play, topic)
    pull(play, "the batch", group, topic, queueOffset=5)


def offsets(play: Play) -> None:
    topic, group = create_topic(play, "Offsets", 2), create_group(play, "offsets")
    nowhere, noone = play.name("Nowhere"), play.name("noone")
    before_ms = int(time.time() * 1000)
    for number in range(5):
        send(play, f"message {number}", topic, b"%d" % number)
    settled(play, topic)
    for code, what in ((MAX_OFFSET, "max"), (MIN_OFFSET, "min"), (EARLIEST, "earliest")):
        for queue_id in (0, 1, 7, -1):
            play.ask(f"{what} of {queue_id}", code, topic=topic, queueId=queue_id)
        play.ask(f"{what} of an unknown topic", code, topic=nowhere, queueId=0)
        play.ask(f"{what} without a topic", code, queueId=0)
        play.ask(f"{what} without a queue", code, topic=topic)
        play.ask(f"{what} of queue x", code, topic=topic, queueId="x")
    for committed in ("true", "false", "maybe"):
        play.ask(f"max, committed {committed}", MAX_OFFSET, topic=topic, queueId=0, committed=committed)
    search = play.asking(SEARCH_OFFSET, topic=topic, queueId=0, timestamp=0)
    before, after = before_ms - 60_000, before_ms + 600_000
    for what, stamp in {"0": 0, "-1": -1, "before": before, "after": after, "max": MAX_I64}.items():
        for boundary in (None, "LOWER", "UPPER", "lower", "x"):
            search(f"search {what} {boundary}", timestamp=stamp, boundaryType=boundary)
        search(f"search {what} in an empty queue", queueId=1, timestamp=stamp)
    search("search in an unknown topic", topic=nowhere)
    search("search in queue 9", queueId=9)
    whose = {"consumerGroup": group, "topic": topic, "queueId": 0}
    query, update = play.asking(QUERY_OFFSET, **whose), play.asking(UPDATE_OFFSET, **whose, commitOffset=1)
    for queue_id in (0, 1, 9, -1):
        for zero in (None, "true", "false"):
            query(f"query {queue_id} {zero}", queueId=queue_id, setZeroIfNotFound=zero)
    for offset in (3, 1, 99, 0, -1, MAX_I64):
        update(f"update to {offset}", commitOffset=offset)
        query(f"query after {offset}")
    update("update queue 9", queueId=9)
    update("update queue -1", queueId=-1)
    update("update unknown topic", topic=nowhere)
    update("update unknown group", consumerGroup=noone)
    update("update without an offset", commitOffset=None)
    query("query unknown topic", topic=nowhere)
    query("query unknown group", consumerGroup=noone)
    query("query unknown group, no zero", consumerGroup=noone, setZeroIfNotFound=False)
    second = whose | {"queueId": 1}
    play.tell(UPDATE_OFFSET, **second, commitOffset=4)
    play.until("one-way update", lambda reply: reply.ext.get("offset") == "4", QUERY_OFFSET, **second)


def finding(play: Play) -> None:
    topic = create_topic(play, "Finding", 1)
    first = send(play, "first", topic, b"one", properties(KEYS="k1 k2", UNIQ_KEY="F-1"))
    send(play, "second", topic, b"two", properties(KEYS="k2", UNIQ_KEY="F-2"))
    send(play, "third", topic, b"three", properties(KEYS="  k3   k4 ", TAGS="T"))
    send(play, "key like a unique one", topic, b"four", properties(KEYS="F-1", UNIQ_KEY="F-4"))

    ext = {"topic": topic, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": MAX_I64}

    def query(label: str, key: str | None, **fields: object) -> Reply:
        return play.ask(label, QUERY, **(ext | {"key": key} | fields))

    play.until("indexed", lambda reply: len(play.records(reply)) == 2, QUERY, key="F-1", **ext)
    for key in ("k1", "k2", "k3", "k4", "K1", "k", "", "F-2", "F-4", "nothing", "k1 k2"):
        query(f"key {key!r}", key)
    for unique in ("true", "false", "x"):
        query(f"unique {unique}", "F-1", _UNIQUE_KEY_QUERY=unique)
        query(f"unique {unique} of a key", "k2", _UNIQUE_KEY_QUERY=unique)
    for kind in ("K", "U", "T", "x", ""):
        query(f"index type {kind!r}", "k2", indexType=kind)
        query(f"index type {kind!r} unique", "F-1", indexType=kind)
        query(f"index type {kind!r} of a tag", "T", indexType=kind)
    for count in (1, 2, 0, -1, 100, MAX_I32):
        query(f"at most {count}", "k2", maxNum=count)
    query("of the past", "k2", endTimestamp=1000)
    query("of the future", "k2", beginTimestamp=MAX_I64 - 1)
    query("backwards", "k2", beginTimestamp=MAX_I64 - 1, endTimestamp=0)
    query("unknown topic", "k2", topic=play.name("Nowhere"))
    query("no key", None)
    offset = int(first.ext["msgId"][16:], 16)
    play.ask("view", VIEW, topic=topic, offset=offset)
    play.ask("view without topic", VIEW, offset=offset)
    play.ask("view with another topic", VIEW, topic=play.name("Nowhere"), offset=offset)
    for wrong in (-1, MAX_I64, 10**12):
        play.ask(f"view at {wrong}", VIEW, topic=topic, offset=wrong)
    play.ask("view in a record", VIEW, topic=topic, offset=offset + 1)
    play.ask("view without offset", VIEW, topic=topic)


def send_backs(play: Play) -> None:
    topic, group = create_topic(play, "Backs", 1), create_group(play, "returners", retryMaxTimes=2)
    ids = [
        send(play, f"message {n}", topic, b"%d" % n, properties(TAGS="T", KEYS="k", UNIQ_KEY=f"B-{n}"))
        for n in range(4)
    ]
    places = [int(reply.ext["msgId"][16:], 16) for reply in ids]

    usual = {"group": group, "delayLevel": 1, "originTopic": topic, "originMsgId": "B", "unitMode": False}

    def back(label: str, place: int, **fields: object) -> None:
        play.ask(label, SEND_BACK, **(usual | {"offset": place} | fields))

    def until_there(label: str, topic: str, end: str) -> None:
        play.until(label, lambda reply: reply.ext.get("offset") == end, MAX_OFFSET, topic=topic, queueId=0)

    def place_at(offset: int) -> int:
        return play.physical(play.quietly(PULL, **pull_fields(group, retry, queueOffset=offset)))

    retry, dead = f"%RETRY%{group}", f"%DLQ%{group}"
    back("level 1", places[0])
    back("to the dead", places[1], delayLevel=-1)
    back("own limit 0", places[2], maxReconsumeTimes=0)
    back("own limit", places[3], maxReconsumeTimes=9, originTopic=None, originMsgId=None)
    for wrong in (-1, MAX_I64, places[0] + 1):
        back(f"no message at {'max' if wrong == MAX_I64 else wrong if wrong < 0 else 'inside'}", wrong)
    back("unknown group", places[0], group=play.name("noone"))
    back("no level", places[0], delayLevel=None)
    back("no offset", places[0], offset=None)
    back("no retries wanted", places[0], group=create_group(play, "noretry", retryQueueNums=0))
    play.ask("retry topic", 351, topic=retry)
    play.ask("dead letter topic", 351, topic=dead)
    until_there("retries are there", retry, "2")
    read_back(play, "retries", retry, 1)
    read_back(play, "dead letters", dead, 1)
    back("the second time", place_at(0))
    until_there("and there", retry, "3")
    pull(play, "second retry", group, retry, queueOffset=2)
    back("the last time", place_at(2))
    until_there("and dead", dead, "3")
    read_back(play, "dead at last", dead, 1)


CHAPTERS: dict[str, Callable[[Play], None]] = {
    "pulls": pulls,
    "long polls": long_polls,
    "offsets": offsets,
    "finding": finding,
    "send backs": send_backs,
}
