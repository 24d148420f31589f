"""Who is connected: producer groups and consumer groups, kept alive by heartbeats (ProducerManager,
ConsumerManager; reference store-and-broker §13.1, remoting-protocol §5.4).

Events come in (heartbeat, unregister, connection lost, time passed); out comes what the caller must do: the
groups whose members have to be told to rebalance. A client id is one member of a group: when it comes back on
a new connection, that one replaces the old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mqspark.broker.selection import Wanted
from mqspark.clock import Clock
from mqspark.filter.sql import SqlFilter, compile_sql
from mqspark.filter.tags import parse_tags
from mqspark.protocol.bodies import ConsumerData, SubscriptionData
from mqspark.protocol.session import Session

__all__ = ["ClientGroups", "ConsumerGroup", "Member", "Subscription", "TAG"]

TAG = "TAG"
"""The expression type of tag filters; None and "" mean it too."""


class Member:
    """One client of one group."""

    __slots__ = ("client_id", "language", "last_seen_ms", "seen_wall_ms", "session", "version")

    def __init__(self, client_id: str, session: Session, language: int, version: int) -> None:
        self.client_id = client_id
        self.session = session
        self.language = language
        self.version = version
        self.last_seen_ms = 0
        self.seen_wall_ms = 0


class Subscription:
    """A group's subscription to one topic."""

    __slots__ = ("_codes", "_filter", "data", "is_tag", "version")

    def __init__(self, data: SubscriptionData, default_version: int) -> None:
        self.data = data
        self.version = data.sub_version or default_version
        self.is_tag = not data.expression_type or data.expression_type == TAG
        self._codes: frozenset[int] | None = None
        self._filter: SqlFilter | None = None
        if self.is_tag and data.sub_string and data.sub_string != "*":
            # Some clients leave codeSet to the broker.
            self._codes = frozenset(data.code_set or ()) or parse_tags(data.sub_string).codes or None

    def wanted(self) -> Wanted:
        """A filter is compiled when it is first asked for: a heartbeat may bring more of them than are used.

        Raises InvalidFilter.
        """
        if self.is_tag:
            return self._codes
        if self._filter is None:
            self._filter = compile_sql(self.data.sub_string)
        return self._filter


