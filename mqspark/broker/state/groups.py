"""Connected clients: producer groups and consumer groups, kept alive by heartbeats (ProducerManager,
ConsumerManager).

Input is events: heartbeat, unregister, connection lost, time passed. Output is the groups whose members must be
told to rebalance. A client id is one member of a group: when it reconnects, the new connection replaces the old
one. With users, a client id is that of the user whose connection came with it, as long as that is open: what a broker
sends to a client, as a reply or a half message, reaches no other user under its name.

Facts: docs/rocketmq/broker.md#clients-and-groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType

from mqspark.base.bounded import CODE_BYTES, CONTAINER_BYTES, BoundedMap, BoundedSet, Ledger, weigh
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.base.logs import printable
from mqspark.broker.config import BrokerConfig
from mqspark.broker.state.heldrequests import Wanted
from mqspark.broker.tables.consumer_filters import ConsumerFilters
from mqspark.filter.sql import SqlFilter, compile_sql, filter_bytes
from mqspark.filter.tags import parse_tags
from mqspark.protocol.bodies.client_bodies import ConsumerData, SubscriptionData
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work

TAG = "TAG"
"""The expression type of tag filters; None and "" mean it, too."""

MEMBERS_AT_ONCE = 256
"""Members that are looked at in one slice when a connection has ended or the time of some is over."""

PREPARED_AT_ONCE = 8_192
"""Weight of the subscriptions that are prepared in one slice: some 100 short ones."""

_MEMBER_BYTES = 216
_HOLDER_BYTES = 64
_SESSION_BYTES = CONTAINER_BYTES + 32
_GROUP_BYTES = 600
_SUBSCRIPTION_BYTES = 200


class GroupMember:
    """One client of one group."""

    __slots__ = (
        "client_id",
        "fingerprint",
        "language",
        "last_seen_ms",
        "seen_wall_ms",
        "session",
        "version",
    )

    def __init__(self, client_id: str, session: Session, language: int, version: int) -> None:
        self.client_id = client_id
        self.session = session
        self.language = language
        self.version = version
        self.last_seen_ms = 0
        self.seen_wall_ms = 0
        self.fingerprint: int | None = None
        """The last heartbeatFingerprint that came with subscriptions."""


class _Holder:
    """The connection that a client id belongs to."""

    __slots__ = ("memberships", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.memberships = 0
        """The groups that the client id is in, of both kinds."""


class Subscription:
    """A group's subscription to one topic."""

    __slots__ = ("_codes", "_filter", "data", "is_tag", "size_bytes", "version")

    def __init__(self, data: SubscriptionData, default_version: int) -> None:
        self.data = data
        self.version = data.sub_version or default_version
        self.is_tag = not data.expression_type or data.expression_type == TAG
        self._codes: frozenset[int] | None = None
        self._filter: SqlFilter | None = None
        if self.is_tag and data.sub_string and data.sub_string != "*":
            # Some clients leave codeSet to the broker.
            self._codes = frozenset(data.code_set or ()) or parse_tags(data.sub_string).codes or None
        self.size_bytes = _SUBSCRIPTION_BYTES + weigh(data) + CODE_BYTES * len(self._codes or ())
        if not self.is_tag:
            self.size_bytes += filter_bytes(data.sub_string)

    def wanted(self) -> Wanted:
        """The compiled filter. Compiled at first use, because a heartbeat may bring many that are never used.

        Raises InvalidFilter.
        """
        if self.is_tag:
            return self._codes
        if self._filter is None:
            self._filter = compile_sql(self.data.sub_string)
        return self._filter


