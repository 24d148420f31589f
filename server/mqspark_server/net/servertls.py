"""TLS for remoting: the server's certificate, and the TLS state of one connection, in memory.

RocketMQ (TlsHelper, NettyRemotingServer) decides by the first byte of a connection: 0x16 begins a TLS handshake, and no
frame begins with it. Must not know sockets: ciphertext comes in as bytes and goes out as bytes.

TLS 1.2 is the oldest version, and renegotiation is refused: it would cost the server more than the peer.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from mqspark.base.logs import sparing
from mqspark.base.pem import CERTIFICATE, PRIVATE_KEY, check_pem
from mqspark.errors import ConfigError, ProtocolError

log = sparing("mqspark.tls")

HANDSHAKE_BYTE = 0x16
"""The record type of a handshake (RFC 8446, 5.1)."""

MAX_HANDSHAKE_BYTES = 128 * 1024
"""Limit of received bytes in a handshake; the largest part is a client's certificate chain."""

STATE_BYTES = 48 * 1024
"""What OpenSSL holds for an unfinished handshake, besides twice the bytes received (measured with OpenSSL 3.0)."""

RECORD_HEADER_BYTES = 5
TLS_MAJOR = b"\x03"
"""The second byte of every record."""
MAX_RECORD_BYTES = 16 * 1024
"""Limit of a record that is not encrypted yet."""

READ_BYTES = 64 * 1024
RELOAD_CHECK_S = 1.0
"""Shortest interval between two checks of the certificate files."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The settings ``tls.server.*``. ``client_auth`` is none, optional or require."""

    cert_path: str
    key_path: str
    key_password: str = field(repr=False)
    trust_cert_path: str
    client_auth: str
    required: bool
    crl_path: str = ""
    """Path of certificate revocation lists, in PEM. With it, a client certificate is refused unless its authority has a
    currently valid list in the file that does not contain the certificate."""

    def context(self) -> ssl.SSLContext:
        """Raises ConfigError when a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        _load(context, "tls.server", self.cert_path, self.key_path, self.key_password, self.trust_cert_path)
        if self.client_auth != "none":
            # A resumed session is not verified again: it would outlive its certificate, and the lists' time.
            context.num_tickets = 0
            context.verify_mode = ssl.CERT_REQUIRED if self.client_auth == "require" else ssl.CERT_OPTIONAL
        if self.crl_path:
            _load_lists(context, self.crl_path)
        return context

    @property
    def paths(self) -> list[str]:
        paths = self.cert_path, self.key_path, self.trust_cert_path, self.crl_path
        return [path for path in paths if path]


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The settings ``tls.client.*``, for connections of a server to other servers."""

    cert_path: str
    key_path: str
    key_password: str = field(repr=False)
    trust_cert_path: str
    verify: bool
    """Whether the other server must show a trusted certificate that names its host."""


