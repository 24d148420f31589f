"""The callers of the HTTP API and what they may do, by the same users, policies and table of requests as remoting.

A caller authenticates with one of

- ``Authorization: Basic`` with an access key and a secret, or ``Authorization: Bearer`` with a token: of a login
  (``POST /api/v1/session``), or the loopback token of a broker without users;
- the cookie of a login. A request that changes something also needs the login's CSRF token in the header
  ``X-CSRF-Token``.

Secrets are accepted over TLS and from loopback only, unless ``httpAllowPlaintext`` allows more. Requests of a caller go
to the broker on a separate connection inside the process, whose user the gate knows, so the gate authorizes and audits
them like those of remoting. A broker without users lets everyone read and send; other changes need the loopback token.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import ipaddress
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from mqspark.auth.failures import Attempts
from mqspark.auth.gate import changes_more
from mqspark.auth.policies import Action, Kind
from mqspark.base.logs import printable, sparing
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import ConfigError, FrameTooLarge
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.header import Header
from mqspark_server.web.logins import Login, Logins
from mqspark_server.web.problems import Problem, as_problem

if TYPE_CHECKING:
    from fastapi import Request

    from mqspark.auth.gate import Gate
    from mqspark.client.admin import AdminClient
    from mqspark_server.net.localpeer import LocalPeer
    from mqspark_server.node import BrokerNode, BrokerParts

CSRF_HEADER = "x-csrf-token"
MAX_CREDENTIALS_LENGTH = 2_048
"""The length of one header with credentials."""
TOO_MANY = "too many failed logins from this address"
_FAILED = "the access key or the secret is wrong, or the user is disabled"
"""One text for an unknown user, a disabled one and a wrong secret."""
_NO_KEYS = "give the access key and the secret of a user as Basic credentials"
_HOST_ALONE = "__Host-"
_READS = frozenset({Action.GET, Action.LIST, Action.SUB, Action.PUB})
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="mqspark"'}
"""Basic is accepted but not offered: a browser would prompt for it, and then send the secret with every request."""

log = logging.getLogger("mqspark.http")
_changes_log = sparing("mqspark.http.changes", lines=20)


Connect = Callable[[Credentials | None, int], "AdminClient"]
"""A client of the cluster with the keys of a caller, and its limit of a request in ms; None: without keys."""


class How(StrEnum):
    """How a caller was recognised."""

    NOT = "anonymous"
    BASIC = "basic"
    BEARER = "bearer"
    SESSION = "session"
    TOKEN = "loopback token"  # noqa: S105 - no secret


@dataclass(frozen=True, slots=True)
class Caller:
    """``user``: empty for an anonymous caller. ``address``: host and port of the connection."""

    user: str
    address: tuple[str, int]
    how: How
    proof: str = ""
    reads_only: bool = False
    request: str = ""
    """Method and path, for the audit log."""
    login: Login | None = None

    @property
    def peer(self) -> str:
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def __repr__(self) -> str:
        return f"<Caller {self.user!r} {self.how} {self.peer}>"


class Subject(NamedTuple):
    kind: Kind
    name: str


CLUSTER = Subject(Kind.CLUSTER, "")
"""That of the broker."""


class Callers:
    """Authenticates and authorizes callers of one broker's HTTP. ``loopback_token``: lets its holder change what a
    broker without users has."""

    def __init__(self, app: BrokerNode, loopback_token: str) -> None:
        self._app = app
        self._loopback_token = loopback_token
        self._logins = Logins()
        self._failures = Attempts()

    # --- who ---

    def identify(self, scope: Mapping[str, Any]) -> Caller:
        """Raises Problem: 401 for invalid credentials, 403 for a missing CSRF token or credentials in clear, 429
        after too many failures."""
        host, port = scope.get("client") or ("0.0.0.0", 0)  # noqa: S104 - an address that means none
        address = str(host).partition("%")[0].removeprefix("::ffff:"), int(port)
        request = f"{scope['method']} {scope['path']}"
        headers = _headers(scope)
        credentials = headers.get("authorization")
        if credentials is not None:
            self._check_private(scope, address)
            return self._by_header(credentials, address, request)
        cookie = cookie_of(headers.get("cookie", ""), cookie_name(scope))
        login = None if cookie is None else self._find(cookie, address)
        if login is None or not login.csrf_token:  # a bearer token is not accepted as a cookie
            return Caller("", address, How.NOT, request=request)
        self._check_private(scope, address)
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            given = headers.get(CSRF_HEADER, "")
            if not hmac.compare_digest(given.encode(), login.csrf_token.encode()):
                raise Problem(403, f"a change by a session needs its CSRF token in the header {CSRF_HEADER}")
        return Caller(
            login.user, address, How.SESSION, login.proof, login.reads_only, request=request, login=login
        )

    def _by_header(self, credentials: str, address: tuple[str, int], request: str) -> Caller:
        scheme, _, value = credentials.partition(" ")
        value = value.strip()
        if len(value) <= MAX_CREDENTIALS_LENGTH:
            if (pair := basic_pair(credentials)) is not None:
                proof = self._prove(*pair, address)
                return Caller(pair[0], address, How.BASIC, proof, request=request)
            if scheme.lower() == "bearer" and value:
                if self._is_loopback_token(value, address):
                    return Caller("", address, How.TOKEN, request=request)
                login = self._find(value, address)
                if login is not None and not login.csrf_token:
                    return Caller(
                        login.user,
                        address,
                        How.BEARER,
                        login.proof,
                        login.reads_only,
                        request=request,
                        login=login,
                    )
        raise self._record_failure("", address, "the credentials are malformed, unknown or expired")

    def _find(self, secret: str, address: tuple[str, int]) -> Login | None:
        """A login that is still valid: its user exists with the same secret."""
        login = self._logins.find(secret, self._now_ms())
        if login is None:
            return None
        gate = self._gate()
        if gate is None:
            holds = not login.user and _is_loopback(address[0])
        else:
            holds = bool(login.user) and gate.holds(login.user, login.proof) is not None
        if not holds:
            self._logins.end(secret)
            return None
        return login

    def _prove(self, name: str, secret: str, address: tuple[str, int]) -> str:
        """Raises Problem."""
        gate = self._gate()
        if gate is None:
            raise Problem(403, "this broker has no users (authenticationEnabled=false)")
        self._check_failures(address, name)
        try:
            proof = gate.prove(name, secret)
        except UnicodeEncodeError:
            proof = None
        if proof is None:
            raise self._record_failure(name, address, _FAILED)
        self._failures.let_in(address[0], name)
        return proof

    def _check_failures(self, address: tuple[str, int], name: str = "") -> None:
        wait_ms = self._failures.wait_ms(address[0], self._now_ms(), name)
        if wait_ms:
            raise Problem(429, TOO_MANY, headers={"Retry-After": str(-(-wait_ms // 1000))})

    def _record_failure(self, name: str, address: tuple[str, int], reason: str) -> Problem:
        try:
            self._check_failures(address, name)
        except Problem as problem:
            return problem
        self._failures.note(address[0], self._now_ms(), name)
        self._audit_login(name, address, allowed=False, reason=reason)
        return Problem(401, reason, headers=_CHALLENGE)

    def _is_loopback_token(self, given: str, address: tuple[str, int]) -> bool:
        """It is valid only from loopback, and only while the broker has no users."""
        return (
            self._gate() is None
            and _is_loopback(address[0])
            and hmac.compare_digest(given.encode("utf-8", "replace"), self._loopback_token.encode())
        )

    def _check_private(self, scope: Mapping[str, Any], address: tuple[str, int]) -> None:
        """Raises Problem."""
        is_open = scope.get("scheme") != "https" and not _is_loopback(address[0])
        if is_open and not self._app.settings.server.http_allow_plaintext:
            raise Problem(
                403, "secrets are accepted over TLS only: set httpTlsCertPath or tls.server.certPath"
            )

    # --- logins ---

    def log_in(
        self,
        scope: Mapping[str, Any],
        name: str,
        secret: str,
        *,
        is_bearer: bool = False,
        reads_only: bool = False,
        lasts_ms: int | None = None,
    ) -> tuple[str, Caller]:
        """The session's id and its holder. An empty name: ``secret`` is the loopback token. Raises Problem."""
        nobody, proof = self.check_login(scope, name, secret)
        address = nobody.address
        more = {} if lasts_ms is None else {"lasts_ms": lasts_ms}
        session_id, login = self._logins.open(
            name, proof, self._now_ms(), is_bearer=is_bearer, reads_only=reads_only, **more
        )
        how = How.BEARER if is_bearer else How.SESSION
        return session_id, Caller(name, address, how, proof, reads_only, nobody.request, login)

    def check_login(self, scope: Mapping[str, Any], name: str, secret: str) -> tuple[Caller, str]:
        """The caller, who is not logged in yet, and the proof that they may log in. Raises Problem as ``log_in``."""
        nobody = self.identify({**scope, "headers": []})
        self._check_private(scope, nobody.address)
        proof = ""
        if name:
            proof = self._prove(name, secret, nobody.address)
        else:
            self._check_failures(nobody.address)
            if not self._is_loopback_token(secret, nobody.address):
                raise self._record_failure(
                    "", nobody.address, "this is not the loopback token of this broker"
                )
        self._audit_login(name, nobody.address, allowed=True)
        return nobody, proof

    def log_out(self, scope: Mapping[str, Any], caller: Caller) -> None:
        headers = _headers(scope)
        if caller.how is How.SESSION:
            self._logins.end(cookie_of(headers.get("cookie", ""), cookie_name(scope)) or "")
        elif caller.how is How.BEARER:
            self._logins.end(headers.get("authorization", "").partition(" ")[2].strip())

    def expires_in_s(self, login: Login) -> int:
        return max(0, (login.ends_ms - self._now_ms()) // 1000)

    def _audit_login(self, name: str, address: tuple[str, int], *, allowed: bool, reason: str = "") -> None:
        gate, peer = self._gate(), Caller("", address, How.NOT).peer
        if gate is not None:
            gate.audit(peer, name, "HTTP LOGIN", allowed=allowed, reason=reason)
        else:
            _changes_log.info("login by the loopback token from %s: %s", peer, reason or "allowed")

    # --- what ---

    @property
    def has_users(self) -> bool:
        return self._app.settings.auth.authentication_enabled

    def may_change(self, caller: Caller) -> bool:
        """Whether any change may be allowed: for pages, which hide what would be refused."""
        if caller.reads_only:
            return False
        return bool(caller.user) if self.has_users else caller.how in (How.TOKEN, How.SESSION, How.BEARER)

    def check_known(self, scope: Mapping[str, Any]) -> None:
        """Raises Problem, where there are users, for a request of nobody, and for wrong credentials."""
        if self.has_users and not (caller := self.identify(scope)).user:
            raise _denied(caller, "")

    def authorize(self, caller: Caller, resource: Subject, *actions: Action) -> None:
        """Check that the caller may do one of ``actions``, for operations without a request of remoting. Raises
        Problem: 401 for an anonymous caller, 403 for a user without the right, 503 while the broker does not serve."""
        self._serving()
        self.check_in(caller)
        gate = self._gate()
        if gate is None:
            self._check_anonymous(caller, _READS.isdisjoint(actions))
            return
        with self.peer(caller) as peer:
            try:
                gate.authorize(peer.session, *resource, frozenset(actions), caller.request)
            except Refusal as refusal:
                raise _denied(caller, refusal.remark) from None

    def check_in(self, caller: Caller) -> None:
        """For what goes on after a request was identified. Raises Problem when the caller has logged out, the login has
        expired, or the user is gone."""
        gate = self._gate()
        is_over = caller.login is not None and self._logins.is_over(caller.login, self._now_ms())
        if is_over or (caller.user and (gate is None or gate.holds(caller.user, caller.proof) is None)):
            raise Problem(401, "the login is over", headers=_CHALLENGE)

    @contextlib.contextmanager
    def peer(self, caller: Caller) -> Iterator[LocalPeer]:
        """A connection to the broker whose requests are sent on behalf of the caller. Raises Problem while the broker
        does not serve."""
        parts, gate = self._serving(), self._gate()
        peer = parts.server.local_peer(caller.address)
        try:
            if gate is not None and caller.user:
                gate.vouch(peer.session, caller.user, caller.proof, reads_only=caller.reads_only)
            yield peer
        finally:
            peer.close()

    async def ask(
        self,
        caller: Caller,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 5.0,
    ) -> Command:
        """The broker's answer to one request of remoting, whatever its code. Raises Problem when the caller may not ask
        that, when the request is too large, and when there is no answer."""
        gate = self._gate()
        if gate is None:
            self._check_anonymous(caller, changes_more(code))
        elif not caller.user:
            raise _denied(caller, "")
        with (
            self.peer(caller) as peer,
            as_problem(
                504, TimeoutError, text="the broker did not answer in time; a change may have been made"
            ),
            as_problem(503, ConnectionError),
            as_problem(413, FrameTooLarge),
        ):
            return await peer.request(code, header, body, timeout_s=timeout_s)

    def _check_anonymous(self, caller: Caller, is_change: bool) -> None:
        """Raises Problem."""
        if not is_change:
            return
        if caller.how not in (How.TOKEN, How.SESSION, How.BEARER) or caller.reads_only:
            raise Problem(
                401,
                "changes need the loopback token, which `mqspark dev` prints (Authorization: Bearer TOKEN), or a broker"
                " with users (authenticationEnabled=true)",
                headers=_CHALLENGE,
            )
        _changes_log.info("%s by %s from %s", printable(caller.request, 200), caller.how, caller.peer)

    def _serving(self) -> BrokerParts:
        app = self._app
        if not app.lifecycle.ready or app.parts is None:
            raise Problem(503, f"the broker is {app.lifecycle.phase.name.lower()}")
        return app.parts

    def _gate(self) -> Gate | None:
        """None: the broker has no users. Raises Problem while it has users and has not read them yet."""
        parts = self._app.parts
        gate = None if parts is None else parts.core.gate
        if gate is None and self.has_users:
            raise Problem(503, f"the broker is {self._app.lifecycle.phase.name.lower()}")
        return gate

    def _now_ms(self) -> int:
        return self._app.clock.monotonic_ms()


def basic_pair(credentials: str) -> tuple[str, str] | None:
    """Access key and secret of a header with Basic credentials; None for any other."""
    scheme, _, value = credentials.partition(" ")
    if scheme.lower() != "basic" or len(value) > MAX_CREDENTIALS_LENGTH:
        return None
    try:
        pair = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    name, colon, secret = pair.partition(":")
    return (name, secret) if colon else None


def keys_of(request: Request) -> Credentials | None:
    """The keys of the caller, for a cluster that is asked in its name; None: it gives none. Raises Problem."""
    given = request.headers.get("authorization")
    if given is None:
        return None
    with as_problem(401, ConfigError, text=_NO_KEYS):
        return Credentials(*(basic_pair(given) or ("", "")))


def _denied(caller: Caller, remark: str) -> Problem:
    if not caller.user:
        text = "log in: Basic or Bearer credentials, or a session (POST /api/v1/session)"
        return Problem(401, text, headers=_CHALLENGE)
    return Problem(403, remark)


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _headers(scope: Mapping[str, Any]) -> dict[str, str]:
    """Raises Problem for repeated credentials, which proxies and servers could read differently."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1")
        if name in ("authorization", CSRF_HEADER) and name in found:
            raise Problem(400, f"the header {name} is given twice")
        value = raw_value.decode("latin-1")
        found[name] = f"{found[name]}; {value}" if name == "cookie" and name in found else value
    return found


def cookie_name(scope: Mapping[str, Any], word: str = "mqspark") -> str:
    """The name has the port: browsers do not separate cookies by port, and brokers may share a host. The prefix binds
    the cookie to TLS and the host."""
    server = scope.get("server") or ("", 0)
    return f"{_HOST_ALONE if scope.get('scheme') == 'https' else ''}{word}-{server[1]}"


def cookie_to_set(
    scope: Mapping[str, Any], name: str, value: str, max_age_s: int, path: str = "/", site: str = "Strict"
) -> str:
    """Browsers keep one that is bound to its host for all paths alone."""
    path = "/" if name.startswith(_HOST_ALONE) else path
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{name}={value}; Path={path}; Max-Age={max_age_s}; HttpOnly; SameSite={site}{secure}"


def cookie_of(header: str, wanted: str) -> str | None:
    if len(header) > MAX_CREDENTIALS_LENGTH * 4:
        return None
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return None
