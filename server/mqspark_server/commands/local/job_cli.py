"""``mqspark job``: Spark jobs, at once or by a schedule; and ``mqspark doctor spark``.

Only these commands import Spark. Without the extra ``mqspark[spark]`` they fail with that reason, and all other
commands work.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from mqspark.base.clock import wall_ms
from mqspark.errors import ConfigError
from mqspark_server.commands.lazycommands import HELP, LazyCommands
from mqspark_server.commands.output import Column, Output, OutputFormat, columns, cut
from mqspark_server.commands.parameters import Argument, DeclaredCommand, Option
from mqspark_server.commands.refusals import CommandFailed, Missing

if TYPE_CHECKING:
    from mqspark_server.scheduler.jobsfile import JobsFile, ScheduledJob

_File = Annotated[Path, Option("File of jobs, e.g. conf/jobs.toml.", "-c", metavar="FILE")]


@click.group(cls=LazyCommands, context_settings=HELP)
def job() -> None:
    """Spark jobs: rebuild-index, archive, compact, redeliver; tables, table-upkeep, table-verify."""


@job.command(
    "run",
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": [],
    },
    add_help_option=False,
)
def job_run(
    config: Annotated[Path | None, Option("Run the job NAME of this file.", "-c", metavar="FILE")],
    arguments: Annotated[tuple[str, ...], Argument(type=click.UNPROCESSED, required=False)],
) -> None:
    """Run the job NAME; `mqspark job run NAME --help` shows its options."""
    need_spark()
    if config is None:
        from mqspark_jobs.commandline import main

        sys.exit(main(arguments))
    if len(arguments) != 1:
        raise click.UsageError("with --config, give the NAME of one job of the file, and no options")
    from mqspark_server.commands.local.servers_cli import log_to_stderr
    from mqspark_server.scheduler.jobserver import run_now

    file = _read(config)
    chosen = _find(file, arguments[0])
    log_to_stderr(file.server.log_level, file.server.log_format)
    record = asyncio.run(run_now(file, chosen))
    if record is None:
        raise CommandFailed(f"job {chosen.name} is already running")
    if not record.is_good:
        raise CommandFailed(f"job {chosen.name}: {record.outcome}: {record.error}")


@job.command("serve")
def job_serve(config: _File) -> None:
    """Run the jobs of a file when they are due, until SIGTERM or SIGINT."""
    need_spark()
    from mqspark_server.commands.local.servers_cli import log_to_stderr, serve
    from mqspark_server.scheduler.jobserver import JobServerApp

    file = _read(config)
    log_to_stderr(file.server.log_level, file.server.log_format)
    app = JobServerApp(file)
    serve(app, lambda: f"READY jobs={len(file.jobs)} http={app.url or '-'} state={app.directory.path}")


@job.command("list")
def job_list(config: _File, output: OutputFormat) -> None:
    """List the jobs of a file: schedules, next and last runs."""
    from mqspark_server.scheduler.jobrecords import JobDirectory
    from mqspark_server.scheduler.schedule import next_start

    file = _read(config)
    directory = JobDirectory(file.server.state_path, file.server.history_max_bytes)
    rows = []
    now_ms = wall_ms()
    for each in file.jobs.values():
        state = directory.load(each.name)
        times = {"taken_ms": state.taken_ms, "attempt": state.attempt, "retry_ms": state.retry_ms}
        last = state.last
        rows.append(
            {
                "name": each.name,
                "run": each.run,
                "schedule": each.schedule,
                "timezone": each.timezone,
                "enabled": each.enabled,
                "running": directory.is_locked(each.name),
                "next_ms": next_start(each, now_ms, since_ms=now_ms, **times).at_ms if each.enabled else None,
                "last_outcome": None if last is None else last.outcome,
                "last_finished_ms": None if last is None else last.finished_ms,
                "failures": state.failures,
                "error": None if last is None or last.is_good else last.error,
            }
        )
    Output(output).rows(
        columns(
            "name JOB, run RUNS, schedule, timezone* ZONE, enabled*, running, next_ms NEXT, last_outcome LAST",
            "last_finished_ms ENDED, failures",
            Column("error", "ERROR", wide=True),
        ),
        rows,
        empty="no jobs",
    )


@job.command("history")
def job_history(
    config: _File,
    output: OutputFormat,
    name: Annotated[str | None, Option("Only this one.", "--job", metavar="NAME")],
    limit: Annotated[int, click.IntRange(1, 100_000), Option("Runs.")] = 20,
) -> None:
    """List finished runs, newest first."""
    import msgspec

    from mqspark_server.scheduler.jobrecords import JobDirectory

    file = _read(config)
    if name is not None:
        _find(file, name)
    directory = JobDirectory(file.server.state_path, file.server.history_max_bytes)
    rows = [
        {
            **msgspec.structs.asdict(record),
            "seconds": (record.finished_ms - record.started_ms) / 1000,
            "rows": record.summary.get("rows", record.summary.get("messages")),
        }
        for record in cut(directory.history(name, limit + 1), limit, "--limit shows older ones")
    ]
    Output(output).rows(
        columns(
            "job, outcome, attempt, started_ms BEGAN, seconds, rows", Column("error", "ERROR"), "by_hand*"
        ),
        rows,
        empty="no runs",
    )


@click.command("spark", cls=DeclaredCommand)
def doctor_spark(
    nameserver: Annotated[str | None, Option("Also check this name server.", metavar="HOST:PORT")],
) -> None:
    """Check whether format("pymq") works here. Exit code 1 when it does not."""
    need_spark()
    from pyspark_pymq.doctor import report

    sys.exit(report(nameserver))


def _read(path: Path) -> JobsFile:
    if importlib.util.find_spec("croniter") is None:
        raise ConfigError("this command needs croniter: pip install 'mqspark[jobs]'", key="croniter")
    from mqspark_server.scheduler.jobsfile import read_jobs_file

    return read_jobs_file(path)


def _find(file: JobsFile, name: str) -> ScheduledJob:
    found = file.jobs.get(name)
    if found is None:
        raise Missing("job", name, file.jobs)
    return found


def need_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("this command needs pyspark: pip install 'mqspark[spark]'", key="pyspark")
