"""/docs: the HTTP API on one page, made of its own OpenAPI document. It loads nothing from other hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from mqspark_server.console.rendering import HEADERS, HTML, render
from mqspark_server.web.api import described_api

MAX_APIDOCS_DEPTH = 4
Entry = dict[str, Any]


def docs_router(links: Sequence[tuple[str, str]], document: Callable[[Request], Entry]) -> APIRouter:
    """The page about the API that ``document`` describes."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs(request: Request) -> Response:
        described = ApiPage(await asyncio.to_thread(document, request)).values()
        values = {"section": "HTTP API", "place": "", "visitor": None, "links": links, **described}
        return Response(await asyncio.to_thread(render, "docs.html", values), 200, HEADERS, HTML)

    return router


def brokers_docs(links: Sequence[tuple[str, str]]) -> APIRouter:
    """The page in a process that is no broker, about the API that every broker has; and its document."""
    document = cache(lambda: described_api().openapi())
    router = docs_router(links, lambda request: document())

    @router.get("/openapi.json")
    async def openapi() -> JSONResponse:
        return JSONResponse(await asyncio.to_thread(document), headers=HEADERS)

    return router


class ApiPage:
    """What the page shows of an OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def values(self) -> Entry:
        nouns: dict[str, list[Entry]] = {}
        for path, operations in self._document["paths"].items():
            for method, operation in operations.items():
                noun = (operation.get("tags") or ["more"])[0]
                nouns.setdefault(noun, []).append(self._operation(path, method, operation))
        return {"nouns": nouns, **{key: self._document["info"][key] for key in ("title", "version")}}

    def _operation(self, path: str, method: str, operation: Mapping[str, Any]) -> Entry:
        answers, problems = [], []
        for status, answer in operation["responses"].items():
            if status < "400":
                answers += [(status, *each) for each in self._contents(answer) or [("", [])]]
            else:
                problems.append((status, answer["description"]))
        parameters = [
            self._field(each["name"], each.get("schema", {}), each)
            for each in operation.get("parameters", ())
        ]
        return {
            "id": f"{method}-{path.strip('/').replace('/', '-').replace('{', '').replace('}', '')}",
            "method": method.upper(),
            "path": path,
            "text": " ".join(operation.get("description", operation.get("summary", "")).split()),
            "parameters": parameters,
            "bodies": self._contents(operation.get("requestBody", {})),
            "answers": answers,
            "problems": sorted(problems),
        }

    def _contents(self, body: Mapping[str, Any]) -> list[tuple[str, list[Entry]]]:
        """The fields of a body, by its media types."""
        found = body.get("content", {}).items()
        return [(kind, list(self._fields(each.get("schema", {})))) for kind, each in found]

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        reference = schema.get("$ref")
        if reference is None:
            return schema
        found: Mapping[str, Any] = self._document["components"]["schemas"][reference.rpartition("/")[2]]
        return found

    def _fields(self, schema: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[Entry]:
        """Every field, those of objects inside as ``outer.inner``, those of lists as ``outer[].inner``."""
        schema = self._resolved(schema)
        for each in schema.get("anyOf", ()):
            yield from self._fields(each, before, depth)
        if schema.get("type") == "array":
            yield from self._fields(schema.get("items", {}), f"{before}[]", depth)
        for name, field in schema.get("properties", {}).items():
            path = f"{before}.{name}" if before else name
            yield self._field(path, field, {**field, "required": name in schema.get("required", ())})
            if depth < MAX_APIDOCS_DEPTH:
                yield from self._fields(field, path, depth + 1)

    def _field(self, name: str, schema: Mapping[str, Any], about: Mapping[str, Any]) -> Entry:
        return {
            "name": name,
            "type": self._type(schema),
            "text": about.get("description", ""),
            "required": about.get("required", False),
        }

    def _type(self, schema: Mapping[str, Any]) -> str:
        if "$ref" in schema:
            return str(self._resolved(schema).get("title", "object"))
        if "anyOf" in schema:
            return " or ".join(dict.fromkeys(map(self._type, schema["anyOf"])))
        if "enum" in schema:
            return " | ".join(map(str, schema["enum"]))
        if "const" in schema:
            return str(schema["const"])
        kind = str(schema.get("type", "any"))
        return f"list of {self._type(schema.get('items', {}))}" if kind == "array" else kind
