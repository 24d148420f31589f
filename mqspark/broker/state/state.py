"""What the processors of one broker share. Made for ``BrokerCore``; holds no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Protocol

from mqspark.auth.policies import Action, Kind
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.base.shares import TimedShares
from mqspark.broker.config import BrokerConfig
from mqspark.broker.state.calls import Calls
from mqspark.broker.state.coldreads import ColdReads
from mqspark.broker.state.groups import ClientGroups, ConsumerGroup
from mqspark.broker.state.heldhalves import HeldHalves
from mqspark.broker.state.locks import QueueLocks
from mqspark.broker.state.logmemory import LogMemory
from mqspark.broker.state.slowreaders import SlowReaders
from mqspark.broker.state.writer import Writer
from mqspark.broker.statictopic.mappings import Mappings
from mqspark.broker.statictopic.peers import Peers
from mqspark.broker.stats.stats import Stats
from mqspark.broker.tables.consumer_filters import ConsumerFilters
from mqspark.broker.tables.consumer_offsets import ConsumerOffsets
from mqspark.broker.tables.subscriptions import SubscriptionGroups
from mqspark.broker.tables.topics import Topics
from mqspark.protocol.session import Session
from mqspark.protocol.slices import LongWork, Work
from mqspark.store.store import MessageStore

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.gate import Grant


class Permits(Protocol):
    def __call__(self, session: Session, kind: Kind, name: str, *actions: Action) -> bool: ...


def _permits(session: Session, kind: Kind, name: str, *actions: Action) -> bool:
    return True


def _no_grant(session: Session, code: int) -> None:
    return None


def _no_lite_topics(parents: Set[str]) -> Work[None]:
    yield from ()


class Random(Protocol):
    """The part of ``random.Random`` that a broker needs."""

    def randrange(self, stop: int, /) -> int: ...


class BrokerState:
    """Its tables are still to be loaded."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        *,
        machine_bytes: int,
        random: Random,
        new_unique_id: Callable[[], str],
        utc_offset_ms: Callable[[int], int],
        members_changed: Callable[[ConsumerGroup], None],
    ) -> None:
        """``utc_offset_ms``: as of ``BrokerCore``. ``members_changed`` is called with a group that clients have joined
        or left."""
        self.config = config
        self.store = store
        self.store_config = store_config = store.config
        self.memory = LogMemory(store, store_config, machine_bytes)
        self.clock = clock
        self.random = random
        self.new_unique_id = new_unique_id
        self.topics = Topics(config, clock, lmq=store_config.enable_lmq)
        self.mappings = Mappings(config, clock)
        self.peers = Peers(config, clock)
        self.subscriptions = SubscriptionGroups(config, clock)
        self.offsets = ConsumerOffsets(
            clock,
            version_step=config.consumer_offset_update_version_step,
            lmq=store_config.enable_lmq,
            max_bytes=Limit(config, "max_offset_table_bytes"),
        )
        self.filters = ConsumerFilters(config, clock)
        self.clients = ClientGroups(config, clock, self.filters, members_changed)
        self.locks = QueueLocks(config, clock)
        self.stats = Stats(
            clock,
            store.log.position,
            cluster=config.broker_cluster_name,
            max_bytes=Limit(config, "max_statistics_bytes"),
            utc_offset_ms=utc_offset_ms,
        )
        self.writer = Writer(store, self.topics, self.mappings, self.stats)
        self.calls = Calls(clock)
        self.slow_readers = SlowReaders(config, clock, store, self.subscriptions)
        self.cold_reads = ColdReads(config, store_config, clock)
        self.halves = HeldHalves(clock, Limit(config, "max_half_table_bytes"), store_config)
        now_ms = clock.now_ms
        self.delayed = TimedShares("delayedMessages", Limit(config, "max_delayed_messages_per_user"), now_ms)
        """The users of messages that wait for their time."""
        self.check_points = TimedShares("checkPoints", Limit(config, "max_check_points_per_user"), now_ms)
        """The users for whom POP has handed out messages."""
        self.acknowledgements = TimedShares(
            "acknowledgements", Limit(config, "max_acknowledgements_per_user"), now_ms
        )
        """The users of acknowledgements of POP that wait for their check points."""
        self.long_work = LongWork()
        self.permits: Permits = _permits
        """Whether a connection's user may do one of these actions, where no row of the table asks for it."""
        self.grant: Callable[[Session, int], Grant | None] = _no_grant
        """What a connection's user may, for a request that waits."""
        self.remove_lite_topics: Callable[[Set[str]], Work[None]] = _no_lite_topics
        """Removes the lite topics of a parent topic that is being deleted."""
        self.ahead_ms = 0
        """How far the broker's clock has been moved ahead of its clients' clocks."""
