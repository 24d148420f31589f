"""A slave's copies of its master's tables (SlaveSynchronize). Answers of the master in, requests out.

    topics, groups, request modes,      taken over at once
    users and policies
    consumer offsets, delay levels,     taken over once the log here has reached the place where the master's log ended
    timer messages, ends of queues      when they were read

So a slave that becomes a master never counts messages as consumed or delivered that it does not have. (RocketMQ's
slave takes over everything at once, and may lose delayed messages so.)

A queue of which the master's log has no message left begins here where it ends there: else a slave that becomes a
master would assign its offsets again. (RocketMQ's does.)

What grows with the tables is done in slices: while the slave takes over, it copies the log, too, and the master's
producers may wait for that. Must not know connections.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mqspark.base.logs import sparing
from mqspark.broker.pop.assignment import RequestModes
from mqspark.broker.replication.acting import ActingMaster
from mqspark.broker.replication.tablenotices import FOLLOWS
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.offset_row import Rows, offsets_in_slices
from mqspark.broker.tables.topics import Topics
from mqspark.broker.timer.delays import DelayService
from mqspark.broker.timer.timerservice import TimerService
from mqspark.errors import InvalidMessage, MQError, ProtocolError, StoreError
from mqspark.message import parse_number
from mqspark.protocol.bodies.admin_bodies import DelayOffsetSerializeWrapper, TopicStatsTable
from mqspark.protocol.bodies.body import decode_table, encode_body, queue_of
from mqspark.protocol.bodies.client_bodies import MessageRequestModeSerializeWrapper
from mqspark.protocol.bodies.longtables import PART_BYTES, copied, parts_of_table, read_parts
from mqspark.protocol.bodies.topic_bodies import (
    MAX_QUEUES,
    DataVersion,
    KVTable,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicQueueMappingDetail,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.slices import Work
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID, is_lmq
from mqspark.store.store import MessageStore

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.usercopy import UserCopy

log = sparing(__name__, lines=20)

PAGE_ROWS = 500
LOOKED_AT_ONCE = 512
"""Topics whose queues are looked at in one slice."""
ENDS_AT_ONCE = 2_000
"""Topics that a master is asked for in one round."""
MAX_END = 1 << 48
"""No queue has so many messages."""
MAX_PAGES = 4_000
"""Pages of a table that changes again and again while it is read; the next round starts again from its beginning."""

FRESH_MS = 6_000
"""Tables that were read longer ago are not fresh. Rounds are half of that apart."""

BATCH_QUEUE = ("queue.type", "BatchCQ")

R = TypeVar("R")


class Request(NamedTuple):
    code: int
    ext: dict[str, str]
    body: bytes = b""


class _Topics(NamedTuple):
    version: DataVersion
    table: dict[str, TopicConfig]
    mapping_version: DataVersion
    mappings: dict[str, TopicQueueMappingDetail]


Round = Generator[Request, Command, R]
TableRound = Generator[Request | None, Command, R]
"""None: others are served before it goes on, whatever it is sent."""


def _max_offset(answer: Command) -> int:
    """From an answer to GET_MAX_OFFSET; 0 for a queue that is unknown there. Raises ProtocolError."""
    end = parse_number(answer.ext.get("offset")) if answer.code == ResponseCode.SUCCESS else 0
    if end is None:
        raise ProtocolError("the master's answer to GET_MAX_OFFSET has no offset")
    return end


def log_bounds(answer: Command) -> tuple[int, int]:
    """Where the log of a broker begins and ends, from its answer to GET_BROKER_RUNTIME_INFO. Raises ProtocolError."""
    table = decode_table(KVTable, _success(answer)).table
    try:
        return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the master does not say where its log is: {error}") from None


def _success(answer: Command) -> bytes | memoryview:
    if answer.code != ResponseCode.SUCCESS:
        raise ProtocolError(f"the master answers {answer.code}: {(answer.remark or '')[:200]}")
    return answer.body


def _check_role(answer: Command) -> None:
    """A master that lost its disk comes back as a slave without topics, at the same address. Raises ProtocolError."""
    if b"brokerRole=SLAVE" in bytes(_success(answer)).splitlines():
        raise ProtocolError("the broker at the master's address is a slave: its tables are not copied")


def _queue_ends(body: bytes | memoryview) -> TableRound[dict[int, int]]:
    """Where the queues end, by queue id, from the body of an answer to GET_TOPIC_STATS_INFO. Raises ProtocolError."""
    ends: dict[int, int] = {}

    def read(part: bytes) -> None:
        table = decode_table(TopicStatsTable, part).offset_table
        ends.update((queue_of(key).queue_id, bounds.max_offset) for key, bounds in table.items())

    text = yield from copied(body)
    if len(text) > PART_BYTES:
        text = yield from read_parts(parts_of_table(text, "offsetTable"), read)
    read(text)
    return ends


def adopt_queues(topics: Topics, store: MessageStore, known_at: int) -> None:
    """Give a new master the topics, and more queues, of records that its slave's half got faster than the old master's
    table of topics: what is acknowledged must be readable. ``known_at``: ``Metadata.topics_known_at``."""
    for name, queue_ids in sorted(store.offsets.queues_since(known_at).items()):
        count, topic = max(queue_ids) + 1, topics.get(name)
        if topics.is_system(name) or count > MAX_QUEUES:
            continue
        if topic is not None and topic.read_queue_nums >= count:
            continue
        with contextlib.suppress(InvalidMessage):  # a name that no topic of a broker has
            topics.adopt(name, count)
            log.warning("topic %s has messages in %d queues, which the old master made last", name, count)


class Metadata:
    """The tables of one slave. ``read`` and ``apply`` alternate."""

    def __init__(
        self,
        state: BrokerState,
        modes: RequestModes,
        delays: DelayService,
        timers: TimerService,
        users: UserCopy | None = None,
    ) -> None:
        """``users``: None where nobody logs in."""
        self._state = state
        self._users = users
        self._modes = modes
        self._delays = delays
        self._timers = timers
        self._due: list[Callable[[], Work[None] | None]] = []
        self._due_at = 0
        """The position of the log here at which ``_due`` applies."""
        self._topic_version = self._group_version = DataVersion(0, 0, 0)
        """The master's versions of what is copied."""
        self.topics_known_at: int | None = None
        """A position: the topics of all records before it are those of the master; None before the first round."""
        self.acting: ActingMaster | None = None
        """What acts as the master while there is none: then the master's progress may be behind the one here."""
        self.copied_ms: int | None = None
        """The monotonic time at which the newest round began that is taken over as a whole."""
        self._copied_at = 0
        """The position of the log here that this progress needs."""
        self._round_ms = 0
        """The same of ``_due``."""
        self._is_applying = False
        self._failure: MQError | None = None
        """Why what was due could not be taken over, for the next round to raise."""
        self._connections = 0
        self._known_ends = set[str]()
        """Topics, and LMQs, of whose queues no offset will be assigned again. Bounded by the tables of topics and of
        offsets."""
        self._has_all_ends = False

    @property
    def is_fresh(self) -> bool:
        """Whether a replica with these tables knows what groups have consumed, but for a few seconds, and which
        offsets are assigned."""
        copied_ms = self.copied_ms
        if copied_ms is None or self._state.clock.monotonic_ms() - copied_ms > FRESH_MS:
            return False
        return self._users is None or self._users.is_complete

    def begin(self) -> None:
        """A log is copied over a new connection. What was read before belongs to places of another master's log. So
        does progress that was taken over, if the log was taken back since: it counts messages as delivered that are
        gone."""
        if self._state.store.log.position < self._copied_at:
            self.copied_ms, self._copied_at = None, 0
        self._due.clear()
        self._connections += 1

    def read(self) -> TableRound[None]:
        """One round of requests. Raises ProtocolError for an answer that cannot be understood, TableFull."""
        connection, begin_ms = self._connections, self._state.clock.monotonic_ms()
        end = self._state.store.log.position
        topics = yield from self._topics()
        if topics is not None:
            _check_role((yield Request(RequestCode.GET_BROKER_CONFIG, {})))
            yield from self._copy_topics(*topics)
        self.topics_known_at = end
        groups = yield from self._groups()
        if groups is not None:
            _check_role((yield Request(RequestCode.GET_BROKER_CONFIG, {})))
            yield from self._copy_groups(*groups)
        answer = yield Request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, dict(FOLLOWS))
        self._modes.follow(decode_table(MessageRequestModeSerializeWrapper, _success(answer)))
        if self._may_copy_progress:
            yield from self._progress(connection, begin_ms)
        if self._users is not None:
            self._users.take((yield Request(RequestCode.AUTH_LIST_USER, self._users.question())))

    def progress(self) -> TableRound[None]:
        """The part of a round that a slave answers, too, which acts as the master. Raises as ``read`` does."""
        yield from self._progress(self._connections, self._state.clock.monotonic_ms())

    def _progress(self, connection: int, begin_ms: int) -> TableRound[None]:
        """``connection`` and ``begin_ms``: when the round began."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        state, due = self._state, list[Callable[[], Work[None] | None]]()
        answer = yield Request(RequestCode.GET_ALL_CONSUMER_OFFSET, {})
        offsets, version = yield from offsets_in_slices(_success(answer))
        del answer
        due.append(lambda: state.offsets.follow(offsets, version))
        delays = decode_table(
            DelayOffsetSerializeWrapper, _success((yield Request(RequestCode.GET_ALL_DELAY_OFFSET, {})))
        )
        due.append(lambda: self._delays.offsets.follow(delays))
        timers = yield Request(RequestCode.GET_TIMER_CHECK_POINT, {})
        if timers.code == ResponseCode.SUCCESS:  # else it has no timer messages
            checkpoint = bytes(timers.body)
            due.append(lambda: self._timers.follow(checkpoint))
            metrics = bytes(_success((yield Request(RequestCode.GET_TIMER_METRICS, {}))))
            due.append(lambda: self._timers.metrics.follow(metrics))
        ends, is_all = yield from self._ends(offsets)
        due.append(lambda: self._pass_over(ends, is_all=is_all))
        _, end = log_bounds((yield Request(RequestCode.GET_BROKER_RUNTIME_INFO, {})))
        if connection == self._connections and not self._due and not self._is_applying:
            # Earlier ones come first, or a busy master's would never apply.
            self._due, self._due_at, self._round_ms = due, end, begin_ms
        if self._is_due:
            yield from self._apply()

    def _ends(self, offsets: Iterable[Rows]) -> TableRound[tuple[dict[str, dict[int, int]], bool]]:
        """Where queues that have no message here end at the master, by topic and queue id; and whether these are all.

        Each topic is asked for once, because the log here has every later message; none while the log begins at 0.
        LMQs are in no table of topics: only those are asked for that a group has an offset of."""
        store = self._state.store
        if store.log.position:
            is_whole = store.log.min_offset == 0
        else:
            _, end = log_bounds((yield Request(RequestCode.GET_BROKER_RUNTIME_INFO, {})))
            is_whole = end == 0
        if is_whole:  # no message has left the log, nor any queue
            return {}, True
        light = yield from self._light_names(offsets)
        asked = yield from self._names_to_ask(light)
        found: dict[str, dict[int, int]] = {}
        for name in asked[:ENDS_AT_ONCE]:
            if name in light:
                where = {"topic": name, "queueId": str(LMQ_QUEUE_ID)}
                reply = yield Request(RequestCode.GET_MAX_OFFSET, where)
                found[name] = {LMQ_QUEUE_ID: _max_offset(reply)}
                continue
            answer = yield Request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": name, "lo": "false"})
            if answer.code == ResponseCode.NO_PERMISSION:
                remark = (answer.remark or "")[:200]
                log.warning("the master does not say where the queues of topic %s end: %s", name, remark)
                self._known_ends.add(name)
            # A topic that the master does not have was deleted just now, or is made here alone.
            elif answer.code != ResponseCode.TOPIC_NOT_EXIST:
                found[name] = yield from _queue_ends(_success(answer))
        return found, len(asked) <= ENDS_AT_ONCE

    def _light_names(self, offsets: Iterable[Rows]) -> TableRound[set[str]]:
        light = set[str]()
        for rows in list(offsets):
            light |= {key.partition("@")[0] for key in rows if is_lmq(key)}
            yield None
        return light

    def _names_to_ask(self, light: set[str]) -> TableRound[list[str]]:
        """Topics, and light message queues, with queues that may end elsewhere at the master."""
        topics, has_queue = self._state.topics, self._state.store.offsets.has_queue
        before, known, asked = self._known_ends, set[str](), list[str]()
        limits = chain(
            ((topic.name, topic.queue_limit) for topic in topics),
            ((name, LMQ_QUEUE_ID + 1) for name in light),
        )
        for number, (name, limit) in enumerate(limits, 1):
            if name in before or all(has_queue(name, queue_id) for queue_id in range(limit)):
                known.add(name)
            else:
                asked.append(name)
            if number % LOOKED_AT_ONCE == 0:
                yield None
        self._known_ends = known
        return sorted(asked)

    def _pass_over(self, ends: Mapping[str, Mapping[int, int]], *, is_all: bool) -> Work[None]:
        """The log here has all that the master's had when it gave these ends: what is not in a queue now was not in
        that log either."""
        self._has_all_ends = is_all
        store = self._state.store
        for name, table in ends.items():
            try:
                for queue_id, end in table.items():
                    if not 0 <= queue_id < MAX_QUEUES or end >= MAX_END:
                        raise ProtocolError(f"queue {queue_id} of topic {name} cannot end at {end}")
                    if end > 0 and not store.offsets.has_queue(name, queue_id):
                        store.copy.pass_over(name, queue_id, end)
                        yield  # it has made a file
            except (StoreError, InvalidMessage) as error:  # it is asked for again
                self._has_all_ends = False
                log.warning("where the queues of topic %s go on cannot be noted: %s", name, error)
            else:
                self._known_ends.add(name)

    @property
    def _may_copy_progress(self) -> bool:
        return self.acting is None or self.acting.may_copy_progress

    @property
    def _is_due(self) -> bool:
        """Whether the log has come far enough for the progress that was read."""
        is_far_enough = self._state.store.pipeline.stored_end >= self._due_at
        return bool(self._due) and is_far_enough and not self._is_applying and self._may_copy_progress

    def apply(self) -> None:
        """Take over the progress that was read, if the log has come far enough."""
        if not self._may_copy_progress:
            self._due.clear()
        if self._is_due:
            self._state.long_work.begin(None, self._apply_by_itself())

    def _apply_by_itself(self) -> Work[None]:
        try:
            yield from self._apply()
        except MQError as error:
            self._failure = error

    def _apply(self) -> Work[None]:
        """Raises ProtocolError, TableFull. Ends when what was read counts no more."""
        due, self._due = self._due, []
        connection, due_at, round_ms = self._connections, self._due_at, self._round_ms
        self._is_applying = True
        try:
            for each in due:
                for _ in each() or ():
                    yield
                    if connection != self._connections or not self._may_copy_progress:
                        return
            self._copied_at = due_at
            if self._has_all_ends:
                self.copied_ms = round_ms
        finally:
            self._is_applying = False

    # --- tables in pages --------------------------------------------------------------------------------------

    def _topics(self) -> TableRound[_Topics | None]:
        mapping_version = DataVersion()
        mappings: dict[str, TopicQueueMappingDetail] = {}

        def rows(body: bytes | memoryview) -> tuple[DataVersion | None, dict[str, TopicConfig]]:
            nonlocal mapping_version
            page = decode_table(TopicConfigAndMappingSerializeWrapper, body)
            mapping_version = page.mapping_data_version
            mappings.update(page.topic_queue_mapping_detail_map)
            return page.data_version, page.topic_config_table

        found = yield from self._pages(
            RequestCode.GET_ALL_TOPIC_CONFIG,
            "topicSeq",
            "maxTopicNum",
            "totalTopicNum",
            self._topic_version,
            rows,
        )
        if found is None:
            return None
        version, table = found
        return _Topics(
            version, table, mapping_version, {name: mappings[name] for name in mappings.keys() & table.keys()}
        )

    def _groups(
        self,
    ) -> TableRound[tuple[DataVersion, dict[str, SubscriptionGroupConfig], dict[str, dict[str, int]]] | None]:
        forbidden: dict[str, dict[str, int]] = {}

        def rows(body: bytes | memoryview) -> tuple[DataVersion | None, dict[str, SubscriptionGroupConfig]]:
            page = decode_table(SubscriptionGroupWrapper, body)
            forbidden.update(page.forbidden_table or {})
            return page.data_version, page.subscription_group_table

        found = yield from self._pages(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            "groupSeq",
            "maxGroupNum",
            "totalGroupNum",
            self._group_version,
            rows,
        )
        return None if found is None else (found[0], found[1], forbidden)

    def _pages(
        self,
        code: int,
        first_key: str,
        limit_key: str,
        total_key: str,
        known: DataVersion,
        rows: Callable[[bytes | memoryview], tuple[DataVersion | None, dict[str, Any]]],
    ) -> TableRound[tuple[DataVersion, dict[str, Any]] | None]:
        """The whole table, or None when it still has the version that is known. A master without pages answers with
        everything.

        The first request asks behind the last row with the known version: the answer is empty, or, when the version
        is another one, the first page.
        """
        table: dict[str, Any] = {}
        version, first = known, 1 << 30
        for _ in range(MAX_PAGES):
            ext = {
                first_key: str(first),
                limit_key: str(PAGE_ROWS),
                "dataVersion": encode_body(version).decode(),
            }
            answer = yield Request(code, ext)
            found, page = rows(_success(answer))
            total = answer.ext.get(total_key, "")
            found = found or DataVersion(0, 0, 0)
            if found == known and not page and first == 1 << 30:
                return None
            if found != version:
                table, version = {}, found
            table |= page
            first = len(table)
            if not total.isdecimal() or first >= int(total):
                return version, table
            if not page:
                first = 0
        raise ProtocolError("a table of the master changes faster than it can be read")

    def _copy_topics(
        self,
        version: DataVersion,
        table: dict[str, TopicConfig],
        mapping_version: DataVersion,
        mappings: dict[str, TopicQueueMappingDetail],
    ) -> Work[None]:
        topics, store = self._state.topics, self._state.store
        self._state.mappings.follow(mapping_version, mappings)
        with_batches: list[str] = []
        for number, (name, config) in enumerate(table.items(), 1):
            if config.attributes.get(BATCH_QUEUE[0]) == BATCH_QUEUE[1]:
                with_batches.append(name)
            if number % LOOKED_AT_ONCE == 0:
                yield
        yield from topics.follow(version, table)
        for name in with_batches:
            with contextlib.suppress(InvalidMessage):  # the first batch in the log converts its queues
                store.appender.use_batch_queues(name)
        self._topic_version = version

    def _copy_groups(
        self,
        version: DataVersion,
        table: dict[str, SubscriptionGroupConfig],
        forbidden: dict[str, dict[str, int]],
    ) -> Work[None]:
        yield from self._state.subscriptions.follow(version, table, forbidden)
        self._group_version = version
