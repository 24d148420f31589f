"""The metadata of a call: who calls, by which program, with what proof."""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from typing import Protocol

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


def _proof(metadata: Mapping[str, str]) -> Proof | None:
    """Raises GrpcRefusal for credentials of another form."""
    given = metadata.get("authorization")
    if not given:
        return None
    match = _AUTHORIZATION.fullmatch(given) if len(given) <= MAX_CREDENTIALS_LENGTH else None
    if match is None or match[2].strip().lower() != "x-mq-date-time":
        raise GrpcRefusal(pb.UNAUTHORIZED, "the authorization metadata is not of a form that is known")
    user = match[1].strip().partition("/")[0]  # some clients add /region/service
    if not user:
        return None  # clients without credentials sign with empty ones
    content = metadata.get("x-mq-date-time", "").encode("utf-8", "replace")
    return Proof(user, content, binascii.unhexlify(match[3]))


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
        """Of the peer."""
        ...

    def time_remaining(self) -> float | None:
        """In seconds; None: the caller waits for ever."""
        ...


class GrpcMetadata:
    """Raises GrpcRefusal for what cannot be used."""

    __slots__ = ("_given", "address", "client_id", "proof")

    def __init__(self, context: GrpcContext) -> None:
        self._given = context.metadata
        self.address = context.address
        self.client_id = self._given.get("x-mq-client-id", "").strip()
        if not self.client_id:
            raise GrpcRefusal(pb.CLIENT_ID_REQUIRED, "client id cannot be empty")
        try:
            check("client id", self.client_id, ID)
        except IllegalName as error:
            raise GrpcRefusal(pb.BAD_REQUEST, str(error)) from None
        self.proof = _proof(self._given)

    @property
    def caller(self) -> GrpcCaller:
        language = _LANGUAGES.get(self._given.get("x-mq-language", "").upper(), Language.OTHER)
        user = "" if self.proof is None else self.proof.user
        return GrpcCaller(self.client_id, user, self.address, language, _version(self.client_version))

    @property
    def client_version(self) -> str:
        """As the client says it: text."""
        return self._given.get("x-mq-client-version", "")[:64]
