"""A certificate that signs itself, for development (TlsHelper in test mode): one for the whole process.

Peers cannot verify it: TLS with it hides what is sent from those who only listen.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import importlib.util
import logging
import shutil
import tempfile
from pathlib import Path

from mqspark.errors import ConfigError

log = logging.getLogger("mqspark.tls")

_LIFE = datetime.timedelta(days=365)
_SKEW = datetime.timedelta(days=1)
"""How far the clock of a peer may be behind."""


@functools.cache
def made_certificate() -> tuple[str, str]:
    """The paths of a new certificate and its key, which are there until the process ends.

    Raises ConfigError without the package ``cryptography``."""
    if importlib.util.find_spec("cryptography") is None:
        raise ConfigError(
            "tls.test.mode.enable needs the package cryptography: pip install 'mqspark[auth]'",
            key="tls.test.mode.enable",
        )
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    directory = Path(tempfile.mkdtemp(prefix="mqspark-tls-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    cert_path, key_path = directory / "cert.pem", directory / "key.pem"
    cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    log.warning(
        "TLS has a certificate that was made at this start, which nobody can verify: for development only"
    )
    return str(cert_path), str(key_path)
