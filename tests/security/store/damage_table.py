"""A table of damages to a store directory, with the results of a start, the health, fsck and repair.

``test_damaged_stores.py`` applies and checks each; this writes the table in ``docs/damage.md``:

    python -m tests.security.store.damage_table

The directory: segments of 4,096 bytes with seven messages of Orders/0 each (60 in all), queue files of 20 entries, one
message in Slow/1, one that waits for the timer wheel and one on a delay level, a group with an offset.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mqspark.store.queue.consumequeue import ENTRY
from tests.security.store.damage_expected import EXPECTED
from tests.support.madepages import DOCS, MadePage

SEGMENT_BYTES = 4096
QUEUE_FILE_BYTES = 400
QUEUE = "consumequeue/Orders/0"
SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
    "maxHashSlotNum": 16,
    "maxIndexNum": 512,
    "mappedFileSizeTimerLog": 52 * 64 + 16,
    "scrubBytesPerSecond": 0,
}
MESSAGES = 60

Do = Callable[[Path], object]


@dataclass(slots=True, frozen=True, kw_only=True)
class Expected:
    refused: str = ""
    """The error of a refused start."""
    start: tuple[str, ...] = ()
    """Kind of damage and outcome, as in the log, the health and the metric."""
    lost: tuple[tuple[str, int, int, int], ...] = ()
    """Lost offsets in the health: topic, queue, first, end (exclusive)."""
    gone: tuple[int, int] = (0, 0)
    """Messages [first, end) of Orders/0 that cannot be read after the start."""
    offset: int = 30
    """The group's offset after the start."""
    later: int = 2
    """How many of the two delayed messages are delivered when they are due."""
    fsck: tuple[str, ...] = ()
    """Findings of fsck: severity and kind. The exit code is 0 if all are notes, else 3."""
    repaired: tuple[str, ...] = ()
    """Findings that remain after --repair."""


def segment(root: Path, number: int) -> Path:
    return root / "commitlog" / f"{number * SEGMENT_BYTES:020d}"


def queue_file(root: Path, number: int) -> Path:
    return root / QUEUE / f"{number * QUEUE_FILE_BYTES:020d}"


def segment_name(number: int) -> str:
    return f"commitlog/{number * SEGMENT_BYTES:020d}"


def queue_name(number: int) -> str:
    return f"{QUEUE}/{number * QUEUE_FILE_BYTES:020d}"


def remove(path: str) -> Do:
    def do(root: Path) -> None:
        if (root / path).is_dir():
            shutil.rmtree(root / path)
        else:
            (root / path).unlink()

    return do


def edit(path: str, change: Callable[[bytes], bytes], *, bak: bool = True) -> Do:
    """``bak``: the ``.bak`` stays."""

    def do(root: Path) -> None:
        (root / path).write_bytes(change((root / path).read_bytes()))
        if not bak:
            (root / (path + ".bak")).unlink(missing_ok=True)

    return do


def cut(path: str, length: int) -> Do:
    return edit(path, lambda data: data[:length])


def replaced(path: str, before: bytes, after: bytes, *, bak: bool = False) -> Do:
    def change(data: bytes) -> bytes:
        assert before in data, data
        return data.replace(before, after)

    return edit(path, change, bak=bak)


def written(path: str, data: bytes, *, bak: bool = False) -> Do:
    def do(root: Path) -> None:
        (root / path).write_bytes(data)
        if not bak:
            (root / (path + ".bak")).unlink(missing_ok=True)

    return do


def lost_table(path: str) -> Do:
    def do(root: Path) -> None:
        for name in (path, path + ".bak"):
            (root / name).unlink(missing_ok=True)

    return do


def zeroed(path: str) -> Do:
    return edit(path, lambda data: bytes(len(data)))


def noise(data: bytes) -> bytes:
    return random.Random(7).randbytes(len(data))


def randomised(path: str) -> Do:
    return edit(path, noise)


