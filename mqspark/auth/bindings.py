"""Judges the descriptions of signed requests (``mqspark.protocol.binding``): each is taken once, by the server that it
was signed for, as what it was signed as.

A request whose signed text begins with a description has to be what it describes, whatever the settings say: its
client meant this request and no other. Which users may send requests without one, as unmodified clients and mqadmin
do, is what signatureBindingRequired says.

A request is new if it comes over the connection on which its id was seen first, with a number above all before it. Ids
are remembered as long as one of their requests could still pass for its time. The table has a limit: what is dropped
early raises the time from which on unknown ids are believed, so that no request passes twice however full the table
is.

Must not know secrets: a description is authentic because the signature is, which the gate verifies first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mqspark.auth.access import Facts
from mqspark.auth.config import AuthConfig, BindingRule
from mqspark.auth.users import User
from mqspark.base.clock import Clock
from mqspark.protocol.binding import BINDING, MARK, Description, description_of, shape_of
from mqspark.protocol.command import JSON, Command
from mqspark.protocol.session import Session
from mqspark.protocol.signature import signed_names

MAX_CONNECTIONS = 32_768
"""Limit of remembered ids, of some 300 bytes each."""
LOOKED_AT = 8
"""Ids that are looked at before one is dropped."""
RESTART_MS = 1_000
"""A server has not served for longer than that before it starts."""

_MARK = MARK.encode()


class SignedText(NamedTuple):
    """What the signature of a request covers besides the body."""

    names: tuple[str, ...]
    """The names of the fields, in their order."""
    values: tuple[str, ...]
    content: bytes
    """The values, one after the other."""


def signed_text(ext: Mapping[str, str]) -> SignedText:
    """Raises UnicodeEncodeError for unpaired surrogates, which no client can have signed."""
    prepared = signed_names[tuple(ext)]
    values = prepared.values(ext)
    return SignedText(prepared.order, values, "".join(values).encode())


class _Connection:
    __slots__ = ("newest_ms", "number", "seen_ms", "session_id")

    def __init__(self, session_id: int, number: int, time_ms: int) -> None:
        self.session_id = session_id
        self.number = number
        self.newest_ms = time_ms
        """The latest time of its requests."""
        self.seen_ms = time_ms
        """The same when it was last looked at, in search of one to drop."""


class Bindings:
    def __init__(self, config: AuthConfig, facts: Facts, clock: Clock) -> None:
        self._rule = config.signature_binding_required
        self._exempt = config.binding_exempt
        self._addresses = config.binding_addresses
        self._window_ms = config.signature_binding_window_sec * 1000
        self._facts = facts
        self._clock = clock
        self._known: dict[str, _Connection] = {}
        """Id → its connection. The one that is looked at next comes first."""
        self._believed_from_ms = clock.now_ms() - RESTART_MS
        """Unknown ids are believed with requests that were signed after this time."""

    def problem(self, session: Session, command: Command, signed: SignedText, user: User) -> str:
        """Why the request is not the one that the user's client has signed; '' if it is."""
        names, values, content = signed
        if not content.startswith(_MARK) and not _continued(content, command.body).startswith(_MARK):
            return self._problem_without(user)
        described = description_of(values[0]) if names[:1] == (BINDING,) else None
        if described is None or command.serialize_type != JSON:
            return "the description of the request was taken away or changed."
        if described.code != command.code:
            return f"it was signed as code {described.code}, not {command.code}."
        is_whole = (
            len(command.ext) == len(names) + 1
        )  # old clients may leave out one more field than the signature
        shape = shape_of(names[1:], values[1:])
        if not is_whole or described.body_bytes != len(command.body) or described.shape != shape:
            return "its fields or its body are not those that were signed."
        return self._problem_of_server(session, described) or self._problem_of_time(session, described)

    def _problem_without(self, user: User) -> str:
        is_required = self._rule is BindingRule.ALL or (
            self._rule is BindingRule.SUPER_USERS and user.is_super
        )
        if not is_required or user.name in self._exempt:
            return ""
        return (
            f"signatureBindingRequired={self._rule} takes only requests with bound signatures, which clients of mqspark"
            " send; users of other clients have to be in signatureBindingExempt."
        )

    def _problem_of_server(self, session: Session, described: Description) -> str:
        own = self._addresses
        if (described.peer and described.peer == session.local) or "*" in own:
            return ""
        if not {described.peer, described.dialled}.isdisjoint({*own, *self._facts.addresses}):
            return ""
        return (
            f"it was signed for {described.dialled or described.peer} (connected to {described.peer}), and this server"
            f" is {session.local or 'elsewhere'}: signatureBindingAddresses lists the other addresses under which"
            " clients reach it."
        )

    def _problem_of_time(self, session: Session, described: Description) -> str:
        now_ms = self._clock.now_ms()
        late_ms = now_ms - described.time_ms
        if abs(late_ms) > self._window_ms:
            return (
                f"it was signed {abs(late_ms) // 1000} s {'ago' if late_ms > 0 else 'ahead'} by this server's clock;"
                f" signatureBindingWindowSec={self._window_ms // 1000} allows no more."
            )
        known = self._known.get(described.connection)
        if known is not None:
            if known.session_id != session.id or described.number <= known.number:
                return "it was sent before."
            known.number = described.number
            known.newest_ms = max(known.newest_ms, described.time_ms)
            return ""
        if self._believed_from_ms > now_ms + self._window_ms:
            # The clock was set back: nothing new could pass until it has made up for that. As after a start.
            self._believed_from_ms = now_ms
        if described.time_ms <= self._believed_from_ms:
            return "it was signed too long ago to tell whether it was sent before: send it again."
        self._make_room(now_ms)
        self._known[described.connection] = _Connection(session.id, described.number, described.time_ms)
        return ""

    def _make_room(self, now_ms: int) -> None:
        """Forget ids that cannot pass any more, and if the table is full one that could, if possible none in use."""
        for looked_at in range(LOOKED_AT):
            name = next(iter(self._known), None)
            if name is None:
                return
            connection = self._known[name]
            if connection.newest_ms + self._window_ms < now_ms:
                del self._known[name]
                continue
            if len(self._known) < MAX_CONNECTIONS:
                return
            del self._known[name]
            if connection.newest_ms > connection.seen_ms and looked_at < LOOKED_AT - 1:
                connection.seen_ms = connection.newest_ms
                self._known[name] = connection
                continue
            self._believed_from_ms = max(self._believed_from_ms, connection.newest_ms)
            return


def _continued(content: bytes, body: bytes | memoryview) -> bytes:
    """The beginning of the signed text where the values alone are too short."""
    return content + bytes(body[: len(_MARK)]) if len(content) < len(_MARK) else content
