"""Users and their rules at the masters of a running cluster: each master has its own, and all are told the same.

Name servers and controllers have users of their own, which are set up with the server stopped (``mqspark user --store``
and ``--directory``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqspark.auth.authadmin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from mqspark.errors import BrokerError
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.codes import RequestCode
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
    """Requests 3001 to 3010, to every master."""

    def __init__(self, shell: ClusterShell, masters: dict[str, str]) -> None:
        """``masters``: addresses by broker name."""
        self._shell = shell
        self._masters = masters

    @classmethod
    async def of(cls, shell: ClusterShell) -> Accounts:
        """Raises CommandFailed for a cluster without a master."""
        masters = {name: each[0] for name, each in (await shell.brokers()).items() if 0 in each}
        if not masters:
            raise CommandFailed("the cluster has no master that could be asked; mqspark broker list shows it")
        return cls(shell, masters)

    @property
    def brokers(self) -> list[str]:
        return list(self._masters)

    async def rows(self) -> list[dict[str, Any]]:
        """Name, type, status and rules of each user, and the brokers that know it."""
        found: dict[str, dict[str, Any]] = {}
        for broker, address in self._masters.items():
            rules = await self._rules(address)
            for each in await self._users(address):
                name = each.username or ""
                row = found.setdefault(
                    name,
                    {
                        "user": name,
                        "type": each.user_type or "Normal",
                        "status": each.user_status or "enable",
                        "brokers": [],
                        "rules": rules.get(name, []),
                    },
                )
                row["brokers"].append(broker)
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
        for broker, address in self._masters.items():
            is_known = name in [each.username for each in await self._users(address)]
            info = UserInfo(username=name, password=password, user_type=kind)
            if is_known:
                await self._tell(
                    broker, RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader(username=name), info
                )
            else:
                await self._tell(
                    broker, RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader(username=name), info
                )

    async def change(self, name: str, *, password: str | None = None, status: str | None = None) -> None:
        """``status``: enable or disable."""
        info = UserInfo(username=name, password=password, user_status=status)
        for broker in self._masters:
            await self._tell(
                broker, RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader(username=name), info
            )

    async def remove(self, name: str) -> None:
        for broker in self._masters:
            await self._tell(broker, RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader(username=name))

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
        for broker in self._masters:
            await self._tell(
                broker, RequestCode.AUTH_CREATE_ACL, CreateAclRequestHeader(subject=subject), info
            )

    async def forget(self, name: str, resource: str) -> None:
        header = DeleteAclRequestHeader(subject=f"User:{name}", policy_type="Custom", resource=resource)
        for broker in self._masters:
            await self._tell(broker, RequestCode.AUTH_DELETE_ACL, header)

    async def _tell(
        self, broker: str, code: int, header: Any, info: UserInfo | AclInfo | None = None
    ) -> None:
        """Raises CommandFailed, which names the broker that refused: those before it have done it."""
        try:
            await self._shell.admin.ask(
                self._masters[broker], code, header, b"" if info is None else encode_body(info)
            )
        except BrokerError as error:
            done = list(self._masters)[: list(self._masters).index(broker)]
            so_far = f" ({', '.join(done)} did it before)" if done else ""
            raise CommandFailed(f"broker {broker} refuses{so_far}: {describe(error)}") from error