def client_context(settings: ClientTls) -> ssl.SSLContext:
    """Raises ConfigError when a file cannot be used."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _load(
        context,
        "tls.client",
        settings.cert_path,
        settings.key_path,
        settings.key_password,
        settings.trust_cert_path,
    )
    return context


def _load(context: ssl.SSLContext, prefix: str, cert: str, key: str, password: str, trusted: str) -> None:
    of_cert = (CERTIFICATE,) if key else (CERTIFICATE, PRIVATE_KEY)
    for name, path, contents in (
        ("certPath", cert, of_cert),
        ("keyPath", key, (PRIVATE_KEY,)),
        ("trustCertPath", trusted, (CERTIFICATE,)),
    ):
        if path:
            try:
                check_pem(path, *contents)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise ConfigError(f"{prefix}.{name}={path}: {reason}", key=f"{prefix}.{name}") from None
    try:
        if cert:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(cert, key or None, password=password or "")
        if trusted:
            context.load_verify_locations(cafile=trusted)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        names = f"{prefix}.certPath={cert}, {prefix}.keyPath={key}, {prefix}.trustCertPath={trusted}"
        raise ConfigError(f"{names}: {error}", key=f"{prefix}.certPath") from None


def _load_lists(context: ssl.SSLContext, path: str) -> None:
    before = context.cert_store_stats()
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls.server.crlPath={path}: {error}", key="tls.server.crlPath") from None
    after = context.cert_store_stats()
    if after["crl"] == before["crl"] or after["x509"] != before["x509"]:
        # Certificates would become trusted ones.
        raise ConfigError(
            f"tls.server.crlPath={path} must hold lists of revoked certificates and nothing else",
            key="tls.server.crlPath",
        )
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


class Certificates:
    """The context for new connections, rebuilt when a file has changed. Established connections keep theirs."""

    def __init__(self, settings: ServerTls, protocols: Sequence[str] = ()) -> None:
        """``protocols``: what is spoken over TLS, for peers that ask (ALPN)."""
        self.settings = settings
        self._protocols = protocols
        self._context = self._new_context()
        self._seen = self._file_versions()
        self._look_at = monotonic() + RELOAD_CHECK_S

    def context(self) -> ssl.SSLContext:
        now = monotonic()
        if now >= self._look_at:
            self._look_at = now + RELOAD_CHECK_S
            self._reload()
        return self._context

    def _new_context(self) -> ssl.SSLContext:
        context = self.settings.context()
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        return context

    def _reload(self) -> None:
        seen = self._file_versions()
        if seen == self._seen:
            return
        try:
            self._context = self._new_context()
        except ConfigError as error:  # for example: the certificate is new, and its key is not yet
            log.error("the changed TLS files are not used yet: %s", error)
            return
        self._seen = seen
        log.info("TLS uses the changed files %s", ", ".join(self.settings.paths))

    def _file_versions(self) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for path in self.settings.paths:
            try:
                status = os.stat(path)
            except OSError:
                found.append((0,))
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return found


class TlsStream:
    """One connection's TLS state on the server's side."""

    __slots__ = ("_cipher_in", "_cipher_out", "_received", "_tls", "ended", "established")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._cipher_in = ssl.MemoryBIO()
        self._cipher_out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._cipher_in, self._cipher_out, server_side=True)
        self._received = 0
        self.established = False
        self.ended = False
        """Whether the peer has ended the TLS stream."""

    def receive(self, cipher: bytes) -> None:
        """Raises ProtocolError when a handshake takes too many bytes."""
        self._cipher_in.write(cipher)
        if not self.established:
            self._received += len(cipher)
            if self._received > MAX_HANDSHAKE_BYTES:
                raise ProtocolError(f"a TLS handshake of over {MAX_HANDSHAKE_BYTES} bytes")

    @property
    def held_bytes(self) -> int:
        """About what an unfinished handshake takes."""
        return STATE_BYTES + 2 * self._received

    def shake_hands(self) -> bool:
        """Continue the handshake: about a millisecond of processor time. Returns whether it is complete. Raises
        ProtocolError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise ProtocolError(f"TLS: {_reason(error)}") from None
        self.established = True
        return True

    @property
    def peer_name(self) -> str | None:
        """The common name in the subject of the peer's certificate, which is trusted; None without one, with
        several, and for a certificate that cannot be read."""
        try:
            certificate: Any = self._tls.getpeercert() or {}
        except (ssl.SSLError, UnicodeError):  # texts in it are not what they are declared as
            return None
        parts = certificate.get("subject") or ()
        names = [value for part in parts for key, value in part if key == "commonName"]
        return names[0] if len(names) == 1 and isinstance(names[0], str) else None

    def read(self) -> bytes:
        """The decrypted bytes. Raises ProtocolError; EOFError when the peer has ended the TLS stream."""
        parts = []
        try:
            while part := self._tls.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as error:
            raise ProtocolError(f"TLS: {_reason(error)}") from None
        self.ended = True
        if parts:
            return b"".join(parts)
        raise EOFError

    def encrypt(self, buffers: Iterable[bytes | memoryview]) -> bytes:
        """Nothing is sent before the first request of a peer, and so not before the handshake. Raises ProtocolError."""
        write: Callable[[bytes | memoryview], int] = self._tls.write
        try:
            for buffer in buffers:
                if len(buffer):
                    write(buffer)
        except ssl.SSLError as error:
            raise ProtocolError(f"TLS: {_reason(error)}") from None
        return self._cipher_out.read()

    def end(self) -> bytes:
        """Ciphertext that ends the TLS stream."""
        if self.established:
            try:
                self._tls.unwrap()
            except ssl.SSLError:  # raised because the peer has not ended its side, which it need not do
                return self._cipher_out.read()
        return self._cipher_out.read()

    def to_send(self) -> bytes:
        """Ciphertext of the protocol itself: handshake, alerts, key updates."""
        return self._cipher_out.read()


def has_record(data: bytes) -> bool:
    """Whether data begins with a complete record (RFC 8446, 5.1), or with what will never be one."""
    size = int.from_bytes(data[RECORD_HEADER_BYTES - 2 : RECORD_HEADER_BYTES], "big")
    is_possible = data[1:2] == TLS_MAJOR and size <= MAX_RECORD_BYTES
    return len(data) >= RECORD_HEADER_BYTES + (size if is_possible else 0)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
