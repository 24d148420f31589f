"""A slave that acts as master while there is none (BrokerController.updateMinBroker, changeSpecialServiceStatus).

Every second the name servers are asked which brokers of this name are there. A slave acts when none of them knows a
master, its own id is the smallest, and it has no connection to a master. Then consumers read from it, queue locks are
its, and, with enableRemoteEscape, it delivers delayed and timed messages, revives popped ones and hands open
transactions on: to brokers of other names (``mqspark.broker.replication.escape``). Its log stays a copy.

When a master announces itself (EXCHANGE_BROKER_HA_INFO), the slave stops, waits until everything on its way is stored,
and only then follows, so that the progress which the master asks for is final. (RocketMQ's slave continues until name
servers know the master, and messages that it delivers in that time are delivered twice.) Only answers of name servers
decide which brokers are there; notices (NOTIFY_MIN_BROKER_ID_CHANGE) only make the shell ask at once.

Must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mqspark.base.clock import Clock
from mqspark.base.logs import sparing
from mqspark.broker.config import BrokerConfig, BrokerRole
from mqspark.broker.pop.acting_pops import ActingPops
from mqspark.broker.pop.acting_revival import ActingRevival
from mqspark.broker.replication.escape import EscapeBridge
from mqspark.broker.replication.follower import Follower
from mqspark.broker.service import TICK_MS
from mqspark.broker.state.state import BrokerState
from mqspark.broker.timer.delays import DelayService
from mqspark.broker.timer.timerservice import TimerService
from mqspark.broker.transaction.escaped_halves import EscapedHalves
from mqspark.message import MASTER_ID
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.headers.cluster_headers import (
    ExchangeHAInfoRequestHeader,
    ExchangeHAInfoResponseHeader,
    NotifyMinBrokerIdChangeRequestHeader,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices

log = sparing(__name__)

FRESH_MS = 5_000
"""Older answers of name servers are ignored."""
ANNOUNCED_MS = 15_000
"""How long after its announcement a master has until name servers know it."""
SETTLE_MS = 8_000
"""How long messages on their way may take to be stored when a master comes back. After that they are delivered
again."""
SETTLING_TICK_MS = 20
ACTING_RETRY_MS = 1_000


def others_answers(config: BrokerConfig, state: BrokerState) -> dict[int, Handler]:
    """What a broker without enableSlaveActingMaster answers to those that have it, as RocketMQ's does."""

    def exchange(session: Session, command: Command) -> bytes:
        if command.header(ExchangeHAInfoRequestHeader).master_ha_address:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "enableSlaveActingMaster is false: this broker ignores announcements of masters",
            )
        return ok(command, _own_log(config, state))

    def min_id_changed(session: Session, command: Command) -> bytes:
        command.header(NotifyMinBrokerIdChangeRequestHeader)
        return ok(command)

    return {
        RequestCode.EXCHANGE_BROKER_HA_INFO: exchange,
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: min_id_changed,
    }


def _own_log(config: BrokerConfig, state: BrokerState) -> ExchangeHAInfoResponseHeader:
    """Where a master's log can be copied; empty on a slave."""
    if config.broker_role is BrokerRole.SLAVE:
        return ExchangeHAInfoResponseHeader()
    return ExchangeHAInfoResponseHeader(
        master_ha_address=config.ha_address,
        master_flush_offset=state.store.log.durable,
        master_address=config.address,
    )


class AnnouncedMaster(NamedTuple):
    """A master that announced its return, as it described itself."""

    ha_address: str
    address: str


