"""Transactional messages in a broker (TransactionalMessageServiceImpl, EndTransactionProcessor,
TransactionalMessageCheckService): END_TRANSACTION, op messages, checks.

What differs from RocketMQ, and why:

- A transaction is decided once. A second END_TRANSACTION, or one for a copy that a check has replaced, changes
  nothing; RocketMQ would deliver the message again.
- A decision counts at once, not when the op message is written some seconds later, so decided transactions are
  never checked. After a crash, commits without an op message are found where they were stored.
- A half message may hold a whole batch (``halfbatches``). While it is open it stays in place, and checks continue
  behind it.
- A check is sent when the copy it names is acked, and the offsets that are saved cover only what is on the disk.

Facts: docs/rocketmq/later.md#transactions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import NamedTuple

from mqspark.auth.policies import Action, Kind
from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.clock import NEVER_MS
from mqspark.base.logs import sparing
from mqspark.broker.service import READ_BYTES, Told
from mqspark.broker.state.acks import Acks
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft, StoredPosition
from mqspark.broker.transaction.halfbatches import Item, check_batch, commit_batch
from mqspark.broker.transaction.halfmessages import (
    Decisions,
    Half,
    HalfDecision,
    Identity,
    Rules,
    judge,
    op_body,
)
from mqspark.broker.transaction.openhalves import recover
from mqspark.errors import InvalidMessage, MessageTooLarge, NotNow, StoreReadOnly
from mqspark.extensions import OpenTransaction, TransactionDecision, TransactionListener
from mqspark.message import (
    TAGS,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_GROUP,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    WAIT,
    decode_offset_id,
    encode_offset_id,
    encode_stored_properties,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.extending import Loaded
from mqspark.protocol.headers.client_headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from mqspark.protocol.session import Session
from mqspark.record.record import Parts, encode_record, take_apart
from mqspark.store.disk.savedtables import SavedTable

_log = sparing(__name__, lines=5)

OP_TAG = "d"
SLICE_MESSAGES = 16
"""Undecided half messages examined in one tick: about a millisecond, if all are stored again."""
TRANSACTION_SLICE_BYTES = 1 << 19
"""Bytes of copies made in one tick; the last one may exceed it."""
MAX_COPIES = 200_000
"""Transactions whose current copy is remembered under the identity of the first. Beyond this, the oldest is
dropped: an END_TRANSACTION for its first copy then changes nothing, and the next check decides."""
_COPY_BYTES = 200
MAX_COPIES_BYTES = 128 << 20
MAX_ABSENT = 1_000
"""Producer groups that one round logs as having no live member."""
UNWRITTEN_BYTES = 64 << 20
"""Bytes of the log that one turn may append by commits of batches, because a small request can commit a whole
message's worth."""
BATCH_KEEP_BYTES = 128 << 20
"""An open batch is stored again when the log has grown by this much. That limits what a start has to read, and a
batch abandoned by a killed query costs its own size once per this much log."""
_STORE_ERRORS = (StoreReadOnly, NotNow)
_PUT_ERRORS = (*_STORE_ERRORS, MessageTooLarge, InvalidMessage)
ACK_WAIT_MS = 5
"""Pause between two checks whether the copies of a slice are acked."""


class _CheckRequest(NamedTuple):
    """A check request that is sent when its copy is acked."""

    group: str
    topic: str
    offset: int
    header: CheckTransactionStateRequestHeader
    body: bytes


