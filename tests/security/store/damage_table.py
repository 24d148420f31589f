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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mqspark.store.queue.consumequeue import ENTRY
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


def kept(kind: str, outcome: str, severity: str, **more: Any) -> Expected:
    """A start and fsck say so, and ``--repair`` leaves it."""
    finding = (f"{severity} {kind}",)
    return Expected(start=(f"{kind} {outcome}",), fsck=finding, repaired=finding, **more)


def healed(kind: str, *fsck: str) -> Expected:
    """A start and ``--repair`` leave nothing of it."""
    return Expected(start=(f"{kind} healed",), fsck=fsck)


def lost(begin: int, end: int, start: str, *fsck: str, repaired: tuple[str, ...]) -> Expected:
    """Messages [begin, end) of Orders/0 are, and a start says so."""
    places, gone = (("Orders", 0, begin, end),), (begin, end)
    return Expected(start=(f"{start} lost",), lost=places, gone=gone, fsck=fsck, repaired=repaired)


def refused(error: str, *fsck: str, repaired: tuple[str, ...] = ()) -> Expected:
    return Expected(refused=error, fsck=fsck, repaired=repaired)


def unchanged(*fsck: str) -> Expected:
    """A start does not see it."""
    return Expected(fsck=fsck, repaired=fsck)


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

KILLED = "note store.unclean"
SHORTER = ("lost log.damaged", "lost log.segment-length")
HALVED = lost(23, 27, "log.segment-length", *SHORTER, "lost queue.lost-record", repaired=SHORTER)
FIRST_EMPTY = lost(0, 6, "log.segment-length", *SHORTER, "lost queue.lost-record", repaired=SHORTER)
OTHERS_OF_FIRST = (("SCHEDULE_TOPIC_XXXX", 4, 0, 1), ("Slow", 1, 0, 1), ("rmq_sys_wheel_timer", 0, 0, 1))
AHEAD = ("error checkpoint.ahead", "error index.ahead", "error queue.no-record", "lost log.cut")
CUT = ("lost log.cut",)
LAST_GONE = lost(55, 60, "log.cut", *AHEAD, repaired=CUT)
UNNOTICED = Expected(
    gone=(20, 27), fsck=("lost log.damaged", "lost queue.lost-record"), repaired=("lost log.damaged",)
)
"""A segment in the middle has other content: a start does not read it."""
FILE_LENGTH = healed("queue.file-length", "error queue.behind", "error queue.file-length")
FILE_LENGTH_KILLED = healed("queue.file-length", "note queue.behind", "note queue.file-length", KILLED)
SHORT = healed("queue.short", "error queue.behind", "error queue.short")
NO_QUEUE = healed("queue.lost", "error queue.lost", "note queue.none")
INDEX = healed("index.damaged", "error index.damaged", "note index.behind")
CHECKPOINT = kept("checkpoint.damaged", "healed", "note")
UNREADABLE = refused("cannot be read", "error config.unreadable", repaired=("error config.unreadable",))
OUT_OF_RANGE = kept("config.range", "lost", "lost")
NO_OFFSET = kept("config.range", "lost", "lost", offset=0)
NO_TOPICS = kept("config.topics", "lost", "lost")
TIMER_CHECK = kept("timer.checkpoint", "healed", "note")
WHEEL = kept("timer.wheel", "healed", "note")
TIMER_LOG_GONE = kept("timer.log", "healed", "note")
OTHER_TYPES = ("lost config.topics", "note config.unreadable")
DIRECTORY = "a directory stands where a regular file belongs"

