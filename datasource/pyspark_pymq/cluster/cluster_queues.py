"""The options applied to a real cluster: queues, their first and last offsets, and the start of a read.

Runs on the driver. Keeps one client and the routes; nothing of it is pickled. Must not know Spark.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mqspark.client.blocking import FIRST_CONTACT_MS, BlockingClient, pull_header
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import BrokerError, ClientError, ConfigError, MQError, NoRoute
from mqspark.message import DLQ_PREFIX, RETRY_PREFIX, MessageQueue, is_system_topic, retry_topic
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import PullMessageResponseHeader
from pyspark_pymq.cluster.history import Archive, first_offsets
from pyspark_pymq.cluster.stream_offsets import Offsets, QueueRange
from pyspark_pymq.options import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec, Position, QueueTexts, ReadOptions

__all__ = ["BrokerPlace", "ClusterQueues", "DataLoss"]

log = logging.getLogger("pyspark_pymq")

ROUTE_LIFE_S = 1.0
"""How long a route is cached; new queues are seen at most this much later."""

PLACE_LIFE_S = 60.0

SAMPLE_GROUP = "mqspark-spark-source"
_SAMPLE = 32
PULL_ANSWERS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_SAMPLED_QUEUES = 8
"""Queues sampled per broker to estimate the size of messages."""


class DataLoss(MQError):
    """Messages that the query should have read are lost; failOnDataLoss=false continues without them."""


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """How a task reaches a broker: over TCP, or by local read if ``store_path`` is on its host, may be read there
    and ``proof`` matches ``challenge`` (``mqspark.store.disk.trusted``)."""

    address: str
    store_path: str = ""
    commit_log_path: str = ""
    challenge: str = ""
    proof: str = ""
    directories: tuple[str, ...] | None = None
    """Directories of stores that may be read locally; None: decided by owner."""


class ClusterQueues:
    def __init__(self, options: ReadOptions, *, client: BlockingClient | None = None) -> None:
        self._options = options
        self.client = client or BlockingClient(
            options.nameserver,
            retry_ms=options.retry_timeout_ms,
            first_contact_ms=FIRST_CONTACT_MS,
            credentials=options.signing.credentials(),
        )
        self._queues: dict[MessageQueue, str] = {}
        self._queues_at = -ROUTE_LIFE_S
        self._begun: set[MessageQueue] = set()
        self._reported: set[str] = set()
        """Lost queues; each is reported once."""
        self._places: dict[str, tuple[float, BrokerPlace]] = {}
        self.archive = Archive(options.archive) if options.archive is not None else None

    # --- queues -----------------------------------------------------------------------------------------------

    def queues(self) -> dict[MessageQueue, str]:
        """Every readable queue that the options name, to the address of its broker. Raises NoRoute, ConfigError."""
        now = time.monotonic()
        if now - self._queues_at >= ROUTE_LIFE_S:
            self._queues = dict(sorted(self._find_queues().items()))
            self._queues_at = now
        return self._queues

    def has_begun(self, queues: Iterable[MessageQueue]) -> None:
        """The queues were read before, so one without a route was deleted and is not a mistake in the options."""
        self._begun.update(queues)

    def wait_for_routes(self) -> None:
        """The time after which a deleted topic has left the routes; then they are fetched again."""
        time.sleep(2 * ROUTE_LIFE_S)
        self._queues_at = -ROUTE_LIFE_S

    def _find_queues(self) -> dict[MessageQueue, str]:
        topics = self._options.topics
        if topics.pattern is not None:
            pattern = re.compile(topics.pattern)
            names = [
                name for name in self.client.topics() if pattern.fullmatch(name) and not _is_internal(name)
            ]
        else:
            names = [*topics.names, *topics.assigned]
        routes = self.client.routes(names)
        found: dict[MessageQueue, str] = {}
        for name in names:
            if name not in routes and topics.pattern is not None:
                continue  # deleted since the listing
            try:
                route = routes.get(name) or self._route(name)
            except NoRoute:
                is_new = all(queue.topic != name for queue in self._begun)
                if is_new or self._options.fail_on_data_loss:
                    raise
                self._report_deleted(f"topic {name}")
                continue
            self._reported.discard(f"topic {name}")
            here = {}
            for queue in route.subscribe_queues:
                address = route.address(queue.broker_name)
                if address is not None:
                    here[queue] = address
            if name in topics.assigned:
                here = {queue: here[queue] for queue in self._assigned(name, topics.assigned[name], here)}
            found |= here
        return found

    def _route(self, topic: str) -> TopicRoute:
        """Raises NoRoute: at once for a topic that is new or deleted; after ``retryTimeout`` while a broker of it is
        away."""
        try:
            return self.client.route(topic)
        except NoRoute:
            brokers = {queue.broker_name for queue in self._begun if queue.topic == topic}
            if not brokers or brokers <= self.client.brokers():
                raise
        return self.client.bridged(lambda: self.client.route(topic))

    def _assigned(
        self, topic: str, texts: Iterable[str], here: Iterable[MessageQueue]
    ) -> Iterator[MessageQueue]:
        """The queues of ``here`` that ``assign`` names. Raises ConfigError for a queue that never existed,
        DataLoss for a lost one."""
        begun = [queue for queue in self._begun if queue.topic == topic]
        for text in texts:
            meant = _queues_named(here, text)
            if not meant and not _queues_named(begun, text):
                raise ConfigError(f"assign: topic {topic} has no queue {text!r}", key="assign")
            what = f"queue {text} of topic {topic}"
            if meant:
                self._reported.discard(what)
            else:
                self._report_deleted(what)
            yield from meant

    def _report_deleted(self, what: str) -> None:
        """Raises DataLoss."""
        if what not in self._reported:
            self.lost(f"{what} is gone")
        self._reported.add(what)

    def place(self, address: str) -> BrokerPlace:
        """The broker's store path, if it reports one."""
        known = self._places.get(address)
        if known is not None and time.monotonic() - known[0] < PLACE_LIFE_S:
            return known[1]
        place = BrokerPlace(address)
        if self._options.local_read:
            challenge = secrets.token_hex(16)
            try:
                info = self.client.runtime_info(address, challenge=challenge)
            except BrokerError as error:
                log.info("broker %s reports no store path: %s", address, error)
                info = {}
            place = BrokerPlace(
                address,
                info.get("mqsparkStorePath", ""),
                info.get("mqsparkCommitLogPath", ""),
                challenge,
                info.get("mqsparkStoreProof", ""),
                self._options.local_directories,
            )
        self._places[address] = (time.monotonic(), place)
        return place

    # --- offsets ----------------------------------------------------------------------------------------------

    def latest(self, queues: Mapping[MessageQueue, str]) -> Offsets:
        return self._ask(queues, self.client.max_offsets)

    def earliest(self, queues: Mapping[MessageQueue, str]) -> Offsets:
        """The first offset of each queue, at its broker or in the archive. DataLoss if there is a gap between the
        two."""
        live = self._ask(queues, self.client.min_offsets)
        if self.archive is None:
            return live
        archived = self.archive.ranges()
        earliest: Offsets = {}
        for queue, lowest in live.items():
            first, end = archived.get(queue, (lowest, lowest))
            if end < lowest:
                self.lost(f"{_name(queue)}: offsets {end} to {lowest} were deleted before they were archived")
            earliest[queue] = min(first, lowest)
        return earliest

    def starting(self, queues: Mapping[MessageQueue, str]) -> Offsets:
        """The start of a new query in each queue."""
        return self._resolve(self._options.starting, queues, is_start=True)

    def ending(self, queues: Mapping[MessageQueue, str]) -> Offsets:
        """The end of a batch read in each queue."""
        return self._resolve(self._options.ending, queues, is_start=False)

    def _resolve(self, spec: OffsetSpec, queues: Mapping[MessageQueue, str], *, is_start: bool) -> Offsets:
        if spec.offsets is not None:
            return self._explicit(spec, self._by_queue(spec.option, spec.offsets, queues), queues)
        if spec.timestamps_ms is not None:
            return self._by_time(
                spec, self._by_queue(spec.option, spec.timestamps_ms, queues), queues, is_start
            )
        if spec.timestamp_ms is not None:
            return self._by_time(spec, dict.fromkeys(queues, spec.timestamp_ms), queues, is_start)
        if spec.position is Position.LATEST:
            return self.latest(queues)
        earliest = self.earliest(queues)
        if spec.position is Position.GROUP and self._options.group is not None:
            committed = self._group_offsets(queues)
            latest = self.latest(queues)
            # The group's unread messages may have expired; a queue it never read starts at its first message.
            return {
                q: min(max(committed.get(q, lowest), lowest), latest[q]) for q, lowest in earliest.items()
            }
        return earliest

    def _explicit(self, spec: OffsetSpec, wanted: Offsets, queues: Mapping[MessageQueue, str]) -> Offsets:
        earliest, latest = self.earliest(queues), self.latest(queues)
        resolved: Offsets = {}
        for queue, offset in wanted.items():
            lowest, highest = earliest[queue], latest[queue]
            if offset == EARLIEST_OFFSET:
                offset = lowest
            elif offset == LATEST_OFFSET:
                offset = highest
            elif not lowest <= offset <= highest:
                self.lost(f"{spec.option}: {_name(queue)} has offsets {lowest} to {highest}, not {offset}")
                offset = min(max(offset, lowest), highest)
            resolved[queue] = offset
        return resolved

    def _by_time(
        self, spec: OffsetSpec, times_ms: Offsets, queues: Mapping[MessageQueue, str], is_start: bool
    ) -> Offsets:
        latest = self.latest(queues)

        def search(address: str, asked: Sequence[MessageQueue]) -> Sequence[int]:
            return self.client.offsets_by_timestamp(address, asked, [times_ms[queue] for queue in asked])

        found = self._ask(queues, search)
        if self.archive is not None:
            archived = first_offsets(self.archive.url, times_ms)
            found = {queue: min(offset, archived.get(queue, offset)) for queue, offset in found.items()}
        if is_start and not self._options.unmatched_timestamp_is_latest:
            for queue, offset in found.items():
                if offset >= latest[queue]:
                    raise ConfigError(
                        f"{spec.option}: {_name(queue)} has no message from {times_ms[queue]} on; "
                        "startingOffsetsByTimestampStrategy=latest starts such queues at their end",
                        key=spec.option,
                    )
        return found

    def _by_queue(self, option: str, texts: QueueTexts, queues: Mapping[MessageQueue, str]) -> Offsets:
        """The users' ``{topic: {"0" or "broker:0": number}}`` by queue; each queue exactly once."""
        numbers: Offsets = {}
        for topic, by_text in texts.items():
            for text, number in by_text.items():
                meant = _queues_named([queue for queue in queues if queue.topic == topic], text)
                if not meant:
                    raise ConfigError(
                        f"{option}: the read has no queue {text!r} of topic {topic!r}", key=option
                    )
                if len(meant) > 1:
                    raise ConfigError(
                        f"{option}: queue {text!r} of {topic!r} is on several brokers; write "
                        f'"{meant[0].broker_name}:{text}"',
                        key=option,
                    )
                if meant[0] in numbers:
                    raise ConfigError(f"{option}: {_name(meant[0])} is named twice", key=option)
                numbers[meant[0]] = number
        missing = [queue for queue in queues if queue not in numbers]
        if missing:
            raise ConfigError(f"{option}: {_name(missing[0])} is not named; name every queue", key=option)
        return numbers

    def _group_offsets(self, queues: Mapping[MessageQueue, str]) -> Offsets:
        group = self._options.group or ""
        committed: Offsets = {}
        for address, asked in _by_address(queues).items():
            answers = self.client.group_offsets(address, group, asked)
            committed |= {
                queue: offset for queue, offset in zip(asked, answers, strict=True) if offset is not None
            }
        return committed

    def _ask(
        self,
        queues: Mapping[MessageQueue, str],
        question: Callable[[str, Sequence[MessageQueue]], Sequence[int]],
    ) -> Offsets:
        answers: Offsets = {}
        for address, asked in _by_address(queues).items():
            answers |= zip(asked, question(address, asked), strict=True)
        return {queue: answers[queue] for queue in queues}

    def mean_record_bytes(self, offsets: Offsets) -> float:
        """The mean size of the next few records after these offsets; 0 where there are none."""
        queues = self.queues()
        group = self._options.group or SAMPLE_GROUP
        count = size = 0
        for address, asked in _by_address({queue: queues[queue] for queue in offsets}).items():
            for queue in asked[:_SAMPLED_QUEUES]:
                header = pull_header(group, queue, offsets[queue], max_messages=_SAMPLE)
                answer = self.client.request(address, RequestCode.PULL_MESSAGE, header, accept=PULL_ANSWERS)
                if answer.code == ResponseCode.SUCCESS and len(answer.body):
                    following = answer.header(PullMessageResponseHeader).next_begin_offset
                    count += max(1, following - offsets[queue])
                    size += len(answer.body)
        return size / count if count else 0.0

    def records_from(self, queue: MessageQueue, address: str, offset: int) -> bytes | memoryview:
        """A few records from ``offset`` on; empty if there are none."""
        header = pull_header(self._options.group or SAMPLE_GROUP, queue, offset, max_messages=_SAMPLE)
        answer = self.client.request(address, RequestCode.PULL_MESSAGE, header, accept=PULL_ANSWERS)
        return answer.body if answer.code == ResponseCode.SUCCESS else b""

    # --- loss and progress ------------------------------------------------------------------------------------

    def check_not_expired(self, ranges: Iterable[QueueRange]) -> list[QueueRange]:
        """The ranges without expired messages. Raises DataLoss under failOnDataLoss."""
        ranges = list(ranges)
        queues = self.queues()
        here = {each.queue: queues[each.queue] for each in ranges if each.queue in queues}
        earliest = self.earliest(here)
        kept = []
        for each in ranges:
            if each.queue not in here:
                self.lost(f"{_name(each.queue)} is gone; offsets {each.start} to {each.end} cannot be read")
                continue
            lowest = earliest[each.queue]
            if each.start < lowest:
                self.lost(
                    f"{_name(each.queue)}: offsets {each.start} to {min(lowest, each.end)} have expired"
                )
                each = QueueRange(each.queue, min(lowest, each.end), each.end)
            if each.rows > 0:
                kept.append(each)
        return kept

    def lost(self, what: str) -> None:
        """Raise DataLoss, or log it under failOnDataLoss=false."""
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what}. Set failOnDataLoss=false to go on without them")
        log.warning("data loss accepted (failOnDataLoss=false): %s", what)

    def publish(self, offsets: Offsets, published: Offsets) -> None:
        """Publish ``offsets`` as the group's offsets, best effort and only forward; ``published`` remembers the
        last ones.

        The checkpoint remains authoritative: a failure is logged, not raised.
        """
        group = self._options.group
        if group is None:
            return
        try:
            with self.client.without_retries():
                self._publish(group, offsets, published)
        except ClientError as error:
            log.warning("the offsets of group %s could not be published: %s", group, error)

    def _publish(self, group: str, offsets: Offsets, published: Offsets) -> None:
        queues = self.queues()
        unknown = {queue: queues[queue] for queue in offsets if queue not in published and queue in queues}
        if unknown:
            if not published:
                self._make_known(group, queues.values())
            committed = self._group_offsets(unknown)
            published |= {queue: committed.get(queue, -1) for queue in unknown}
        due = {q: offset for q, offset in offsets.items() if q in queues and offset > published.get(q, -1)}
        for address, asked in _by_address({queue: queues[queue] for queue in due}).items():
            self.client.commit_group_offsets(address, group, {queue: due[queue] for queue in asked})
        published |= due

    def _make_known(self, group: str, addresses: Iterable[str]) -> None:
        try:
            self.client.make_topic(retry_topic(group), sorted(set(addresses)))
        except ClientError as error:
            log.warning("mqadmin consumerProgress will not know group %s: %s", group, error)


def _by_address(queues: Mapping[MessageQueue, str]) -> dict[str, list[MessageQueue]]:
    grouped: dict[str, list[MessageQueue]] = {}
    for queue, address in queues.items():
        grouped.setdefault(address, []).append(queue)
    return grouped


def _queues_named(queues: Iterable[MessageQueue], text: str) -> list[MessageQueue]:
    """The queues named by ``"0"`` or ``"broker:0"``."""
    broker, _, queue_id = text.rpartition(":")
    return [q for q in queues if q.queue_id == int(queue_id) and broker in ("", q.broker_name)]


def _is_internal(topic: str) -> bool:
    """Topics that a pattern never matches: system topics, retry and dead-letter topics."""
    return is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _name(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic} on {queue.broker_name}"
