"""Subscriptions of clients to lite topics, and clients with new messages (LiteSubscriptionRegistryImpl,
LiteEventDispatcher).

A client has a set of lite queues. When one of them gets a message, its name becomes an *event* of one client of each
group that subscribes to it; the client's next pop reads the queues that its events name. Events are hints. When one is
lost, because the client's list was full or the client went away, a full dispatch follows, which looks at all queues
that a client subscribes to.

Subscriptions are in memory only. Clients repeat all of them from time to time; clients that do not are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mqspark.bounded import CONTAINER_BYTES, ENTRY_BYTES, Ledger, text_bytes
from mqspark.broker.lite.litenames import flag, is_exclusive, is_wildcard, most_events, parent_and_lite
from mqspark.broker.state.state import BrokerState
from mqspark.logs import printable, sparing
from mqspark.protocol.bodies.lite_bodies import OffsetOption
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import encode_request
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.client_headers import NotifyUnsubscribeLiteRequestHeader
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work
from mqspark.shares import NOBODY
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID

__all__ = ["LiteClient", "LiteClients"]

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
"""Queues that are looked at in one slice."""

_CLIENT_BYTES = 4 * ENTRY_BYTES + 3 * CONTAINER_BYTES + 600
_PAIR_BYTES = 3 * ENTRY_BYTES + CONTAINER_BYTES
"""A client's subscription to one queue: in both tables, and perhaps among its events."""

_log = sparing(__name__)


class LiteClient:
    __slots__ = (
        "accessed_ms",
        "avoided_until_ms",
        "client_id",
        "consumed_ms",
        "events",
        "group",
        "owner",
        "queues",
        "session",
        "topic",
        "updated_ms",
    )

    def __init__(self, client_id: str, group: str, topic: str, now_ms: int) -> None:
        self.client_id = client_id
        self.group = group
        self.topic = topic
        self.owner = NOBODY
        """The user over whose connection it came."""
        self.session: Session | None = None
        self.queues: dict[str, None] = {}
        """The lite queues that it subscribes to."""
        self.events: dict[str, None] = {}
        """Queues with new messages, oldest first."""
        self.updated_ms = now_ms
        """Time of the last change of its subscriptions, or of a repetition of all of them; this and the next two are
        wall times, because tools see them."""
        self.accessed_ms = now_ms
        """Time of its last pop."""
        self.consumed_ms = now_ms
        self.avoided_until_ms = 0
        """Monotonic."""


