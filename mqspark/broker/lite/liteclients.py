"""Subscriptions of clients to lite topics, and clients with new messages (LiteSubscriptionRegistryImpl,
LiteEventDispatcher).

A client has a set of lite queues. When one of them gets a message, its name becomes an *event* of one client of each
group that subscribes to it; the client's next pop reads the queues that its events name. A group has at most one event
of a queue, however many clients it has, and finding a client for it looks at a bounded number of them.

Events are hints. When one is lost, because the client's list was full or the client went away, a full dispatch
follows, which looks at all queues that a client subscribes to.

Subscriptions are in memory only. Clients repeat all of them from time to time; clients that do not are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from mqspark.base.bounded import BoundedMap, BoundedSet, Ledger, weigh
from mqspark.base.config import Limit
from mqspark.base.logs import printable, sparing
from mqspark.broker.state.litenames import flag, is_exclusive, is_wildcard, most_events, parent_and_lite
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.bodies.lite_bodies import OffsetOption
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import encode_request
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.client_headers import NotifyUnsubscribeLiteRequestHeader
from mqspark.protocol.session import Session
from mqspark.protocol.slices import ESSENTIAL, Work
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID

INACTIVE_MS = 10_000
"""A client that has events, and has not asked for any for this time, is skipped."""
LONG_POLL_MS = 35_000
"""A client that has not asked for events for this time is gone, or busy."""
ACTIVE_MS = 5_000
AVOIDED_MS = 10_000
"""How long a skipped client is the last choice for events."""
LOW_WATER = 0.2
"""A client with a smaller share of its events left gets a full dispatch."""
LEAST_DELAY_MS = 50
QUEUES_AT_ONCE = 256
"""Queues that are looked at, or subscriptions that are changed, in one slice."""
CLIENTS_AT_ONCE = 32
"""Clients that are forgotten, or get a full dispatch, in one slice, if they have few queues."""
EVENTS_AT_ONCE = 256
"""Events that one pop takes."""
CANDIDATES = 64
"""Clients of a group that are looked at to find one for an event."""

_CLIENT_BYTES = 1_600
_EVENT_BYTES = 280
"""What an event of a client weighs, with that of its group."""
_PAIR_BYTES = 900
"""A client's subscription to one queue: in both tables, and perhaps among its events."""

_log = sparing(__name__)


class LiteClient:
    __slots__ = (
        "accessed_ms",
        "avoided_until_ms",
        "client_id",
        "events",
        "evicted",
        "group",
        "place",
        "queues",
        "session",
        "topic",
        "updated_ms",
    )

    def __init__(self, client_id: str, group: str, topic: str, now_ms: int, clients: LiteClientsById) -> None:
        self.client_id = client_id
        self.group = group
        self.topic = topic
        self.session: Session | None = None
        self.queues: BoundedMap[str, int] = clients.inner_map(_PAIR_BYTES)
        """The lite queues that it subscribes to, and its place among the clients of its group that do."""
        self.evicted: BoundedSet[str] = clients.inner_set()
        """Exclusive queues that another client took from it (ExclusiveEvictionTombstones): it may not know yet, and
        gets them only by asking for them by name."""
        self.place = -1
        """Its place among the clients of its group, if that reads all lite topics of the parent."""
        self.events: dict[str, None] = {}
        """Queues with new messages, oldest first."""
        self.updated_ms = now_ms
        """Time of the last change of its subscriptions, or of a repetition of all of them; monotonic as the next ones,
        so that a clock that is set forward makes nobody silent."""
        self.accessed_ms = now_ms
        """Time of its last pop."""
        self.avoided_until_ms = 0

    @property
    def bounded(self) -> tuple[BoundedMap[str, int], BoundedSet[str]]:
        return self.queues, self.evicted


LiteClientsById = BoundedMap[str, LiteClient]


