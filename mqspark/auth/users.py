"""Users and their policies: one table, in memory and as one file (AuthenticationMetadataManager,
AuthorizationMetadataManager).

    mqspark-auth 1 <CRC-32 of the rest, 8 hex digits> <length of the rest>\\n
    {"acls":[...],"users":[...]}

In the file, a user's secret is sealed under the server's key; in memory it is only the state of an HMAC. A file that
is truncated, modified or sealed under another key is an error: an older copy could readmit a user whom an operator
has removed.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import msgspec

from mqspark.auth.policies import Acl, AclPolicy, Entry, PolicyInfo, PolicyType, Resource
from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.config import Bound
from mqspark.base.crc import crc32
from mqspark.base.names import check
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.protocol.signature import Signer

MAX_NAME_LENGTH = 128
MAX_PASSWORD_LENGTH = 512
MAX_ENTRIES = 1_024
"""Limit of policy entries for one user."""
SEALED_PREFIX = "sealed:"
"""Prefix of a password that is a secret sealed by a server with the same key, as mqadmin's copyUser sends it."""

_USER_BYTES = 2_000
"""Memory of one user, including its HMAC state."""
_ENTRY_BYTES = 1_500
_SOURCE_BYTES = 300
_MAGIC = b"mqspark-auth 1 "


class UserType(StrEnum):
    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    ENABLE = "enable"
    DISABLE = "disable"


class Cipher(Protocol):
    """Authenticated encryption under the server's key. ``context`` is authenticated, too."""

    def seal(self, secret: bytes, context: bytes) -> bytes: ...

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """The secret. Raises ProtocolError when the key, the context or the bytes differ from those of ``seal``."""
        ...

    def under(self, key: bytes) -> Cipher:
        """The same cipher under another key of 32 bytes."""
        ...


@dataclass(frozen=True, slots=True)
class User:
    name: str
    type: UserType
    status: UserStatus
    sealed: str
    signer: Signer

    @property
    def is_super(self) -> bool:
        return self.type is UserType.SUPER

    def __repr__(self) -> str:
        return f"<User {self.name!r} {self.type} {self.status}>"


def user_subject(subject: str | None) -> str:
    """The name in ``User:name``. Raises InvalidMessage or IllegalName."""
    kind, _, name = (subject or "").partition(":")
    if kind.lower() != "user" or not name:
        raise InvalidMessage("The subject is not of the form User:name.")
    _check_name(name)
    return name


def _check_name(name: str) -> None:
    if not name.strip():
        raise InvalidMessage("username can not be blank")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidMessage(f"a username has at most {MAX_NAME_LENGTH} characters")
    check("username", name)


