"""Renewal of the receipts of gRPC clients, by a clock that is moved and a broker that is a function."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

import pytest

from mqspark.errors import TableFull
from mqspark.protocol.receipts import NORMAL, Receipt
from mqspark.testing import FakeClock
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.renewals import (
    GIVEN_BACK_MS,
    INVISIBLE_MS,
    MOST_FAILURES,
    RENEW_AFTER_MS,
    RENEWED_MOST_MS,
    RETRY_AFTER_MS,
    ClientKey,
    ReceiptPlace,
    Renewals,
    place_of,
)
from mqspark_server.proxy.content.receipthandles import ReceiptHandle
from mqspark_server.proxy.grpcstatus import GrpcRefusal
from tests.support.invariants import sound_renewals

CLIENT, ANOTHER = ("c", "user"), ("c", "another user")


class FakeBroker:
    """Changes invisible times as a broker does: at a new time, a new receipt."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.changed: list[tuple[int, int, int]] = []
        """(offset, pop time of the receipt that was named, invisible ms)"""
        self.answers: Callable[[], bool] = lambda: True
        """False: it does not know the receipt. May raise."""
        self.asked = asyncio.Event()
        self.until: asyncio.Event | None = None

    async def change(
        self, client: ClientKey, place: ReceiptPlace, handle: ReceiptHandle, invisible_ms: int
    ) -> ReceiptHandle | None:
        self.asked.set()
        if self.until is not None:
            await self.until.wait()
        self.changed.append((place.offset, handle.receipt.pop_time_ms, invisible_ms))
        if not self.answers():
            return None
        return handle.changed(self.clock.now_ms(), invisible_ms, handle.receipt.revive_queue)


def handle_of(offset: int, pop_time_ms: int = 1) -> ReceiptHandle:
    return ReceiptHandle(Receipt(0, pop_time_ms, INVISIBLE_MS, 3, NORMAL, "b", 0, offset), 4711)


class Bench:
    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.clock = FakeClock()
        self.broker = FakeBroker(self.clock)
        self.gone: set[ClientKey] = set()
        self.renewals = Renewals(
            self.clock, self.broker.change, lambda client: client not in self.gone, max_bytes
        )

    def hold(self, offset: int = 7, client: ClientKey = CLIENT, lite_topic: str = "") -> ReceiptHandle:
        handle = handle_of(offset, self.clock.now_ms())
        self.renewals.hold(client, place_of("g", "T", lite_topic, handle), handle)
        return handle

    async def take(
        self, handle: ReceiptHandle, client: ClientKey = CLIENT, lite_topic: str = ""
    ) -> ReceiptHandle:
        return await self.renewals.take(client, place_of("g", "T", lite_topic, handle), handle)

    async def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        await self.renewals.renew_due()
        self.validate()

    def validate(self) -> None:
        sound_renewals(self.renewals)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_receipt_is_renewed_before_it_ends_and_the_client_need_not_know(bench: Bench) -> None:
    given = bench.hold()
    began_ms = bench.clock.now_ms()
    await bench.pass_ms(RENEW_AFTER_MS - 1)
    assert bench.broker.changed == []
    await bench.pass_ms(1)
    await bench.pass_ms(RENEW_AFTER_MS)
    second_ms = began_ms + RENEW_AFTER_MS
    assert bench.broker.changed == [(7, began_ms, INVISIBLE_MS), (7, second_ms, INVISIBLE_MS)]
    newest = await bench.take(given)
    assert newest.receipt.pop_time_ms == second_ms + RENEW_AFTER_MS
    assert (newest.position, newest.receipt.start_offset) == (4711, 7)
    assert len(bench.renewals) == 0
    await bench.pass_ms(10 * INVISIBLE_MS)
    assert len(bench.broker.changed) == 2


async def test_a_handle_that_is_not_renewed_is_used_as_it_is(bench: Bench) -> None:
    unknown = handle_of(1)
    assert await bench.take(unknown) is unknown
    bench.hold(7)
    earlier = handle_of(7, pop_time_ms=5)
    assert await bench.take(earlier) is earlier
    assert await bench.take(handle_of(7, bench.clock.now_ms()), client=ANOTHER) is not None
    assert len(bench.renewals) == 1


async def test_the_same_offset_of_two_lite_topics_is_two_messages(bench: Bench) -> None:
    first = bench.hold(lite_topic="a")
    bench.hold(lite_topic="b")
    await bench.take(first, lite_topic="a")
    assert len(bench.renewals) == 1


