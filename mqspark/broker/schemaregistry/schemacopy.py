"""What the broker that keeps the cluster's registry has, known to a broker that keeps none: by the records of its
topic, which the shell pulls as a consumer does. For checks of messages only.

What has been read stays known while the keeper is away, also over a restart: it is saved as a table of ``config/``.
That something is not there is certain only by a read that began after it was looked for; until then senders are asked
to come back.

Must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from mqspark.base.propertystring import find_property
from mqspark.broker.schemaregistry.schemarecords import decode_record_of
from mqspark.broker.schemaregistry.subjects import Subjects, Version
from mqspark.broker.state.state import BrokerState
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.message import KEYS, SCHEMAS_TOPIC
from mqspark.protocol.codes import Reason, ResponseCode
from mqspark.protocol.dispatch import Refusal
from mqspark.record.record import Verdict, check_record, parts_at
from mqspark.record.recordlayout import spans

MAX_MISSED = 1_000
MISSED_MS = 5_000
"""How long it counts that something is not there."""


class _SavedCopy(msgspec.Struct, frozen=True, rename="camel"):
    """The first line of the file. The others are versions."""

    keeper: str
    next_offset: int


class _SavedVersion(msgspec.Struct, frozen=True, gc=False):
    key: str
    record: msgspec.Raw


def later(why: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_BUSY, f"{why}; retry later", reason=Reason.NOT_NOW)


class SchemaCopy:
    """A Table of ``SavedTable``."""

    def __init__(self, state: BrokerState, subjects: Subjects) -> None:
        self._state = state
        self._subjects = subjects
        self.next_offset = 0
        """The queue offset of the next record to read."""
        self.problem = ""
        """Why the last read failed; empty after one that did not."""
        self.is_asked = False
        """Somebody waits for a read."""
        self._keeper = ""
        self._known_ms: int | None = None
        """When the last read began that came to the end."""
        self._is_loaded = False
        """What is known is what was saved."""
        self.generation = 0
        self._read_generation = subjects.generation
        self._missed = dict[tuple[str, int], int]()
        """What was looked for and was not there, and when first; at most ``MAX_MISSED``."""
        self._topics_version: object = None
        self._is_wanted = False

    @property
    def is_wanted(self) -> bool:
        """Whether there is a topic whose messages are checked."""
        topics = self._state.topics
        if topics.data_version is not self._topics_version:
            self._topics_version = topics.data_version
            self._is_wanted = any(topic.validation is not None for topic in topics)
        return self._is_wanted

    # --- of checks ---

    def check_known(self) -> None:
        """Raises Refusal until the registry has been read once. What was saved counts when the keeper cannot be
        read."""
        if self._known_ms is None:
            self.is_asked = True
            if self._is_loaded and self.problem:
                return
            raise later(f"the schema registry of the cluster is not known here yet{self._why}")

    def check_missing(self, subject: str, schema_id: int) -> None:
        """Raises Refusal unless it is certain that a subject has no such schema; 0: none at all."""
        key, now_ms = (subject, schema_id), self._state.clock.monotonic_ms()
        since_ms = self._missed.get(key)
        if since_ms is None or now_ms - since_ms > MISSED_MS:
            if len(self._missed) >= MAX_MISSED:
                self._missed.clear()
            since_ms = self._missed[key] = now_ms
        if self._known_ms is None or self._known_ms <= since_ms:
            self.is_asked = True
            what = (
                f"schema {schema_id} of subject {subject}" if schema_id else f"a schema of subject {subject}"
            )
            raise later(f"{what} is not known here yet{self._why}")

    @property
    def _why(self) -> str:
        return f" ({self.problem})" if self.problem else ""

    # --- of the shell ---

    def follow(self, keeper: str) -> None:
        """The name of the broker that keeps the registry: with another one, all is read again."""
        if keeper != self._keeper:
            self._keeper = keeper
            self.restart()

    def restart(self) -> None:
        """Forget all: its log was taken back."""
        self._subjects.clear()
        self._missed.clear()
        self._known_ms = None
        self._is_loaded = False
        self.next_offset = 0

    def take(self, body: memoryview, next_offset: int) -> None:
        """The records of an answer. Raises ProtocolError, InvalidMessage for what are none; TableFull."""
        last = self.next_offset - 1
        for begin, end in spans(body):
            found = check_record(body, begin, end, verify_crc=True)
            parts = parts_at(body, begin, end) if found.verdict is Verdict.VALID else None
            if parts is None or parts.topic != SCHEMAS_TOPIC or parts.queue_offset >= next_offset:
                raise ProtocolError(f"broker {self._keeper} sent a wrong record of {SCHEMAS_TOPIC}")
            if parts.queue_offset <= last:
                continue
            last = parts.queue_offset
            key = find_property(parts.properties, KEYS.encode()) or b""
            try:
                record = decode_record_of(key.decode("utf-8", "replace"), parts.body)
            except InvalidMessage:
                continue  # the keeper tells its operators; its own answers do without it, too
            self._subjects.admit(record)
            self._subjects.apply(record)
        self.next_offset = next_offset

    def came_to_end(self, begun_ms: int) -> None:
        """Nothing is left to read, and the read began then."""
        self._known_ms = begun_ms
        self.problem = ""
        if self._read_generation != self._subjects.generation:
            self._read_generation = self._subjects.generation
            self.generation += 1

    # --- of the file ---

    def load(self, data: bytes) -> None:
        """Raises InvalidMessage, TableFull, ValueError."""
        self.restart()
        head, *lines = data.splitlines()
        saved = msgspec.json.decode(head, type=_SavedCopy)
        for line in lines:
            each = msgspec.json.decode(line, type=_SavedVersion)
            record = decode_record_of(each.key, bytes(each.record))
            self._subjects.admit(record)
            self._subjects.apply(record)
        self._keeper, self.next_offset = saved.keeper, saved.next_offset
        self._is_loaded = True
        self._read_generation = self._subjects.generation

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        head = msgspec.json.encode(_SavedCopy(self._keeper, self.next_offset))
        versions = [
            version
            for subject in self._subjects.names()
            for version in self._subjects.versions(subject, deleted=True)
        ]
        return lambda: (head, *(b"\n" + _line(each) for each in versions))


def _line(version: Version) -> bytes:
    record = version.record(deleted=version.deleted)
    return msgspec.json.encode(_SavedVersion(record.key.encode(), msgspec.Raw(record.body)))
