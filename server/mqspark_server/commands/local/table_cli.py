"""``mqspark table``: Delta tables that follow topics. They are kept by ``mqspark table run``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import msgspec

from mqspark_server.actions.tableactions import DROP, PAUSE, RESUME, TableChange
from mqspark_server.commands.administration.config_cli import assignments
from mqspark_server.commands.clustercommand import ClusterShell, confirm, noun
from mqspark_server.commands.completing import TopicName
from mqspark_server.commands.local.job_cli import need_spark
from mqspark_server.commands.output import Column, Output, OutputFormat, columns
from mqspark_server.commands.parameters import Argument, DeclaredCommand, Name, Option, Yes
from mqspark_server.shown.nouns import place_of
from mqspark_server.survey.groupsurvey import lag_of

if TYPE_CHECKING:
    from mqspark_jobs.tables.tabledefs import TableDefinition, TableDirectory

table = noun("table", "Delta tables that follow topics.")

_Directory = Annotated[str, Option("Of the definitions.", metavar="DIR", default="~/mqspark-tables")]
_LIST = columns(
    "name TABLE, topic, state, lag, rows*, delay_ms* DELAY_MS, rejected*, at_ms NEWEST, url PLACE",
    Column("error", "ERROR", wide=True),
)


@table.command("create")
async def table_create(
    shell: ClusterShell,
    *,
    topic: TopicName,
    url: Annotated[
        str, Option("Place of the table: a path, or s3a://, gs://, abfss://.", "--to", metavar="URL")
    ],
    name: Annotated[str | None, Option("Of the table.  [default: the topic's]", metavar="NAME")],
    start: Annotated[
        Literal["earliest", "latest"], Option("Begin with the first message there is, or with the next one.")
    ] = "earliest",
    upsert: Annotated[bool, Option("Keep the newest message of each key; one without a body deletes it.")],
    catalog_name: Annotated[
        str, Option("Its name in Spark's catalog, such as db.orders.", metavar="NAME")
    ] = "",
    options: Annotated[
        tuple[str, ...],
        Option(
            "An option of Spark's source: a limit of a batch, an archive. Repeatable.",
            "--option",
            metavar="KEY=VALUE",
        ),
    ],
    tables: _Directory,
) -> None:
    """Define a table that follows TOPIC. mqspark table run keeps it."""
    need_spark()
    from mqspark_jobs.tables.tabledefs import TableDirectory, new_definition

    await shell.must_be_topics(topic)
    starts: dict[str, int] = {}
    if start == "latest":
        found = await shell.admin.topic_stats(topic)
        starts = {place_of(queue): each.max_offset for queue, each in found.items()}
    definition = new_definition(
        name or topic,
        topic,
        shell.namesrv,
        url,
        starts=starts,
        is_upsert=upsert,
        options=assignments(options),
        catalog_name=catalog_name or "",
    )
    TableDirectory(tables).add(definition)
    shell.output.done(
        f"table {definition.name} follows topic {topic} into {url} while mqspark table run runs",
        {"name": definition.name, "topic": topic, "url": url},
    )


@table.command("list")
async def table_list(shell: ClusterShell, tables: _Directory) -> None:
    """List tables: what each does, and how many messages it is behind."""
    directory = _opened(tables)
    rows = [await _row(shell, directory, each) for each in directory.all()]
    shell.output.rows(_LIST, rows, empty="no tables")


@table.command("describe")
async def table_describe(shell: ClusterShell, name: Name, tables: _Directory) -> None:
    """Show the definition and the state of table NAME."""
    directory = _opened(tables)
    definition = directory.load(name)
    shell.output.record({**msgspec.to_builtins(definition), **await _row(shell, directory, definition)})


def _pausing(change: TableChange) -> None:
    @table.command(change.verb, help=change.text)
    def run(name: Name, tables: _Directory, output: OutputFormat) -> None:
        _opened(tables).change(name, is_paused=change is PAUSE)
        Output(output).done(f"table {name} {change.done}", {"name": name, "state": f"{change.verb}d"})


_pausing(PAUSE)
_pausing(RESUME)


@table.command(DROP.verb, help=DROP.text)
def table_drop(name: Name, tables: _Directory, yes: Yes, output: OutputFormat) -> None:
    directory = _opened(tables)
    definition = directory.load(name)
    kept = f"its files at {definition.url}"
    if definition.catalog_name:
        kept += f" and its name {definition.catalog_name} in the catalog (DROP TABLE removes that alone)"
    confirm(f"Forget the table {name}? What stays: {kept}.", yes)
    directory.remove(name)
    Output(output).done(f"table {name} is forgotten; what stays: {kept}", {"name": name})


def _passed_on(job: str, text: str) -> click.Command:
    """A command whose arguments are those of a job."""

    def run(
        arguments: Annotated[
            tuple[str, ...], Argument(type=click.UNPROCESSED, required=False, metavar="NAME")
        ],
    ) -> None:
        need_spark()
        from mqspark_jobs.commandline import main

        sys.exit(main([job, *arguments]))

    run.__doc__ = f"{text} `mqspark job run {job} --help` shows the options."
    passing = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}
    return click.command(cls=DeclaredCommand, context_settings=passing, add_help_option=False)(run)


table.add_command(_passed_on("tables", "Keep tables until stopped."), "run")
table.add_command(_passed_on("table-verify", "Compare a table with the log of its topic."), "verify")
table.add_command(_passed_on("table-upkeep", "Compact small files and remove old ones."), "upkeep")


def _opened(tables: str) -> TableDirectory:
    need_spark()
    from mqspark_jobs.tables.tabledefs import TableDirectory

    return TableDirectory(tables)


async def _row(shell: ClusterShell, directory: TableDirectory, each: TableDefinition) -> dict[str, Any]:
    from mqspark_server.scheduler.servedtables import table_row

    is_of_cluster = each.nameserver == shell.namesrv
    lag = await lag_of(shell.admin, each.group, each.topic) if is_of_cluster else None
    return {**msgspec.to_builtins(table_row(directory, each)), "lag": lag}
