"""What a broker is in its set, the brokers of one name: whose log and tables it copies, and who copies its own.

    follower    on a slave                      copies the log of its master
    metadata    on a slave                      copies the tables of its master
    epochs      in controller mode              which master's term wrote which part of the log
    pre_online  on a master that comes back     takes over what slaves have done in its place
    acting      with enableSlaveActingMaster    lets a slave act as the master while there is none
    replicas    always                          the slaves that copy the log here, and what is confirmed
    healing     always                          what replicas ask and give each other of damaged parts of their logs

All are made at the start, from the settings and the term: a broker that becomes a master or a slave gets a new core.
The shell connects them to other brokers: it carries the bytes of ``follower`` and ``replicas`` and the questions of
``metadata`` and ``pre_online``, and tells ``acting`` which brokers are there. It replaces none of them. Only
``pre_online`` ends, when the broker goes online.

Must not know connections, nor the services that a broker runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mqspark.broker.config import BrokerRole
from mqspark.broker.pop.assignment import RequestModes
from mqspark.broker.replication.acting import ActingMaster, others_answers
from mqspark.broker.replication.epochreplicas import (
    UNSURE,
    EpochFollower,
    EpochReplicas,
    HaViews,
    reads_once_sure,
)
from mqspark.broker.replication.follower import Follower
from mqspark.broker.replication.loghealing import UNHEALED, Healing
from mqspark.broker.replication.metadata import Metadata, adopt_queues
from mqspark.broker.replication.preonline import PreOnline, comes_back
from mqspark.broker.replication.replicas import Replicas
from mqspark.broker.replication.slave import refusals_before, slave_refusals
from mqspark.broker.replication.tablenotices import TableNotices
from mqspark.broker.replication.term import Term
from mqspark.broker.state.state import BrokerState
from mqspark.broker.timer.delays import DelayService
from mqspark.broker.timer.timerservice import TimerService
from mqspark.protocol.dispatch import Handler, merged
from mqspark.store.log.epochs import EpochFile, begin_term

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority


class Role:
    """Takes effect at once: the store of a slave only copies from now on, and the term of a master begins. Made when
    tables and services are loaded. Raises StoreCorrupt, OSError."""

    def __init__(
        self,
        state: BrokerState,
        term: Term | None,
        authority: Authority | None,
        modes: RequestModes,
        delays: DelayService,
        timers: TimerService,
        notices: TableNotices,
    ) -> None:
        """``term``: this broker's part; None without controllers. ``authority``: None without users. ``notices``: of
        changes of the tables here."""
        config, store, clock = state.config, state.store, state.clock
        is_slave = config.broker_role is BrokerRole.SLAVE
        self._state = state
        self._notices = notices
        self.epochs: EpochFile | None = None
        self.follower: Follower | None = None
        self.metadata: Metadata | None = None
        if is_slave:
            users = None if authority is None else authority.follow()
            self.metadata = Metadata(state, modes, delays, timers, users)
        self._views: HaViews | None = None
        """What brokers and tools ask about the log in controller mode."""
        healing = self.healing = Healing(
            config, store, clock, authority, None if term is None else store.member
        )
        if term is None:
            self.follower = Follower(config, store, clock, healing) if is_slave else None
            self.replicas = Replicas(config, store, clock, self.follower)
        else:
            store.member.open()
            epochs = self.epochs = EpochFile(
                store.root_file(store.paths.epochs), store.log.position, store.member.expect_epochs
            )
            if term.is_master:
                begin_term(epochs, term.epoch, store.log.position)
                if store.member.damage:  # an operator wants it so: from now on others are measured by it
                    store.member.trust(term.epoch, store.log.position)
            follower: EpochFollower | None = None
            if self.metadata is not None:
                follower = EpochFollower(config, store, clock, healing, term, epochs, self.metadata)
            self.follower = follower
            self.replicas = EpochReplicas(config, store, clock, term, epochs, follower)
            self._views = HaViews(config, store, term, epochs)
        self.pre_online = PreOnline(config, state, delays, timers) if comes_back(config) else None
        """None from ``go_online`` of the broker on."""
        self.acting: ActingMaster | None = None
        if config.enable_slave_acting_master:
            self.acting = ActingMaster(config, state, self.follower, delays, timers)
            if self.metadata is not None:
                self.metadata.acting = self.acting
        store.reads.why_unhealed = self.why_unhealed
        healing.follower = self.follower
        self._begin(timers, term)

    def _begin(self, timers: TimerService, term: Term | None) -> None:
        store, topics = self._state.store, self._state.topics
        if self.follower is not None:
            store.copy.follow()
            timers.begin_following()
        store.condition.refuse(self.replicas.shortage)
        if self.replicas.gates_readers:
            store.confirm(self.replicas.confirmed)
        if term is not None and term.is_master:
            if term.topics_known_at is not None:
                adopt_queues(topics, store, term.topics_known_at)
            topics.begin_epoch(term.epoch)

    @property
    def is_slave(self) -> bool:
        return self.follower is not None

    def has_master(self) -> bool:
        """Whether this is a slave whose master is there."""
        return self.follower is not None and self.follower.address is not None

    def is_acting(self) -> bool:
        """Whether this is a slave that acts as the master now."""
        return self.acting is not None and self.acting.is_acting

    def knows_topics(self) -> bool:
        """Whether the topics here are the master's: on a slave, after it has asked."""
        return self.metadata is None or self.metadata.topics_known_at is not None

    def why_unsure(self) -> str:
        """Why no messages may be read now, or ''."""
        return "" if self.replicas.is_sure else UNSURE

    def why_unhealed(self, missed: Mapping[int, int]) -> str:
        """Why a read that has missed records may not lead its reader past them, or ''. ``missed``: their places, and
        since when reads miss them (monotonic)."""
        replicas = self.replicas
        has_others = isinstance(replicas, EpochReplicas) or self.follower is not None or len(replicas) > 0
        return UNHEALED if has_others and self.healing.may_come(missed) else ""

    def govern(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """The handlers of a broker in this role: with its own, and where it must not answer, refusals."""
        governed = merged(handlers, self.replicas.handlers, others_answers(self._state.config, self._state))
        governed.update(self._notices.watching(governed))
        if self._views is not None:
            governed.update(self._views.handlers)
        if isinstance(self.replicas, EpochReplicas):
            governed.update(reads_once_sure(governed, self.replicas))
        if self.acting is not None:
            governed.update(self.acting.handlers)
        governed.update(self.healing.watching(governed))
        if self.follower is not None:
            governed.update(slave_refusals())
            if self.acting is not None:
                governed.update(self.acting.pop_handlers)
        elif self.pre_online is not None:
            governed.update(refusals_before(governed, lambda: self.pre_online is None))
        return governed

    def forget_epochs(self) -> None:
        """Forget the epochs of which the log has nothing left. A disk that is full has to be cleaned all the same, and
        a failed save is noticed by the store's maintenance: the next call tries again."""
        if self.epochs is not None:
            with contextlib.suppress(OSError):
                self.epochs.forget_before(self._state.store.log.min_offset)
