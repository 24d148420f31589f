"""A schema registry as a reader needs it: the schema of a subject, and the schema that a body names.

The API is Confluent's Schema Registry. An id is one schema for ever, so answers are remembered.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from mqspark.errors import ConfigError, InvalidSchema
from mqspark.schemas.parsedschema import AVRO, MAX_TOTAL_BYTES, Reference, Schema
from mqspark.schemas.parsing import parse

_TIMEOUT_S = 30
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_MAX_REASON_BYTES = 1 << 20
_MAX_DEPTH = 20
"""References inside each other."""
_MAX_REQUESTS = 2_000
"""The requests of one task: a body can name any id, and references any schema."""


class Registry:
    def __init__(self, url: str, kind: str) -> None:
        """``kind``: AVRO, JSON or PROTOBUF; a schema of another one is refused."""
        self._url = url.rstrip("/")
        self._kind = kind
        self._requests = 0

    def of_subject(self, subject: str, version: int | None) -> tuple[int, Schema]:
        """A version of a subject, None the latest one, and its id. Raises ConfigError."""
        try:
            found = self._get(f"/subjects/{_quoted(subject)}/versions/{version or 'latest'}")
            return _id(found), self._schema(found)
        except InvalidSchema as error:
            raise ConfigError(f"schemaRegistry: {subject}: {error.problem}", key="schemaRegistry") from None

    def registered(self, subject: str, text: str) -> int:
        """The id of a schema, which is a new version of the subject if it is not one yet. Raises ConfigError, also if
        the registry refuses it."""
        try:
            return _id(self._get(f"/subjects/{_quoted(subject)}/versions", self._posted(text)))
        except InvalidSchema as error:
            raise ConfigError(f"registerSchema: {subject}: {error.problem}", key="registerSchema") from None

    def _posted(self, text: str) -> dict[str, str]:
        return {"schema": text} if self._kind == AVRO else {"schema": text, "schemaType": self._kind}

    def by_id(self, number: int, subject: str) -> Schema:
        """The schema of an id. Raises InvalidSchema if there is none, or it is not one of the subject's; ConfigError if
        the registry does not answer."""
        self.check_subject(number, subject)
        return self._schema(self._get(f"/schemas/ids/{number}"))

    def check_subject(self, number: int, subject: str) -> None:
        """Raises like ``by_id``."""
        versions = self._get(f"/schemas/ids/{number}/versions")
        if not isinstance(versions, list) or all(each.get("subject") != subject for each in versions):
            raise InvalidSchema(f"it is not a schema of {subject}", kind=self._kind)

    def _schema(self, found: Any, depth: int = 0) -> Schema:
        if depth > _MAX_DEPTH:
            raise InvalidSchema(f"references are more than {_MAX_DEPTH} deep", kind=self._kind)
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise ConfigError(f"schemaRegistry: {self._url} is no schema registry", key="schemaRegistry")
        if (kind := found.get("schemaType") or AVRO) != self._kind:
            raise InvalidSchema(f"it is a schema of type {kind}, not {self._kind}", kind=self._kind)
        needed = []
        for each in found.get("references") or ():
            reference = Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
            inner = self._get(f"/subjects/{_quoted(reference.subject)}/versions/{reference.version}")
            needed.append((reference, self._schema(inner, depth + 1)))
        return parse(self._kind, found["schema"], needed)

    def _get(self, path: str, posted: object = None) -> Any:
        self._requests += 1
        if self._requests > _MAX_REQUESTS:
            raise InvalidSchema(
                f"the schemas of one read need more than {_MAX_REQUESTS} requests", kind=self._kind
            )
        url = self._url + path
        data = None if posted is None else json.dumps(posted).encode()
        request = urllib.request.Request(url, data, {"Content-Type": _CONTENT_TYPE})  # noqa: S310 - checked to be http
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                body = answer.read(2 * MAX_TOTAL_BYTES)
            return json.loads(body)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (404, 409, 422):
                    raise InvalidSchema(_why(error), kind=self._kind) from None
                raise ConfigError(
                    f"schemaRegistry: {url} answers {error.code} {error.reason}", key="schemaRegistry"
                ) from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"schemaRegistry: {url}: {error}", key="schemaRegistry") from None


def _why(error: urllib.error.HTTPError) -> str:
    """What the registry says."""
    if error.code == 404:
        return "the registry has no such schema"
    try:
        return str(json.loads(error.read(_MAX_REASON_BYTES))["message"])
    except (OSError, ValueError, LookupError, TypeError):
        return f"the registry refuses it with {error.code} {error.reason}"


def _id(found: Any) -> int:
    if not isinstance(found, dict) or not isinstance(found.get("id"), int):
        raise ConfigError("schemaRegistry: its answer has no id", key="schemaRegistry")
    return int(found["id"])


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")