class TransactionService:
    """Handlers and background service (``mqspark.broker.service``). Half messages come from
    ``mqspark.broker.send.send``."""

    def __init__(self, state: BrokerState, acks: Acks, store_host: bytes) -> None:
        self._state = state
        self._store = state.store
        self._acks = acks
        self._store_host = store_host
        self.decisions = Decisions(0, 0)
        self.ledger = Ledger("transactionCopies", MAX_COPIES_BYTES)
        self._copies: BoundedMap[Identity, int] = self.ledger.map(_COPY_BYTES)
        """The current copy of each open transaction that was stored again."""
        self._unwritten: deque[int] = deque()
        """Decided half messages that no op message names yet."""
        self._unwritten_chars = 0
        self._checks: deque[_CheckRequest] = deque()
        self._round_end: int | None = None
        """The end of the half queue at the start of the present round of checks."""
        self._round_next = 0
        """Where the round continues. Everything before is decided or was kept in place."""
        self._first_kept: int | None = None
        self._rests: list[tuple[Half, list[Item]]] = []
        """Commits of batches that a crash left incomplete, and the missing messages."""
        self._unsaved: deque[tuple[int, int, int]] = deque()
        """(log position that must be on disk first, half offset, op offset)."""
        self._saved = (0, 0)
        self.listeners: Sequence[Loaded[TransactionListener]] = ()
        self._turn = 0
        self._absent: set[str] = set()
        """Producer groups without a live member in this round."""
        self._problem: str | None = None
        now_ms = state.clock.monotonic_ms()
        self._last_round_ms = self._last_ops_ms = now_ms
        self.handlers: dict[int, Handler] = {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume_check,
        }

    # --- requests ---

    def end(self, session: Session, command: Command) -> bytes | None:
        """END_TRANSACTION: the producer has decided, or does not know yet."""
        header = command.header(EndTransactionRequestHeader)
        decision = header.commit_or_rollback
        if decision not in (0, TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"commitOrRollback={decision} is neither 0, 8 nor 12")
        if decision == 0:
            return None  # unknown: RocketMQ does not answer either; a check will ask
        if not command.is_oneway:
            self._acks.check_busy(self._state.config.send_thread_pool_queue_capacity)
        half = self._half_at(header.commit_log_offset)
        if half is not None and half.is_batch:
            half = self._batch_to_end(half)
        if half is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        config = self._state.config
        if not header.from_transaction_check and half.is_late(
            self._state.clock.now_ms(), config.transaction_time_out
        ):
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                "the time of CHECK_IMMUNITY_TIME_IN_SECONDS is over; the answer to the next check decides",
            )
        if half.group != header.producer_group:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.offset != header.tran_state_table_offset:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        current = self._current(half)
        if current is None:
            return ok(command)
        if decision == TRANSACTION_ROLLBACK_TYPE:
            self._end(half, current, is_committed=False)
            return ok(command)
        stored = self._commit_batch(half, current) if half.is_batch else self._commit(half, session)
        self._end(half, current, is_committed=True)
        if not command.is_oneway:
            self._acks.other(command.code)
            self._acks.waiting.append((stored.end_offset, session, ok(command)))
        return None

    def resume_check(self, session: Session, command: Command) -> bytes:
        """Check a transaction again that was given up: its message is stored again and its check count restarts.

        One that is open is checked anyway. RocketMQ stores one more copy of it, and of one that is decided, whose
        message can then be delivered twice.
        """
        header = command.header(ResumeCheckHalfMessageRequestHeader)
        try:
            _, _, position = decode_offset_id(header.msg_id or "")
        except InvalidMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = self._store.reads.record_at(position)
        parts = take_apart(record) if record is not None else None
        if parts is None or parts.topic not in (TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC):
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"{header.msg_id} is not the offset id of a message in {TRANS_CHECK_MAX_TIME_TOPIC}",
            )
        half = Half(parts)
        is_given_up = parts.topic == TRANS_CHECK_MAX_TIME_TOPIC
        if half.identity in self._copies if is_given_up else self._current(half) is not None:
            return ok(command, remark=f"the message is in {TRANS_HALF_TOPIC} already")
        if not is_given_up:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"{header.msg_id} is a message that is decided or given up"
            )
        try:
            stored = self._put_copy(parts, TRANS_HALF_TOPIC, half.resumed_properties())
        except _STORE_ERRORS as error:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from None
        self._remember(half.identity, stored.queue_offset)
        return ok(command, remark="Put message back to RMQ_SYS_TRANS_HALF_TOPIC success.")

    def _remember(self, identity: Identity, offset: int) -> None:
        """Remember the current copy."""
        copies, held = self._copies, self.ledger
        copies.pop(identity, None)
        copies.keep(identity, offset)
        while len(copies) > MAX_COPIES or (held.bytes > held.bound and len(copies) > 1):
            copies.popitem()

    def _half_at(self, position: int) -> Half | None:
        record = self._store.reads.record_at(position)
        if record is None:
            return None
        parts = take_apart(record)
        if parts.topic != TRANS_HALF_TOPIC or parts.queue_id != 0:
            return None
        return Half(parts)

    def _current(self, half: Half) -> int | None:
        """The current copy of an open transaction; None if it is decided or given up."""
        if not self.decisions.is_decided(half.offset):
            return half.offset
        current = self._copies.get(half.identity)
        return None if current is None or self.decisions.is_decided(current) else current

    def _commit(self, half: Half, session: Session) -> StoredPosition:
        draft = half.committed()
        if draft is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "the half message names no real topic and queue")
        draft.session = session  # a delay begins now
        return self._stored(lambda: self._state.writer.put(draft))

    @staticmethod
    def _stored(put: Callable[[], StoredPosition]) -> StoredPosition:
        """The result of a commit, or its refusal."""
        try:
            return put()
        except (InvalidMessage, MessageTooLarge) as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        except _STORE_ERRORS as error:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from None

    def _end(self, half: Half, current: int, *, is_committed: bool) -> None:
        """A decision was carried out: a commit is stored. ``current``: the copy that counts."""
        self._decide(half.identity, current)
        events = self._state.stats.events(half.real_topic)
        if is_committed:
            events.committed((self._state.clock.now_ms() - half.parts.born_timestamp_ms) // 1000)
        else:
            events.rolled_back()
        for each in self.listeners:
            each.tell(each.hooks.on_end, _shown(half), is_committed)

    # --- listeners ---

    def _ask_listeners(self, half: Half) -> bool | TransactionDecision:
        """The first decision; otherwise whether a producer is to be asked."""
        answers = [each.tell(each.hooks.on_check, _shown(half)) for each in self.listeners]
        decisions = (answer for answer in answers if isinstance(answer, TransactionDecision))
        return next(decisions, all(answer is not False for answer in answers))

    def _is_ended(self, half: Half, decision: TransactionDecision) -> bool:
        """Carry out what a listener has decided. Returns False for a message that cannot be stored where it should go.
        Raises StoreReadOnly, NotNow."""
        if decision is TransactionDecision.COMMIT:
            draft = half.committed()
            try:
                if draft is None:
                    raise InvalidMessage("it names no real topic and queue", field="properties")
                self._state.writer.put(draft)
            except (InvalidMessage, MessageTooLarge, Refusal) as error:
                _log.error("transaction %s cannot be committed as a listener says: %s", half.unique_id, error)
                return False
        self._end(half, half.offset, is_committed=decision is TransactionDecision.COMMIT)
        return True

    # --- batches ---

    def check_draft(self, draft: Draft) -> None:
        """A diversion that refuses half messages which could not be committed."""
        if draft.topic != TRANS_HALF_TOPIC:
            return
        try:
            check_batch(draft)
        except InvalidMessage as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None

    @property
    def _reserved_ms(self) -> int:
        """The age at which half messages are given up: none while the clock cannot tell it."""
        if not self._store.upkeep.wall_time.is_trusted:
            return NEVER_MS
        return self._state.store_config.file_reserved_time * 3_600_000

    def _batch_to_end(self, half: Half) -> Half:
        """Refused if the batch may have been given up, because its END_TRANSACTION would then change nothing."""
        hours, now_ms = self._state.store_config.file_reserved_time, self._state.clock.now_ms()
        if half.is_older(now_ms, self._reserved_ms) or half.is_unborn(now_ms, self._reserved_ms):
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"the batch is more than {hours} hours (fileReservedTime) from now and may have been given up",
            )
        if self._store.log.unwritten_bytes > UNWRITTEN_BYTES:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY, "[OVERLOAD] too much data waits to be written; retry later"
            )
        try:
            self._complete_commits()
        except _STORE_ERRORS as error:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from None
        return half

    def _commit_batch(self, half: Half, current: int) -> StoredPosition:
        """``current`` is the copy that a start would find; the members carry its offset."""
        if current != half.offset:
            result = self._store.reads.get(TRANS_HALF_TOPIC, 0, current, 1, READ_BYTES)
            if not result.buffers:
                raise Refusal(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
            half = Half(take_apart(result.buffers[0]))
        return self._stored(lambda: commit_batch(self._state, half))

    def _complete_commits(self) -> None:
        """Complete commits that were stored in part before a crash."""
        while self._rests:
            half, items = self._rests[0]
            commit_batch(self._state, half, items)
            self._decide(half.identity, half.offset)
            del self._rests[0]

    def _decide(self, identity: Identity, offset: int) -> None:
        self.decisions.decide(offset)
        self._copies.pop(identity, None)
        self._state.halves.ended(identity)
        self._unwritten.append(offset)
        self._unwritten_chars += len(str(offset)) + 1
        if self._unwritten_chars >= self._state.config.transaction_op_msg_max_size:
            self._write_ops()

    # --- op messages ---

    def _write_ops(self) -> None:
        """Writes all of them, so that no decision is older than the op messages behind it."""
        config = self._state.config
        while self._unwritten:
            body, taken = op_body(self._unwritten, config.transaction_op_msg_max_size)
            draft = Draft(
                TRANS_OP_HALF_TOPIC,
                0,
                body,
                {TAGS: OP_TAG, WAIT: "true"},
                self._state.clock.now_ms(),
                self._store_host,
            )
            try:
                stored = self._state.writer.put(draft)
            except _PUT_ERRORS as error:
                self._report(f"op messages cannot be stored: {error}")
                return
            for _ in taken:
                self._unwritten.popleft()
            self._unwritten_chars -= len(body)
            self._problem = None
            self.decisions.note_op(stored.queue_offset, taken)

    # --- service ---

    def load(self) -> None:
        recovered = recover(self._state)
        self.decisions = recovered.decisions
        for identity, offset in recovered.copies.items():
            self._remember(identity, offset)
        self._rests = recovered.rests
        self._saved = recovered.decisions.base, recovered.decisions.op_base
        for offset in recovered.unwritten:
            self._unwritten.append(offset)
            self._unwritten_chars += len(str(offset)) + 1

    def tick(self) -> int:
        clock, config = self._state.clock, self._state.config
        now_ms = clock.monotonic_ms()
        if now_ms >= self._last_ops_ms + config.transaction_op_batch_interval:
            self._last_ops_ms = now_ms
            try:
                self._complete_commits()
            except _STORE_ERRORS as error:
                self._report(f"a batch that was committed in part cannot be completed: {error}")
            self._write_ops()
        if self._round_end is None and now_ms >= self._last_round_ms + config.transaction_check_interval:
            self._round_end = self._store.offsets.max_offset(TRANS_HALF_TOPIC, 0)
            self._round_next, self._first_kept = self.decisions.base, None
            self._absent.clear()
        if self._store.condition.read_only is not None:
            self._checks.clear()  # their copies will never be acked
        if self._round_end is not None and not self._checks:
            self._round_end = self._check_some(self._round_end)
            if self._round_end is None:
                self._last_round_ms = now_ms
        self._save_offsets()
        if self._round_end is not None:
            return ACK_WAIT_MS if self._checks else 0
        return min(
            self._last_ops_ms + config.transaction_op_batch_interval - now_ms,
            self._last_round_ms + config.transaction_check_interval - now_ms,
        )

    @property
    def told(self) -> Sequence[Told]:
        return ((self._checks, self._arrived),)

    def _arrived(self, arrivals: Sequence[tuple[str, int, int]]) -> None:
        for topic, queue_id, end in arrivals:
            if topic == TRANS_HALF_TOPIC and queue_id == 0:
                while self._checks and self._checks[0].offset < end:
                    self._send(self._checks.popleft())

    def saved_tables(self) -> Sequence[SavedTable]:
        return ()

    @property
    def open_count(self) -> int:
        """Undecided half messages that are acked."""
        decisions = self.decisions
        return max(
            0, self._store.offsets.max_offset(TRANS_HALF_TOPIC, 0) - decisions.base - decisions.decided_count
        )

    def stop(self) -> None:
        """Called before the store is closed."""
        self._write_ops()

    # --- checks ---

    def _check_some(self, round_end: int) -> int | None:
        """One slice of the round. Returns where to continue; None at the end of the round: everything was
        examined, or a message is too young or cannot be stored again."""
        config, decisions, store = self._state.config, self.decisions, self._store
        rules = Rules(
            config.transaction_time_out,
            config.transaction_check_max,
            self._reserved_ms,
            store.log.position - BATCH_KEEP_BYTES,
        )
        now_ms = self._state.clock.now_ms()
        full_position = store.log.position + TRANSACTION_SLICE_BYTES
        offset = self._round_next
        for _ in range(SLICE_MESSAGES):
            offset = min(decisions.next_open(offset), round_end)
            if offset == round_end or store.log.position >= full_position:
                break
            result = store.reads.get(TRANS_HALF_TOPIC, 0, offset, 1, READ_BYTES)
            if result.buffers:
                half = Half(take_apart(result.buffers[0]))
                offset = half.offset
                if offset >= round_end or decisions.is_decided(offset):
                    continue
                verdict = judge(half, now_ms, rules)
                if verdict is HalfDecision.KEEP:
                    if self._first_kept is None:
                        self._first_kept = offset
                    offset += 1
                    continue
                try:
                    is_done = self._apply(half, verdict)
                except _PUT_ERRORS as error:
                    self._report(f"transactions cannot be checked: {error}")
                    is_done = False
                if not is_done:
                    round_end = offset
                    break
                if self._first_kept is not None:
                    # The round cannot pass it, but its new copy counts.
                    if verdict is HalfDecision.GIVE_UP:
                        self._decide(half.identity, offset)
                    decisions.decide(offset)
                offset += 1
            elif result.next_offset > offset:
                offset = result.next_offset  # deleted, or lost
            else:
                round_end = offset
        self._round_next = offset
        decisions.pass_to(offset if self._first_kept is None else self._first_kept)
        self._unsaved.append((store.log.position, decisions.base, decisions.op_base))
        return round_end if offset < round_end else None

    def _apply(self, half: Half, verdict: HalfDecision) -> bool:
        """Returns whether the message is finished at its place."""
        if verdict is HalfDecision.WAIT:
            return False
        if verdict is HalfDecision.GIVE_UP:
            self._give_up(half)
            return True
        is_check = verdict is HalfDecision.CHECK
        should_ask = self._ask_listeners(half) if is_check else False
        if isinstance(should_ask, TransactionDecision):
            if self._is_ended(half, should_ask):
                return True
            should_ask = True
        properties = half.checked_properties() if is_check else half.immune_properties()
        try:
            stored = self._put_copy(half.parts, TRANS_HALF_TOPIC, properties)
        except (MessageTooLarge, InvalidMessage) as error:
            _log.error("transaction %s cannot be checked: %s", half.unique_id, error)
            self._give_up(half)
            return True
        self._remember(half.identity, stored.queue_offset)
        if should_ask:
            self._prepare_check(half, properties, stored)
        return True

    def _give_up(self, half: Half) -> None:
        """Move the message to the topic for unresolved transactions."""
        topic = self._state.topics.ensure(TRANS_CHECK_MAX_TIME_TOPIC, 1, needed=True)
        self._put_copy(half.parts, topic.name, half.properties)
        self._copies.pop(half.identity, None)
        self._state.halves.ended(half.identity)
        self._state.stats.events(half.real_topic).given_up()
        for each in self.listeners:
            each.tell(each.hooks.on_discard, _shown(half))
        _log.warning(
            "transaction %s of group %s was never decided; its message is in %s now",
            half.unique_id,
            half.group,
            topic.name,
        )

    def _put_copy(self, parts: Parts, topic: str, properties: dict[str, str]) -> StoredPosition:
        encoded = encode_stored_properties(properties)
        return self._state.writer.relay(parts, topic, 0, encoded, "transaction")

    def _prepare_check(self, half: Half, properties: dict[str, str], stored: StoredPosition) -> None:
        target = half.real_queue
        if target is None or half.group is None:
            _log.error("half message %d has no group or no real topic: nobody can be asked", half.offset)
            return
        parts = half.parts
        header = CheckTransactionStateRequestHeader(
            topic=TRANS_HALF_TOPIC,
            tran_state_table_offset=stored.queue_offset,
            commit_log_offset=stored.physical_offset,
            msg_id=half.unique_id,
            transaction_id=half.unique_id,
            offset_msg_id=encode_offset_id(self._store_host, stored.physical_offset),
            bname=self._state.config.broker_name,
        )
        body = encode_record(
            topic=target[0],
            body=bytes(parts.body),
            properties=encode_stored_properties(properties),
            queue_id=target[1],
            queue_offset=stored.queue_offset,
            physical_offset=stored.physical_offset,
            flag=parts.flag,
            sys_flag=parts.sys_flag,
            born_timestamp_ms=parts.born_timestamp_ms,
            born_host=parts.born_host,
            store_timestamp_ms=parts.store_timestamp_ms,
            store_host=self._store_host,
            reconsume_times=parts.reconsume_times,
            prepared_transaction_offset=parts.prepared_offset,
        )
        self._checks.append(_CheckRequest(half.group, target[0], stored.queue_offset, header, body))

    def _send(self, check: _CheckRequest) -> None:
        """Send the check to one live producer of the group, in turn."""
        permits, topic = self._state.permits, check.topic
        members = [
            member
            for member in self._state.clients.producer_members(check.group)
            if member.session.open and permits(member.session, Kind.TOPIC, topic, Action.PUB)
        ]
        if not members:
            if check.group not in self._absent and len(self._absent) < MAX_ABSENT:
                self._absent.add(check.group)
                _log.warning("producer group %s has no live member to check transactions with", check.group)
            return
        self._turn += 1
        session = members[self._turn % len(members)].session
        session.send(
            encode_request(
                RequestCode.CHECK_TRANSACTION_STATE,
                session.next_opaque(),
                check.header,
                check.body,
                oneway=True,
            )
        )

    def _save_offsets(self) -> None:
        """Save the group's offsets, limited to what was stored again and is on disk."""
        due: tuple[int, int] | None = None
        durable = self._store.log.durable
        while self._unsaved and self._unsaved[0][0] <= durable:
            _, half, op = self._unsaved.popleft()
            due = half, op
        if due is None:
            return
        topics = (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)
        for topic, offset, before in zip(topics, due, self._saved, strict=True):
            if offset != before:
                self._state.offsets.commit(TRANS_GROUP, topic, 0, offset, is_brokers=True)
        self._saved = due

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.error("%s", problem)


def _shown(half: Half) -> OpenTransaction:
    """The half message as listeners see it."""
    return OpenTransaction(
        half.real_topic,
        half.group or "",
        half.unique_id,
        MappingProxyType(half.properties),
        bytes(half.parts.body),
        half.parts.born_timestamp_ms,
        half.check_count,
    )