async def test_a_renewal_that_is_under_way_ends_before_the_receipt_is_used(bench: Bench) -> None:
    given = bench.hold()
    bench.broker.until = asyncio.Event()
    bench.clock.advance(RENEW_AFTER_MS)
    renewing = asyncio.ensure_future(bench.renewals.renew_due())
    await bench.broker.asked.wait()
    taking = asyncio.ensure_future(bench.take(given))
    await asyncio.sleep(0)
    assert not taking.done()
    bench.broker.until.set()
    assert (await taking).receipt.pop_time_ms == bench.clock.now_ms()
    await renewing
    bench.validate()


async def test_what_a_gone_client_had_is_given_back_at_once(bench: Bench) -> None:
    for offset in range(200):
        bench.hold(offset)
    stays = bench.hold(5, client=ANOTHER)
    await bench.renewals.leave(CLIENT)
    assert sorted(bench.broker.changed) == [(n, bench.clock.now_ms(), GIVEN_BACK_MS) for n in range(200)]
    assert bench.renewals.held_by(CLIENT) == 0
    assert bench.renewals.held_by(ANOTHER) == 1
    await bench.take(stays, client=ANOTHER)
    bench.validate()


@pytest.mark.parametrize("failures", [1, MOST_FAILURES, MOST_FAILURES + 1])
async def test_a_failed_renewal_is_tried_again_a_few_times(bench: Bench, failures: int) -> None:
    left = failures

    def answers() -> bool:
        nonlocal left
        left -= 1
        if left >= 0:
            raise GrpcRefusal(pb.PROXY_TIMEOUT, "too late")
        return True

    bench.broker.answers = answers
    bench.hold()
    await bench.pass_ms(RENEW_AFTER_MS)
    for _ in range(failures):
        await bench.pass_ms(RETRY_AFTER_MS)
    assert len(bench.renewals) == (failures <= MOST_FAILURES)
    assert RENEW_AFTER_MS + MOST_FAILURES * RETRY_AFTER_MS < INVISIBLE_MS


async def test_an_answer_that_nobody_understands_stops_no_other_renewal(bench: Bench) -> None:
    for offset in (7, 8):
        bench.hold(offset)

    def fails() -> bool:
        if bench.broker.changed[-1][0] == 7:
            raise ZeroDivisionError
        return True

    bench.broker.answers = fails
    await bench.pass_ms(RENEW_AFTER_MS)
    assert len(bench.renewals) == 2
    for _ in range(MOST_FAILURES):
        await bench.pass_ms(RETRY_AFTER_MS)
    assert len(bench.renewals) == 1
    bench.gone = {CLIENT, ANOTHER}
    bench.hold(7, ANOTHER)
    await bench.pass_ms(1)
    assert not len(bench.renewals)


async def test_a_receipt_that_the_broker_does_not_know_is_forgotten(bench: Bench) -> None:
    bench.broker.answers = lambda: False
    bench.hold()
    await bench.pass_ms(RENEW_AFTER_MS)
    assert len(bench.renewals) == 0


async def test_nobody_keeps_a_message_forever(bench: Bench) -> None:
    bench.hold()
    rounds = RENEWED_MOST_MS // RENEW_AFTER_MS
    for _ in range(rounds):
        await bench.pass_ms(RENEW_AFTER_MS)
    assert len(bench.renewals) == 0
    assert len(bench.broker.changed) == rounds - 1


async def test_a_message_that_comes_again_has_one_receipt(bench: Bench) -> None:
    bench.hold()
    bench.clock.advance(1)
    second = bench.hold()
    assert len(bench.renewals) == 1
    assert (await bench.take(second)).receipt == second.receipt
    bench.validate()


async def test_receipts_are_bounded() -> None:
    bench = Bench(max_bytes=10_000)
    for offset in range(4):
        assert bench.renewals.has_room(1)
        bench.hold(offset)
    with pytest.raises(TableFull):
        collections.deque(map(bench.hold, range(4, 100)), maxlen=0)
    assert not bench.renewals.has_room(1)
    bench.validate()


async def test_nothing_is_renewed_for_a_client_that_is_gone(bench: Bench) -> None:
    bench.hold()
    bench.hold(client=ANOTHER)
    bench.gone.add(CLIENT)
    await bench.pass_ms(1_000)
    assert [invisible_ms for _, _, invisible_ms in bench.broker.changed] == [GIVEN_BACK_MS]
    assert len(bench.renewals) == 1
