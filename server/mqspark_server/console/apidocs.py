"""/docs: the HTTP API on one page, made of its own OpenAPI document. It loads nothing from other hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from mqspark_server.console.clusteraccess import BROKER_LINKS
from mqspark_server.console.rendering import HEADERS, HTML, render
from mqspark_server.web.api import described_api

MAX_DEPTH = 4

docs_router = APIRouter(include_in_schema=False)
"""The pages of a broker about itself."""


@docs_router.get("/docs")
async def docs(request: Request) -> Response:
    """The page about the API."""
    return await _answer(request.app.openapi(), BROKER_LINKS)


def brokers_docs(links: Sequence[tuple[str, str]]) -> APIRouter:
    """The same page in a process that is no broker, about the API that every broker has; and its document."""
    router = APIRouter(include_in_schema=False)

    @cache
    def document() -> dict[str, Any]:
        return described_api().openapi()

    @router.get("/docs")
    async def docs() -> Response:
        return await _answer(await asyncio.to_thread(document), links)

    @router.get("/openapi.json")
    async def openapi() -> JSONResponse:
        return JSONResponse(await asyncio.to_thread(document), headers=HEADERS)

    return router


async def _answer(document: Mapping[str, Any], links: Sequence[tuple[str, str]]) -> Response:
    values = {"section": "HTTP API", "place": "", "visitor": None, "links": links}
    content = await asyncio.to_thread(render, "docs.html", values | _page(document))
    return Response(content, 200, HEADERS, HTML)


def _page(document: Mapping[str, Any]) -> dict[str, Any]:
    nouns: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            noun = (operation.get("tags") or ["more"])[0]
            nouns.setdefault(noun, []).append(_operation(document, path, method, operation))
    return {"nouns": nouns, **{key: document["info"][key] for key in ("title", "version")}}


def _operation(
    document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any]
) -> dict[str, Any]:
    bodies = [
        (kind, list(_fields(document, each.get("schema", {}))))
        for kind, each in operation.get("requestBody", {}).get("content", {}).items()
    ]
    answers, problems = [], []
    for status, answer in operation["responses"].items():
        if status >= "400":
            problems.append((status, answer["description"]))
            continue
        for kind, each in answer.get("content", {"": {}}).items():
            answers.append((status, kind, list(_fields(document, each.get("schema", {})))))
    parameters = [
        {
            "name": each["name"],
            "place": each["in"],
            "type": _type(document, each.get("schema", {})),
            "required": each.get("required", False),
            "text": each.get("description", ""),
        }
        for each in operation.get("parameters", ())
    ]
    words = " ".join(operation.get("description", operation.get("summary", "")).split())
    return {
        "id": f"{method}-{path.strip('/').replace('/', '-').replace('{', '').replace('}', '')}",
        "method": method.upper(),
        "path": path,
        "text": words,
        "parameters": parameters,
        "bodies": bodies,
        "answers": answers,
        "problems": sorted(problems),
    }


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Mapping[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def _fields(
    document: Mapping[str, Any], schema: Mapping[str, Any], before: str = "", depth: int = 0
) -> Iterator[dict[str, str]]:
    """Every field, those of objects inside as ``outer.inner``, those of lists as ``outer[].inner``."""
    schema = _resolved(document, schema)
    for each in schema.get("anyOf", ()):
        yield from _fields(document, each, before, depth)
    if schema.get("type") == "array":
        yield from _fields(document, schema.get("items", {}), f"{before}[]", depth)
    needed = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        path = f"{before}.{name}" if before else name
        text = field.get("description", "")
        yield {
            "name": path,
            "type": _type(document, field),
            "text": text,
            "required": "yes" if name in needed else "",
        }
        if depth < MAX_DEPTH:
            yield from _fields(document, field, path, depth + 1)


def _type(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(_resolved(document, schema).get("title", "object"))
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(document, each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_type(document, schema.get('items', {}))}"
    return kind
