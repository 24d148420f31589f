"""Chapters about odd frames, every request code without fields, and every field wrong."""

import json
import struct
from collections.abc import Callable

from mqspark.protocol.codes import RequestCode
from tests.interop.differential import Play
from tests.interop.script_consuming import MAX_I64
from tests.interop.script_messages import create_group, create_topic, pull_fields, send, send_fields, settled
from tests.support.remoting import request_frame


def frames(play: Play) -> None:
    """What is not as it should be; each on a connection of its own."""
    play.frames("length 0", struct.pack(">I", 0))
    play.frames("length 3", struct.pack(">I", 3) + b"abc")
    play.frames("header longer than the frame", struct.pack(">II", 8, 100) + b"{}  ")
    play.frames("no json", struct.pack(">II", 6, 2) + b"xy")
    play.frames("a list as header", struct.pack(">II", 6, 2) + b"[]")
    play.frames("header type 9", struct.pack(">II", 6, 9 << 24 | 2) + b"{}")
    play.frames("too large", struct.pack(">II", 16 * 1024 * 1024 + 1, 2) + b"{}")
    play.frames("largest length, negative", struct.pack(">i", -1) + b"\xff" * 8)
    play.frames("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    play.frames("binary header cut", struct.pack(">II", 14, 1 << 24 | 10) + b"\0" * 10)
    self_test = {"topic": "SELF_TEST_TOPIC", "queueId": 0}
    fields = {"topic": "SELF_TEST_TOPIC", "queueId": "0"}
    whole = {"code": 30, "opaque": 5, "flag": 0, "language": "JAVA", "version": 479, "extFields": fields}

    def headed(label: str, header: str) -> None:
        raw = header.encode()
        play.frames(label, struct.pack(">II", 4 + len(raw), len(raw)) + raw)

    for label, members in {
        "code as text": {"code": "30"},
        "opaque as text": {"opaque": "5"},
        "negative opaque": {"opaque": -5},
        "unknown language": {"language": "KLINGON"},
        "language as number": {"language": 9},
        "numbers as fields": {"extFields": self_test},
        "unknown members": {"x": {"y": [1]}},
        "null remark": {"remark": None},
        "another flag bit": {"flag": 4},
        "says binary, is json": {"serializeTypeCurrentRPC": "ROCKETMQ"},
        "code 0": {"code": 0},
        "code -1": {"code": -1},
    }.items():
        headed(label, json.dumps(whole | members, separators=(",", ":")))
    for gone in ("language", "flag", "version", "opaque"):
        headed(f"no {gone}", json.dumps({key: value for key, value in whole.items() if key != gone}))
    headed("no fields", '{"code":305,"opaque":5,"flag":0,"language":"JAVA","version":479}')
    headed("blanks", " " + json.dumps(whole, indent=3).replace(":", " : ") + " \n")
    first = request_frame(30, 1, self_test)
    play.frames("two in one write", first + request_frame(31, 2, self_test), 2)
    play.frames("an answer that nobody waits for, then a request", request_frame(0, 9, {}, flag=1) + first)


NOT_ASKED = {
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.TRIGGER_DELETE_FILES,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.PULL_MESSAGE,
}
"""What would change the broker for the chapters after this one."""


def codes(play: Play) -> None:
    """Every request code, and some that are none, without fields and without a body."""
    none = {1, 9, 99, 500, 9999, 32767, 40000, 65535 + 11, 2**31 - 1}
    for code in sorted({*map(int, RequestCode), *none} - NOT_ASKED):
        answer = play.quietly(code).code
        how = "unsupported" if answer == 3 else "answered"
        play.fact(f"code {code}", (how, answer if answer in (0, 3) else "an error"))


WRONG = (
    None, "x", "-1", "2147483648", "9223372036854775808", "1.5", " 1", "+1", "0x1", "TRUE", "\u0661", "a" * 300,
)  # fmt: skip


def mutations(play: Play) -> None:
    """Requests that are right but for one field."""
    topic, group = create_topic(play, "Mutations", 1), create_group(play, "mutants")
    place = int(send(play, "a message", topic).ext["msgId"][16:], 16)
    settled(play, topic)
    where = {"topic": topic, "queueId": 0}
    whose = {"consumerGroup": group, **where}
    right: dict[int, dict[str, object]] = {
        10: send_fields(play, topic, "a\x01b\x02"),
        11: pull_fields(group, topic),
        12: {"topic": topic, "key": "k", "maxNum": 3, "beginTimestamp": 0, "endTimestamp": MAX_I64},
        14: whose,
        15: whose | {"commitOffset": 0},
        29: where | {"timestamp": 0},
        30: where,
        31: where,
        32: where,
        33: {"offset": 0, "topic": topic},
        36: {"offset": place, "group": group, "originTopic": topic, "delayLevel": 1, "unitMode": False,
             "maxReconsumeTimes": 3},
        38: {"consumerGroup": group},
        202: {"topic": topic},
        203: {"consumerGroup": group},
        204: {"producerGroup": group},
        207: {"groupName": play.name("nobody")},
        208: {"consumerGroup": group, "topic": topic},
        300: {"topic": topic},
        303: {"topic": topic, "group": group},
        308: {"compareGroup": group, "topic": topic, "filterGroups": ""},
        314: {"srcGroup": group, "destGroup": group, "topic": topic},
        315: {"statsName": "TOPIC_PUT_NUMS", "statsKey": topic},
        321: where | {"index": 0, "count": 1, "consumerGroup": group},
        343: {"group": group},
        351: {"topic": topic},
        352: {"group": group},
        370: {"topic": topic, "recallHandle": "x"},
        200050: whose | {"maxMsgNums": 1, "invisibleTime": 1000, "pollTime": 0, "bornTime": MAX_I64, "initMode": 0,
                         "expType": "TAG", "exp": "*", "order": False},
        200051: whose | {"extraInfo": f"0 {MAX_I64} 1000 0 0 diff 0 0", "offset": 0},
        200052: whose | {"maxMsgNums": 1},
        200053: whose | {"extraInfo": "0 1 1000 0 0 diff 0 0", "offset": 0, "invisibleTime": 1000},
        200054: whose | {"pollTime": 0, "bornTime": MAX_I64},
        200055: whose,
    }  # fmt: skip
    for code, ext in right.items():
        for name in ext:
            for wrong in WRONG:
                # Only how it ends: what is in it is for the other chapters.
                reply = play.quietly(code, b"b" if code == 10 else b"", **(ext | {name: wrong}))
                # Whether there is a message depends on the time: of a pop, and of a look at what may be popped.
                nothing = (19, 209, 210) if code == 200052 else (209, 210)
                play.fact(f"{code} {name}={wrong!r:.20}", 0 if reply.code in nothing else reply.code)


CHAPTERS: dict[str, Callable[[Play], None]] = {"frames": frames, "mutations": mutations, "codes": codes}
