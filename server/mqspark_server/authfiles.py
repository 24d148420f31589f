"""Users of a server on its disk: the file of users, the key under which secrets are sealed, and the audit log.

    DIR/users.auth       users and policies (mqspark.auth.users)
    DIR/users.auth.key   256 bits in hex, readable only by the owner; MQSPARK_AUTH_KEY replaces it
    DIR/audit.log        decisions (auditlog)
    DIR/users.auth.lock  locked while a server or a tool uses the users

The key is created with the first user. Both files together reveal the secrets, so a backup should have only the first.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from mqspark.auth.authority import Authority
from mqspark.auth.config import AuthConfig
from mqspark.auth.plainacl import MAX_PLAIN_ACL_BYTES, PlainAccount, read_accounts
from mqspark.base.clock import Clock
from mqspark.base.textfile import text_of
from mqspark.errors import ConfigError, ProtocolError
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import OsFiles, give_to_owner
from mqspark_server.auditlog import AuditLog

USERS_FILE = "users.auth"
KEY_FILE = "users.auth.key"
LOCK_FILE = "users.auth.lock"
KEY_VARIABLE = "MQSPARK_AUTH_KEY"
KEY_BYTES = 32
_NONCE_BYTES = 12
_OTHERS = 0o077
_MAX_KEY_FILE_BYTES = 1024


class AesGcm:
    """AES-256-GCM with a random nonce before the ciphertext (``mqspark.auth.users.Cipher``)."""

    def __init__(self, key: bytes) -> None:
        """Raises ConfigError without the package ``cryptography``."""
        if importlib.util.find_spec("cryptography") is None:
            raise ConfigError(
                "authentication needs the package cryptography: pip install 'mqspark[auth]'",
                key="authenticationEnabled",
            )
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(key)

    def seal(self, secret: bytes, context: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, context)

    def open(self, sealed: bytes, context: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context)
        except (InvalidTag, ValueError):
            raise ProtocolError("a secret is of another key, or was changed") from None

    def under(self, key: bytes) -> AesGcm:
        return AesGcm(key)


def auth_directory(config: AuthConfig, store: str | os.PathLike[str] | None) -> Path:
    """Where the users of a server with this store are, or of one without. Raises ConfigError."""
    if config.auth_config_path:
        return Path(config.auth_config_path).expanduser().absolute()
    if store is None:
        raise ConfigError(
            "users of a server without a store need authConfigPath: the directory of their file",
            key="authConfigPath",
        )
    return Path(store) / "config" / "auth"


def open_authority(
    config: AuthConfig,
    directory: Path,
    clock: Clock,
    *,
    needs_a_user: bool = True,
) -> tuple[Authority, Callable[[], None]]:
    """The authority, and a function that ends it. Blocks on the disk. Raises ConfigError, StoreCorrupt or OSError. A
    key is created if there is neither a key nor a file of users."""
    OsFiles().make_directory(directory)
    file = ConfigFile(directory / USERS_FILE)
    with ExitStack() as ends:
        ends.callback(os.close, _lock(directory / LOCK_FILE))
        key = _key(directory / KEY_FILE, is_new=file.load(lambda data: True) is None)
        audit = AuditLog(
            Path(config.audit_log_path).expanduser() if config.audit_log_path else directory / "audit.log",
            clock,
            max_bytes=config.audit_log_max_bytes,
            files=config.audit_log_files,
        )
        ends.callback(audit.close)
        accounts = _old_accounts(config.plain_acl_path) if config.migrate_auth_from_v1_enabled else []
        authority = Authority(
            config,
            AesGcm(key),
            file,
            audit.write,
            accounts=accounts,
            needs_a_user=needs_a_user,
            clock=clock,
        )
        return authority, ends.pop_all().close


def _old_accounts(path: str) -> list[PlainAccount]:
    with open(Path(path).expanduser(), "rb") as file:
        return read_accounts(file.read(MAX_PLAIN_ACL_BYTES + 1), path)


def _lock(path: Path) -> int:
    """Raises ConfigError while another process has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    give_to_owner(path, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigError(
            f"{path.parent} is in use: manage the users of a running server by requests (mqadmin createUser)",
            key="authConfigPath",
        ) from None
    return fd


def _key(path: Path, *, is_new: bool) -> bytes:
    text = os.environ.get(KEY_VARIABLE)
    if text is not None:
        return _parsed(text, KEY_VARIABLE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        if not is_new:
            raise ConfigError(
                f"there are users, but not their key {path}: restore it, or set {KEY_VARIABLE}",
                key=KEY_VARIABLE,
            ) from None
        return _new_key(path)
    with os.fdopen(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if mode & _OTHERS:
            raise ConfigError(f"other users can read the key {path}: chmod 0600 it", key="authConfigPath")
        return _parsed(text_of(file.read(_MAX_KEY_FILE_BYTES + 1), str(path), _MAX_KEY_FILE_BYTES), str(path))


def _new_key(path: Path) -> bytes:
    key = secrets.token_bytes(KEY_BYTES)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        give_to_owner(path, fd)
        file.write(key.hex() + "\n")
        file.flush()
        os.fsync(fd)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return key


def _parsed(text: str, source: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{source} is not a key of {KEY_BYTES} bytes in hex", key=source)
    return key
