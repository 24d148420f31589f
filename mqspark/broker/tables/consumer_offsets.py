"""Committed consumer offsets (ConsumerOffsetManager) and their file.

An offset is that of the next message to consume. A smaller value than the stored one is accepted, because
consumers seek back that way. Pull offsets (how far a group was served) and pending resets are kept in memory
only.

Facts: docs/rocketmq/broker.md#offsets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.clock import Clock
from mqspark.base.config import Bound
from mqspark.base.keyorder import KeyOrder
from mqspark.base.names import sound_only
from mqspark.broker.tables.offset_row import MAX_QUEUE_BYTES, OffsetRow, Rows, decode_offsets
from mqspark.errors import TableFull
from mqspark.message import SYSTEM_GROUP_PREFIX, is_broker_topic
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.admin_bodies import (
    ConsumerOffsetSerializeWrapper,
    LmqConsumerOffsetSerializeWrapper,
)
from mqspark.protocol.bodies.body import to_document
from mqspark.protocol.bodies.topic_bodies import DataVersion
from mqspark.protocol.session import Session
from mqspark.protocol.slices import ESSENTIAL, Work
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID, is_lmq

NOT_FOUND = -1

COPIED_AT_ONCE = 1_024
FOLLOWED_AT_ONCE = 1_024
"""Offsets that are taken over in one slice."""

Table = BoundedMap[tuple[str, str], OffsetRow]
"""(topic, group) → queue id → offset. A pair belongs to the user who was the first to consume it since the start."""

SEARCHED_PAGES = 16
"""Pages of pairs of topic and group that are compared in one slice: up to 8,192 pairs."""

SOUGHT_AT_ONCE = 128
"""Topics that are looked for in one slice: 2 to 5 µs each with 10,000 to a million pairs."""

FOUND_AT_ONCE = 512
"""Groups of sought topics that are found in one slice."""

DROPPED_AT_ONCE = 512
"""Pairs whose offsets are removed in one slice."""

MAX_OFFSET_BYTES = 512 << 20
_PAIR_BYTES = 400
"""With the entry that says whose it is."""
_ONE_QUEUE = OffsetRow({0: 0})


def is_brokers_own(topic: str, group: str) -> bool:
    """Whether the group is the broker's own and the topic is one that the broker reads."""
    return group.startswith(SYSTEM_GROUP_PREFIX) and is_broker_topic(topic)


