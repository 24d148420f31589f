"""The copy of users and policies from a master to its slaves. RocketMQ has no such copy.

    slave -> master    AUTH_LIST_USER with a filter that no user's name has, a nonce, and the version that is known
    master -> slave    AES-GCM of {"version":…,"users":[…],"acls":[…]}; only the version when it is the known one

The key is derived from the nonce and the secret key of innerClientAuthenticationCredentials, which only servers know.
So no secret is sent in clear, even without TLS, and a recorded answer cannot be replayed to another request. On the
slave's disk, secrets are sealed under the slave's own key. A RocketMQ master answers that it has no such user.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable

import msgspec

from mqspark.auth.users import Cipher, Users
from mqspark.base.logs import sparing
from mqspark.errors import ProtocolError
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.signature import Signer

NONCE, VERSION = "mqsparkReplicaNonce", "mqsparkUsersVersion"
"""Fields of the slave's request."""
NONCE_LENGTH = 64
_NOBODYS_FILTER = "\0" * 3
_CONTEXT = b"mqspark users 1"
_NOT_THERE = ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED

log = sparing(__name__)


def _key(signer: Signer, nonce: str) -> bytes:
    """The 32-byte key. No signature of a request is made over the same content, so none reveals the key."""
    base = signer.signature(b"\0" + _CONTEXT).encode()
    return hmac.digest(base, nonce.encode(), "sha256")


class UserSource:
    """The master's side."""

    def __init__(self, users: Users, cipher: Cipher) -> None:
        self._users = users
        self._cipher = cipher
        self._instance = secrets.token_hex(8)
        """Distinguishes versions of this process from those of others."""

    def answer(self, signer: Signer, ext: dict[str, str]) -> tuple[bytes, bool]:
        """The body for a slave that has authenticated as ``signer``'s user, and whether it contains the users. Raises
        ProtocolError."""
        nonce = ext.get(NONCE, "")
        if len(nonce) != NONCE_LENGTH or not nonce.isascii():
            raise ProtocolError(f"{NONCE} is not a text of {NONCE_LENGTH} ASCII characters")
        version = f"{self._instance}-{self._users.generation}"
        is_known = ext.get(VERSION) == version
        document: dict[str, object] = {"version": version}
        if not is_known:
            document |= self._users.in_clear()
        text = msgspec.json.encode(document)
        return self._cipher.under(_key(signer, nonce)).seal(text, _CONTEXT), not is_known


class _Version(msgspec.Struct):
    version: str


class UserCopy:
    """The slave's side. Calls of ``question`` and ``take`` alternate."""

    def __init__(self, users: Users, cipher: Cipher, signer: Signer, is_changed: Callable[[], None]) -> None:
        """``is_changed`` is called when the master's users differ from the slave's."""
        self._users = users
        self._cipher = cipher
        self._signer = signer
        self._is_changed = is_changed
        self._nonce = ""
        self._version = ""
        self._generation = -1
        """Generation of the slave's users at the last copy; -1 before it."""
        self.is_complete = False
        """Whether the users were copied at least once, or the master has none to copy."""

    def question(self) -> dict[str, str]:
        """The fields of AUTH_LIST_USER."""
        self._nonce = secrets.token_hex(NONCE_LENGTH // 2)
        fields = {"filter": _NOBODYS_FILTER, NONCE: self._nonce}
        if self._version and self._users.generation == self._generation:
            fields[VERSION] = self._version
        return fields

    def take(self, answer: Command) -> None:
        """Apply the master's answer. Raises ProtocolError for an answer that was not made for the last ``question``."""
        if answer.code in _NOT_THERE or (answer.code == ResponseCode.SUCCESS and not answer.body):
            if not self.is_complete:
                log.warning("the master has no users to copy: this slave keeps its own")
            self.is_complete = True
            return
        if answer.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"the master refuses to send its users: {(answer.remark or '')[:200]}")
        text = self._cipher.under(_key(self._signer, self._nonce)).open(bytes(answer.body), _CONTEXT)
        try:
            version = msgspec.json.decode(text, type=_Version).version
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"the master's users cannot be decoded: {error}") from None
        if version != self._version or self._users.generation != self._generation:
            was_mine = self._generation not in (-1, self._users.generation)
            if self._users.replace(text):
                self._is_changed()
                if was_mine:
                    log.warning("users were changed on this slave only: they are replaced by the master's")
        self._version, self._generation = version, self._users.generation
        self.is_complete = True
