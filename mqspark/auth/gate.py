"""The gate in front of the handlers of a server: each request is signed by a user, and allowed by the table
(``mqspark.auth.access``) and the user's policies, before its handler sees it (AuthenticationPipeline,
AuthorizationPipeline).

With authenticateByCertificate an unsigned request belongs to the user named in the connection's client certificate.
With authenticationProvider an extension is called first.

A server without authentication has no gate, and its handlers are called directly. A connection's last user and the
decisions for it are cached until users or policies change.

Requests that come over HTTP or gRPC reach the same handlers on connections inside the process. They are not signed: the
shell has verified the user (``prove``, ``sign_in``) and vouches for the connection (``vouch``). Everything else is
judged as for a signed request.

Facts: docs/rocketmq/protocol.md#policies.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from mqspark.auth.access import TABLE, AskedFor, Facts, Row, accesses
from mqspark.auth.bindings import Bindings, SignedText, signed_text
from mqspark.auth.config import AuthConfig
from mqspark.auth.failures import Attempts
from mqspark.auth.policies import Access, Action, Kind, Ruling
from mqspark.auth.users import User, Users
from mqspark.base.clock import Clock, SystemClock
from mqspark.extensions import AuthenticationProvider, PresentedCredentials
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal
from mqspark.protocol.extending import Loaded
from mqspark.protocol.headers.client_headers import UNIQUE_KEY_QUERY
from mqspark.protocol.session import CERTIFICATE_NAME, Session
from mqspark.protocol.signature import ACCESS_KEY, ON_BEHALF_OF, SIGNATURE, Signer
from mqspark.protocol.slices import Slices

MAX_DECISIONS = 512
"""Limit of cached decisions for one connection."""
MAX_SIGNATURE_LENGTH = 64
UNSIGNED_UNTIL = 399
"""Clients up to V4_9_3 add UNIQUE_KEY_QUERY after signing."""

_KNOWN = "auth"
"""Session key."""
_FAILED = "check signature failed."
"""The same text for an unknown user, a disabled one and a wrong signature, so that names cannot be probed."""
_NOT_MEANT = "the signature does not hold for this request: "
_NOBODY = Signer("", "nobody")
"""Verified for unknown users, so that they take as long to refuse as known ones."""
_READS_ONLY = "this token only reads."
_READ = {Action.GET, Action.LIST, Action.SUB, Action.PUB}
_READ_ONLY = {Action.GET, Action.LIST, Action.SUB}
_VOUCHED = "vouched"
"""Session key."""
_COUNTED = "countedFor"
"""Session key."""
_PROOF = b"mqspark knows this secret"
_SIGN_IN = "SIGN IN"


class Audited(NamedTuple):
    """A decision, for the audit log."""

    user: str
    """Empty for an anonymous request."""
    peer: str
    code: int
    resources: tuple[str, ...]
    allowed: bool
    reason: str
    changes: bool
    """Whether the request would change more than messages and offsets."""
    request: str = ""
    """The name of an action that is not a remoting request; ``code`` names remoting requests."""


class _Vouched(NamedTuple):
    """The user of a connection inside this process, as verified by the shell."""

    user: str
    proof: str
    reads_only: bool


class Moved(Refusal):
    """The session was made for the user at another address, and policies name addresses. A new one may be made for this
    address, at which the user may do something."""


class Grant:
    """That a user was allowed a request that waits. It is judged again when users or policies have changed since."""

    __slots__ = ("_gate", "_is_checked", "_known")

    def __init__(self, gate: Gate, known: KnownUser, *, is_checked: bool) -> None:
        self._gate = gate
        self._known = known
        self._is_checked = is_checked

    def problem(self, topic: str, group: str) -> str:
        """Why the user may no longer consume the topic for the group; '' if they may."""
        return self._judged(lambda facts: _consumption(facts, topic, group))

    def problem_of(self, command: Command) -> str:
        """Why the request may no longer be answered; '' if it may."""
        return self._judged(lambda facts: _needs(facts, command))

    def _judged(self, needs: Callable[[Facts], Iterable[Access]]) -> str:
        again = self._gate.known_again(self._known)
        if again is None:
            return _FAILED
        if again is not self._known:
            problem = self._gate.lost(again, needs) if self._is_checked else ""
            if problem:
                return problem
            self._known = again
        return ""


def _consumption(facts: Facts, topic: str, group: str) -> Iterator[Access]:
    asked, sub = AskedFor(Command(0), facts), frozenset({Action.SUB})
    yield from asked.topic(topic, sub, group)
    yield from asked.group(group, sub)


def _needs(facts: Facts, command: Command) -> Iterator[Access]:
    for need in TABLE[command.code].needs:
        yield from need.find(AskedFor(command, facts), need.actions)


class KnownUser:
    """The last user of a connection, and the cached decisions for it."""

    __slots__ = ("allowed", "generation", "source", "user")

    def __init__(self, user: User, source: str, generation: int) -> None:
        self.user = user
        self.source = ipaddress.ip_address(source)
        self.generation = generation
        self.allowed: set[tuple[int, Access]] = set()


class Gate:
    """``audit`` receives refusals, changes, and the first use of a resource by each connection."""

    def __init__(
        self,
        config: AuthConfig,
        users: Users,
        facts: Facts,
        audit: Callable[[Audited], None] = lambda audited: None,
        clock: Clock | None = None,
        provider: Loaded[AuthenticationProvider] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._provider = provider
        self.attempts = Attempts()
        self._users = users
        self._facts = facts
        self._audit = audit
        self._unsigned = config.unsigned_codes
        self._unchecked = config.unchecked_codes
        self._authorizes = config.authorization_enabled
        self._bindings = Bindings(config, facts, self._clock)
        self._believes_certificates = config.authenticate_by_certificate
        self.max_connections = 0
        """Limit for each user other than super users; 0: no limit. Set by a core that calls ``left``."""
        self._connections: Counter[str] = Counter()
        """User → number of connections."""
        self.decisions: Counter[str] = Counter(allowed=0, unauthenticated=0, forbidden=0, limited=0)
        """Outcome → count: ``allowed``, ``unauthenticated``, ``forbidden``; ``limited`` after too many failures."""

    def guard(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers behind the gate."""
        return {code: self._guarded(code, handler) for code, handler in handlers.items()}

    def _guarded(self, code: int, handler: Handler) -> Handler:
        row = TABLE.get(code)

        def guarded(session: Session, command: Command) -> bytes | Slices | None:
            self._check(session, command, row)
            return handler(session, command)

        return guarded

    # --- who ---

    def user_of(self, session: Session) -> User | None:
        """The user of the connection's last request."""
        known = session.attributes.get(_KNOWN)
        return known.user if isinstance(known, KnownUser) else None

    def limited_user(self, session: Session) -> str:
        """The name of the connection's user, or of the user for whom a super user makes its requests, if limits for one
        user apply; empty for a super user and an anonymous connection."""
        user = self.user_of(session)
        if user is not None and user.is_super:
            user = self._users.find(str(session.attributes.get(ON_BEHALF_OF, "")))
        return "" if user is None or user.is_super else user.name

    def _identify(self, session: Session, command: Command) -> KnownUser | None:
        """The user of the request; None if it needs no signature. Raises Refusal."""
        vouched = session.attributes.get(_VOUCHED)
        if isinstance(vouched, _Vouched):
            return self._vouched_user(session, vouched, command.code)
        if command.code in self._unsigned:
            return None
        if self._provider is not None:
            provided = self._user_of_provider(session, command, self._provider)
            if provided is not None:
                return provided
        ext = command.ext
        name, given = ext.get(ACCESS_KEY), ext.get(SIGNATURE)
        certified = session.attributes.get(CERTIFICATE_NAME) if self._believes_certificates else None
        if isinstance(certified, str) and not name and not given:
            return self._user_of_certificate(session, certified, command.code)
        if not name or not given:
            raise self._refused(
                session, command.code, "unauthenticated", "username cannot be null.", name or ""
            )
        known = self._known(session, name)
        is_new = known is None
        if known is None:
            self._check_failures(session, command.code, name)
            user = self._users.enabled(name)
            known = None if user is None else KnownUser(user, _address(session), self._users.generation)
        signer = _NOBODY if known is None else known.user.signer
        if UNIQUE_KEY_QUERY in ext and command.version <= UNSIGNED_UNTIL:
            ext = {field: value for field, value in ext.items() if field != UNIQUE_KEY_QUERY}
        try:
            signed = signed_text(ext)
        except UnicodeEncodeError:
            raise self._refused(session, command.code, "unauthenticated", _FAILED, name) from None
        expected = signer.signature(signed.content, command.body)
        is_right = hmac.compare_digest(
            expected.encode(), given[:MAX_SIGNATURE_LENGTH].encode("utf-8", "replace")
        )
        if known is None or not is_right:
            self.attempts.note(_address(session), self._clock.monotonic_ms(), name)
            raise self._refused(session, command.code, "unauthenticated", _FAILED, name)
        self._check_binding(session, command, signed, known.user)
        if is_new:
            self.attempts.let_in(_address(session), name)
            self._count(session, command.code, known.user)
        session.attributes[_KNOWN] = known
        return known

    def _user_of_provider(
        self, session: Session, command: Command, provider: Loaded[AuthenticationProvider]
    ) -> KnownUser | None:
        """The user that the provider names; None: the signature decides. Raises Refusal."""
        ext, code = command.ext, command.code
        claimed = ext.get(ACCESS_KEY, "")
        if self._known(session) is None:
            self._check_failures(session, code, claimed)
        certified = session.attributes.get(CERTIFICATE_NAME)
        try:
            signed = signed_text(ext)
        except UnicodeEncodeError:
            raise self._refused(session, code, "unauthenticated", _FAILED, claimed) from None
        credentials = PresentedCredentials(
            claimed,
            ext.get(SIGNATURE, ""),
            signed.content,
            command.body,
            MappingProxyType(ext),
            code,
            session.peer,
            certified if isinstance(certified, str) else "",
        )
        try:
            name = provider.ask(provider.hooks.authenticate, credentials)
        except Refusal as refusal:
            self.attempts.note(_address(session), self._clock.monotonic_ms(), claimed)
            raise self._refused(session, code, "unauthenticated", refusal.remark, claimed) from None
        except Exception:  # counted and logged
            remark = f"the extension {provider.counts.name} failed"
            raise self._refused(session, code, "unauthenticated", remark, claimed) from None
        if name is None:
            return None
        known = self._known(session, name)
        is_new = known is None
        if known is None:
            user = self._users.enabled(name)
            if user is None:
                self.attempts.note(_address(session), self._clock.monotonic_ms(), claimed)
                raise self._refused(session, code, "unauthenticated", _FAILED, claimed)
            known = KnownUser(user, _address(session), self._users.generation)
        if SIGNATURE in ext:
            self._check_binding(session, command, signed, known.user)
        if is_new:
            self._count(session, code, known.user)
            session.attributes[_KNOWN] = known
        return known

    def _check_binding(self, session: Session, command: Command, signed: SignedText, user: User) -> None:
        """Raises Refusal unless the user has signed this request to this server, as far as its client says that."""
        problem = self._bindings.problem(session, command, signed, user)
        if problem:
            raise self._refused(session, command.code, "unauthenticated", _NOT_MEANT + problem, user.name)

    def _count(self, session: Session, code: int, user: User) -> None:
        """Count the connection for this user. Raises Refusal when the user has too many."""
        before = session.attributes.get(_COUNTED)
        most = self.max_connections
        if not most or before == user.name:
            return
        if self._connections[user.name] >= most and not user.is_super:
            remark = f"User:{user.name} has {most} connections, which is maxConnectionsPerUser."
            raise self._refused(session, code, "limited", remark, user.name)
        self.left(session)
        self._connections[user.name] += 1
        session.attributes[_COUNTED] = user.name

    def limited(self, session: Session, kind: str, remark: str) -> None:
        """Audit that the connection's user has reached the limit of ``kind`` for one user."""
        self.decisions["limited"] += 1
        self._audit(
            Audited(
                self.limited_user(session), session.peer, 0, (kind,), False, remark, False, request="HOLD"
            )
        )

    def left(self, session: Session) -> None:
        """Stop counting the connection for its user."""
        name = session.attributes.pop(_COUNTED, None)
        if isinstance(name, str):
            self._connections[name] -= 1
            if not self._connections[name]:
                del self._connections[name]

    def _user_of_certificate(self, session: Session, name: str, code: int) -> KnownUser:
        """The user that the connection's certificate names. Raises Refusal."""
        known = self._known(session, name)
        if known is not None:
            return known
        user = self._users.enabled(name)
        if user is None:
            raise self._refused(session, code, "unauthenticated", "the certificate names no user.", name)
        self._count(session, code, user)
        known = session.attributes[_KNOWN] = KnownUser(user, _address(session), self._users.generation)
        return known

    def _check_failures(self, session: Session, code: int, name: str, address: str = "") -> None:
        """Refuse a user that failed too often from this address, the session's if it is empty, even with a correct
        signature. Refuse every new user at an address with too many failures. Established connections keep working.
        Raises Refusal."""
        source = address or _address(session)
        wait_ms = self.attempts.wait_ms(source, self._clock.monotonic_ms(), name)
        if wait_ms:
            remark = (
                f"too many wrong signatures of this user from this address, wait {-(-wait_ms // 1000)} s."
            )
            raise self._refused(session, code, "limited", remark, name)

    def prove(self, name: str, secret: str) -> str | None:
        """Verify the secret of an enabled user. Returns a proof for ``vouch``, valid until the secret changes; None if
        the secret is wrong. Takes the same time for an unknown user."""
        user = self._users.enabled(name)
        signer = _NOBODY if user is None else user.signer
        given = Signer(name, secret).signature(_PROOF)
        is_right = hmac.compare_digest(given, signer.signature(_PROOF))
        return given if is_right and user is not None else None

    def holds(self, name: str, proof: str) -> User | None:
        """The user of a proof; None once the user is removed or disabled, or has another secret."""
        user = self._users.enabled(name)
        is_right = user is not None and hmac.compare_digest(user.signer.signature(_PROOF), proof)
        return user if is_right else None

    def vouch(self, session: Session, name: str, proof: str, *, reads_only: bool = False) -> None:
        """Attribute all requests of this connection, which must be inside the process, to the user. ``reads_only``:
        requests that change something are refused whatever the policies say."""
        session.attributes[_VOUCHED] = _Vouched(name, proof, reads_only)

    def sign_in(self, session: Session, name: str, content: bytes, digest: bytes, address: str = "") -> None:
        """Attribute all requests of this connection, which must be inside the process, to the user, if ``digest`` is
        the HMAC-SHA1 of ``content`` under the user's secret. ``address``: of who says so, if the connection was made
        for somebody who may have been elsewhere. Raises Refusal: Moved when another could be made for that address."""
        is_new = self._known(session, name) is None
        source = address.partition("%")[0] or _address(session)
        is_elsewhere = source != _address(session)
        if is_new or is_elsewhere:
            self._check_failures(session, 0, name, source)
        user = self._users.enabled(name)
        expected = (_NOBODY if user is None else user.signer).signature(content)
        is_right = hmac.compare_digest(expected, base64.b64encode(digest).decode())
        if not is_right or user is None:
            self.attempts.note(source, self._clock.monotonic_ms(), name)
            raise self._refused(session, 0, "unauthenticated", _FAILED, name, request=_SIGN_IN)
        acl = self._users.acl(name) if is_elsewhere else None
        if acl is not None and acl.names_sources:
            remark = (
                f"User:{name} has policies for addresses, and this client is at another one than {source}"
            )
            refusal = self._refused(session, 0, "forbidden", remark, name, request=_SIGN_IN)
            raise Moved(refusal.code, remark) if acl.allows_from(source) else refusal
        if is_new:
            self.attempts.let_in(source, name)
            self._count(session, 0, user)
            session.attributes[_KNOWN] = KnownUser(user, _address(session), self._users.generation)
            self.vouch(session, name, user.signer.signature(_PROOF))

    def _vouched_user(self, session: Session, vouched: _Vouched, code: int, request: str = "") -> KnownUser:
        """Raises Refusal."""
        user = self.holds(vouched.user, vouched.proof)
        if user is None:
            raise self._refused(session, code, "unauthenticated", _FAILED, vouched.user, request=request)
        known = self._known(session)
        if known is None or known.user is not user:
            known = session.attributes[_KNOWN] = KnownUser(user, _address(session), self._users.generation)
        return known

    def authorize(
        self, session: Session, kind: Kind, name: str, actions: frozenset[Action], request: str
    ) -> None:
        """Check that the user of a vouched connection may do one of ``actions``, for an operation that is not a
        remoting request. ``request`` names it in the audit log. Raises Refusal."""
        vouched = session.attributes.get(_VOUCHED)
        if not isinstance(vouched, _Vouched):
            raise self._refused(session, 0, "unauthenticated", "no user is logged in.", "", request=request)
        known = self._vouched_user(session, vouched, 0, request)
        for access in accesses(self._facts, kind, name, actions):
            if vouched.reads_only and not access.actions & _READ_ONLY:
                raise self._refused(session, 0, "forbidden", _READS_ONLY, vouched.user, access, request)
            if known.user.is_super or not self._authorizes:
                if _changes(access):
                    self._audit(
                        Audited(vouched.user, session.peer, 0, (access.key,), True, "", True, request)
                    )
            else:
                self._check_access(session, 0, known, access, request)
        self.decisions["allowed"] += 1

    def audit(self, peer: str, user: str, request: str, *, allowed: bool, reason: str = "") -> None:
        """Log a login, or its failure."""
        self.decisions["allowed" if allowed else "unauthenticated"] += 1
        self._audit(Audited(user, peer, 0, (), allowed, reason, True, request))

    def _known(self, session: Session, name: str | None = None) -> KnownUser | None:
        """The connection's last user, if it is one of this name and no user has changed since."""
        known = session.attributes.get(_KNOWN)
        if not isinstance(known, KnownUser) or self._is_stale(known):
            return None
        return known if name is None or known.user.name == name else None

    def _is_stale(self, known: KnownUser) -> bool:
        return known.generation != self._users.generation

    # --- what ---

    def _check(self, session: Session, command: Command, row: Row | None) -> None:
        """Raises Refusal, or what the handler would raise for a malformed request."""
        known = self._identify(session, command)
        name = "" if known is None else known.user.name
        if row is None or row.to_client:
            raise self._refused(
                session, command.code, "forbidden", f"code {command.code} is not allowed for any user", name
            )
        vouched = session.attributes.get(_VOUCHED)
        if isinstance(vouched, _Vouched) and vouched.reads_only and not _only_reads(row):
            raise self._refused(session, command.code, "forbidden", _READS_ONLY, vouched.user)
        if known is not None and known.user.is_super:
            if (other := self._users.find(command.ext.get(ON_BEHALF_OF, ""))) is not None:
                session.attributes[ON_BEHALF_OF] = other.name
            self._allowed(session, command, name, row)
            return
        if row.super_only:
            raise self._refused(session, command.code, "forbidden", "only a super user may do that", name)
        if not self._authorizes or command.code in self._unchecked:
            self._allowed(session, command, name, row)
            return
        if known is None:
            raise self._refused(
                session, command.code, "forbidden", "an anonymous request has no policies", ""
            )
        request = AskedFor(command, self._facts)
        for need in row.needs:
            for access in need.find(request, need.actions):
                shown = access.key if need.is_named else need.what
                self._check_access(session, command.code, known, access, shown=shown)
        self.decisions["allowed"] += 1

    def _check_access(
        self,
        session: Session,
        code: int,
        known: KnownUser,
        access: Access,
        request: str = "",
        shown: str = "",
    ) -> None:
        """``shown``: what a refusal calls the resource, if not by its name. Raises Refusal."""
        key = code, access
        if key in known.allowed:
            return
        problem = self._problem(known, access)
        if problem is not None:
            remark = (
                f"User:{known.user.name} has no permission to access {shown or access.key} from {known.source},"
                f" {problem}"
            )
            raise self._refused(session, code, "forbidden", remark, known.user.name, access, request)
        if len(known.allowed) >= MAX_DECISIONS:
            known.allowed.clear()
        known.allowed.add(key)
        name, changes = known.user.name, _changes(access)
        self._audit(Audited(name, session.peer, code, (access.key,), True, "", changes, request))

    def _problem(self, known: KnownUser, access: Access) -> str | None:
        acl = self._users.acl(known.user.name)
        decision = None if acl is None else acl.decide(access, known.source)
        if decision is Ruling.ALLOW:
            return None
        if access.instead is not None and self._problem(known, access.instead) is None:
            return None
        return "no matched policies." if decision is None else "the decision is deny."

    def may(self, session: Session, kind: Kind, name: str, *actions: Action) -> bool:
        """Whether the connection's last user may do one of the actions, where no request asks for that explicitly."""
        known = session.attributes.get(_KNOWN)
        if not isinstance(known, KnownUser):
            return False
        if self._is_stale(known):
            user = self._users.enabled(known.user.name)
            if user is None:
                return False
            known = session.attributes[_KNOWN] = KnownUser(user, str(known.source), self._users.generation)
        if known.user.is_super or not self._authorizes:
            return True
        needed = accesses(self._facts, kind, name, frozenset(actions))
        return all(self._problem(known, access) is None for access in needed)

    def grant(self, session: Session, code: int) -> Grant | None:
        """For a request with this code of the connection's last user that has to wait; None if it needs no user."""
        known = session.attributes.get(_KNOWN)
        is_vouched = isinstance(session.attributes.get(_VOUCHED), _Vouched)
        if not isinstance(known, KnownUser) or (code in self._unsigned and not is_vouched):
            return None
        return Grant(self, known, is_checked=code not in self._unchecked)

    def known_again(self, known: KnownUser) -> KnownUser | None:
        """The same user now; None when the user is gone or disabled, or has another secret."""
        if not self._is_stale(known):
            return known
        user = self.holds(known.user.name, known.user.signer.signature(_PROOF))
        return None if user is None else KnownUser(user, str(known.source), self._users.generation)

    def lost(self, known: KnownUser, needs: Callable[[Facts], Iterable[Access]]) -> str:
        """Why the user no longer has one of these rights; '' with all of them."""
        if known.user.is_super or not self._authorizes:
            return ""
        for access in needs(self._facts):
            problem = self._problem(known, access)
            if problem is not None:
                return f"User:{known.user.name} has no permission to access {access.key} any more, {problem}"
        return ""

    # --- audit ---

    def _allowed(self, session: Session, command: Command, name: str, row: Row) -> None:
        self.decisions["allowed"] += 1
        if changes_more(command.code):
            resources = tuple(need.what for need in row.needs)
            self._audit(Audited(name, session.peer, command.code, resources, True, "", True))

    def _refused(
        self,
        session: Session,
        code: int,
        outcome: str,
        remark: str,
        user: str,
        access: Access | None = None,
        request: str = "",
    ) -> Refusal:
        self.decisions[outcome] += 1
        resources = () if access is None else (access.key,)
        changes = access is not None and _changes(access)
        self._audit(Audited(user, session.peer, code, resources, False, remark, changes, request))
        return Refusal(ResponseCode.NO_PERMISSION, remark)


def changes_more(code: int) -> bool:
    """Whether a request changes more than messages and offsets."""
    row = TABLE.get(code)
    if row is None or row.super_only:
        return True
    return not {action for need in row.needs for action in need.actions} <= _READ


def _only_reads(row: Row) -> bool:
    """Whether read rights are enough for every need."""
    return not row.super_only and all(need.actions & _READ_ONLY for need in row.needs)


def _changes(access: Access) -> bool:
    return not access.actions <= _READ


def _address(session: Session) -> str:
    host = session.peer.rpartition(":")[0].strip("[]")
    return host.partition("%")[0]
