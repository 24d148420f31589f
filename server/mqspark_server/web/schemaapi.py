"""The schema registry over HTTP, as Confluent's: its paths, media type and errors.

Every process with a console serves it. Requests go on to the broker that keeps the registry, with the keys of the
caller, so that it judges them as it does any client: through the process itself where it is that broker, otherwise over
a connection. Basic credentials are the keys of a user.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import Match

from mqspark.base.names import check
from mqspark.broker.config import BrokerRole
from mqspark.client.admin import several_registries
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import BrokerError, IllegalName, MQError, NoSchemaRegistry, RequestTimeout
from mqspark.message import SCHEMAS_TOPIC, parse_number
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.headers.admin_headers import SchemaRequestHeader
from mqspark.protocol.schemaoperations import (
    MAX_SCHEMA_BODY_BYTES,
    MEDIA_TYPE,
    OPERATIONS,
    STATUS_FIELD,
    Operation,
)
from mqspark_server.node import BrokerNode
from mqspark_server.web.callers import Callers, Connect, How, keys_of
from mqspark_server.web.problems import Problem
from mqspark_server.web.v1.asking import ERRORS, refused

LOOKED_MS, LOOK_S = 10_000, 1.0
"""How long it counts that no other broker keeps a registry, and how long one look may take."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_ILLEGAL_SUBJECT = 42208
_SUBJECT_RULE = "the name of a subject has up to 255 characters, no control characters, slash or @"
SCHEMA_TIMEOUT_MS = 30_000
"""A schema may have to be compared with many versions."""


class SchemaError(BaseModel):
    """An error as clients of a registry read it."""

    error_code: int
    message: str


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": described["description"],
        "content": {MEDIA_TYPE: {"schema": SchemaError.model_json_schema()}},
    }
    for status, described in ERRORS.items()
}


class SchemaDoor(Protocol):
    """Where requests go on to."""

    async def answer(
        self, request: Request, operation: Operation, header: SchemaRequestHeader, body: bytes
    ) -> tuple[int, bytes]:
        """Status and body. Raises Problem."""
        ...


