"""The invariants of state machines. ``validate`` is silent while all is well, and raises AssertionError for a part
whose tables contradict each other. It visits everything. Property tests call it after every step."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.broker.broker import BrokerCore
from mqspark.broker.lite.lite_service import LiteService
from mqspark.broker.lite.liteclients import LiteClients
from mqspark.broker.lite.liteparked import LiteParked
from mqspark.broker.pop.acting_pops import ActingPops
from mqspark.broker.pop.parked_pops import ParkedPops
from mqspark.broker.pop.pop_service import PopService
from mqspark.broker.pop.poporder import PopOrder
from mqspark.broker.pop.revive import PopRevival
from mqspark.broker.pop.start_offsets import PopOffsets
from mqspark.broker.pull.held_pulls import HeldPulls
from mqspark.broker.pull.parked_pulls import ParkedPulls, Pull
from mqspark.broker.replication.acting import ActingMaster
from mqspark.broker.schemaregistry.schemaregistry import SchemaRegistry
from mqspark.broker.schemaregistry.subjects import Subjects
from mqspark.broker.state.groups import ClientGroups
from mqspark.broker.state.heldrequests import HeldRequests
from mqspark.broker.state.locks import QueueLocks
from mqspark.broker.state.slots import SLOT_MS, Slots
from mqspark.broker.tables.consumer_filters import ConsumerFilters
from mqspark.broker.timer.timerservice import TimerService
from mqspark.message import TIMER_TOPIC, MessageQueue
from mqspark.protocol.receipts import retry_topic_v1, retry_topic_v2
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.queue.consumequeue import ConsumeQueue
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.store import MessageStore
from mqspark.store.storedata import StoreData
from mqspark.store.timer import timerwheel
from mqspark.store.timer.timerlog import NONE
from mqspark.store.timer.timerwheel import SLOTS, TimerWheel

if TYPE_CHECKING:
    from mqspark_server.proxy.clients.renewals import Renewals


@functools.singledispatch
def validate(part: object) -> None:
    """Check the invariants of a part, and of those that it consists of."""
    raise TypeError(f"no invariants are known of {part!r}")


@validate.register
def _(part: Ledger) -> None:
    """Compare with what is in the maps and sets. A ledger without any keeps the books of an owner."""
    if not part._maps:
        return
    for each in part._maps:
        _order(each)
    entries = [size for each in part._maps for size in sizes(each)]
    assert (part.entries, part.bytes) == (len(entries), sum(entries)), (
        f"{part.name}: {part.entries} entries of {part.bytes} bytes, there are {len(entries)} of {sum(entries)}"
    )


def sizes(part: BoundedMap) -> Iterator[int]:
    """The sizes of all entries, and of those of the maps in them."""
    for key, value in part.items():
        yield part.size_of(key, value)
        inner = (value,) if isinstance(value, BoundedMap) else getattr(value, "bounded", ())
        for each in inner:
            yield from sizes(each)


def _order(part: BoundedMap) -> None:
    if part._order is not None:
        assert list(part._order) == sorted(part), f"{part._ledger.name}: the keys are not in order"


@validate.register
def _(part: MessageStore) -> None:
    """Check the invariants of the log and of the queues."""
    validate(part.data)


@validate.register
def _(part: StoreData) -> None:
    """Check the invariants of the log and of the queues."""
    validate(part.log)
    for table in part.tables:
        validate(table)


@validate.register
def _(part: CommitLog) -> None:
    """Check the invariants of segments and positions."""
    for segment in part.segments:
        assert segment.start % part.segment_bytes == 0, f"a segment starts at {segment.start}"
        assert segment.end == segment.start + part.segment_bytes, f"a segment ends at {segment.end}"
    starts = [segment.start for segment in part.segments]
    assert starts == sorted(set(starts)), f"segments are out of order: {starts}"
    assert part.durable <= part.written <= part.position, "more is durable or written than was appended"
    if part._fd < 0:
        return
    active = part.segments[-1]
    assert active.start <= part.written, "the end of an earlier segment is not written"
    assert part.position <= active.end, "the position is behind the active segment"
    waiting = sum(map(len, part.pending))
    was_dropped = not part.pending and part.room_end < 0
    assert was_dropped or waiting == part.position - part.written, (
        f"{waiting} bytes wait, positions say {part.position - part.written}"
    )
    assert part.room_end <= part._allocated_end, "room ends where nothing is allocated"


@validate.register
def _(part: QueueTable) -> None:
    """Check the queues and their keys."""
    for key, queue in part.queues.items():
        assert key == queue.key, f"{queue!r} is in the table as {key}"
        validate(queue)
    assert list(part.light_names()) == sorted(part.light), "the light queues are not in order"
    assert list(part.in_order) == sorted(part.queues), "the keys of the queues are not in order"
    hidden = [queue for queues in part.hidden.values() for queue in queues]
    visible = set(map(id, part.queues.values()))
    assert not any(id(queue) in visible for queue in hidden), "a deleted queue is visible"


@validate.register
def _(part: ConsumeQueue) -> None:
    """Check the invariants of offsets and files."""
    assert 0 <= part.min_offset <= part.max_offset <= part.next_offset, (
        f"{part!r} with next offset {part.next_offset}: its offsets are out of order"
    )
    assert len(part.entries) % part._entry_bytes == 0, f"{part!r} has a part of an entry"
    assert not part.entries or part.max_offset < part.next_offset, f"{part!r} has entries without offsets"
    assert (
        part._tail_end < 0 or (part.max_offset * part._entry_bytes - part._tail_at) % part._file_bytes == 0
    ), f"{part!r} goes on at byte {part._tail_at} of its file"
    starts = part.file_starts
    assert starts == sorted(set(starts)), f"files of {part!r} are out of order: {starts}"
    assert not any(start % part._file_bytes for start in starts), f"a file of {part!r} starts inside one"


def sound_wheel(part: TimerWheel, log_end: int) -> None:
    """Check the slots against each other and the end of the timer log."""
    used = np.flatnonzero(part._slots["tick"])
    slots = part._slots[used]
    assert len(used) == part.used_count, f"{part.used_count} slots are counted, {len(used)} are used"
    assert timerwheel._digest(slots) == part._digest, "the digest is not that of the slots"
    assert timerwheel._sum_of_messages(slots) == part._messages, "the messages of the slots are counted wrong"
    assert (slots["tick"] % SLOTS == used).all(), "a tick is in the slot of another one"
    assert (slots["first"] <= slots["last"]).all(), "a chain begins after its end"
    assert (slots["last"] < log_end).all(), "a chain ends after the timer log"


@validate.register
def _(part: BrokerCore) -> None:
    """Check the invariants of all tables, of clients, locks, parked requests, POP and timers."""
    state = part.state
    pulls = part.pulls
    for each in (state.clients, state.filters, state.locks, pulls.parked, pulls.held):
        validate(each)
    for table in part.bounds.ledgers:
        validate(table)
    validate(part.pop)
    validate(part.services.lite)
    validate(part.services.schemas)
    validate(part.timers)
    if part.role.acting is not None:
        validate(part.role.acting)


@validate.register
def _(part: ClientGroups) -> None:
    """Check that no group is empty, and that a lost connection finds its members."""
    tables = [(group.name, group.members) for group in part._consumers.values()]
    for name, members in (*tables, *part._producers.items()):
        assert members, f"group {name} has no members"
        for client_id, member in members.items():
            known = part._groups_of.get(member.session.id, ())
            assert name in known, f"connection {member.session.id} of {client_id} is not one of {name}"
    counted = Counter(
        client_id for _, members in (*tables, *part._producers.items()) for client_id in members
    )
    held = {client_id: holder.memberships for client_id, holder in part._holders.items()}
    assert held == counted, f"client ids {held} have the memberships {counted}"
    for session_id, names in part._groups_of.items():
        assert names, f"connection {session_id} has no groups"


@validate.register
def _(part: ConsumerFilters) -> None:
    assert all(part._table.values()), "a topic has no filters"


@validate.register
def _(part: QueueLocks) -> None:
    """Check that no group is without a lock."""
    assert all(part._holders.values()), "a group holds nothing"


def _held(part: HeldRequests, requests: Iterable[Any]) -> None:
    """These, and no others, are held."""
    there = Counter(map(id, requests))
    assert there == Counter(map(id, part.requests)), "what is held is not what waits"
    filters = Counter(id(each.wanted) for each in part.requests if each.wanted is not None)
    assert filters == {key: uses for key, (_, uses) in part._filters.items()}, "the filters held are others"


def _in_slots(part: Slots, waiting: list[Any]) -> None:
    """Each of these, and no other, is found in time."""
    for number, slot in part._slots.items():
        assert slot, f"nobody is in slot {number}"
        assert all(each.slot == number for each in slot), f"a request is in slot {number}"
        assert all(number * SLOT_MS < each.deadline_ms + SLOT_MS for each in slot), "a request is found late"
    assert sorted(map(id, waiting)) == sorted(id(each) for slot in part._slots.values() for each in slot), (
        "those who wait are not those who are found"
    )


@validate.register
def _(part: ParkedPulls) -> None:
    """Check that every pull waits for a later message of its queue, is found in time, and is counted once."""
    parked: list[Pull] = []
    for topic, queues in part._waiting.items():
        assert queues, f"nobody waits for {topic}"
        for queue_id, pulls in queues.items():
            assert pulls, f"nobody waits for queue {queue_id} of {topic}"
            parked += pulls
            for pull in pulls:
                assert (pull.topic, pull.queue_id) == (topic, queue_id), f"{pull.topic} waits for {topic}"
    _in_slots(part._slots, parked)
    _held(part._requests, parked)


@validate.register
def _(part: HeldPulls) -> None:
    """Check that the longest waiting pulls come first."""
    times = [pull.deadline_ms for pull in part._held]
    assert times == sorted(times), "a held pull waits behind a later one"
    _held(part._requests, part._held)


@validate.register
def _(part: ParkedPops) -> None:
    """Check that messages of a topic and of its retry topics find their waiters, and that each is found in time."""
    parked: list[Any] = []
    for key, queues in part._waiting.items():
        assert queues, f"nobody waits for {key}"
        assert key[1] in part._groups.get(key[0], ()), f"{key} is not found by its topic"
        for name in (retry_topic_v1(*key), retry_topic_v2(*key)):
            assert name in part._retries, f"{key} is not found by {name}"
        for queue_id, waiters in queues.items():
            assert waiters, f"nobody waits for queue {queue_id} of {key}"
            parked += waiters
    pairs = {(topic, group) for topic, groups in part._groups.items() for group in groups}
    assert pairs == part._waiting.keys(), f"{pairs} are found by their topics, {part._waiting.keys()} wait"
    _in_slots(part._slots, parked)
    _held(part._requests, parked)


@validate.register
def _(part: PopService) -> None:
    for each in (part.pops.parked, part._watch.parked, part._offsets, part._order, part._revival):
        validate(each)


@validate.register
def _(part: ActingPops) -> None:
    validate(part._pops.parked)
    validate(part._offsets)


@validate.register
def _(part: ActingMaster) -> None:
    validate(part._pops)


@validate.register
def _(part: PopOrder) -> None:
    """Check that every blocked queue has a time at which it is looked at again."""
    times = set(part._free)
    for key, free_ms in part._free_at.items():
        assert (free_ms, key) in times, f"{key} is not in the heap for {free_ms}"
    now_ms = part._state.clock.now_ms()
    for key, info in part._infos.items():
        visible_ms = info.visible_ms()
        if visible_ms is not None and visible_ms > now_ms:
            assert key in part._free_at, f"{key} is blocked forever"


@validate.register
def _(part: PopRevival) -> None:
    """Check that every open check point comes up in time, and that none is read twice."""
    for queue in part._queues:
        due = {(offset, key) for _, offset, key in queue.by_time}
        for key, check_point in queue.open.items():
            is_away = (queue.queue_id, check_point.revive_offset) in part._away
            assert is_away or (check_point.revive_offset, key) in due, f"{key} never comes up"
            assert check_point.revive_offset < queue.next_offset, f"{key} has not been read yet"
        assert not queue.early_acks.keys() & queue.open.keys(), (
            "an acknowledgement waits for an open check point"
        )


@validate.register
def _(part: PopOffsets) -> None:
    """What is ahead of its check points has check points that are under way."""
    for key, ahead in part._ahead.items():
        assert ahead.steps > 0, f"{key} is ahead of nothing"
        assert not ahead.is_void, f"{key} is ahead of nothing"


@validate.register
def _(part: LiteService) -> None:
    validate(part.clients)
    validate(part.pops.parked)
    validate(part.watch.parked)


@validate.register
def _(part: LiteClients) -> None:
    """Check that the tables agree."""
    clients = part._clients.values()
    pairs = {
        (queue, client.client_id): place
        for queue, groups in part._by_queue.items()
        for readers in groups.values()
        for place, client in enumerate(readers)
    }
    wanted = {
        (queue, client.client_id): place for client in clients for queue, place in client.queues.items()
    }
    assert pairs == wanted, "the tables of lite subscriptions differ"
    readers = [each for groups in part._wildcards.values() for each in groups.values()]
    places = {client.client_id: place for each in readers for place, client in enumerate(each)}
    wanted_places = {client.client_id: client.place for client in clients if client.place >= 0}
    assert places == wanted_places, "the clients that read all lite topics differ"
    events = {(queue, client.group): client for client in clients for queue in client.events}
    assert events == part._holders, "the events and their holders differ"
    assert sum(len(client.events) for client in clients) == len(events), "a group has an event twice"


@validate.register
def _(part: LiteParked) -> None:
    parked = [waiter for waiting in part._waiting.values() for waiter in waiting]
    assert set(parked) == set(part._all), "what is held is not what waits"
    assert set(parked) <= set(part._deadlines), "a request is never found"


@validate.register
def _(part: SchemaRegistry) -> None:
    validate(part.subjects)


@validate.register
def _(part: Subjects) -> None:
    """For tests: it visits everything."""
    places = {place for each in part._places.values() for place in each}
    assert places == part._versions.keys(), "each version has its place at its schema"
    numbers = {(subject, number) for subject, each in part._numbers.items() for number in each}
    assert numbers == part._versions.keys(), "each version is in the list of its subject"
    assert part._places.keys() == part._schemas.keys(), "each schema has versions"


@validate.register
def _(part: TimerService) -> None:
    """Check the wheel, the timer log and the progress between them."""
    if part._is_broken:
        return
    log_end = part._timer_log.position
    sound_wheel(part._wheel, log_end)
    for slot in part._wheel.used(1):
        _chain(part, int(slot["tick"]), int(slot["first"]), int(slot["last"]))
    end = part._store.offsets.max_offset(TIMER_TOPIC, 0)
    assert part._queue_offset <= max(end, 0), f"{part._queue_offset} of {end} messages are enqueued"
    assert part._new_floors.items() <= part._floors.items(), "a new floor is not the floor of its tick"
    assert all(floor <= log_end for floor in part._floors.values()), "a floor is after the timer log"
    marks = [position for position, _, _ in part._undurable]
    assert marks == sorted(marks), "checkpoints wait out of order"
    for _, checkpoint, _ in part._undurable:
        assert checkpoint.log_position <= log_end, "a checkpoint is ahead of the timer log"
        assert checkpoint.queue_offset <= max(end, 0), "a checkpoint is ahead of the queue"
    for walk in (part._walk, part._ahead):
        reads_on = walk is None or walk.cursor == NONE or walk.cursor >= walk.floor
        assert reads_on, "a slot is read beyond what was delivered"


def _chain(part: TimerService, tick: int, first: int, at: int) -> None:
    while at != NONE and at >= first:
        record = part._timer_log.record(at)
        assert record is not None, f"tick {tick} has no record at {at}"
        assert record.previous < at, f"the chain of tick {tick} does not go back at {at}"
        at = record.previous


def sound_renewals(renewals: Renewals) -> None:
    """What is held, what is due and whose it is agree."""
    validate(renewals.ledger)
    waiting = {*renewals._due, *renewals._again}
    assert waiting <= set(renewals._held.values()), "a receipt is renewed that nobody has"
    idle = {held for held in renewals._held.values() if held.under_way is None}
    assert idle <= waiting, "a receipt is never renewed"
    pairs = {(client, place) for client, places in renewals._clients.items() for place in places}
    assert pairs == renewals._held.keys(), "the clients' receipts are not those that are held"


def lock_holders(locks: QueueLocks) -> dict[tuple[str, MessageQueue], str]:
    """The client id that holds the lock of a group's queue."""
    return {
        (group, queue): client_id
        for group, held in locks._holders.items()
        for queue, (client_id, _) in held.items()
    }
