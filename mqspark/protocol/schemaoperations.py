"""What a schema registry can be asked: the operations of Confluent's Schema Registry, each once.

A request names an operation and has what the path and the query of HTTP say; its body is that of HTTP, JSON. The answer
has the HTTP status in a field, and the JSON in its body. HTTP servers, the table of rights and the registry itself are
made of this list.

Must not know what an operation does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from mqspark.protocol.codes import RequestCode

STATUS_FIELD = "status"
"""The field of an answer with the HTTP status."""
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
DELETED = {"deleted": "true"}
"""The option of a question that counts what was deleted."""
MAX_SCHEMA_BODY_BYTES = 4 << 20
"""The most of a request. A schema has 1 MiB at most; JSON may need several characters for one of a text."""
_OF_TOPICS = ("-value", "-key")


class Right(StrEnum):
    """What a caller has to be allowed."""

    READ = "read"
    """Get, Sub or Pub on the topic of the subject."""
    REGISTER = "register"
    """Pub on the topic of the subject."""
    CHANGE = "change"
    """Update on the topic of the subject."""
    DELETE = "delete"
    """Delete on the topic of the subject."""
    READ_SOME = "read some"
    """As READ; the answer has only what its caller may read."""
    READ_ALL = "read all"
    """Nothing: it shows no schema and no subject."""
    CHANGE_ALL = "change all"
    """Update on the cluster."""


class Operation(NamedTuple):
    name: str
    method: str
    path: str
    right: Right
    text: str

    @property
    def code(self) -> RequestCode:
        reads = (Right.READ, Right.READ_SOME, Right.READ_ALL)
        return RequestCode.READ_SCHEMAS if self.right in reads else RequestCode.CHANGE_SCHEMAS


_SUBJECT = "/subjects/{subject}"
_VERSION = f"{_SUBJECT}/versions/{{version}}"
_ID = "/schemas/ids/{id}"

_ROWS = (
    Operation("list_subjects", "GET", "/subjects", Right.READ_SOME, "The names of all subjects"),
    Operation("find_schema", "POST", _SUBJECT, Right.READ, "Id and version of a schema in a subject"),
    Operation(
        "delete_subject", "DELETE", _SUBJECT, Right.DELETE, "Delete a subject, or for good what is deleted"
    ),
    Operation(
        "list_versions", "GET", f"{_SUBJECT}/versions", Right.READ, "The numbers of a subject's versions"
    ),
    Operation(
        "register", "POST", f"{_SUBJECT}/versions", Right.REGISTER, "Register a schema as the next version"
    ),
    Operation("get_version", "GET", _VERSION, Right.READ, "One version, or `latest`"),
    Operation(
        "delete_version",
        "DELETE",
        _VERSION,
        Right.DELETE,
        "Delete a version, or for good one that is deleted",
    ),
    Operation("get_version_text", "GET", f"{_VERSION}/schema", Right.READ, "The schema of a version, alone"),
    Operation(
        "list_referrers", "GET", f"{_VERSION}/referencedby", Right.READ, "The ids of schemas that refer to it"
    ),
    Operation("list_schemas", "GET", "/schemas", Right.READ_SOME, "All versions of all subjects"),
    Operation("list_types", "GET", "/schemas/types", Right.READ_ALL, "The languages of schemas"),
    Operation("get_schema", "GET", _ID, Right.READ_SOME, "The schema of an id"),
    Operation("get_schema_text", "GET", f"{_ID}/schema", Right.READ_SOME, "The schema of an id, alone"),
    Operation(
        "list_id_subjects", "GET", f"{_ID}/subjects", Right.READ_SOME, "The subjects that have the schema"
    ),
    Operation(
        "list_id_versions", "GET", f"{_ID}/versions", Right.READ_SOME, "The versions that are the schema"
    ),
    Operation(
        "get_rule", "GET", "/config", Right.READ_ALL, "The compatibility level of subjects without their own"
    ),
    Operation("set_rule", "PUT", "/config", Right.CHANGE_ALL, "Set it"),
    Operation("remove_rule", "DELETE", "/config", Right.CHANGE_ALL, "Make it BACKWARD again"),
    Operation(
        "get_subject_rule", "GET", "/config/{subject}", Right.READ, "The compatibility level of a subject"
    ),
    Operation("set_subject_rule", "PUT", "/config/{subject}", Right.CHANGE, "Set it"),
    Operation(
        "remove_subject_rule", "DELETE", "/config/{subject}", Right.CHANGE, "Let it be that of all again"
    ),
    Operation(
        "get_mode", "GET", "/mode", Right.READ_ALL, "Whether schemas may be changed: READWRITE or READONLY"
    ),
    Operation("set_mode", "PUT", "/mode", Right.CHANGE_ALL, "Set it"),
    Operation("remove_mode", "DELETE", "/mode", Right.CHANGE_ALL, "Make it READWRITE again"),
    Operation("get_subject_mode", "GET", "/mode/{subject}", Right.READ, "The mode of a subject"),
    Operation("set_subject_mode", "PUT", "/mode/{subject}", Right.CHANGE, "Set it"),
    Operation(
        "remove_subject_mode", "DELETE", "/mode/{subject}", Right.CHANGE, "Let it be that of all again"
    ),
    Operation(
        "check_all",
        "POST",
        "/compatibility/subjects/{subject}/versions",
        Right.READ,
        "Whether a schema could be the next version",
    ),
    Operation(
        "check_version",
        "POST",
        "/compatibility/subjects/{subject}/versions/{version}",
        Right.READ,
        "Whether a schema is compatible with one version",
    ),
    Operation("list_contexts", "GET", "/contexts", Right.READ_ALL, "The contexts: one, without a name"),
)

OPERATIONS: dict[str, Operation] = {row.name: row for row in _ROWS}


def topic_of(subject: str) -> str:
    """The topic whose rights apply to a subject (TopicNameStrategy): ``Orders-value`` is of ``Orders``; any other is of
    the topic of its own name."""
    for ending in _OF_TOPICS:
        if subject.endswith(ending) and subject != ending:
            return subject.removesuffix(ending)
    return subject
