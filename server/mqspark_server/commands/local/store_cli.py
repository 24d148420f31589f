"""``mqspark store``: tools for a store directory, with or without a broker on it.

``fsck``, ``stats`` and ``dump`` only read, and work on a directory that is in use. ``--repair`` and ``rebuild``
take its lock. Exit codes: 0 nothing wrong, 1 failed, 2 usage, 3 something is wrong or was lost.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from mqspark.base.logs import printable
from mqspark_server.commands.clustercommand import noun
from mqspark_server.commands.output import MAX_LINE, as_time
from mqspark_server.commands.parameters import Argument, Assignments, Name, Option, StoreDirectory

if TYPE_CHECKING:
    from mqspark.store.tools.dump import Row
    from mqspark.store.tools.fsck import FsckReport
    from mqspark.store.tools.offlinestore import OfflineStore
    from mqspark_server.settings.settings import BrokerSettings

_MAX_VALUE = 100_000
"""Limit of characters per value. Text of the store is escaped, because a terminal would execute control codes."""

_Config = Annotated[
    str | None,
    Option("The broker's settings, if they differ from RocketMQ's defaults.", "-c", metavar="FILE"),
]
_Output = Annotated[Literal["text", "json"], Option("Output format.", "-o", default="text")]
_Offset = Annotated[int, click.IntRange(min=0), Option("First offset.", show_default=False, default=0)]
_Limit = Annotated[int | None, click.IntRange(min=1), Option("Maximum number.", "-n")]


store = noun(
    "store",
    "Store directories: check, repair, rebuild, back up, restore, dump, what was set aside.",
    {
        "backup": ("local.backup_cli:backup", "Copy a store, also while a broker runs on it."),
        "verify": ("local.backup_cli:verify", "Compare a backup with its checksums."),
        "restore": ("local.backup_cli:restore", "Make a store directory from a backup."),
        "diverged": (
            "messages.diverged_cli:diverged",
            "Parts of the log that were set aside because a master's log differed.",
        ),
    },
)


def settings_of(directory: str | Path, config: str | None, assignments: Sequence[str]) -> BrokerSettings:
    """The settings of the broker with this store."""
    from mqspark_server.settings.settings import broker_settings, layers_of, production

    settings = broker_settings(production(), *layers_of(config, assignments))
    settings.store.store_path_root_dir = str(directory)
    return settings


def _opened(directory: str, config: str | None, assignments: Sequence[str]) -> OfflineStore:
    """The store, and what of it is not seen here, on standard error."""
    from mqspark.store.tools.offlinestore import OfflineStore

    found = OfflineStore(settings_of(directory, config, assignments).store)
    for part in found.in_rocksdb:
        click.echo(printable(f"not shown: {part.text}", MAX_LINE), err=True)
    return found


@store.command()
def fsck(
    directory: StoreDirectory,
    repair: Annotated[bool, Option("Cut a torn tail, rebuild queues and index. No broker may be running.")],
    output: _Output,
    config: _Config,
    assignments: Assignments,
) -> None:
    """Compare all records, queue entries and index entries with each other."""
    from mqspark.base.clock import SystemClock
    from mqspark.base.config import INT64_MAX
    from mqspark.broker.tables.ranges import found_in_tables
    from mqspark.message import TIMER_TOPIC
    from mqspark.store.timer.timerfiles import timer_damage
    from mqspark.store.tools.fsck import START, Finding, cut_log
    from mqspark.store.tools.fsck import fsck as check
    from mqspark.store.tools.offlinestore import OfflineStore, UnchangingFiles
    from mqspark.store.tools.remake import remake

    settings = settings_of(directory, config, assignments).store

    def check_all(progress: Callable[[int, int], None], *, is_cut: bool = False) -> FsckReport:
        found = OfflineStore(settings)
        report = check(found, progress)
        is_cut = is_cut or "log.cut" in report.counts
        queue = found.table.queues.get((TIMER_TOPIC, 0))
        end = queue.max_offset if queue is not None else 1 << 62
        damages = [
            *found_in_tables(found, SystemClock(), INT64_MAX if is_cut else report.end_offset),
            *timer_damage(
                found.paths.root,
                UnchangingFiles(),
                SystemClock().now_ms(),
                end,
                precision_ms=settings.timer_precision_ms,
                log_file_bytes=settings.mapped_file_size_timer_log,
                clean=found.clean,
            ),
        ]
        severities = {"healed": "note", "lost": "lost", "wrong": "error"}
        for damage in damages if not found.in_use else []:
            repair = START if damage.outcome == "healed" else ""
            report.add(Finding(severities[damage.outcome], damage.kind, damage.text, repair=repair))
        return report

    with _bar("checking") as progress:
        report = check_all(progress)
    if repair and (report.errors or report.lost or not report.clean):
        with _bars() as step:
            made = remake(settings, SystemClock(), step)
        with _bar("checking") as progress:
            lost = cut_log(made)
            report = check_all(progress, is_cut=lost is not None)
        report.repaired = True
        if lost is not None:
            report.add(lost)
    if output == "json":
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        for line in _fsck_lines(report):
            click.echo(printable(line, MAX_LINE))
    if report.errors or report.lost:
        sys.exit(3)


def _fsck_lines(report: FsckReport) -> Iterator[str]:
    for finding in report.findings:
        place = [f"offset {finding.offset}"] if finding.offset is not None else []
        if finding.topic is not None:
            place.append(finding.topic + (f"/{finding.queue_id}" if finding.queue_id is not None else ""))
        if finding.queue_offset is not None:
            place.append(f"queue offset {finding.queue_offset}")
        where = f" {', '.join(place)}:" if place else ""
        advice = f" - {finding.repair}" if finding.repair else ""
        yield f"{finding.severity.upper():5} {finding.kind}{where} {finding.text}{advice}"
    beyond = sum(report.counts.values()) - len(report.findings)
    if beyond:
        yield f"... and {beyond} more: " + ", ".join(
            f"{kind} {n}" for kind, n in sorted(report.counts.items())
        )
    yield (
        f"{report.segments} segments, offsets {report.min_offset} to {report.end_offset}: {report.records} records;"
        f" {report.queues} queues, {report.entries} entries ({report.fillers} for lost records);"
        f" {report.index_files} index files, {report.index_entries} keys"
    )
    if report.repaired:
        yield "repaired: queues and index were rebuilt"
    if report.errors or report.lost:
        yield f"{report.errors} errors, {report.lost} losses"
    else:
        yield "nothing is wrong"


@store.command()
def stats(directory: StoreDirectory, output: _Output, config: _Config, assignments: Assignments) -> None:
    """Show segments, topics, messages, bytes, times, and how far queues and index are behind."""
    from mqspark.store.tools.storestats import store_stats

    found = store_stats(_opened(directory, config, assignments))
    if output == "json":
        click.echo(json.dumps(found.as_dict(), indent=2))
        return
    state = "in use" if found.in_use else "stopped cleanly" if found.clean else "not stopped cleanly"
    click.echo(f"{found.path}: {state}")
    click.echo(
        f"log      {found.segments} segments of {found.segment_bytes} bytes, offsets {found.min_offset} to"
        f" {found.end_offset} ({found.log_bytes} bytes), checkpoint at {found.checkpoint_offset}"
    )
    click.echo(f"stored   {_time(found.oldest_ms)} to {_time(found.newest_ms)}")
    click.echo(
        f"queues   {found.queues}, {found.messages} messages, {found.queue_lag_bytes} bytes behind the log"
    )
    click.echo(
        f"index    {found.index_files} files, {found.index_entries} keys, {found.index_lag_bytes} bytes behind the log"
    )
    for name, topic in sorted(found.topics.items()):
        click.echo(
            f"  {printable(name)}: {topic.messages} messages in {topic.queues} queues, newest {_time(topic.newest_ms)}"
        )


@store.command()
def rebuild(directory: StoreDirectory, config: _Config, assignments: Assignments) -> None:
    """Rebuild ConsumeQueues and index from the CommitLog. No broker may be running on the directory."""
    from mqspark.base.clock import SystemClock
    from mqspark.store.tools.fsck import cut_log
    from mqspark.store.tools.remake import remake

    with _bars() as step:
        made = remake(settings_of(directory, config, assignments).store, SystemClock(), step)
    click.echo(
        f"{made.records} records: {made.queues} queues with {made.entries} entries ({made.lost_entries} for lost"
        f" records), {made.index_files} index files with {made.index_entries} keys"
    )
    for low, high in made.damaged:
        click.echo(f"no valid record from offset {low} to {high}")
    if made.torn_bytes:
        click.echo(f"cut at offset {made.end_offset}: {made.torn_bytes} bytes that are not a record")
    lost = cut_log(made)
    if lost is not None:
        click.echo(printable(f"offset {lost.offset}: {lost.text} - {lost.repair}", MAX_LINE))
    if made.damaged or lost is not None or (made.torn_bytes and made.was_clean):
        sys.exit(3)


@store.command("to-rocketmq")
def to_rocketmq(directory: StoreDirectory, config: _Config, assignments: Assignments) -> None:
    """Prepare a store for a RocketMQ broker that takes over. Stop all brokers first.

    Writes its compaction/ from compacted topics. Its file sizes must be those of that broker: give its broker.conf with
    -c, or --set compactionMappedFileSize=BYTES.

    If files of the log are short, missing or too long, rebuilds queues and index, and gives these files their length:
    RocketMQ does not start with them, and sends consumers zeros for messages that are lost. These can no longer be
    healed from another replica.
    """
    from mqspark.base.clock import SystemClock
    from mqspark.store.compaction.compactedqueues import compaction_topics
    from mqspark.store.tools.compactionfiles import write_compaction
    from mqspark.store.tools.remake import remake
    from mqspark.store.tools.wholesegments import complete_segments, incomplete_segments

    settings = settings_of(directory, config, assignments).store
    incomplete = incomplete_segments(settings)
    if incomplete:
        with _bars() as step:
            made = remake(settings, SystemClock(), step)
        click.echo(f"queues and index were rebuilt, with {made.lost_entries} entries for lost records")
        complete_segments(settings)
        for path in incomplete:
            click.echo(printable(f"{path} has its whole length now", MAX_LINE))
    topics = compaction_topics(Path(directory))
    written = write_compaction(settings, topics)
    click.echo(f"{len(topics)} compacted topics: {written.queues} queues, {written.records} records")


@store.group()
def dump() -> None:
    """Print records, queue entries or index entries."""


@dump.command("records")
def dump_records(
    directory: StoreDirectory,
    offset: _Offset,
    topic: Annotated[str | None, Option("Only this topic. With --queue, --offset is a queue offset.")],
    queue_id: Annotated[
        int | None, click.IntRange(min=0), Option("Only this queue of the topic, in its order.", "--queue")
    ],
    limit: _Limit,
    output: _Output,
    config: _Config,
    assignments: Assignments,
) -> None:
    """Print records of the log from a physical offset on, or those of one queue."""
    from mqspark.store.tools import dump as library

    found = _opened(directory, config, assignments)
    if queue_id is not None:
        if topic is None:
            raise click.UsageError("--queue needs --topic")
        entries = library.dump_queue(found, topic, queue_id, offset)
        rows: Iterator[Row] = (
            library.record_row(found, entry["physicalOffset"]) or {**entry, "damaged": entry["size"]}
            for entry in entries
            if "physicalOffset" in entry
        )
    else:
        rows = library.dump_records(found, offset, topic=topic)
    _print(rows, limit, output)


@dump.command("queue")
def dump_queue(
    directory: StoreDirectory,
    topic: Name,
    queue_id: Annotated[int, click.IntRange(min=0), Argument(metavar="QUEUE")],
    offset: _Offset,
    limit: _Limit,
    output: _Output,
    config: _Config,
    assignments: Assignments,
) -> None:
    """Print entries of one ConsumeQueue from a queue offset on."""
    from mqspark.store.tools import dump as library

    found = _opened(directory, config, assignments)
    _print(library.dump_queue(found, topic, queue_id, offset), limit, output)


@dump.command("index")
def dump_index(
    directory: StoreDirectory,
    offset: _Offset,
    topic: Annotated[
        str | None, Option("With --key: only entries of this key, and of others with the same hash.")
    ],
    key: Annotated[str | None, Option("Only entries of this key; needs --topic.")],
    limit: _Limit,
    output: _Output,
    config: _Config,
    assignments: Assignments,
) -> None:
    """Print index entries of records from a physical offset on."""
    from mqspark.store.tools import dump as library

    if (topic is None) != (key is None):
        raise click.UsageError("--topic and --key belong together")
    found = _opened(directory, config, assignments)
    _print(library.dump_index(found, offset, topic=topic, key=key), limit, output)


def _print(rows: Iterator[Row], limit: int | None, output: str) -> None:
    """Print one line per row, as it arrives."""
    # A closed pipe (head) is not an error.
    with contextlib.suppress(BrokenPipeError):
        for row in itertools.islice(rows, limit):
            if isinstance(row.get("body"), bytes):
                row = {**row, "body": _text(row["body"])}
            if output == "json":
                click.echo(json.dumps(row))
            else:
                values = ((name, printable(str(value), _MAX_VALUE)) for name, value in row.items())
                click.echo("  ".join(f"{name}={value}" for name, value in values))


def _text(body: bytes) -> str:
    """UTF-8 text as text, anything else in hexadecimal."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return "0x" + body.hex()


def _time(ms: int) -> str:
    return as_time(ms) if ms > 0 else "never"


@contextlib.contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int], None]]:
    with _bars() as step:
        yield lambda done, total: step(label, done, total)


@contextlib.contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar per step on standard error, if that is a terminal."""
    with contextlib.ExitStack() as stack:
        bars: dict[str, Any] = {}

        def step(label: str, done: int, total: int) -> None:
            if not sys.stderr.isatty():
                return
            if label not in bars:
                stack.close()
                bars[label] = stack.enter_context(
                    click.progressbar(length=max(total, 1), label=label, file=sys.stderr)
                )
            bar = bars[label]
            bar.update(min(done, bar.length) - bar.pos)

        yield step
