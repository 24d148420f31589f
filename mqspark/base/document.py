"""JSON objects of the HTTP API, declared as dataclasses: by whoever makes them, without a word of HTTP."""

from __future__ import annotations

from typing import Any, ClassVar


def camel_case(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(map(str.capitalize, more))


class Document:
    """In JSON the fields have names in camel case, and the texts below them describe them."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "alias_generator": camel_case,
        "use_attribute_docstrings": True,
    }