class Users:
    """All users and policies of a server; the table of a ``SavedTable``. A method that raises InvalidMessage,
    IllegalName or TableFull has changed nothing."""

    def __init__(self, cipher: Cipher, max_bytes: Bound) -> None:
        self._cipher = cipher
        self.ledger = Ledger("users", max_bytes)
        self._users: BoundedMap[str, User] = self.ledger.map(_USER_BYTES)
        self._acls: BoundedMap[str, Acl] = self.ledger.map(_ENTRY_BYTES, _acl_bytes)
        self.generation = 0
        """Counts changes."""

    def __iter__(self) -> Iterator[User]:
        return iter(list(self._users.values()))

    def __len__(self) -> int:
        return len(self._users)

    def find(self, name: str) -> User | None:
        return self._users.get(name)

    def enabled(self, name: str) -> User | None:
        user = self._users.get(name)
        return None if user is None or user.status is UserStatus.DISABLE else user

    def secret_of(self, name: str) -> str:
        """For requests that the server sends in the user's name. Raises InvalidMessage for a user that is not there."""
        user = self._users.get(name)
        if user is None:
            raise InvalidMessage("The user is not exist")
        return self._unseal(name, user.sealed)

    def acl(self, name: str) -> Acl | None:
        return self._acls.get(name)

    # --- users ---

    def add(
        self,
        name: str,
        password: str | None,
        kind: UserType = UserType.NORMAL,
        status: UserStatus = UserStatus.ENABLE,
    ) -> None:
        _check_name(name)
        if name in self._users:
            raise InvalidMessage("The user is existed")
        sealed, signer = self._secret(name, password)
        self._users[name] = User(name, kind, status, sealed, signer)
        self.generation += 1

    def change(
        self, name: str, password: str | None, kind: UserType | None, status: UserStatus | None
    ) -> None:
        """Change a user. None leaves a value unchanged."""
        old = self._users.get(name)
        if old is None:
            raise InvalidMessage("The user is not exist")
        new = replace(old, type=kind or old.type, status=status or old.status)
        if password is not None and password.strip():
            sealed, signer = self._secret(name, password)
            new = replace(new, sealed=sealed, signer=signer)
        self._keep_a_super_user(new)
        self._users[name] = new
        self.generation += 1

    def remove(self, name: str) -> None:
        """Remove a user and its policies."""
        user = self._users.get(name)
        if user is None:
            return
        self._keep_a_super_user(replace(user, status=UserStatus.DISABLE))
        del self._users[name]
        self._put_acl(name, Acl())

    def _keep_a_super_user(self, new: User) -> None:
        """Raises InvalidMessage for a change after which no enabled super user would be left."""
        others = (user for user in self._users.values() if user.name != new.name)
        if not any(user.is_super and user.status is UserStatus.ENABLE for user in (*others, new)):
            raise InvalidMessage("the last enabled super user must stay")

    def _secret(self, name: str, password: str | None) -> tuple[str, Signer]:
        if password is None or not password.strip():
            raise InvalidMessage("password can not be blank")
        if len(password) > MAX_PASSWORD_LENGTH:
            raise InvalidMessage(f"a password has at most {MAX_PASSWORD_LENGTH} characters")
        if password.startswith(SEALED_PREFIX):
            sealed = password.removeprefix(SEALED_PREFIX)
            return sealed, self._open(name, sealed)
        return self._sealed(name, password), Signer(name, password)

    def _open(self, name: str, sealed: str) -> Signer:
        return Signer(name, self._unseal(name, sealed))

    def _unseal(self, name: str, sealed: str) -> str:
        try:
            return self._cipher.open(base64.b64decode(sealed, validate=True), name.encode()).decode()
        except (ProtocolError, binascii.Error, ValueError):
            raise InvalidMessage("the sealed password belongs to another key or another user") from None

    def _sealed(self, name: str, secret: str) -> str:
        return base64.b64encode(self._cipher.seal(secret.encode(), name.encode())).decode()

    # --- policies ---

    def update_acl(self, name: str, policies: Iterable[AclPolicy]) -> None:
        given = [policy for policy in policies if policy.entries]
        if not given:
            raise InvalidMessage("The policies is empty.")
        if name not in self._users:
            raise InvalidMessage(f"The subject of User:{name} is not exist.")
        self._put_acl(name, self._acls.get(name, Acl()).updated(given))

    def remove_acl(self, name: str, kind: PolicyType, resource: Resource | None) -> None:
        """Remove the entries for a resource; None removes all policies."""
        if name not in self._users:
            raise InvalidMessage("The subject is not exist.")
        old = self._acls.get(name)
        if old is None:
            raise InvalidMessage("The acl is not exist.")
        self._put_acl(name, Acl() if resource is None else old.without(kind, resource))

    def _put_acl(self, name: str, acl: Acl) -> None:
        if sum(len(policy.entries) for policy in acl.policies) > MAX_ENTRIES:
            raise InvalidMessage(f"a user has at most {MAX_ENTRIES} policy entries")
        if acl.policies:
            self._acls[name] = acl
        else:
            self._acls.pop(name, None)
        self.generation += 1

    # --- file ---

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        users, acls = [_user_document(user, user.sealed) for user in self._users.values()], dict(self._acls)

        def encode() -> Iterator[bytes]:
            text = msgspec.json.encode({"acls": _acl_documents(acls), "users": users})
            yield b"%b%08x %d\n" % (_MAGIC, crc32(text), len(text))
            yield text

        return encode

    def load(self, data: bytes) -> None:
        """Raises ProtocolError."""
        head, newline, text = data.partition(b"\n")
        try:
            if not newline or not head.startswith(_MAGIC):
                raise ProtocolError("it is not a file of users")
            crc, length = head.removeprefix(_MAGIC).split(b" ")
            if int(length) != len(text) or int(crc, 16) != crc32(text):
                raise ProtocolError("its checksum does not match: it was truncated or modified")
        except ValueError as error:
            raise ProtocolError(f"users cannot be read: {error}") from None
        self._put_all(*self._read(text, self._loaded))
        self.generation += 1

    def _read(
        self, text: bytes, loaded: Callable[[_SavedUser], User]
    ) -> tuple[dict[str, User], dict[str, Acl]]:
        """Raises ProtocolError."""
        try:
            document = msgspec.json.decode(text, type=_Document)
            users = {each.name: loaded(each) for each in document.users}
            acls = {each.name: _loaded_acl(each) for each in document.acls}
        except (ValueError, msgspec.MsgspecError, InvalidMessage) as error:
            raise ProtocolError(f"users cannot be read: {error}") from None
        if len(users) != len(document.users) or not acls.keys() <= users.keys():
            raise ProtocolError("users cannot be read: a user occurs twice, or policies have no user")
        return users, acls

    def _put_all(self, users: dict[str, User], acls: dict[str, Acl]) -> None:
        self._users.refill(users)
        self._acls.refill(acls)

    def _loaded(self, user: _SavedUser) -> User:
        _check_name(user.name)
        signer = self._open(user.name, user.secret)
        return User(user.name, user.type, user.status, user.secret, signer)

    # --- copies ---

    def in_clear(self) -> dict[str, object]:
        """All users with their secrets, and all policies, for ``replace`` on another server. The caller encrypts it."""
        users = [_user_document(user, self._unseal(user.name, user.sealed)) for user in self._users.values()]
        return {"acls": _acl_documents(self._acls), "users": users}

    def replace(self, text: bytes) -> bool:
        """Replace all users and policies by those of another server, as JSON of ``in_clear``. Returns whether anything
        changed. Changes nothing when it raises ProtocolError."""
        users, acls = self._read(text, self._keep_or_load)
        if not any(user.is_super and user.status is UserStatus.ENABLE for user in users.values()):
            raise ProtocolError("the users to copy have no enabled super user")
        size = sum(self._users.size_of(*each) for each in users.items())
        size += sum(self._acls.size_of(*each) for each in acls.items())
        if size > self.ledger.bound:
            raise ProtocolError(f"the users to copy need {size} bytes: raise {self.ledger.setting}")
        if (users, acls) == (self._users, self._acls):
            return False
        self._put_all(users, acls)
        self.generation += 1
        return True

    def _keep_or_load(self, user: _SavedUser) -> User:
        """The existing user if nothing changed, so that its connections and proofs stay valid; otherwise a new one."""
        _check_name(user.name)
        signer = Signer(user.name, user.secret)
        old = self._users.get(user.name)
        if old is not None and hmac.compare_digest(old.signer.signature(), signer.signature()):
            return replace(old, type=user.type, status=user.status)
        sealed = self._sealed(user.name, user.secret)
        return User(user.name, user.type, user.status, sealed, signer)


