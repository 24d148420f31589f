"""Requests 3001 to 3010: users and policies for tools (AdminBrokerProcessor).

Each change is answered when it is on disk. No answer contains a password. A super user gets the secret sealed under the
server's key; a server with the same key accepts it as a password (copyUser).

A slave has the users of its master. mqadmin's ``-c`` sends a change to both, in any order. A slave applies it at once,
even if the same change has already arrived from its master, and later drops what the master does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import msgspec

from mqspark.auth.gate import Gate
from mqspark.auth.policies import Acl, PolicyInfo, PolicyType, Resource, named
from mqspark.auth.usercopy import NONCE, UserSource
from mqspark.auth.users import SEALED_PREFIX, User, Users, UserStatus, UserType, acl_document, user_subject
from mqspark.errors import IllegalName, InvalidMessage, TableFull
from mqspark.protocol.bodies.body import Body, decode_body
from mqspark.protocol.codes import Reason, RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.headers.admin_headers import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    GetAclRequestHeader,
    GetUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateAclRequestHeader,
    UpdateUserRequestHeader,
)
from mqspark.protocol.session import Session

AnswerWhenSaved = Callable[[Session, Command], None]
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


class UserInfo(Body):
    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r})"


class AclInfo(Body):
    subject: str | None = None
    policies: list[PolicyInfo] | None = None


class AuthAdmin:
    """The handlers. ``answer_when_saved`` answers a change once the users are on disk."""

    def __init__(
        self,
        users: Users,
        gate: Gate,
        answer_when_saved: AnswerWhenSaved,
        source: UserSource,
        *,
        inner_user: str,
        is_slave: bool,
    ) -> None:
        """``inner_user``: the user to whom ``source`` gives all users, because only servers know its secret."""
        self._users = users
        self._gate = gate
        self._answer_when_saved = answer_when_saved
        self._source = source
        self._inner_user = inner_user
        self._is_slave = is_slave
        self.handlers: dict[int, Handler] = {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_GET_USER: self.get_user,
            RequestCode.AUTH_LIST_USER: self.list_users,
            RequestCode.AUTH_CREATE_ACL: self.create_acl,
            RequestCode.AUTH_UPDATE_ACL: self.update_acl,
            RequestCode.AUTH_DELETE_ACL: self.delete_acl,
            RequestCode.AUTH_GET_ACL: self.get_acl,
            RequestCode.AUTH_LIST_ACL: self.list_acls,
        }

    def _change(self, session: Session, command: Command, change: Callable[[], None]) -> None:
        _refuse_invalid(change)
        self._answer_when_saved(session, command)

    # --- users ---

    def create_user(self, session: Session, command: Command) -> None:
        name = _require_name(command.header(CreateUserRequestHeader).username)
        info = decode_body(UserInfo, command.body)

        def change() -> None:
            kind = _optional(UserType, info.user_type) or UserType.NORMAL
            status = _optional(UserStatus, info.user_status) or UserStatus.ENABLE
            if self._is_slave and self._users.find(name) is not None:
                self._users.change(name, info.password, kind, status)
            else:
                self._users.add(name, info.password, kind, status)

        self._change(session, command, change)

    def update_user(self, session: Session, command: Command) -> None:
        name = _require_name(command.header(UpdateUserRequestHeader).username)
        info = decode_body(UserInfo, command.body)
        self._change(
            session,
            command,
            lambda: self._users.change(
                name,
                info.password,
                _optional(UserType, info.user_type),
                _optional(UserStatus, info.user_status),
            ),
        )

    def delete_user(self, session: Session, command: Command) -> None:
        name = _require_name(command.header(DeleteUserRequestHeader).username)
        self._change(session, command, lambda: self._users.remove(name))

    def get_user(self, session: Session, command: Command) -> bytes:
        user = self._users.find(_require_name(command.header(GetUserRequestHeader).username))
        return ok(command, None, b"" if user is None else msgspec.json.encode(self._info(session, user)))

    def list_users(self, session: Session, command: Command) -> bytes:
        if NONCE in command.ext:
            return self._encode_copy(session, command)
        wanted = command.header(ListUsersRequestHeader).filter or ""
        infos = [self._info(session, user) for user in self._users if wanted in user.name]
        return ok(command, None, msgspec.json.encode(infos) if infos else b"")

    def _encode_copy(self, session: Session, command: Command) -> bytes:
        """For a slave."""
        asker = self._gate.user_of(session)
        if asker is None or not asker.is_super or asker.name != self._inner_user:
            remark = (
                "only a slave gets the users, with the innerClientAuthenticationCredentials of its master"
            )
            raise Refusal(ResponseCode.NO_PERMISSION, remark)
        body, is_told = self._source.answer(asker.signer, command.ext)
        if is_told:
            self._gate.audit(session.peer, asker.name, "COPY_USERS", allowed=True)
        return ok(command, None, body)

    def _info(self, session: Session, user: User) -> dict[str, str]:
        info = {"userStatus": str(user.status), "userType": str(user.type), "username": user.name}
        asker = self._gate.user_of(session)
        if asker is not None and asker.is_super:
            info["password"] = SEALED_PREFIX + user.sealed
        return info

    # --- policies ---

    def create_acl(self, session: Session, command: Command) -> None:
        """The same as ``update_acl``: an entry replaces the existing one for its resource."""
        self._put_acl(session, command, command.header(CreateAclRequestHeader).subject)

    def update_acl(self, session: Session, command: Command) -> None:
        self._put_acl(session, command, command.header(UpdateAclRequestHeader).subject)

    def _put_acl(self, session: Session, command: Command, subject: str | None) -> None:
        info = decode_body(AclInfo, command.body)

        def change() -> None:
            name = user_subject(subject)
            if info.subject and info.subject != subject:
                raise InvalidMessage("The subject of the body is not that of the header.")
            policies = [each.policy() for each in info.policies or ()]
            if not all(policy.entries for policy in policies):
                raise InvalidMessage("The policy entries is empty.")
            self._users.update_acl(name, policies)

        self._change(session, command, change)

    def delete_acl(self, session: Session, command: Command) -> None:
        header = command.header(DeleteAclRequestHeader)

        def change() -> None:
            kind = _optional(PolicyType, header.policy_type) or PolicyType.CUSTOM
            resource = Resource.parse(header.resource) if header.resource else None
            name = user_subject(header.subject)
            if not self._is_slave or self._users.acl(name) is not None:
                self._users.remove_acl(name, kind, resource)

        self._change(session, command, change)

    def get_acl(self, session: Session, command: Command) -> bytes:
        name = _refuse_invalid(lambda: user_subject(command.header(GetAclRequestHeader).subject))
        if self._users.find(name) is None:
            raise Refusal(ResponseCode.NO_PERMISSION, "The subject is not exist.")
        acl = self._users.acl(name)
        return ok(
            command, None, b"" if acl is None else msgspec.json.encode(_acl_info(name, acl_document(acl)))
        )

    def list_acls(self, session: Session, command: Command) -> bytes:
        header = command.header(ListAclsRequestHeader)
        subject, resource = header.subject_filter or "", header.resource_filter or ""
        infos = []
        for user in self._users:
            acl = self._users.acl(user.name) or Acl()
            if subject in f"User:{user.name}":
                policies = acl_document(acl, lambda entry: resource in entry.resource.key)
                if policies:
                    infos.append(_acl_info(user.name, policies))
        return ok(command, None, msgspec.json.encode(infos) if infos else b"")


def _refuse_invalid(change: Callable[[], T]) -> T:
    """Raises Refusal as RocketMQ does for an AuthenticationException or AuthorizationException."""
    try:
        return change()
    except (InvalidMessage, IllegalName, TableFull) as error:
        reason = None if isinstance(error, TableFull) else Reason.WRONG_VALUE
        raise Refusal(ResponseCode.NO_PERMISSION, str(error), reason=reason) from None


def _require_name(name: str | None) -> str:
    if not name or not name.strip():
        raise Refusal(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name


def _optional(enumeration: type[E], name: str | None) -> E | None:
    return named(enumeration, name, "value") if name and name.strip() else None


def _acl_info(name: str, policies: list[dict[str, object]]) -> dict[str, object]:
    return {"policies": policies, "subject": f"User:{name}"}
