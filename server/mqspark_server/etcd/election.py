"""Which controller leads, by a lease in etcd, and the state that only the leader may change.

    PREFIX/leader   id and address of the leader; goes with its lease
    PREFIX/state    the table of replicas

The revision in which a leader made its key is its fence: every change of the state is one transaction that compares
it, so that a controller which was replaced without knowing changes nothing. Must not know requests of brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from mqspark.base.clock import Clock
from mqspark.base.logs import sparing
from mqspark.base.names import is_address
from mqspark.controller.config import ControllerConfig
from mqspark.errors import NotNow, StoreCorrupt
from mqspark_server.etcd.etcdclient import Etcd, EtcdUnavailable, Found, compare, get, put
from mqspark_server.process.diskwork import Worker
from mqspark_server.process.tasks import end_all

log = logging.getLogger("mqspark.election")
_troubles = sparing("mqspark.election.etcd")

CAMPAIGN_S = 0.5
"""Interval at which a controller that does not lead checks who leads."""
MARGIN_MS = 500
"""A leader stops this long before its lease may have ended."""
MAX_ATTEMPTS = 5


class _Leader(msgspec.Struct):
    id: str
    address: str


class Fence(NamedTuple):
    """What proves that a controller leads."""

    lease: int
    revision: int


class EtcdState:
    """The state while one controller leads. ``save`` blocks, and runs in one thread at a time."""

    def __init__(self, etcd: Etcd, prefix: str, fence: Fence, found: Found | None) -> None:
        self._etcd = etcd
        self._leader_key, self._key = f"{prefix}/leader", f"{prefix}/state"
        self._fence = fence
        self._content = None if found is None else found.value
        self._revision = 0 if found is None else found.mod_revision

    def load(self) -> bytes | None:
        return self._content

    def corrupt(self, why: str) -> StoreCorrupt:
        return StoreCorrupt(
            f"the key {self._key} in etcd is damaged: {why}. The master cannot be guessed. Restore the key, or stop all"
            " brokers, delete it, and move brokerIdentity and epochFileCheckpoint (and their .bak) of every broker"
            " away. Then start the broker with the longest log first: it becomes master, whatever messages it has",
            path=self._key,
        )

    def save(self, content: bytes) -> None:
        """Raises NotNow when another controller has taken over, and EtcdUnavailable."""
        leads = compare(self._leader_key, "create_revision", self._fence.revision)
        for _ in range(MAX_ATTEMPTS):
            known = compare(self._key, "mod_revision", self._revision)
            done, revision, found = self._etcd.transact(
                [leads, known], [put(self._key, content)], [get(self._leader_key), get(self._key)]
            )
            if done:
                self._revision = revision
                return
            leader, state = found if len(found) == 2 else (None, None)
            if leader is None or leader.create_revision != self._fence.revision:
                raise NotNow("another controller has taken over")
            # Only this controller writes while it leads: an attempt without an answer has taken effect.
            self._revision = 0 if state is None else state.mod_revision
            if state is not None and state.value == content:
                return
        raise EtcdUnavailable("the state in etcd keeps changing")


class Candidate(Protocol):
    def lead(self, state: EtcdState, until_ms: int) -> None: ...

    def renew(self, until_ms: int) -> None: ...

    def follow(self, leader_address: str) -> None: ...

    @property
    def leads(self) -> bool: ...


class Election:
    """Campaigns from ``start`` to ``stop``, and informs the candidate. ``progressed`` is called after each change of
    the leader, on the loop."""

    def __init__(
        self,
        etcd: Etcd,
        config: ControllerConfig,
        clock: Clock,
        address: str,
        candidate: Candidate,
        progressed: Callable[[], None],
    ) -> None:
        self._etcd = etcd
        self._lease_s = config.etcd_lease_seconds
        self._prefix = config.etcd_prefix.rstrip("/")
        self._key = f"{self._prefix}/leader"
        self._value = msgspec.json.encode(_Leader(config.controller_d_leger_self_id, address))
        self._clock = clock
        self._candidate = candidate
        self._progressed = progressed
        self._fence: Fence | None = None
        self._lease = self._ended_lease = 0
        self._worker = Worker("mqspark-election")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when a leader is known. Raises EtcdUnavailable and StoreCorrupt."""
        await self._renew_or_campaign()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="mqspark-election")

    async def stop(self) -> None:
        """Give the lease back, so that another controller takes over at once."""
        await end_all(self._task)
        self._lose_lead("")
        with contextlib.suppress(EtcdUnavailable):
            await self._worker.run(self._revoke_ended_lease)
        self._worker.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CAMPAIGN_S if self._fence is None else min(CAMPAIGN_S * 2, self._lease_s / 4))
            try:
                await self._renew_or_campaign()
            except EtcdUnavailable as error:
                _troubles.warning("%s", error)
            except StoreCorrupt as error:
                log.critical("%s", error)
                self._lose_lead("")
            except Exception as error:
                # A bug or a foreign server: a controller that gave up would never lead.
                _troubles.error("the election failed unexpectedly and goes on", exc_info=error)

    async def _renew_or_campaign(self) -> None:
        if self._fence is not None:
            await self._renew_lease(self._fence)
        else:
            await self._campaign()

    async def _renew_lease(self, fence: Fence) -> None:
        asked_ms = self._clock.monotonic_ms()
        leader = await self._worker.run(partial(self._renewed, fence))
        if leader is not None and leader.create_revision == fence.revision:
            if self._candidate.leads:
                self._candidate.renew(self._lease_end_ms(asked_ms))
            else:  # its lease had expired before etcd answered: start again, with the state in etcd
                self._lose_lead("")
        else:
            self._lose_lead(self._address_of(leader))

    def _renewed(self, fence: Fence) -> Found | None:
        """In the worker."""
        return self._etcd.get(self._key) if self._etcd.keep_alive(fence.lease) else None

    def _lose_lead(self, leader_address: str) -> None:
        self._fence = None
        self._ended_lease, self._lease = self._lease or self._ended_lease, 0
        self._candidate.follow(leader_address)
        self._progressed()

    def _revoke_ended_lease(self) -> None:
        """In the worker. A lease is not used for a second time: its fence would be the same."""
        if self._ended_lease:
            self._etcd.revoke(self._ended_lease)
            self._ended_lease = 0

    async def _campaign(self) -> None:
        asked_ms = self._clock.monotonic_ms()
        fence, other = await self._worker.run(self._apply)
        if fence is None:
            self._candidate.follow(self._address_of(other))
            return
        found = await self._worker.run(partial(self._etcd.get, f"{self._prefix}/state"))
        if self._clock.monotonic_ms() >= self._lease_end_ms(asked_ms):
            return  # too slow: the key goes with its lease
        self._candidate.lead(EtcdState(self._etcd, self._prefix, fence, found), self._lease_end_ms(asked_ms))
        self._fence = fence
        self._progressed()

    def _apply(self) -> tuple[Fence | None, Found | None]:
        """In the worker: make the key unless there is one."""
        self._revoke_ended_lease()
        if not self._lease or not self._etcd.keep_alive(self._lease):
            self._lease = 0
            other = self._etcd.get(self._key)
            if other is not None:
                return None, other
            self._lease = self._etcd.grant(self._lease_s)
        made, revision, found = self._etcd.transact(
            [compare(self._key, "create_revision", 0)],
            [put(self._key, self._value, self._lease)],
            [get(self._key)],
        )
        if made:
            return Fence(self._lease, revision), None
        other = found[0] if found else None
        if other is not None and other.lease == self._lease:  # an attempt whose answer was lost
            return Fence(self._lease, other.create_revision), None
        return None, other

    def _lease_end_ms(self, asked_ms: int) -> int:
        return asked_ms + self._lease_s * 1000 - MARGIN_MS

    @staticmethod
    def _address_of(leader: Found | None) -> str:
        if leader is None:
            return ""
        try:
            address = msgspec.json.decode(leader.value, type=_Leader).address
        except msgspec.MsgspecError:
            return ""
        return address if is_address(address) else ""
