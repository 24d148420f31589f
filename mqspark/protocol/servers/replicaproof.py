"""The mutual authentication of master and slave before a byte of the log is sent, sans I/O. RocketMQ has none, so its
brokers do not understand it.

Both know the secret key of one user. The slave proves it first:

    slave -> master    MAGIC, u8 n, n bytes access key, 32 bytes nonce
    master -> slave    MAGIC, 32 bytes nonce
    slave -> master    32 bytes MAC of all of the above and "slave"; its reports follow
    master -> slave    32 bytes MAC of all of the above and "master"; its data follows

MAC is HMAC-SHA256 under a key derived from the secret key. So a request's signature cannot be used as a proof, nor a
proof as a signature. A position is never negative, so no report of a RocketMQ slave begins with MAGIC. The data after
a proof is neither encrypted nor protected from modification: use TLS for that.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable

from mqspark.errors import ProtocolError
from mqspark.protocol.signature import Signer

MAGIC = b"\xffMQSPK\x00\x01"
NONCE_BYTES = MAC_BYTES = 32
MAX_KEY_BYTES = 255
_NOBODY = Signer("", secrets.token_hex())
"""Verified for unknown users, so that they take as long to refuse as known ones."""


def _mac(signer: Signer, role: bytes, transcript: bytes) -> bytes:
    key = signer.signature(b"\0mqspark replication 1").encode()
    return hmac.digest(key, role + b"\0" + transcript, "sha256")


class _Proof:
    """Collects what a peer sends, as much as the next step needs."""

    def __init__(self, broker_name: str) -> None:
        self._received = bytearray()
        self._broker = broker_name.encode()
        self.is_complete = False

    def _begins(self) -> None:
        begin = bytes(self._received[: len(MAGIC)])
        if begin != MAGIC[: len(begin)]:
            raise ProtocolError("it does not authenticate")

    def _take(self, size: int) -> bytes | None:
        if len(self._received) < size:
            return None
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _after_proof(self) -> bytes:
        """The bytes received after the proof."""
        self.is_complete = True
        rest = bytes(self._received)
        self._received.clear()
        return rest


class MasterProof(_Proof):
    """The master's side. ``signer_of`` returns the signer of an access key; None for users who may not copy the log."""

    def __init__(self, broker_name: str, signer_of: Callable[[str], Signer | None]) -> None:
        super().__init__(broker_name)
        self._signer_of = signer_of
        self._transcript = b""
        self.access_key = ""
        """The access key that the slave sent."""
        self.signer: Signer | None = None
        """The signer whose key the slave has proved to know; None before that."""

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """(bytes to send, bytes received after the proof). Raises ProtocolError."""
        self._received += data
        reply = b""
        if not self._transcript:
            reply = self._challenge()
        if not self._transcript or (proof := self._take(MAC_BYTES)) is None:
            return reply, b""
        signer = self._signer_of(self.access_key)
        expected = _mac(signer or _NOBODY, b"slave", self._transcript)
        if not hmac.compare_digest(expected, proof) or signer is None:
            raise ProtocolError("its proof is wrong, or its user is unknown, disabled or not super")
        self.signer = signer
        return reply + _mac(signer, b"master", self._transcript + proof), self._after_proof()

    def _challenge(self) -> bytes:
        self._begins()
        at = len(MAGIC)
        if len(self._received) <= at:
            return b""
        hello = self._take(at + 1 + self._received[at] + NONCE_BYTES)
        if hello is None:
            return b""
        try:
            self.access_key = hello[at + 1 : -NONCE_BYTES].decode()
        except UnicodeDecodeError:
            raise ProtocolError("its access key is not UTF-8 text") from None
        challenge = MAGIC + secrets.token_bytes(NONCE_BYTES)
        self._transcript = self._broker + b"\0" + hello + challenge
        return challenge


class SlaveProof(_Proof):
    """The slave's side. Raises ProtocolError when the access key is too long."""

    def __init__(self, broker_name: str, access_key: str, signer: Signer) -> None:
        super().__init__(broker_name)
        key = access_key.encode()
        if len(key) > MAX_KEY_BYTES:
            raise ProtocolError(f"an access key of over {MAX_KEY_BYTES} bytes cannot be proved")
        self._signer = signer
        self.hello = MAGIC + bytes([len(key)]) + key + secrets.token_bytes(NONCE_BYTES)
        """The first message to send."""
        self._transcript = b""

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """(bytes to send, bytes received after the proof). Raises ProtocolError for a master that does not know the
        secret."""
        self._received += data
        proof = b""
        if not self._transcript:
            self._begins()
            challenge = self._take(len(MAGIC) + NONCE_BYTES)
            if challenge is None:
                return b"", b""
            transcript = self._broker + b"\0" + self.hello + challenge
            proof = _mac(self._signer, b"slave", transcript)
            self._transcript = transcript + proof
        answer = self._take(MAC_BYTES)
        if answer is None:
            return proof, b""
        if not hmac.compare_digest(_mac(self._signer, b"master", self._transcript), answer):
            raise ProtocolError("it does not know the secret key of this broker")
        return proof, self._after_proof()
