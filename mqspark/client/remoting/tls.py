"""TLS for connections to brokers and name servers: trusted authorities and the client's certificate.

RocketMQ speaks TLS from the first byte on, on the same ports; a server says by ``tls.server.mode`` whether it may,
must or must not. Must not know sockets: it makes contexts for those who open them. Facts: RocketMQ's TlsHelper,
TlsSystemConfig.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from mqspark.base.pem import CERTIFICATE, PRIVATE_KEY, check_pem
from mqspark.base.valuetypes import check_fields
from mqspark.client.remoting.keywords import described
from mqspark.errors import ConfigError

TLS = "MQSPARK_TLS"
CA_FILE, CERT_FILE, KEY_FILE = "MQSPARK_TLS_CA_FILE", "MQSPARK_TLS_CERT_FILE", "MQSPARK_TLS_KEY_FILE"
KEY_PASSWORD, VERIFY_HOST_NAME = "MQSPARK_TLS_KEY_PASSWORD", "MQSPARK_TLS_VERIFY_HOST_NAME"
"""Variables of the environment."""


@described
@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """Which servers a client trusts, and the certificate that it shows them. Files are PEM.

    Any client takes them as ``tls=``, or True for all of the defaults, or an ``ssl.SSLContext`` for what is not here.
    Without ``tls`` a client reads the environment: MQSPARK_TLS=true, and MQSPARK_TLS_CA_FILE and so on for the
    fields. Files are read when a client starts. TLS 1.2 is the oldest version.

    >>> Producer("mq.example.com:9876", group="orders", tls=TlsSettings(ca_file="/etc/mq/ca.pem"))
    """

    ca_file: str | Path | None = None
    """Certificates of the authorities that are trusted; None: those of the operating system."""
    cert_file: str | Path | None = None
    """The client's certificate and its chain, for servers that ask for one."""
    key_file: str | Path | None = None
    """The key of ``cert_file``; None: it is in the same file."""
    key_password: str | None = field(default=None, repr=False)
    """The password of an encrypted key."""
    verify_host_name: bool = True
    """Whether a server's certificate must name the host or address that the client connects to. Brokers are reached
    by the address with which they registered (``brokerIP1``)."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("key_file is the key of a cert_file, which is missing", key="cert_file")

    @classmethod
    def from_environment(cls) -> TlsSettings | None:
        """TLS settings from the environment; None unless MQSPARK_TLS is true. Raises ConfigError."""
        if not _flag(TLS, default=False):
            return None
        return cls(
            ca_file=os.environ.get(CA_FILE) or None,
            cert_file=os.environ.get(CERT_FILE) or None,
            key_file=os.environ.get(KEY_FILE) or None,
            key_password=os.environ.get(KEY_PASSWORD) or None,
            verify_host_name=_flag(VERIFY_HOST_NAME, default=True),
        )


Tls = TlsSettings | ssl.SSLContext | bool
"""Types of the option ``tls``; False: no TLS, even if the environment asks for it."""


def tls_context(tls: Tls | None) -> ssl.SSLContext | None:
    """The context for these settings or those of the environment; None: no TLS. Raises ConfigError."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is None:
        tls = TlsSettings.from_environment() or False
    if tls is False:
        return None
    return _context(TlsSettings() if tls is True else tls)


def _context(settings: TlsSettings) -> ssl.SSLContext:
    of_cert = (CERTIFICATE,) if settings.key_file is not None else (CERTIFICATE, PRIVATE_KEY)
    for key, path, contents in (
        ("ca_file", settings.ca_file, (CERTIFICATE,)),
        ("cert_file", settings.cert_file, of_cert),
        ("key_file", settings.key_file, (PRIVATE_KEY,)),
    ):
        if path is not None:
            try:
                check_pem(path, *contents)
            except (OSError, ValueError) as error:
                raise _unusable(key, path, error) from None
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ValueError) as error:
        raise _unusable("ca_file", settings.ca_file, error) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.verify_host_name
    if settings.cert_file is not None:
        try:
            # Without a password OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(
                settings.cert_file, settings.key_file, lambda: settings.key_password or ""
            )
        except (OSError, ValueError) as error:
            raise _unusable("cert_file", settings.cert_file, error) from None
    return context


def _unusable(key: str, path: str | Path | None, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"TLS: {key} {path} cannot be used: {reason}", key=key)


def _flag(name: str, *, default: bool) -> bool:
    text = os.environ.get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise ConfigError(f"{name}={text[:80]!r} is neither true nor false", key=name)
    return text == "true" if text else default


def refusal_of(error: OSError, *, tls: bool) -> str:
    """The reason of a failed connection, with what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is refused ({error.verify_message}); TlsSettings(ca_file=...) names who is trusted,"
            " verify_host_name=False accepts any name"
        )
    reason = error.strerror or str(error) or "the peer closed it"
    if error.errno is not None and reason.startswith("Connect call failed"):
        reason = os.strerror(error.errno)  # asyncio names the address in its place
    broken = isinstance(error, (ssl.SSLError, ConnectionResetError, ConnectionAbortedError))
    return f"{reason}; does the server speak TLS (tls.server.mode)?" if tls and broken else reason
