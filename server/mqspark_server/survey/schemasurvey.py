"""The schemas of a cluster, as the command line and the console show them.

Must not know who shows them.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from mqspark.client.admin import AdminClient
from mqspark.errors import InvalidMessage, MQError, ProtocolError, SchemaRefused
from mqspark.message import MessageExt
from mqspark.protocol.schemaoperations import DELETED, topic_of
from mqspark.schemas.parsedschema import AVRO, PROTOBUF, Reference
from mqspark.schemas.schemaprefix import decode_prefix
from mqspark_server.shown.bodies.bodyviews import KnownSchema

Row = dict[str, Any]
PAGE_ENTRIES = 200
"""Versions in one request."""
MAX_SCHEMAS = 20
"""Looked up for one page of messages."""
ENDINGS = {".avsc": AVRO, ".proto": PROTOBUF}
"""The endings of files; the language of all others is told."""


async def asked(admin: AdminClient, operation: str, body: Row | None = None, **place: Any) -> Any:
    """The answer as an object. Raises SchemaRefused, and what ``ask_schemas`` raises."""
    content = b"" if body is None else json.dumps(body).encode()
    answer = await admin.ask_schemas(operation, body=content, **place)
    try:
        document = json.loads(answer.body)
    except ValueError:
        raise ProtocolError("the answer of the schema registry is no JSON") from None
    if answer.status >= 300:
        problem = document if isinstance(document, dict) else {}
        code = problem.get("error_code")
        raise SchemaRefused(
            str(problem.get("message", "")), answer.status, code if isinstance(code, int) else answer.status
        )
    return document


async def subject_rows(admin: AdminClient, *, deleted: bool) -> list[Row]:
    """One row a subject, by its newest version."""
    rows: list[Row] = []
    while True:
        options = {
            "latestOnly": "true",
            "deleted": str(deleted).lower(),
            "offset": str(len(rows)),
            "limit": str(PAGE_ENTRIES),
        }
        page = await asked(admin, "list_schemas", options=options)
        rows += [
            {
                "subject": each["subject"],
                "topic": topic_of(each["subject"]),
                "type": each.get("schemaType", AVRO),
                "version": each["version"],
                "id": each["id"],
            }
            for each in page
        ]
        if len(page) < PAGE_ENTRIES:
            return rows


async def level_of(admin: AdminClient, subject: str) -> str:
    options = {"defaultToGlobal": "true"}
    answer = await asked(admin, "get_subject_rule", subject=subject, options=options)
    return str(answer["compatibilityLevel"])


async def version_of(admin: AdminClient, subject: str, version: int | str) -> Row:
    """With the text of the schema, readable. Raises SchemaRefused."""
    return _row(await asked(admin, "get_version", subject=subject, version=version))


async def numbers_of(admin: AdminClient, subject: str) -> list[int]:
    """The numbers of the versions of a subject, in ascending order. Raises SchemaRefused."""
    found: list[int] = await asked(admin, "list_versions", subject=subject)
    return found


async def versions_of(admin: AdminClient, subject: str) -> list[Row]:
    """All versions of a subject, the newest first. Raises SchemaRefused."""
    numbers = await numbers_of(admin, subject)
    return [await version_of(admin, subject, number) for number in reversed(numbers)]


def _row(answer: Row) -> Row:
    kind = answer.get("schemaType", AVRO)
    return {
        "subject": answer["subject"],
        "version": answer["version"],
        "id": answer["id"],
        "type": kind,
        "references": [
            f"{each['name']} = {each['subject']} version {each['version']}"
            for each in answer.get("references", ())
        ],
        "schema": readable(kind, answer["schema"]),
    }


def readable(kind: str, text: str) -> str:
    """A schema with lines."""
    if kind == PROTOBUF:
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def difference(old: Row, new: Row) -> Iterator[str]:
    """The lines of a unified diff of two versions; none if they are the same."""
    before, after = (f"{each['subject']} version {each['version']}" for each in (old, new))
    return difflib.unified_diff(
        old["schema"].splitlines(), new["schema"].splitlines(), before, after, lineterm=""
    )


async def schemas_of(admin: AdminClient, messages: Iterable[MessageExt]) -> dict[int, KnownSchema]:
    """The schemas that bodies name by their ids. One that cannot be had is left out: the body is shown without."""
    ids: list[int] = []
    for message in messages:
        with contextlib.suppress(InvalidMessage):
            prefix = decode_prefix(message.body or b"")
            if prefix is not None and prefix.schema_id not in ids and len(ids) < MAX_SCHEMAS:
                ids.append(prefix.schema_id)
    found: dict[int, KnownSchema] = {}
    for schema_id in ids:
        try:
            answer = await asked(admin, "get_schema", schema_id=schema_id)
            found[schema_id] = await _known(admin, answer, {})
        except SchemaRefused:
            continue
        except MQError:
            break
    return found


async def _known(admin: AdminClient, answer: Row, seen: dict[tuple[str, int], KnownSchema]) -> KnownSchema:
    """With the schemas that it refers to, and theirs: as many as one page may look up. Raises SchemaRefused."""
    needed = []
    for each in answer.get("references", ()):
        place = each["subject"], each["version"]
        if place not in seen:
            if len(seen) >= MAX_SCHEMAS:
                break
            version = await asked(admin, "get_version", subject=place[0], version=place[1], options=DELETED)
            seen[place] = await _known(admin, version, seen)
        needed.append((Reference(each["name"], *place), seen[place]))
    return KnownSchema(answer.get("schemaType", AVRO), answer["schema"], tuple(needed))
