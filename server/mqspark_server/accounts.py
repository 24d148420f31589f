"""Users and their rules at the name servers and masters of a running cluster. Each server has its own table, and every
change is sent to all of them. Controllers, and servers unknown to the name servers, are not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from mqspark.auth.authadmin import AclInfo, UserInfo
from mqspark.auth.policies import Action, PolicyEntryInfo, PolicyInfo, PolicyType, Ruling
from mqspark.auth.users import UserStatus, UserType
from mqspark.client.admin import AdminClient
from mqspark.errors import BrokerError, ClientError, InvalidMessage, MQError
from mqspark.message import MASTER_ID
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.codes import Reason, RequestCode, ResponseCode
from mqspark.protocol.command import Command, Fields
from mqspark.protocol.headers.admin_headers import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateUserRequestHeader,
)

ACTIONS = tuple(each.value for each in Action)
"""The actions of a rule (RocketMQ's Action)."""
RESOURCES = ("Cluster", "Namespace", "Topic", "Group")
"""What a rule may be about (RocketMQ's ResourceType)."""


class Ask(Protocol):
    """Asks one server."""

    async def __call__(self, code: int, header: Fields = None, body: bytes = b"", /) -> Command: ...


class ChangedInPart(ClientError):
    """``done``: the servers that made the change."""

    def __init__(self, server: str, done: Iterable[str], reason: str) -> None:
        super().__init__(f"{server} failed, but {', '.join(done)} made the change: {reason}")


class Accounts:
    """Requests 3001 to 3010, to every server that has users.

    Methods that change something raise an MQError. If nothing was changed, it is the error of the server that refused
    or cannot be reached. Otherwise it is ChangedInPart.
    """

    def __init__(self, asked: dict[str, Ask], closed: dict[str, MQError] | None = None) -> None:
        """``asked``: by names for people. ``closed``: servers that cannot be reached, or refuse these keys."""
        self.asked = asked
        self.closed = {} if closed is None else closed

    @classmethod
    async def of(cls, admin: AdminClient, cluster: str | None = None, without: str = "") -> Accounts:
        """``cluster``: the masters of this one alone. ``without``: the server at this address is left out."""
        info = await admin.cluster_info()
        names = info.broker_addr_table if cluster is None else info.cluster_addr_table.get(cluster, ())
        brokers = {name: info.broker_addr_table[name].broker_addrs for name in sorted(names)}
        known = {f"name server {address}": address for address in admin.namesrv}
        known |= {f"broker {name}": each[MASTER_ID] for name, each in brokers.items() if MASTER_ID in each}
        found: dict[str, Ask] = {}
        closed: dict[str, MQError] = {}
        for name, address in known.items():
            try:
                if address != without and await _has_users(ask := partial(admin.ask, address)):
                    found[name] = ask
            except MQError as error:
                closed[name] = error
        return cls(found, closed)

    @property
    def servers(self) -> list[str]:
        return list(self.asked)

    def check_open(self) -> None:
        """Raises the MQError of a closed server, so that a change is not applied only to some servers."""
        for error in self.closed.values():
            raise error

    async def rows(self) -> list[dict[str, Any]]:
        """Name, type, status and rules of each user, and the servers that have it. The values are those of the first of
        these servers."""
        found: dict[str, dict[str, Any]] = {}
        for server, ask in self.asked.items():
            rules = await _rules(ask)
            for each in await users_at(ask):
                name = each.username or ""
                row = found.setdefault(
                    name,
                    {
                        "user": name,
                        "type": each.user_type or UserType.NORMAL,
                        "status": each.user_status or UserStatus.ENABLE,
                        "servers": [],
                        "rules": rules.get(name, []),
                    },
                )
                row["servers"].append(server)
        return [found[name] for name in sorted(found)]

    async def missing_at(self, name: str, password: str | None) -> list[str]:
        """The servers on which the user would be created. Raises InvalidMessage when that needs a password."""
        missing = [
            server
            for server, ask in self.asked.items()
            if name not in [each.username for each in await users_at(ask)]
        ]
        if missing and not password:
            raise InvalidMessage(
                f"{', '.join(missing)} has no user {name!r}: give a password to create it there",
                field="password",
            )
        return missing

    async def put(
        self, name: str, *, password: str | None = None, kind: str | None = None, status: str | None = None
    ) -> None:
        """Change the user where it exists, and create it on the other servers, which needs ``password``. None leaves a
        value unchanged. ``kind``: Super or Normal; ``status``: enable or disable."""
        info = UserInfo(username=name, password=password, user_type=kind, user_status=status)
        missing = await self.missing_at(name, password)
        done: list[str] = []
        for server in self.asked:
            if server in missing:
                header: Any = CreateUserRequestHeader(username=name)
                await self._tell(server, done, RequestCode.AUTH_CREATE_USER, header, info)
            else:
                header = UpdateUserRequestHeader(username=name)
                await self._tell(server, done, RequestCode.AUTH_UPDATE_USER, header, info)

    async def remove(self, name: str) -> None:
        """Remove the user and its rules. A server without this user does nothing."""
        await self._tell_all(RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader(username=name))

    async def put_rules(self, name: str, policies: list[PolicyInfo]) -> None:
        """Set rules. Each replaces the user's existing rule for its resource."""
        subject = f"User:{name}"
        info = AclInfo(subject=subject, policies=policies)
        await self._tell_all(RequestCode.AUTH_CREATE_ACL, CreateAclRequestHeader(subject=subject), info)

    async def put_rule(
        self, name: str, resource: str, actions: Sequence[str], sources: Sequence[str], *, allows: bool
    ) -> None:
        """Replace the user's rule for ``resource``, e.g. ``Topic:Orders`` or ``Group:bill*``."""
        entry = PolicyEntryInfo(
            resource=resource,
            actions=list(actions),
            decision=Ruling.ALLOW if allows else Ruling.DENY,
            source_ips=list(sources),
        )
        await self.put_rules(name, [PolicyInfo(policy_type=PolicyType.CUSTOM, entries=[entry])])

    async def forget(self, name: str, resource: str | None, kind: str | None = PolicyType.CUSTOM) -> None:
        """Remove the rule for ``resource``; None: all rules."""
        header = DeleteAclRequestHeader(subject=f"User:{name}", policy_type=kind, resource=resource)
        await self._tell_all(RequestCode.AUTH_DELETE_ACL, header)

    async def _tell_all(self, code: int, header: Any, info: AclInfo | None = None) -> None:
        done: list[str] = []
        for server in self.asked:
            await self._tell(server, done, code, header, info)

    async def _tell(
        self, server: str, done: list[str], code: int, header: Any, info: UserInfo | AclInfo | None
    ) -> None:
        """Send one request. Appends ``server`` to ``done``, the servers that have made the change. Raises MQError."""
        body = b"" if info is None else encode_body(info)
        try:
            await self.asked[server](code, header, body)
        except MQError as error:
            if not done:
                raise
            raise ChangedInPart(server, done, str(error)) from error
        done.append(server)


async def users_at(ask: Ask) -> list[UserInfo]:
    answer = await ask(RequestCode.AUTH_LIST_USER, ListUsersRequestHeader(filter=""))
    return decode_body(list[UserInfo], answer.body) if len(answer.body) else []


async def _rules(ask: Ask) -> dict[str, list[dict[str, Any]]]:
    """By user."""
    answer = await ask(
        RequestCode.AUTH_LIST_ACL, ListAclsRequestHeader(subject_filter="", resource_filter="")
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for each in decode_body(list[AclInfo], answer.body) if len(answer.body) else []:
        name = (each.subject or "").partition(":")[2]
        for policy in each.policies or ():
            found.setdefault(name, []).extend(
                {
                    "kind": policy.policy_type or PolicyType.CUSTOM,
                    "decision": entry.decision or "",
                    "resource": entry.resource or "",
                    "actions": list(entry.actions or ()),
                    "sources": list(entry.source_ips or ()),
                }
                for entry in policy.entries or ()
            )
    return found


async def _has_users(ask: Ask) -> bool:
    try:
        await ask(RequestCode.AUTH_LIST_USER, ListUsersRequestHeader(filter=""))
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED or error.reason == Reason.FEATURE_OFF:
            return False
        raise
    return True
