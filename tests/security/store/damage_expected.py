"""What ``damage_table`` expects of each damage, by its name; read it in ``docs/damage.md``."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
KILLED = "note store.unclean"


def kept(kind: str, outcome: str, severity: str, **more: object) -> Row:
    """A start and fsck say so, and ``--repair`` leaves it."""
    finding = (f"{severity} {kind}",)
    return {"start": (f"{kind} {outcome}",), "fsck": finding, "repaired": finding, **more}


def healed(kind: str, *fsck: str) -> Row:
    """A start and ``--repair`` leave nothing of it."""
    return {"start": (f"{kind} healed",), "fsck": fsck}


def lost(begin: int, end: int, start: str, *fsck: str, repaired: tuple[str, ...]) -> Row:
    """Messages [begin, end) of Orders/0 are, and a start says so."""
    places = (("Orders", 0, begin, end),)
    return {
        "start": (f"{start} lost",),
        "lost": places,
        "gone": (begin, end),
        "fsck": fsck,
        "repaired": repaired,
    }


def unnoticed() -> Row:
    """A segment in the middle has other content: a start does not read it."""
    fsck = ("lost log.damaged", "lost queue.lost-record")
    return {"gone": (20, 27), "fsck": fsck, "repaired": ("lost log.damaged",)}


SHORTER = ("lost log.damaged", "lost log.segment-length")
HALVED = lost(23, 27, "log.segment-length", *SHORTER, "lost queue.lost-record", repaired=SHORTER)
AHEAD = ("error checkpoint.ahead", "error index.ahead", "error queue.no-record", "lost log.cut")
CUT = ("lost log.cut",)
LAST_GONE = lost(55, 60, "log.cut", *AHEAD, repaired=CUT)
FILE_LENGTH = healed("queue.file-length", "error queue.behind", "error queue.file-length")
SHORT = healed("queue.short", "error queue.behind", "error queue.short")
UNREADABLE = {
    "refused": "cannot be read",
    "fsck": ("error config.unreadable",),
    "repaired": ("error config.unreadable",),
}
STRANGE = ("note index.strange-file", "note log.strange-file")
OTHER_TYPES = ("lost config.topics", "note config.unreadable")

ALIKE: tuple[tuple[Row, tuple[str, ...]], ...] = (
    (LAST_GONE, ("the last segment is missing", "the last segment is empty")),
    (unnoticed(), ("a segment in the middle is zeroed", "a segment in the middle is a copy of another")),
    (
        FILE_LENGTH,
        (
            "a queue's first file has 13 bytes",
            "a queue's file in the middle has 13 bytes",
            "a queue's last file has 13 bytes",
            "a queue's last file is empty",
        ),
    ),
    (
        healed("queue.file-length", "note queue.behind", "note queue.file-length", KILLED),
        (
            "a queue's file in the middle has 13 bytes, after a kill",
            "a queue's last file has 13 bytes, after a kill",
        ),
    ),
    (
        SHORT,
        (
            "a queue's last file is missing",
            "a queue's last file is zeroed",
            "a queue's only file is zeroed",
            "the last entry of a queue is zero",
        ),
    ),
    (
        healed("queue.lost", "error queue.lost", "note queue.none"),
        ("a queue is missing", "all queues are missing"),
    ),
    (
        healed("index.damaged", "error index.damaged", "note index.behind"),
        ("an index file has a bad length", "an index file is random"),
    ),
    (
        kept("checkpoint.damaged", "healed", "note"),
        (
            "checkpoint is random",
            "checkpoint is zeroed",
            "checkpoint is empty",
            "mqspark.checkpoint is random",
            "mqspark.ends is random",
        ),
    ),
    (
        UNREADABLE,
        (
            "consumerOffset.json is empty and has no .bak",
            "topics.json is empty and has no .bak",
            "topics.json is not UTF-8 and has no .bak",
            "subscriptionGroup.json is no JSON and has no .bak",
        ),
    ),
    (
        kept("config.range", "lost", "lost", offset=0),
        ("consumerOffset.json says -5", "consumerOffset.json says 10^20"),
    ),
    (
        kept("config.range", "lost", "lost"),
        ("delayOffset.json says -5", "delayOffset.json says 10^20"),
    ),
    (
        kept("config.topics", "lost", "lost"),
        ("topics.json is missing and has no .bak", "topics.json is one from before the topic was made"),
    ),
    (
        kept("timer.checkpoint", "healed", "note"),
        ("timercheck is random", "timercheck is zeroed", "timercheck is cut"),
    ),
    (
        kept("timer.wheel", "healed", "note"),
        ("timerwheel is zeroed", "timerwheel is cut", "timerwheel is missing"),
    ),
    (
        kept("timer.log", "healed", "note"),
        ("timerlog is missing", "timerlog is zeroed", "timerlog is random", "timerlog is cut to a byte"),
    ),
)

EXPECTED: dict[str, Row] = {name: row for row, names in ALIKE for name in names} | {
    "none": {},
    "none, after a kill": {"fsck": (KILLED,)},
    "a segment in the middle is missing": lost(
        20, 27, "log.gap", "lost log.damaged", "lost log.gap", "lost queue.lost-record",
        repaired=("lost log.damaged", "lost log.gap"),
    ),
    "a segment in the middle is empty": lost(
        20, 27, "log.segment-length", *SHORTER, "lost queue.lost-record", repaired=SHORTER
    ),
    "a segment in the middle is halved": HALVED,
    "a segment in the middle is halved, after a kill": {**HALVED, "fsck": (*HALVED["fsck"], KILLED)},
    "a segment in the middle is too long": kept("log.segment-length", "wrong", "error"),
    "the first segment is empty": {
        **lost(0, 6, "log.segment-length", *SHORTER, "lost queue.lost-record", repaired=SHORTER),
        "lost": (
            ("Orders", 0, 0, 6),
            ("SCHEDULE_TOPIC_XXXX", 4, 0, 1),
            ("Slow", 1, 0, 1),
            ("rmq_sys_wheel_timer", 0, 0, 1),
        ),
        "later": 0,
    },
    "the first segment is missing": kept("log.begin", "lost", "lost", gone=(0, 6), later=0),
    "the last segment is missing, after a kill": {**LAST_GONE, "fsck": (*AHEAD, KILLED)},
    "the last segment is halved": lost(
        56, 60, "log.cut", "error index.ahead", "error log.torn", "error queue.no-record", *CUT, repaired=CUT
    ),
    "the last segment is zeroed": lost(
        55, 60, "log.cut", "error index.ahead", "error queue.no-record", *CUT, repaired=CUT
    ),
    "a segment begins inside another": {
        "refused": "does not belong to a log of 4096-byte segments",
        "fsck": ("error log.misplaced-file",),
        "repaired": ("commitlog/00000000000000014000 does not belong to a log of 4096-byte segments",),
    },
    "a directory is named like a segment": {
        "refused": "a directory stands where a regular file belongs",
        "fsck": ("error log.misplaced-file",),
        "repaired": (
            "[Errno 21] a directory stands where a regular file belongs: 'commitlog/00000000000000036864'",
        ),
    },
    "files of others lie among the store's": {"fsck": STRANGE, "repaired": STRANGE},
    "a queue's first file is missing": healed("queue.file-gone", "error queue.file-gone"),
    "a queue's file in the middle is missing": healed(
        "queue.file-gone", "error queue.behind", "error queue.file-gone"
    ),
    "a queue's last file is zeroed, after a kill": healed(
        "queue.short", "note queue.behind", "note queue.short", KILLED
    ),
    "entries in the middle of a queue are flipped": {
        "fsck": ("error queue.differs", "error queue.no-record"),
    },
    "entries in the middle of a queue are flipped, after a kill": {
        "fsck": ("error queue.differs", "error queue.no-record", KILLED),
    },
    "the last entry of a queue is flipped": healed(
        "queue.differs", "error queue.differs", "error queue.no-record"
    ),
    "entries before the last one are zero": healed(
        "queue.differs", "error queue.behind", "error queue.differs"
    ),
    "entries before the last one are zero, after a kill": healed(
        "queue.differs", "note queue.behind", "note queue.differs", KILLED
    ),
    "mqspark.checkpoint is random, after a kill": healed(
        "checkpoint.damaged", "note checkpoint.damaged", KILLED
    ),
    "mqspark.deletions is random": {"refused": "cannot be read", "fsck": ("error deletions.unreadable",)},
    "consumerOffset.json is empty and has a .bak": kept("config.unreadable", "healed", "note", offset=10),
    "consumerOffset.json says -5 and has a good .bak": kept("config.range", "healed", "lost", offset=10),
    "consumerOffset.json says 61 and has a good .bak": kept("config.range", "healed", "note", offset=60),
    "topics.json says 2^31-1 queues": kept("config.range", "healed", "note"),
    "topics.json has other types and a good .bak": {
        "start": ("config.topics lost", "config.unreadable healed"),
        "fsck": OTHER_TYPES,
        "repaired": OTHER_TYPES,
    },
}  # fmt: skip
