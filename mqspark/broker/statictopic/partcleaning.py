"""Removes unneeded entries from mappings (TopicQueueMappingCleanService): the first part of a logic queue when its
messages have expired, and logic queues that have moved on from the broker they went to from here.

Facts: docs/rocketmq/statictopics.md#cleaning.
"""

from __future__ import annotations

from collections.abc import Generator

from msgspec.structs import replace

from mqspark.base.clock import Clock
from mqspark.base.logs import sparing
from mqspark.broker.statictopic.logicqueues import Part
from mqspark.broker.statictopic.mappings import Mappings, StaticTopic
from mqspark.broker.statictopic.peers import Peers, Question, Talk
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.admin_bodies import TopicOffset, TopicStatsTable
from mqspark.protocol.bodies.body import decode_body, queue_key
from mqspark.protocol.bodies.topic_bodies import TopicConfigAndQueueMapping, TopicQueueMappingDetail
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Refusal
from mqspark.store.store import MessageStore

INTERVAL_MS = 300_000
MAX_MOVES = 8
"""Brokers that are asked in turn where a logic queue has gone."""

_log = sparing(__name__, lines=20)


class PartCleaner:
    def __init__(self, mappings: Mappings, peers: Peers, clock: Clock, store: MessageStore) -> None:
        self._mappings = mappings
        self._peers = peers
        self._clock = clock
        self._store = store
        self._next_ms = clock.monotonic_ms() + INTERVAL_MS
        self._is_running = False

    def tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + INTERVAL_MS
        is_hour = self._store.upkeep.cleaner.is_hour
        if self._mappings.table and not self._is_running and is_hour:
            self._is_running = True
            self._peers.begin(self._clean())

    def _clean(self) -> Talk:
        try:
            for topic in list(self._mappings.table):
                try:
                    yield from self._clean_topic(topic)
                except Refusal as refusal:
                    _log.warning("the mapping of static topic %s is not cleaned: %s", topic, refusal)
        finally:
            self._is_running = False
        return None

    def _clean_topic(self, topic: str) -> Generator[Question, Command, None]:
        static = self._mappings.table.get(topic)
        if static is None:
            return
        empty: dict[int, Part] = {}
        tables: dict[str, dict[str, TopicOffset]] = {}
        for number in static.led:
            parts = static.queues[number].parts
            # The second part of a queue that is being remapped cannot be read yet.
            if len(parts) > 1 and parts[1].logic_offset >= 0:
                low, high = yield from self._bounds_of(topic, static, parts[0], tables)
                if low == high or high == 0:
                    empty[number] = parts[0]
        self._forget_parts(topic, empty)
        static = self._mappings.table.get(topic) or static
        gone = []
        mappings: dict[str, TopicQueueMappingDetail | None] = {self._mappings.broker_name: static.detail}
        for number, queue in static.queues.items() if static.is_own else ():
            if not static.is_led(queue) and (yield from self._has_moved_on(topic, static, number, mappings)):
                gone.append(number)
        if gone and self._mappings.table.get(topic) is static:
            _log.info("static topic %s: logic queues %s have moved on", topic, gone)
            self._mappings.remove_queues(topic, gone)

    def _bounds_of(
        self, topic: str, static: StaticTopic, part: Part, tables: dict[str, dict[str, TopicOffset]]
    ) -> Generator[Question, Command, tuple[int, int]]:
        """``tables``: the answers of other brokers so far. Raises Refusal."""
        if static.is_local(part):
            return self._store.offsets.bounds(topic, part.queue_id)
        name = part.bname or ""
        if name not in tables:
            answer = yield Question(
                name, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic, "lo": "false", "bname": name}
            )
            tables[name] = decode_body(TopicStatsTable, _success(name, answer)).offset_table
        found = tables[name].get(queue_key(MessageQueue(topic, name, part.queue_id)))
        if found is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"broker {name} has no queue {part.queue_id} of {topic}")
        return found.min_offset, found.max_offset

    def _forget_parts(self, topic: str, empty: dict[int, Part]) -> None:
        """Remove the first parts of these logic queues, if they still are what they were."""
        static = self._mappings.table.get(topic)
        if static is None or not empty:
            return
        hosted = dict(static.detail.hosted_queues)
        for number, part in empty.items():
            parts = hosted.get(number, [])
            if len(parts) > 1 and parts[0] == part:
                hosted[number] = parts[1:]
                _log.info("static topic %s: %s of logic queue %d is empty and forgotten", topic, part, number)
        self._mappings.update(replace(static.detail, hosted_queues=hosted))

    def _has_moved_on(
        self,
        topic: str,
        static: StaticTopic,
        number: int,
        mappings: dict[str, TopicQueueMappingDetail | None],
    ) -> Generator[Question, Command, bool]:
        """Whether the logic queue is led by another broker than the one that this broker knows, in the same epoch.
        ``mappings``: those of the brokers asked so far. Raises Refusal."""
        known = name = static.queues[number].leader.bname or ""
        for _ in range(MAX_MOVES):
            if name not in mappings:
                mappings[name] = yield from self._mapping_of(topic, name)
            detail = mappings[name]
            parts = None if detail is None else detail.hosted_queues.get(number)
            if detail is None or not parts:
                return False
            leader = parts[-1].bname or ""
            if leader == name:
                same = (detail.epoch, detail.total_queues) == (
                    static.detail.epoch,
                    static.detail.total_queues,
                )
                return same and name != known
            name = leader
        return False

    def _mapping_of(
        self, topic: str, name: str
    ) -> Generator[Question, Command, TopicQueueMappingDetail | None]:
        """Raises Refusal."""
        answer = yield Question(
            name, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": "true", "bname": name}
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return decode_body(TopicConfigAndQueueMapping, _success(name, answer)).mapping_detail


def _success(name: str, answer: Command) -> bytes:
    if answer.code != ResponseCode.SUCCESS:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"broker {name} answers {answer.code}: {(answer.remark or '')[:200]}"
        )
    return bytes(answer.body)