class ConsumerOffsets:
    def __init__(
        self,
        clock: Clock,
        *,
        version_step: int,
        lmq: bool = False,
        max_bytes: Bound = MAX_OFFSET_BYTES,
    ) -> None:
        """``lmq``: a group that reads light message queues has one offset per topic, whatever the queue id, in a
        table of its own in the file (LmqConsumerOffsetManager)."""
        self.ledger = Ledger(
            "offsets",
            max_bytes,
            "OffsetRow._first",
            "OffsetRow._others",
        )
        self._clock = clock
        self._lmq = lmq
        self._version_step = version_step
        self._commits = 0
        self._table: Table = self.ledger.map(_PAIR_BYTES, _queues_bytes, in_order=True)
        self._pulled: Table = self.ledger.map(_PAIR_BYTES, _queues_bytes, in_order=True)
        self._resets: Table = self.ledger.map(_PAIR_BYTES, _queues_bytes, in_order=True)
        self.data_version = DataVersion(state_version=0, timestamp=clock.now_ms(), counter=0)
        self.generation = 0

    def admit(self, session: Session, group: str, topic: str, queue_id: int | None = None) -> None:
        """Check that a peer may store an offset of this queue, or (None) of some of the topic's queues.

        Raises TableFull.
        """
        queues = self._table.get((topic, group))
        if queues is None or not (queue_id is None or queue_id in queues or (self._lmq and is_lmq(group))):
            self._admit(self._table, session, (topic, group), queue_id)

    def _admit(self, table: Table, session: Session, key: tuple[str, str], queue_id: int | None) -> None:
        queues = table.get(key)
        if queues is None:
            table.admit(key, _ONE_QUEUE, session)
        elif queue_id is not None and queue_id not in queues:
            table.admit_more(MAX_QUEUE_BYTES, session)

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        session: Session | None = None,
        *,
        is_brokers: bool = False,
    ) -> None:
        """Store an offset. ``session``: whose user a new pair belongs to. For the broker's own groups on its own topics
        (POP's revival, transactions) only the broker may (``is_brokers``); commits by others are ignored.

        Never refuses for lack of room; callers that commit for a peer call ``admit`` first.
        """
        if not is_brokers and is_brokers_own(topic, group):
            return
        if self._lmq and is_lmq(group):
            queue_id = LMQ_QUEUE_ID
        self._put(self._table, (topic, group), queue_id, offset, session)
        self.generation += 1
        self._commits += 1
        if self._commits % self._version_step == 0:
            self.step_version()

    def _put(
        self, table: Table, key: tuple[str, str], queue_id: int, offset: int, session: Session | None = None
    ) -> None:
        queues = table.get(key)
        if queues is None:
            table.hold(key, OffsetRow({queue_id: offset}), session)
        elif more_bytes := queues.put(queue_id, offset):
            table.grow(key, more_bytes)

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The pending reset if there is one, otherwise the stored offset, otherwise NOT_FOUND."""
        if (reset := self.pending_reset(group, topic, queue_id)) is not None:
            return reset
        if self._lmq and is_lmq(group):
            queue_id = LMQ_QUEUE_ID
        queues = self._table.get((topic, group))
        return NOT_FOUND if queues is None else queues.get(queue_id, NOT_FOUND)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """A copy: queue id → offset."""
        queues = self._table.get((topic, group))
        return {} if queues is None else queues.as_dict()

    def are_below(self, group: str, topic: str, ends_of: Callable[[int], list[int]]) -> bool:
        """Whether the group has offsets of the first queues only, each from 0 to the end of its queue. ``ends_of``:
        the ends of so many queues."""
        return self._table[topic, group].are_below(ends_of)

    def pulled(self, session: Session, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Not stored when the table is full; nothing depends on it."""
        queues = self._pulled.get((topic, group))
        if queues is not None and queue_id in queues:
            queues.put(queue_id, offset)
            return
        try:
            self._admit(self._pulled, session, (topic, group), queue_id)
        except TableFull:
            return
        self._put(self._pulled, (topic, group), queue_id, offset, session)

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int:
        queues = self._pulled.get((topic, group))
        return NOT_FOUND if queues is None else queues.get(queue_id, NOT_FOUND)

    def reset(self, session: Session, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The next pull of the queue is redirected to ``offset``, which is also stored at once.

        Raises TableFull.
        """
        if is_brokers_own(topic, group):
            return
        for table in (self._resets, self._table):
            self._admit(table, session, (topic, group), queue_id)
        self._put(self._resets, (topic, group), queue_id, offset, session)
        self.commit(group, topic, queue_id, offset, session)

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        if not self._resets:
            return None
        queues = self._resets.get((topic, group))
        return queues.get(queue_id, NOT_FOUND) if queues is not None and queue_id in queues else None

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        if not self._resets:
            return None
        queues = self._resets.get((topic, group))
        if queues is None or queue_id not in queues:
            return None
        before_bytes = queues.size_bytes
        offset = queues.pop(queue_id)
        self._resets.grow((topic, group), queues.size_bytes - before_bytes)
        if not queues:
            del self._resets[topic, group]
        return offset

    def topics_of(self, group: str) -> Work[list[str]]:
        return [topic for topic, _ in (yield from self._search(self._table, lambda key: key[1] == group))]

    def groups_of(self, topic: str) -> Work[list[str]]:
        return [group for _, group in (yield from self.pairs_of({topic}))]

    def pairs_of(self, topics: Set[str]) -> Work[list[tuple[str, str]]]:
        """The (topic, group) of these topics that have offsets."""
        return (yield from self._of_topics(self._table, topics))

    def pairs(self) -> KeyOrder[tuple[str, str]]:
        """Every (topic, group) that has offsets, in their order; nothing is copied."""
        return self._table.in_order

    def clone(self, session: Session, source: str, target: str, topic: str) -> int:
        """Replace the target's offsets of ``topic`` with the source's. Returns their number. Raises TableFull."""
        queues = self._table.get((topic, source))
        if queues is None or is_brokers_own(topic, target):
            return 0
        self._table.put((topic, target), queues.copy(), session)
        self._changed()
        return len(queues)

    def _search(
        self, table: Table, is_wanted: Callable[[tuple[str, str]], bool], *, is_essential: bool = False
    ) -> Work[list[tuple[str, str]]]:
        """Keys of a table, in slices: peers may have made a million."""
        found: list[tuple[str, str]] = []
        for number, page in enumerate(table.in_order.pages()):
            if number % SEARCHED_PAGES == SEARCHED_PAGES - 1:
                yield is_essential
            found += filter(is_wanted, page)
        return found

    def _of_topics(
        self, table: Table, topics: Set[str], *, is_essential: bool = False
    ) -> Work[list[tuple[str, str]]]:
        """The keys of these topics, in their order, without a look at the others."""
        found: list[tuple[str, str]] = []
        for number, topic in enumerate(sorted(topics), 1):
            for key in table.in_order.since((topic, "")):
                if key[0] != topic:
                    break
                found.append(key)
                if len(found) % FOUND_AT_ONCE == 0:
                    yield is_essential
            if number % SOUGHT_AT_ONCE == 0:
                yield is_essential
        return found

    def remove_topics(self, topics: Set[str]) -> Work[None]:
        return self._remove(lambda table: self._of_topics(table, topics, is_essential=True))

    def remove_pair(self, group: str, topic: str) -> None:
        """Forget what a group has of one topic."""
        for table in (self._table, self._pulled, self._resets):
            table.pop((topic, group), None)
        self._changed()

    def remove_group(self, group: str) -> Work[None]:
        def is_doomed(key: tuple[str, str]) -> bool:
            return key[1] == group and not is_brokers_own(*key)

        return self._remove(lambda table: self._search(table, is_doomed, is_essential=True))

    def _remove(self, search: Callable[[Table], Work[list[tuple[str, str]]]]) -> Work[None]:
        for table in (self._table, self._pulled, self._resets):
            doomed = yield from search(table)
            for number, key in enumerate(doomed, 1):
                table.pop(key, None)
                if number % DROPPED_AT_ONCE == 0:
                    yield ESSENTIAL
        self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self.step_version()

    def step_version(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Returns the encoder of the file. It copies the queues of one topic and group at once; each entry is an offset
        that the queue had from now on."""
        version, pages, table = self.data_version, self._table.in_order.pages(), self._table

        def members(of_light: bool) -> Iterator[tuple[str, Any] | None]:
            # No tuple an entry here and above: a hundred thousand new containers start a full garbage collection.
            rows: dict[str, OffsetRow] = {}
            for page in pages:
                for key in page:
                    name = "@".join(key)
                    queues = table.get(key)
                    if queues is not None and (not self._lmq or _is_light(name) == of_light):
                        rows[name] = queues
                yield None
            if of_light:
                yield from fastjson.members_in_order(rows, lambda name: rows[name].get(LMQ_QUEUE_ID, 0))
            else:
                yield from fastjson.members_in_order(rows, lambda name: rows[name].as_dict())

        def encode() -> Iterator[bytes]:
            if not self._lmq:
                document = to_document(ConsumerOffsetSerializeWrapper(data_version=version))
            else:
                document = to_document(LmqConsumerOffsetSerializeWrapper(data_version=version))
                document["lmqOffsetTable"] = members(True)
            document["offsetTable"] = members(False)
            return fastjson.pretty_pieces(document)

        return encode

    def wrapper_in_slices(self) -> Work[ConsumerOffsetSerializeWrapper]:
        """A copy of the table. Offsets may be committed between slices; each entry is an offset that the queue had
        during the call. Its version is that of the beginning: what is committed meanwhile is newer."""
        version, table, done = self.data_version, dict[str, dict[int, int]](), 0
        for topic, group in self.pairs():
            queues = self._table.get((topic, group))
            if queues is None:
                continue
            table[f"{topic}@{group}"] = queues.as_dict()
            done += 1 + len(queues)
            if done >= COPIED_AT_ONCE:
                done = 0
                yield
        return ConsumerOffsetSerializeWrapper(offset_table=table, data_version=version)

    def follow(
        self, parts: deque[Rows], version: DataVersion | None, *, only_further: bool = False
    ) -> Work[None]:
        """Take over the offsets of a master, which are consumed. Those that it does not have stay, as in RocketMQ.
        ``only_further``: so do those that are further here. Raises TableFull."""
        done = 0
        while parts:
            changed = False
            for key, queues in sound_only("offsets", parts.popleft(), separator="@").items():
                done += 1 + len(queues)
                if done >= FOLLOWED_AT_ONCE:
                    done = 0
                    yield
                changed |= self._follow(key, queues, only_further=only_further)
            if changed:
                self.generation += 1
        if version is not None:
            self.data_version = version

    def _follow(self, key: str, queues: Mapping[int, int], *, only_further: bool) -> bool:
        topic, at, group = key.partition("@")
        known = self._table.get((topic, group))
        if only_further and known is not None:
            queues = {
                queue_id: max(offset, known.get(queue_id, NOT_FOUND)) for queue_id, offset in queues.items()
            }
        if not at or (known is not None and known.as_dict() == queues):
            return False
        self.ledger.admit(self._table.size_of((topic, group), _ONE_QUEUE))
        for queue_id, offset in queues.items():
            self._put(self._table, (topic, group), queue_id, offset)
        return True

    def catch_up(self, parts: deque[Rows], version: DataVersion | None) -> Work[None]:
        """Take over what consumers committed at a slave that acted as the master (``offsets_in_slices``). Its offsets
        count if its version is newer than the one here; otherwise those that are further, because the others are a copy
        of what was here. Raises TableFull."""
        is_newer = version is not None and _age(version) > _age(self.data_version)
        yield from self.follow(parts, version if is_newer else None, only_further=not is_newer)

    def load(self, data: bytes) -> None:
        """From ``consumerOffset.json`` or ``lmqConsumerOffset.json``. Raises ProtocolError for a malformed file."""
        rows, version = decode_offsets(data)
        for key, queues in sound_only("offsets", rows, separator="@").items():
            topic, at, group = key.partition("@")
            if not at:
                continue
            if (topic, group) not in self._table:
                self._table.keep((topic, group), queues)
                continue
            for queue_id, offset in queues.items():
                self._put(self._table, (topic, group), queue_id, offset)
        if version is not None:
            self.data_version = version


def _age(version: DataVersion) -> tuple[int, int, int]:
    """In the order of DataVersion.compare."""
    return version.state_version, version.counter, version.timestamp


def _queues_bytes(queues: OffsetRow) -> int:
    return queues.size_bytes


def _is_light(key: str) -> bool:
    return is_lmq(key.partition("@")[2])
