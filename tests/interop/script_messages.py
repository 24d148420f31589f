"""Chapters about sending, pulling and finding messages."""

import re
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

from tests.interop.differential import Play
from tests.support import remoting
from tests.support.remoting import Reply

BORN_MS = 1_690_000_000_000
"""Long ago: not taken for a time of this run."""

CREATE_TOPIC, DELETE_TOPIC, CREATE_GROUP = 17, 215, 200
SEND, SEND_V2, SEND_BATCH = 10, 310, 320
PULL, LITE_PULL = 11, 361
MAX_OFFSET = 30

COMMIT, SUSPEND, SUBSCRIPTION, CLASS_FILTER = 1, 2, 4, 8
AS_BATCH: dict[str, Any] = {"code": SEND_BATCH, "batch": True}

_V2_FIELDS = (
    "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties "
    "reconsumeTimes unitMode maxReconsumeTimes batch bname"
)
_V2 = dict(zip(_V2_FIELDS.split(), "abcdefghijklmn", strict=True))


def properties(**pairs: object) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def create_topic(play: Play, stem: str, queues: int = 4, **fields: object) -> str:
    topic = play.name(stem)
    reply = play.quietly(CREATE_TOPIC, **{**remoting.topic_fields(topic, queues), **fields})
    assert reply.code == 0, reply
    return topic


def create_group(play: Play, stem: str, **fields: object) -> str:
    group = play.name(stem)
    values = {"groupName": group, "consumeEnable": True, "consumeFromMinEnable": True, "retryQueueNums": 1}
    body = ",".join(f'"{key}":{_json(value)}' for key, value in (values | fields).items())
    reply = play.quietly(CREATE_GROUP, b"{%s}" % body.encode())
    assert reply.code == 0, reply
    return group