class SchemaRelay:
    """To the broker that keeps the registry, over a connection."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    async def answer(
        self, request: Request, operation: Operation, header: SchemaRequestHeader, body: bytes
    ) -> tuple[int, bytes]:
        keys = keys_of(request)
        with _cluster_problems(keys):
            async with self._connect(keys, SCHEMA_TIMEOUT_MS) as admin:
                answer = await admin.ask_schemas(
                    operation.name,
                    subject=header.schema_subject,
                    version=header.version,
                    schema_id=header.id,
                    options=header.options or "",
                    body=body,
                )
        return answer.status, answer.body


class BrokerSchemas:
    """To this broker where it keeps the registry, else over a connection."""

    def __init__(self, app: BrokerNode, callers: Callers, connect: Connect) -> None:
        self._app = app
        self._callers = callers
        self._connect = connect
        self._relay = SchemaRelay(connect)
        self._look_again_ms = 0
        self._keepers: list[str] = []
        """The brokers that keep a registry, when they were looked for."""

    async def answer(
        self, request: Request, operation: Operation, header: SchemaRequestHeader, body: bytes
    ) -> tuple[int, bytes]:
        caller = self._callers.identify(request.scope)
        config = self._app.config
        if not config.schema_registry_enable or config.broker_role is BrokerRole.SLAVE:
            if caller.user and caller.how is not How.BASIC:
                raise Problem(
                    403, "the schema registry is at another broker: give Basic credentials, not a session"
                )
            return await self._relay.answer(request, operation, header, body)
        await self._check_alone()
        answer = await self._callers.ask(
            caller, operation.code, header, body, timeout_s=SCHEMA_TIMEOUT_MS / 1000
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refused(answer)
        return parse_number(answer.ext.get(STATUS_FIELD)) or 500, bytes(answer.body)

    async def _check_alone(self) -> None:
        """Two registries would give one id to two schemas. Name servers that do not answer are not waited for. Raises
        Problem."""
        now_ms = self._app.clock.monotonic_ms()
        if now_ms >= self._look_again_ms:
            self._look_again_ms = now_ms + LOOKED_MS
            keys = self._app.settings.auth.inner_credentials
            with suppress(MQError, Problem, TimeoutError):
                async with (
                    asyncio.timeout(LOOK_S),
                    self._connect(None if keys is None else Credentials(*keys), SCHEMA_TIMEOUT_MS) as admin,
                ):
                    self._keepers = sorted((await admin.topic_route(SCHEMAS_TOPIC)).brokers)
        if len(self._keepers) > 1:
            raise Problem(503, several_registries(self._keepers))


_OTHER_ROOTS = frozenset({"associations"})
"""Roots of paths that clients of a registry know and this one has not."""
_ROOTS = {operation.path.split("/")[1] for operation in OPERATIONS.values()} | _OTHER_ROOTS


def is_registry_path(path: str) -> bool:
    """Whether clients of a registry ask there, which read its errors alone."""
    return f"{path}/".split("/", 2)[1] in _ROOTS


def schema_router(door: Callable[[Request], SchemaDoor]) -> APIRouter:
    router = APIRouter(tags=["schemas"])
    for operation in OPERATIONS.values():
        router.add_api_route(
            operation.path,
            _endpoint(operation, door),
            methods=[operation.method],
            name=operation.name,
            summary=operation.text,
            description=operation.text,
            response_class=Response,
            responses={200: {"content": {MEDIA_TYPE: {}}}, **_ERRORS},
            openapi_extra=_described(operation),
        )
    for root in sorted(_ROOTS):
        for path in (f"/{root}", f"/{root}/{{rest:path}}"):
            router.add_api_route(path, _elsewhere(router), methods=[*_METHODS], include_in_schema=False)
    return router


def _elsewhere(router: APIRouter) -> Callable[[Request], Awaitable[Response]]:
    """What a client is told that asks for what no operation is: it reads the errors of a registry alone."""

    async def answer(request: Request) -> Response:
        path, raw = request.url.path, request.scope.get("raw_path", b"")
        if path.endswith("/"):
            return RedirectResponse(request.url.replace(path=path.rstrip("/")))
        if b"%2f" in raw.lower():
            return _error(422, _ILLEGAL_SUBJECT, _SUBJECT_RULE)
        others = [each for each in router.routes if each.matches(request.scope)[0] is Match.PARTIAL]
        allowed = {method for each in others if isinstance(each, APIRoute) for method in each.methods or ()}
        if allowed:
            return _error(405, 405, "HTTP 405 Method Not Allowed", {"allow": ", ".join(sorted(allowed))})
        return _error(404, 404, "HTTP 404 Not Found")

    return answer


def _endpoint(
    operation: Operation, door: Callable[[Request], SchemaDoor]
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            body = await _body(request)
            status, content = await door(request).answer(
                request, operation, _header(operation, request), body
            )
        except IllegalName:
            return _error(422, _ILLEGAL_SUBJECT, _SUBJECT_RULE)
        except Problem as problem:
            return problem_response(problem)
        return Response(content, status, media_type=MEDIA_TYPE)

    return answer


def problem_response(problem: Problem) -> Response:
    """An error as clients of a registry read it."""
    codes = {500: 50001, 502: 50003, 503: 50003, 504: 50002}
    code = codes.get(problem.status, problem.status * 100 + 1)
    return _error(problem.status, code, problem.detail, problem.headers)


def _error(status: int, code: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps({"error_code": code, "message": message}), status, headers, MEDIA_TYPE)


def _header(operation: Operation, request: Request) -> SchemaRequestHeader:
    """Raises IllegalName."""
    given = request.path_params
    subject = given.get("subject")
    if subject is not None:
        check("subject", subject)
    return SchemaRequestHeader(
        operation.name, subject, given.get("version"), given.get("id"), request.url.query or None
    )


async def _body(request: Request) -> bytes:
    """Raises Problem."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_SCHEMA_BODY_BYTES:
            raise Problem(413, f"the request is larger than {MAX_SCHEMA_BODY_BYTES} bytes")
    return bytes(content)


@contextmanager
def _cluster_problems(keys: Credentials | None) -> Iterator[None]:
    """Within, an error of the cluster, which was asked with these keys, is a Problem."""
    try:
        yield
    except BrokerError as error:
        if error.code == ResponseCode.NO_PERMISSION:
            raise Problem(401 if keys is None else 403, str(error)) from None
        if error.code in (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE):
            raise Problem(503, str(error)) from None
        raise Problem(502, str(error)) from None
    except RequestTimeout as error:
        raise Problem(504, f"{error}; a change may have been made") from None
    except NoSchemaRegistry as error:
        raise Problem(503, str(error)) from None
    except MQError as error:
        raise Problem(502, str(error)) from None


def _described(operation: Operation) -> dict[str, Any]:
    """For the document of the API."""
    names = [each for each in ("subject", "version", "id") if f"{{{each}}}" in operation.path]
    document: dict[str, Any] = {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    }
    if operation.method in ("POST", "PUT"):
        document["requestBody"] = {"content": {MEDIA_TYPE: {"schema": {"type": "object"}}}}
    return document
