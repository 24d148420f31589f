"""``serializer=`` of producers and consumers: values to bodies, and back.

A body is what Confluent's serializers write: a zero byte, the id of its schema, for Protobuf the path to its message,
and the payload (``mqspark.schemas.schemaprefix``). The subject of a topic is ``TOPIC-value``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from mqspark.base.bounded import Memo
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.tls import Tls
from mqspark.errors import ConfigError, InvalidMessage, InvalidSchema
from mqspark.schemas.parsedschema import PROTOBUF, Reference, Schema
from mqspark.schemas.schemaprefix import Prefix, decode_prefix, encode_prefix

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

    from mqspark.client.typed.registryclient import RegistryClient
    from mqspark.schemas.payloadvalues import PayloadValues

MAX_SCHEMA_BYTES = 32 << 20
"""Bytes of the texts of the schemas that one serializer keeps."""
MAX_SUBJECTS = 10_000
"""Pairs of a subject and an id that one serializer knows."""


class Serializer:
    """Values of messages by the schemas of a registry. Any number of clients and threads may share one.

    A producer writes with ``schema``, or with the latest version of a topic's subject as of its first message; a
    consumer reads each body with the schema that it names.

    >>> orders = Serializer("http://127.0.0.1:10914")
    >>> with Producer(namesrv, group="shop", serializer=orders) as producer:
    ...     producer.send(Message.of("Orders", value={"id": "A1"}))
    """

    def __init__(
        self,
        registry: str | Sequence[str] | RegistryClient,
        schema: Schema | type[ProtobufMessage] | None = None,
        *,
        register: bool = True,
        credentials: Credentials | Literal[False] | None = None,
        tls: Tls | None = None,
        timeout_ms: int = 30_000,
    ) -> None:
        """``registry``: the URL of a broker's HTTP port or of a console, or several; or their client. ``schema``: of
        ``mqspark.schemas.parsing.parse``, or a class of Protobuf messages; a consumer resolves what it reads to it, or
        gets instances of it. ``register``: it becomes a version of the subject if it is none; False: it must be one.
        ``credentials``: None: those of the environment. Raises ConfigError."""
        # These know the languages of schemas, which programs without a serializer never import.
        from mqspark.client.typed.registeredschemas import RegisteredSchemas
        from mqspark.client.typed.registryclient import RegistryClient
        from mqspark.schemas.payloadvalues import schema_of_file, values_of

        if schema is not None and not isinstance(schema, Schema) and not hasattr(schema, "DESCRIPTOR"):
            raise ConfigError.of(
                "schema",
                "mqspark.schemas.parsing.parse(kind, text), or a class of Protobuf messages, not "
                f"{type(schema).__name__}",
            )
        if not isinstance(registry, RegistryClient):
            registry = RegistryClient(registry, credentials=credentials, tls=tls, timeout_ms=timeout_ms)
        self._schemas = RegisteredSchemas(registry)
        self._text_of, self._values_of = schema_of_file, values_of
        self._schema = schema
        self._register = register
        self._lock = threading.RLock()
        self._values: Memo[int, PayloadValues] = Memo(
            "serializer.schemas",
            self._obtained,
            max_bytes=MAX_SCHEMA_BYTES,
            weigh=lambda _, values: _size(values.schema),
            holds=("Serializer._values",),
        )
        self._subject_ids = set[tuple[str, int]]()
        """Known pairs; at most ``MAX_SUBJECTS``."""
        self._written = dict[str, int]()
        """Subject → id that is written; at most ``MAX_SUBJECTS``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {type(self._schema).__name__ if self._schema else 'any schema'}>"

    # --- writing ----------------------------------------------------------------------------------------

    def can_write(self, topic: str) -> bool:
        """Whether ``write`` need not ask the registry."""
        return self._values.get(self._written.get(subject_of(topic), 0)) is not None

    def write(self, topic: str, value: Any) -> bytes:
        """The body of a value; asks the registry with the first one of a topic. Raises InvalidMessage for a value that
        does not fit the schema; SchemaRefused, NoSchemaRegistry, InvalidSchema, ConfigError without the extra."""
        schema_id = self._written.get(subject_of(topic))
        if schema_id is None:
            schema_id = self.learn_topic(topic)
        values = self._values.get(schema_id) or self._kept(schema_id)
        indexes, payload = values.write(value)
        return encode_prefix(schema_id, indexes) + payload

    def learn_topic(self, topic: str) -> int:
        """The id with which bodies of the topic are written. Raises what ``write`` raises."""
        subject = subject_of(topic)
        with self._lock:
            schema_id = self._written.get(subject)
            if schema_id is None:
                schema_id = self._id_of(subject)
                if len(self._written) >= MAX_SUBJECTS:
                    self._written.clear()
                self._written[subject] = schema_id
                self._note(subject, schema_id)
            self._kept(schema_id)
        return schema_id

    def _id_of(self, subject: str) -> int:
        schema = self._schema
        if schema is None:
            return self._schemas.of_subject(subject)[0]
        if isinstance(schema, Schema):
            return self._schemas.registered(
                subject, schema.kind, schema.text, schema.references, new=self._register
            )
        text, imports = self._text_of(schema.DESCRIPTOR.file)
        references = [self._imported(each) for each in imports]
        return self._schemas.registered(subject, PROTOBUF, text, references, new=self._register)

    def _imported(self, file: Any) -> Reference:
        """A file that a class needs, registered in the subject of its path."""
        text, imports = self._text_of(file)
        references = [self._imported(each) for each in imports]
        subject = file.name.replace("/", ".")
        if self._register:
            self._schemas.registered(subject, PROTOBUF, text, references)
        return Reference(file.name, subject, self._schemas.version_of(subject, PROTOBUF, text, references))

    # --- reading ----------------------------------------------------------------------------------------

    def read(self, topic: str, body: bytes) -> Any:
        """The value of a body; asks the registry with the first one of a schema. Raises InvalidMessage for a body that
        has none; SchemaRefused, NoSchemaRegistry, ConfigError without the extra."""
        schema_id = _id_in(body)
        if (subject_of(topic), schema_id) not in self._subject_ids:
            self._learn(subject_of(topic), schema_id)
        values = self._values.get(schema_id) or self._kept(schema_id)
        prefix = _prefix(body, indexed=values.schema.kind == PROTOBUF)
        return values.read(body[prefix.payload_at :], prefix.indexes)

    def can_read(self, topic: str, body: bytes) -> bool:
        """Whether ``read`` need not ask the registry."""
        prefix = decode_prefix(body)
        if prefix is None:
            return True
        known = (subject_of(topic), prefix.schema_id) in self._subject_ids
        return known and prefix.schema_id in self._values

    def learn_body(self, topic: str, body: bytes) -> None:
        """So that ``read`` need not ask the registry; nothing for a body that has no value. Raises what ``read``
        raises, but for InvalidMessage."""
        try:
            schema_id = _id_in(body)
            self._learn(subject_of(topic), schema_id)
            self._kept(schema_id)
        except InvalidMessage:
            return  # read says so, without a question

    def _learn(self, subject: str, schema_id: int) -> None:
        with self._lock:
            if (subject, schema_id) not in self._subject_ids:
                self._schemas.check_is_of(schema_id, subject)
                self._note(subject, schema_id)

    def _note(self, subject: str, schema_id: int) -> None:
        if len(self._subject_ids) >= MAX_SUBJECTS:
            self._subject_ids.clear()
        self._subject_ids.add((subject, schema_id))

    # --- schemas ----------------------------------------------------------------------------------------

    def _kept(self, schema_id: int) -> PayloadValues:
        with self._lock:
            return self._values[schema_id]

    def _obtained(self, schema_id: int) -> PayloadValues:
        schema = self._schemas.by_id(schema_id)
        try:
            return self._values_of(schema, self._schema)
        except InvalidSchema as error:
            raise self._schemas.refuse(schema_id, error.problem) from None


def subject_of(topic: str) -> str:
    return f"{topic}-value"


def _prefix(body: bytes, *, indexed: bool) -> Prefix:
    """Raises InvalidMessage."""
    try:
        prefix = decode_prefix(body, indexed=indexed)
    except ValueError as error:
        raise InvalidMessage(f"the body does not fit its schema: {error}", field="value") from None
    if prefix is None:
        raise InvalidMessage("the body does not begin with the id of a schema", field="value")
    return prefix


def _id_in(body: bytes) -> int:
    return _prefix(body, indexed=False).schema_id


def _size(schema: Schema) -> int:
    return schema.size_bytes + sum(each.size_bytes for each in schema.all_needed.values())