def _json(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def send_fields(play: Play, topic: str, props: str | None, **fields: object) -> dict[str, object]:
    return {
        "producerGroup": play.name("producers"), "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": 0, "sysFlag": 0, "bornTimestamp": BORN_MS, "flag": 0, "properties": props, "reconsumeTimes": 0,
        "unitMode": False, "batch": False, **fields,
    }  # fmt: skip


def v2_fields(play: Play, topic: str, props: str | None, **fields: object) -> dict[str, object]:
    """The same for SEND_V2, which has letters for names."""
    return {_V2.get(name, name): value for name, value in send_fields(play, topic, props, **fields).items()}


def send(
    play: Play,
    label: str,
    topic: str,
    body: bytes = b"body",
    props: str | None = "UNIQ_KEY\x01U-1\x02",
    *,
    code: int = SEND_V2,
    on: str = "main",
    **fields: object,
) -> Reply:
    ext = (send_fields if code == SEND else v2_fields)(play, topic, props, **fields)
    reply = play.ask(label, code, body, on=on, **ext)
    diverted = re.search("DELAY|TIMER_|TRAN_MSG", props or "") or int(str(fields.get("sysFlag", 0))) & 4
    if reply.code == 0 and not diverted:
        end = int(reply.ext["queueOffset"]) + len(reply.ext["msgId"].split(","))
        play.ends[topic, int(reply.ext["queueId"])] = end
    return reply


def batch_body(*members: tuple[bytes, str], flag: int = 0) -> bytes:
    """The body of a batch: docs/rocketmq/messages.md#batches."""
    items = []
    for body, props in members:
        text = props.encode()
        size, crc = 22 + len(body) + len(text), zlib.crc32(body) & 0x7FFFFFFF
        items += [
            struct.pack(">IIIiI", size, 0, crc, flag, len(body)),
            body,
            struct.pack(">H", len(text)),
            text,
        ]
    return b"".join(items)


def pull_fields(group: str, topic: str, **fields: object) -> dict[str, object]:
    return {**remoting.pull_fields(topic, 0, 0, group=group), "suspendTimeoutMillis": 500, **fields}


def pull(
    play: Play, label: str, group: str, topic: str, *, code: int = PULL, on: str = "main", **fields: object
) -> Reply:
    return play.ask(label, code, on=on, **pull_fields(group, topic, **fields))


def settled(play: Play, topic: str, queue_id: int = 0) -> int:
    """The queue's end, once all that was acknowledged can be read: RocketMQ's queues follow its log."""
    deadline = time.monotonic() + 30
    while True:
        end = int(play.quietly(MAX_OFFSET, topic=topic, queueId=queue_id).ext["offset"])
        if end >= play.ends.get((topic, queue_id), 0):
            return end
        assert time.monotonic() < deadline, f"{topic}: {end}"


def read_back(play: Play, label: str, topic: str, queues: int = 4) -> None:
    """All that a topic holds now, as records."""
    group = create_group(play, "readers")
    for queue_id in range(queues):
        end = settled(play, topic, queue_id)
        play.fact(f"{label}: end of {queue_id}", end)
        offset = 0
        while offset < end:
            what = f"{label}: {queue_id} from {offset}"
            reply = pull(play, what, group, topic, queueId=queue_id, queueOffset=offset)
            if reply.code:
                break
            offset = int(reply.ext["nextBeginOffset"])


# ---- sending


def sends(play: Play) -> None:
    topic = create_topic(play, "Sends")
    send(play, "plain", topic)
    send(play, "v1", topic, code=SEND)
    send(play, "v1 batch flag false", topic, code=SEND, batch=None)
    send(play, "code 320 without the batch field", topic, code=SEND_BATCH, batch=None)
    send(play, "queue 3", topic, queueId=3)
    send(play, "no properties", topic, props=None)
    send(play, "empty properties", topic, props="")
    send(play, "tags and keys", topic, props=properties(TAGS="A", KEYS="k1 k2", UNIQ_KEY="U-2"))
    send(play, "no end mark", topic, props="TAGS\x01A\x02KEYS\x01k")
    send(play, "a name twice", topic, props="a\x011\x02a\x012\x02UNIQ_KEY\x01U-3\x02")
    send(play, "no value", topic, props="a\x01\x02b\x02UNIQ_KEY\x01U-4\x02")
    send(play, "two value marks", topic, props="a\x01b\x01c\x02UNIQ_KEY\x01U-5\x02")
    send(play, "unicode", topic, "größe 🚀".encode(), props=properties(größe="übergroß", UNIQ_KEY="U-6"))
    of_broker = properties(MSG_REGION="x", TRACE_ON="false", CLUSTER="c", UNIQ_KEY="U-7")
    send(play, "the broker's own properties", topic, props=of_broker)
    send(play, "pop check point", topic, props=properties(POP_CK="0 1 2", UNIQ_KEY="U-8"))
    send(play, "wait false", topic, props=properties(WAIT="false", UNIQ_KEY="U-9"))
    twice = "UNIQ_KEY\x01U-20\x02TAGS\x01A\x02UNIQ_KEY\x01\x02TAGS\x01\x02"
    send(play, "empty ones behind id and tag", play.name("EmptyTwice"), props=twice)
    send(play, "no body to a new topic", play.name("NoBody"), b"")
    play.ask("no topic for no body", 351, topic=play.name("NoBody"))
    send(play, "flags", topic, flag=-7, sysFlag=0x301)
    send(play, "reconsume times", topic, reconsumeTimes=5)
    send(play, "unit mode", topic, unitMode=True)
    send(play, "born long ago", topic, bornTimestamp=-1)
    send(play, "born in the future", topic, bornTimestamp=9_000_000_000_000)
    send(play, "one byte", topic, b"\x00")
    send(play, "all bytes", topic, bytes(range(256)) * 4)
    send(play, "no optional fields", topic, reconsumeTimes=None, unitMode=None, batch=None, props=None)
    send(play, "unknown fields too", topic, somethingElse="x", z="y")
    send(play, "namespace fields", topic, ns="n", nsd=True, lo=False, oway=False)
    send(play, "another broker's name", topic, bname="elsewhere")
    send(play, "blank group", create_topic(play, "Blank"), producerGroup="")
    send(play, "strange group", topic, producerGroup="%$ ü/..")
    for bit in (0x8, 0x100, 0x800, 1 << 30):
        send(play, f"system flag {bit:#x}", topic, sysFlag=bit)
    elsewhere = create_topic(play, "SystemFlags")
    # Not 0x10 and 0x20: they damage RocketMQ's log.
    for bit in (0x4, 0xC, 0x40, 0x80):
        send(play, f"system flag {bit:#x}", elsewhere, sysFlag=bit)
    play.tell(SEND_V2, b"one way", **v2_fields(play, topic, "UNIQ_KEY\x01U-10\x02", queueId=2))
    play.until("one way arrived", lambda reply: reply.ext["offset"] != "0", 30, topic=topic, queueId=2)
    read_back(play, "sends", topic)


def batches(play: Play) -> None:
    topic = create_topic(play, "Batches", 1)
    two = batch_body((b"one", properties(TAGS="A", UNIQ_KEY="M-1")), (b"two", properties(KEYS="k")))
    send(play, "two", topic, two, **AS_BATCH)
    send(play, "by code 310", topic, two, batch=True)
    send(play, "by code 10", topic, two, code=SEND, batch=True)
    send(play, "no properties of its own", topic, two, None, **AS_BATCH)
    send(play, "flags of members", topic, batch_body((b"f", ""), flag=9), **AS_BATCH, flag=3)
    send(play, "one member", topic, batch_body((b"one", "")), **AS_BATCH)
    send(
        play, "unended properties", topic, batch_body((b"one", "a\x01b"), (b"two", "c\x01d\x02")), **AS_BATCH
    )
    send(play, "hundred", topic, batch_body(*[(b"%d" % n, "") for n in range(100)]), **AS_BATCH)
    send(play, "nothing", topic, b"", **AS_BATCH)
    send(play, "cut", topic, two[:-3], **AS_BATCH)
    send(play, "trailing bytes", topic, two + b"xyz", **AS_BATCH)
    elsewhere = create_topic(play, "OddBatches")
    send(play, "wrong inner length", elsewhere, b"\x00\x00\x00\x05" + two[4:], **AS_BATCH)
    send(play, "negative length", elsewhere, b"\xff\xff\xff\xff" + two[4:], **AS_BATCH)
    send(play, "not a batch", topic, b"hello", **AS_BATCH)
    send(play, "empty member", topic, batch_body((b"", "")), **AS_BATCH)
    timely = create_topic(play, "TimedMembers", 1)
    for label, timed in {
        "delayed member": properties(DELAY=1),
        "timer member": properties(TIMER_DELAY_MS=500),
    }.items():
        send(play, label, timely, batch_body((b"x", timed)), **AS_BATCH)
    play.ends[timely, 0] = 2
    read_back(play, "timed members", timely, 1)
    send(play, "delayed batch", topic, two, properties(DELAY=1, UNIQ_KEY="U-1"), **AS_BATCH)
    send(play, "prepared batch", elsewhere, two, properties(TRAN_MSG="true"), **AS_BATCH)
    send(play, "transactional flag", topic, two, **AS_BATCH, sysFlag=4)
    send(play, "too large in sum", topic, batch_body(*[(b"x" * 30_000, "")] * 3), **AS_BATCH)
    send(play, "retry topic", play.name("%RETRY%nobody"), two, **AS_BATCH)
    send(play, "long topic", play.name("L" * 130), two, **AS_BATCH)
    send(play, "no such queue", topic, two, **AS_BATCH, queueId=9)
    read_back(play, "batches", topic, 1)


def wrong_sends(play: Play) -> None:
    topic = create_topic(play, "Wrong", 2)
    for queue_id in (2, 99, 2**31 - 1):
        send(play, f"queue {queue_id}", topic, queueId=queue_id)
    send(play, "no body", topic, b"")
    for size in (65_535, 65_536, 65_537, 65_546, 70_000):
        send(play, f"{size} bytes", topic, b"x" * size)
    for size in (32_600, 32_700, 32_767, 33_000):
        send(play, f"{size} bytes of properties", topic, props=properties(a="x" * size))
    # Not rmq_sys_wheel_timer and rmq_sys_REVIVE_LOG_*: what is sent there stops RocketMQ's timer and its POP.
    stems = (
        "a b", "a/b", "a.b", "ü", "a:b", "a%b", "a|b", "$a", "a-b_c", "<x>", "TBW102", "", " ", "a\n",
        "\u0000", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_TRACE_TOPIC", "BenchmarkTest",
        "rmq_sys_anything", "RMQ_SYS_SELF", "DiffCluster", "diff", "DefaultCluster_REPLY_TOPIC", "%DLQ%nobody",
        "CID_RMQ_SYS_x", "DiffCluster_REPLY_TOPIC",
    )  # fmt: skip
    for stem in stems:
        send(play, f"topic {stem!r}", stem)
    for length in (126, 127, 128, 200, 254, 255, 256, 1000):
        send(play, f"topic of {length}", play.name("T" * (length - len(play.name("")))))
    send(play, "unknown topic, no template", play.name("New1"), defaultTopic="NoSuch")
    send(play, "unknown topic, ordinary template", play.name("New2"), defaultTopic=topic)
    send(play, "unknown topic, cluster as template", play.name("New3"), defaultTopic="DiffCluster")
    send(play, "unknown topic, broker as template", play.name("New4"), defaultTopic="diff")
    send(play, "unknown topic, 3 queues", play.name("New5"), defaultTopicQueueNums=3, queueId=2)
    send(play, "unknown topic, 100 queues", play.name("New6"), defaultTopicQueueNums=100, queueId=7)
    send(play, "unknown topic, 0 queues", play.name("New7"), defaultTopicQueueNums=0)
    send(play, "unknown topic, -1 queues", play.name("New8"), defaultTopicQueueNums=-1)
    send(play, "unknown topic, wrong queue", play.name("New9"), queueId=50)
    send(play, "unknown topic, unit mode", play.name("New10"), unitMode=True)
    for number in range(1, 11):
        play.ask(f"config of New{number}", 351, topic=play.name(f"New{number}"))
    send(play, "retry topic of nobody", play.name("%RETRY%nobody"))
    group = create_group(play, "somebody", retryMaxTimes=2)
    send(play, "retry topic of somebody", f"%RETRY%{group}", reconsumeTimes=1)
    send(play, "retry topic too often", f"%RETRY%{group}", reconsumeTimes=3)
    send(play, "retry topic, own limit", f"%RETRY%{group}", reconsumeTimes=3, maxReconsumeTimes=5)
    send(play, "retry topic, own limit 0", f"%RETRY%{group}", reconsumeTimes=1, maxReconsumeTimes=0)
    send(play, "dead letter topic", f"%DLQ%{group}")
    read_back(play, "retry", f"%RETRY%{group}", 1)
    read_back(play, "dead letters", f"%DLQ%{group}", 1)
    for perm in (0, 2, 4, 6):
        other = create_topic(play, f"Perm{perm}", 1, perm=perm)
        send(play, f"permission {perm}", other)
    create_topic(play, "ReadMore", 2, readQueueNums=4)
    for queue_id in (1, 2, 3, 4):
        send(play, f"2 write and 4 read queues: {queue_id}", play.name("ReadMore"), queueId=queue_id)
    create_topic(play, "WriteMore", 4, readQueueNums=2)
    for queue_id in (1, 3, 4):
        send(play, f"4 write and 2 read queues: {queue_id}", play.name("WriteMore"), queueId=queue_id)
    create_topic(play, "MultiTag", 1, topicFilterType="MULTI_TAG")
    send(play, "multi tag", play.name("MultiTag"), props=properties(TAGS="a||b", UNIQ_KEY="U"))
    read_back(play, "multi tag", play.name("MultiTag"), 1)
    read_back(play, "wrong", topic, 2)


def batch_queues(play: Play) -> None:
    """Topics whose records hold several messages (queue.type=BatchCQ)."""
    topic = create_topic(play, "BatchQueues", 1, attributes="+queue.type=BatchCQ")
    group = create_group(play, "batch-readers")
    play.ask("config", 351, topic=topic)
    for code in (MAX_OFFSET, 31):
        play.ask(f"code {code} of an empty queue", code, topic=topic, queueId=0)
    three = batch_body(
        *[(b"%d" % number, properties(TAGS="A", UNIQ_KEY=f"M-{number}")) for number in range(3)]
    )
    send(play, "three", topic, three, properties(UNIQ_KEY="B-1", TAGS="A"), **AS_BATCH)
    send(play, "one by itself", topic, b"single", properties(UNIQ_KEY="B-2", TAGS="B"))
    send(
        play,
        "two more",
        topic,
        three[: len(three) // 3 * 2],
        properties(UNIQ_KEY="B-3", TAGS="A"),
        **AS_BATCH,
    )
    elsewhere = create_topic(play, "CutBatches", 1, attributes="+queue.type=BatchCQ")
    send(play, "cut", elsewhere, three[:-1], **AS_BATCH)
    deadline = time.monotonic() + 30
    while play.quietly(MAX_OFFSET, topic=topic, queueId=0).ext["offset"] != "6":
        assert time.monotonic() < deadline
    for code in (MAX_OFFSET, 31, 32):
        play.ask(f"code {code}", code, topic=topic, queueId=0)
    for offset in (0, 1, 2, 3, 4, 5, 6, 7, -1):
        pull(play, f"from {offset}", group, topic, queueOffset=offset)
        pull(play, f"from {offset}, one", group, topic, queueOffset=offset, maxMsgNums=1)
    for count in (2, 3, 4, 5):
        pull(play, f"at most {count}", group, topic, maxMsgNums=count)
    pull(play, "tag A", group, topic, subscription="A")
    pull(play, "tag B", group, topic, subscription="B")
    for stamp in (0, 2**62):
        play.ask(f"search {stamp}", 29, topic=topic, queueId=0, timestamp=stamp)
    play.ask("stats", 202, topic=topic)
    ordinary = remoting.topic_fields(topic, 1, attributes="+queue.type=SimpleCQ")
    play.ask("to an ordinary queue", CREATE_TOPIC, **ordinary)


CHAPTERS: dict[str, Callable[[Play], None]] = {
    "sends": sends,
    "batches": batches,
    "wrong sends": wrong_sends,
    "batch queues": batch_queues,
}