class LiteClients:
    def __init__(self, state: BrokerState, moved: Callable[[str, str], None]) -> None:
        """``moved(queue, group)``: the group's offset was reset."""
        self._state = state
        self.on_event: Callable[[str], None] = lambda client_id: None
        """Called with the id of a client that has an event."""
        self._moved = moved
        self.ledger = Ledger(
            "liteSubscriptions",
            Limit(state.config, "max_lite_table_bytes"),
            "LiteClients._by_queue",
            "LiteClients._holders",
            "LiteClients._wildcards",
            "LiteClients._full_due_ms",
            "LiteClient.events",
            most=Limit(state.config, "max_lite_subscription_count"),
        )
        self._clients: LiteClientsById = self.ledger.map(_CLIENT_BYTES, _names_bytes)
        """A client belongs to the user over whose connection it came, with all its queues and events."""
        self.all = self._clients
        """To be looked at only: every turn asks whether there are any."""
        self._by_queue: dict[str, dict[str, list[LiteClient]]] = {}
        """Lite queue → group → its clients that subscribe to the queue."""
        self._wildcards: dict[str, dict[str, list[LiteClient]]] = {}
        """Parent topic → group → the clients of a group that reads all lite topics of the parent."""
        self._holders: dict[tuple[str, str], LiteClient] = {}
        """(queue, group) → the client of the group that has an event of the queue."""
        self._full_due_ms: dict[str, int] = {}
        """Client id → when it gets a full dispatch, monotonic."""
        self._is_expiring = self._is_scanning = self._is_dispatching = False
        """Such work is not finished yet."""
        self.active = 0
        """Subscriptions of all clients to all queues."""

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, client_id: str) -> LiteClient | None:
        return self._clients.get(client_id)

    def find_of(self, client_id: str, group: str) -> LiteClient | None:
        """The client, if it is one of this group."""
        client = self._clients.get(client_id)
        return None if client is None or client.group != group else client

    def subscribers(self, queue: str) -> list[tuple[str, str]]:
        """(client id, group); of a group that reads all lite topics one pair with the client id ``*``."""
        groups = self._by_queue.get(queue, {})
        pairs = [(client.client_id, group) for group, readers in groups.items() for client in readers]
        parts = parent_and_lite(queue)
        return pairs + [("*", group) for group in self._wildcards.get(parts[0] if parts else "", ())]

    # --- subscriptions ---

    def check(self, client_id: str, session: Session) -> None:
        """The client id must belong to the session's user, as in a heartbeat. Raises Refusal."""
        clients = self._state.clients
        clients.check_holder(client_id, session)
        client = self._clients.get(client_id)
        if client is not None and client.session is not None and client.session.open:
            clients.check_same_user(client_id, session, client.session)

    def add(
        self, client_id: str, group: SubscriptionGroupConfig, topic: str, queues: Iterable[str],
        session: Session, option: OffsetOption | None,
    ) -> Work[None]:  # fmt: skip
        """PARTIAL_ADD. Raises Refusal, TableFull."""
        most = self._state.config.max_lite_subscription_count
        if self.active >= most:
            raise Refusal(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"org.apache.rocketmq.broker.lite.LiteQuotaException: lite subscription quota exceeded {most}",
            )
        if is_wildcard(group):
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                "java.lang.IllegalStateException: subscribe lite operation is not supported for this group",
            )
        client = self._client(client_id, group.group_name, topic, session)
        for number, queue in enumerate(queues, 1):
            if number % QUEUES_AT_ONCE == 0:
                yield ESSENTIAL
            if is_exclusive(group):
                self._exclude_others(client, group, queue, session)
            client.evicted.discard(queue)
            self._reset(session, queue, group.group_name, option)
            self._join(client, queue, session)

    def remove(
        self, client_id: str, group_name: str, topic: str, queues: Iterable[str], session: Session
    ) -> Work[None]:
        """PARTIAL_REMOVE."""
        client = self._clients.get(client_id)
        if client is None or (client.group, client.topic) != (group_name, topic):
            return
        client.updated_ms = self._state.clock.monotonic_ms()
        group = self._state.subscriptions.configured(group_name)
        resets = group is not None and flag(group, "lite.sub.reset.offset.unsubscribe")
        for number, queue in enumerate(queues, 1):
            if number % QUEUES_AT_ONCE == 0:
                yield ESSENTIAL
            if self._leave(client, queue) and resets:
                self._move(session, queue, client.group, 0)

    def replace(
        self, client_id: str, group: SubscriptionGroupConfig, topic: str, queues: list[str], session: Session
    ) -> Work[None]:
        """COMPLETE_ADD: these are all. Raises Refusal, TableFull."""
        client = self._client(client_id, group.group_name, topic, session)
        if is_wildcard(group):
            if client.place < 0:
                readers = self._wildcards.setdefault(topic, {}).setdefault(client.group, [])
                client.place = len(readers)
                readers.append(client)
                self.active += 1
                self.schedule_full(client, 5_000)
            return
        wanted = set(queues)
        for number, queue in enumerate([queue for queue in client.queues if queue not in wanted], 1):
            if number % QUEUES_AT_ONCE == 0:
                yield ESSENTIAL
            self._leave(client, queue)
        for queue in [queue for queue in client.evicted if queue not in wanted]:
            client.evicted.discard(queue)
        for number, queue in enumerate(queues, 1):
            if number % QUEUES_AT_ONCE == 0:
                yield ESSENTIAL
            if queue in client.evicted and is_exclusive(group):
                self._tell_unsubscribed(client, queue)  # it has not heard it
                continue
            if queue not in client.queues and self.active >= self._state.config.max_lite_subscription_count:
                break  # RocketMQ does not limit these; a request for more by name gets an error
            self._join(client, queue, session)

    def remove_client(self, client_id: str, group: str, topic: str) -> Work[None]:
        """COMPLETE_REMOVE."""
        client = self._clients.get(client_id)
        if client is not None and (client.group, client.topic) == (group, topic):
            yield from self._drop(client)

    def _drop(self, client: LiteClient) -> Work[None]:
        """Its events go to other clients of its group. A client that subscribes again meanwhile stays."""
        updated_ms = client.updated_ms
        client.evicted.clear()
        for number, queue in enumerate(list(client.queues), 1):
            if number % QUEUES_AT_ONCE == 0:
                yield ESSENTIAL
            if client.updated_ms != updated_ms:
                return
            self._leave(client, queue)
        self._leave_all(client)
        for number, queue in enumerate(list(client.events), 1):
            if number % QUEUES_AT_ONCE == 0:
                yield ESSENTIAL
            if client.updated_ms != updated_ms:
                return
            if self._take_event(client, queue):
                self.dispatch(queue, client.group)
        if self._clients.get(client.client_id) is client and not client.queues and not client.events:
            del self._clients[client.client_id]
            self._full_due_ms.pop(client.client_id, None)

    def _leave_all(self, client: LiteClient) -> None:
        """It no longer reads all lite topics of its parent."""
        if client.place < 0:
            return
        groups = self._wildcards[client.topic]
        readers, place, client.place = groups[client.group], client.place, -1
        last = readers.pop()
        if last is not client:
            readers[place], last.place = last, place
        if not readers:
            del groups[client.group]
        if not groups:
            del self._wildcards[client.topic]
        self.active -= 1

    def expire(self) -> None:
        """Forget clients that have not repeated their subscriptions (liteSubscriptionCheckTimeoutMills)."""
        if not self._is_expiring:
            self._is_expiring = True
            self._state.long_work.begin(None, self._expire())

    def _expire(self) -> Work[None]:
        oldest_ms = (
            self._state.clock.monotonic_ms() - self._state.config.lite_subscription_check_timeout_mills
        )
        over = [client for client in self._clients.values() if client.updated_ms < oldest_ms]
        try:
            for number, client in enumerate(over, 1):
                if client.updated_ms < oldest_ms:
                    yield from self._drop(client)
                if number % CLIENTS_AT_ONCE == 0:
                    yield ESSENTIAL
        finally:
            self._is_expiring = False

    def forget_queue(self, queue: str) -> Work[None]:
        """The lite topic was removed."""
        groups = self._by_queue.get(queue, {})
        gone = [client for readers in groups.values() for client in readers]
        for number, client in enumerate(gone, 1):
            if number % QUEUES_AT_ONCE == 0:
                yield ESSENTIAL
            self._leave(client, queue)

    def _client(self, client_id: str, group: str, topic: str, session: Session) -> LiteClient:
        """Raises Refusal, TableFull."""
        now_ms = self._state.clock.monotonic_ms()
        client = self._clients.get(client_id)
        if client is not None and (client.group, client.topic) != (group, topic):
            # Its queues, events and offsets are those of the other group.
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"client id {printable(client_id, 80)} subscribes for another group or topic already",
            )
        if client is None:
            client = LiteClient(client_id, group, topic, now_ms, self._clients)
            self._clients.put(client_id, client, session)
        client.session = session
        client.updated_ms = now_ms
        return client

    def _join(self, client: LiteClient, queue: str, session: Session) -> None:
        if queue in client.queues or self._clients.get(client.client_id) is not client:
            return
        client.queues.admit(queue, 0, session)
        has_event = self._take_event(client, queue)
        readers = self._by_queue.setdefault(queue, {}).setdefault(client.group, [])
        client.queues.keep(queue, len(readers), self._clients.owner_of(client.client_id))
        readers.append(client)
        self.active += 1
        if has_event:
            self._put_event(client, queue)
        if self._state.store.offsets.max_offset(queue, LMQ_QUEUE_ID) > 0:
            self.dispatch(queue, client.group)

    def _leave(self, client: LiteClient, queue: str) -> bool:
        if queue not in client.queues:
            return False
        had_event = self._take_event(client, queue)
        place = client.queues.pop(queue)
        groups = self._by_queue[queue]
        readers = groups[client.group]
        last = readers.pop()
        if last is not client:
            readers[place] = last
            last.queues.replace(queue, place)
        if not readers:
            del groups[client.group]
        if not groups:
            del self._by_queue[queue]
        self.active -= 1
        if had_event:  # another client of the group may need it
            self.dispatch(queue, client.group)
        return True

    def _exclude_others(
        self, newcomer: LiteClient, group: SubscriptionGroupConfig, queue: str, session: Session
    ) -> None:
        for client in list(self._by_queue.get(queue, {}).get(newcomer.group, ())):
            if client is newcomer:
                continue
            self._leave(client, queue)
            client.evicted.keep(
                queue, None, self._clients.owner_of(client.client_id)
            )  # lighter than what left
            self._tell_unsubscribed(client, queue)
            if flag(group, "lite.sub.reset.offset.exclusive"):
                self._move(session, queue, client.group, 0)

    def _tell_unsubscribed(self, client: LiteClient, queue: str) -> None:
        parts, session = parent_and_lite(queue), client.session
        if parts is None or session is None or not session.open or session.room <= 0:
            return
        header = NotifyUnsubscribeLiteRequestHeader(
            lite_topic=parts[1], consumer_group=client.group, client_id=client.client_id
        )
        session.send(
            encode_request(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, session.next_opaque(), header, oneway=True)
        )

    def _reset(self, session: Session, queue: str, group: str, option: OffsetOption | None) -> None:
        """The offset at which the group begins, according to the subscription."""
        if option is None:
            return
        offsets, store = self._state.offsets, self._state.store
        current = offsets.query(group, queue, LMQ_QUEUE_ID)
        target: int | None = None
        if option.type == "POLICY" and option.value == 1:
            target = 0
        elif option.type == "POLICY" and option.value == 2:
            target = max(0, store.offsets.max_offset(queue, LMQ_QUEUE_ID))
        elif option.type == "OFFSET":
            target = max(0, option.value)
        elif option.type == "TAIL_N" and current >= 0:
            target = max(0, current - option.value)
        if target is not None and target != current:
            self._move(session, queue, group, target)

    def _move(self, session: Session, queue: str, group: str, offset: int) -> None:
        self._state.offsets.reset(session, group, queue, LMQ_QUEUE_ID, offset)
        self._moved(queue, group)

    # --- events ---

    def dispatch(self, queue: str, group: str | None = None, exclude: str | None = None) -> None:
        """The queue has a message: an event for one client of each group, or of this one."""
        named = self._by_queue.get(queue, {})
        parts = parent_and_lite(queue) if self._wildcards else None
        every = {} if parts is None else self._wildcards.get(parts[0], {})
        for name in (*named, *every) if group is None else (group,):
            readers = named.get(name) or every.get(name)
            if readers:
                self._give(queue, name, readers, exclude)

    def _give(self, queue: str, name: str, readers: list[LiteClient], exclude: str | None) -> None:
        """An event for a client of the group ``name``; if none can take it now, full dispatches follow. One that is
        avoided gets it only when no other can. Of many clients those that follow on a random one are looked at."""
        holder = self._holders.get((queue, name))
        if holder is not None:
            self.on_event(holder.client_id)
            return
        settings, now_ms = self._state.config, self._state.clock.monotonic_ms()
        group = self._state.subscriptions.configured(name)
        most = most_events(self._state, group)
        delay_ms = settings.lite_event_full_dispatch_delay_time
        if group is not None and is_wildcard(group):
            delay_ms = settings.lite_event_full_dispatch_delay_time_for_wildcard_group
        start = self._state.random.randrange(len(readers)) if len(readers) > 1 else 0
        last_choice: LiteClient | None = None
        for number in range(start, start + min(len(readers), CANDIDATES)):
            client = readers[number % len(readers)]
            if not self._may_hold(client, queue, most):
                self.schedule_full(client, delay_ms)
            elif client.client_id == exclude or client.avoided_until_ms > now_ms:
                last_choice = last_choice or client
            else:
                last_choice = client
                break
        if last_choice is not None:
            self._put_event(last_choice, queue)
            self.on_event(last_choice.client_id)

    def _may_hold(self, client: LiteClient, queue: str, most: int) -> bool:
        """Whether there is room for one event more. That of a queue to which the client subscribes by name, or its
        only one, always fits into the tables."""
        if len(client.events) >= most:
            return False
        if queue in client.queues or not client.events:
            return True
        return self._clients.has_room_to_grow(client.client_id, _event_bytes(queue))

    def _put_event(self, client: LiteClient, queue: str) -> None:
        client.events[queue] = None
        self._holders[queue, client.group] = client
        if queue not in client.queues:
            self._clients.grow(client.client_id, _event_bytes(queue))

    def _take_event(self, client: LiteClient, queue: str) -> bool:
        """Whether the client had it."""
        if queue not in client.events:
            return False
        del client.events[queue]
        del self._holders[queue, client.group]
        if queue not in client.queues:
            self._clients.grow(client.client_id, -_event_bytes(queue))
        return True

    def subscribes(self, client_id: str, group: str, topic: str) -> bool:
        client = self._clients.get(client_id)
        return client is not None and (client.group, client.topic) == (group, topic)

    def has_event(self, client_id: str, group: str, topic: str) -> bool:
        client = self._clients.get(client_id)
        return client is not None and (client.group, client.topic) == (group, topic) and bool(client.events)

    def events_of(self, client_id: str, group: str, topic: str) -> Iterator[str]:
        """Take the events of a client that asks for this group and topic, oldest first, as long as it takes them and at
        most EVENTS_AT_ONCE."""
        client = self._clients.get(client_id)
        if client is None or (client.group, client.topic) != (group, topic):
            return
        client.accessed_ms = self._state.clock.monotonic_ms()
        for queue in list(islice(client.events, EVENTS_AT_ONCE)):
            if self._take_event(client, queue):
                yield queue

    def put_back(self, client_id: str, queue: str) -> None:
        """The event could not be served now."""
        client = self._clients.get(client_id)
        if client is None or (queue, client.group) in self._holders:
            return
        if queue in client.queues or client.place >= 0:
            self._put_event(client, queue)

    def schedule_full(self, client: LiteClient, delay_ms: int) -> None:
        due_ms = self._state.clock.monotonic_ms() + max(delay_ms, LEAST_DELAY_MS)
        self._full_due_ms.setdefault(client.client_id, due_ms)

    def tick(self) -> None:
        """Full dispatches that are due."""
        now_ms = self._state.clock.monotonic_ms()
        if self._is_dispatching:
            return
        due = [client_id for client_id, due_ms in self._full_due_ms.items() if due_ms <= now_ms]
        if due:
            self._is_dispatching = True
            self._state.long_work.begin(None, self._dispatch_due(due))

    def _dispatch_due(self, due: list[str]) -> Work[None]:
        """One client after another: thousands may be due at once."""
        try:
            for number, client_id in enumerate(due, 1):
                client = self._clients.get(client_id)
                if self._full_due_ms.pop(client_id, None) is not None and client is not None:
                    yield from self.dispatch_all_of(client)
                if number % CLIENTS_AT_ONCE == 0:
                    yield
        finally:
            self._is_dispatching = False

    def scan(self) -> None:
        """Give the events of clients that do not ask for them to others (liteEventCheckInterval)."""
        if not self._is_scanning:
            self._is_scanning = True
            self._state.long_work.begin(None, self._scan())

    def _scan(self) -> Work[None]:
        now_ms = self._state.clock.monotonic_ms()
        silent = [
            client
            for client in self._clients.values()
            if client.events and now_ms - client.accessed_ms > INACTIVE_MS
        ]
        number = 0
        try:
            for client in silent:
                client.avoided_until_ms = now_ms + AVOIDED_MS
                for queue in list(client.events):
                    if self._take_event(client, queue):
                        self.dispatch(queue, client.group, client.client_id)
                    number += 1
                    if number % QUEUES_AT_ONCE == 0:
                        yield
        finally:
            self._is_scanning = False

    def dispatch_all_of(self, client: LiteClient) -> Work[None]:
        """A full dispatch: events for all queues of the client with messages that its group has not consumed."""
        state, group = self._state, client.group
        config = state.subscriptions.configured(group)
        most = most_events(state, config)
        silent_ms = state.clock.monotonic_ms() - client.accessed_ms
        if silent_ms > LONG_POLL_MS or len(client.events) >= max(1, int(most * LOW_WATER)):
            delay_ms = state.config.lite_event_full_dispatch_delay_time
            self.schedule_full(client, delay_ms if silent_ms < ACTIVE_MS else delay_ms + 10_000)
            return
        wildcard = config is not None and is_wildcard(config)
        queues = state.store.table.light_names() if wildcard else iter(list(client.queues))
        for number, queue in enumerate(queues, 1):
            if number % QUEUES_AT_ONCE == 0:
                yield
            if not wildcard and queue not in client.queues:  # since the list was made
                continue
            if wildcard and ((parts := parent_and_lite(queue)) is None or parts[0] != client.topic):
                continue
            end = state.store.offsets.max_offset(queue, LMQ_QUEUE_ID)
            if end <= 0 or state.offsets.query(group, queue, LMQ_QUEUE_ID) >= end:
                continue
            if (queue, group) in self._holders or self._clients.get(client.client_id) is not client:
                continue
            if not self._may_hold(client, queue, most):
                self.schedule_full(client, state.config.lite_event_full_dispatch_delay_time)
                break
            self._put_event(client, queue)
            if number % 10 == 1:
                self.on_event(client.client_id)
        if client.events:
            self.on_event(client.client_id)

    def clients_of(self, group: str) -> list[LiteClient]:
        return [client for client in self._clients.values() if client.group == group]


def _names_bytes(client: LiteClient) -> int:
    """With its events of queues that it does not name."""
    return weigh((client.group, client.topic)) + sum(
        _event_bytes(queue) for queue in client.events if queue not in client.queues
    )


def _event_bytes(queue: str) -> int:
    """What an event weighs whose queue the client does not name."""
    return _EVENT_BYTES + weigh(queue)
