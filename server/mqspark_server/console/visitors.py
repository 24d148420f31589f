"""The visitors of the pages: sessions by a cookie, and the forms that visitors send.

In a cluster with users, the brokers are asked with the visitor's own keys, which are held in memory as long as the
session lasts, so the brokers judge and audit visitors as they do any client. If the process was given keys, a visitor
with the token that it printed at its start uses those. Everyone may read a cluster without users; to change it, a
visitor needs the token.
"""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl, quote

from fastapi import Request

from mqspark.base.clock import Clock
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import InvalidMessage
from mqspark_server.shown.timezones import UTC_ZONE, Zone, zone_named
from mqspark_server.web.callers import cookie_of
from mqspark_server.web.sessions import LONGEST_MS, Login, Logins

FORM_BYTES = 8 << 20
"""The most of one form; a message's body is in one."""
MAX_FIELDS = 2_048
PATH = "/console"
ZONE_COOKIE = "mqspark-zone"
ZONE_KEPT_S = 400 * 86_400
"""Browsers keep no cookie for longer."""


class NoForm(Exception):
    """A form that cannot be accepted; the text says why."""


class Door(Protocol):
    """The check of logins. Raises Problem."""

    has_keys: bool
    """Whether this process has keys, which the holder of its token uses."""

    async def has_users(self) -> bool:
        """Whether the cluster has users; if so, nothing is shown without keys."""
        ...

    async def check(self, request: Request, name: str, secret: str) -> Credentials | None:
        """The keys of this visitor; None: without any. With an empty name ``secret`` is the token. Raises Problem for a
        refused login."""
        ...


@dataclass(slots=True)
class _Kept:
    credentials: Credentials | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Visitor:
    """``has_users``: whether the cluster has users. ``zone``: in which times are shown to and read from them."""

    login: Login | None
    has_users: bool
    zone: Zone = UTC_ZONE

    @property
    def user(self) -> str:
        return "" if self.login is None else self.login.user

    @property
    def is_in(self) -> bool:
        return self.login is not None

    @property
    def csrf(self) -> str:
        return "" if self.login is None else self.login.csrf_token

    @property
    def credentials(self) -> Credentials | None:
        kept = None if self.login is None else self.login.kept
        return kept.credentials if isinstance(kept, _Kept) else None

    def note(self, message: str) -> None:
        """For the next page."""
        if self.login is not None and isinstance(self.login.kept, _Kept):
            self.login.kept.message = message

    def take_note(self) -> str:
        kept = None if self.login is None else self.login.kept
        if not isinstance(kept, _Kept):
            return ""
        message, kept.message = kept.message, ""
        return message


class Visitors:
    """The sessions of one console."""

    def __init__(self, door: Door, clock: Clock) -> None:
        self._door = door
        self._clock = clock
        self._logins = Logins()

    @property
    def token_has_keys(self) -> bool:
        """Whether the token is a login in a cluster with users, too."""
        return self._door.has_keys

    async def of(self, request: Request) -> Visitor:
        """Raises Problem."""
        has_users = await self._door.has_users()
        secret = _cookie(request, _cookie_name(request))
        login = None if secret is None else self._logins.find(secret, self._clock.monotonic_ms())
        if login is not None and bool(login.user) != has_users:  # users came or went
            login = None
        return Visitor(login, has_users, _zone_of(request))

    async def enter(self, request: Request, name: str, secret: str) -> str:
        """The cookie to set. Raises Problem."""
        credentials = await self._door.check(request, name, secret)
        user = "" if credentials is None else credentials.access_key
        session, _ = self._logins.open(user, "", self._clock.monotonic_ms(), kept=_Kept(credentials))
        return _set_cookie(request, session, LONGEST_MS // 1000)

    def leave(self, request: Request) -> str:
        secret = _cookie(request, _cookie_name(request))
        if secret is not None:
            self._logins.end(secret)
        return _set_cookie(request, "", 0)


def _cookie_name(request: Request) -> str:
    server = request.scope.get("server") or ("", 0)
    return f"mqspark-console-{server[1]}"


def _cookie(request: Request, wanted: str) -> str | None:
    return cookie_of(request.headers.get("cookie", ""), wanted)


def _zone_of(request: Request) -> Zone:
    """UTC where the browser has chosen none that this machine knows; every page says which one it is."""
    try:
        return zone_named(_cookie(request, ZONE_COOKIE) or UTC_ZONE.name)
    except InvalidMessage:
        return UTC_ZONE


def zone_cookie(request: Request, zone: Zone) -> str:
    """The cookie to set: a page that is reached from elsewhere has the zone, too."""
    return f"{ZONE_COOKIE}={zone.name}; Path={PATH}; Max-Age={ZONE_KEPT_S}; HttpOnly; SameSite=Lax{_secure(request)}"


def _secure(request: Request) -> str:
    return "; Secure" if request.scope.get("scheme") == "https" else ""


def _set_cookie(request: Request, value: str, max_age_s: int) -> str:
    secure = _secure(request)
    return f"{_cookie_name(request)}={value}; Path={PATH}; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}"


class Form:
    """The fields of a form."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = dict(fields)

    @classmethod
    def of_address(cls, request: Request) -> Form:
        """The query of a page, and the names in its path."""
        query = request.query_params
        return cls({name: query.getlist(name) for name in query}).sent_to(request)

    def sent_to(self, request: Request) -> Form:
        """With the names in the path, which no field replaces."""
        return Form(self._fields | {name: [each] for name, each in request.path_params.items()})

    def one(self, name: str, default: str = "") -> str:
        values = self._fields.get(name)
        return values[0] if values else default

    def all(self, name: str) -> list[str]:
        return self._fields.get(name, [])

    def is_on(self, name: str) -> bool:
        return bool(self.one(name))

    def fill(self, path: str) -> str:
        """A path with the fields that it has in braces."""
        names = {name: quote(values[0].strip(), safe="") for name, values in self._fields.items() if values}
        return path.format_map(defaultdict(str, names))

    def pairs(self) -> list[tuple[str, str]]:
        """All fields, for the page that asks for confirmation."""
        return [
            (name, value)
            for name, values in self._fields.items()
            if name not in ("csrf", "sure")
            for value in values
        ]


async def read_form(request: Request, visitor: Visitor) -> Form:
    """The form of a visitor who is logged in. Raises NoForm."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise NoForm("A form is sent as application/x-www-form-urlencoded.")
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > FORM_BYTES:
            raise NoForm(f"A form has at most {FORM_BYTES} bytes.")
    fields: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(
            content.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        ):
            fields.setdefault(name, []).append(value)
    except ValueError:
        raise NoForm("The form cannot be read.") from None
    form = Form(fields)
    if visitor.is_in and not hmac.compare_digest(form.one("csrf").encode(), visitor.csrf.encode()):
        raise NoForm("The form belongs to another session: load the page again.")
    return form
