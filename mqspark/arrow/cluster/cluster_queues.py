"""The options applied to a real cluster: queues, their first and last offsets, and the start of a read.

Runs on the driver. Keeps one client and the routes; nothing of it is pickled. Must not know Spark.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mqspark.arrow.cluster.archives import Archive, first_offsets
from mqspark.arrow.cluster.logic_parts import LogicQueues, check_kind
from mqspark.arrow.cluster.queuechoice import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OffsetSpec,
    Position,
    QueueChoice,
    QueueTexts,
)
from mqspark.arrow.cluster.queueranges import LogicPlace, Offsets, QueueRange
from mqspark.base.logs import Outages, escaping
from mqspark.client.blocking import FIRST_CONTACT_MS, BlockingClient
from mqspark.client.remoting.topic_routes import TopicRoute, is_logic_broker
from mqspark.errors import BrokerError, ClientError, ConfigError, MQError, NoRoute
from mqspark.message import DLQ_PREFIX, RETRY_PREFIX, MessageQueue, is_system_topic, retry_topic
from mqspark.protocol.codes import PULL_ANSWERS, RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    pull_header,
)

log = escaping("mqspark.arrow")

ROUTE_LIFE_S = 1.0
"""How long a route is cached; new queues are seen at most this much later."""

PLACE_LIFE_S = 60.0

SAMPLE_GROUP = "mqspark-spark-source"
_SAMPLE = 32
_SAMPLED_QUEUES = 8
"""Queues sampled per broker to estimate the size of messages."""
_SPARE_ADDRESSES = 4_096
"""Addresses that are kept of queues that are in no route."""


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
    def __init__(self, options: QueueChoice, *, client: BlockingClient | None = None) -> None:
        self._options = options
        self.client = client or BlockingClient(
            options.nameserver,
            retry_ms=options.retry_timeout_ms,
            first_contact_ms=FIRST_CONTACT_MS,
            credentials=options.signing.credentials(),
        )
        self._logic = LogicQueues(self.client)
        self._queues: dict[MessageQueue, str] = {}
        self._queues_at = -ROUTE_LIFE_S
        self._addresses: dict[MessageQueue, str] = {}
        """The last known addresses, also of queues whose brokers have left the routes since."""
        self._begun: set[MessageQueue] = set()
        self._reported: set[str] = set()
        """Lost queues; each is reported once."""
        self._places: dict[str, tuple[float, BrokerPlace]] = {}
        self._outages = Outages(log)
        self.archive = Archive(options.archive) if options.archive is not None else None

    # --- queues -----------------------------------------------------------------------------------------------

    def queues(self) -> dict[MessageQueue, str]:
        """Every readable queue that the options name, to the address of its broker. Raises NoRoute, ConfigError."""
        now = time.monotonic()
        if now - self._queues_at >= ROUTE_LIFE_S:
            self._queues = dict(sorted(self._find_queues().items()))
            self._queues_at = now
            if len(self._addresses) > 2 * len(self._queues) + _SPARE_ADDRESSES:
                self._addresses.clear()
            self._addresses |= self._queues
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
            here = self._queues_of(name, route)
            if name in topics.assigned:
                here = {queue: here[queue] for queue in self._assigned(name, topics.assigned[name], here)}
            found |= here
        return found

    def _queues_of(self, topic: str, route: TopicRoute) -> dict[MessageQueue, str]:
        """The readable queues of the topic. Raises NoRoute, BadRoute, MQError for a static topic."""
        begun = [queue for queue in self._begun if queue.topic == topic]
        check_kind(topic, is_static=route.is_static, begun=(_is_logic(queue) for queue in begun))
        if route.is_static:
            if self.archive is not None:
                raise ConfigError.of(
                    "archive",
                    f"topic {topic} is static, and an archive has the offsets of its physical queues; read it "
                    "without the option",
                )
            return self._logic.adopt(topic, route, begun)
        here = {}
        for queue in route.subscribe_queues:
            address = route.address(queue.broker_name)
            if address is not None and not _is_logic(queue):
                here[queue] = address
        return here

    def address(self, queue: MessageQueue) -> str:
        """The address of a queue, or of a physical queue of a static topic: the last known one while its broker is
        away. Raises NoRoute."""
        if self._logic.place_of(queue) is not None:
            return self._logic.address_of(queue)
        address = self.queues().get(queue) or self._addresses.get(queue)
        if address is None:
            raise NoRoute(queue.topic, f"broker {queue.broker_name} is away")
        return address

    def _fresh_queues(self) -> dict[MessageQueue, str]:
        """``queues()``, as name servers know them now."""
        self._queues_at = -ROUTE_LIFE_S
        return self.queues()

    def _await(self, wanted: set[MessageQueue]) -> dict[MessageQueue, str]:
        """``queues()``, in which those of ``wanted`` are missing that were deleted. Waits for brokers that are away.
        Raises NoRoute after ``retryTimeout``, or returns under failOnDataLoss=false."""
        queues = self.queues()

        def look_up() -> None:
            nonlocal queues
            if wanted <= queues.keys():
                return
            # Routes that are fetched after this list have the topics of its masters.
            masters = self.client.masters(queue.topic for queue in wanted)
            queues = self._fresh_queues()
            for queue in wanted:
                if queue not in queues and queue.broker_name not in masters:
                    raise NoRoute(queue.topic, f"broker {queue.broker_name} is away")

        try:
            self.client.bridged(look_up)
        except NoRoute:
            if self._options.fail_on_data_loss:
                raise
        return queues

    def at_masters(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, str]:
        """Those of the queues whose brokers have a master now, to its address."""
        names = {
            queue: self._logic.broker_of(queue) if _is_logic(queue) else queue.broker_name for queue in queues
        }
        masters = self.client.masters(queue.topic for queue in names) if names else {}
        return {queue: masters[name] for queue, name in names.items() if name in masters}

    def await_masters(self, queues: Mapping[MessageQueue, str]) -> Mapping[MessageQueue, str]:
        """The queues at their masters. Waits for those that are away. Raises NoRoute after ``retryTimeout``, or returns
        ``queues`` under failOnDataLoss=false."""

        def look_up() -> Mapping[MessageQueue, str]:
            found = self.at_masters(queues)
            for queue in queues.keys() - found.keys():
                raise NoRoute(queue.topic, f"the master of broker {queue.broker_name} is away")
            return found

        try:
            return self.client.bridged(look_up)
        except NoRoute:
            if self._options.fail_on_data_loss:
                raise
            return queues

    def ends_at_masters(self, queues: Iterable[MessageQueue]) -> Offsets:
        """The ends of the queues whose brokers have a master: a slave may not have copied yet what was read. The
        masters are asked when topics that are being deleted, which end at 0, have left the routes."""
        wanted = self.at_masters(queues)
        if not wanted:
            return {}
        self.wait_for_routes()
        there = self.queues()
        return self.latest(self.at_masters(queue for queue in wanted if queue in there))

    def logic_places(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, LogicPlace]:
        """Those of the queues that are physical queues of static topics, and what they are a part of."""
        places = ((queue, self._logic.place_of(queue)) for queue in queues)
        return {queue: place for queue, place in places if place is not None}

    def pull_of(self, queue: MessageQueue, offset: int, **more: Any) -> tuple[str, PullMessageRequestHeader]:
        """The address and the header of a pull from this offset on. ``more``: as for ``pull_header``."""
        if not _is_logic(queue):
            return self.address(queue), pull_header(self._group, queue, offset, **more)
        part, address, offset = self._logic.located(queue, offset)
        return address, pull_header(self._group, part, offset, lo=False, **more)

    @property
    def _group(self) -> str:
        return self._options.group or SAMPLE_GROUP

    def _route(self, topic: str) -> TopicRoute:
        """Raises NoRoute: at once for a topic that is new or deleted; after ``retryTimeout`` while a master of it is
        away."""
        try:
            return self.client.route(topic)
        except NoRoute:
            brokers = {queue.broker_name for queue in self._begun if queue.topic == topic}
            if not brokers:
                raise
        # A name server that has just started learns topics from masters: a slave may register before its master.
        if brokers <= self.client.masters([topic]).keys():
            return self.client.route(topic)  # a master may have registered between the two requests
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
                raise ConfigError.of("assign", f"topic {topic} has no queue {text!r}")
            what = f"queue {text} of topic {topic}"
            if meant:
                self._reported.discard(what)
            elif self._is_deleted(topic, _queues_named(begun, text)):
                self._report_deleted(what)
            yield from meant

    def _is_deleted(self, topic: str, queues: Iterable[MessageQueue]) -> bool:
        """Whether none of the queues comes back: their masters are there, and the route, which is fetched after that,
        has none of them."""
        masters = self.client.masters([topic])
        if any(queue.broker_name not in masters for queue in queues):
            return False
        try:
            there = self._queues_of(topic, self.client.route(topic))
        except NoRoute:
            return True
        return not any(queue in there for queue in queues)

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
        return self._ask(queues, self.client.max_offsets, self._logic.latest)

    def ends(self) -> Offsets:
        """The end of each of ``queues()``. One whose broker does not answer is left out when it has left the routes."""

        def ask() -> Offsets:
            queues = self.queues()
            plain = {queue: address for queue, address in queues.items() if not _is_logic(queue)}
            found = self.latest({queue: queues[queue] for queue in queues.keys() - plain.keys()})
            try:
                with self.client.without_retries():
                    return found | self.latest(plain)
            except ClientError:
                self._queues_at = -ROUTE_LIFE_S
                raise

        return self.client.answered(ask)

    def earliest(self, queues: Mapping[MessageQueue, str]) -> Offsets:
        """The first offset of each queue, at its broker or in the archive. DataLoss if there is a gap between the
        two."""
        live = self._ask(queues, self.client.min_offsets, self._logic.earliest)
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
            committed = self.committed(queues)
            latest = self.latest(queues)
            # The group's unread messages may have expired; a queue it never read starts at its first message.
            return {
                q: min(max(committed.get(q, lowest), lowest), latest[q]) for q, lowest in earliest.items()
            }
        return earliest

    def _explicit(self, spec: OffsetSpec, wanted: Offsets, queues: Mapping[MessageQueue, str]) -> Offsets:
        earliest, latest = self.earliest(queues), self.latest(queues)
        special = EARLIEST_OFFSET, LATEST_OFFSET
        outside = {
            queue: queues[queue]
            for queue, offset in wanted.items()
            if offset not in special and not earliest[queue] <= offset <= latest[queue]
        }
        if outside:
            masters = self.await_masters(outside)
            earliest |= self.earliest(masters)
            latest |= self.latest(masters)
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

        found = self._ask(
            queues,
            search,
            lambda logic: self._logic.by_timestamp({queue: times_ms[queue] for queue in logic}),
        )
        if self.archive is not None:
            ranges = self.archive.ranges()
            wanted = {queue: time_ms for queue, time_ms in times_ms.items() if queue in ranges}
            archived = first_offsets(self.archive.table(), wanted, self.archive.floors())
            found = {queue: min(offset, archived.get(queue, offset)) for queue, offset in found.items()}
        if is_start and not self._options.unmatched_timestamp_is_latest:
            for queue, offset in found.items():
                if offset >= latest[queue]:
                    raise ConfigError.of(
                        spec.option,
                        f"{_name(queue)} has no message from {times_ms[queue]} on; "
                        "startingOffsetsByTimestampStrategy=latest starts such queues at their end",
                    )
        return found

    def _by_queue(self, option: str, texts: QueueTexts, queues: Mapping[MessageQueue, str]) -> Offsets:
        """The users' ``{topic: {"0" or "broker:0": number}}`` by queue; each queue exactly once."""
        numbers: Offsets = {}
        for topic, by_text in texts.items():
            for text, number in by_text.items():
                meant = _queues_named([queue for queue in queues if queue.topic == topic], text)
                if not meant:
                    raise ConfigError.of(option, f"the read has no queue {text!r} of topic {topic!r}")
                if len(meant) > 1:
                    raise ConfigError.of(
                        option,
                        f"queue {text!r} of {topic!r} is on several brokers; write "
                        f'"{meant[0].broker_name}:{text}"',
                    )
                if meant[0] in numbers:
                    raise ConfigError.of(option, f"{_name(meant[0])} is named twice")
                numbers[meant[0]] = number
        missing = [queue for queue in queues if queue not in numbers]
        if missing:
            raise ConfigError.of(option, f"{_name(missing[0])} is not named; name every queue")
        return numbers

    def committed(self, queues: Mapping[MessageQueue, str]) -> Offsets:
        """The group's offsets; queues that it has never read are left out."""
        group = self._options.group or ""
        committed = self._logic.group_offsets(group, filter(_is_logic, queues))
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
        of_logic: Callable[[list[MessageQueue]], Offsets],
    ) -> Offsets:
        answers = of_logic(list(filter(_is_logic, queues)))
        for address, asked in _by_address(queues).items():
            answers |= zip(asked, question(address, asked), strict=True)
        return {queue: answers[queue] for queue in queues}

    def mean_record_bytes(self, offsets: Offsets) -> float:
        """The mean size of the next few records after these offsets; 0 where there are none."""
        asked: dict[str, int] = {}
        count = size = 0
        for queue, offset in offsets.items():
            address, header = self.pull_of(queue, offset, max_messages=_SAMPLE)
            asked[address] = asked.get(address, 0) + 1
            if asked[address] > _SAMPLED_QUEUES:
                continue
            answer = self.client.request(address, RequestCode.PULL_MESSAGE, header, accept=PULL_ANSWERS)
            if answer.code == ResponseCode.SUCCESS and len(answer.body):
                following = answer.header(PullMessageResponseHeader).next_begin_offset
                count += max(1, following - header.queue_offset)
                size += len(answer.body)
        return size / count if count else 0.0

    def records_from(self, queue: MessageQueue, offset: int) -> bytes | memoryview:
        """A few records from ``offset`` on; empty if there are none. Behind a part of a logic queue, its last
        record."""
        address, header = self.pull_of(queue, offset, max_messages=_SAMPLE)
        answer = self.client.request(address, RequestCode.PULL_MESSAGE, header, accept=PULL_ANSWERS)
        return answer.body if answer.code == ResponseCode.SUCCESS else b""

    # --- loss and progress ------------------------------------------------------------------------------------

    def check_not_expired(self, ranges: Iterable[QueueRange]) -> list[QueueRange]:
        """The ranges without expired messages, those of logic queues as ranges of physical queues. Waits for brokers
        that are away. Raises DataLoss under failOnDataLoss."""
        ranges = list(ranges)
        queues = self._await({each.queue for each in ranges if each.queue not in self._logic})
        here = {each.queue: queues[each.queue] for each in ranges if each.queue in queues}
        earliest = self.earliest({queue: here[queue] for queue in here if not _is_logic(queue)})
        # A new slave begins later than its master.
        doubtful = {each.queue for each in ranges if each.start < earliest.get(each.queue, each.start)}
        if doubtful:
            earliest |= self.earliest(self.await_masters({queue: here[queue] for queue in doubtful}))
        kept = []
        for each in ranges:
            if each.queue not in here and each.queue not in self._logic:
                self.lost(f"{_name(each.queue)} is gone; offsets {each.start} to {each.end} cannot be read")
            elif _is_logic(each.queue):
                kept += self._pieces(each)
            else:
                kept += self._kept(each, earliest[each.queue], each.queue, 0)
        return kept

    def _pieces(self, wanted: QueueRange) -> list[QueueRange]:
        """A range of a logic queue as ranges of physical queues, without expired messages. Raises DataLoss."""
        queue = wanted.queue
        kept = []
        first = self._logic.first_offset(queue)
        if wanted.start < first:
            self._expired(queue, wanted.start, min(first, wanted.end))
        for piece in self._logic.pieces(wanted):
            place = self._logic.place_of(piece.queue)
            if place is not None:
                kept += self._kept(piece, self._logic.lowest(piece.queue), queue, place.delta)
        return kept

    def _kept(self, each: QueueRange, lowest: int, shown: MessageQueue, delta: int) -> list[QueueRange]:
        """The range without expired messages; none if all have expired. Raises DataLoss with the offsets that users
        see."""
        if each.start < lowest:
            self._expired(shown, each.start + delta, min(lowest, each.end) + delta)
            each = QueueRange(each.queue, min(lowest, each.end), each.end)
        return [each] if each.rows > 0 else []

    def _expired(self, queue: MessageQueue, start: int, end: int) -> None:
        """Raises DataLoss."""
        self.lost(f"{_name(queue)}: offsets {start} to {end} have expired")

    def without_gaps(self, start: Offsets, ends: Offsets) -> Offsets:
        """``ends`` as if each offset after ``start`` had a message: between parts of logic queues many have none."""
        return {
            queue: start[queue] + self._logic.count(queue, start[queue], end)
            if _is_logic(queue) and end > start[queue]
            else end
            for queue, end in ends.items()
        }

    def with_gaps(self, start: Offsets, dense: Offsets, ends: Offsets) -> Offsets:
        """The reverse of ``without_gaps`` for offsets that are not beyond ``ends``."""
        return {
            queue: self._logic.advanced(queue, start[queue], ends[queue], dense[queue] - start[queue])
            if _is_logic(queue) and ends[queue] > start[queue]
            else dense[queue]
            for queue in ends
        }

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
            self._outages.over(group, "the offsets of group %s are published again", group)
        except ClientError as error:
            self._outages.failed(
                group, error, "the offsets of group %s could not be published: %s", group, error
            )

    def _publish(self, group: str, offsets: Offsets, published: Offsets) -> None:
        queues = self.queues()
        unknown = {queue: queues[queue] for queue in offsets if queue not in published and queue in queues}
        if unknown:
            if not published:
                self._make_known(group, queues.values())
            committed = self.committed(unknown)
            published |= {queue: committed.get(queue, -1) for queue in unknown}
        due = {q: offset for q, offset in offsets.items() if q in queues and offset > published.get(q, -1)}
        self._logic.commit(group, {queue: due[queue] for queue in filter(_is_logic, due)})
        for address, asked in _by_address({queue: queues[queue] for queue in due}).items():
            self.client.commit_group_offsets(address, group, {queue: due[queue] for queue in asked})
        published |= due

    def _make_known(self, group: str, addresses: Iterable[str]) -> None:
        try:
            self.client.make_topic(retry_topic(group), sorted(set(addresses)))
        except ClientError as error:
            log.warning("mqadmin consumerProgress will not know group %s: %s", group, error)


def _by_address(queues: Mapping[MessageQueue, str]) -> dict[str, list[MessageQueue]]:
    """By broker, without logic queues."""
    grouped: dict[str, list[MessageQueue]] = {}
    for queue, address in queues.items():
        if not _is_logic(queue):
            grouped.setdefault(address, []).append(queue)
    return grouped


def _is_logic(queue: MessageQueue) -> bool:
    """Whether it is a logic queue of a static topic."""
    return is_logic_broker(queue.broker_name)


def _queues_named(queues: Iterable[MessageQueue], text: str) -> list[MessageQueue]:
    """The queues named by ``"0"`` or ``"broker:0"``."""
    broker, _, queue_id = text.rpartition(":")
    return [q for q in queues if q.queue_id == int(queue_id) and broker in ("", q.broker_name)]


def _is_internal(topic: str) -> bool:
    """Topics that a pattern never matches: system topics, retry and dead-letter topics."""
    return is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _name(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic} on {queue.broker_name}"
