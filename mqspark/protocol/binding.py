"""Binds a signature to one request: what RocketMQ's signature leaves open, in a field that RocketMQ ignores.

A signature (``signature``) covers one text: the values of the fields in the order of their names, then the body. It
says neither where a value ends, nor the names, nor the code, and it holds for every server and for ever. Our clients
put a description of the request at the beginning of that text. The field's name comes before all others in the order,
so its value is what the text begins with:

    !mqspark = mqspark-bound-1 code dialled peer connection number time bodyBytes names=lengths;

    code                the request code
    dialled, peer       the server: the address as it was dialled, and the one that was connected to
    connection, number  a random id of the connection, and a number that grows with every request on it
    time                milliseconds since 1970
    bodyBytes           the length of the body
    names=lengths       the other fields but the signature, in their order, and the length of each value in characters

Nobody without the secret can change a character of a signed text. So a text that begins with MARK was signed by a
client that binds its signatures, whatever fields a request has when it arrives: who takes the description away, or
moves it, is found out, and no second key or MAC is needed. The description ends at the first ``;``, and its lengths
divide the rest of the text into values and body in one way.

Not covered, because nothing depends on it: version, language, the one-way flag, the request's number (opaque) and the
remark. Must not know users, windows of time or what was seen before (``mqspark.auth.bindings``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mqspark.base.bounded import Memo
from mqspark.base.names import bracketed
from mqspark.errors import InvalidMessage
from mqspark.protocol.signature import SIGNATURE, Buffer, Signer, signed_names

BINDING = "!mqspark"
"""The name of the field. All other names begin with a letter or ``_``, which come later in the order."""
MARK = "mqspark-bound-1 "
MAX_ID_LENGTH = 64
"""The longest id of a connection."""

_MAX_DIALLED = 260
"""Characters of a host name and a port."""
_DIALLED = re.compile(rf"[0-9a-z._:\[\]-]{{1,{_MAX_DIALLED}}}")
_UNKNOWN = "-"
_PARTS = 9


def endpoint(name: Sequence[object] | None) -> str:
    """``host:port`` of a socket's name, in the same form at both ends; '' without one."""
    if not name or len(name) < 2:
        return ""
    host = str(name[0]).partition("%")[0].removeprefix("::ffff:")
    return f"{bracketed(host)}:{name[1]}"


def _shape(names: tuple[str, ...]) -> str:
    return f"{','.join(names)}=".replace("%", "%%") + ",".join(["%d"] * len(names))


_shapes: Memo[tuple[str, ...], str] = Memo("binding.shapes", _shape, max_bytes=1 << 20)


def shape_of(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Names in their order and the lengths of their values."""
    return _shapes[names] % tuple(map(len, values))


class Description(NamedTuple):
    """What a client has said of a request."""

    code: int
    dialled: str
    """Empty if it has no such form."""
    peer: str
    connection: str
    number: int
    time_ms: int
    body_bytes: int
    shape: str


def description_of(value: str) -> Description | None:
    """The description in a field's value; None if it is none."""
    if value.find(";") != len(value) - 1 or not value.startswith(MARK):
        return None
    try:
        _, code, dialled, peer, connection, number, time_ms, body_bytes, shape = value[:-1].split(
            " ", _PARTS - 1
        )
        if len(connection) > MAX_ID_LENGTH:
            return None
        dialled, peer = dialled.strip(_UNKNOWN), peer.strip(_UNKNOWN)
        numbers = int(number), int(time_ms), int(body_bytes)
        return Description(int(code), dialled, peer, connection, *numbers, shape)
    except ValueError:
        return None


class Binder:
    """Signs the requests of one connection, in the order in which they are written to it.

    ``dialled``: the address that was asked for. ``peer``: the other end's name as the socket has it. ``connection``:
    an id that no other connection has. ``now_ms``: wall time.
    """

    __slots__ = ("_now_ms", "_number", "_signer", "_to")

    def __init__(
        self,
        signer: Signer,
        dialled: str,
        peer: Sequence[object] | None,
        connection: str,
        now_ms: Callable[[], int],
    ) -> None:
        dialled = dialled.lower()
        if not _DIALLED.fullmatch(dialled):
            dialled = _UNKNOWN
        self._signer = signer
        self._now_ms = now_ms
        self._to = f"{dialled} {endpoint(peer) or _UNKNOWN} {connection}"
        self._number = 0

    def signed(self, code: int, ext: Mapping[str, str], body: Buffer = b"") -> dict[str, str]:
        """The fields of a request with those of the signer, the description and the signature. Raises InvalidMessage
        for names of fields that cannot be described."""
        complete = {**ext, **self._signer.fields}
        prepared = signed_names[tuple(complete)]
        names, values = prepared.order, prepared.values(complete)
        shape = shape_of(names, values)
        marks = shape.count("="), shape.count(","), shape.count(";")
        if marks != (1, 2 * (len(names) - 1), 0) or names[0] <= BINDING:
            raise InvalidMessage("a signed request has a field whose name cannot be signed")
        complete[BINDING] = self.description(code, self._now_ms(), len(body), shape)
        complete[SIGNATURE] = self._signer.signature("".join((complete[BINDING], *values)).encode(), body)
        return complete

    def description(self, code: int, time_ms: int, body_bytes: int, shape: str) -> str:
        """For callers that encode and sign a request themselves; others use ``signed``. Each call is a request."""
        self._number += 1
        return f"{MARK}{code} {self._to} {self._number} {time_ms} {body_bytes} {shape};"

    def signature(self, *content: Buffer) -> str:
        """As of ``Signer``."""
        return self._signer.signature(*content)
