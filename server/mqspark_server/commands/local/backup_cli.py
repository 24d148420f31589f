"""``mqspark store backup``, ``verify`` and ``restore``.

``backup`` only reads the store, beside a broker that runs. Exit codes: 0 done, 1 failed, 2 usage, 3 damage was found.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from mqspark_server.commands.local.store_cli import settings_of
from mqspark_server.commands.output import Output, OutputFormat, as_time, columns
from mqspark_server.commands.parameters import Argument, Assignments, DeclaredCommand, Option
from mqspark_server.commands.refusals import CommandFailed
from mqspark_server.commands.times import parsed_by

if TYPE_CHECKING:
    from mqspark.store.config import StoreConfig
    from mqspark.store.tools.backup import Owner
    from mqspark.store.tools.backupmanifest import BackupManifest, Pace

MAX_PROBLEMS = 1000
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([KMG]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_PROBLEMS = columns("place FILE", "from_byte FROM", "to_byte TO", "problem")
_GROUPS = columns("group", "topic", "offset OFFSETS")


def parse_rate(text: str) -> float:
    """Bytes per second. Raises click.UsageError."""
    found = _RATE.fullmatch(text.strip())
    rate = float(found[1]) * _UNITS[found[2].upper()] if found is not None else 0
    if rate <= 0:
        raise click.UsageError(f"{text!r} is not a number of bytes a second: 500K, 50M, 1.5G")
    return rate


class Throttle:
    """Waits so that no more bytes than this are read per second."""

    def __init__(
        self,
        bytes_per_s: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._now = now
        self._sleep = sleep
        self._due = now()

    def __call__(self, count: int) -> None:
        now = self._now()
        self._due = max(self._due, now) + count / self._bytes_per_s
        self._sleep(self._due - now)


_store_directory = click.Path(exists=True, file_okay=False, path_type=Path)
_BackupDirectory = Annotated[Path, _store_directory, Argument(metavar="BACKUP")]
_Config = Annotated[str | None, Option("The broker's settings.", "-c", metavar="FILE")]
_Rate = Annotated[
    float | None, parsed_by("rate", parse_rate), Option("At most so many a second: 50M.", metavar="BYTES")
]


def _settings(directory: Path, config: str | None, assignments: Sequence[str]) -> tuple[StoreConfig, Owner]:
    """The settings of the store, and whose it is if they say so."""
    from mqspark import __version__
    from mqspark.store.tools.backup import Owner

    found = settings_of(directory, config, assignments)
    broker = found.broker
    owner = Owner(version=__version__)
    if config:
        owner = Owner(broker.broker_cluster_name, broker.broker_name, broker.broker_id, __version__)
    return found.store, owner


def _pace(rate: float | None) -> Pace:
    return Throttle(rate) if rate else lambda count: None


@contextlib.contextmanager
def _bar(label: str, length: int, rate: float | None) -> Iterator[Pace]:
    """A progress bar on standard error, if that is a terminal, which grows with what is read."""
    throttle = _pace(rate)
    with click.progressbar(
        length=max(length, 1), label=label, file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:

        def pace(count: int) -> None:
            throttle(count)
            bar.update(count)

        yield pace


@click.command(cls=DeclaredCommand)
def backup(
    directory: Annotated[Path, _store_directory, Argument(metavar="DIR")],
    backup: Annotated[Path, click.Path(path_type=Path), Option("Where it goes.", "--to", metavar="BACKUP")],
    rate: _Rate,
    output: OutputFormat,
    config: _Config,
    assignments: Assignments,
) -> None:
    """Copy the store DIR, also while a broker runs on it. A further backup to the same place copies what is new."""
    from mqspark.base.clock import SystemClock
    from mqspark.store.tools.backup import back_up

    settings, owner = _settings(directory, config, assignments)
    done = back_up(settings, backup, SystemClock(), owner, _pace(rate))
    row = {**_row(done.manifest), "written_bytes": done.written_bytes, "attempts": done.attempts}
    Output(output).record(row)


@click.command(cls=DeclaredCommand)
def verify(backup: _BackupDirectory, rate: _Rate, output: OutputFormat) -> None:
    """Compare every byte of a backup with its checksums. Exit code 3 when something is damaged or missing."""
    from itertools import islice

    from mqspark.store import OsFiles
    from mqspark.store.tools.backupmanifest import damaged_blocks, missing_files, require_manifest

    files = OsFiles()
    manifest = require_manifest(backup, files)
    missing = list(missing_files(backup, manifest.copies))
    short = {problem.place for problem in missing}
    with _bar("verifying", manifest.size_bytes, rate) as pace:
        damaged = (
            problem
            for file in manifest.copies
            if file.place not in short
            for problem in damaged_blocks(backup, file, files, pace)
        )
        problems = [*missing, *islice(damaged, MAX_PROBLEMS)]
    printed = Output(output)
    if not problems:
        printed.record(_row(manifest))
        return
    rows = [
        {"place": each.place, "from_byte": each.low, "to_byte": each.high, "problem": each.text}
        for each in problems
    ]
    printed.rows(_PROBLEMS, rows)
    click.get_current_context().exit(3)


@click.command(cls=DeclaredCommand)
def restore(
    backup: _BackupDirectory,
    directory: Annotated[
        Path, click.Path(path_type=Path), Option("An empty store directory.", "--to", metavar="DIR")
    ],
    replica: Annotated[bool, Option("The other replicas of its set have the messages, and it follows them.")],
    other_broker: Annotated[bool, Option("The broker of -c FILE has another name or cluster.")],
    rate: _Rate,
    output: OutputFormat,
    config: _Config,
    assignments: Assignments,
) -> None:
    """Make the store directory DIR from a backup. What is copied is compared with its checksums."""
    from mqspark.store import OsFiles
    from mqspark.store.tools.backupmanifest import require_manifest
    from mqspark.store.tools.restore import check_owner
    from mqspark.store.tools.restore import restore as restore_to

    settings, owner = _settings(directory, config, assignments)
    manifest = require_manifest(backup, OsFiles())
    if not other_broker:
        check_owner(manifest, owner)
    with _bar("restoring", manifest.size_bytes, rate) as pace:
        done = restore_to(backup, settings, is_replica=replica, pace=pace)
    printed = Output(output)
    groups = _groups(done.consumer_offsets)
    row = _row(done.manifest)
    if not printed.is_table:
        printed.record({**row, "groups": groups})
        return
    printed.record(row)
    if groups:
        printed.heading(f"Groups go on at their offsets of {as_time(done.manifest.began_ms)}")
        printed.rows(_GROUPS, groups)
    for line in _consequences(done.manifest, is_replica=replica):
        click.echo(line)


def _row(manifest: BackupManifest) -> dict[str, object]:
    """What a backup is. Times are in ms."""
    name = f"{manifest.broker_name} of {manifest.cluster}" if manifest.broker_name else ""
    return {
        "broker": name or None,
        "backup": manifest.number,
        "started_ms": manifest.began_ms,
        "log_begin": manifest.log_begin,
        "log_end": manifest.log_end,
        "stored_ms": manifest.newest_ms or None,
        "segments": len(manifest.log),
        "files": len(manifest.files),
        "bytes": manifest.size_bytes,
        "version": manifest.version,
    }


def _groups(data: bytes | None) -> list[dict[str, object]]:
    """The offsets of all groups, by topic."""
    from mqspark.errors import ProtocolError
    from mqspark.protocol.bodies.admin_bodies import ConsumerOffsetSerializeWrapper
    from mqspark.protocol.bodies.body import decode_table

    if not data:
        return []
    try:
        table = decode_table(ConsumerOffsetSerializeWrapper, data).offset_table
    except ProtocolError as error:
        raise CommandFailed(f"all is restored, but consumerOffset.json cannot be shown: {error}") from error
    rows = []
    for name, offsets in sorted(table.items()):
        topic, _, group = name.partition("@")
        rows.append({"group": group, "topic": topic, "offset": sum(offsets.values())})
    return rows


def _consequences(manifest: BackupManifest, *, is_replica: bool) -> list[str]:
    when = as_time(manifest.began_ms)
    lines = [
        "",
        f"Messages stored after {as_time(manifest.newest_ms)} are not in it.",
        f"Delivered again is what was consumed, or came due, after {when} and is in the log.",
        "The first start reads the whole log and builds queues and index. Nothing is deleted by its age before then.",
    ]
    if is_replica:
        lines.append(
            "The broker follows its master, and counts as a replica once its log was compared with that one's."
        )
    elif manifest.is_replica:
        lines.append(
            "The store is of a set in controller mode. While others of the set have messages, restore with --replica:"
            " docs/backup.md says how a whole set is restored."
        )
    return lines