class ConsumerGroup:
    __slots__ = (
        "consume_from_where",
        "consume_type",
        "members",
        "message_model",
        "name",
        "subscriptions",
    )

    def __init__(self, name: str, members: BoundedMap[str, GroupMember]) -> None:
        self.name = name
        self.members = members
        self.subscriptions: BoundedMap[str, Subscription] = members.inner_map(0, attrgetter("size_bytes"))
        self.consume_type: str | None = None
        self.message_model: str | None = None
        self.consume_from_where: str | None = None

    @property
    def bounded(self) -> tuple[BoundedMap[str, GroupMember], BoundedMap[str, Subscription]]:
        return self.members, self.subscriptions

    @property
    def broadcasting(self) -> bool:
        return self.message_model == "BROADCASTING"

    def lacks(self, data: SubscriptionData) -> bool:
        """Whether it has no such subscription, or an older version."""
        old = self.subscriptions.get(data.topic)
        return old is None or data.sub_version > old.version

    def subscribe(
        self,
        subscriptions: Iterable[SubscriptionData],
        default_version: int,
        prepared: Mapping[int, Subscription],
        filters: ConsumerFilters,
        session: Session,
    ) -> bool:
        """Apply a heartbeat's subscriptions. ``prepared``: some of them, by the ``id`` of their data. ``filters``
        hears of SQL92 filters. ``session``: whose they are. Returns whether topics were added or removed; a
        changed expression does not count. Raises TableFull."""
        wanted = set()
        changed = False
        for data in subscriptions:
            if not data.topic:
                continue
            wanted.add(data.topic)
            old = self.subscriptions.get(data.topic)
            if old is not None and data.sub_version <= old.version:
                continue
            new = prepared.get(id(data)) or Subscription(data, default_version)
            self.subscriptions.put(data.topic, new, session)
            changed = changed or old is None
            if not new.is_tag:
                filters.subscribed(self.name, data)
        for topic in [topic for topic in self.subscriptions if topic not in wanted]:
            del self.subscriptions[topic]
            filters.unsubscribed(self.name, topic)
            changed = True
        return changed


