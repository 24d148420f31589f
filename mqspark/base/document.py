"""JSON objects of the HTTP API, declared as dataclasses: by whoever makes them, without a word of HTTP."""

from __future__ import annotations

from typing import Any, ClassVar


def camel_case(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(map(str.capitalize, more))


class Document:
    """In JSON the fields have names in camel case. The ``description`` of their metadata is in the API's document."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"alias_generator": camel_case}
