"""The pages about the users of a cluster, and what they may do."""

from __future__ import annotations

from typing import Annotated

from mqspark.auth.policies import Ruling
from mqspark.auth.users import UserStatus, UserType
from mqspark.client.admin import AdminClient
from mqspark.errors import InvalidMessage
from mqspark_server.accounts import ACTIONS, Accounts
from mqspark_server.console.fields import ChoiceField, Line, LineField, ListField, Text
from mqspark_server.console.rendering import path_of
from mqspark_server.console.site import Asking, Change, Confirmation, Done, Section, View
from mqspark_server.shown.nouns import MAX_RESOURCE
from mqspark_server.survey.surveying import Row

MAX_USERS = 1_000


async def accounts_of(admin: AdminClient) -> Accounts:
    """The accounts of every name server and master that has users. Raises the MQError of one of them when
    none shows its users to these keys."""
    info = await admin.cluster_info()
    accounts = await Accounts.of(
        admin, {name: each.broker_addrs for name, each in sorted(info.broker_addr_table.items())}
    )
    if not accounts.servers:
        accounts.check_open()
    return accounts


async def _everywhere(asked: Asking) -> Accounts:
    """Raises MQError, so that all servers that have users are changed, or none."""
    accounts = await accounts_of(asked.admin)
    accounts.check_open()
    return accounts


def _places(accounts: Accounts) -> tuple[str, str]:
    return "At", ", ".join(accounts.servers)


class UserTable(View, frozen=True):
    async def show(self, asked: Asking) -> Row:
        if not asked.visitor.has_users:
            return {"supported": False}
        accounts = await accounts_of(asked.admin)
        users = await accounts.rows()
        for user in users:
            user["missing"] = [each for each in accounts.servers if each not in user["servers"]]
        return {
            "users": users[:MAX_USERS],
            "supported": True,
            "servers": accounts.servers,
            "closed": {name: str(error) for name, error in accounts.closed.items()},
            "actions": ACTIONS,
            "types": UserType,
            "statuses": UserStatus,
            "decisions": Ruling,
        }


class PutUser(Change, frozen=True):
    """A new user, or another password, type or status of one."""

    name: Line
    password: Text = ""
    type: Annotated[str, ChoiceField(tuple(UserType))] = ""
    status: Annotated[str, ChoiceField(tuple(UserStatus))] = ""

    def __repr__(self) -> str:
        return f"PutUser({self.name!r})"  # the password is nobody's business

    async def _is_new(self, accounts: Accounts) -> bool:
        """Raises InvalidMessage, MQError."""
        if not self.name:
            raise InvalidMessage("give the user's name", field="name")
        return self.name not in [each["user"] for each in await accounts.rows()]

    async def preview(self, asked: Asking) -> Confirmation:
        accounts = await _everywhere(asked)
        is_new = await self._is_new(accounts)
        if is_new and not self.password:
            raise InvalidMessage("a new user needs a password", field="password")
        facts = [
            ("User", self.name),
            ("Password", "a new one" if self.password else "stays"),
            ("Type", self.type or (UserType.NORMAL if is_new else "stays")),
            ("Status", self.status or (UserStatus.ENABLE if is_new else "stays")),
            _places(accounts),
        ]
        verb = "Create" if is_new else "Change"
        return Confirmation(
            f"{verb} the user {self.name}?", verb, facts, is_dangerous=self.type == UserType.SUPER
        )

    async def apply(self, asked: Asking) -> Done:
        accounts = await _everywhere(asked)
        verb = "created" if await self._is_new(accounts) else "changed"
        await accounts.put(
            self.name,
            password=self.password or None,
            kind=self.type or None,
            status=self.status or None,
        )
        return Done(f"User {self.name} was {verb}.", path_of("users"))


class DeleteUser(Change, frozen=True):
    user: Text

    async def preview(self, asked: Asking) -> Confirmation:
        facts = [("User", self.user), _places(await _everywhere(asked))]
        return Confirmation(
            f"Delete the user {self.user} with all rules?", "Delete", facts, is_dangerous=True
        )

    async def apply(self, asked: Asking) -> Done:
        await (await _everywhere(asked)).remove(self.user)
        return Done(f"User {self.user} was deleted.", path_of("users"))


class PutRule(Change, frozen=True):
    user: Text
    resource: Annotated[str, LineField(MAX_RESOURCE)] = ""
    decision: Annotated[str, ChoiceField(tuple(Ruling))] = ""
    actions: Annotated[tuple[str, ...], ListField(ACTIONS)] = ()
    sources: Text = ""

    def _sources(self) -> list[str]:
        """Raises InvalidMessage for an incomplete rule."""
        if not self.actions or not self.resource or not self.decision:
            raise InvalidMessage("give a resource, a decision and at least one action", field="resource")
        return self.sources.replace(",", " ").split()

    async def preview(self, asked: Asking) -> Confirmation:
        facts = [
            ("User", self.user),
            ("Resource", self.resource),
            ("Actions", ", ".join(self.actions)),
            ("From", ", ".join(self._sources()) or "anywhere"),
            _places(await _everywhere(asked)),
        ]
        return Confirmation(f"{self.decision} this for {self.user}?", self.decision, facts)

    async def apply(self, asked: Asking) -> Done:
        sources, is_allowed = self._sources(), self.decision == Ruling.ALLOW
        accounts = await _everywhere(asked)
        await accounts.put_rule(self.user, self.resource, self.actions, sources, allows=is_allowed)
        return Done(f"The rules of {self.user} are changed.", path_of("users"))


class DeleteRule(Change, frozen=True):
    user: Text
    resource: Text = ""
    kind: Text = ""

    async def preview(self, asked: Asking) -> Confirmation:
        facts = [("User", self.user), ("Resource", self.resource), _places(await _everywhere(asked))]
        return Confirmation("Delete this rule?", "Delete", facts, is_dangerous=True)

    async def apply(self, asked: Asking) -> Done:
        await (await _everywhere(asked)).forget(self.user, self.resource, self.kind or None)
        return Done(f"The rules of {self.user} are changed.", path_of("users"))


USER_PAGES = Section(
    "Users",
    views={"/users": (UserTable, "users.html")},
    changes={
        "/users": PutUser,
        "/users/{user}/delete": DeleteUser,
        "/users/{user}/rules": PutRule,
        "/users/{user}/rules/delete": DeleteRule,
    },
)