class LiteClients:
    def __init__(
        self, state: BrokerState, wake: Callable[[str], None], moved: Callable[[str, str], None]
    ) -> None:
        """``wake(client id)``: it has an event. ``moved(queue, group)``: the group's offset was reset."""
        self._state = state
        self._wake = wake
        self._moved = moved
        self.ledger = Ledger(
            "liteSubscriptions",
            lambda: state.config.max_lite_table_bytes,
            "LiteClients._clients",
            "LiteClients._by_queue",
            "LiteClients._wildcards",
            "LiteClients._full_due_ms",
            "LiteClient.queues",
            "LiteClient.events",
            setting="maxLiteTableBytes",
        )
        self.ledger.shares.limit_entries(lambda: state.config.max_lite_subscription_count)
        self._clients: dict[str, LiteClient] = {}
        self._by_queue: dict[str, dict[str, LiteClient]] = {}
        """Lite queue → client id → client."""
        self._wildcards: dict[tuple[str, str], dict[str, LiteClient]] = {}
        """(parent topic, group) → the clients of a group that reads all lite topics of the parent."""
        self._full_due_ms: dict[str, int] = {}
        """Client id → when it gets a full dispatch, monotonic."""
        self.active = 0
        """Subscriptions of all clients to all queues."""

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, client_id: str) -> LiteClient | None:
        return self._clients.get(client_id)

    def subscribers(self, queue: str) -> list[tuple[str, str]]:
        """(client id, group); of a group that reads all lite topics one pair with the client id ``*``."""
        pairs = [(client.client_id, client.group) for client in self._by_queue.get(queue, {}).values()]
        parts = parent_and_lite(queue)
        for topic, group in self._wildcards:
            if parts is not None and topic == parts[0]:
                pairs.append(("*", group))
        return pairs

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
    ) -> None:  # fmt: skip
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
        for queue in queues:
            if is_exclusive(group):
                self._exclude_others(client, group, queue, session)
            self._reset(session, queue, group.group_name, option)
            self._join(client, queue, session)

    def remove(
        self, client_id: str, group_name: str, topic: str, queues: Iterable[str], session: Session
    ) -> None:
        """PARTIAL_REMOVE."""
        client = self._clients.get(client_id)
        if client is None or (client.group, client.topic) != (group_name, topic):
            return
        client.updated_ms = self._state.clock.now_ms()
        group = self._state.subscriptions.configured(group_name)
        resets = group is not None and flag(group, "lite.sub.reset.offset.unsubscribe")
        for queue in queues:
            if self._leave(client, queue) and resets:
                self._move(session, queue, client.group, 0)

    def replace(
        self, client_id: str, group: SubscriptionGroupConfig, topic: str, queues: list[str], session: Session
    ) -> None:
        """COMPLETE_ADD: these are all. Raises Refusal, TableFull."""
        client = self._client(client_id, group.group_name, topic, session)
        if is_wildcard(group):
            key = topic, client.group
            if client_id not in self._wildcards.setdefault(key, {}):
                self._wildcards[key][client_id] = client
                self.active += 1
                self.schedule_full(client, 5_000)
            return
        wanted = set(queues)
        for queue in [queue for queue in client.queues if queue not in wanted]:
            self._leave(client, queue)
        for queue in queues:
            if queue not in client.queues and self.active >= self._state.config.max_lite_subscription_count:
                break  # RocketMQ does not limit these; a request for more by name gets an error
            self._join(client, queue, session)

    def remove_client(self, client_id: str, group: str, topic: str) -> None:
        """COMPLETE_REMOVE."""
        client = self._clients.get(client_id)
        if client is not None and (client.group, client.topic) == (group, topic):
            self._drop(client)

    def _drop(self, client: LiteClient) -> None:
        """Its events go to other clients of its group."""
        client_id = client.client_id
        del self._clients[client_id]
        for queue in list(client.queues):
            self._leave(client, queue)
        wildcard = self._wildcards.get((client.topic, client.group))
        if wildcard is not None and wildcard.pop(client_id, None) is not None:
            self.active -= 1
            if not wildcard:
                del self._wildcards[(client.topic, client.group)]
        self._full_due_ms.pop(client_id, None)
        self.ledger.free(_client_bytes(client))
        self.ledger.shares.release(client.owner, _client_bytes(client))
        events, client.events = list(client.events), {}
        for queue in events:
            self.dispatch(queue, client.group)

    def expire(self) -> None:
        """Forget clients that have not repeated their subscriptions (liteSubscriptionCheckTimeoutMills)."""
        oldest_ms = self._state.clock.now_ms() - self._state.config.lite_subscription_check_timeout_mills
        for client in [client for client in self._clients.values() if client.updated_ms < oldest_ms]:
            self._drop(client)

    def forget_queue(self, queue: str) -> None:
        """The lite topic was removed."""
        for client in list(self._by_queue.get(queue, {}).values()):
            self._leave(client, queue)

    def _client(self, client_id: str, group: str, topic: str, session: Session) -> LiteClient:
        """Raises Refusal, TableFull."""
        now_ms = self._state.clock.now_ms()
        client = self._clients.get(client_id)
        if client is not None and (client.group, client.topic) != (group, topic):
            # Its queues, events and offsets are those of the other group.
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"client id {printable(client_id, 80)} subscribes for another group or topic already",
            )
        if client is None:
            client = LiteClient(client_id, group, topic, now_ms)
            client.owner = self.ledger.shares.admit(session, _client_bytes(client))
            self.ledger.charge(_client_bytes(client))
            self.ledger.shares.hold(client.owner, _client_bytes(client))
            self._clients[client_id] = client
        client.session = session
        client.updated_ms = now_ms
        return client

    def _join(self, client: LiteClient, queue: str, session: Session) -> None:
        if queue in client.queues:
            return
        self.ledger.shares.admit(session, _pair_bytes(queue))
        self.ledger.charge(_pair_bytes(queue))
        self.ledger.shares.hold(client.owner, _pair_bytes(queue))
        client.queues[queue] = None
        self._by_queue.setdefault(queue, {})[client.client_id] = client
        self.active += 1
        if self._state.store.offsets.max_offset(queue, LMQ_QUEUE_ID) > 0:
            self.dispatch(queue, client.group)

    def _leave(self, client: LiteClient, queue: str) -> bool:
        if queue not in client.queues:
            return False
        del client.queues[queue]
        clients = self._by_queue[queue]
        del clients[client.client_id]
        if not clients:
            del self._by_queue[queue]
        self.active -= 1
        self.ledger.free(_pair_bytes(queue))
        self.ledger.shares.release(client.owner, _pair_bytes(queue))
        if queue in client.events:  # another client of the group may need the event
            del client.events[queue]
            self.dispatch(queue, client.group)
        return True

    def _exclude_others(
        self, newcomer: LiteClient, group: SubscriptionGroupConfig, queue: str, session: Session
    ) -> None:
        for client in list(self._by_queue.get(queue, {}).values()):
            if client is newcomer or client.group != newcomer.group:
                continue
            self._leave(client, queue)
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
        groups: dict[str, list[LiteClient]] = {}
        for client in self._by_queue.get(queue, {}).values():
            if group is None or client.group == group:
                groups.setdefault(client.group, []).append(client)
        if self._wildcards and (parts := parent_and_lite(queue)) is not None:
            for (topic, name), readers in self._wildcards.items():
                if topic == parts[0] and group in (None, name):
                    groups.setdefault(name, list(readers.values()))
        for clients in groups.values():
            self._give(queue, clients, exclude)

    def _give(self, queue: str, clients: list[LiteClient], exclude: str | None) -> bool:
        """False if no client of the group can take the event now; a full dispatch comes then."""
        now_ms = self._state.clock.monotonic_ms()
        start = self._state.random.randrange(len(clients)) if len(clients) > 1 else 0
        ordered = clients[start:] + clients[:start]
        ordered.sort(key=lambda client: client.client_id == exclude or client.avoided_until_ms > now_ms)
        for client in ordered:
            if queue in client.events:
                self._wake(client.client_id)
                return True
        settings = self._state.config
        group = self._state.subscriptions.configured(clients[0].group)
        most = most_events(self._state, group)
        delay_ms = settings.lite_event_full_dispatch_delay_time
        if group is not None and is_wildcard(group):
            delay_ms = settings.lite_event_full_dispatch_delay_time_for_wildcard_group
        for client in ordered:
            if len(client.events) < most:
                client.events[queue] = None
                self._wake(client.client_id)
                return True
            self.schedule_full(client, delay_ms)
        return False

    def subscribes(self, client_id: str, group: str, topic: str) -> bool:
        client = self._clients.get(client_id)
        return client is not None and (client.group, client.topic) == (group, topic)

    def events_of(self, client_id: str, group: str, topic: str) -> Iterator[str]:
        """Take the events of a client that asks for this group and topic, oldest first, as long as it takes them."""
        client = self._clients.get(client_id)
        if client is None or (client.group, client.topic) != (group, topic):
            return
        client.accessed_ms = self._state.clock.now_ms()
        for _ in range(len(client.events)):
            queue = next(iter(client.events), None)
            if queue is None:
                return
            del client.events[queue]
            client.consumed_ms = client.accessed_ms
            yield queue

    def put_back(self, client_id: str, queue: str) -> None:
        """The event could not be served now."""
        client = self._clients.get(client_id)
        if client is not None and (queue in client.queues or not client.queues):
            client.events[queue] = None

    def schedule_full(self, client: LiteClient, delay_ms: int) -> None:
        due_ms = self._state.clock.monotonic_ms() + max(delay_ms, LEAST_DELAY_MS)
        self._full_due_ms.setdefault(client.client_id, due_ms)

    def tick(self) -> None:
        """Full dispatches that are due."""
        now_ms = self._state.clock.monotonic_ms()
        for client_id in [client_id for client_id, due_ms in self._full_due_ms.items() if due_ms <= now_ms]:
            del self._full_due_ms[client_id]
            client = self._clients.get(client_id)
            if client is not None:
                self._state.long_work.begin(None, self.dispatch_all_of(client))

    def scan(self) -> None:
        """Give the events of clients that do not ask for them to others (liteEventCheckInterval)."""
        now_ms = self._state.clock.now_ms()
        for client in list(self._clients.values()):
            silent_ms = now_ms - client.accessed_ms
            if client.events and silent_ms > INACTIVE_MS:
                client.avoided_until_ms = self._state.clock.monotonic_ms() + AVOIDED_MS
                events, client.events = list(client.events), {}
                for queue in events:
                    self.dispatch(queue, client.group, client.client_id)

    def dispatch_all_of(self, client: LiteClient) -> Work[None]:
        """A full dispatch: events for all queues of the client with messages that its group has not consumed."""
        state, group = self._state, client.group
        config = state.subscriptions.configured(group)
        most = most_events(state, config)
        silent_ms = state.clock.now_ms() - client.accessed_ms
        if silent_ms > LONG_POLL_MS or len(client.events) >= max(1, int(most * LOW_WATER)):
            delay_ms = state.config.lite_event_full_dispatch_delay_time
            self.schedule_full(client, delay_ms if silent_ms < ACTIVE_MS else delay_ms + 10_000)
            return
        wildcard = config is not None and is_wildcard(config)
        queues = list(state.store.table.light if wildcard else client.queues)
        for number, queue in enumerate(queues, 1):
            if number % QUEUES_AT_ONCE == 0:
                yield
            if wildcard and ((parts := parent_and_lite(queue)) is None or parts[0] != client.topic):
                continue
            end = state.store.offsets.max_offset(queue, LMQ_QUEUE_ID)
            if end <= 0 or state.offsets.query(group, queue, LMQ_QUEUE_ID) >= end:
                continue
            if len(client.events) >= most:
                self.schedule_full(client, state.config.lite_event_full_dispatch_delay_time)
                break
            client.events[queue] = None
            if number % 10 == 1:
                self._wake(client.client_id)
        if client.events:
            self._wake(client.client_id)

    def clients_of(self, group: str) -> list[LiteClient]:
        return [client for client in self._clients.values() if client.group == group]

    def validate(self) -> None:
        """Check that both tables agree, and the ledger with them. For tests."""
        pairs = {(queue, client_id) for queue, clients in self._by_queue.items() for client_id in clients}
        if pairs != {
            (queue, client.client_id) for client in self._clients.values() for queue in client.queues
        }:
            raise AssertionError("the tables of lite subscriptions differ")
        sizes = [_client_bytes(client) for client in self._clients.values()]
        self.ledger.validate([*sizes, *(_pair_bytes(queue) for queue, _ in pairs)])


def _client_bytes(client: LiteClient) -> int:
    return _CLIENT_BYTES + text_bytes(client.client_id, client.group, client.topic)


def _pair_bytes(queue: str) -> int:
    return _PAIR_BYTES + 2 * text_bytes(queue)
