"""One script played on two brokers: what each answered, written down so that equal behaviour reads equal.

A chapter is a function that sends requests through a ``Play``; it is played once on each broker, and every
answer goes into the play's transcript. What legitimately differs is replaced by a symbol: addresses by their
role, times by ``<time>``, physical offsets and ids that a broker made up by the label of the answer in which they
first appear, so that two answers which name the same message on one broker have to name the same on the other.
Nothing here is made of mqspark's own protocol code except the reader of fastjson's dialect.
"""

import hashlib
import json
import re
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mqspark.protocol.fastjson import loads
from tests.support.clusters import Cluster
from tests.support.remoting import ONEWAY, RESPONSE, RawConnection, Reply, request_frame

WAIT_S = 30.0
POLL_S = 0.1
SILENCE_S = 1.0
"""After so long without a word, a server has not understood."""
LONG_BODY = 200

OUTCOMES = {0, 19, 20, 21, 22, 209, 210}
"""Codes that are no errors: success, and that there is nothing."""
WORDED = {0, 19, 20, 21}
"""Codes of answers whose remark is compared: success and the outcomes of a pull."""

OF_ONE_BROKER = {
    "counter", "timestamp", "lastUpdateTimestamp", "stateVersion", "physicOffset", "phyOffset", "delayTime",
}  # fmt: skip
"""Members of JSON bodies that differ between brokers."""
SETS = {"connectionSet", "consumerIdList", "topicList", "groupList", "subscriptionDataSet"}
"""Members of JSON bodies whose order means nothing."""

RECORD_MAGICS = {0xDAA320A7: 1, 0xDAA320AB: 2}
"""Magic code of a stored message → bytes of its topic's length."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a transcript."""

    label: str
    fields: dict[str, Any]


