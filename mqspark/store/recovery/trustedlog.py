"""Whether the log that a start has found is the one that this replica has acknowledged (KIP-966: unclean shutdowns).

A start that finds less than was noted, or that had to cut or step over what was stored, has a log that no other replica
may be measured by. It notes that in ``mqspark.member`` before anything else, and epochs that are not its own are set
aside: its master's come with the log.

Must not know controllers and masters.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mqspark.base.logs import sparing
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.damage import Damage, Outcome
from mqspark.store.disk.files import FileLayer
from mqspark.store.disk.notes.membernote import MemberNote
from mqspark.store.log.epochs import decode_epochs, extends, is_valid_epochs

_log = sparing(__name__)

SUFFIXES = ("", ".bak")


def judge_member(
    note: MemberNote, log_end: int, found: Iterable[Damage], epochs: ConfigFile, files: FileLayer
) -> str:
    """Why this log cannot be trusted, or ''; it is noted durably. ``found``: what recovery has found. Blocks. Raises
    OSError."""
    content = epochs.load(is_valid_epochs)
    foreign = _foreign_epochs(note, content, exists=epochs.exists)
    if foreign:
        for suffix in SUFFIXES:
            _set_aside(epochs.path.with_name(epochs.path.name + suffix), files)
    why = note.problem or _shortage(note, log_end, found) or foreign
    if why and not note.damage:
        note.suspect(why)
        note.sync()
        _log.error(
            "this replica is no member of its set until its log was compared with its master's: %s", why
        )
    return note.damage


def _shortage(note: MemberNote, log_end: int, found: Iterable[Damage]) -> str:
    noted = note.noted
    if log_end < noted.acknowledged:
        return f"its log ends at {log_end}, and it has acknowledged {noted.acknowledged}"
    trusted = noted.acknowledged if noted.epoch >= 0 else log_end + 1
    for each in found:
        is_log = each.kind.startswith("log.") and each.outcome is Outcome.LOST
        if is_log and (each.offset is None or each.offset < trusted):
            return f"{each.kind}: {each.text}"
    return ""


def _foreign_epochs(note: MemberNote, content: bytes | None, *, exists: bool) -> str:
    if content is None and exists:
        return "its epochs cannot be read"
    epochs = [] if content is None else decode_epochs(content)
    marks = note.noted.epochs
    if not marks or any(extends(epochs, mark) for mark in marks):
        return ""
    return "its epochs are not the ones that it has noted" if epochs else "its epochs are gone"


def _set_aside(path: Path, files: FileLayer) -> None:
    if files.read(path) is not None:
        files.rename(path, path.with_name(path.name + ".foreign"))
        files.sync_directory(path.parent)
