"""A table of damages to a store directory, with the results of a start, the health, fsck and repair.

``test_damaged_stores.py`` applies and checks each; ``docs/damage.md`` is generated from this table:

    python -m tests.security.store.damage_table > docs/damage.md

The directory: segments of 4,096 bytes with seven messages of Orders/0 each (60 in all), queue files of 20 entries, one
message in Slow/1, one that waits for the timer wheel and one on a delay level, a group with an offset.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mqspark.store.queue.consumequeue import ENTRY
from tests.security.store.damage_expected import EXPECTED

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


def markdown() -> str:
    lines = [
        "# Damage to a store directory",
        "",
        "For each kind of damage: the result of a broker start and its health, of `mqspark store fsck`, and of",
        "`fsck --repair`. Every row is a test; the table is generated by",
        "`python -m tests.security.store.damage_table`.",
        "",
        "`/health/ready` lists the damage under `store.damage`, with the lost offsets, and counts it under",
        "`store.damageCounts`. The log has a line for each (a warning if it was repaired, otherwise an error), and the",
        "metric `rocketmq_storage_damage{kind,outcome}` counts it. If a start is refused, `mqspark broker run` exits",
        "with 1. `fsck` exits with 3 when something is wrong or lost. No row assigns an offset twice.",
        "",
        "A file of a queue that holds entries of another place of the queue, or of another queue, misleads nobody:",
        "entries are compared with their records before they are trusted.",
        "",
        "A start checks the order of the entries of batch consume queues, up to two million of them; the scrub",
        "does not read them. An entry that is wrong and in order, or beyond that limit, is for `fsck --repair`.",
        "",
        "A start that is killed during a repair is repaired by the next start. Health and metric cover what was found",
        "since the process started. A cut log end is reported once: the start that finds it replaces the lost",
        "offsets by fillers, and the next start finds log and queues in agreement. Alert on the metric.",
        "",
        "What compaction has kept is checked when it is first read. If its files are damaged or lost, or one is an",
        "older one, readers get an error and `store.readProblem` says which file it is, until it is restored or its",
        "directory is removed. A damaged record is left out alone, and `compaction.damaged` (lost) names its offset.",
        "`fsck` finds both. If it goes beyond the end of the log, what the log has is read from there again, and",
        "`compaction.cut` (lost) names the queues whose keys may have lost a value that the log no longer has.",
        "",
        "Topics of stored messages that `topics.json` lacks, because it is lost or an older one, are created again",
        "with as many queues as have messages; their other settings are lost, which `config.topics` tells.",
        (
            "Each table that a broker saves, in `config/` and `mqspark.deletions`, is compared with "
            "`mqspark.tables`, which"
        ),
        "has the data version and the checksums of its last 1000 saves, and where the log ended then. A file of an",
        (
            "earlier save (`config.older`), one that is missing with its `.bak` (`config.missing`), and tables "
            "that were saved"
        ),
        "when the log was longer (`config.ahead`) are reported once. What another program wrote is none of these.",
        "",
        "| table, if it is an older one | then |",
        "|---|---|",
        (
            "| `topics.json` | topics of stored messages are created again; topics that were deleted later, and "
            "have no messages, stay deleted |"
        ),
        (
            "| `mqspark.deletions` (or missing) | its copy `mqspark.deletions.room` is used (`deletions.older`, "
            "healed); without it topics that were deleted meanwhile may come back when queues are rebuilt |"
        ),
        (
            "| `consumerOffset.json`, `delayOffset.json` | messages are delivered again; a position behind its "
            "queue's end becomes the end |"
        ),
        (
            "| `subscriptionGroup.json`, `topicQueueMapping.json`, `messageRequestMode.json` | what operators "
            "changed meanwhile has to be changed again; clients take the part with the highest epoch of a static "
            "topic |"
        ),
        "| `consumerFilter.json` | consumers bring their filters with their next heartbeat |",
        "| `consumerOrderInfo.json` | an ordered POP may hand out again what was acknowledged |",
        "| `schemaCopy.json` | what was registered meanwhile is read from the broker that keeps the registry |",
        "| `timermetrics` | counts of delayed messages are wrong; the messages are not |",
        "| `users.auth` | users, passwords and rules that were taken back hold again: check them first |",
        "",
        "A start reads the first and last entries of every queue file, not all, and not the whole log. Damage",
        "that only a full read shows (flipped entries in the middle of a queue, a segment of zeros or of another",
        "log) is found by a background scrub at `scrubBytesPerSecond`, which goes round and round, also over what",
        "was stored since the start: queue entries are repaired, and losses are reported as above. `store.scrub`",
        "in the health shows its progress. Reads check the CRC of what was stored more than ten seconds ago",
        "(`checkCRCOnRead`); a reader that finds no record where a queue says one is makes the scrub look there",
        "within a second. `/health/ready` is 503, and `store.damageProblem` says why, while a queue leads",
        "consumers into bytes without a valid record: until they are healed from another replica, or `fsck",
        "--repair` has put fillers in their place.",
        "",
        "A message whose body does not match its CRC is never handed out: mqspark's consumers check what any broker",
        "sends, pull the message again for 30 s, and then leave it out, in the log. A damaged message of a pop is left",
        "to be redelivered.",
        "",
        "A consumer that meets a flipped entry first is not led past its message: the entry is repaired from the",
        "log between its neighbours, and reported. A flipped tags code alone is for the scrub. Entries of delayed and",
        "timed messages are compared alike before these go on, a delivery time with its record and those beside it.",
        "Where the timer log leads to no timer message, or to one of another time, wheel and timer log are made again",
        "from the queue (`timer.log`, healed): what was delivered a moment ago may come again.",
        "",
        "## What heals from where",
        "",
        "| damaged | is healed from | when |",
        "|---|---|---|",
        (
            "| entries of a queue, an index, a checkpoint | the log here | at the start, by the scrub, or by the "
            "consumer that meets them |"
        ),
        "| the end of a replica's log | its master, which copies it again | when the replica follows |",
        (
            "| any place in the log of a replica: flipped bits, zeros, a missing, emptied or cut segment in the "
            "middle | its master: the same bytes at the same positions, each record checked | before the replica "
            "counts as in sync; while it runs, within seconds of the find |"
        ),
        (
            "| any place in the log of a master | the slave that has it | within seconds of the find by scrub, "
            "reader or a slave |"
        ),
        (
            "| a queue id, queue offset or another field that no CRC covers | the other replica, if a queue here "
            "leads elsewhere; else what most of three replicas have | when logs are compared: before a replica "
            "counts as in sync, then at `scrubBytesPerSecond`, again and again |"
        ),
        (
            "| the same, two replicas, and no queue tells which one is wrong | nobody: `log.differs` (wrong) "
            "names the place in both healths | the same |"
        ),
        "| the same place in all replicas | nobody: `log.damaged` (lost) | |",
        (
            "| the first segments of a log, missing (`log.begin`: retention notes in `mqspark.begin` what it deletes) "
            "| in controller mode the master | before the replica counts as in sync |"
        ),
        "| the same, without controllers | nobody: `log.begin` (lost) | |",
        (
            "| all of a replica's directory, all but `brokerIdentity`, or an older copy in its place | its master, as "
            "for a new replica | before the replica counts as in sync |"
        ),
        (
            "| the epochs of a replica: flipped, removed, forged | its master; what is no older state of them is kept "
            "as `*.foreign` | when the replica follows |"
        ),
        "| the tables of a replica: missing, or older | its master, which sends its own | while the replica follows |",
        "| the directory of another replica in its place | nobody: whoever registers second is refused | |",
        "| the directory of another set in its place | nobody: it is never elected, follows no master and says why | |",
        "| the log of a broker without replicas | nobody, but an archive may have the messages | |",
        "",
        (
            "Healed bytes are synced before anything counts on them. Where fillers stand for the messages that "
            "were lost, the queue"
        ),
        (
            "gets their entries back, and so does the index; for inner batches `fsck --repair` does that. "
            "`following.damage` in the"
        ),
        (
            "health of a slave says how much was compared, healed and given. A slave behind a master of "
            "RocketMQ, which does not know"
        ),
        "these questions, says in its log that nothing is compared.",
        "",
        (
            "A master that a slave tells of bytes without a valid record, that finds the damage, and that no "
            "slave gives the bytes"
        ),
        (
            "within ten seconds, notes that its log is damaged (controller mode): the controller elects another "
            "one."
        ),
        "",
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
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
