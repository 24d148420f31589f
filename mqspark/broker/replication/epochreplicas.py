"""Both halves of replication in controller mode: classic replication, and epochs (AutoSwitchHAConnection,
AutoSwitchHAClient).

A slave first compares its epochs with its master's, and takes its log back to where the newest common one ends. Then
it goes on as a classic slave does: it compares its tail with the master's bytes, too, so that logs without epochs, or
with wrong ones, are noticed. It reports nothing new on a connection before its copies of its master's tables are
fresh: a slave in the SyncStateSet may be elected, and would not know what groups have consumed. A slave whose log
cannot be trusted compares all of it, and takes back whatever differs; others take back nothing that is confirmed.

The master counts a slave as in sync once it has everything that is, or may be, confirmed, and asks the controller
before it relies on that; and as out of sync after haMaxTimeSlaveNotCatchup, or when it has been silent for as long as a
controller waits for a broker and enough others are left.

Must not know sockets.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqspark.base.clock import Clock
from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.follower import CutRefused, Follower, FollowerDiverged, Healer
from mqspark.broker.replication.metadata import Metadata
from mqspark.broker.replication.replicas import Replica, Replicas
from mqspark.broker.replication.term import Term
from mqspark.errors import ProtocolError, TooFewReplicas
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.replica_bodies import EpochEntry, EpochEntryCache
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.headers.cluster_headers import ExchangeHAInfoResponseHeader
from mqspark.protocol.servers.epochframes import (
    EpochFrames,
    MasterHello,
    SlaveHello,
    SlaveWords,
    encode_hello,
    encode_master_hello,
    encode_position,
    epoch_data_head,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices
from mqspark.store.log.epochs import Epoch, EpochFile, check_order, last_common
from mqspark.store.store import MessageStore

UNSURE = "this replica does not know yet which of its messages are confirmed"

BEATS = 10
"""Signs of life within controllerHeartBeatTimeoutMills."""
MAX_LEFT = 1_000
"""Slaves that are remembered after they left."""


class EpochFollower(Follower):
    """The slave's half."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        healer: Healer,
        term: Term,
        epochs: EpochFile,
        metadata: Metadata,
    ) -> None:
        self._metadata = metadata
        self._term = term
        self._epochs = epochs
        self._confirmed = -1
        self.received_ms = 0
        """When a master has last sent anything (monotonic); 0 before the first."""
        self._member = store.member
        super().__init__(config, store, clock, healer)

    def _end_connection(self) -> None:
        super()._end_connection()
        self._hello_end = -1
        """Where the master's log ended when it shook hands; -1 before."""
        self._said = -1
        """The confirmed position that the master reported on this connection; -1 without one."""
        self._words = EpochFrames()
        self._agreed = self._first_due = self._had_tables = False

    @property
    def confirmed(self) -> int:
        """The position up to which the log here is a master's, and confirmed; -1 if unknown. A difference is noticed
        only when the end was compared, so nothing after the end counts, whatever the master reports."""
        self._confirmed = max(self._confirmed, min(self._said, self.position))
        return self._confirmed

    def connect(self, address: str, master_begin: int, master_end: int) -> bytes:
        if self._member.damage:
            self.check_bytes = self._store.log.position
        super().connect(address, master_begin, master_end)
        self._epochs.cut_behind(self._store.log.position)
        config = self._config
        return encode_hello(
            SlaveHello(self._term.broker_id, config.sync_from_last_file, config.async_learner)
        )

    def _first_of_empty(self, master_begin: int, master_end: int) -> int:
        return 0  # the handshake says which segment is meant

    def _parse(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        for each in self._words.receive_data(data):
            if isinstance(each, MasterHello):
                self._agree(each)
                continue
            if not self._agreed:
                raise ProtocolError("it sends its log before its epochs")
            if each.part:
                self._note(Epoch(each.epoch, each.epoch_start), each.position)
            self._said = max(self._said, each.confirmed)
            if each.part or each.position >= 0:
                yield each.position, each.part

    def _note(self, epoch: Epoch, position: int) -> None:
        is_new = epoch.number > self._epochs.last_number and position >= epoch.start
        if is_new and not self._epochs.append(*epoch):
            raise ProtocolError(f"its epoch {epoch.number} begins at {epoch.start}, before the last one here")

    def _agree(self, hello: MasterHello) -> None:
        """Compare the epochs. Raises FollowerDiverged when the log has to be taken back, ProtocolError."""
        theirs = [Epoch(*each) for each in hello.epochs]
        try:
            check_order(theirs)
        except ValueError as error:
            raise ProtocolError(f"its epochs are impossible: {error}") from None
        # Every byte of a damaged log is compared, whatever its epochs say.
        if self._is_empty or self._member.damage:
            self._epochs.cut_after(-1)
        own, end = self._epochs.entries, self._store.log.position
        if theirs and self._term.epoch < theirs[-1].number:
            raise ProtocolError(f"it is in epoch {theirs[-1].number}, the controller in {self._term.epoch}")
        last = theirs[-1].number if theirs else -1
        # A master of RocketMQ does not note its epoch when it begins where the one before did.
        if own and own[-1].number > last and own[-1].number >= self._term.epoch:
            raise ProtocolError(f"its epochs end before {own[-1].number}, which is the last one here")
        if own and end > self._store.log.min_offset:
            common = last_common(own, end, theirs, hello.end)
            if common is None:
                raise ProtocolError(
                    "its log has no epoch in common with the one here; move the store directory away to copy that log,"
                    " or correct brokerName"
                )
            epoch, point = common
            if point < end:
                if not self._store.copy.is_record_end(point):
                    raise ProtocolError(
                        f"its epochs end at {point}, which is inside a record here, of another set's log; move"
                        " the store directory away to copy that log, or correct brokerName"
                    )
                self.take_back(point)
                self._epochs.cut_after(epoch.number)
                raise FollowerDiverged(
                    point, f"by epoch {epoch.number}, the log here is taken back to {point}"
                )
            self._epochs.cut_after(epoch.number)
        self.master_end = self._hello_end = max(self.master_end, hello.end)
        self._agreed = self._first_due = True

    @property
    def _reportable(self) -> int:
        self._had_tables = self._had_tables or self._metadata.is_fresh
        is_sure = self._had_tables and self._healer.is_whole and self._is_whole()
        return self.position if is_sure else self.begin

    @property
    def is_agreed(self) -> bool:
        return self._agreed and super().is_agreed

    def _is_whole(self) -> bool:
        """Whether the log can be trusted; once all of it was compared, that is noted. Raises OSError."""
        if not self._member.damage:
            return True
        if self._compared < self._compare_end or self._hello_end < 0:
            return False
        if self.position < max(self._said, self._hello_end):
            return False
        self._member.trust(self._epochs.last_number, self.position)
        return True

    @property
    def _may_start_over(self) -> bool:
        return bool(self._member.damage)

    def take_back(self, position: int) -> None:
        """Raises CutRefused below what is confirmed, unless this log is known to be damaged, or an operator has chosen
        a master that lacks some of it."""
        noted = self._member.noted
        may_lose = bool(noted.damage) or self._term.given_up > noted.epoch
        if position < noted.confirmed and not may_lose:
            raise self._refused(position, f"before {noted.confirmed}, which is confirmed")
        super().take_back(position)

    def _refused(self, position: int, why: str) -> CutRefused:
        if self.refused_since_ms is None:
            self.refused_since_ms = self._clock.monotonic_ms()
        return CutRefused(position, why)

    def _diverged(self, position: int) -> ProtocolError:
        """In an epoch that both logs have, one master wrote one sequence of bytes: a difference is damage of one of the
        two, and no reason to take back what is sound."""
        common = self._store.copy.last_whole_record(self._compare_from, position)
        begin = self._first_different(common)
        epochs = self._epochs.entries
        is_common = bool(epochs) and position >= next(
            (each.start for each in epochs if each.number), position + 1
        )
        if begin is None or not is_common or self._member.damage:
            return super()._diverged(position)
        if self._healer.is_damage(begin):
            return FollowerDiverged(position, f"the record here at {begin} is damaged, and is healed first")
        if self._store.copy.is_sound(begin):
            self._healer.dispute(begin)
            return self._refused(position, "in an epoch that both have")
        self._member.suspect(f"its record at {begin} is damaged")
        return ProtocolError(f"the log here is damaged at {begin}: all of it is compared next")

    @property
    def _beat_ms(self) -> int:
        return beat_ms(self._config)

    def received(self, data: bytes) -> None:
        self.received_ms = self._clock.monotonic_ms()
        super().received(data)

    def _encode(self, position: int) -> bytes:
        return encode_position(position)

    def report(self) -> bytes:
        if not self._agreed:
            return b""
        if self._first_due:
            self._first_due, self._said_ms = False, self._clock.monotonic_ms()
            return encode_position(self.begin)
        try:
            report = super().report()
            if report:
                self._member.acknowledge(self._epochs.last_number, self._reported, max(0, self.confirmed))
        except OSError:  # the store notices it
            return b""
        return report


def beat_ms(config: BrokerConfig) -> int:
    """In controller mode each end says so often that it is there: the controller hears from both of them how long the
    other one was silent, and replaces a master that is cut off."""
    return min(config.ha_send_heartbeat_interval, config.controller_heart_beat_timeout_mills // BEATS)


class EpochReplica(Replica):
    """The master's half: one connection of a slave."""

    def __init__(
        self,
        address: str,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        epochs: EpochFile,
        owner: EpochReplicas,
    ) -> None:
        super().__init__(address, config, store, clock)
        self._epochs = epochs
        self._owner = owner
        self._words = SlaveWords()
        self._greets = False
        self.hello: SlaveHello | None = None
        self.is_stale = False
        """What was said on this connection came from a process that has ended, or may have."""
        self._sent_end = 0
        """The end of the log when data was sent last, and the time."""
        self._sent_ms = self.caught_up_ms = clock.monotonic_ms()

    @property
    def away_ms(self) -> int:
        """For how long it has lacked something and said nothing."""
        return self._clock.monotonic_ms() - max(self.heard_ms, self.caught_up_ms)

    def received(self, data: bytes) -> None:
        self.heard_ms = self._clock.monotonic_ms()
        if not self._owner.is_master:
            raise ProtocolError("this broker is not the master")
        if self.is_stale:
            raise ProtocolError("a controller has taken it out of the SyncStateSet: it has to connect anew")
        for each in self._words.receive_data(data):
            if isinstance(each, SlaveHello):
                if self.hello is not None:
                    raise ProtocolError("it shakes hands twice")
                self.hello, self._greets = each, True
            elif self.hello is None:
                raise ProtocolError("it reports its position before its broker id")
            else:
                self._reported(each)

    def _reported(self, position: int) -> None:
        super()._reported(position)
        if position >= self._store.pipeline.stored_end:
            self.caught_up_ms = self._clock.monotonic_ms()
        elif position >= self._sent_end:
            self.caught_up_ms = max(self.caught_up_ms, self._sent_ms)

    def _first(self, position: int) -> int:
        if position == 0 and self.hello is not None and not self.hello.newest_segment_only:
            return self._store.log.min_offset
        return super()._first(position)

    def data(self, limit_bytes: int) -> list[bytes | memoryview]:
        if self._greets:
            self._greets = False
            return [encode_master_hello(self._store.pipeline.stored_end, self._epochs.entries)]
        out = super().data(limit_bytes)
        if out:
            self._sent_end, self._sent_ms = self._store.pipeline.stored_end, self._clock.monotonic_ms()
        return out

    @property
    def _beat_ms(self) -> int:
        return beat_ms(self._config)

    def _most_bytes(self, position: int) -> int:
        return min(super()._most_bytes(position), self._epochs.at(position)[1] - position)

    def _head(self, position: int, size: int) -> bytes:
        epoch, _ = self._epochs.at(position)
        return epoch_data_head(position, size, epoch, self._owner.confirmed)


class EpochReplicas(Replicas):
    """All slaves of a broker in controller mode. On a slave it only says what is confirmed."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        term: Term,
        epochs: EpochFile,
        follower: EpochFollower | None,
    ) -> None:
        super().__init__(config, store, clock, follower)
        self.may_lack = True
        self._term = term
        self._epochs = epochs
        self._epoch_follower = follower
        self._confirmed = -1
        """The last position that was confirmed."""
        self._start_end = store.log.position
        """The end of the log here at the start. A master that was started again in its term does not know what of that
        it has acknowledged before."""
        self._since_ms = clock.monotonic_ms()
        self._heard_ms: dict[int, int] = {}
        """When slaves whose connection ended were last heard; at most as many as ``_left``."""
        self._left: set[int] = set()
        """Slaves whose connection ended."""
        self._sure = False
        """Whether a master knows that all that its start has shown is confirmed."""

    def _new(self, address: str) -> Replica:
        return EpochReplica(address, self._config, self._store, self._clock, self._epochs, self)

    def disconnect(self, replica: Replica) -> None:
        super().disconnect(replica)
        hello = replica.hello if isinstance(replica, EpochReplica) else None
        if hello is not None and len(self._left) < MAX_LEFT:
            self._left.add(hello.broker_id)
            self._heard_ms[hello.broker_id] = max(replica.heard_ms, self._heard_ms.get(hello.broker_id, 0))

    def silences_ms(self) -> dict[int, int]:
        """For how long this master has not heard each of its slaves; those that never were, since its term began."""
        if not self._term.is_master:
            return {}
        heard_ms = dict.fromkeys(self._term.members - {self._term.broker_id}, self._since_ms) | self._heard_ms
        for broker_id, replica in self._by_id().items():
            heard_ms[broker_id] = max(replica.heard_ms, heard_ms.get(broker_id, 0))
        now_ms = self._clock.monotonic_ms()
        return {each: now_ms - max(at_ms, self._since_ms) for each, at_ms in heard_ms.items()}

    @property
    def is_master(self) -> bool:
        return self._term.is_master

    def _by_id(self) -> dict[int, EpochReplica]:
        """The newest connection of each slave that has reported its position."""
        return {
            replica.hello.broker_id: replica
            for replica in self._all
            if isinstance(replica, EpochReplica) and replica.hello is not None and replica.acked >= 0
        }

    @property
    def in_sync(self) -> int:
        return len(self._term.sync_set) if self._term.is_master else 0

    @property
    def needed(self) -> int:
        config = self._config
        wanted = config.in_sync_replicas
        if config.enable_auto_in_sync_replicas:
            wanted = min(wanted, self.in_sync)
        return max(wanted, self._least)

    @property
    def confirmed(self) -> int:
        """The log position that every possible master has; it does not move while this broker may have been replaced,
        a member is away, or fewer than minInSyncReplicas are in sync."""
        follower, term = self._epoch_follower, self._term
        if follower is not None:
            return min(follower.confirmed, self._store.pipeline.stored_end)
        if not term.holds or self.in_sync < self.needed:
            return self._confirmed
        slaves, position = self._by_id(), self._store.pipeline.stored_end
        for member in term.members:
            if member != term.broker_id:
                replica = slaves.get(member)
                if replica is None:
                    return self._confirmed
                position = min(position, replica.acked)
        if position > self._confirmed:
            try:
                self._store.member.acknowledge(self._epochs.last_number, position, position)
            except OSError:  # the store notices it
                return self._confirmed
            self._confirmed = position
        return self._confirmed

    @property
    def confirmed_epoch(self) -> int:
        """The epoch of the byte before ``confirmed``; -1 without one."""
        return self._epochs.at(max(0, self.confirmed - 1))[0].number if self._epochs.entries else -1

    @property
    def must_settle(self) -> bool:
        """Whether the controller counts on another minInSyncReplicas than the setting."""
        return 0 < self._term.least != self._config.min_in_sync_replicas

    @property
    def _least(self) -> int:
        """Members without which nothing is acknowledged. A smaller setting counts once the controller knows it: it may
        elect who was left out when the set became too small."""
        return max(self._config.min_in_sync_replicas, self._term.least)

    @property
    def gates_readers(self) -> bool:
        return True

    @property
    def is_sure(self) -> bool:
        """Whether nothing that this broker shows can be taken back: all of it is confirmed, or nobody else may be
        elected. A start and a cut of the log show everything that is stored."""
        if self._sure:
            return True
        store, term = self._store, self._term
        if store.copy.is_cutting:
            return False
        is_alone = term.holds and term.members == {term.broker_id}
        if not is_alone and self.confirmed < store.pipeline.visible_end:
            return False
        self._sure = self._epoch_follower is None
        return True

    @property
    def shortage(self) -> TooFewReplicas | None:
        if self._epoch_follower is not None:
            return None
        in_sync = self.in_sync if self._term.holds else 0
        if in_sync < max(self._least, 1):
            return TooFewReplicas(in_sync, max(self._least, 1))
        if self._store.pipeline.unconfirmed_bytes > self._config.ha_max_gap_not_in_sync:
            return TooFewReplicas(in_sync, self.needed)
        return None

    def wanted_set(self) -> frozenset[int] | None:
        """The SyncStateSet to ask for, or None if it is right. Called every checkSyncStateSetPeriod, and when a slave
        has reported."""
        term, now_ms = self._term, self._clock.monotonic_ms()
        if not term.is_master or term.is_over:
            return None
        self._note_evicted()
        confirmed = self.confirmed
        slaves, late_ms = self._by_id(), self._config.ha_max_time_slave_not_catchup
        wanted = {term.broker_id}
        for member in term.sync_set - {term.broker_id}:
            replica = slaves.get(member)
            if replica is None:  # one that has left is not waited for; after a start, all are
                if member not in self._left and now_ms - self._since_ms < late_ms:
                    wanted.add(member)
                continue
            if replica.acked >= self._store.pipeline.stored_end:
                replica.caught_up_ms = now_ms
            if now_ms - replica.caught_up_ms < late_ms:
                wanted.add(member)
        wanted -= self._dispensable(wanted, slaves)
        last = self._epochs.last
        begin = last.start if last is not None else 0
        for broker_id, replica in slaves.items():
            if replica.hello is None or replica.hello.is_learner or broker_id in term.sync_set:
                continue
            if not replica.is_stale and replica.acked >= max(confirmed, self._start_end, begin):
                wanted.add(broker_id)
        return frozenset(wanted) if wanted != term.sync_set else None

    def _note_evicted(self) -> None:
        slaves, evicted = self._by_id(), self._term.evicted
        for broker_id in evicted & slaves.keys():
            slaves[broker_id].is_stale = True
        evicted.clear()

    def _dispensable(self, wanted: set[int], slaves: dict[int, EpochReplica]) -> set[int]:
        """Members that are silent: a slave that is only slow says every haSendHeartbeatInterval how far it is. Sends
        would wait for them until haMaxTimeSlaveNotCatchup. None if too few others are left, or no other slave: a
        message has to be on two brokers as long as that is possible. (RocketMQ waits for all of them.)"""
        silent_ms = self._config.controller_heart_beat_timeout_mills
        silent = {each for each in wanted if each in slaves and slaves[each].away_ms >= silent_ms}
        return silent if len(wanted - silent) >= max(2, self.needed) else set()


_CONFIRMED_READS = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
)


def reads_once_sure(handlers: dict[int, Handler], replicas: EpochReplicas) -> dict[int, Handler]:
    """Handlers of requests that read messages. They refuse until no answer can be taken back by an election."""

    def check() -> None:
        if not replicas.is_sure:
            raise Refusal(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]system busy, {UNSURE}")

    def checked_after(slices: Slices) -> Slices:
        answer = yield from slices
        check()
        return answer

    def guarded(handler: Handler) -> Handler:
        def guard(session: Session, command: Command) -> bytes | Slices | None:
            check()
            answer = handler(session, command)
            return answer if answer is None or isinstance(answer, bytes) else checked_after(answer)

        return guard

    return {code: guarded(handlers[code]) for code in _CONFIRMED_READS if code in handlers}


class HaViews:
    """What other brokers and tools ask about the log in controller mode."""

    def __init__(self, config: BrokerConfig, store: MessageStore, term: Term, epochs: EpochFile) -> None:
        self._config = config
        self._store = store
        self._term = term
        self._epochs = epochs
        self.handlers: dict[int, Handler] = {
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.exchange,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epoch_cache,
        }

    def exchange(self, session: Session, command: Command) -> bytes:
        """Tell a slave where the log can be copied. What it says of itself is ignored: the controller decides who is
        the master."""
        if not self._term.is_master:
            return ok(command, ExchangeHAInfoResponseHeader())
        header = ExchangeHAInfoResponseHeader(
            master_ha_address=self._config.ha_address,
            master_flush_offset=self._store.log.durable,
            master_address=self._config.address,
        )
        return ok(command, header)

    def epoch_cache(self, session: Session, command: Command) -> bytes:
        entries, end = self._epochs.entries, self._store.log.position
        ends = [*(epoch.start for epoch in entries[1:]), end]
        cache = EpochEntryCache(
            cluster_name=self._config.broker_cluster_name,
            broker_name=self._config.broker_name,
            broker_id=self._term.broker_id,
            epoch_list=[
                EpochEntry(epoch=each.number, start_offset=each.start, end_offset=after)
                for each, after in zip(entries, ends, strict=False)
            ],
            max_offset=end,
        )
        return ok(command, None, encode_body(cache))