class ConsumerGroup:
    __slots__ = ("consume_from_where", "consume_type", "members", "message_model", "name", "subscriptions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[str, Member] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.consume_type: str | None = None
        self.message_model: str | None = None
        self.consume_from_where: str | None = None

    @property
    def broadcasting(self) -> bool:
        return self.message_model == "BROADCASTING"

    def subscribe(self, subscriptions: Iterable[SubscriptionData], default_version: int) -> bool:
        """Take a heartbeat's subscriptions; whether topics were added or removed. A changed expression is not
        a change."""
        wanted = set()
        changed = False
        for data in subscriptions:
            if not data.topic:
                continue
            wanted.add(data.topic)
            old = self.subscriptions.get(data.topic)
            if old is None:
                changed = True
                self.subscriptions[data.topic] = Subscription(data, default_version)
            elif data.sub_version > old.version:
                self.subscriptions[data.topic] = Subscription(data, default_version)
        for topic in [topic for topic in self.subscriptions if topic not in wanted]:
            del self.subscriptions[topic]
            changed = True
        return changed


class ClientGroups:
    """``on_change(group)`` is called when the membership or the topics of a consumer group have changed."""

    def __init__(self, clock: Clock, on_change: Callable[[ConsumerGroup], None]) -> None:
        self._clock = clock
        self._on_change = on_change
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[str, Member]] = {}
        self._groups_of: dict[int, set[str]] = {}
        """session id → names of the groups it may be a member of, so that a lost connection costs what it
        used."""
        self._fingerprints: dict[tuple[str, str], int] = {}
        """(group, client id) → the last heartbeatFingerprint that came with subscriptions."""
        self.consumer = self._consumers.get

    def consumers(self) -> Iterator[ConsumerGroup]:
        return iter(list(self._consumers.values()))

    def producers(self) -> dict[str, list[Member]]:
        return {group: list(members.values()) for group, members in self._producers.items()}

    def producer_members(self, group: str) -> list[Member]:
        return list(self._producers.get(group, {}).values())

    def producer_session(self, client_id: str) -> Session | None:
        """The connection of a client that is a producer of any group."""
        for members in self._producers.values():
            member = members.get(client_id)
            if member is not None and member.session.open:
                return member.session
        return None

    def subscribers_of(self, topic: str) -> list[str]:
        return [group.name for group in self._consumers.values() if topic in group.subscriptions]

    # --- events ---

    def produce(self, group: str, client_id: str, session: Session, language: int, version: int) -> None:
        self._seen(self._producers.setdefault(group, {}), group, client_id, session, language, version)

    def consume(
        self,
        data: ConsumerData,
        client_id: str,
        session: Session,
        language: int,
        version: int,
        *,
        notify: bool,
    ) -> None:
        """A heartbeat with subscriptions."""
        name = data.group_name
        group = self._consumers.get(name)
        if group is None:
            group = self._consumers[name] = ConsumerGroup(name)
        joined = self._seen(group.members, name, client_id, session, language, version)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        changed = group.subscribe(data.subscription_data_set or (), self._clock.now_ms())
        if (joined or changed) and notify and not group.broadcasting:
            self._on_change(group)

    def refresh(self, name: str, client_id: str, session: Session) -> bool:
        """A heartbeat without subscriptions; False when the member is unknown and must send them."""
        group = self._consumers.get(name)
        member = None if group is None else group.members.get(client_id)
        if group is None or member is None:
            return False
        self._seen(group.members, name, client_id, session, member.language, member.version)
        return True

    def fingerprint_changed(self, group: str, client_id: str, fingerprint: int, *, store: bool) -> bool:
        key = (group, client_id)
        changed = self._fingerprints.get(key) != fingerprint
        if store:
            self._fingerprints[key] = fingerprint
        return changed

    def unregister(self, client_id: str, producer_group: str | None, consumer_group: str | None) -> None:
        if producer_group is not None:
            self._leave_producers(producer_group, client_id)
        if consumer_group is not None and (group := self._consumers.get(consumer_group)) is not None:
            self._leave(group, client_id)

    def disconnected(self, session: Session) -> None:
        """The connection is gone: whatever was registered over it leaves at once."""
        for name in self._groups_of.pop(session.id, ()):
            for client_id, member in list(self._producers.get(name, {}).items()):
                if member.session is session:
                    self._leave_producers(name, client_id)
            group = self._consumers.get(name)
            if group is not None:
                for client_id, member in list(group.members.items()):
                    if member.session is session:
                        self._leave(group, client_id)

    def is_member(self, group: str, client_id: str) -> bool:
        found = self._consumers.get(group)
        return found is not None and client_id in found.members

    def seen_all(self) -> None:
        """As if a heartbeat of every member came: for whoever moves the clock faster than clients can follow."""
        now_ms = self._clock.monotonic_ms()
        groups = [group.members for group in self._consumers.values()]
        for members in (*self._producers.values(), *groups):
            for member in members.values():
                member.last_seen_ms = now_ms

    def expire(self, timeout_ms: int) -> None:
        """Members without a heartbeat for ``timeout_ms`` leave."""
        oldest_ms = self._clock.monotonic_ms() - timeout_ms
        for name, members in list(self._producers.items()):
            for client_id in [key for key, member in members.items() if member.last_seen_ms < oldest_ms]:
                self._leave_producers(name, client_id)
        for group in list(self._consumers.values()):
            for client_id in [
                key for key, member in group.members.items() if member.last_seen_ms < oldest_ms
            ]:
                self._leave(group, client_id)

    # --- inside ---

    def _seen(
        self,
        members: dict[str, Member],
        group: str,
        client_id: str,
        session: Session,
        language: int,
        version: int,
    ) -> bool:
        """Whether the member is new."""
        member = members.get(client_id)
        joined = member is None
        if member is None:
            member = members[client_id] = Member(client_id, session, language, version)
        member.session = session
        member.last_seen_ms = self._clock.monotonic_ms()
        member.seen_wall_ms = self._clock.now_ms()
        self._groups_of.setdefault(session.id, set()).add(group)
        return joined

    def _leave_producers(self, group: str, client_id: str) -> None:
        members = self._producers.get(group)
        if members is None:
            return
        members.pop(client_id, None)
        if not members:
            del self._producers[group]

    def _leave(self, group: ConsumerGroup, client_id: str) -> None:
        self._fingerprints.pop((group.name, client_id), None)
        if group.members.pop(client_id, None) is None:
            return
        if not group.members:
            del self._consumers[group.name]
        elif not group.broadcasting:
            self._on_change(group)
