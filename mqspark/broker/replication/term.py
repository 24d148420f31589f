"""One broker's part in the current term of its broker set: who is the master, who has everything, and how long that is
certain (ReplicasManager, AutoSwitchHAService).

The SyncStateSet is the set of replicas of which a controller may make any one the master, so a message is acknowledged
only when all of them have it. A change that is asked for and not answered may be in force, or come into force later:
both sets count, until the set has a newer epoch. A master that has not been answered by a controller for
controllerHeartBeatTimeoutMills may have been replaced: it shows and acknowledges nothing more. Its lease begins when
the heartbeat was sent, and the controller's time when it arrived; it is also shorter by a little, because the clocks of
two machines do not run equally fast. It is checked against a monotonic clock each time, so it holds for a process that
was frozen, too.

Must not know connections or the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.base.clock import Clock

DRIFT_DIVISOR = 50
"""Share by which a lease is shortened: clocks that are disciplined by NTP differ by less than 1 in 1,000."""


class Term:
    def __init__(self, clock: Clock, broker_id: int, lease_ms: int) -> None:
        """``broker_id``: the number that the controller gave to this broker. ``lease_ms``: after so much silence
        another one may be elected."""
        self._clock = clock
        self.broker_id = broker_id
        self._lease_ms = lease_ms - lease_ms // DRIFT_DIVISOR
        self._lease_until_ms = clock.monotonic_ms()
        self.epoch = 0
        """The master's epoch; 0 before the first."""
        self.master_id: int | None = None
        self.master_address = ""
        self.set_epoch = 0
        self.sync_set: frozenset[int] = frozenset()
        """As the controller confirmed it last."""
        self.evicted: set[int] = set()
        """Members that a controller has taken out by itself: their processes were started again."""
        self._asked: frozenset[int] = frozenset()
        """Members of all sets that were asked for since then, and may be in force."""
        self.least = 0
        """minInSyncReplicas as the controller knows it; 0 when it says nothing of it, as RocketMQ's."""
        self.given_up = 0
        """The last epoch whose master an operator has chosen although it lacked confirmed messages; 0 without one."""
        self.is_over = False
        """A newer epoch is known: this broker's part has to change."""
        self.topics_known_at: int | None = None
        """``Metadata.topics_known_at`` of the part before this one."""

    @property
    def is_master(self) -> bool:
        return self.master_id == self.broker_id

    @property
    def members(self) -> frozenset[int]:
        """Everyone whom a controller may make the master."""
        return self.sync_set | self._asked

    @property
    def is_unsure(self) -> bool:
        """Whether a change was asked for that may be in force, or may still come into force."""
        return bool(self._asked)

    def answered(self, sent_ms: int) -> None:
        """The leader of the controllers answered the heartbeat that was sent at this monotonic time. That does not
        bring back a lease that has ended: another master may have been elected, which the answer would not say."""
        if self._clock.monotonic_ms() < self._lease_until_ms:
            self.renewed(sent_ms)

    def renewed(self, sent_ms: int) -> None:
        """It answered a question of this time by naming this broker as the master of this epoch."""
        self._lease_until_ms = max(self._lease_until_ms, sent_ms + self._lease_ms)

    @property
    def holds(self) -> bool:
        """Whether this broker is certainly the only master."""
        return self.is_master and not self.is_over and self._clock.monotonic_ms() < self._lease_until_ms

    def begin(self, epoch: int, master_id: int, master_address: str) -> None:
        self.epoch, self.master_id, self.master_address = epoch, master_id, master_address
        self.is_over = False

    def decided(self, members: Iterable[int], set_epoch: int, *, was_asked: bool = False) -> None:
        """The set as a controller has it. Requests for an older one cannot be granted any more. ``was_asked``: it is
        the answer to such a request."""
        if set_epoch > self.set_epoch:
            before = self.sync_set
            self.set_epoch, self.sync_set = set_epoch, frozenset(members)
            if not was_asked:
                self.evicted |= before - self.sync_set
            self._asked = frozenset()

    def ask(self, members: frozenset[int]) -> None:
        """A change is about to be asked for. Until the set has a new epoch it may come into force at any time: also
        when no answer arrives."""
        self._asked |= members

    def refused(self) -> None:
        """The controller refused the only request since the last change of the set."""
        self._asked = frozenset()
