"""The gate in front of the handlers of a server: each request is signed by a user, and allowed by the table
(``mqspark.auth.access``) and the user's policies, before its handler sees it (AuthenticationPipeline,
AuthorizationPipeline).

A server without authentication has no gate, and its handlers are called as they are. A connection's last user and the
decisions for it are kept, until users or policies change.

Facts: docs/rocketmq/protocol.md#policies.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mqspark.auth.access import TABLE, AskedFor, Facts, Row
from mqspark.auth.config import AuthConfig
from mqspark.auth.policies import Access, Action, Kind, Ruling
from mqspark.auth.users import User, Users, UserStatus
from mqspark.message import RETRY_PREFIX
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal
from mqspark.protocol.session import Session
from mqspark.protocol.signature import ACCESS_KEY, SIGNATURE, Signer, content_of
from mqspark.protocol.slices import Slices

__all__ = ["Audited", "Gate"]

MAX_DECISIONS = 512
"""Decisions that are kept for one connection."""
MAX_SIGNATURE_LENGTH = 64
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
UNSIGNED_UNTIL = 399
"""Clients up to V4_9_3 add UNIQUE_KEY_QUERY after signing."""

_KNOWN = "auth"
"""Session key."""
_FAILED = "check signature failed."
"""One text for an unknown user, a disabled one and a wrong signature."""
_NOBODY = Signer("", "nobody")
"""Verified for unknown users, so that they take as long to refuse as known ones."""
_READ = {Action.GET, Action.LIST, Action.SUB, Action.PUB}


class Audited(NamedTuple):
    """A decision, for the audit log."""

    user: str
    """Empty: nobody."""
    peer: str
    code: int
    resources: tuple[str, ...]
    allowed: bool
    reason: str
    changes: bool
    """Whether it would change more than messages and offsets."""


class KnownUser:
    """The last user of a connection, and what was decided for it."""

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
    ) -> None:
        self._users = users
        self._facts = facts
        self._audit = audit
        self._unsigned = config.unsigned_codes
        self._unchecked = config.unchecked_codes
        self._authorizes = config.authorization_enabled
        self.decisions: Counter[str] = Counter(allowed=0, unauthenticated=0, forbidden=0)
        """By their outcome: ``allowed``, ``unauthenticated``, ``forbidden``."""

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

    def _identify(self, session: Session, command: Command) -> KnownUser | None:
        """None: the request needs no signature. Raises Refusal."""
        if command.code in self._unsigned:
            return None
        ext = command.ext
        name, given = ext.get(ACCESS_KEY), ext.get(SIGNATURE)
        if not name or not given:
            raise self._refused(session, command, "unauthenticated", "username cannot be null.", name or "")
        known = session.attributes.get(_KNOWN)
        if not isinstance(known, KnownUser) or known.user.name != name or self._is_stale(known):
            user = self._users.find(name)
            known = None if user is None else KnownUser(user, _address(session), self._users.generation)
        signer = _NOBODY if known is None else known.user.signer
        if UNIQUE_KEY_QUERY in ext and command.version <= UNSIGNED_UNTIL:
            ext = {field: value for field, value in ext.items() if field != UNIQUE_KEY_QUERY}
        try:
            expected = signer.signature(content_of(ext), command.body)
        except UnicodeEncodeError:  # unpaired surrogates, which no client can have signed
            raise self._refused(session, command, "unauthenticated", _FAILED, name) from None
        is_right = hmac.compare_digest(
            expected.encode(), given[:MAX_SIGNATURE_LENGTH].encode("utf-8", "replace")
        )
        if known is None or not is_right or known.user.status is UserStatus.DISABLE:
            raise self._refused(session, command, "unauthenticated", _FAILED, name)
        session.attributes[_KNOWN] = known
        return known

    def _is_stale(self, known: KnownUser) -> bool:
        return known.generation != self._users.generation

    # --- what ---

    def _check(self, session: Session, command: Command, row: Row | None) -> None:
        """Raises Refusal; and, for a malformed request, as its handler would."""
        known = self._identify(session, command)
        if row is None or row.to_client:
            name = "" if known is None else known.user.name
            raise self._refused(session, command, "forbidden", f"code {command.code} is for nobody", name)
        if known is not None and known.user.is_super:
            self._allowed(session, command, known, row)
            return
        if row.super_only:
            name = "" if known is None else known.user.name
            raise self._refused(session, command, "forbidden", "only a super user may do that", name)
        if not self._authorizes or command.code in self._unchecked:
            self._allowed(session, command, known, row)
            return
        if known is None:
            raise self._refused(session, command, "forbidden", "nobody in particular has no policies", "")
        request = AskedFor(command, self._facts)
        for need in row.needs:
            for access in need.find(request, need.actions):
                self._check_access(session, command, known, access)
        self.decisions["allowed"] += 1

    def _check_access(self, session: Session, command: Command, known: KnownUser, access: Access) -> None:
        key = command.code, access
        if key in known.allowed:
            return
        problem = self._problem(known, access)
        if problem is not None:
            remark = f"User:{known.user.name} has no permission to access {access.key} from {known.source}, {problem}"
            raise self._refused(session, command, "forbidden", remark, known.user.name, access)
        if len(known.allowed) >= MAX_DECISIONS:
            known.allowed.clear()
        known.allowed.add(key)
        self._note(session, command, known.user.name, (access.key,), _changes(access), allowed=True)

    def _problem(self, known: KnownUser, access: Access) -> str | None:
        acl = self._users.acl(known.user.name)
        decision = None if acl is None else acl.decide(access, known.source)
        if decision is Ruling.ALLOW:
            return None
        return "no matched policies." if decision is None else "the decision is deny."

    def may(self, session: Session, kind: Kind, name: str, action: Action) -> bool:
        """Whether the connection's last user is allowed something that the server does for it unasked."""
        known = session.attributes.get(_KNOWN)
        if not isinstance(known, KnownUser):
            return False
        if self._is_stale(known):
            user = self._users.find(known.user.name)
            if user is None or user.status is UserStatus.DISABLE:
                return False
            known = session.attributes[_KNOWN] = KnownUser(user, str(known.source), self._users.generation)
        if known.user.is_super or not self._authorizes:
            return True
        return (
            self._problem(known, Access(kind, name.removeprefix(RETRY_PREFIX), frozenset({action}))) is None
        )

    # --- what is told ---

    def _allowed(self, session: Session, command: Command, known: KnownUser | None, row: Row) -> None:
        self.decisions["allowed"] += 1
        actions = {action for need in row.needs for action in need.actions}
        changes = row.super_only or not actions <= _READ
        if changes:
            resources = tuple(need.what for need in row.needs)
            name = "" if known is None else known.user.name
            self._note(session, command, name, resources, changes, allowed=True)

    def _refused(
        self,
        session: Session,
        command: Command,
        outcome: str,
        remark: str,
        user: str,
        access: Access | None = None,
    ) -> Refusal:
        self.decisions[outcome] += 1
        resources = () if access is None else (access.key,)
        changes = access is not None and _changes(access)
        self._note(session, command, user, resources, changes, allowed=False, reason=remark)
        return Refusal(ResponseCode.NO_PERMISSION, remark)

    def _note(
        self,
        session: Session,
        command: Command,
        user: str,
        resources: tuple[str, ...],
        changes: bool,
        *,
        allowed: bool,
        reason: str = "",
    ) -> None:
        self._audit(Audited(user, session.peer, command.code, resources, allowed, reason, changes))


def _changes(access: Access) -> bool:
    return not access.actions <= _READ


def _address(session: Session) -> str:
    host = session.peer.rpartition(":")[0].strip("[]")
    return host.partition("%")[0]