@dataclass(slots=True)
class Play:
    """One performance of a chapter: its connections, its names, and the transcript."""

    cluster: Cluster
    serialize: str
    suffix: str
    transcript: list[Entry] = field(default_factory=list)
    _connections: dict[str, RawConnection] = field(default_factory=dict)
    _opaque: int = 0
    _inbox: dict[str, list[Reply]] = field(default_factory=dict)
    _answers: dict[int, Reply] = field(default_factory=dict)
    _symbols: dict[tuple[str, str], str] = field(default_factory=dict)
    _places: dict[str, str] = field(default_factory=dict)
    _label: str = ""
    _seen: dict[str, int] = field(default_factory=dict)
    """How many symbols of a kind appeared first under this label."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """(topic, queue id) → where the queue ends when all that was acknowledged can be read."""

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def name(self, stem: str) -> str:
        """A topic or group that no other performance has."""
        return f"{stem}-{self.suffix}"

    # --- talking

    def connection(self, on: str, to: str | None = None) -> RawConnection:
        found = self._connections.get(on)
        if found is None:
            found = self._connections[on] = RawConnection(to or self.cluster.broker, WAIT_S)
            self._places[found.local_address] = f"<{on}>"
        return found

    def leave(self, on: str) -> None:
        self._connections.pop(on).close()

    def start(
        self, code: int, body: bytes = b"", *, on: str = "main", command_flag: int = 0, **ext: object
    ) -> tuple[str, int]:
        """Send a request and do not wait; the ticket is for ``collect``."""
        self._opaque += 1
        # Codes beyond 16 bits cannot be said in the binary header: a client has to take JSON for them.
        serialize = self.serialize if code < 1 << 15 else "JSON"
        frame = request_frame(code, self._opaque, ext, body, serialize=serialize, flag=command_flag)
        self.connection(on).write(frame)
        return on, self._opaque

    def collect(self, ticket: tuple[str, int], wait_s: float = WAIT_S) -> Reply:
        on, opaque = ticket
        while opaque not in self._answers:
            self._read(on, wait_s)
        return self._answers.pop(opaque)

    def _read(self, on: str, wait_s: float) -> None:
        connection = self.connection(on)
        connection.wait_at_most(wait_s)
        reply = connection.read()
        if reply.flag & RESPONSE:
            self._answers[reply.opaque] = reply
        else:
            self._inbox.setdefault(on, []).append(reply)

    def quietly(self, code: int, body: bytes = b"", *, on: str = "main", **ext: object) -> Reply:
        """Ask without writing down the answer."""
        return self.collect(self.start(code, body, on=on, **ext))

    def in_time(self, code: int, **ext: object) -> Reply:
        """``quietly``, born now, and again while the machine is so slow that the broker finds the request too old."""
        while True:
            reply = self.quietly(code, **({"bornTime": int(time.time() * 1000)} | ext))
            if "bornTime" in ext or "timeout too much" not in (reply.remark or ""):
                return reply

    def ask(self, label: str, code: int, body: bytes = b"", *, on: str = "main", **ext: object) -> Reply:
        return self.note(label, self.quietly(code, body, on=on, **ext))

    def asking(self, code: int, **usual: object) -> Callable[..., Reply]:
        """``ask`` with these fields, unless it is told of others."""
        return lambda label, **fields: self.ask(label, code, **(usual | fields))

    def tell(self, code: int, body: bytes = b"", *, on: str = "main", **ext: object) -> None:
        """One way."""
        self.start(code, body, on=on, command_flag=ONEWAY, **ext)

    def until(
        self, label: str, done: Callable[[Reply], bool], code: int, body: bytes = b"", **ext: object
    ) -> Reply:
        """Ask again until the answer satisfies; only that one is written down."""
        deadline = time.monotonic() + WAIT_S
        while not done(reply := self.quietly(code, body, **ext)):
            assert time.monotonic() < deadline, f"{self.cluster.kind}: {label} not within {WAIT_S} s: {reply}"
            time.sleep(POLL_S)
        return self.note(label, reply)

    def asked(self, label: str, code: int, *, on: str = "main") -> Reply:
        return self.note(label, self.next_request(code, on=on))

    def next_request(self, code: int, *, on: str = "main") -> Reply:
        """The next request of this code that the server makes; others before it are passed over."""
        inbox = self._inbox.setdefault(on, [])
        while True:
            for place, request in enumerate(inbox):
                if request.code == code:
                    del inbox[: place + 1]
                    return request
            self._read(on, WAIT_S)

    def answer(self, request: Reply, code: int, *, on: str) -> None:
        """Answer a request of the server's."""
        self.connection(on).write(
            request_frame(code, request.opaque, {}, serialize=self.serialize, flag=RESPONSE)
        )

    def frames(self, label: str, raw: bytes, replies: int = 1) -> None:
        """Bytes as they are, on a connection of their own; what comes back, or that it was closed."""
        with RawConnection(self.cluster.broker, SILENCE_S) as connection:
            self._places[connection.local_address] = "<raw>"
            connection.write(raw)
            for number in range(replies):
                try:
                    self.note(f"{label}/{number}", connection.read())
                except ConnectionError:
                    self.transcript.append(Entry(f"{label}/{number}", {"outcome": "closed"}))
                    return
                except TimeoutError:
                    self.transcript.append(Entry(f"{label}/{number}", {"outcome": "silence"}))

    # --- writing down

    def note(self, label: str, reply: Reply) -> Reply:
        self._label, self._seen = label, {}
        fields: dict[str, Any] = {"code": reply.code, "as": reply.serialize}
        if reply.remark:
            fields["remark"] = self._text(reply.remark)
        for key, value in reply.ext.items():
            fields[f"ext.{key}"] = self._value(key, value)
        if reply.body:
            fields["body"] = self._body(reply.body)
        self.transcript.append(Entry(label, fields))
        return reply

    def fact(self, label: str, value: object) -> None:
        """Something that the chapter found out itself."""
        self.transcript.append(Entry(label, {"fact": value}))

    def records(self, reply: Reply) -> list[dict[str, Any]]:
        """The messages in an answer; nothing else has a body that begins so."""
        if len(reply.body) < 8 or struct.unpack_from(">I", reply.body, 4)[0] not in RECORD_MAGICS:
            return []
        return self._records(reply.body)

    @staticmethod
    def physical(reply: Reply) -> int:
        """The place in the log of the first message of an answer."""
        return int(struct.unpack_from(">q", reply.body, 28)[0])

    def _symbol(self, kind: str, value: str) -> str:
        found = self._symbols.get((kind, value))
        if found is None:
            self._seen[kind] = number = self._seen.get(kind, 0) + 1
            found = self._symbols[kind, value] = f"<{kind} {number} of {self._label!r}>"
        return found

    def _value(self, key: str, text: str) -> str:
        if key == "indexLastUpdatePhyoffset":  # of the whole log
            return "<some>" if int(text) > 0 else text
        if key in ("commitLogOffset", "tranStateTableOffset"):
            return self._symbol("physical", text) if int(text) > 0 else text
        if key in ("properties", "i"):
            return str(self._properties(text))
        return self._text(text)

    def _text(self, text: str) -> str:
        """Free text with everything in it that is of this broker or this moment replaced."""
        host, _, port = self.cluster.broker.rpartition(":")
        marker = "".join(f"{int(part):02X}" for part in host.split(".")) + f"{int(port):08X}"
        text = re.sub(
            marker + "([0-9A-F]{16})", lambda found: self._symbol("physical", str(int(found[1], 16))), text
        )
        text = re.sub(r"\b[0-9A-F]{32}\b", lambda found: self._symbol("unique", found[0]), text)
        text = text.replace(self.cluster.broker, "<broker>").replace(self.cluster.namesrv, "<namesrv>")
        for address, role in self._places.items():
            text = text.replace(address, role)
        text = text.replace(self.suffix, "<run>").replace(str(self.cluster.store), "<store>")
        return re.sub(r"\b1[789]\d{11}\b", "<time>", text)

    def _body(self, body: bytes) -> Any:
        if records := self.records(Reply(0, 0, None, {}, body)):
            return records
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return f"{len(body)} bytes {hashlib.sha256(body).hexdigest()[:16]}"
        return self._json(loads(body)) if text[0] in "{[" else self._text(text)

    def _json(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._text(_key(key)): self._member(_key(key), each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._json(each) for each in value]
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int) and not isinstance(value, bool) and 1_700_000_000_000 < value < 2 * 10**12:
            return "<time>"
        return value

    def _member(self, key: str, value: Any) -> Any:
        if key in OF_ONE_BROKER:
            return f"<{key}>"
        if key in SETS and isinstance(value, list):
            return sorted((self._json(each) for each in value), key=str)
        return self._json(value)

    def _records(self, body: bytes) -> list[dict[str, Any]]:
        records, at = [], 0
        while at < len(body):
            record, size = self._record(body, at)
            records.append(record)
            at += size
        return records

    def _record(self, body: bytes, at: int) -> tuple[dict[str, Any], int]:
        """One stored message: docs/rocketmq/messages.md#record."""
        (size, magic, crc, queue, flag, offset, physical, sys_flag, born_ms) = struct.unpack_from(
            ">IIIiiqqiq", body, at
        )
        where = at + 48
        born_host, where = _host(body, where, sys_flag & 0x10)
        stored_ms, where = struct.unpack_from(">q", body, where)[0], where + 8
        store_host, where = _host(body, where, sys_flag & 0x20)
        times, prepared, length = struct.unpack_from(">iqi", body, where)
        where += 16
        payload = body[where : where + length]
        where += length
        width = RECORD_MAGICS[magic]
        length = int.from_bytes(body[where : where + width], "big")
        topic = body[where + width : where + width + length].decode()
        where += width + length
        (length,) = struct.unpack_from(">h", body, where)
        properties = body[where + 2 : where + 2 + length].decode()
        assert where + 2 + length == at + size, "the record's length and its parts disagree"
        assert stored_ms > 1_700_000_000_000, stored_ms
        return {
            "size": size,
            "magic": f"{magic:x}",
            "crc": crc,
            "queue": queue,
            "flag": flag,
            "offset": offset,
            "physical": self._symbol("physical", str(physical)),
            "sysFlag": sys_flag,
            "born": self._text(str(born_ms)),
            "bornHost": self._text(born_host),
            "storeHost": self._text(store_host),
            "times": times,
            "prepared": self._symbol("physical", str(prepared)) if prepared else 0,
            "topic": self._text(topic),
            "body": _shortened(payload),
            "properties": self._properties(properties),
        }, size

    def _properties(self, text: str) -> dict[str, str]:
        pairs = [item.partition("\x01") for item in text.split("\x02") if item]
        return {name: self._text(value) for name, _, value in sorted(pairs)}


