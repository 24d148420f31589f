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
from mqspark.store.compaction.compactedqueues import COMPACTED, read_current
from mqspark.store.messages.fetch import GetStatus
from mqspark_server.compacting.mastercopy import MasterCopy
from mqspark_server.net.outbound import Outbound
from tests.support.store_tools import drain, opened, put_synced
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
        properties = b"KEYS\x01k%d\x02x\x01%b\x02" % (number % 25, b"y" * 200)
        put_synced(store, "C", 0, b"%d" % number, properties)
    store.close()


@pytest.fixture
def master(tmp_path: Path) -> Master:
    """It has its whole log."""
    written(tmp_path / "master")
    return Master(opened(tmp_path / "master"))


@pytest.fixture
def slave(tmp_path: Path) -> MessageStore:
    """Its log begins later."""
    written(tmp_path / "slave")
    for segment in segments_of(tmp_path / "slave")[:2]:
        segment.unlink()
    slave = opened(tmp_path / "slave")
    slave.upkeep.compact_duty.topics = lambda: ["C"]
    assert 0 < slave.offsets.log_bounds("C", 0)[0] < 40
    return slave


def look(slave: MessageStore, master: Master | None) -> int:
    """Returns how many queues were copied."""

    async def connect() -> Outbound | None:
        return master

    copy = MasterCopy(slave, connect)
    asyncio.run(copy.look())
    return copy.copied


def offsets(store: MessageStore) -> list[int]:
    return [message.queue_offset for message in drain(store, "C", 0)]


def test_it_is_copied_once(master: Master, slave: MessageStore, tmp_path: Path) -> None:
    low = slave.offsets.log_bounds("C", 0)[0]
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


def test_nothing_is_asked_without_a_need(master: Master, slave: MessageStore) -> None:
    slave.config.enable_compaction = False
    assert look(slave, master) == 0
    slave.config.enable_compaction = True
    slave.upkeep.compact_duty.topics = list
    assert look(slave, master) == 0
    assert master.asked == []


def test_what_a_master_has_not_is_asked_for_once(master: Master, slave: MessageStore) -> None:
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


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.PULL_NOT_FOUND])
def test_a_refusal_changes_nothing(master: Master, slave: MessageStore, code: int, tmp_path: Path) -> None:
    master.code = code
    with pytest.raises(ProtocolError, match=rf"answers {code}"):
        look(slave, master)
    _nothing_changed(slave, tmp_path)


@pytest.mark.parametrize("byte", [3, 9, 14, 27, 88])
def test_what_is_no_record_of_the_queue_is_not_taken(
    master: Master, slave: MessageStore, byte: int, tmp_path: Path
) -> None:
    master.flip = byte
    with pytest.raises(ProtocolError, match="a malformed or unexpected record of C/0"):
        look(slave, master)
    _nothing_changed(slave, tmp_path)


def _nothing_changed(slave: MessageStore, root: Path) -> None:
    assert offsets(slave) == list(range(slave.offsets.log_bounds("C", 0)[0], 40))
    assert list((root / "slave" / COMPACTED / "C" / "0").iterdir()) == []
