"""The schema registry as a part of its broker: requests, records, and the topic that is its only truth.

Every change is a record of ``SCHEMAS_TOPIC``. What is registered is made of the records that consumers may see, in
their order, by the same code at a start, on a master and on its slaves: it is as durable and as replicated as messages
are, and what a failover could take back is shown to nobody. One change is decided at a time, and only when all that is
stored has been read; so no id is given twice. A slave answers what only reads.

Must not know HTTP, and must not parse a schema in the broker's thread: that is ``compute``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import msgspec

from mqspark.auth.policies import Action, Kind
from mqspark.base.config import Limit
from mqspark.base.logs import sparing
from mqspark.base.propertystring import find_property
from mqspark.base.shares import NOBODY
from mqspark.broker.schemaregistry.parsedschemas import ParsedSchemas
from mqspark.broker.schemaregistry.schemaanswers import (
    Operating,
    RegistryOutcome,
    SchemaAnswers,
    Step,
    no_room,
    problem_answer,
)
from mqspark.broker.schemaregistry.schemacopy import SchemaCopy, later
from mqspark.broker.schemaregistry.schemaquestions import (
    RegistryAnswer,
    RegistryQuestion,
    SchemaProblem,
    read_question,
)
from mqspark.broker.schemaregistry.schemarecords import KeyedRecord, decode_record_of
from mqspark.broker.schemaregistry.subjects import VERSION_BYTES, Subjects
from mqspark.broker.service import READ_BYTES, READ_MESSAGES, TICK_MS, Told
from mqspark.broker.state.acks import Acks
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft
from mqspark.errors import (
    ConfigError,
    InvalidMessage,
    MessageTooLarge,
    NotNow,
    StoreCorrupt,
    StoreReadOnly,
    TableFull,
)
from mqspark.message import KEYS, SCHEMAS_TOPIC
from mqspark.protocol.codes import Reason, RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, failure, ok
from mqspark.protocol.headers.admin_headers import SchemaRequestHeader
from mqspark.protocol.schemaoperations import STATUS_FIELD, topic_of
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices, Work
from mqspark.record.record import parts_at
from mqspark.record.recordlayout import spans
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.savedtables import SavedTable
from mqspark.store.messages.fetch import GetStatus

_log = sparing(__name__)
_topic_of: Callable[[tuple[str, int, int]], str] = itemgetter(0)

Done = Callable[[Any, Exception | None], None]
Compute = Callable[[Callable[[], Any], Done], None]
"""Calls a function that needs nothing but time, elsewhere, and then in the broker's thread tells what it returned or
raised."""

MAX_CHANGES = 64
"""Changes that wait for the one before."""
MAX_COMPUTED = 64
"""Requests that read and need time."""
CHANGE_WAITS_MS = 30_000
READS_AT_ONCE = 8
_QUEUE = 0


@dataclass(slots=True)
class _Call:
    session: Session
    command: Command
    question: RegistryQuestion
    since_ms: int
    operating: Operating
    owner: str = NOBODY
    """The user to whom it belongs what the call adds."""

    @property
    def changes(self) -> bool:
        return self.command.code == RequestCode.CHANGE_SCHEMAS


class SchemaRegistry:
    """Handlers and background service (``mqspark.broker.service``). Without schemaRegistryEnable it refuses all."""

    def __init__(
        self, state: BrokerState, acks: Acks, copy_file: ConfigFile, compute: Compute | None = None
    ) -> None:
        """``copy_file``: of a broker that keeps no registry. ``compute``: None: in the broker's thread, after other
        work."""
        self._state = state
        self._acks = acks
        self._compute = compute or self._compute_here
        self.subjects = Subjects(Limit(state.config, "max_schema_table_bytes"))
        self._answers = SchemaAnswers(self.subjects, state.clock.monotonic_ms)
        self.copy = None if state.config.schema_registry_enable else SchemaCopy(state, self.subjects)
        """Where another broker keeps the registry."""
        self._saved_copy = None if self.copy is None else SavedTable(self.copy, copy_file)
        if self.copy is None:
            catch_up, check_missing = self._catch_up, _is_certain
        else:
            catch_up, check_missing = self.copy.check_known, self.copy.check_missing
        self.parsed = ParsedSchemas(
            self.subjects, self._answers.source, self._compute, catch_up, check_missing
        )
        """For checks of messages."""
        self.ledgers = (self.subjects.ledger, self.parsed.bounded)
        self._next_offset = 0
        """The queue offset of the next record to read."""
        self._is_begun = False
        self._changes: deque[_Call] = deque()
        self._changing: _Call | None = None
        self._owners: dict[int, str] = {}
        """Queue offset → the user of a record that is stored and not read yet: of one change."""
        self._computed = 0
        """Requests that read and are being computed."""
        self.handlers: dict[int, Handler] = {
            RequestCode.READ_SCHEMAS: self.read,
            RequestCode.CHANGE_SCHEMAS: self.change,
        }

    # --- service ---

    def load(self) -> None:
        """The records are read in the ticks that follow."""
        self._is_begun = True
        if self.copy is None or self._saved_copy is None:
            return
        try:
            self._saved_copy.load()
        except StoreCorrupt as error:
            self.copy.restart()
            self._saved_copy.loaded(None)
            _log.warning("the copy of the schema registry is read again: %s", error)

    def saved_tables(self) -> Sequence[SavedTable]:
        return () if self._saved_copy is None else (self._saved_copy,)

    @property
    def told(self) -> Sequence[Told]:
        return (((SCHEMAS_TOPIC,), self._arrived),)

    def _arrived(self, arrivals: Sequence[tuple[str, int, int]]) -> None:
        if SCHEMAS_TOPIC in map(_topic_of, arrivals):
            self._go_on()

    def tick(self) -> int:
        oldest_ms = self._now_ms() - CHANGE_WAITS_MS
        while self._changes and self._changes[0].since_ms < oldest_ms:
            call = self._changes.popleft()
            self._fail(
                call, Refusal(ResponseCode.SYSTEM_BUSY, "the change before did not end in time; retry later")
            )
        return TICK_MS if self._go_on() else 0

    def _go_on(self) -> bool:
        """Read what is new, and decide the next changes. False: there is more to read."""
        try:
            if not self._follow():
                return False
        except NotNow as error:
            _log.error("the records of the schema registry: %s", error)
            return True
        self._decide()
        return True

    # --- records ---

    def _follow(self) -> bool:
        """Apply the records that consumers may see. False when there are more. Raises NotNow."""
        reads = self._state.store.reads
        for _ in range(READS_AT_ONCE):
            found = reads.get(SCHEMAS_TOPIC, _QUEUE, self._next_offset, READ_MESSAGES, READ_BYTES)
            if found.status is GetStatus.FOUND:
                for buffer in found.buffers:
                    for begin, end in spans(buffer):
                        self._take(buffer, begin, end)
            elif found.next_offset == self._next_offset or found.max_offset == 0:
                return True
            elif found.next_offset < self._next_offset:  # the log was taken back
                self.subjects.clear()
                self._owners.clear()
                self._next_offset = 0
                continue
            self._next_offset = found.next_offset
        return False

    def _catch_up(self) -> None:
        """Raises Refusal until the records have been read."""
        if not self._follow():
            raise self._not_read_yet()

    def _take(self, buffer: memoryview, begin: int, end: int) -> None:
        parts = parts_at(buffer, begin, end)
        if parts is None:
            return
        key = find_property(parts.properties, KEYS.encode()) or b""
        try:
            record = decode_record_of(key.decode("utf-8", "replace"), parts.body)
            self.subjects.apply(record, self._owners.pop(parts.queue_offset, NOBODY))
        except InvalidMessage as error:
            _log.error("offset %d of %s: %s", parts.queue_offset, SCHEMAS_TOPIC, error)

    @property
    def _knows_all(self) -> bool:
        """Whether all that is stored has been applied, shown to consumers or not."""
        bounds = self._state.store.offsets.stored_bounds(SCHEMAS_TOPIC, _QUEUE)
        return bounds is None or self._next_offset >= bounds[1]

    def _put(self, records: Sequence[KeyedRecord], owner: str) -> int:
        """The position of the log behind them. Raises what ``Writer.put`` raises."""
        state = self._state
        end = 0
        for record in records:
            draft = Draft(
                SCHEMAS_TOPIC,
                _QUEUE,
                record.body,
                {KEYS: record.key.encode()},
                state.clock.now_ms(),
                state.store.store_host,
            )
            stored = state.writer.put(draft)
            end = stored.end_offset
            if owner:
                self._owners[stored.queue_offset] = owner
        return end

    # --- requests ---

    def read(self, session: Session, command: Command) -> Slices:
        call = self._begin(session, command)
        if isinstance(call, bytes):
            return call
        self._catch_up()
        try:
            step = next(call.operating)
            while step is None:
                yield
                step = next(call.operating)
        except StopIteration as end:
            outcome: RegistryOutcome = end.value
            return _frame(command, outcome.answer)
        except SchemaProblem as problem:
            return _frame(command, problem_answer(problem))
        if self._computed >= MAX_COMPUTED:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY, f"[OVERLOAD] {MAX_COMPUTED} schemas are being parsed; retry later"
            )
        self._computed += 1
        self._step(call, step)
        return None

    def change(self, session: Session, command: Command) -> bytes | None:
        call = self._begin(session, command)
        if isinstance(call, bytes):
            return call
        if call.question.fields:
            size_bytes = VERSION_BYTES + len(command.body)
            try:
                call.owner = self.subjects.ledger.shares.admit(session, size_bytes)
            except TableFull as error:
                return _frame(command, problem_answer(no_room(error)))
        if len(self._changes) >= MAX_CHANGES:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY, f"[OVERLOAD] {MAX_CHANGES} changes wait already; retry later"
            )
        self._changes.append(call)
        self._go_on()
        return None

    def _begin(self, session: Session, command: Command) -> _Call | bytes:
        """The call, or the answer to a question that is none. Raises Refusal."""
        config = self._state.config
        if not config.schema_registry_enable:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"broker {config.broker_name} keeps no schema registry (schemaRegistryEnable=false)",
                reason=Reason.FEATURE_OFF,
            )
        if not self._is_begun:
            raise self._not_read_yet()
        permits = self._state.permits

        def may_read(subject: str) -> bool:
            return permits(session, Kind.TOPIC, topic_of(subject), Action.GET, Action.SUB, Action.PUB)

        header = command.header(SchemaRequestHeader)
        try:
            question = read_question(header, command.body, command.code, may_read)
        except SchemaProblem as problem:
            return _frame(command, problem_answer(problem))
        return _Call(session, command, question, self._now_ms(), self._answers.begin(question))

    def _not_read_yet(self) -> Refusal:
        return later("the records of the schema registry are being read")

    def _decide(self) -> None:
        """Begin the next change, if the one before is stored and read."""
        while self._changes and self._changing is None and self._knows_all:
            call = self._changes.popleft()
            if call.session.open:
                self._changing = call
                self._resume(call, None, None)

    # --- operations ---

    def _step(self, call: _Call, step: Step) -> None:
        """Compute the step of an operation, and go on with it."""
        while step is None:
            step = next(call.operating)

        def done(result: Any, error: Exception | None) -> None:
            self._resume(call, result, error)

        self._compute(step, done)

    def _resume(self, call: _Call, result: Any, error: Exception | None) -> None:
        operating = call.operating
        try:
            try:
                step = operating.send(result) if error is None else operating.throw(error)
                self._step(call, step)
                return
            except StopIteration as end:
                outcome: RegistryOutcome = end.value
            self._finish(call, outcome)
        except SchemaProblem as problem:
            call.session.send(_frame(call.command, problem_answer(problem)))
        except ConfigError as missing:
            answer = problem_answer(SchemaProblem(501, 50005, str(missing)))
            call.session.send(_frame(call.command, answer))
        except Exception as failed:
            self._fail(call, failed)
        if not call.changes:
            self._computed -= 1
        elif self._changing is call:
            self._changing = None
            self._go_on()

    def _finish(self, call: _Call, outcome: RegistryOutcome) -> None:
        """Answers when the records are as safe as a message."""
        frame = _frame(call.command, outcome.answer)
        if not outcome.records:
            call.session.send(frame)
            return
        try:
            end = self._put(outcome.records, call.owner)
        except (NotNow, StoreReadOnly, MessageTooLarge, InvalidMessage) as error:
            raise Refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the change cannot be stored: {error}"
            ) from None
        self._acks.other(call.command.code)
        self._acks.waiting.append((end, call.session, frame))

    def _fail(self, call: _Call, error: Exception) -> None:
        call.session.send(failure(call.session, call.command, error))

    def _compute_here(self, work: Callable[[], Any], done: Done) -> None:
        def run() -> Work[None]:
            yield
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self._state.long_work.begin(None, run())

    def _now_ms(self) -> int:
        return self._state.clock.monotonic_ms()


def _is_certain(subject: str, schema_id: int) -> None:
    """What is not in the own records is not there."""


def _frame(command: Command, answer: RegistryAnswer) -> bytes:
    document = answer.document
    body = document if isinstance(document, bytes) else msgspec.json.encode(document)
    return ok(command, {STATUS_FIELD: str(answer.status)}, body)
