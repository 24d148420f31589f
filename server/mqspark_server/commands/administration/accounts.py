"""Users and their rules at the name servers and masters of a running cluster: each has its own, and all are told the
same. Controllers have users of their own, and so have servers of which the name servers do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqspark.auth.authadmin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from mqspark.errors import BrokerError
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.admin_headers import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateUserRequestHeader,
)
from mqspark_server.commands.refusals import CommandFailed, Missing, describe
from mqspark_server.commands.shell import ClusterShell

__all__ = ["ACTIONS", "Accounts"]

ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
"""What a rule can be about (RocketMQ's Action)."""


class Accounts:
    """Requests 3001 to 3010, to every server that has users."""

    def __init__(self, shell: ClusterShell, servers: dict[str, str]) -> None:
        """``servers``: addresses by what people call them."""
        self._shell = shell
        self._servers = servers

    @classmethod
    async def of(cls, shell: ClusterShell) -> Accounts:
        """Raises CommandFailed for a cluster without users."""
        known = {f"name server {address}": address for address in shell.admin.namesrv}
        known |= {f"broker {name}": each[0] for name, each in (await shell.brokers()).items() if 0 in each}
        found = {name: address for name, address in known.items() if await _has_users(shell, address)}
        if not found:
            raise CommandFailed("no server of this cluster has users: authenticationEnabled is false")
        return cls(shell, found)

    @property
    def servers(self) -> list[str]:
        return list(self._servers)

    async def rows(self) -> list[dict[str, Any]]:
        """Name, type, status and rules of each user, and the servers that know it."""
        found: dict[str, dict[str, Any]] = {}
        for server, address in self._servers.items():
            rules = await self._rules(address)
            for each in await self._users(address):
                name = each.username or ""
                row = found.setdefault(
                    name,
                    {
                        "user": name,
                        "type": each.user_type or "Normal",
                        "status": each.user_status or "enable",
                        "servers": [],
                        "rules": rules.get(name, []),
                    },
                )
                row["servers"].append(server)
        return [found[name] for name in sorted(found)]

    async def _users(self, address: str) -> list[UserInfo]:
        code = RequestCode.AUTH_LIST_USER
        answer = await self._shell.admin.ask(address, code, ListUsersRequestHeader(filter=""))
        return decode_body(list[UserInfo], answer.body) if len(answer.body) else []

    async def _rules(self, address: str) -> dict[str, list[dict[str, Any]]]:
        """By user."""
        header = ListAclsRequestHeader(subject_filter="", resource_filter="")
        answer = await self._shell.admin.ask(address, RequestCode.AUTH_LIST_ACL, header)
        found: dict[str, list[dict[str, Any]]] = {}
        for each in decode_body(list[AclInfo], answer.body) if len(answer.body) else []:
            name = (each.subject or "").partition(":")[2]
            for policy in each.policies or ():
                found.setdefault(name, []).extend(
                    {
                        "decision": entry.decision or "",
                        "resource": entry.resource or "",
                        "actions": list(entry.actions or ()),
                        "sources": list(entry.source_ips or ()),
                    }
                    for entry in policy.entries or ()
                )
        return found

    async def must_have(self, name: str) -> None:
        """Raises Missing."""
        known = [row["user"] for row in await self.rows()]
        if name not in known:
            raise Missing("user", name, known, "mqspark user list")

    async def add(self, name: str, password: str, kind: str) -> None:
        """Make the user where it is not, and give it this password and type where it is."""
        for server, address in self._servers.items():
            is_known = name in [each.username for each in await self._users(address)]
            info = UserInfo(username=name, password=password, user_type=kind)
            if is_known:
                await self._tell(
                    server, RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader(username=name), info
                )
            else:
                await self._tell(
                    server, RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader(username=name), info
                )

    async def change(self, name: str, *, password: str | None = None, status: str | None = None) -> None:
        """``status``: enable or disable."""
        info = UserInfo(username=name, password=password, user_status=status)
        for server in self._servers:
            await self._tell(
                server, RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader(username=name), info
            )

    async def remove(self, name: str) -> None:
        for server in self._servers:
            await self._tell(server, RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader(username=name))

    async def rule(
        self, name: str, resource: str, actions: Sequence[str], sources: Sequence[str], *, allows: bool
    ) -> None:
        """Replaces the user's rule about ``resource``, e.g. ``Topic:Orders`` or ``Group:bill*``."""
        entry = PolicyEntryInfo(
            resource=resource,
            actions=list(actions),
            decision="Allow" if allows else "Deny",
            source_ips=list(sources),
        )
        subject = f"User:{name}"
        info = AclInfo(subject=subject, policies=[PolicyInfo(policy_type="Custom", entries=[entry])])
        for server in self._servers:
            await self._tell(
                server, RequestCode.AUTH_CREATE_ACL, CreateAclRequestHeader(subject=subject), info
            )

    async def forget(self, name: str, resource: str) -> None:
        header = DeleteAclRequestHeader(subject=f"User:{name}", policy_type="Custom", resource=resource)
        for server in self._servers:
            await self._tell(server, RequestCode.AUTH_DELETE_ACL, header)

    async def _tell(
        self, server: str, code: int, header: Any, info: UserInfo | AclInfo | None = None
    ) -> None:
        """Raises CommandFailed, which names the server that refused: those before it have done it."""
        try:
            await self._shell.admin.ask(
                self._servers[server], code, header, b"" if info is None else encode_body(info)
            )
        except BrokerError as error:
            done = self.servers[: self.servers.index(server)]
            so_far = f" ({', '.join(done)} did it before)" if done else ""
            raise CommandFailed(f"{server} refuses{so_far}: {describe(error)}") from error


async def _has_users(shell: ClusterShell, address: str) -> bool:
    header = ListUsersRequestHeader(filter="")
    try:
        await shell.admin.ask(address, RequestCode.AUTH_LIST_USER, header)
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED or "has no users" in (error.remark or ""):
            return False
        raise
    return True
