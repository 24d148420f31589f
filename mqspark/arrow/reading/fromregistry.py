"""``schema=FromRegistry(url)`` of a read: columns of a topic's schema in a schema registry.

Must not know messages.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

from mqspark.arrow.payload.bodyrows import BodyDecoder
from mqspark.arrow.reading.registrybodies import RegistryBodies
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.tls import Tls
from mqspark.client.typed.registeredschemas import RegisteredSchemas
from mqspark.client.typed.registryclient import RegistryClient
from mqspark.client.typed.serializer import subject_of
from mqspark.errors import ConfigError, InvalidSchema
from mqspark.schemas.avro.avroschema import AvroSchema
from mqspark.schemas.jsonschema.jsonschemas import JsonSchema
from mqspark.schemas.parsedschema import Schema
from mqspark.schemas.protobuf.protoschema import ProtobufSchema


class FromRegistry:
    """The schema of a topic in a schema registry. The version is chosen when it is first used, and stays.

    >>> mqspark.arrow.read("127.0.0.1:9876", "Orders", schema=FromRegistry("http://127.0.0.1:10914"))
    """

    def __init__(
        self,
        registry: str | Sequence[str] | RegistryClient,
        *,
        version: int | None = None,
        subject: str | None = None,
        message: str | None = None,
        credentials: Credentials | Literal[False] | None = None,
        tls: Tls | None = None,
    ) -> None:
        """``registry``: the URL of a broker's HTTP port or of a console, or several. ``version``: of the subject, None
        the latest one. ``subject``: None: ``TOPIC-value``. ``message``: full name of a Protobuf message, None the first
        of the file. ``credentials``: None: those of the environment. Raises ConfigError."""
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 1):
            raise ConfigError.of("version", f"a whole number from 1 on, not {version!r:.40}")
        if not isinstance(registry, RegistryClient):
            registry = RegistryClient(registry, credentials=credentials, tls=tls)
        self._schemas = RegisteredSchemas(registry)
        self._version = version
        self._subject = subject
        self._message = message
        self._chosen = dict[str, Schema]()
        """The version of each subject that was asked for: one a topic."""
        self._lock = threading.Lock()

    def decoder(self, topics: Sequence[str]) -> BodyDecoder:
        """For bodies of a topic. Raises ConfigError unless one topic or a subject is named; InvalidSchema for a schema
        without columns; SchemaRefused, NoSchemaRegistry."""
        if self._subject is None and len(topics) != 1:
            raise ConfigError.of("schema", "FromRegistry needs a subject unless one topic is read")
        subject = self._subject or subject_of(topics[0])
        with self._lock:
            if subject not in self._chosen:
                self._chosen[subject] = self._schemas.of_subject(subject, self._version)[1]
            schema = self._chosen[subject]
        bodies = RegistryBodies(self._schemas, subject)
        if isinstance(schema, AvroSchema):
            return bodies.avro(schema.root)
        if isinstance(schema, JsonSchema):
            from mqspark.arrow.payload.jsonschemacolumns import columns_of_json

            return bodies.json(columns_of_json(schema))
        if not isinstance(schema, ProtobufSchema):
            raise InvalidSchema("it has no columns", kind=schema.kind)
        name = self._message or schema.message_name(())
        if name not in schema.types or not schema.types[name].is_message:
            raise ConfigError.of("message", f"the schema has no message {name[:200]!r}")
        return bodies.protobuf(schema.pool.FindMessageTypeByName(name))
