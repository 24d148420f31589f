"""The metadata of a call: who calls, by which program, with what proof."""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from mqspark.base.bounded import Memo
from mqspark.base.names import ID, check
from mqspark.errors import IllegalName
from mqspark.protocol.codes import CURRENT_VERSION, Language
from mqspark.protocol.versions import version_number
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import GrpcCaller, Proof
from mqspark_server.proxy.grpcstatus import GrpcRefusal

MAX_CREDENTIALS_LENGTH = 1024

_LANGUAGES = {
    "JAVA": Language.JAVA,
    "CPP": Language.CPP,
    "DOT_NET": Language.DOTNET,
    "DOTNET": Language.DOTNET,
    "GO": Language.GO,
    "GOLANG": Language.GO,
    "RUST": Language.RUST,
    "PYTHON": Language.PYTHON,
    "PHP": Language.PHP,
    "NODE_JS": Language.NODE_JS,
    "RUBY": Language.RUBY,
}
"""By the metadata ``x-mq-language``, in upper case."""
_AUTHORIZATION = re.compile(
    r"MQv2-HMAC-SHA1\s+Credential=([^,]*),\s*SignedHeaders=([^,]*),\s*Signature=([0-9A-Fa-f]{40})\s*"
)


def _proof(given: str, signed_at: str) -> Proof | None:
    """Raises GrpcRefusal for credentials of another form."""
    if not given:
        return None
    match = _AUTHORIZATION.fullmatch(given) if len(given) <= MAX_CREDENTIALS_LENGTH else None
    if match is None or match[2].strip().lower() != "x-mq-date-time":
        raise GrpcRefusal(pb.UNAUTHORIZED, "the authorization metadata is not of a form that is known")
    user = match[1].strip().partition("/")[0]  # some clients add /region/service
    if not user:
        return None  # clients without credentials sign with empty ones
    return Proof(user, signed_at.encode("utf-8", "replace"), binascii.unhexlify(match[3]))


def _version(text: str) -> int:
    """The number of a client's version, for brokers. Clients that do not follow RocketMQ's versions have its newest."""
    given = version_number(f"V{text.replace('.', '_')}") if text.startswith("5.") else None
    return CURRENT_VERSION if given is None else given


class GrpcContext(Protocol):
    """What a method is told about its call."""

    @property
    def metadata(self) -> Mapping[str, str]: ...

    @property
    def address(self) -> tuple[str, int]:
        """The peer's."""
        ...

    def time_remaining(self) -> float | None:
        """In seconds; None: the caller waits for ever."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        ...

    def answer(self, data: bytes) -> None:
        """End a call that is served without a task."""
        ...

    def serve(self, request: Any) -> None:
        """Serve it in a task."""
        ...


class GrpcIdentity(NamedTuple):
    """Who calls, as its metadata says."""

    client_id: str
    proof: Proof | None
    language: Language
    version_text: str
    version: int
    key: tuple[str, str]
    """The client id and its user, which is empty without credentials."""


_Fields = tuple[str | None, ...]
MAX_VERSION_LENGTH = 64


def _identity(fields: _Fields) -> GrpcIdentity:
    """Raises GrpcRefusal for what cannot be used."""
    client_id, authorization, signed_at, language, version = (each or "" for each in fields)
    client_id, version = client_id.strip(), version[:MAX_VERSION_LENGTH]
    if not client_id:
        raise GrpcRefusal(pb.CLIENT_ID_REQUIRED, "client id cannot be empty")
    try:
        check("client id", client_id, ID)
    except IllegalName as error:
        raise GrpcRefusal(pb.BAD_REQUEST, str(error)) from None
    proof = _proof(authorization, signed_at)
    return GrpcIdentity(
        client_id,
        proof,
        _LANGUAGES.get(language.upper(), Language.OTHER),
        version,
        _version(version),
        (client_id, "" if proof is None else proof.user),
    )


def _identity_bytes(fields: _Fields, identity: GrpcIdentity) -> int:
    return 1_000 + 2 * sum(len(each) for each in fields if each is not None)


_identities: Memo[_Fields, GrpcIdentity] = Memo("grpc.identities", _identity, weigh=_identity_bytes)


class GrpcMetadata:
    """Raises GrpcRefusal for what cannot be used. Calls of one client say the same of it, which is read once."""

    __slots__ = ("address", "identity")

    def __init__(self, context: GrpcContext) -> None:
        get = context.metadata.get
        self.identity = _identities[
            get("x-mq-client-id"),
            get("authorization"),
            get("x-mq-date-time"),
            get("x-mq-language"),
            get("x-mq-client-version"),
        ]
        self.address = context.address

    @property
    def caller(self) -> GrpcCaller:
        given = self.identity
        return GrpcCaller(*given.key, self.address, given.language, given.version)
