"""What a slave's log is too young for comes from its master, once, and nothing else is taken for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from mqspark.errors import ProtocolError
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.header import Header
from mqspark.store import MessageStore
from mqspark.store.compaction.compacted import COMPACTED, read_current
from mqspark.store.messages.fetch import GetStatus
from mqspark_server.compacting.mastercopy import MasterCopy
from mqspark_server.net.outbound import Outbound
from tests.support.store_tools import drain, flush, opened, put
from tests.support.storefiles import segments_of

MAX_ANSWERED = 8
"""Messages in one answer, so that several are needed."""


class Master(Outbound):
    """Answers pulls from a store, as a broker does."""

    def __init__(self, store: MessageStore) -> None:
        # Without what a connection has: it belongs to a running loop, and nothing is sent.
        self._store = store
        self.asked: list[int] = []
        self.code: int | None = None
        """What it answers in the place of messages."""
        self.flip = -1
        """The byte of each body that is wrong; -1: none."""

    def close(self) -> None: ...

    async def request(
        self,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
    ) -> Command:
        assert isinstance(header, Mapping)
        offset = int(header["queueOffset"])
        self.asked.append(offset)
        if self.code is not None:
            return Command(self.code, 1, ext_texts={"nextBeginOffset": "30"}, remark="no")
        got = self._store.reads.get(header["topic"], int(header["queueId"]), offset, MAX_ANSWERED, 1 << 20)
        answer = bytearray(b"".join(got.buffers))
        if self.flip >= 0:
            answer[self.flip] ^= 1
        found = ResponseCode.SUCCESS if got.status is GetStatus.FOUND else ResponseCode.PULL_RETRY_IMMEDIATELY
        return Command(found, 1, ext_texts={"nextBeginOffset": str(got.next_offset)}, body=bytes(answer))


def written(root: Path) -> None:
    store = opened(root)
    for number in range(40):
        put(
            store,
            "C",
            0,
            b"%d" % number,
            b"KEYS\x01k%d\x02" % (number % 25) + b"x\x01" + b"y" * 200 + b"\x02",
        )
        flush(store)
    store.close()


@pytest.fixture
def stores(tmp_path: Path) -> tuple[MessageStore, MessageStore]:
    """A master with its whole log, and a slave whose log begins later."""
    for name in ("master", "slave"):
        written(tmp_path / name)
    for segment in segments_of(tmp_path / "slave")[:2]:
        segment.unlink()
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    slave.upkeep.compact_duty.topics = lambda: ["C"]
    assert 0 < slave.offsets.log_bounds("C", 0)[0] < 40
    return master, slave


def look(slave: MessageStore, master: Master | None) -> int:
    """Returns how many queues were copied."""

    async def connect() -> Outbound | None:
        return master

    copy = MasterCopy(slave, connect)
    asyncio.run(copy.look())
    return copy.copied


def offsets(store: MessageStore) -> list[int]:
    return [message.queue_offset for message in drain(store, "C", 0)]


def test_it_is_copied_once(stores: tuple[MessageStore, MessageStore], tmp_path: Path) -> None:
    source, slave = stores
    master, low = Master(source), slave.offsets.log_bounds("C", 0)[0]
    assert look(slave, None) == 0  # it has not caught up
    assert offsets(slave) == list(range(low, 40))
    assert look(slave, master) == 1
    assert offsets(slave) == list(range(40))
    assert len(master.asked) > 1
    current = read_current(tmp_path / "slave" / COMPACTED / "C" / "0")
    assert current is not None
    assert (current.end, current.messages, current.is_partial) == (low, low, False)
    assert slave.upkeep.compact_duty.position == 0  # what is compacted has to be found out anew
    assert look(slave, master) == 0
    for store in stores:
        store.close()


def test_nothing_is_asked_without_a_need(stores: tuple[MessageStore, MessageStore]) -> None:
    source, slave = stores
    master = Master(source)
    slave.config.enable_compaction = False
    assert look(slave, master) == 0
    slave.config.enable_compaction = True
    slave.upkeep.compact_duty.topics = list
    assert look(slave, master) == 0
    assert master.asked == []
    for store in stores:
        store.close()


def test_what_a_master_has_not_is_asked_for_once(stores: tuple[MessageStore, MessageStore]) -> None:
    source, slave = stores
    master = Master(source)
    master.code = ResponseCode.PULL_OFFSET_MOVED
    before = offsets(slave)

    async def connect() -> Outbound | None:
        return master

    async def twice() -> None:
        copy = MasterCopy(slave, connect)
        await copy.look()
        await copy.look()

    asyncio.run(twice())
    assert master.asked == [0]
    assert offsets(slave) == before
    for store in stores:
        store.close()


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.PULL_NOT_FOUND])
def test_a_refusal_changes_nothing(
    stores: tuple[MessageStore, MessageStore], code: int, tmp_path: Path
) -> None:
    source, slave = stores
    master = Master(source)
    master.code = code
    with pytest.raises(ProtocolError, match=rf"answers {code}"):
        look(slave, master)
    _nothing_changed(stores, tmp_path)


@pytest.mark.parametrize("byte", [3, 9, 14, 27, 88])
def test_what_is_no_record_of_the_queue_is_not_taken(
    stores: tuple[MessageStore, MessageStore], byte: int, tmp_path: Path
) -> None:
    source, slave = stores
    master = Master(source)
    master.flip = byte
    with pytest.raises(ProtocolError, match="a malformed or unexpected record of C/0"):
        look(slave, master)
    _nothing_changed(stores, tmp_path)


def _nothing_changed(stores: tuple[MessageStore, MessageStore], root: Path) -> None:
    _, slave = stores
    assert offsets(slave) == list(range(slave.offsets.log_bounds("C", 0)[0], 40))
    assert list((root / "slave" / COMPACTED / "C" / "0").iterdir()) == []
    for store in stores:
        store.close()
