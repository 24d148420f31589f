"""Values that a hostile peer would try, and bytes changed as a failing disk or a careless peer changes them."""

from __future__ import annotations

import enum
import json
import random
import struct
import types
import typing
from typing import Any

import msgspec

Chance = random.Random

TOPICS = [f"Fuzz{number}" for number in range(40)]
GROUPS = [f"g-fuzz-{number}" for number in range(40)]
SYSTEM_NAMES = [
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TBW102", "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster",
    "mqspark_sink_decisions", "%RETRY%g-fuzz-1", "%DLQ%g-fuzz-1", "%LMQ%fuzz", "DefaultCluster", "CID_ONSAPI_OWNER",
]  # fmt: skip
HOSTILE = [
    "", " ", ".", "..", "/", "/tmp/x", "../../../x", "a/../../b", "a\x00b", "\n",
    "\r\nINFO forged line", "%", "%%", "%s%n",
    "%RETRY%", "%RETRY%../x", "%DLQ%", "%LMQ%", "*", "||", "a||" * 300, "é" * 200, "\ud800", "￿",
    "x" * 256, "x" * 40_000,
    "null", "true", "NaN", "Infinity", "${jndi:ldap://x}", "'; --", "{}", "[]", '{"$ref":"$"}', '"',
    "\\", "\x01", "\x02",
    "TAGS\x01a\x02KEYS\x01k\x02", "DELAY\x013\x02", "TIMER_DELAY_SEC\x019\x02",
    "REAL_TOPIC\x01/x\x02REAL_QID\x01-1\x02",
    "a > 5", "a = 'x' AND NOT b IS NULL", "(" * 500, "a LIKE '" + "%_" * 300 + "'",
    "NOT " * 3_000 + "a", "a BETWEEN 1 AND",
]  # fmt: skip
NUMBERS = [
    0, 1, -1, 2, 3, 4, 7, 8, 16, 32, 63, 64, 100, 127, 128, 255, 256, 1000, 1023, 4096, 32767, 32768,
    65535, 65536, 1 << 20,
    (1 << 31) - 1, 1 << 31, -(1 << 31), -(1 << 31) - 1, (1 << 63) - 1, 1 << 63, -(1 << 63), 10**20,
    -(10**20), 1_700_000_000_000,
]  # fmt: skip
PROPERTIES = [
    "", "TAGS\x01a\x02KEYS\x01k1 k2\x02", "UNIQ_KEY\x010A0000010A0000000000000000000001\x02", "DELAY\x011\x02",
    "TIMER_DELAY_MS\x01500\x02", "TRAN_MSG\x01true\x02PGROUP\x01g-fuzz-1\x02", "a\x017\x02__SHARDINGKEY\x01s\x02",
    "INNER_MULTI_DISPATCH\x01%LMQ%a\x02", "CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01x\x02TTL\x013000\x02",
]  # fmt: skip
NUMBER_TEXTS = ["--5", "+5", " 5", "5 ", "0x10", "1e9", "1.5", "²", "٣", "9" * 5_000, "-", "", "1_000", "NaN"]


def text(chance: Chance) -> str:
    """A name or text of a header or body: mostly plausible, so that cases get past the first check."""
    kind = chance.random()
    if kind < 0.35:
        return chance.choice(TOPICS)
    if kind < 0.65:
        return chance.choice(GROUPS)
    if kind < 0.75:
        return chance.choice(SYSTEM_NAMES)
    if kind < 0.95:
        return chance.choice(HOSTILE)
    return "".join(
        chr(chance.choice([*range(32, 127), 0, 1, 2, 10, 0xE9, 0x4E2D])) for _ in range(chance.randrange(60))
    )


def number(chance: Chance) -> int:
    if chance.random() < 0.5:
        return chance.randrange(0, 8)
    return chance.choice(NUMBERS)


