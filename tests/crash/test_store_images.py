"""Damaged logs: every byte of the last records cut, zeroed or garbled, every record of the middle damaged.

Each image is opened by an ordinary recovery. Syncs are left out: the images say what is on disk.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mqspark.message import MessageExt
from mqspark.record.record import encode_record
from mqspark.store import MessageStore
from tests.support.draws import some
from tests.support.store_tools import QuickFiles, checkpoint, crash, drain, flush, opened, put

QUEUES = [("Orders", 0), ("Orders", 1), ("Other", 0)]


@dataclass
class Image:
    """A dead store: its files, and the messages that were in it as (topic, queue id, offset) → record
    place."""

    files: dict[str, bytes]
    records: list[tuple[tuple[str, int], int, int, int, bytes]]
    """queue, offset, physical offset, end, body"""

    def write(self, root: Path, damage: dict[str, bytes] | None = None) -> None:
        """Over whatever the last image left there."""
        for folder in ("consumequeue", "commitlog"):
            for path in (root / folder).rglob("*"):
                if path.is_file() and str(path.relative_to(root)) not in self.files:
                    path.unlink()
        for name, content in {**self.files, **(damage or {})}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def segment(self, physical_offset: int) -> tuple[str, int]:
        start = physical_offset - physical_offset % 4096
        return f"commitlog/{start:020d}", physical_offset - start


def make_image(root: Path, count: int, checkpoint_at: int = -1) -> Image:
    rng = random.Random(count)
    store = opened(root, None, QuickFiles())
    records = []
    for number in range(count):
        queue = rng.choice(QUEUES)
        body = f"message {number} ".encode() * rng.randrange(1, 12)
        offset, position, end = put(store, *queue, body, b"TAGS\x01T\x02KEYS\x01k%d\x02" % number)
        flush(store)
        records.append((queue, offset, position, end, body))
        if number == checkpoint_at:
            checkpoint(store)
    crash(store)
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }
    assert "abort" in files
    return Image(files, records)


def served(store: MessageStore) -> dict[tuple[tuple[str, int], int], MessageExt]:
    return {(queue, m.queue_offset): m for queue in QUEUES for m in drain(store, *queue)}


def check(root: Path, image: Image, lost: set[int], *, torn: bool, synced: bool = True) -> None:
    """All records but the lost ones are served, equal, at their offset; the log goes on; recovery is
    stable. ``synced``: producers were told of the lost ones."""
    store = opened(root, None, QuickFiles())
    messages = served(store)
    for number, (queue, offset, position, _, body) in enumerate(image.records):
        if number not in lost:
            message = messages.pop((queue, offset), None)
            assert message is not None, f"record {number} at {position} is gone"
            assert (message.body, message.physical_offset) == (body, position)
    for (queue, offset), message in messages.items():
        # A flip in bytes that no CRC covers may stay unseen, but it is still that record.
        assert any(image.records[n][:3] == (queue, offset, message.physical_offset) for n in lost)
    ends = {queue: store.offsets.max_offset(*queue) for queue in QUEUES}
    first_new = {}
    for queue in QUEUES:
        offset, _, _ = put(store, *queue, b"new")
        assert offset == ends[queue]
        taken = {o for q, o, *_ in (r for n, r in enumerate(image.records) if n not in lost) if q == queue}
        assert offset not in taken
        first_new[queue] = offset
    flush(store)
    for queue, offset in first_new.items():
        assert drain(store, *queue)[-1].queue_offset == offset
    crash(store)
    again = opened(root, None, QuickFiles())
    for queue, offset in first_new.items():
        assert [m.body for m in drain(again, *queue) if m.queue_offset == offset] == [b"new"]
        assert again.offsets.max_offset(*queue) == offset + 1
    crash(again)
    if torn:
        assert first_new == {
            queue: sum(1 for n, r in enumerate(image.records) if r[0] == queue and (synced or n not in lost))
            for queue in QUEUES
        }, "a cut record gives its offset back when nobody was told of it, and only then"


def cut(content: bytes, at: int, end: int) -> bytes:
    return content[:at] + bytes(len(content) - at)


def garble(content: bytes, at: int, end: int) -> bytes:
    return content[:at] + bytes(byte ^ 0x5A for byte in content[at:end]) + content[end:]


@pytest.mark.parametrize(("damage", "synced"), [(cut, False), (cut, True), (garble, True)])
@pytest.mark.parametrize("checkpoint_at", some([-1, 4], 1))
@pytest.mark.parametrize(
    "step", [7, pytest.param(1, marks=pytest.mark.slow("at every byte; at every seventh is the fast twin"))]
)
def test_every_cut_of_the_last_records(
    tmp_path: Path, damage: Callable[[bytes, int, int], bytes], synced: bool, checkpoint_at: int, step: int
) -> None:
    image = make_image(tmp_path / "made", 9, checkpoint_at)
    root = tmp_path / "image"
    last_end = image.records[-1][3]
    first = len(image.records) - 3
    name, low = image.segment(image.records[first][2])
    high = low + last_end - image.records[first][2]
    if not synced:
        text = b"%d %020d" % (os.getpid(), image.records[first][2])
        image.files["abort"] = text + b" %08x\n" % zlib.crc32(text)
    for at in range(low, high, step):
        image.write(root, {name: damage(image.files[name], at, high)})
        lost = {n for n, record in enumerate(image.records) if record[3] > image.records[first][2] + at - low}
        # Garbage that begins in the properties meets no CRC: that record may stay.
        check(root, image, lost, torn=damage is cut, synced=synced)


@pytest.mark.slow("many images; test_bit_flips.py has such damage")
@pytest.mark.parametrize(
    "step", [3, pytest.param(1, marks=pytest.mark.slow("every record; every third is the fast twin"))]
)
def test_any_damage_in_the_middle_costs_one_record(tmp_path: Path, step: int) -> None:
    image = make_image(tmp_path / "made", 60)
    root = tmp_path / "image"
    assert image.records[-1][2] > 2 * 4096, "three segments"
    rng = random.Random(7)
    # Not the last of each queue: there a wrong offset field cannot be told from a right one.
    for number, (_, _, position, end, _) in list(enumerate(image.records))[3:-9:step]:
        name, low = image.segment(position)
        places = [*rng.sample(range(8), 3), *rng.sample(range(8, end - position), 5)]
        for at in places:
            content = bytearray(image.files[name])
            content[low + at] ^= 1 << rng.randrange(8)
            image.write(root, {name: bytes(content)})
            # Damage to topic or queue id is covered by no CRC: the record may turn up in another queue.
            check(root, image, {number}, torn=False)


def test_whole_sectors_of_garbage_are_stepped_over(tmp_path: Path) -> None:
    image = make_image(tmp_path / "made", 60)
    root = tmp_path / "image"
    name, _ = image.segment(4096)
    for low in range(0, 4096, 512):
        content = bytearray(image.files[name])
        content[low : low + 512] = random.Random(low).randbytes(512)
        image.write(root, {name: bytes(content)})
        lost = {n for n, r in enumerate(image.records) if r[2] < 4096 + low + 512 and r[3] > 4096 + low}
        store = opened(root, None, QuickFiles())
        messages = served(store)
        for n, (queue, offset, _, _, body) in enumerate(image.records):
            if n not in lost:
                assert messages[queue, offset].body == body
            elif (queue, offset) in messages:
                assert messages[queue, offset].body == body, "only properties are without a CRC"
        crash(store)


def test_a_record_inside_a_body_is_not_taken_for_one(tmp_path: Path) -> None:
    store = opened(tmp_path, None, QuickFiles())
    head = 88  # of a record with IPv4 hosts: there its body begins
    forged = encode_record(topic="Secret", body=b"forged", physical_offset=head)
    put(store, "Orders", 0, forged)
    put(store, "Orders", 0, b"after")
    flush(store)
    assert bytes(store.log.slice(head, len(forged)) or b"") == forged
    crash(store)
    path = tmp_path / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[8] ^= 1  # its CRC
    path.write_bytes(content)
    store = make_again(tmp_path)
    assert store.offsets.queues() == {"Orders": [0]}
    assert [(m.queue_offset, m.body) for m in drain(store, "Orders", 0)] == [(1, b"after")]
    crash(store)


def test_the_log_may_lose_a_segment(tmp_path: Path) -> None:
    image = make_image(tmp_path / "made", 60)
    root = tmp_path / "image"
    image.write(root)
    (root / f"commitlog/{4096:020d}").unlink()
    store = opened(root, None, QuickFiles())
    lost = {n for n, r in enumerate(image.records) if 4096 <= r[2] < 8192}
    messages = served(store)
    for n, (queue, offset, *_) in enumerate(image.records):
        assert ((queue, offset) in messages) == (n not in lost)
    crash(store)


def make_again(root: Path) -> MessageStore:
    return opened(root, None, QuickFiles())
