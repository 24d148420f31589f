"""The decision log of the exactly-once sink: which half messages of each batch count.

The decision log is a topic with one queue (``mqspark_sink_decisions``). A decision is found only while that topic keeps
its messages: restart a query within that time.

Authenticity of a decision. An mqspark broker accepts only committed half messages in the decision log. A reader accepts
only decisions committed by the producer group of its identity that carry a valid code (HMAC). The code requires the
identity itself: the query's id (122 random bits in its checkpoint) or the option ``transactionId``. The log contains
only a hash of it. Forged, damaged and foreign decisions are skipped; the code is checked before anything is
decompressed. The group's offset is a hint: it is used only if a decision of an earlier batch lies there.

A log whose broker is away is not taken for a missing one. Name servers forget the route of a topic while its broker is
away. Therefore the log is noted at the name servers before its first decision (``decisionnote``). A noted log without a
route is waited for, for ``retryTimeout``; then the batch fails.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from mqspark.base.clock import wall_ms
from mqspark.base.logs import Outages, escaping
from mqspark.client.blocking import BlockingClient
from mqspark.errors import InvalidMessage, MQError, NoRoute
from mqspark.message import (
    KEYS,
    PRODUCER_GROUP,
    SINK_DECISIONS_TOPIC,
    TAGS,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_PREPARED_TYPE,
    MessageExt,
    MessageQueue,
    decode_offset_id,
    encode_properties,
)
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import PULL_ANSWERS, RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import (
    EndTransactionRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    pull_header,
)
from mqspark.record.compression import ZLIB, decompress
from mqspark.record.record import decode_records
from pyspark_pymq.writing.decisionnote import LogNote
from pyspark_pymq.writing.reports import Halves

log = escaping("pyspark_pymq")

DECISIONS = SINK_DECISIONS_TOPIC
_PART_HALVES = 50_000
"""Half messages in one message of the decision log: under a megabyte."""
_MAX_DECISION_BYTES = 16 << 20
"""Decompressed size limit of such a message."""
_MAX_PARTS = 100_000
_CODE_BYTES = 32
_READ_MESSAGES = 1024
_WAIT_S = 30.0
_outages = Outages(log)
"""Outages that this driver sees: each batch looks again."""


class DecisionLog:
    """The decisions of one identity (a query, or the option transactionId) about its batches."""

    def __init__(self, client: BlockingClient, identity: str, topic: str) -> None:
        """``topic``: a target topic. If the log does not exist, its first broker creates it."""
        self._client = client
        self._topic = topic
        self._identity = identity
        self._digest = hashlib.sha256(identity.encode()).hexdigest()[:24]
        self._group = f"mqspark-sink-{self._digest}"
        self._key = hashlib.sha256(b"mqspark sink decision\0" + identity.encode()).digest()
        self._found_at = -1
        self._note = LogNote(client)

    def check(self) -> None:
        """In the driver, before the tasks run: say what they will wait for."""
        self._away()

    def find(self, batch: int) -> list[Halves] | None:
        """The first complete decision for the batch; an empty one if a later batch is decided already. None if
        there is none."""
        decision = self._find(batch)
        return None if decision is None else decision[1]

    def decide(self, batch: int, halves: Sequence[Halves]) -> list[Halves]:
        """Write a decision. Returns the valid one, which may be another driver's."""
        queue, address = self._queue()
        token = secrets.token_hex(8)
        parts = list(_parts(halves))
        for number, part in enumerate(parts):
            document = {"batch": batch, "token": token, "part": number, "parts": len(parts), "halves": part}
            packed = zlib.compress(json.dumps(document).encode())
            self._append(queue, address, self._code_of(packed) + packed)
        decision = self._find(batch)
        if decision is None:
            raise MQError(f"the decision for batch {batch} of {self._identity} was stored but is not found")
        return decision[1]

    def show(self) -> None:
        """Let the next search start at the last decision found. Best effort: a longer search finds it, too."""
        if self._found_at >= 0:
            queue, address = self._queue()
            self._client.commit_group_offsets(address, self._group, {queue: self._found_at})

    def _code_of(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, packed, "sha256")

    def _append(self, queue: MessageQueue, address: str, body: bytes) -> None:
        """Send a decision as a transaction of the group: the broker accepts nothing else."""
        properties = {
            KEYS: self._group,
            TAGS: self._digest,
            TRANSACTION_PREPARED: "true",
            PRODUCER_GROUP: self._group,
        }
        header = SendMessageRequestHeaderV2.of(
            self._group,
            queue.topic,
            queue.queue_id,
            wall_ms(),
            encode_properties(properties).decode(),
            default_queues=1,
            sys_flag=TRANSACTION_PREPARED_TYPE,
            bname=queue.broker_name,
        )
        # A repetition is harmless: parts carry their decision's token, and the first of each counts. A half
        # message whose answer was lost is never committed.
        answer = self._client.request(address, RequestCode.SEND_MESSAGE_V2, header, body)
        stored = answer.header(SendMessageResponseHeader)
        end = EndTransactionRequestHeader(
            topic=queue.topic,
            producer_group=self._group,
            tran_state_table_offset=stored.queue_offset,
            commit_log_offset=decode_offset_id(stored.msg_id)[2],
            commit_or_rollback=TRANSACTION_COMMIT_TYPE,
            from_transaction_check=True,
            msg_id="",
            bname=queue.broker_name,
        )
        self._client.request(address, RequestCode.END_TRANSACTION, end)

    def _find(self, batch: int) -> tuple[int, list[Halves]] | None:
        place = self._existing_queue()
        if place is None:
            return None
        queue, address = place
        decisions: dict[str, dict[int, Any]] = {}
        firsts: dict[str, int] = {}
        begin, end = self._bounds(queue, address, batch)
        for offset, document in self._documents(queue, address, begin, end):
            if document["batch"] < batch:
                continue
            if document["batch"] > batch:
                # Batches are decided in order: this one is done, and its decision is before the pointer.
                return offset, []
            parts = decisions.setdefault(document["token"], {})
            firsts.setdefault(document["token"], offset)
            parts.setdefault(document["part"], document["halves"])
            if len(parts) == document["parts"]:
                self._found_at = firsts[document["token"]]
                rows = [row for number in sorted(parts) for row in parts[number]]
                return self._found_at, [
                    Halves(topic, broker, [(offset, position) for offset, position in places], group)
                    for topic, broker, places, group in rows
                ]
        return None

    def _bounds(self, queue: MessageQueue, address: str, batch: int) -> tuple[int, int]:
        """The range to search. Anyone can commit an offset for the group, so it counts only if an earlier batch
        is decided there."""
        (end,) = self._client.max_offsets(address, [queue])
        (begin,) = self._client.min_offsets(address, [queue])
        (committed,) = self._client.group_offsets(address, self._group, [queue])
        pointer = int(committed or 0)
        low = max(0, int(begin))
        if low < pointer < end:
            found = next(self._documents(queue, address, pointer, pointer + 1), None)
            if found is not None and found[0] == pointer and found[1]["batch"] < batch:
                low = pointer
        return low, int(end)

    def _documents(
        self, queue: MessageQueue, address: str, position: int, end: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The documents of this identity between two offsets."""
        while position < end:
            header = pull_header(
                self._group,
                queue,
                position,
                max_messages=min(_READ_MESSAGES, end - position),
                expression=self._digest,
                bulk=True,
            )
            answer = self._client.request(address, RequestCode.PULL_MESSAGE, header, accept=PULL_ANSWERS)
            following = int(answer.header(PullMessageResponseHeader).next_begin_offset)
            if answer.code == ResponseCode.SUCCESS:
                for message in decode_records(answer.body, decompress=False):
                    document = self._document(message) if position <= message.queue_offset < end else None
                    if document is not None:
                        yield message.queue_offset, document
            elif following <= position:
                time.sleep(0.05)  # not visible yet
            position = max(position, following)

    def _document(self, message: MessageExt) -> dict[str, Any] | None:
        """None for messages that are not from this identity."""
        is_ours = (
            message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT_TYPE
            and message.properties.get(PRODUCER_GROUP) == self._group
        )
        if not is_ours:
            return None
        try:
            code, packed = message.body[:_CODE_BYTES], message.body[_CODE_BYTES:]
            if not hmac.compare_digest(code, self._code_of(packed)):
                return None
            document = json.loads(decompress(packed, ZLIB, _MAX_DECISION_BYTES))
            if _is_decision(document):
                return document  # type: ignore[no-any-return]
            why = "it is not a decision"
        except (InvalidMessage, ValueError, RecursionError) as error:
            why = str(error)
        log.error("offset %d of %s is skipped: %s", message.queue_offset, DECISIONS, why)
        return None

    def _place(self) -> tuple[MessageQueue, str]:
        """The single queue of the log, at the first broker by name that has it. Raises NoRoute."""
        route = self._client.route(DECISIONS)
        queue = min(route.subscribe_queues, default=None)
        address = route.master(queue.broker_name) if queue is not None else None
        if queue is None or address is None:
            raise NoRoute(DECISIONS, "the broker with the decision log has no address")
        return queue, address

    def _existing_queue(self) -> tuple[MessageQueue, str] | None:
        """None only if no log was ever made. Raises NoRoute when its broker stays away for ``retryTimeout``."""
        try:
            return self._place()
        except NoRoute:
            if not self._away():
                return None
        try:
            return self._client.bridged(self._place_if_made)
        except NoRoute as error:
            raise NoRoute(
                DECISIONS,
                "the broker with the decision log is away, so it is unknown whether the batch is decided; start that"
                " broker again, or create the topic if it was deleted on purpose",
            ) from error

    def _place_if_made(self) -> tuple[MessageQueue, str] | None:
        try:
            return self._place()
        except NoRoute:
            if self._note.find() is None:
                return None
            raise

    def _away(self) -> bool:
        """Whether the log was made but its broker is away, which is logged."""
        try:
            place = self._place()
        except NoRoute:
            noted = self._note.find()
            if noted is not None:
                what = (
                    "waiting for broker %s (retryTimeout): it has the decision log %s, and no name server knows where"
                    " it is. Without that log it is unknown whether a batch is decided"
                )
                _outages.failed(("log", noted), None, what, noted, DECISIONS)
            return noted is not None
        if place is not None:
            name = place[0].broker_name
            _outages.over(("log", name), "broker %s with the decision log is back", name)
        return False

    def _queue(self) -> tuple[MessageQueue, str]:
        """As ``_existing_queue``, but makes the log if none was ever made."""
        place = self._existing_queue() or self._made_queue()
        # Before the first decision is written. Not before the topic is made: a driver that died between the two
        # would leave a note of a log that does not exist.
        self._note.keep(place[0].broker_name, place[1])
        return place

    def _made_queue(self) -> tuple[MessageQueue, str]:
        deadline = time.monotonic() + _WAIT_S
        while True:
            self._make()
            time.sleep(0.1)
            try:
                return self._place()
            except NoRoute as error:
                if time.monotonic() > deadline:
                    raise NoRoute(DECISIONS, "the topic of the decision log cannot be made") from error

    def _make(self) -> None:
        route = self._client.publish_route(self._topic)
        first = min(route.publish_queues)
        address = route.master(first.broker_name)
        if address is None:
            return
        config = TopicConfig(topic_name=DECISIONS, read_queue_nums=1, write_queue_nums=1)
        header = config.creation()
        self._client.request(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def _is_decision(document: Any) -> bool:
    """Validate the content, because any client that guesses the identity can write it."""
    if not isinstance(document, dict):
        return False
    batch, part, parts = (document.get(name) for name in ("batch", "part", "parts"))
    token, rows = document.get("token"), document.get("halves")
    if not (isinstance(batch, int) and isinstance(part, int) and isinstance(parts, int)):
        return False
    return (
        0 <= part < parts <= _MAX_PARTS
        and isinstance(token, str)
        and isinstance(rows, list)
        and all(_is_row(row) for row in rows)
    )


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 4 or not isinstance(row[2], list):
        return False
    topic, broker, places, group = row
    return all(isinstance(text, str) for text in (topic, broker, group)) and all(
        isinstance(place, list)
        and len(place) == 2
        and all(type(number) is int and 0 <= number < 1 << 62 for number in place)
        for place in places
    )


def _parts(halves: Sequence[Halves]) -> Iterator[list[Any]]:
    """As JSON, split into pieces that fit into messages, in order."""
    part: list[Any] = []
    room = _PART_HALVES
    for each in halves:
        for first in range(0, len(each.places), _PART_HALVES):
            places = each.places[first : first + _PART_HALVES]
            if len(places) > room:
                yield part
                part, room = [], _PART_HALVES
            part.append([each.topic, each.broker, places, each.group])
            room -= len(places)
    yield part
