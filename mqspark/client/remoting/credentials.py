"""A client's identity: an access key and a secret key, from the program, the environment or a file.

The keys are in no ``repr``, log line or error. Facts: RocketMQ's SessionCredentials, AclClientRPCHook.
"""

from __future__ import annotations

import os
import re
import stat
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mqspark.base.clock import wall_ms
from mqspark.base.textfile import text_of
from mqspark.errors import ConfigError
from mqspark.protocol.binding import Binder
from mqspark.protocol.signature import Signer

ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN = "MQSPARK_ACCESS_KEY", "MQSPARK_SECRET_KEY", "MQSPARK_SECURITY_TOKEN"
CREDENTIALS_FILE = "MQSPARK_CREDENTIALS_FILE"
"""Variables of the environment."""
MAX_CREDENTIALS_BYTES = 64 * 1024

_LINE = re.compile(r"\s*(\w+)\s*[:=]\s*(.*?)\s*")


@dataclass(frozen=True)
class Credentials:
    """An access key (RocketMQ 5: a user's name) and its secret key (the password), which sign every request.

    Both APIs, the admin and Spark take them: ``Producer(..., credentials=Credentials("orders", secret))``. Without
    them a client reads the environment: MQSPARK_ACCESS_KEY, MQSPARK_SECRET_KEY and MQSPARK_SECURITY_TOKEN, or a file
    named by MQSPARK_CREDENTIALS_FILE. A signature does not hide anything: over a network, use TLS as well. Raises
    ConfigError for an empty key.
    """

    access_key: str = field(repr=False)
    """Names the user to the brokers."""
    secret_key: str = field(repr=False)
    """The secret; known to the user and the brokers, and never sent."""
    security_token: str | None = field(default=None, repr=False)
    """Sent with every request, for servers that issue temporary keys."""

    def __post_init__(self) -> None:
        for key in ("access_key", "secret_key"):
            value = getattr(self, key)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{key} must be a text that is not empty", key=key)
        if not isinstance(self.security_token, (str, types.NoneType)):
            raise ConfigError("security_token must be a text or None", key="security_token")

    @classmethod
    def from_environment(cls) -> Credentials | None:
        """Credentials from the environment; None if it has none. Raises ConfigError if it has only one of the keys."""
        access_key, secret_key = os.environ.get(ACCESS_KEY), os.environ.get(SECRET_KEY)
        if access_key and secret_key:
            return cls(access_key, secret_key, os.environ.get(SECURITY_TOKEN) or None)
        if access_key or secret_key:
            missing = SECRET_KEY if access_key else ACCESS_KEY
            raise ConfigError(f"the environment lacks {missing}", key=missing)
        path = os.environ.get(CREDENTIALS_FILE)
        return cls.from_file(path) if path else None

    @classmethod
    def from_file(cls, path: str | Path, *, private: bool = False) -> Credentials:
        """From lines ``accessKey: …``, ``secretKey: …`` and, if need be, ``securityToken: …``, as in RocketMQ's
        ``tools.yml``. ``private``: only its owner, this user or root, may have access to it. Raises ConfigError.

        >>> Credentials.from_file("/run/secrets/mqspark")
        Credentials()
        """
        try:
            # A pipe without a writer does not block.
            with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
                if private:
                    _check_private(path, os.fstat(file.fileno()))
                content = file.read(MAX_CREDENTIALS_BYTES + 1)
        except OSError as error:
            raise ConfigError(
                f"cannot read the credentials file {path}: {error.strerror}", key="credentials"
            ) from None
        values = _values(
            text_of(content, f"the credentials file {path}", MAX_CREDENTIALS_BYTES, "credentials")
        )
        for key in ("accessKey", "secretKey"):
            if not values.get(key):
                raise ConfigError(f"the credentials file {path} has no line {key}: ...", key=key)
        return cls(values["accessKey"], values["secretKey"], values.get("securityToken") or None)


def _check_private(path: str | Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"the credentials file {path} is not a regular file", key="credentials")
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"the credentials file {path} belongs to another user", key="credentials")
    if found.st_mode & 0o077:
        raise ConfigError(
            f"the credentials file {path} is open to others (mode {found.st_mode & 0o777:04o}); chmod 600 it",
            key="credentials",
        )


def _values(text: str) -> Mapping[str, str]:
    values = {}
    for line in text.splitlines():
        if found := _LINE.fullmatch(line):
            value = found[2]
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            values[found[1]] = value[1:-1] if quoted else value
    return values


def signer_of(credentials: Credentials | Literal[False] | None) -> Signer | None:
    """The signer for these credentials; None: for those of the environment; False: none. Raises ConfigError."""
    if credentials is None:
        credentials = Credentials.from_environment()
    if not credentials:
        return None
    return Signer(credentials.access_key, credentials.secret_key, credentials.security_token)


def bound(signer: Signer, address: str, peer: Sequence[object] | None) -> Binder:
    """Signs the requests of a new connection to ``address``; ``peer`` is the other end's name as the socket has it."""
    import secrets  # who signs nothing does without OpenSSL's hashes

    # Servers compare the time with theirs, whatever clock a program is given.
    return Binder(signer, address, peer, secrets.token_urlsafe(12), wall_ms)
