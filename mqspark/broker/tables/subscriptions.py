"""The configuration of consumer groups (SubscriptionGroupManager) and its file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mqspark.base.bounded import BoundedMap, Ledger, weigh
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.base.keyorder import KeyOrder
from mqspark.base.names import sound_only
from mqspark.broker.config import BrokerConfig
from mqspark.broker.tables.followed import followed
from mqspark.errors import InvalidMessage
from mqspark.message import BUILT_IN_GROUPS, SYSTEM_GROUP_PREFIX, check_group
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import decode_table, to_document
from mqspark.protocol.bodies.topic_bodies import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work
from mqspark.store.queue.multidispatch import is_lmq

_MADE = "groupsMade"
"""Session key: how many groups its requests have created."""


class SubscriptionGroups:
    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.ledger = Ledger(
            "groups",
            Limit(config, "max_group_table_bytes"),
            "SubscriptionGroupConfig.attributes",
            "SubscriptionGroupConfig.subscription_data_set",
        )
        self._table: BoundedMap[str, SubscriptionGroupConfig] = self.ledger.map(
            100, weigh, most=Limit(config, "max_subscription_groups"), in_order=True
        )
        """Replaced, never modified."""
        self._table.refill({name: SubscriptionGroupConfig(group_name=name) for name in BUILT_IN_GROUPS})
        self._forbidden: BoundedMap[str, dict[str, int]] = self.ledger.map(0, weigh, in_order=True)
        """group → topic → bits; bit 0 forbids reading (code 353). The inner tables are replaced, never modified."""
        self.data_version = DataVersion(state_version=0, timestamp=clock.now_ms(), counter=0)
        self.generation = 0
        self.lmq = False
        """Whether groups that read light message queues exist without being in the table
        (LmqSubscriptionGroupManager)."""
        self.limited_user: Callable[[Session], str] = lambda session: ""
        """Whose groups are counted together; empty: nobody's in particular."""
        self._made_by: Counter[str] = Counter()

    def __contains__(self, group: str) -> bool:
        return group in self._table or (self.lmq and is_lmq(group))

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        """In the order of their names. Groups may come and go meanwhile."""
        for name in self.names():
            if (config := self._table.get(name)) is not None:
                yield config

    def __len__(self) -> int:
        return len(self._table)

    def names(self) -> KeyOrder[str]:
        """In ascending order; nothing is copied."""
        return self._table.in_order

    def page(self, first: int, end: int) -> list[str]:
        """Some of the names, in ascending order."""
        return self._table.in_order.page(first, end)

    def find(self, group: str, session: Session) -> SubscriptionGroupConfig | None:
        """The group's configuration; created here for the peer of ``session`` if auto-creation allows it. None
        for an unknown or illegal name. A group of light message queues gets the default configuration, which is
        not stored, because there may be millions of such groups.

        Raises TableFull.
        """
        found = self._table.get(group)
        if found is not None:
            return found
        if self.lmq and is_lmq(group):
            return SubscriptionGroupConfig(group_name=group)
        if not (self._config.auto_create_subscription_group or group.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        try:
            check_group(group)
        except InvalidMessage:
            return None
        made = session.attributes.get(_MADE, 0)
        most = self._config.max_new_groups_per_connection
        if not isinstance(made, int) or made >= most:
            raise self.ledger.refuse(most, most, "maxNewGroupsPerConnection", of=" made over one connection")
        user, most = self.limited_user(session), self._config.max_new_groups_per_user
        if user and self._made_by[user] >= most:
            raise self.ledger.refuse(most, most, "maxNewGroupsPerUser", of=f" made by User:{user}")
        created = SubscriptionGroupConfig(group_name=group)
        self.put(created, session)
        session.attributes[_MADE] = made + 1
        if user:
            self._made_by[user] += 1
        return created

    def configured(self, group: str) -> SubscriptionGroupConfig | None:
        """The entry of the table; creates nothing."""
        return self._table.get(group)

    def owner_of(self, group: str) -> str:
        """The user who made the group since the start; NOBODY if it is nobody's in particular."""
        return self._table.owner_of(group)

    def put(self, config: SubscriptionGroupConfig, session: Session | None = None) -> None:
        """``session``: whose user a new group belongs to. Raises TableFull."""
        old = self._table.get(config.group_name)
        if old != config:
            self._table.put(config.group_name, config, session if old is None else None)
            self._changed()

    def remove(self, group: str) -> None:
        self._forbidden.pop(group, None)
        if group in self._table:
            del self._table[group]
            self._changed()

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        if not self._forbidden:
            return False
        return self._forbidden.get(group, {}).get(topic, 0) & 1 != 0

    def forbid_read(self, group: str, topic: str, forbidden: bool) -> None:
        """Raises TableFull."""
        topics = self._forbidden.get(group, {}).copy()
        bits = topics.get(topic, 0)
        bits = bits | 1 if forbidden else bits & ~1
        if bits:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
        if topics:
            self._forbidden[group] = topics
        else:
            self._forbidden.pop(group, None)
        self._changed()

    def touch(self) -> None:
        """Have another version: a configuration was healed in place, or slaves may know other rows of this one."""
        self._changed()

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())
        self.generation += 1

    def follow(
        self,
        version: DataVersion,
        table: dict[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
    ) -> Work[None]:
        """Become a copy of a master's table, which is consumed. Raises TableFull."""
        yield from followed(self.names().pages(), table, self.remove, self._put_all)
        wanted = {
            (group, topic)
            for group, topics in sound_only("forbidden groups", forbidden).items()
            for topic, bits in sound_only("topics of a forbidden group", topics).items()
            if bits & 1
        }
        there = {(group, topic) for group, topics in self._forbidden.items() for topic in topics}
        for group, topic in there ^ wanted:
            self.forbid_read(group, topic, (group, topic) in wanted)
        self.data_version = version

    def _put_all(self, table: dict[str, SubscriptionGroupConfig]) -> None:
        for name, config in sound_only("groups", table).items():
            config.group_name = name
            self.put(config)

    # --- file ---

    def forbidden_in_slices(self) -> Work[dict[str, dict[str, int]]]:
        """A copy of what ``forbid_read`` keeps."""
        found: dict[str, dict[str, int]] = {}
        for number, page in enumerate(self._forbidden.in_order.pages()):
            if number:
                yield
            found |= {group: topics for group in page if (topics := self._forbidden.get(group)) is not None}
        return found

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Returns the encoder of the file. Configurations are replaced, never modified, so another thread may read
        them; it writes each as it is then."""
        document = to_document(SubscriptionGroupWrapper(data_version=self.data_version))
        pages, groups = self._table.in_order.pages(), self._table
        forbidden_pages, forbidden = self._forbidden.in_order.pages(), self._forbidden

        def config_of(name: str) -> Any:
            config = groups.get(name)
            return None if config is None else to_document(config)

        def encode() -> Iterator[bytes]:
            document["forbiddenTable"] = fastjson.members_there(forbidden_pages, forbidden.get)
            document["subscriptionGroupTable"] = fastjson.members_there(pages, config_of)
            return fastjson.pretty_pieces(document)

        return encode

    def load(self, data: bytes) -> None:
        """From ``subscriptionGroup.json``. Raises ProtocolError."""
        wrapper = decode_table(SubscriptionGroupWrapper, data)
        for name, config in sound_only("groups", wrapper.subscription_group_table).items():
            config.group_name = name
            self._table.keep(name, config)
        forbidden = sound_only("forbidden groups", wrapper.forbidden_table or {})
        self._forbidden.refill(
            {group: sound_only("topics of a forbidden group", topics) for group, topics in forbidden.items()}
        )
        if wrapper.data_version is not None:
            self.data_version = wrapper.data_version
