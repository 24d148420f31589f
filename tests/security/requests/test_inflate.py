"""Compressed bodies as a weapon: a message of two kilobytes that becomes 64 MiB, sixty of them in one pull, takes the
memory of every consumer of its topic. All codecs, on production defaults."""

from __future__ import annotations

import functools
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lz4.frame
import pytest
import zstandard

from mqspark.base.clock import wall_ms
from mqspark.client.blocking import BlockingClient
from mqspark.errors import InvalidMessage
from mqspark.message import COMPRESSED, COMPRESSION_SHIFT, INNER_BATCH, NEED_UNWRAP, MessageExt
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2
from mqspark.record.batchitems import encode_items
from mqspark.record.compression import LIMITS, LZ4, ZLIB, ZSTD, Budget, InflateLimits, decompress
from mqspark.record.record import decode_pull, decode_records, encode_record
from mqspark.testing import Broker, Clients, Cluster

MIB = 1 << 20
PACK: dict[int, Callable[[bytes], bytes]] = {
    ZLIB: lambda body: zlib.compress(body, 9),
    LZ4: lz4.frame.compress,
    ZSTD: zstandard.ZstdCompressor(level=3).compress,
}
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
MESSAGES = 60


@functools.cache
def _packed(kind: int, mib: int) -> bytes:
    return PACK[kind](bytes(mib * MIB))


def bomb(kind: int, mib: int = 64) -> bytes:
    return _packed(kind, mib)


def flag_of(kind: int) -> int:
    return COMPRESSED | kind << COMPRESSION_SHIFT


