"""Renewal of receipts: a message that a client still works on stays invisible to others
(DefaultReceiptHandleManager).

A push consumer asks for it and gets its messages for INVISIBLE_MS. Its receipts are changed to as much again before
they end, until the message is acknowledged, the client is gone or RENEWED_MOST_MS are over. So a message is never
invisible for longer than INVISIBLE_MS after this process or the client has died.

The client keeps the handle that came with the message. What it says of the message later is said with the newest one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.clock import Clock
from mqspark.base.config import Bound
from mqspark.base.logs import sparing
from mqspark_server.proxy.content.receipthandles import ReceiptHandle
from mqspark_server.proxy.grpcstatus import GrpcRefusal

INVISIBLE_MS = 60_000
RENEW_AFTER_MS = 45_000
RETRY_AFTER_MS = 3_000
MOST_FAILURES = 3
RENEWED_MOST_MS = 3 * 3_600_000
GIVEN_BACK_MS = 1_000
"""How long what a gone client had stays invisible."""
SCAN_S = 1.0
CHANGED_AT_ONCE = 64

MAX_HELD_BYTES = 128 << 20
_HELD_BYTES = 1_400
_CLIENT_BYTES = 400

_log = sparing(__name__)


ClientKey = tuple[str, str]
"""A client id and its user."""


class ReceiptPlace(NamedTuple):
    """A message as a group reads it, whatever its receipt is now."""

    group: str
    topic: str
    """As the client names it."""
    lite_topic: str
    retry: str
    broker_name: str
    queue_id: int
    offset: int


class HeldReceipt:
    """A message that a client has. Times are monotonic."""

    __slots__ = ("began_ms", "client", "failures", "given", "newest", "place", "under_way")

    def __init__(self, client: ClientKey, place: ReceiptPlace, handle: ReceiptHandle, now_ms: int) -> None:
        self.client = client
        self.place = place
        self.given = handle
        """The handle that the client has."""
        self.newest = handle
        self.began_ms = now_ms
        self.failures = 0
        self.under_way: asyncio.Future[None] | None = None
        """The renewal whose outcome is not known yet."""


Change = Callable[[ClientKey, ReceiptPlace, ReceiptHandle, int], Awaitable[ReceiptHandle | None]]
"""(client, place, handle, invisible ms) → the new handle; None if the broker does not know the old one. Raises
GrpcRefusal when nothing is known."""


def place_of(group: str, topic: str, lite_topic: str, handle: ReceiptHandle) -> ReceiptPlace:
    receipt = handle.receipt
    return ReceiptPlace(
        group, topic, lite_topic, receipt.retry, receipt.broker_name, receipt.queue_id, receipt.offset
    )


class Renewals:
    def __init__(
        self,
        clock: Clock,
        change: Change,
        is_here: Callable[[ClientKey], bool],
        max_bytes: Bound = MAX_HELD_BYTES,
    ) -> None:
        """``is_here(client)``: it is connected, or was so lately that it may only be reconnecting."""
        self._clock = clock
        self._change = change
        self._is_here = is_here
        self.ledger = Ledger(
            "renewedReceipts", max_bytes, "Renewals._due", "Renewals._again", "Renewals._clients"
        )
        self._held: BoundedMap[tuple[ClientKey, ReceiptPlace], HeldReceipt] = self.ledger.map(_HELD_BYTES)
        self._clients: dict[ClientKey, set[ReceiptPlace]] = {}
        self._due: OrderedDict[HeldReceipt, int] = OrderedDict()
        """When each is to be renewed. All wait equally long, so that the first is the first that is due."""
        self._again: OrderedDict[HeldReceipt, int] = OrderedDict()
        """The same of those whose renewal failed."""

    def __len__(self) -> int:
        return len(self._held)

    def held_by(self, client: ClientKey) -> int:
        return len(self._clients.get(client, ()))

    def has_room(self, count: int) -> bool:
        return self.ledger.has_room(count * _HELD_BYTES + _CLIENT_BYTES)

    # --- events ---

    def hold(self, client: ClientKey, place: ReceiptPlace, handle: ReceiptHandle) -> None:
        """The client gets a message, and wants it renewed. Raises TableFull."""
        self._forget(self._held.get((client, place)))
        now_ms = self._clock.monotonic_ms()
        held = HeldReceipt(client, place, handle, now_ms)
        self._held[client, place] = held
        self._clients.setdefault(client, set()).add(place)
        self._due[held] = now_ms + RENEW_AFTER_MS

    async def take(self, client: ClientKey, place: ReceiptPlace, handle: ReceiptHandle) -> ReceiptHandle:
        """The client is done with a message: the handle to say so with. ``handle`` itself, if it is not renewed."""
        held = self._held.get((client, place))
        if held is None or held.given.receipt.pop_time_ms != handle.receipt.pop_time_ms:
            return handle  # a receipt of an earlier delivery says nothing about this one
        while held.under_way is not None:
            await asyncio.wait([held.under_way])
        self._forget(held)
        return held.newest

    async def leave(self, client: ClientKey) -> None:
        """The client is gone: others get what it had."""
        gone = [self._held[client, place] for place in self._clients.get(client, ())]
        for held in gone:
            self._forget(held)
        await self._in_turn(gone, self._give_back)

    async def run(self) -> None:
        """Renew what is due, until cancelled."""
        while True:
            await asyncio.sleep(SCAN_S)
            await self.renew_due()

    async def renew_due(self) -> None:
        """Renew what is due now, give back what gone clients had, and wait for the outcomes."""
        for client in [client for client in self._clients if not self._is_here(client)]:
            await self.leave(client)
        now_ms = self._clock.monotonic_ms()
        due: list[HeldReceipt] = []
        for lane in (self._due, self._again):
            while lane:
                held = next(iter(lane))
                if lane[held] > now_ms:
                    break
                del lane[held]
                due.append(held)
        await self._in_turn(due, self._renew)

    # --- inside ---

    async def _in_turn(
        self, held: Sequence[HeldReceipt], act: Callable[[HeldReceipt], Awaitable[None]]
    ) -> None:
        """At most CHANGED_AT_ONCE workers share the list."""
        rest = iter(held)

        async def work() -> None:
            for each in rest:
                await act(each)

        await asyncio.gather(*(work() for _ in range(min(len(held), CHANGED_AT_ONCE))))

    async def _renew(self, held: HeldReceipt) -> None:
        if not self._is_held(held):
            return  # since it was found to be due
        if self._clock.monotonic_ms() - held.began_ms >= RENEWED_MOST_MS:
            _log.warning("%s has %s for too long: it is not renewed any more", held.client, held.place)
            self._forget(held)
            return
        held.under_way = outcome = asyncio.get_running_loop().create_future()
        try:
            newest = await self._change(held.client, held.place, held.newest, INVISIBLE_MS)
        except Exception as error:  # whatever it is, the others are renewed
            if not isinstance(error, GrpcRefusal):
                _log.exception("the receipt of %s cannot be renewed", held.place)
            held.failures += 1
            if held.failures > MOST_FAILURES:
                _log.warning("the receipt of %s cannot be renewed: %s", held.place, error)
                self._forget(held)
            elif self._is_held(held):
                self._again[held] = self._clock.monotonic_ms() + RETRY_AFTER_MS
        else:
            if newest is None:
                self._forget(held)
            else:
                held.newest, held.failures = newest, 0
                if self._is_held(held):
                    self._due[held] = self._clock.monotonic_ms() + RENEW_AFTER_MS
        finally:
            held.under_way = None
            outcome.set_result(None)

    async def _give_back(self, held: HeldReceipt) -> None:
        while held.under_way is not None:
            await asyncio.wait([held.under_way])
        try:
            await self._change(held.client, held.place, held.newest, GIVEN_BACK_MS)
        except Exception as error:  # the others are given back
            if not isinstance(error, GrpcRefusal):
                _log.exception("%s cannot be given back", held.place)
            _log.warning(
                "a message of %s is delivered again only after its invisible time: %s", held.place, error
            )

    def _is_held(self, held: HeldReceipt) -> bool:
        return self._held.get((held.client, held.place)) is held

    def _forget(self, held: HeldReceipt | None) -> None:
        if held is None or not self._is_held(held):
            return
        del self._held[held.client, held.place]
        places = self._clients[held.client]
        places.discard(held.place)
        if not places:
            del self._clients[held.client]
        self._due.pop(held, None)
        self._again.pop(held, None)