def flip_entries(*offsets: int, entry: bytes | None = None) -> Do:
    def do(root: Path) -> None:
        for offset in offsets:
            path = queue_file(root, offset * 20 // QUEUE_FILE_BYTES)
            data = bytearray(path.read_bytes())
            at = offset * 20 % QUEUE_FILE_BYTES
            position, size, code = ENTRY.unpack_from(data, at)
            data[at : at + 20] = entry if entry is not None else ENTRY.pack(position ^ 0x40, size, code)
            path.write_bytes(data)

    return do


def after_kill(do: Do) -> Do:
    """The process that had the store did not stop by itself."""

    def both(root: Path) -> None:
        do(root)
        (root / "abort").write_bytes(b"")

    return both


def foreign_files(root: Path) -> None:
    for name in ("core.4711", ".nfs0000000000000001", f"{SEGMENT_BYTES:020d}~", f"{SEGMENT_BYTES:019d}"):
        for directory in ("commitlog", QUEUE, "index", "config", "timerlog", "."):
            (root / directory / name).write_bytes(b"x" * 100)


def copy_segment(number: int, start: int) -> Do:
    return lambda root: shutil.copy(segment(root, number), root / "commitlog" / f"{start:020d}")


def index_files(change: Callable[[bytes], bytes]) -> Do:
    def do(root: Path) -> None:
        for path in (root / "index").iterdir():
            path.write_bytes(change(path.read_bytes()))

    return do


PAGE = MadePage(DOCS / "damage.md", "tests.security.store.damage_table")
OFFSETS, DELAYS, TOPICS = "config/consumerOffset.json", "config/delayOffset.json", "config/topics.json"
TIMER_LOG = f"timerlog/{0:020d}"

DAMAGE: dict[str, Do] = {
    "none": lambda root: None,
    "none, after a kill": after_kill(lambda root: None),
    "a segment in the middle is missing": remove(segment_name(3)),
    "a segment in the middle is empty": cut(segment_name(3), 0),
    "a segment in the middle is halved": cut(segment_name(3), 2048),
    "a segment in the middle is halved, after a kill": after_kill(cut(segment_name(3), 2048)),
    "a segment in the middle is zeroed": zeroed(segment_name(3)),
    "a segment in the middle is a copy of another": copy_segment(2, 3 * SEGMENT_BYTES),
    "a segment in the middle is too long": edit(segment_name(3), lambda data: data + b"x" * 904),
    "the first segment is empty": cut(segment_name(0), 0),
    "the first segment is missing": remove(segment_name(0)),
    "the last segment is missing": remove(segment_name(8)),
    "the last segment is missing, after a kill": after_kill(remove(segment_name(8))),
    "the last segment is empty": cut(segment_name(8), 0),
    "the last segment is halved": cut(segment_name(8), 1024),
    "the last segment is zeroed": zeroed(segment_name(8)),
    "a segment begins inside another": copy_segment(3, 14000),
    "a directory is named like a segment": lambda root: segment(root, 9).mkdir(),
    "files of others lie among the store's": foreign_files,
    "a queue's first file has 13 bytes": cut(queue_name(0), 13),
    "a queue's file in the middle has 13 bytes": cut(queue_name(1), 13),
    "a queue's file in the middle has 13 bytes, after a kill": after_kill(cut(queue_name(1), 13)),
    "a queue's last file has 13 bytes": cut(queue_name(2), 13),
    "a queue's last file has 13 bytes, after a kill": after_kill(cut(queue_name(2), 13)),
    "a queue's last file is empty": cut(queue_name(2), 0),
    "a queue's first file is missing": remove(queue_name(0)),
    "a queue's file in the middle is missing": remove(queue_name(1)),
    "a queue's last file is missing": remove(queue_name(2)),
    "a queue's last file is zeroed": zeroed(queue_name(2)),
    "a queue's last file is zeroed, after a kill": after_kill(zeroed(queue_name(2))),
    "a queue's only file is zeroed": zeroed(f"consumequeue/Slow/1/{0:020d}"),
    "a queue is missing": remove("consumequeue/Orders"),
    "all queues are missing": remove("consumequeue"),
    "entries in the middle of a queue are flipped": flip_entries(25, 26, 27),
    "entries in the middle of a queue are flipped, after a kill": after_kill(flip_entries(25, 26, 27)),
    "the last entry of a queue is flipped": flip_entries(59),
    "the last entry of a queue is zero": flip_entries(59, entry=bytes(20)),
    "entries before the last one are zero": flip_entries(50, 51, 52, entry=bytes(20)),
    "entries before the last one are zero, after a kill": after_kill(
        flip_entries(50, 51, 52, entry=bytes(20))
    ),
    "an index file has a bad length": index_files(lambda data: data[:100]),
    "an index file is random": index_files(noise),
    "checkpoint is random": randomised("checkpoint"),
    "checkpoint is zeroed": zeroed("checkpoint"),
    "checkpoint is empty": cut("checkpoint", 0),
    "mqspark.checkpoint is random": randomised("mqspark.checkpoint"),
    "mqspark.checkpoint is random, after a kill": after_kill(randomised("mqspark.checkpoint")),
    "mqspark.ends is random": randomised("mqspark.ends"),
    "mqspark.deletions is random": written("mqspark.deletions", noise(bytes(40))),
    "consumerOffset.json is empty and has no .bak": written(OFFSETS, b""),
    "consumerOffset.json is empty and has a .bak": cut(OFFSETS, 0),
    "consumerOffset.json says -5": replaced(OFFSETS, b"30", b"-5"),
    "consumerOffset.json says -5 and has a good .bak": replaced(OFFSETS, b"30", b"-5", bak=True),
    "consumerOffset.json says 61 and has a good .bak": replaced(OFFSETS, b"30", b"61", bak=True),
    "consumerOffset.json says 10^20": replaced(OFFSETS, b"30", b"1" + b"0" * 20),
    "delayOffset.json says -5": replaced(DELAYS, b"{5:0", b"{5:-5"),
    "delayOffset.json says 10^20": replaced(DELAYS, b"{5:0", b"{5:1" + b"0" * 20),
    "topics.json says 2^31-1 queues": replaced(TOPICS, b'"readQueueNums":4', b'"readQueueNums":2147483647'),
    "topics.json is empty and has no .bak": written(TOPICS, b""),
    "topics.json is not UTF-8 and has no .bak": written(TOPICS, b"\xff\xfe{}"),
    "topics.json has other types and a good .bak": written(TOPICS, b'{"topicConfigTable":[1,2]}', bak=True),
    "topics.json is missing and has no .bak": lost_table(TOPICS),
    "topics.json is one from before the topic was made": written(TOPICS, b'{"topicConfigTable":{}}'),
    "subscriptionGroup.json is no JSON and has no .bak": written("config/subscriptionGroup.json", b"{"),
    "timercheck is random": randomised("config/timercheck"),
    "timercheck is zeroed": zeroed("config/timercheck"),
    "timercheck is cut": cut("config/timercheck", 5),
    "timerwheel is zeroed": zeroed("timerwheel"),
    "timerwheel is cut": cut("timerwheel", 4096),
    "timerwheel is missing": remove("timerwheel"),
    "timerlog is missing": remove("timerlog"),
    "timerlog is zeroed": zeroed(TIMER_LOG),
    "timerlog is random": randomised(TIMER_LOG),
    "timerlog is cut to a byte": cut(TIMER_LOG, 1),
}


def expected(name: str) -> Expected:
    return Expected(**EXPECTED[name])


def table() -> str:
    lines = [
        "| damage | start, health, log, metric | cannot be read (of 60) | fsck | after --repair |",
        "|---|---|---|---|---|",
    ]
    for name in DAMAGE:
        want = expected(name)
        start, gone = ", ".join(want.start) or "nothing", want.gone[1] - want.gone[0]
        if want.refused:
            start, gone = f"refuses: {want.refused}", 0
        found, left = (", ".join(each) or "nothing" for each in (want.fsck, want.repaired))
        lines.append(f"| {name} | {start} | {gone or '-'} | {found} | {left} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write(table())