def _unwrapped(hint: Any) -> list[Any]:
    """The alternatives of a hint without None."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [inner for arg in typing.get_args(hint) if arg is not type(None) for inner in _unwrapped(arg)]
    return [hint]


def document(chance: Chance, hint: Any, depth: int = 0) -> Any:
    """A JSON value for a type of ``protocol.bodies`` or ``protocol.headers``; now and then one of another type."""
    if chance.random() < 0.03 or depth > 8:
        return chance.choice(
            [None, {}, [], 0, "", text(chance), number(chance), {"$ref": "$"}, {"$ref": "$.a[0].b"}]
        )
    hint = chance.choice(_unwrapped(hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = typing.get_type_hints(hint, include_extras=True)
        return {
            item.encode_name: document(chance, hints[item.name], depth + 1)
            for item in msgspec.structs.fields(hint)
            if chance.random() < (0.97 if item.required else 0.7)
        }
    if origin in (list, set, frozenset, tuple):
        return [document(chance, arguments[0], depth + 1) for _ in range(_length(chance))]
    if origin is dict:
        return {str(document(chance, arguments[0], depth + 1)): document(chance, arguments[1], depth + 1)
                for _ in range(_length(chance))}  # fmt: skip
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return chance.choice([member.value for member in hint])
    if hint is bool:
        return chance.random() < 0.5
    if hint is int:
        return number(chance)
    if hint is float:
        return chance.choice([0.0, -1.5, 1e308])
    return text(chance)


def _length(chance: Chance) -> int:
    return chance.choice([0, 1, 1, 2, 3, 5]) if chance.random() < 0.98 else chance.randrange(20, 200)


def fields(chance: Chance, header: type[msgspec.Struct] | None) -> dict[str, str]:
    """The ``extFields`` of a request. In half of the requests all of them are plausible but for one at most, so that
    handlers are reached; in the others each may be hostile or missing."""
    if header is None:
        return {text(chance): text(chance)} if chance.random() < 0.2 else {}
    hints = typing.get_type_hints(header, include_extras=True)
    items = msgspec.structs.fields(header)
    is_mild = chance.random() < 0.5
    odd_one = chance.choice(items).name if items and chance.random() < 0.7 else ""
    ext = {}
    for item in items:
        if is_mild and item.name != odd_one:
            if not item.required and chance.random() < 0.6:
                continue
            value = _plausible(chance, item.name, hints[item.name])
        elif chance.random() < (0.03 if item.required else 0.3):
            continue
        elif chance.random() < 0.03:
            value = chance.choice(NUMBER_TEXTS)
        else:
            value = document(chance, hints[item.name], 7)
        ext[item.encode_name] = str(value).lower() if isinstance(value, bool) else str(value)
    if not is_mild and chance.random() < 0.05:
        ext[text(chance)] = text(chance)
    return ext


def _plausible(chance: Chance, name: str, hint: Any) -> Any:
    if "topic" in name and "num" not in name:
        return "TBW102" if name.startswith("default") else chance.choice(TOPICS)
    if "group" in name:
        return chance.choice(GROUPS)
    if name == "properties":
        return chance.choice(PROPERTIES)
    if name in ("subscription", "exp", "expression"):
        return chance.choice(["*", "a || b", "a > 5 AND TAGS = 'x'"])
    if name.endswith("type"):
        return chance.choice(["TAG", "SQL92", "SINGLE_TAG", "1"])
    if "perm" in name:
        return 6
    if "nums" in name:
        return chance.choice([1, 2, 4])
    if "sys_flag" in name:
        return chance.choice([0, 0, 1, 4, 8, 12])
    if "timestamp" in name or name.endswith("time"):
        return chance.choice([0, 1_000, 1_700_000_000_000, 4_000_000_000_000])
    if hint in (int, bool) or int in _unwrapped(hint) or bool in _unwrapped(hint):
        return chance.random() < 0.5 if bool in _unwrapped(hint) else chance.randrange(3)
    return chance.choice(["127.0.0.1:10911", "127.0.0.1@1", "DefaultCluster", "broker-a", "0"])


def json_frame(code: int, flag: int, opaque: int, ext: dict[str, str], body: bytes) -> bytes:
    header = json.dumps(
        {"code": code, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 479, "extFields": ext,
         "serializeTypeCurrentRPC": "JSON"}
    ).encode("utf-8", "surrogatepass")  # fmt: skip
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def binary_frame(code: int, flag: int, opaque: int, ext: dict[str, str], body: bytes) -> bytes:
    packed = b""
    for key, value in ext.items():
        name, content = key.encode("utf-8", "surrogatepass")[:32767], value.encode("utf-8", "surrogatepass")
        packed += struct.pack(">H", len(name)) + name + struct.pack(">I", len(content)) + content
    header = (
        struct.pack(">HBHIII", code & 0x7FFF, 0, 479, opaque, flag, 0)
        + struct.pack(">I", len(packed))
        + packed
    )
    return struct.pack(">II", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def odd_json(chance: Chance, plain: bytes) -> bytes:
    """JSON as fastjson writes it or an attacker would: bare keys, references, depth, long numbers."""
    kind = chance.randrange(9)
    if kind == 0:
        return b"[" * chance.choice([10, 63, 64, 65, 5_000, 100_000])
    if kind == 1:
        return b'{"a":' * chance.choice([10, 64, 3_000]) + b"1"
    if kind == 2:
        return (
            b"["
            + b",".join(b'{"$ref":"$[%d].a.b"}' % n for n in range(chance.choice([3, 300, 3_000])))
            + b"]"
        )
    if kind == 3:
        return b'{{"queueId":0}:%s}' % plain
    if kind == 4:
        return plain.replace(b'"', b"'")
    if kind == 5:
        return b'{"a":%s}' % (b"9" * chance.choice([30, 4_400, 60_000]))
    if kind == 6:
        return b'{"$ref":"$' + b".a" * chance.choice([3, 3_000]) + b'","a":{}}'
    if kind == 7:
        return plain.replace(b'":', b":").replace(b'{"', b"{")
    return plain[: chance.randrange(len(plain) + 1)]


def mutated(chance: Chance, data: bytes) -> bytes:
    """``data`` with a few bytes flipped, cut, doubled, or numbers put in the place of others."""
    content = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        if not content:
            break
        at = chance.randrange(len(content))
        kind = chance.randrange(6)
        if kind == 0:
            content[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            content[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            content[at : at + 4] = struct.pack(">I", number(chance) & 0xFFFFFFFF)
        elif kind == 3:
            content[at : at + 8] = struct.pack(">Q", number(chance) & (1 << 64) - 1)
        elif kind == 4:
            del content[at : at + chance.randrange(1, 64)]
        else:
            piece = content[at : at + chance.randrange(1, 64)]
            content[at:at] = piece * chance.randrange(1, 4)
    return bytes(content)
