"""``mqspark schema``: the schemas of topics, in the schema registry of a cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click

from mqspark.base.textfile import text_of
from mqspark.errors import SchemaRefused
from mqspark.schemas.parsedschema import KINDS, MAX_TEXT_BYTES
from mqspark_server.commands.clustercommand import ClusterShell, noun
from mqspark_server.commands.output import columns
from mqspark_server.commands.parameters import Argument, MaybeName, Name, Option
from mqspark_server.commands.refusals import CommandFailed, Missing
from mqspark_server.survey import schemasurvey

schema = noun("schema", "Schemas of topics.")
T = TypeVar("T")
_LIST = columns("subject", "topic", "type", "version", "id")
_VERSIONS = columns("version", "id", "type")
_OF_BODIES = "-value"
_File = Annotated[str, click.Path(dir_okay=False, allow_dash=True), Argument()]
_Type = Annotated[
    str | None,
    click.Choice(KINDS),
    Option("Its language.  [default: by the name: .avsc, .proto, else JSON]", "--type"),
]
_References = Annotated[
    tuple[str, ...],
    Option(
        "Where a name in the schema is registered. Repeatable.",
        "-r",
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
    ),
]


@schema.command("list")
async def schema_list(
    shell: ClusterShell, pattern: MaybeName, deleted: Annotated[bool, Option("Include deleted subjects.")]
) -> None:
    """List subjects with their newest versions, or those that match PATTERN ('Orders*')."""
    rows = await schemasurvey.subject_rows(shell.admin, deleted=deleted)
    await shell.show_matching(_LIST, rows, pattern)


@schema.command("describe")
async def schema_describe(
    shell: ClusterShell, subject: Name, version: Annotated[str, Option("A number, or latest.")] = "latest"
) -> None:
    """Show a version of SUBJECT, its compatibility level, and all versions."""
    chosen = await _version(shell, subject, version)
    level = await schemasurvey.level_of(shell.admin, subject)
    versions = await schemasurvey.versions_of(shell.admin, subject)
    if not shell.output.is_table:
        shell.output.record({**chosen, "level": level, "versions": [row["version"] for row in versions]})
        return
    text = chosen.pop("schema")
    shell.output.record({**chosen, "level": level})
    shell.output.heading("versions")
    shell.output.rows(_VERSIONS, versions)
    shell.output.heading("schema")
    shell.output.lines(text.splitlines())


@schema.command("register")
async def schema_register(
    shell: ClusterShell,
    subject: Name,
    file: _File,
    kind: _Type,
    references: _References,
    normalize: Annotated[bool, Option("Give what has no order the same order always.")],
) -> None:
    """Register the schema in FILE ('-' is standard input) as the next version of SUBJECT. One that is there already
    keeps its version."""
    body = _body(file, kind, references)
    options = {"normalize": str(normalize).lower()}
    found = await schemasurvey.asked(shell.admin, "register", body, subject=subject, options=options)
    row = {key: found[key] for key in ("subject", "version", "id")}
    if any(name.startswith("OPENLINEAGE") for name in os.environ) and subject.endswith(_OF_BODIES):
        from pyspark_pymq.lineage import tell_of_schema

        topic = subject.removesuffix(_OF_BODIES)
        await asyncio.to_thread(tell_of_schema, shell.namesrv, topic, body["schemaType"], body["schema"])
    shell.output.done(f"{subject}: version {row['version']} has id {row['id']}", row)


@schema.command("check")
async def schema_check(
    shell: ClusterShell,
    subject: Name,
    file: _File,
    kind: _Type,
    references: _References,
    version: Annotated[
        str | None, Option("Compare with this version alone.  [default: as the level of the subject says]")
    ],
) -> None:
    """Check whether the schema in FILE could be the next version of SUBJECT. Exits with 3 if it could not."""
    body = _body(file, kind, references)
    operation = "check_all" if version is None else "check_version"
    found = await schemasurvey.asked(
        shell.admin, operation, body, subject=subject, version=version, options={"verbose": "true"}
    )
    reasons = [str(each) for each in found.get("messages", ())]
    is_good = bool(found["is_compatible"])
    row = {"subject": subject, "compatible": is_good, "reasons": reasons}
    shell.output.done(f"{subject}: the schema is {'' if is_good else 'not '}compatible", row)
    if not is_good:
        shell.output.lines(f"  {reason}" for reason in reasons)
        raise click.exceptions.Exit(Missing.exit_code)


@schema.command("diff")
async def schema_diff(shell: ClusterShell, subject: Name, old: MaybeName, new: MaybeName) -> None:
    """Show what NEW changes in OLD, two versions of SUBJECT; by default the newest and the one before."""
    if old is None:
        versions = await _of(shell, subject, schemasurvey.numbers_of(shell.admin, subject))
        if len(versions) < 2:
            raise CommandFailed(f"{subject} has one version: there is nothing to compare it with")
        old = str(versions[-2])
    pair = [await _version(shell, subject, each) for each in (old, new or "latest")]
    lines = list(schemasurvey.difference(*pair))
    if not shell.output.is_table:
        old_number, new_number = (each["version"] for each in pair)
        shell.output.record({"subject": subject, "old": old_number, "new": new_number, "diff": lines})
    elif lines:
        shell.output.lines(lines)
    else:
        click.echo("(no difference)", err=True)


async def _version(shell: ClusterShell, subject: str, version: str) -> dict[str, Any]:
    return await _of(shell, subject, schemasurvey.version_of(shell.admin, subject, version))


async def _of(shell: ClusterShell, subject: str, asked: Awaitable[T]) -> T:
    """Raises Missing with similar names for a subject that does not exist, otherwise SchemaRefused."""
    try:
        return await asked
    except SchemaRefused as error:
        if error.code != 40401:
            raise
        known = await schemasurvey.asked(shell.admin, "list_subjects")
        raise Missing("subject", subject, known, "mqspark schema list shows all") from None


def _body(file: str, kind: str | None, references: tuple[str, ...]) -> dict[str, Any]:
    """The body of a request. Raises OSError, ConfigError, click.UsageError."""
    with click.open_file(file, "rb") as opened:
        raw = opened.read(MAX_TEXT_BYTES + 1)
    return {
        "schema": text_of(raw, file, MAX_TEXT_BYTES),
        "schemaType": kind or schemasurvey.ENDINGS.get(Path(file).suffix, "JSON"),
        "references": [_reference(each) for each in references],
    }


def _reference(text: str) -> dict[str, Any]:
    name, equals, place = text.partition("=")
    subject, colon, version = place.rpartition(":")
    if not (equals and colon and name and subject and version.isdigit() and len(version) < 10):
        raise click.UsageError(f"--reference {text}: give NAME=SUBJECT:VERSION")
    return {"name": name, "subject": subject, "version": int(version)}