class ClientGroups:
    """``on_change(group)`` is called when the membership or the topics of a consumer group have changed."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        filters: ConsumerFilters,
        on_change: Callable[[ConsumerGroup], None],
    ) -> None:
        self.ledger = Ledger(
            "clients",
            Limit(config, "max_client_table_bytes"),
            "SubscriptionData.code_set",
            "SubscriptionData.tags_set",
        )
        self._clock = clock
        self._filters = filters
        self._on_change = on_change
        self._consumers: BoundedMap[str, ConsumerGroup] = self.ledger.map(_GROUP_BYTES)
        self._producers: BoundedMap[str, BoundedMap[str, GroupMember]] = self.ledger.map(_GROUP_BYTES)
        self._groups_of: BoundedMap[int, BoundedSet[str]] = self.ledger.map(_SESSION_BYTES)
        """session id → names of the groups it may be a member of, so a lost connection costs only as much as it
        used."""
        self._holders: BoundedMap[str, _Holder] = self.ledger.map(_HOLDER_BYTES)
        """By client id."""
        self.may_replace: Callable[[Session, Session], bool] = lambda new, old: True
        """Whether a connection may take over the client id of another one that is open."""
        self.consumer = self._consumers.get

    def consumers(self) -> Iterator[ConsumerGroup]:
        return iter(list(self._consumers.values()))

    def producers(self) -> dict[str, list[GroupMember]]:
        return {group: list(members.values()) for group, members in self._producers.items()}

    def producer_members(self, group: str) -> list[GroupMember]:
        members = self._producers.get(group)
        return [] if members is None else list(members.values())

    def check_holder(self, client_id: str, session: Session) -> None:
        """Raises Refusal for the client id of another user."""
        holder = self._holders.get(client_id)
        if holder is not None and holder.session.open:
            self.check_same_user(client_id, session, holder.session)

    def check_same_user(self, client_id: str, session: Session, holder: Session) -> None:
        """Raises Refusal unless ``holder``, whose client id it is, is the same user's connection."""
        if holder is not session and not self.may_replace(session, holder):
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"client id {printable(client_id, 80)} is another user's"
            )

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
        """Raises TableFull."""
        members = self._producers.get(group)
        if members is None:
            members = self._producers[group] = self._members(group)
        try:
            self._seen(members, group, client_id, session, language, version)
        finally:
            self._end_if_empty(group)

    def prepare(self, data: ConsumerData) -> Work[dict[int, Subscription]]:
        """The subscriptions that the group lacks, for ``consume``. Made in slices: their expressions take far longer
        to read than to store. Raises TableFull."""
        prepared: dict[int, Subscription] = {}
        size_bytes = weight = 0
        now_ms = self._clock.now_ms()
        for each in data.subscription_data_set or ():
            group = self._consumers.get(data.group_name)
            if group is None or group.lacks(each):
                made = prepared[id(each)] = Subscription(each, now_ms)
                size_bytes += made.size_bytes
                self.ledger.admit(size_bytes)
                weight += PREPARED_AT_ONCE // 256 + made.size_bytes // 32
            weight += 1
            if weight >= PREPARED_AT_ONCE:
                weight = 0
                yield
        return prepared

    def consume(
        self,
        data: ConsumerData,
        client_id: str,
        session: Session,
        language: int,
        version: int,
        *,
        notify: bool,
        fingerprint: int | None = None,
        prepared: Mapping[int, Subscription] = MappingProxyType({}),
    ) -> None:
        """A heartbeat with subscriptions; ``prepared``: what ``prepare`` has made of them. Raises TableFull."""
        name = data.group_name
        group = self._consumers.get(name)
        if group is None:
            group = self._consumers[name] = ConsumerGroup(name, self._members(name))
        try:
            joined = self._seen(group.members, name, client_id, session, language, version)
        finally:
            if not group.members:
                self._end(group)
        if fingerprint is not None:
            group.members[client_id].fingerprint = fingerprint
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        changed = group.subscribe(
            data.subscription_data_set or (), self._clock.now_ms(), prepared, self._filters, session
        )
        if (joined or changed) and notify and not group.broadcasting:
            self._on_change(group)

    def refresh(self, name: str, client_id: str, session: Session) -> bool:
        """A heartbeat without subscriptions. False if the member is unknown and must send them."""
        group = self._consumers.get(name)
        member = None if group is None else group.members.get(client_id)
        if group is None or member is None:
            return False
        self._seen(group.members, name, client_id, session, member.language, member.version)
        return True

    def fingerprint(self, group: str, client_id: str) -> int | None:
        """The last heartbeatFingerprint of a member that came with subscriptions."""
        found = self._consumers.get(group)
        member = None if found is None else found.members.get(client_id)
        return None if member is None else member.fingerprint

    def unregister(self, client_id: str, producer_group: str | None, consumer_group: str | None) -> None:
        if producer_group is not None:
            self._leave_producers(producer_group, client_id)
        if consumer_group is not None and (group := self._consumers.get(consumer_group)) is not None:
            self._leave(group, client_id)

    def disconnected(self, session: Session) -> Work[None]:
        """The connection is closed: everything registered over it is removed."""
        names = self._groups_of.get(session.id)
        if names is None:
            return
        done = 0
        for name in list(names):
            done = yield from self._remove(name, lambda member: member.session is session, done)
            names.discard(name)
        del self._groups_of[session.id]

    def is_member(self, group: str, client_id: str) -> bool:
        found = self._consumers.get(group)
        return found is not None and client_id in found.members

    def seen_all(self) -> None:
        """Treat every member as just seen. For code that moves the clock faster than clients can follow."""
        self.pardon(self._clock.monotonic_ms())

    def pardon(self, missed_ms: int) -> None:
        """This process was paused for so long: what members have sent meanwhile is still to be read. The rest of their
        silence counts, or pauses that come again and again would keep those that are dead for ever."""
        now_ms = self._clock.monotonic_ms()
        groups = [group.members for group in self._consumers.values()]
        for members in (*self._producers.values(), *groups):
            for member in members.values():
                member.last_seen_ms = min(now_ms, member.last_seen_ms + missed_ms)

    def expire(self, timeout_ms: int) -> Work[None]:
        """Remove members without a heartbeat for ``timeout_ms``."""
        oldest_ms = self._clock.monotonic_ms() - timeout_ms
        done = 0
        for name in (*self._producers, *self._consumers):
            done = yield from self._remove(name, lambda member: member.last_seen_ms < oldest_ms, done)

    # --- inside ---

    def _members(self, group: str) -> BoundedMap[str, GroupMember]:
        """A member takes as much of its user's share as if it was the only one of its group."""
        share_bytes = _GROUP_BYTES + _HOLDER_BYTES + weigh(group)
        return self._producers.inner_map(_MEMBER_BYTES, share_bytes=share_bytes)

    def _seen(
        self,
        members: BoundedMap[str, GroupMember],
        group: str,
        client_id: str,
        session: Session,
        language: int,
        version: int,
    ) -> bool:
        """Returns whether the member is new. Raises TableFull, or Refusal for the client id of another user."""
        self.check_holder(client_id, session)
        member = members.get(client_id)
        joined = member is None
        groups = self._groups_of.get(session.id)
        if groups is None or group not in groups:
            if groups is None:
                groups = self._groups_of[session.id] = self._groups_of.inner_set()
            try:
                groups.add(group, session)
            finally:
                if not groups:
                    del self._groups_of[session.id]
        if member is None:
            member = GroupMember(client_id, session, language, version)
            holder = self._holders.get(client_id) or _Holder(session)
            self.ledger.admit(members.size_of(client_id, member) + self._holders.size_of(client_id, holder))
            members.put(client_id, member, session)
            self._holders.keep(client_id, holder)
            holder.memberships += 1
        self._holders[client_id].session = member.session = session
        member.last_seen_ms = self._clock.monotonic_ms()
        member.seen_wall_ms = self._clock.now_ms()
        return joined

    def _remove(self, name: str, is_over: Callable[[GroupMember], bool], done: int) -> Work[int]:
        """Remove these members of both groups of this name. Others may join and leave between the slices. ``done``:
        how many members the work has looked at; the result is the same after this group."""
        for client_id in list(self._producers.get(name, ())):
            members = self._producers.get(name)
            member = None if members is None else members.get(client_id)
            if member is not None and is_over(member):
                self._leave_producers(name, client_id)
            done += 1
            if done % MEMBERS_AT_ONCE == 0:
                yield
        group = self._consumers.get(name)
        for client_id in () if group is None else list(group.members):
            group = self._consumers.get(name)
            member = None if group is None else group.members.get(client_id)
            if group is not None and member is not None and is_over(member):
                self._leave(group, client_id)
            done += 1
            if done % MEMBERS_AT_ONCE == 0:
                yield
        return done

    def _end(self, group: ConsumerGroup) -> None:
        del self._consumers[group.name]
        for topic, subscription in group.subscriptions.items():
            if not subscription.is_tag:
                self._filters.unsubscribed(group.name, topic)
        group.subscriptions.clear()

    def _end_if_empty(self, group: str) -> None:
        """For producer groups."""
        if not self._producers.get(group, True):
            del self._producers[group]

    def _leave_producers(self, group: str, client_id: str) -> None:
        members = self._producers.get(group)
        if members is None:
            return
        member = members.pop(client_id, None)
        if member is not None:
            self._left(client_id)
        self._end_if_empty(group)

    def _leave(self, group: ConsumerGroup, client_id: str) -> None:
        member = group.members.pop(client_id, None)
        if member is None:
            return
        self._left(client_id)
        if not group.members:
            self._end(group)
        elif not group.broadcasting:
            self._on_change(group)

    def _left(self, client_id: str) -> None:
        """It is no longer a member of a group."""
        holder = self._holders[client_id]
        holder.memberships -= 1
        if not holder.memberships:
            del self._holders[client_id]
