"""Logging in and out over HTTP: /api/v1/session, and the caller of a request as a dependency."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from mqspark_server.web.callers import Caller, Callers, cookie_name, cookie_to_set
from mqspark_server.web.logins import LONGEST_MS
from mqspark_server.web.problems import Problem, ProblemDetails
from mqspark_server.web.v1.asking import Given

ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": ProblemDetails, "description": "the credentials are wrong"},
    403: {
        "model": ProblemDetails,
        "description": "the credentials came in clear, or the CSRF token is missing",
    },
    429: {"model": ProblemDetails, "description": "too many failures from this address; see Retry-After"},
}


def callers_of(request: Request) -> Callers:
    found: Callers = request.app.state.callers
    return found


async def _caller(request: Request) -> Caller:
    return callers_of(request).identify(request.scope)


CallerNow = Annotated[Caller, Depends(_caller)]
"""The caller of the request, who may be anonymous: a route has to use ``Callers.authorize`` or ``Callers.ask``."""


class NewSession(Given):
    """An access key with its secret; or the loopback token that `mqspark dev` prints."""

    accessKey: str | None = Field(default=None, min_length=1, max_length=128)
    secretKey: str | None = Field(default=None, min_length=1, max_length=512, repr=False)
    token: str | None = Field(default=None, min_length=1, max_length=128, repr=False)
    bearer: bool = Field(
        default=False, description="answer with a token for the header Authorization instead of a cookie"
    )
    readOnly: bool = Field(
        default=False, description="whether the session is read-only, whatever the user may do"
    )
    lastsSeconds: int | None = Field(default=None, ge=1, le=LONGEST_MS // 1000)


class SessionView(BaseModel):
    user: str = Field(description="empty: not logged in")
    how: str = Field(description="how the request was authenticated")
    mayChange: bool = Field(description="whether any change may be allowed")
    hasUsers: bool = Field(
        description="whether the broker has users; without users everyone may read and send"
    )
    expiresInSeconds: int | None = None
    csrfToken: str | None = Field(
        default=None, repr=False, description="for the header X-CSRF-Token of requests that change something"
    )
    bearerToken: str | None = Field(default=None, repr=False)


router = APIRouter(prefix="/api/v1/session", tags=["session"], responses=ERRORS)


@router.post("", status_code=201)
async def log_in(request: Request, response: Response, credentials: NewSession) -> SessionView:
    """Log in: a cookie for pages, or a bearer token for scripts. A session ends after twelve hours; one of a cookie
    also after half an hour without use."""
    callers = callers_of(request)
    if credentials.token is not None:
        name, secret = "", credentials.token
    elif credentials.accessKey and credentials.secretKey:
        name, secret = credentials.accessKey, credentials.secretKey
    else:
        raise Problem(422, "accessKey and secretKey must be given, or token")
    lasts_ms = None if credentials.lastsSeconds is None else credentials.lastsSeconds * 1000
    session_id, caller = callers.log_in(
        request.scope,
        name,
        secret,
        is_bearer=credentials.bearer,
        reads_only=credentials.readOnly,
        lasts_ms=lasts_ms,
    )
    session = _session(callers, caller)
    if credentials.bearer:
        session.bearerToken = session_id
    else:
        response.headers["Set-Cookie"] = _cookie(request, session_id, session.expiresInSeconds or 0)
    response.headers["Cache-Control"] = "no-store"
    return session


@router.get("")
async def who_am_i(request: Request, response: Response, caller: CallerNow) -> SessionView:
    """The caller, and the CSRF token of their session."""
    response.headers["Cache-Control"] = "no-store"
    return _session(callers_of(request), caller)


@router.delete("", status_code=204)
async def log_out(request: Request, response: Response, caller: CallerNow) -> None:
    """End the session of the request's cookie or bearer token."""
    callers_of(request).log_out(request.scope, caller)
    response.headers["Set-Cookie"] = _cookie(request, "", 0)


def _cookie(request: Request, value: str, max_age_s: int) -> str:
    return cookie_to_set(request.scope, cookie_name(request.scope), value, max_age_s)


def _session(callers: Callers, caller: Caller) -> SessionView:
    login = caller.login
    return SessionView(
        user=caller.user,
        how=caller.how,
        mayChange=callers.may_change(caller),
        hasUsers=callers.has_users,
        expiresInSeconds=None if login is None else callers.expires_in_s(login),
        csrfToken=None if login is None else login.csrf_token or None,
    )