_DAMAGES: dict[str, tuple[Do, Expected]] = {
    "none": (lambda root: None, Expected()),
    "none, after a kill": (after_kill(lambda root: None), Expected(fsck=(KILLED,))),
    "a segment in the middle is missing": (remove(segment_name(3)),
        lost(20, 27, "log.gap", "lost log.damaged", "lost log.gap", "lost queue.lost-record",
             repaired=("lost log.damaged", "lost log.gap"))),
    "a segment in the middle is empty": (cut(segment_name(3), 0),
        lost(20, 27, "log.segment-length", *SHORTER, "lost queue.lost-record", repaired=SHORTER)),
    "a segment in the middle is halved": (cut(segment_name(3), 2048), HALVED),
    "a segment in the middle is halved, after a kill": (after_kill(cut(segment_name(3), 2048)),
        replace(HALVED, fsck=(*HALVED.fsck, KILLED))),
    "a segment in the middle is zeroed": (zeroed(segment_name(3)), UNNOTICED),
    "a segment in the middle is a copy of another": (copy_segment(2, 3 * SEGMENT_BYTES), UNNOTICED),
    "a segment in the middle is too long": (edit(segment_name(3), lambda data: data + b"x" * 904),
        kept("log.segment-length", "wrong", "error")),
    "the first segment is empty": (cut(segment_name(0), 0),
        replace(FIRST_EMPTY, lost=(*FIRST_EMPTY.lost, *OTHERS_OF_FIRST), later=0)),
    "the first segment is missing": (remove(segment_name(0)),
        kept("log.begin", "lost", "lost", gone=(0, 6), later=0)),
    "the last segment is missing": (remove(segment_name(8)), LAST_GONE),
    "the last segment is missing, after a kill": (after_kill(remove(segment_name(8))),
        replace(LAST_GONE, fsck=(*AHEAD, KILLED))),
    "the last segment is empty": (cut(segment_name(8), 0), LAST_GONE),
    "the last segment is halved": (cut(segment_name(8), 1024),
        lost(56, 60, "log.cut", "error index.ahead", "error log.torn", "error queue.no-record", *CUT, repaired=CUT)),
    "the last segment is zeroed": (zeroed(segment_name(8)),
        lost(55, 60, "log.cut", "error index.ahead", "error queue.no-record", *CUT, repaired=CUT)),
    "a segment begins inside another": (copy_segment(3, 14000),
        refused("does not belong to a log of 4096-byte segments", "error log.misplaced-file",
                repaired=("commitlog/00000000000000014000 does not belong to a log of 4096-byte segments",))),
    "a directory is named like a segment": (lambda root: segment(root, 9).mkdir(),
        refused(DIRECTORY, "error log.misplaced-file", repaired=(f"[Errno 21] {DIRECTORY}: '{segment_name(9)}'",))),
    "files of others lie among the store's": (foreign_files,
        unchanged("note index.strange-file", "note log.strange-file")),
    "a queue's first file has 13 bytes": (cut(queue_name(0), 13), FILE_LENGTH),
    "a queue's file in the middle has 13 bytes": (cut(queue_name(1), 13), FILE_LENGTH),
    "a queue's file in the middle has 13 bytes, after a kill": (after_kill(cut(queue_name(1), 13)),
        FILE_LENGTH_KILLED),
    "a queue's last file has 13 bytes": (cut(queue_name(2), 13), FILE_LENGTH),
    "a queue's last file has 13 bytes, after a kill": (after_kill(cut(queue_name(2), 13)), FILE_LENGTH_KILLED),
    "a queue's last file is empty": (cut(queue_name(2), 0), FILE_LENGTH),
    "a queue's first file is missing": (remove(queue_name(0)), healed("queue.file-gone", "error queue.file-gone")),
    "a queue's file in the middle is missing": (remove(queue_name(1)),
        healed("queue.file-gone", "error queue.behind", "error queue.file-gone")),
    "a queue's last file is missing": (remove(queue_name(2)), SHORT),
    "a queue's last file is zeroed": (zeroed(queue_name(2)), SHORT),
    "a queue's last file is zeroed, after a kill": (after_kill(zeroed(queue_name(2))),
        healed("queue.short", "note queue.behind", "note queue.short", KILLED)),
    "a queue's only file is zeroed": (zeroed(f"consumequeue/Slow/1/{0:020d}"), SHORT),
    "a queue is missing": (remove("consumequeue/Orders"), NO_QUEUE),
    "all queues are missing": (remove("consumequeue"), NO_QUEUE),
    "entries in the middle of a queue are flipped": (flip_entries(25, 26, 27),
        Expected(fsck=("error queue.differs", "error queue.no-record"))),
    "entries in the middle of a queue are flipped, after a kill": (after_kill(flip_entries(25, 26, 27)),
        Expected(fsck=("error queue.differs", "error queue.no-record", KILLED))),
    "the last entry of a queue is flipped": (flip_entries(59),
        healed("queue.differs", "error queue.differs", "error queue.no-record")),
    "the last entry of a queue is zero": (flip_entries(59, entry=bytes(20)), SHORT),
    "entries before the last one are zero": (flip_entries(50, 51, 52, entry=bytes(20)),
        healed("queue.differs", "error queue.behind", "error queue.differs")),
    "entries before the last one are zero, after a kill": (after_kill(flip_entries(50, 51, 52, entry=bytes(20))),
        healed("queue.differs", "note queue.behind", "note queue.differs", KILLED)),
    "an index file has a bad length": (index_files(lambda data: data[:100]), INDEX),
    "an index file is random": (index_files(noise), INDEX),
    "checkpoint is random": (randomised("checkpoint"), CHECKPOINT),
    "checkpoint is zeroed": (zeroed("checkpoint"), CHECKPOINT),
    "checkpoint is empty": (cut("checkpoint", 0), CHECKPOINT),
    "mqspark.checkpoint is random": (randomised("mqspark.checkpoint"), CHECKPOINT),
    "mqspark.checkpoint is random, after a kill": (after_kill(randomised("mqspark.checkpoint")),
        healed("checkpoint.damaged", "note checkpoint.damaged", KILLED)),
    "mqspark.ends is random": (randomised("mqspark.ends"), CHECKPOINT),
    "mqspark.deletions is random": (written("mqspark.deletions", noise(bytes(40))),
        refused("cannot be read", "error deletions.unreadable")),
    "consumerOffset.json is empty and has no .bak": (written(OFFSETS, b""), UNREADABLE),
    "consumerOffset.json is empty and has a .bak": (cut(OFFSETS, 0),
        kept("config.unreadable", "healed", "note", offset=10)),
    "consumerOffset.json says -5": (replaced(OFFSETS, b"30", b"-5"), NO_OFFSET),
    "consumerOffset.json says -5 and has a good .bak": (replaced(OFFSETS, b"30", b"-5", bak=True),
        kept("config.range", "healed", "lost", offset=10)),
    "consumerOffset.json says 61 and has a good .bak": (replaced(OFFSETS, b"30", b"61", bak=True),
        kept("config.range", "healed", "note", offset=60)),
    "consumerOffset.json says 10^20": (replaced(OFFSETS, b"30", b"1" + b"0" * 20), NO_OFFSET),
    "delayOffset.json says -5": (replaced(DELAYS, b"{5:0", b"{5:-5"), OUT_OF_RANGE),
    "delayOffset.json says 10^20": (replaced(DELAYS, b"{5:0", b"{5:1" + b"0" * 20), OUT_OF_RANGE),
    "topics.json says 2^31-1 queues": (replaced(TOPICS, b'"readQueueNums":4', b'"readQueueNums":2147483647'),
        kept("config.range", "healed", "note")),
    "topics.json is empty and has no .bak": (written(TOPICS, b""), UNREADABLE),
    "topics.json is not UTF-8 and has no .bak": (written(TOPICS, b"\xff\xfe{}"), UNREADABLE),
    "topics.json has other types and a good .bak": (written(TOPICS, b'{"topicConfigTable":[1,2]}', bak=True),
        Expected(start=("config.topics lost", "config.unreadable healed"), fsck=OTHER_TYPES, repaired=OTHER_TYPES)),
    "topics.json is missing and has no .bak": (lost_table(TOPICS), NO_TOPICS),
    "topics.json is one from before the topic was made": (written(TOPICS, b'{"topicConfigTable":{}}'), NO_TOPICS),
    "subscriptionGroup.json is no JSON and has no .bak": (written("config/subscriptionGroup.json", b"{"), UNREADABLE),
    "timercheck is random": (randomised("config/timercheck"), TIMER_CHECK),
    "timercheck is zeroed": (zeroed("config/timercheck"), TIMER_CHECK),
    "timercheck is cut": (cut("config/timercheck", 5), TIMER_CHECK),
    "timerwheel is zeroed": (zeroed("timerwheel"), WHEEL),
    "timerwheel is cut": (cut("timerwheel", 4096), WHEEL),
    "timerwheel is missing": (remove("timerwheel"), WHEEL),
    "timerlog is missing": (remove("timerlog"), TIMER_LOG_GONE),
    "timerlog is zeroed": (zeroed(TIMER_LOG), TIMER_LOG_GONE),
    "timerlog is random": (randomised(TIMER_LOG), TIMER_LOG_GONE),
    "timerlog is cut to a byte": (cut(TIMER_LOG, 1), TIMER_LOG_GONE),
}  # fmt: skip
DAMAGE = {name: do for name, (do, _) in _DAMAGES.items()}


def expected(name: str) -> Expected:
    return _DAMAGES[name][1]


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
