"""The visitors of the pages: sessions by a cookie, and the forms that visitors send.

In a cluster with users, the brokers are asked with the visitor's own keys, which are held in memory as long as the
session lasts, so the brokers judge and audit visitors as they do any client. If the process was given keys, a visitor
with the token that it printed at its start uses those. Everyone may read a cluster without users; to change it, a
visitor needs the token.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from fastapi import Request
from starlette.datastructures import ImmutableMultiDict

from mqspark.base.clock import Clock
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import InvalidMessage
from mqspark_server.console.rendering import ROOT
from mqspark_server.shown.timezones import UTC_ZONE, Zone, zone_named
from mqspark_server.web.callers import cookie_name, cookie_of, cookie_to_set
from mqspark_server.web.logins import LONGEST_MS, Login, Logins

FORM_BYTES = 8 << 20
"""The most of one form; a message's body is in one."""
STRANGERS_FORM_BYTES = 16 << 10
"""The most of a form of somebody who is not logged in."""
MAX_FIELDS = 2_048
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
class Kept:
    """What a session has: the visitor's keys, and a word for the next page."""

    credentials: Credentials | None = None
    note: str = ""

    def take_note(self) -> str:
        note, self.note = self.note, ""
        return note


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
    def kept(self) -> Kept:
        kept = None if self.login is None else self.login.kept
        return kept if isinstance(kept, Kept) else Kept()


class Visitors:
    """The sessions of one console."""

    def __init__(self, door: Door, clock: Clock) -> None:
        self.door = door
        self._clock = clock
        self._logins = Logins()

    async def of(self, request: Request) -> Visitor:
        """Raises Problem."""
        has_users = await self.door.has_users()
        secret = _cookie(request, _session_cookie(request))
        login = None if secret is None else self._logins.find(secret, self._clock.monotonic_ms())
        if login is not None and bool(login.user) != has_users:  # users came or went
            login = None
        return Visitor(login, has_users, _zone_of(request))

    async def enter(self, request: Request, name: str, secret: str) -> str:
        """The cookie to set. Raises Problem."""
        credentials = await self.door.check(request, name, secret)
        user = "" if credentials is None else credentials.access_key
        session, _ = self._logins.open(user, "", self._clock.monotonic_ms(), kept=Kept(credentials))
        return _cookie_to_set(request, session, LONGEST_MS // 1000)

    def leave(self, request: Request) -> str:
        secret = _cookie(request, _session_cookie(request))
        if secret is not None:
            self._logins.end(secret)
        return _cookie_to_set(request, "", 0)


def _session_cookie(request: Request) -> str:
    return cookie_name(request.scope, "mqspark-console")


def _cookie_to_set(request: Request, session: str, max_age_s: int) -> str:
    return cookie_to_set(request.scope, _session_cookie(request), session, max_age_s, ROOT)


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
    return cookie_to_set(request.scope, ZONE_COOKIE, zone.name, ZONE_KEPT_S, ROOT, "Lax")


Form = ImmutableMultiDict[str, str]
"""The fields of a form or of an address."""


def sent_fields(request: Request, form: Form | None = None) -> Form:
    """The fields of a form, or else of the query, with the names in the path, which no field replaces."""
    names = request.path_params
    sent = (request.query_params if form is None else form).multi_items()
    return Form([*(each for each in sent if each[0] not in names), *names.items()])


async def read_form(request: Request, visitor: Visitor) -> Form:
    """The form of a visitor. Raises NoForm."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise NoForm("A form is sent as application/x-www-form-urlencoded.")
    content = bytearray()
    limit = FORM_BYTES if visitor.is_in else STRANGERS_FORM_BYTES
    async for part in request.stream():
        content += part
        if len(content) > limit:
            raise NoForm(f"A form has at most {limit} bytes.")
    try:
        text = content.decode("ascii")
        form = Form(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"))
    except ValueError:
        raise NoForm("The form cannot be read.") from None
    if visitor.is_in and not hmac.compare_digest(form.get("csrf", "").encode(), visitor.csrf.encode()):
        raise NoForm("The form belongs to another session: load the page again.")
    return form
