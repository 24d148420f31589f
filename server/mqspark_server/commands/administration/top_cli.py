"""``mqspark top``: the current activity of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import click

from mqspark.errors import MQError
from mqspark.message import RETRY_PREFIX
from mqspark_server.commands.administration.cluster_cli import BROKER_COLUMNS, broker_rows
from mqspark_server.commands.clustercommand import ClusterCommand, ClusterShell
from mqspark_server.commands.output import columns, cut, row_of
from mqspark_server.commands.parameters import Option
from mqspark_server.survey.surveying import Row, each_of
from mqspark_server.survey.topicsurvey import bounds_of

_TOPICS = columns("topic, in_tps, messages, queues")
_GROUPS = columns("group, topic, out_tps, lag, lag_change")
Places = dict[str, tuple[int, int, int]]
Progress = dict[tuple[str, str], tuple[int, int]]


@click.command(short_help="Show current rates and lag of a cluster.", cls=ClusterCommand)
async def top(
    shell: ClusterShell,
    *,
    interval: Annotated[float, click.FloatRange(0.1, 3600), Option("Seconds.", "-i")] = 2.0,
    count: Annotated[
        int | None, click.IntRange(min=1), Option("Number of tables.  [default: 1 into a pipe]", "-c")
    ],
    limit: Annotated[int, click.IntRange(1, 1000), Option("Topics and groups shown.")] = 15,
) -> None:
    """Show brokers, the busiest topics and the groups with the largest lag, repeatedly, until Ctrl-C.

    Into a pipe, or with -o json, one table over one interval is printed.
    """
    live = sys.stdout.isatty() and shell.output.is_table
    tables = count if count is not None else None if live else 1
    before = await _sample(shell)
    began = time.monotonic()
    try:
        for _ in itertools.count() if tables is None else range(tables):
            await asyncio.sleep(interval)
            now = await _sample(shell)
            elapsed_s = time.monotonic() - began
            began += elapsed_s
            brokers = await broker_rows(shell)
            if live:
                click.echo("\x1b[H\x1b[2J", nl=False)
            topics = _topic_rows(before[0], now[0], elapsed_s)
            groups = _group_rows(before[1], now[1], elapsed_s)
            _show(shell, brokers, topics, groups, limit)
            before = now
    except asyncio.CancelledError:
        if not live:
            raise  # on a terminal, Ctrl-C ends the command normally


def _show(
    shell: ClusterShell, brokers: Sequence[Row], topics: Sequence[Row], groups: Sequence[Row], limit: int
) -> None:
    if not shell.output.is_table:
        topics, groups = (cut(rows, limit, "--limit shows more") for rows in (topics, groups))
        shell.output.record({"brokers": brokers, "topics": topics, "groups": groups})
        return
    shell.output.rows(BROKER_COLUMNS, brokers)
    for noun, shown, rows, empty in (
        ("topics", _TOPICS, topics, "no topic"),
        ("groups", _GROUPS, groups, "nothing is committed"),
    ):
        more = f": the first {limit} of {len(rows)} (--limit)" if len(rows) > limit else ""
        shell.output.heading(f"{noun}{more}")
        shell.output.rows(shown, rows[:limit], empty=empty)


async def _sample(shell: ClusterShell) -> tuple[Places, Progress]:
    """End, messages and queues of each topic; end and committed offset of each group and topic."""
    topics = [row["topic"] for row in await shell.topic_rows()]
    places: Places = {}
    progress: Progress = {}

    async def topic(name: str) -> None:
        with contextlib.suppress(MQError):  # deleted meanwhile, or its broker is down
            bounds = (await bounds_of(shell.admin, name)).values()
            messages = sum(high - low for low, high in bounds)
            places[name] = sum(high for _, high in bounds), messages, len(bounds)

    async def group(name: str) -> None:
        with contextlib.suppress(MQError):  # it has committed nothing
            for queue, each in (await shell.admin.group_offsets(name)).items():
                if not queue.topic.startswith(RETRY_PREFIX):
                    end, committed = progress.get((name, queue.topic), (0, 0))
                    progress[name, queue.topic] = end + each.max_offset, committed + max(0, each.committed)

    await asyncio.gather(each_of(topics, topic), each_of(await shell.admin.groups(), group))
    return places, progress


def _topic_rows(before: Places, now: Places, elapsed_s: float) -> list[Row]:
    rows = [
        row_of(_TOPICS, name, round((end - before.get(name, (end,))[0]) / elapsed_s, 1), messages, queues)
        for name, (end, messages, queues) in now.items()
    ]
    return sorted(rows, key=lambda row: (-row["in_tps"], -row["messages"], row["topic"]))


def _group_rows(before: Progress, now: Progress, elapsed_s: float) -> list[Row]:
    rows = []
    for key, (end, committed) in now.items():
        old_end, old_committed = before.get(key, (end, committed))
        lag, change = end - committed, end - old_end - (committed - old_committed)
        rates = [round(each / elapsed_s, 1) for each in (committed - old_committed, change)]
        rows.append(row_of(_GROUPS, *key, rates[0], lag, rates[1]))
    return sorted(rows, key=lambda row: (-row["lag"], row["group"], row["topic"]))
