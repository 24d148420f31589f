"""A slave's copies of its master's tables (SlaveSynchronize). Answers of the master in, requests out.

    topics, groups, request modes,      taken over at once
    users and policies
    consumer offsets, delay levels,     taken over once the log here has reached the place where the master's log ended
    timer messages, ends of queues      when they were read

So a slave that becomes a master never counts messages as consumed or delivered that it does not have. (RocketMQ's
slave takes over everything at once, and may lose delayed messages so.)

A queue of which the master's log has no message left begins here where it ends there: else a slave that becomes a
master would assign its offsets again. (RocketMQ's does.)

Must not know connections.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mqspark.base.logs import sparing
from mqspark.broker.pop.assignment import RequestModes
from mqspark.broker.replication.acting import ActingMaster
from mqspark.broker.replication.tablenotices import FOLLOWS
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.topics import Topics
from mqspark.broker.timer.delays import DelayService
from mqspark.broker.timer.timers import TimerService
from mqspark.errors import InvalidMessage, ProtocolError, StoreError
from mqspark.message import parse_number
from mqspark.protocol.bodies.admin_bodies import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    TopicStatsTable,
)
from mqspark.protocol.bodies.body import decode_table, encode_body, queue_of
from mqspark.protocol.bodies.client_bodies import MessageRequestModeSerializeWrapper
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
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID, is_lmq
from mqspark.store.store import MessageStore

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.usercopy import UserCopy

log = sparing(__name__, lines=20)

PAGE_ROWS = 2_000
ENDS_AT_ONCE = 2_000
"""Topics that a master is asked for in one round."""
MAX_END = 1 << 48
"""No queue has so many messages."""
MAX_PAGES = 1_000
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


def _success(answer: Command) -> bytes:
    if answer.code != ResponseCode.SUCCESS:
        raise ProtocolError(f"the master answers {answer.code}: {(answer.remark or '')[:200]}")
    return bytes(answer.body)


def _check_role(answer: Command) -> None:
    """A master that lost its disk comes back as a slave without topics, at the same address. Raises ProtocolError."""
    if b"brokerRole=SLAVE" in _success(answer).splitlines():
        raise ProtocolError("the broker at the master's address is a slave: its tables are not copied")


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
        self._due: list[Callable[[], None]] = []
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

    def read(self) -> Round[None]:
        """One round of requests. Raises ProtocolError for an answer that cannot be understood, TableFull."""
        connection, begin_ms = self._connections, self._state.clock.monotonic_ms()
        end = self._state.store.log.position
        topics = yield from self._topics()
        if topics is not None:
            _check_role((yield Request(RequestCode.GET_BROKER_CONFIG, {})))
            self._copy_topics(*topics)
        self.topics_known_at = end
        groups = yield from self._groups()
        if groups is not None:
            _check_role((yield Request(RequestCode.GET_BROKER_CONFIG, {})))
            self._copy_groups(*groups)
        answer = yield Request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, dict(FOLLOWS))
        self._modes.follow(decode_table(MessageRequestModeSerializeWrapper, _success(answer)))
        if self._may_copy_progress:
            yield from self._progress(connection, begin_ms)
        if self._users is not None:
            self._users.take((yield Request(RequestCode.AUTH_LIST_USER, self._users.question())))

    def progress(self) -> Round[None]:
        """The part of a round that a slave answers, too, which acts as the master. Raises as ``read`` does."""
        yield from self._progress(self._connections, self._state.clock.monotonic_ms())

    def _progress(self, connection: int, begin_ms: int) -> Round[None]:
        """``connection`` and ``begin_ms``: when the round began."""
        state, due = self._state, list[Callable[[], None]]()
        offsets = decode_table(
            ConsumerOffsetSerializeWrapper, _success((yield Request(RequestCode.GET_ALL_CONSUMER_OFFSET, {})))
        )
        due.append(lambda: state.offsets.follow(offsets))
        delays = decode_table(
            DelayOffsetSerializeWrapper, _success((yield Request(RequestCode.GET_ALL_DELAY_OFFSET, {})))
        )
        due.append(lambda: self._delays.offsets.follow(delays))
        timers = yield Request(RequestCode.GET_TIMER_CHECK_POINT, {})
        if timers.code == ResponseCode.SUCCESS:  # else it has no timer messages
            checkpoint = bytes(timers.body)
            due.append(lambda: self._timers.follow(checkpoint))
            metrics = _success((yield Request(RequestCode.GET_TIMER_METRICS, {})))
            due.append(lambda: self._timers.metrics.follow(metrics))
        ends, is_all = yield from self._ends(offsets)
        due.append(lambda: self._pass_over(ends, is_all=is_all))
        _, end = log_bounds((yield Request(RequestCode.GET_BROKER_RUNTIME_INFO, {})))
        if connection == self._connections and not self._due:
            # Earlier ones come first, or a busy master's would never apply.
            self._due, self._due_at, self._round_ms = due, end, begin_ms
        self.apply()

    def _ends(self, offsets: ConsumerOffsetSerializeWrapper) -> Round[tuple[dict[str, dict[int, int]], bool]]:
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
        topics, has_queue = self._state.topics, store.offsets.has_queue
        limits = {topic.name: topic.queue_limit for topic in topics}
        light = {key.partition("@")[0] for key in offsets.offset_table if is_lmq(key)}
        limits |= dict.fromkeys(light, LMQ_QUEUE_ID + 1)
        self._known_ends &= limits.keys()
        self._known_ends |= {
            name
            for name in limits.keys() - self._known_ends
            if all(has_queue(name, queue_id) for queue_id in range(limits[name]))
        }
        asked = sorted(limits.keys() - self._known_ends)
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
                table = decode_table(TopicStatsTable, _success(answer)).offset_table
                found[name] = {queue_of(key).queue_id: bounds.max_offset for key, bounds in table.items()}
        return found, len(asked) <= ENDS_AT_ONCE

    def _pass_over(self, ends: Mapping[str, Mapping[int, int]], *, is_all: bool) -> None:
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
            except (StoreError, InvalidMessage) as error:  # it is asked for again
                self._has_all_ends = False
                log.warning("where the queues of topic %s go on cannot be noted: %s", name, error)
            else:
                self._known_ends.add(name)

    @property
    def _may_copy_progress(self) -> bool:
        return self.acting is None or self.acting.may_copy_progress

    def apply(self) -> None:
        """Take over the progress that was read, if the log has come far enough. Raises ProtocolError."""
        if not self._may_copy_progress:
            self._due.clear()
        if self._due and self._state.store.pipeline.stored_end >= self._due_at:
            due, self._due = self._due, []
            for each in due:
                each()
            self._copied_at = self._due_at
            if self._has_all_ends:
                self.copied_ms = self._round_ms

    # --- tables in pages --------------------------------------------------------------------------------------

    def _topics(self) -> Round[_Topics | None]:
        mapping_version = DataVersion()
        mappings: dict[str, TopicQueueMappingDetail] = {}

        def rows(body: bytes) -> tuple[DataVersion | None, dict[str, TopicConfig]]:
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
    ) -> Round[tuple[DataVersion, dict[str, SubscriptionGroupConfig], dict[str, dict[str, int]]] | None]:
        forbidden: dict[str, dict[str, int]] = {}

        def rows(body: bytes) -> tuple[DataVersion | None, dict[str, SubscriptionGroupConfig]]:
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
        rows: Callable[[bytes], tuple[DataVersion | None, dict[str, Any]]],
    ) -> Round[tuple[DataVersion, dict[str, Any]] | None]:
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
    ) -> None:
        topics, store = self._state.topics, self._state.store
        self._state.mappings.follow(mapping_version, mappings)
        topics.follow(version, table)
        for name, config in table.items():
            if config.attributes.get(BATCH_QUEUE[0]) == BATCH_QUEUE[1]:
                with contextlib.suppress(InvalidMessage):  # the first batch in the log converts its queues
                    store.appender.use_batch_queues(name)
        self._topic_version = version

    def _copy_groups(
        self,
        version: DataVersion,
        table: dict[str, SubscriptionGroupConfig],
        forbidden: dict[str, dict[str, int]],
    ) -> None:
        self._state.subscriptions.follow(version, table, forbidden)
        self._group_version = version