def _key(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key, sort_keys=True)


def _host(body: bytes, at: int, is_v6: int) -> tuple[str, int]:
    size = 16 if is_v6 else 4
    (port,) = struct.unpack_from(">i", body, at + size)
    return f"{'.'.join(str(byte) for byte in body[at : at + size])}:{port}", at + size + 4


def _shortened(payload: bytes) -> str:
    if len(payload) > LONG_BODY:
        return f"{len(payload)} bytes {hashlib.sha256(payload).hexdigest()[:16]}"
    return payload.decode("latin-1")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing in which two transcripts differ. ``path`` is ``code`` where the whole outcome is another."""

    label: str
    path: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.label}: {self.path}\n    ours   {self.ours!r:.400}\n    theirs {self.theirs!r:.400}"


def differences(ours: list[Entry], theirs: list[Entry]) -> list[Finding]:
    """All that is not equal; a field that one has not got is None there.

    The wording of an error is not compared, since no client reads it: both must have some. Nor are the fields that
    RocketMQ gives an error because an answer has them. Where it says that it fell over (a Java exception), only
    the code is compared.
    """
    found: list[Finding] = []
    for one, other in zip(ours, theirs, strict=False):
        if one.label != other.label:
            return [*found, Finding(one.label, "label", one.label, other.label)]
        code, counterpart = one.fields.get("code"), other.fields.get("code")
        if code != counterpart:
            remarks = [entry.fields.get("remark") for entry in (one, other)]
            found.append(Finding(one.label, "code", (code, remarks[0]), (counterpart, remarks[1])))
            continue
        names = sorted(one.fields | other.fields)
        if code is not None and code not in WORDED:
            if re.search(r"\bjava\.|Exception", str(other.fields.get("remark"))):
                names = []
            elif other.fields.get("remark") and one.fields.get("remark"):
                names.remove("remark")
        for name in names:
            if code not in {None, *OUTCOMES} and name.startswith("ext.") and name not in one.fields:
                continue
            for path, value, theirs_value in _unequal(name, one.fields.get(name), other.fields.get(name)):
                found.append(Finding(one.label, path, value, theirs_value))
    if len(ours) != len(theirs):
        found.append(Finding("(the end)", "length", len(ours), len(theirs)))
    return found


def _unequal(path: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """The leaves in which two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one | other):
            yield from _unequal(f"{path}.{key}", one.get(key), other.get(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (each, counterpart) in enumerate(zip(one, other, strict=True)):
            yield from _unequal(f"{path}[{number}]", each, counterpart)
    elif one != other:
        yield path, one, other
