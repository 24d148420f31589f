"""What ``damage_table`` expects of each damage, by its name; read it in ``docs/damage.md``."""

from __future__ import annotations

from typing import Any

EXPECTED: dict[str, dict[str, Any]] = {
    "none": {},
    "none, after a kill": {"fsck": ("note store.unclean",)},
    "a segment in the middle is missing": {
        "start": ("log.gap lost",),
        "lost": (("Orders", 0, 20, 27),),
        "gone": (20, 27),
        "fsck": ("lost log.damaged", "lost log.gap", "lost queue.lost-record"),
        "repaired": ("lost log.damaged", "lost log.gap"),
    },
    "a segment in the middle is empty": {
        "start": ("log.segment-length lost",),
        "lost": (("Orders", 0, 20, 27),),
        "gone": (20, 27),
        "fsck": ("lost log.damaged", "lost log.segment-length", "lost queue.lost-record"),
        "repaired": ("lost log.damaged", "lost log.segment-length"),
    },
    "a segment in the middle is halved": {
        "start": ("log.segment-length lost",),
        "lost": (("Orders", 0, 23, 27),),
        "gone": (23, 27),
        "fsck": ("lost log.damaged", "lost log.segment-length", "lost queue.lost-record"),
        "repaired": ("lost log.damaged", "lost log.segment-length"),
    },
    "a segment in the middle is halved, after a kill": {
        "start": ("log.segment-length lost",),
        "lost": (("Orders", 0, 23, 27),),
        "gone": (23, 27),
        "fsck": (
            "lost log.damaged",
            "lost log.segment-length",
            "lost queue.lost-record",
            "note store.unclean",
        ),
        "repaired": ("lost log.damaged", "lost log.segment-length"),
    },
    "a segment in the middle is zeroed": {
        "gone": (20, 27),
        "fsck": ("lost log.damaged", "lost queue.lost-record"),
        "repaired": ("lost log.damaged",),
    },
    "a segment in the middle is a copy of another": {
        "gone": (20, 27),
        "fsck": ("lost log.damaged", "lost queue.lost-record"),
        "repaired": ("lost log.damaged",),
    },
    "a segment in the middle is too long": {
        "start": ("log.segment-length wrong",),
        "fsck": ("error log.segment-length",),
        "repaired": ("error log.segment-length",),
    },
    "the first segment is empty": {
        "start": ("log.segment-length lost",),
        "lost": (
            ("Orders", 0, 0, 6),
            ("SCHEDULE_TOPIC_XXXX", 4, 0, 1),
            ("Slow", 1, 0, 1),
            ("rmq_sys_wheel_timer", 0, 0, 1),
        ),
        "gone": (0, 6),
        "later": 0,
        "fsck": ("lost log.damaged", "lost log.segment-length", "lost queue.lost-record"),
        "repaired": ("lost log.damaged", "lost log.segment-length"),
    },
    "the first segment is missing": {
        "start": ("log.begin lost",),
        "gone": (0, 6),
        "later": 0,
        "fsck": ("lost log.begin",),
        "repaired": ("lost log.begin",),
    },
    "the last segment is missing": {
        "start": ("log.cut lost",),
        "lost": (("Orders", 0, 55, 60),),
        "gone": (55, 60),
        "fsck": ("error checkpoint.ahead", "error index.ahead", "error queue.no-record", "lost log.cut"),
        "repaired": ("lost log.cut",),
    },
    "the last segment is missing, after a kill": {
        "start": ("log.cut lost",),
        "lost": (("Orders", 0, 55, 60),),
        "gone": (55, 60),
        "fsck": (
            "error checkpoint.ahead",
            "error index.ahead",
            "error queue.no-record",
            "lost log.cut",
            "note store.unclean",
        ),
        "repaired": ("lost log.cut",),
    },
    "the last segment is empty": {
        "start": ("log.cut lost",),
        "lost": (("Orders", 0, 55, 60),),
        "gone": (55, 60),
        "fsck": ("error checkpoint.ahead", "error index.ahead", "error queue.no-record", "lost log.cut"),
        "repaired": ("lost log.cut",),
    },
    "the last segment is halved": {
        "start": ("log.cut lost",),
        "lost": (("Orders", 0, 56, 60),),
        "gone": (56, 60),
        "fsck": ("error index.ahead", "error log.torn", "error queue.no-record", "lost log.cut"),
        "repaired": ("lost log.cut",),
    },
    "the last segment is zeroed": {
        "start": ("log.cut lost",),
        "lost": (("Orders", 0, 55, 60),),
        "gone": (55, 60),
        "fsck": ("error index.ahead", "error queue.no-record", "lost log.cut"),
        "repaired": ("lost log.cut",),
    },
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
    "files of others lie among the store's": {
        "fsck": ("note index.strange-file", "note log.strange-file"),
        "repaired": ("note index.strange-file", "note log.strange-file"),
    },
    "a queue's first file has 13 bytes": {
        "start": ("queue.file-length healed",),
        "fsck": ("error queue.behind", "error queue.file-length"),
    },
    "a queue's file in the middle has 13 bytes": {
        "start": ("queue.file-length healed",),
        "fsck": ("error queue.behind", "error queue.file-length"),
    },
    "a queue's file in the middle has 13 bytes, after a kill": {
        "start": ("queue.file-length healed",),
        "fsck": ("note queue.behind", "note queue.file-length", "note store.unclean"),
    },
    "a queue's last file has 13 bytes": {
        "start": ("queue.file-length healed",),
        "fsck": ("error queue.behind", "error queue.file-length"),
    },
    "a queue's last file has 13 bytes, after a kill": {
        "start": ("queue.file-length healed",),
        "fsck": ("note queue.behind", "note queue.file-length", "note store.unclean"),
    },
    "a queue's last file is empty": {
        "start": ("queue.file-length healed",),
        "fsck": ("error queue.behind", "error queue.file-length"),
    },
    "a queue's first file is missing": {
        "start": ("queue.file-gone healed",),
        "fsck": ("error queue.file-gone",),
    },
    "a queue's file in the middle is missing": {
        "start": ("queue.file-gone healed",),
        "fsck": ("error queue.behind", "error queue.file-gone"),
    },
    "a queue's last file is missing": {
        "start": ("queue.short healed",),
        "fsck": ("error queue.behind", "error queue.short"),
    },
    "a queue's last file is zeroed": {
        "start": ("queue.short healed",),
        "fsck": ("error queue.behind", "error queue.short"),
    },
    "a queue's last file is zeroed, after a kill": {
        "start": ("queue.short healed",),
        "fsck": ("note queue.behind", "note queue.short", "note store.unclean"),
    },
    "a queue's only file is zeroed": {
        "start": ("queue.short healed",),
        "fsck": ("error queue.behind", "error queue.short"),
    },
    "a queue is missing": {"start": ("queue.lost healed",), "fsck": ("error queue.lost", "note queue.none")},
    "all queues are missing": {
        "start": ("queue.lost healed",),
        "fsck": ("error queue.lost", "note queue.none"),
    },
    "entries in the middle of a queue are flipped": {
        "fsck": ("error queue.differs", "error queue.no-record"),
    },
    "entries in the middle of a queue are flipped, after a kill": {
        "fsck": ("error queue.differs", "error queue.no-record", "note store.unclean"),
    },
    "the last entry of a queue is flipped": {
        "start": ("queue.differs healed",),
        "fsck": ("error queue.differs", "error queue.no-record"),
    },
    "the last entry of a queue is zero": {
        "start": ("queue.short healed",),
        "fsck": ("error queue.behind", "error queue.short"),
    },
    "entries before the last one are zero": {
        "start": ("queue.differs healed",),
        "fsck": ("error queue.behind", "error queue.differs"),
    },
    "entries before the last one are zero, after a kill": {
        "start": ("queue.differs healed",),
        "fsck": ("note queue.behind", "note queue.differs", "note store.unclean"),
    },
    "an index file has a bad length": {
        "start": ("index.damaged healed",),
        "fsck": ("error index.damaged", "note index.behind"),
    },
    "an index file is random": {
        "start": ("index.damaged healed",),
        "fsck": ("error index.damaged", "note index.behind"),
    },
    "checkpoint is random": {
        "start": ("checkpoint.damaged healed",),
        "fsck": ("note checkpoint.damaged",),
        "repaired": ("note checkpoint.damaged",),
    },
    "checkpoint is zeroed": {
        "start": ("checkpoint.damaged healed",),
        "fsck": ("note checkpoint.damaged",),
        "repaired": ("note checkpoint.damaged",),
    },
    "checkpoint is empty": {
        "start": ("checkpoint.damaged healed",),
        "fsck": ("note checkpoint.damaged",),
        "repaired": ("note checkpoint.damaged",),
    },
    "mqspark.checkpoint is random": {
        "start": ("checkpoint.damaged healed",),
        "fsck": ("note checkpoint.damaged",),
        "repaired": ("note checkpoint.damaged",),
    },
    "mqspark.checkpoint is random, after a kill": {
        "start": ("checkpoint.damaged healed",),
        "fsck": ("note checkpoint.damaged", "note store.unclean"),
    },
    "mqspark.ends is random": {
        "start": ("checkpoint.damaged healed",),
        "fsck": ("note checkpoint.damaged",),
        "repaired": ("note checkpoint.damaged",),
    },
    "mqspark.deletions is random": {"refused": "cannot be read", "fsck": ("error deletions.unreadable",)},
    "consumerOffset.json is empty and has no .bak": {
        "refused": "cannot be read",
        "fsck": ("error config.unreadable",),
        "repaired": ("error config.unreadable",),
    },
    "consumerOffset.json is empty and has a .bak": {
        "start": ("config.unreadable healed",),
        "offset": 10,
        "fsck": ("note config.unreadable",),
        "repaired": ("note config.unreadable",),
    },
    "consumerOffset.json says -5": {
        "start": ("config.range lost",),
        "offset": 0,
        "fsck": ("lost config.range",),
        "repaired": ("lost config.range",),
    },
    "consumerOffset.json says -5 and has a good .bak": {
        "start": ("config.range healed",),
        "offset": 10,
        "fsck": ("lost config.range",),
        "repaired": ("lost config.range",),
    },
    "consumerOffset.json says 61 and has a good .bak": {
        "start": ("config.range healed",),
        "offset": 60,
        "fsck": ("note config.range",),
        "repaired": ("note config.range",),
    },
    "consumerOffset.json says 10^20": {
        "start": ("config.range lost",),
        "offset": 0,
        "fsck": ("lost config.range",),
        "repaired": ("lost config.range",),
    },
    "delayOffset.json says -5": {
        "start": ("config.range lost",),
        "fsck": ("lost config.range",),
        "repaired": ("lost config.range",),
    },
    "delayOffset.json says 10^20": {
        "start": ("config.range lost",),
        "fsck": ("lost config.range",),
        "repaired": ("lost config.range",),
    },
    "topics.json says 2^31-1 queues": {
        "start": ("config.range healed",),
        "fsck": ("note config.range",),
        "repaired": ("note config.range",),
    },
    "topics.json is empty and has no .bak": {
        "refused": "cannot be read",
        "fsck": ("error config.unreadable",),
        "repaired": ("error config.unreadable",),
    },
    "topics.json is not UTF-8 and has no .bak": {
        "refused": "cannot be read",
        "fsck": ("error config.unreadable",),
        "repaired": ("error config.unreadable",),
    },
    "topics.json has other types and a good .bak": {
        "start": ("config.topics lost", "config.unreadable healed"),
        "fsck": ("lost config.topics", "note config.unreadable"),
        "repaired": ("lost config.topics", "note config.unreadable"),
    },
    "topics.json is missing and has no .bak": {
        "start": ("config.topics lost",),
        "fsck": ("lost config.topics",),
        "repaired": ("lost config.topics",),
    },
    "topics.json is one from before the topic was made": {
        "start": ("config.topics lost",),
        "fsck": ("lost config.topics",),
        "repaired": ("lost config.topics",),
    },
    "subscriptionGroup.json is no JSON and has no .bak": {
        "refused": "cannot be read",
        "fsck": ("error config.unreadable",),
        "repaired": ("error config.unreadable",),
    },
    "timercheck is random": {
        "start": ("timer.checkpoint healed",),
        "fsck": ("note timer.checkpoint",),
        "repaired": ("note timer.checkpoint",),
    },
    "timercheck is zeroed": {
        "start": ("timer.checkpoint healed",),
        "fsck": ("note timer.checkpoint",),
        "repaired": ("note timer.checkpoint",),
    },
    "timercheck is cut": {
        "start": ("timer.checkpoint healed",),
        "fsck": ("note timer.checkpoint",),
        "repaired": ("note timer.checkpoint",),
    },
    "timerwheel is zeroed": {
        "start": ("timer.wheel healed",),
        "fsck": ("note timer.wheel",),
        "repaired": ("note timer.wheel",),
    },
    "timerwheel is cut": {
        "start": ("timer.wheel healed",),
        "fsck": ("note timer.wheel",),
        "repaired": ("note timer.wheel",),
    },
    "timerwheel is missing": {
        "start": ("timer.wheel healed",),
        "fsck": ("note timer.wheel",),
        "repaired": ("note timer.wheel",),
    },
    "timerlog is missing": {
        "start": ("timer.log healed",),
        "fsck": ("note timer.log",),
        "repaired": ("note timer.log",),
    },
    "timerlog is zeroed": {
        "start": ("timer.log healed",),
        "fsck": ("note timer.log",),
        "repaired": ("note timer.log",),
    },
    "timerlog is random": {
        "start": ("timer.log healed",),
        "fsck": ("note timer.log",),
        "repaired": ("note timer.log",),
    },
    "timerlog is cut to a byte": {
        "start": ("timer.log healed",),
        "fsck": ("note timer.log",),
        "repaired": ("note timer.log",),
    },
}