class _SavedUser(msgspec.Struct):
    name: str
    type: UserType
    status: UserStatus
    secret: str


class _SavedAcl(msgspec.Struct):
    name: str
    policies: list[PolicyInfo]


class _Document(msgspec.Struct):
    users: list[_SavedUser]
    acls: list[_SavedAcl]


def _loaded_acl(saved: _SavedAcl) -> Acl:
    # Requests may leave both out; a file that lacks one would give other rights than were saved.
    if any(not info.policy_type or info.entries is None for info in saved.policies):
        raise InvalidMessage(f"a policy of {saved.name} lacks its type, or its entries")
    return Acl(tuple(info.policy() for info in saved.policies))


def acl_document(acl: Acl, wanted: Callable[[Entry], bool] = lambda entry: True) -> list[dict[str, object]]:
    """The policies in the form of RocketMQ's AclInfo, with the entries for which ``wanted`` is true."""
    policies: list[dict[str, object]] = []
    for policy in acl.policies:
        entries = [
            {
                "actions": sorted(entry.actions),
                "decision": str(entry.decision),
                "resource": entry.resource.key,
                "sourceIps": list(entry.sources),
            }
            for entry in policy.entries
            if wanted(entry)
        ]
        if entries:
            policies.append({"entries": entries, "policyType": str(policy.type)})
    return policies


def _user_document(user: User, secret: str) -> dict[str, str]:
    return {"name": user.name, "secret": secret, "status": user.status, "type": user.type}


def _acl_documents(acls: dict[str, Acl]) -> list[dict[str, object]]:
    return [{"name": name, "policies": acl_document(acl)} for name, acl in acls.items()]


def _acl_bytes(acl: Acl) -> int:
    entries = [entry for policy in acl.policies for entry in policy.entries]
    return _ENTRY_BYTES * len(entries) + sum(_SOURCE_BYTES * len(entry.sources) for entry in entries)
