"""Errors of the HTTP API: problem details, application/problem+json (RFC 9457)."""

from __future__ import annotations

import contextlib
import http
import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from mqspark.errors import Picklable

MEDIA_TYPE = "application/problem+json"


class Problem(Picklable, Exception):
    """A request is answered with an error. ``detail`` says what to do about it; ``more``: further members."""

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = more


@contextlib.contextmanager
def as_problem(status: int, *kinds: type[Exception], text: str = "{}") -> Iterator[None]:
    """Within, an error of these kinds is a Problem. ``text``: with a place for the error's."""
    try:
        yield
    except kinds as error:
        raise Problem(status, text.format(error)) from None


class ProblemDetails(BaseModel):
    """An error."""

    type: str = "about:blank"
    title: str = Field(description="the meaning of the status")
    status: int
    detail: str = Field(description="what is wrong with this request, and what to do about it")
    errors: list[dict[str, Any]] | None = Field(
        default=None, description="for a request that is malformed: where, and what is wrong there"
    )
    code: int | None = Field(default=None, description="the broker's response code, where it refused")


def response(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    document = {"type": "about:blank", "title": _title(status), "status": status, "detail": detail, **more}
    # As ASCII, whose escapes can also represent lone surrogates.
    return Response(json.dumps(document), status, headers, MEDIA_TYPE)


def new_api(title: str, **more: Any) -> FastAPI:
    """An application whose errors are problems and which answers ``/health/live``."""
    from importlib.metadata import version

    # FastAPI's own pages of documentation would load scripts from elsewhere.
    api = FastAPI(
        title=title,
        version=version("mqspark"),
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        **more,
    )
    api.router.routes.extend(_life.routes)
    _answer_on(api)
    return api


_life = APIRouter()
"""Its routes are made once: FastAPI would build them again for each application, within its first request."""


@_life.get("/health/live", tags=["health"])
async def live() -> dict[str, str]:
    """The process runs and its event loop turns."""
    return {"status": "live"}


def _answer_on(api: FastAPI) -> None:
    """Make every error of an application a problem, in its OpenAPI document as well."""
    plain = api.openapi

    def documented() -> dict[str, Any]:
        if api.openapi_schema is None:
            document = plain()
            for operations in document["paths"].values():
                for operation in operations.values():
                    _as_problems(operation["responses"])
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.setdefault("ProblemDetails", ProblemDetails.model_json_schema())
            schemas.pop("HTTPValidationError", None)
            schemas.pop("ValidationError", None)
        return plain()

    api.openapi = documented  # type: ignore[method-assign]

    @api.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        return response(error.status, error.detail, error.headers, **error.more)

    @api.exception_handler(HTTPException)
    async def raised(request: Request, error: HTTPException) -> Response:
        return response(error.status_code, str(error.detail), error.headers)

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        """Omits the input: it may be NaN, which JSON does not have, or half a surrogate pair."""
        errors = [{key: each[key] for key in ("type", "loc", "msg")} for each in error.errors()[:10]]
        detail = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors[:3])
        return response(422, detail[:1_000], errors=errors)

    @api.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return response(500, "this request failed; the log of the server has the details")


def _as_problems(responses: dict[str, Any]) -> None:
    for status, described in responses.items():
        if status >= "400" and "application/json" in described.get("content", ()):
            schema = {"$ref": "#/components/schemas/ProblemDetails"}
            described["content"] = {MEDIA_TYPE: {"schema": schema}}


def _title(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Error"
