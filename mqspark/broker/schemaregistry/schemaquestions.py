"""A question to the schema registry, read: the operation, what path and query say, and the schema in its body.

Numbers of errors are Confluent's. Must not know what is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from mqspark.base.logs import printable
from mqspark.base.names import is_sound
from mqspark.errors import Picklable
from mqspark.message import parse_number
from mqspark.protocol.headers.admin_headers import SchemaRequestHeader
from mqspark.protocol.schemaoperations import MAX_SCHEMA_BODY_BYTES, OPERATIONS, Operation
from mqspark.schemas.parsedschema import AVRO, KINDS, MAX_REFERENCES, Reference

MAX_OPTIONS_LENGTH = 4_096
LATEST = -1
_MAX_VERSION = (1 << 31) - 1
_CONTEXTS = (":.", ":*:")
_ALL_SUBJECTS = (":.:", ":*:")
"""What stands in front of a name: the context without a name, or any."""


class SchemaProblem(Picklable, Exception):
    """The answer is an error: ``code`` is the number that clients read."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def invalid_schema(text: str) -> SchemaProblem:
    return SchemaProblem(422, 42201, text)


class RegistryAnswer(NamedTuple):
    """``document``: to be written as JSON; bytes are the text of a schema as it is."""

    document: object
    status: int = 200


class WantedSchema(NamedTuple):
    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    version: int = 0
    """The number that the next version shall have; 0: whatever it is."""


class RegistryQuestion(NamedTuple):
    operation: Operation
    subject: str
    options: Mapping[str, str]
    fields: Mapping[str, Any]
    """The fields of the body."""
    may_read: Callable[[str], bool]
    """Whether the caller may read a subject."""
    version_text: str = ""
    id_text: str = ""

    def is_on(self, option: str) -> bool:
        """Raises SchemaProblem."""
        text = self.options.get(option, "").lower()
        if text in ("", "false"):
            return False
        if text == "true":
            return True
        raise SchemaProblem(422, 422, f"{option}={printable(text, 40)} is neither true nor false")

    def whole(self, option: str, default: int) -> int:
        """Raises SchemaProblem."""
        text = self.options.get(option)
        if text is None:
            return default
        number = LATEST if text == str(LATEST) else parse_number(text)
        if number is None:
            raise SchemaProblem(422, 422, f"{option}={printable(text, 40)} is no number")
        return number

    def word(self, name: str) -> str:
        """A field of the body that is one of several words, in capitals."""
        value = self.fields.get(name)
        return value.upper() if isinstance(value, str) else ""

    @property
    def prefix(self) -> str:
        """With which the wanted subjects begin."""
        given = self.options.get("subjectPrefix", "")
        for context in _ALL_SUBJECTS:
            if given.startswith(context):
                return given.removeprefix(context)
        return given

    @property
    def version(self) -> int:
        """LATEST for the newest. Raises SchemaProblem."""
        if self.version_text in ("latest", str(LATEST)):
            return LATEST
        number = parse_number(self.version_text)
        if number is None or not 0 < number <= _MAX_VERSION:
            raise SchemaProblem(
                422,
                42202,
                f"The specified version '{printable(self.version_text, 40)}' is not a valid version id. Allowed values"
                ' are between [1, 2^31-1] and the string "latest"',
            )
        return number

    @property
    def id(self) -> int:
        """Raises SchemaProblem."""
        number = parse_number(self.id_text)
        if number is None or not 0 < number <= _MAX_VERSION:
            raise SchemaProblem(404, 40403, f"Schema {printable(self.id_text, 40)} not found")
        return number

    @property
    def schema(self) -> WantedSchema:
        """Raises SchemaProblem."""
        fields = self.fields
        kind, text = fields.get("schemaType") or AVRO, fields.get("schema")
        if kind not in KINDS:
            raise invalid_schema(f"schemaType is none of {', '.join(KINDS)}")
        if not isinstance(text, str) or not text:
            raise invalid_schema("the body has no schema")
        for unknown in ("metadata", "ruleSet"):
            if fields.get(unknown):
                raise invalid_schema(f"this registry keeps no {unknown}: leave it out")
        if _whole(fields, "id") > 0:
            raise SchemaProblem(422, 42205, "ids are given by the registry: leave id out")
        return WantedSchema(
            kind, text, _references(fields.get("references")), max(0, _whole(fields, "version"))
        )


def read_question(
    header: SchemaRequestHeader, body: bytes | memoryview, code: int, may_read: Callable[[str], bool]
) -> RegistryQuestion:
    """``code``: of the request. ``may_read`` is asked at once for the subjects that the body refers to. Raises
    SchemaProblem."""
    operation = OPERATIONS.get(header.operation)
    if operation is None or operation.code != code:
        raise SchemaProblem(404, 404, f"there is no operation {printable(header.operation, 40)}")
    options = header.options or ""
    if len(options) > MAX_OPTIONS_LENGTH:
        raise SchemaProblem(422, 422, f"the query is longer than {MAX_OPTIONS_LENGTH} characters")
    subject = header.schema_subject or ""
    if "{subject}" in operation.path:
        check_subject(subject)
    fields = _fields(body) if operation.method in ("POST", "PUT") else {}
    for each in _references(fields.get("references")):
        if not may_read(each.subject):
            raise SchemaProblem(403, 40301, f"User is denied operation Read on Subject: {each.subject}")
    return RegistryQuestion(
        operation,
        subject,
        dict(parse_qsl(options, keep_blank_values=True)),
        fields,
        may_read,
        header.version or "",
        header.id or "",
    )


def check_subject(subject: str) -> None:
    """Raises SchemaProblem."""
    if not subject or subject != subject.strip() or not is_sound(subject):
        raise SchemaProblem(
            422,
            42208,
            f"The specified subject '{printable(subject, 60)}' is not a valid: a name has up to 255 characters, no"
            " control characters, slash or @",
        )
    if subject.startswith(_CONTEXTS):
        raise SchemaProblem(422, 42208, "this registry has one context: leave it out of the subject")


def _fields(body: bytes | memoryview) -> Mapping[str, Any]:
    if len(body) > MAX_SCHEMA_BODY_BYTES:
        raise invalid_schema(f"the request has {len(body)} bytes, more than {MAX_SCHEMA_BODY_BYTES}")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SchemaProblem(422, 422, f"the body is no JSON object: {error}") from None


def _whole(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value > _MAX_VERSION:
        raise invalid_schema(f"{name} is no number that it can be")
    return value


class _GivenReference(msgspec.Struct):
    name: str
    subject: str
    version: int


def _references(given: object) -> tuple[Reference, ...]:
    try:
        found = msgspec.convert(given or [], list[_GivenReference])
    except msgspec.ValidationError as error:
        raise invalid_schema(f"references: {error}") from None
    if len(found) > MAX_REFERENCES:
        raise invalid_schema(f"{len(found)} references, more than {MAX_REFERENCES}")
    for each in found:
        check_subject(each.subject)
    return tuple(Reference(each.name, each.subject, each.version) for each in found)