def record(body: bytes, sys_flag: int, offset: int = 0) -> bytes:
    return encode_record(
        topic="T",
        body=body,
        properties={},
        queue_id=0,
        queue_offset=offset,
        physical_offset=1000 * offset,
        flag=0,
        sys_flag=sys_flag,
        born_timestamp_ms=1,
        born_host=HOST,
        store_timestamp_ms=2,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


@contextmanager
def peak_below(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak / MIB:.0f} MiB"


# --- one body -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PACK)
def test_a_body_becomes_no_more_than_its_limits(kind: int) -> None:
    packed = bomb(kind)
    limit_bytes = LIMITS.of(len(packed))
    with (
        peak_below(2 * limit_bytes + 10 * MIB),
        pytest.raises(InvalidMessage, match="maxInflatedBytes, maxInflateRatio"),
    ):
        decompress(packed, kind, limit_bytes)
    with pytest.raises(InvalidMessage, match=r"truncated|decompress"):
        decompress(packed[: len(packed) // 2], kind, 128 * MIB)


def test_a_ratio_counts_from_what_clients_send() -> None:
    assert LIMITS.of(2_000) == 4 * MIB
    assert LIMITS.of(100_000) == 20_000_000
    assert LIMITS.of(10 * MIB) == 64 * MIB
    assert InflateLimits(32 * MIB, 0).of(10) == 32 * MIB
    assert InflateLimits(1000, 10).of(1_000_000) == 1000
    honest = bytes(4 * MIB - 1)
    for kind, pack in PACK.items():
        packed = pack(honest)
        assert decompress(packed, kind, LIMITS.of(len(packed))) == honest


def test_a_budget_is_together() -> None:
    budget = Budget(100)
    assert [budget.take(60), budget.take(60), budget.take(40), budget.take(1)] == [True, False, True, False]


# --- one pull -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PACK)
def test_decoding_a_pull_inflates_nothing(kind: int) -> None:
    raw = b"".join(record(bomb(kind, 3), flag_of(kind), offset) for offset in range(MESSAGES))
    with peak_below(len(raw) * 3 + 2 * MIB):
        messages, rest = decode_pull(raw)
        assert [len(messages), rest] == [MESSAGES, None]
        assert sum(message.stored_body_bytes for message in messages) < len(raw)
    with peak_below(32 * MIB):
        # All are in somebody's hands, and all are read.
        assert [len(message.body) for message in messages] == [3 * MIB] * MESSAGES
    assert messages[0].body == bytes(3 * MIB)
    assert "MessageExt" in repr(messages[1]) or "PackedMessage" in repr(messages[1])


def test_a_body_that_is_no_body_costs_itself() -> None:
    raw = record(b"junk", flag_of(ZLIB)) + record(bomb(ZSTD), flag_of(ZSTD), 1) + record(b"fine", 0, 2)
    bad, large, fine = decode_records(raw)
    for message in (bad, large):
        with pytest.raises(InvalidMessage):
            _ = message.body
        assert "fine" not in repr(message)
        message.body = b"replaced"
        assert message.body == b"replaced"
    assert fine.body == b"fine"


def inner(items: list[tuple[int, bytes, bytes]], kind: int, offset: int) -> bytes:
    return record(PACK[kind](encode_items(items)), flag_of(kind) | INNER_BATCH | NEED_UNWRAP, offset)


@pytest.mark.parametrize("kind", PACK)
def test_inner_batches_come_in_parts(kind: int) -> None:
    """A batch that is compressed as a whole has to be inflated to be taken apart."""
    batch = [(0, bytes(MIB), b"")] * 3
    raw = b"".join(inner(batch, kind, 3 * number) for number in range(MESSAGES))
    with peak_below(100 * MIB):
        messages, rest = decode_pull(raw)
    assert 3 <= len(messages) < 60
    assert rest == len(messages)
    assert [message.queue_offset for message in messages] == list(range(rest))


def test_an_inner_batch_of_tiny_messages_is_bounded_by_their_number() -> None:
    many = inner([(0, b"", b"")] * 100_000, ZSTD, 0)
    full = [inner([(0, b"", b"")] * 0x7FFF, ZSTD, 0x7FFF * number) for number in range(5)]
    (refused,) = decode_pull(many)[0]
    with pytest.raises(InvalidMessage, match="more than 32767 messages"):
        _ = refused.body
    messages, rest = decode_pull(b"".join(full))
    assert (len(messages), rest) == (3 * 0x7FFF, 3 * 0x7FFF)


@pytest.mark.parametrize("stored", [b"junk", b"", bomb(ZSTD)])
def test_an_inner_batch_that_is_none_is_one_message_that_says_so(stored: bytes) -> None:
    flags = INNER_BATCH | NEED_UNWRAP
    for sys_flag in (flags, flags | flag_of(ZSTD)):
        raw = record(stored, sys_flag, 5) + record(b"fine", 0, 9)
        bad, fine = decode_records(raw)
        assert (bad.queue_offset, fine.body) == (5, b"fine")
        with pytest.raises(InvalidMessage):
            _ = bad.body


# --- consumers ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with Broker(settings={"maxMessageSize": 8 * MIB}) as running:
        yield running


def send(cluster: Cluster, topic: str, body: bytes, sys_flag: int) -> None:
    client = BlockingClient(cluster.namesrv)
    header = SendMessageRequestHeaderV2.of("evil", topic, 0, wall_ms(), sys_flag=sys_flag)
    client.request(cluster.addresses[0], RequestCode.SEND_MESSAGE_V2, header, body)
    client.close()


@pytest.fixture
def clients(broker: Cluster) -> Iterator[Clients]:
    with Clients(broker.namesrv) as made:
        yield made


def mined(clients: Clients, cluster: Cluster) -> str:
    """A topic with sixty bombs of all kinds, and one honest message behind them."""
    topic = clients.topic(queues=1)
    bombs = [(bomb(kind), flag_of(kind)) for kind in (ZSTD, ZLIB, LZ4)]
    for number in range(MESSAGES):
        send(cluster, topic, *bombs[number % 10 if number % 10 < 3 else 0])
    send(cluster, topic, b"honest", 0)
    return topic


class Seen:
    def __init__(self) -> None:
        self.refused = 0
        self.bodies: list[bytes] = []
        self.honest = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, message: MessageExt) -> Any:
        try:
            body = message.body
        except InvalidMessage:
            with self._lock:
                self.refused += 1
            return None
        with self._lock:
            self.bodies.append(body[:10])
        if body == b"honest":
            self.honest.set()
        return None


@pytest.mark.parametrize("kind", ["push", "ordered", "pop"])
def test_a_consumer_passes_sixty_bombs(clients: Clients, broker: Cluster, kind: str) -> None:
    topic, seen = mined(clients, broker), Seen()
    with peak_below(500 * MIB):  # twenty listeners at a time, some 20 MiB each; all of them are 3.9 GB
        if kind == "pop":
            clients.pop_consumer(topic, seen)
        else:
            clients.push_consumer(topic, seen, ordered=kind == "ordered")
        assert seen.honest.wait(30)
        deadline = time.monotonic() + 20
        while seen.refused < MESSAGES and time.monotonic() < deadline:
            time.sleep(0.05)
    assert seen.refused >= MESSAGES
    assert seen.bodies == [b"honest"]


def test_a_listener_that_does_not_look_fails_and_the_rest_goes_on(clients: Clients, broker: Cluster) -> None:
    topic = clients.topic(queues=1)
    send(broker, topic, bomb(ZSTD), flag_of(ZSTD))
    send(broker, topic, b"honest", 0)
    arrived: list[bytes] = []
    done = threading.Event()

    def listen(message: MessageExt) -> None:
        arrived.append(message.body)
        done.set()

    clients.push_consumer(topic, listen)
    assert done.wait(30)
    assert arrived == [b"honest"]


def test_a_lite_pull_consumer_passes_sixty_bombs(clients: Clients, broker: Cluster) -> None:
    topic, seen = mined(clients, broker), Seen()
    with peak_below(120 * MIB):
        consumer = clients.lite_pull_consumer(topic)
        deadline = time.monotonic() + 40
        while not seen.honest.is_set() and time.monotonic() < deadline:
            for message in consumer.poll(500):
                seen(message)
    assert (seen.refused, seen.bodies) == (MESSAGES, [b"honest"])
