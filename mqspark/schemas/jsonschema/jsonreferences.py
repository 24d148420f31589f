"""What ``$ref`` means in a JSON Schema and in the schemas that it needs: by pointer, anchor, ``$id`` or name.

Nothing is fetched: what no document here has is refused. The meta-schemas of JSON Schema itself are known to the
validator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.parsedschema import JSON, MAX_NAME_LENGTH

NO_BASE = ""
"""Where a document without ``$id`` is; ``_THEIR_BASE`` says the validator."""
_THEIR_BASE = "json-schema:///"
_META = ("http://json-schema.org/", "https://json-schema.org/")
_ANCHORS = ("$anchor", "$dynamicAnchor")

Node = Any
"""A schema: an object, or true or false."""
ANYTHING: Node = {}
"""Stands for a meta-schema."""


class Documents:
    """A schema and those that it needs, by name."""

    def __init__(self, root: Node, needed: Mapping[str, Node]) -> None:
        self._bases = dict[int, str]()
        """The base URI of every object, by identity."""
        self._places = dict[str, Node]()
        """Schemas by URI; one with an anchor has it behind "#"."""
        self._dynamic = dict[str, list[Node]]()
        self._needed = needed
        for name, document in ((NO_BASE, root), *needed.items()):
            self._places.setdefault(name, document)
            self._enter(document, name)

    def _enter(self, document: Node, base: str) -> None:
        waiting = [(document, base)]
        while waiting:
            node, base = waiting.pop()
            if isinstance(node, list):
                waiting += [(each, base) for each in node]
            if not isinstance(node, dict):
                continue
            own = node.get("$id", node.get("id"))
            if isinstance(own, str) and own.startswith("#"):
                self._places.setdefault(base + own, node)
            elif isinstance(own, str):
                base = urldefrag(_joined(base, own)).url
                if len(base) > MAX_NAME_LENGTH:
                    raise SchemaTooLarge("letters of a URI", MAX_NAME_LENGTH, kind=JSON)
                self._places.setdefault(base, node)
            for keyword in _ANCHORS:
                if isinstance(anchor := node.get(keyword), str):
                    self._places.setdefault(f"{base}#{anchor}", node)
                    if keyword == "$dynamicAnchor":
                        self._dynamic.setdefault(anchor, []).append(node)
            if node.get("$recursiveAnchor") is True:
                self._dynamic.setdefault("", []).append(node)
            self._bases[id(node)] = base
            waiting += [(each, base) for each in node.values()]

    def document(self, uri: str) -> Node:
        """Raises InvalidSchema."""
        uri = uri.removeprefix(_THEIR_BASE).removesuffix("#")
        if uri in self._places:
            return self._places[uri]
        for name, document in self._needed.items():
            if uri == name or uri.endswith("/" + name.removeprefix("./").lstrip("/")):
                return document
        if uri.startswith(_META):
            return ANYTHING
        raise InvalidSchema(f"{uri[:200]!r} is none of the references", kind=JSON)

    def targets(self, node: dict[str, Any]) -> Iterator[Node]:
        """The schemas that the references of a schema itself may mean. Raises InvalidSchema."""
        base = self._bases.get(id(node), NO_BASE)
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            reference = node.get(keyword)
            if not isinstance(reference, str):
                continue
            yield self._target(reference, base)
            if keyword != "$ref":
                yield from self._dynamic.get(urldefrag(reference).fragment, ())

    def _target(self, reference: str, base: str) -> Node:
        uri, fragment = urldefrag(_joined(base, reference))
        if fragment and not fragment.startswith("/"):
            place = self._places.get(f"{uri}#{unquote(fragment)}")
            if place is None:
                raise InvalidSchema(f"the reference {reference[:200]!r} leads nowhere", kind=JSON)
            return place
        found = self.document(uri)
        if found is ANYTHING:
            return found
        for step in fragment.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isascii() and step.isdigit() and int(step[:9]) < len(found):
                found = found[int(step)]
            else:
                raise InvalidSchema(f"the reference {reference[:200]!r} leads nowhere", kind=JSON)
        return found


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):  # urljoin loses it behind a base such as urn:x
        return urldefrag(base).url + reference
    try:
        return urljoin(base, reference)
    except ValueError as error:
        raise InvalidSchema(f"the reference {reference[:200]!r} is no URI: {error}", kind=JSON) from None