class BrokerMembers:
    """The brokers of this name, by the last answers of the name servers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[int, Mapping[int, str]]] = {}
        """Name server → (monotonic ms, broker id → address); one entry a configured name server."""

    def heard(self, server: str, members: Mapping[int, str]) -> None:
        self._known[server] = self._clock.monotonic_ms(), members

    @property
    def is_fresh(self) -> bool:
        """Whether any name server has answered lately."""
        return any(True for _ in self._recent())

    def all(self) -> dict[int, str]:
        """The brokers that at least one name server knows."""
        return {key: address for members in self._recent() for key, address in members.items()}

    def _recent(self) -> list[Mapping[int, str]]:
        oldest_ms = self._clock.monotonic_ms() - FRESH_MS
        return [members for heard_ms, members in self._known.values() if heard_ms >= oldest_ms]


class ActingMaster:
    """One broker with enableSlaveActingMaster. On a master it only answers requests."""

    def __init__(
        self,
        config: BrokerConfig,
        state: BrokerState,
        follower: Follower | None,
        delays: DelayService,
        timers: TimerService,
    ) -> None:
        self._config = config
        self._state = state
        self._clock = state.clock
        self._follower = follower
        self._delays = delays
        self._timers = timers
        self.members = BrokerMembers(state.clock)
        precision_ms = state.store_config.timer_precision_ms
        self.bridges = tuple(
            EscapeBridge(name, config, precision_ms)
            for name in ("escapedDelayed", "escapedTimed", "escapedCopies", "escapedChecks")
        )
        """For messages of delay levels; timer messages; copies of popped messages, and transactions; check points and
        acknowledgements."""
        self._delayed, self._timed, self._copies, checks = self.bridges
        self._pops = ActingPops(state, checks)
        self.ledgers = (*(bridge.ledger for bridge in self.bridges), *self._pops.ledgers)
        self.announced: AnnouncedMaster | None = None
        self._announced_ms = -ANNOUNCED_MS
        self.ask: Callable[[], None] = lambda: None
        """Makes the shell ask the name servers at once."""
        self._revival: ActingRevival | None = None
        self._halves: EscapedHalves | None = None
        self._retry_ms = 0
        """When its files may be tried again after an error (monotonic)."""
        self._settling_since_ms: int | None = None
        self._offsets_at = 0
        """The generation of the consumer offsets when this slave began to act."""
        self.is_acting = False
        """Whether this slave is the master for consumers."""
        self.is_delivering = False
        """Whether its services run, or what they sent is still on its way."""
        self.handlers: dict[int, Handler] = {
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.exchange,
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.min_id_changed,
        }
        self.pop_handlers: dict[int, Handler] = dict.fromkeys(self._pops.handlers, self.serve_pop)
        """The handlers of a slave."""

    # --- requests ---------------------------------------------------------------------------------------------

    def exchange(self, session: Session, command: Command) -> bytes:
        """A master tells a slave where its log can be copied, or a slave asks its master."""
        header = command.header(ExchangeHAInfoRequestHeader)
        is_slave = self._config.broker_role is BrokerRole.SLAVE
        if header.master_ha_address and is_slave:
            for address in (header.master_ha_address, header.master_address or ""):
                host, _, port = address.rpartition(":")
                if not host or not port.isdecimal() or not 0 < int(port[:6]) <= 65535 or len(address) > 300:
                    raise Refusal(ResponseCode.SYSTEM_ERROR, f"{address[:60]} is not of the form host:port")
            self.announced = AnnouncedMaster(header.master_ha_address, header.master_address or "")
            self._announced_ms = self._clock.monotonic_ms()
            self.ask()
            log.info("the master at %s comes back", self.announced.address)
        return ok(command, _own_log(self._config, self._state))

    def min_id_changed(self, session: Session, command: Command) -> bytes:
        """Anybody could send this, so it only makes the broker ask its name servers."""
        command.header(NotifyMinBrokerIdChangeRequestHeader)
        self.ask()
        return ok(command)

    def serve_pop(self, session: Session, command: Command) -> bytes | Slices | None:
        """A pop, or an acknowledgement of what the master, or this slave, handed out."""
        if not self.is_delivering or self._settling_since_ms is not None:
            raise Refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave: its master stores messages"
            )
        return self._pops.handlers[command.code](session, command)

    def before_commit(self) -> None:
        """Called at the end of a turn."""
        if self.is_delivering:
            self._pops.end_turn()

    def progressed(self) -> None:
        """Other brokers have stored more: answer those who wait for that."""
        self._pops.release()

    def as_dict(self) -> dict[str, object]:
        """The state for the health report."""
        return {
            "acting": self.is_acting,
            "delivering": self.is_delivering,
            "delivered": sum(bridge.stored_count for bridge in (self._delayed, self._timed, self._copies)),
            "refused": sum(bridge.lost_count for bridge in self.bridges),
        }

    # --- decision ---------------------------------------------------------------------------------------------

    @property
    def has_master(self) -> bool:
        """Whether name servers know a master, or there is a connection to one."""
        is_connected = self._follower is not None and self._follower.address is not None
        return is_connected or MASTER_ID in self.members.all()

    @property
    def _should_act(self) -> bool:
        if self._config.broker_role is not BrokerRole.SLAVE or self.has_master:
            return False
        if self._is_expected:
            return False
        members = self.members.all()
        return bool(members) and min(members) == self._config.broker_id

    @property
    def _is_expected(self) -> bool:
        """Whether a master has announced itself a moment ago, and was not there since."""
        has_come = self._follower is not None and self._follower.heard_ms >= self._announced_ms
        return not has_come and self._clock.monotonic_ms() - self._announced_ms < ANNOUNCED_MS

    @property
    def may_follow(self) -> bool:
        """Whether nothing is on its way for a master any more, so that its progress is final."""
        return not self.is_delivering

    @property
    def stand_in(self) -> str | None:
        """The address of the slave that acts as the master now, unless it is this one. What it has done must not be
        done again, should this one follow it in its part."""
        members = self.members.all()
        if self.has_master or not members or self._config.broker_id not in members:
            return None
        least = min(members)
        return None if least == self._config.broker_id else members[least]

    @property
    def may_copy_progress(self) -> bool:
        """Whether a master's progress replaces the one here: not before the master took over what was done here,
        which it did when name servers know it."""
        if not self.may_follow:
            return False
        if self.stand_in is not None:
            return True
        return MASTER_ID in self.members.all() if self.members.is_fresh else self.announced is None

    # --- work -------------------------------------------------------------------------------------------------

    def tick(self) -> int:
        """Returns the ms until the next call."""
        if self._config.broker_role is not BrokerRole.SLAVE:
            return TICK_MS
        if MASTER_ID in self.members.all():
            self.announced, self._announced_ms = None, -ANNOUNCED_MS
        should_act = self._should_act
        if should_act != self.is_acting:
            self.is_acting = should_act
            self._note_commits(began=should_act)
            log.warning(
                "this slave %s", "acts as the master" if should_act else "no longer acts as the master"
            )
        wants = should_act and self._config.enable_remote_escape
        if wants and not self.is_delivering:
            self._begin()
        elif self.is_delivering and not wants and self._settling_since_ms is None:
            self._settling_since_ms = self._clock.monotonic_ms()
            self._pops.hand_out_no_more()
        if self._revival is None or self._halves is None:
            return TICK_MS
        wait_ms = self._revival.tick()
        if self._settling_since_ms is None:
            self._pops.tick()
            return min(wait_ms, self._delays.tick(), self._timers.tick(), self._halves.tick())
        is_late = self._clock.monotonic_ms() - self._settling_since_ms > SETTLE_MS
        if (is_late or all(bridge.is_settled for bridge in self.bridges)) and not self._timers.is_saving:
            self._end(self._halves)
        return min(wait_ms, SETTLING_TICK_MS)

    def _is_timer_idle(self) -> bool:
        """No timer message is late, or none will come any more."""
        return self._settling_since_ms is not None or self._timers.is_idle()

    def _note_commits(self, *, began: bool) -> None:
        """Offsets that consumers committed here get a newer version, or a master would keep its own."""
        offsets = self._state.offsets
        if not began and offsets.generation != self._offsets_at:
            offsets.step_version()
        self._offsets_at = offsets.generation

    def _begin(self) -> None:
        if self._timers.is_saving or self._clock.monotonic_ms() < self._retry_ms:
            return  # its files are in use, or failed a moment ago
        try:
            self._timers.act(self._timed)
        except OSError as error:
            self._failed(error)
            return
        self._delays.begin(self._delayed)
        self._revival = ActingRevival(
            self._state, self._copies, self._timed.settle, self._is_timer_idle, self._pops.kept_acks
        )
        self._revival.load()
        self._timed.keepers = {self._revival.topic: self._revival.keep}
        self._pops.begin(self._revival)
        self._halves = EscapedHalves(self._state, self._copies)
        self.is_delivering = True
        self._settling_since_ms = None
        log.info("waiting messages are delivered to brokers of other names")

    def _failed(self, error: OSError) -> None:
        self._retry_ms = self._clock.monotonic_ms() + ACTING_RETRY_MS
        log.error("the files of timer messages cannot be reset, trying again: %s", error)

    def _end(self, halves: EscapedHalves) -> None:
        """Progress here follows what is stored elsewhere."""
        if self._clock.monotonic_ms() < self._retry_ms:
            return
        halves.save()
        self._pops.end()
        self._note_commits(began=False)
        self._delays.end()
        try:
            self._timers.stop_acting()
        except OSError as error:
            self._failed(error)
            return
        for bridge in self.bridges:
            bridge.clear()
            bridge.keepers = {}
        self._revival = self._halves = self._settling_since_ms = None
        self.is_delivering = False
        log.info("messages are no longer delivered to brokers of other names")

    def stop(self) -> None:
        """Called before the last saves."""
        if self._halves is not None and not self._timers.is_saving:
            self._end(self._halves)
