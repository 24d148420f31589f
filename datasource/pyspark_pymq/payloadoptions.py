"""The options of typed columns: what bodies are, where their schema is, what becomes of those that do not fit it.

Must not import pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mqspark.arrow.signing import ENVIRONMENT, SigningOptions
from mqspark.errors import ConfigError
from pyspark_pymq.optiontexts import OptionTexts

RAW, ARROW, JSON, AVRO, PROTOBUF = "raw", "arrow", "json", "avro", "protobuf"
PERMISSIVE, DROPMALFORMED, FAILFAST = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
DEADLETTER = "DEADLETTER"
_MODES = (PERMISSIVE, DROPMALFORMED, FAILFAST, DEADLETTER)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_NAME = 100


def payload_format(texts: OptionTexts) -> str:
    return texts.choice("payloadFormat", (RAW, ARROW, JSON, AVRO, PROTOBUF), RAW)


@dataclass(frozen=True, slots=True)
class PayloadOptions:
    """A message is one row with the fields of its body as columns."""

    format: str
    schema: str | None
    """JSON: DDL or a JSON Schema; Avro: the schema's JSON; Protobuf: a .proto."""
    schema_file: str | None
    """The same in a file that the driver reads; Protobuf: or a FileDescriptorSet, under any name but .proto."""
    message: str | None
    """Full name of the Protobuf message; None: the first one."""
    registry: str | None
    """URLs of a schema registry, separated by commas: the next one is asked when one does not answer."""
    registry_keys: SigningOptions | None
    """Whose keys the registry gets; None: nobody's."""
    subject: str | None
    """Under which the registry has the topic's schema."""
    version: int | None
    """None: the latest one."""
    mode: str
    reason_column: str | None
    message_prefix: str
    """What the names of the message's own columns begin with."""

    register: bool = False
    """A write registers the schema of its columns."""

    @classmethod
    def parse_write(cls, texts: OptionTexts) -> PayloadOptions | None:
        """None: rows have their bodies, or become Arrow. Raises ConfigError."""
        register = texts.flag("registerSchema", False)
        return cls._parse(texts, _WRITE_OPTIONS, mode=FAILFAST, reason_column=None, register=register)

    @classmethod
    def parse(cls, texts: OptionTexts) -> PayloadOptions | None:
        """None: bodies are not taken apart, or are Arrow. Raises ConfigError."""
        return cls._parse(
            texts,
            _OPTIONS,
            mode=texts.choice("mode", tuple(each.lower() for each in _MODES), PERMISSIVE).upper(),
            reason_column=texts.text("columnNameOfCorruptRecord") or None,
        )

    @classmethod
    def _parse(cls, texts: OptionTexts, names: Iterable[str], **more: Any) -> PayloadOptions | None:
        """``names``: of options that only bodies with a schema have."""
        kind = payload_format(texts)
        version = texts.text("schemaVersion")
        latest = version is None or version.lower() == "latest"
        parsed = cls(
            format=kind,
            schema=texts.text("payloadSchema") or None,
            schema_file=texts.text("payloadSchemaFile") or None,
            message=texts.text("payloadMessage") or None,
            registry=texts.text("schemaRegistry") or None,
            registry_keys=_registry_keys(texts),
            subject=texts.text("schemaSubject") or None,
            version=None if latest else texts.positive("schemaVersion"),
            message_prefix=texts.text("messagePrefix") or "",
            **more,
        )
        if kind in (RAW, ARROW):
            for name in names:
                if texts.is_given(name):
                    raise ConfigError.of(name, "belongs to payloadFormat=json, avro or protobuf")
            return None
        if parsed.register and (parsed.registry is None or not latest):
            raise ConfigError.of("registerSchema", "needs schemaRegistry, and no schemaVersion")
        parsed._check(texts)
        return parsed

    def _check(self, texts: OptionTexts) -> None:
        for name in ("columnNameOfCorruptRecord", "messagePrefix"):
            value = texts.text(name)
            if value and (len(value) > _MAX_NAME or not _NAME.fullmatch(value)):
                raise ConfigError.of(name, f"letters, digits and _, not {value[:_MAX_NAME]!r}")
        given = [
            name for name in ("payloadSchema", "payloadSchemaFile", "schemaRegistry") if texts.is_given(name)
        ]
        if len(given) > 1:
            raise ConfigError.of(given[1], f"contradicts {given[0]}; give one of them")
        if self.registry is None:
            for name in ("schemaSubject", "schemaVersion", *_OF_KEYS):
                if texts.is_given(name):
                    raise ConfigError.of(name, "belongs to schemaRegistry")
        else:
            _check_urls(self.registry)
        if self.format != PROTOBUF and self.message is not None:
            raise ConfigError.of("payloadMessage", "belongs to payloadFormat=protobuf")
        if self.format != JSON and not given:
            raise ConfigError.of(
                "payloadSchema",
                f"required with payloadFormat={self.format}, or payloadSchemaFile, or schemaRegistry",
            )


def _registry_keys(texts: OptionTexts) -> SigningOptions | None:
    """Raises ConfigError."""
    choice = texts.choice("schemaCredentials", ("cluster", "none"), "cluster")
    own = texts.registry_signing()
    if own == ENVIRONMENT:
        return None if choice == "none" else texts.signing()
    if texts.is_given("schemaCredentials"):
        raise ConfigError.of("schemaCredentials", "contradicts the keys of the registry")
    return own


def _check_urls(registry: str) -> None:
    """Raises ConfigError."""
    from mqspark.client.typed.registryclient import checked_urls

    try:
        checked_urls(registry)
    except ConfigError as error:
        raise ConfigError.of("schemaRegistry", f"{str(error).removeprefix('registry: ')}") from None


_OF_KEYS = ("schemaCredentials", "schemaAccessKey", "schemaSecretKey", "schemaCredentialsFile")
_WRITE_OPTIONS = (
    "payloadSchema",
    "payloadSchemaFile",
    "schemaRegistry",
    "schemaSubject",
    "schemaVersion",
    *_OF_KEYS,
    "payloadMessage",
    "registerSchema",
    "messagePrefix",
)
_OPTIONS = (
    "payloadSchema",
    "payloadSchemaFile",
    "payloadMessage",
    "schemaRegistry",
    "schemaSubject",
    "schemaVersion",
    *_OF_KEYS,
    "mode",
    "columnNameOfCorruptRecord",
    "messagePrefix",
)
