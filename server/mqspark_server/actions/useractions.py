"""Users and their rules, at every server of a cluster that has users."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mqspark.auth.policies import PolicyType, Ruling
from mqspark.auth.users import UserStatus, UserType
from mqspark.errors import InvalidMessage
from mqspark_server.accounts import ACTIONS, RESOURCES, Accounts
from mqspark_server.actions.fields import ChoiceField, Id, Line, LineField, ListField, Text, WordsField
from mqspark_server.actions.operating import Act, Done, Facts, NotDone, Operated, Preview, Why, absent
from mqspark_server.shown.nouns import MAX_RESOURCE, rule_text
from mqspark_server.survey.surveying import Row


async def accounts_of(at: Operated) -> Accounts:
    """The accounts of every name server and master that has users. Raises the MQError of one of them when
    none shows its users to these keys."""
    accounts = await Accounts.of(at.admin, at.cluster)
    if not accounts.servers:
        accounts.check_open()
    return accounts


async def everywhere(at: Operated) -> Accounts:
    """Raises MQError, so that all servers that have users are changed, or none."""
    accounts = await accounts_of(at)
    accounts.check_open()
    if not accounts.servers:
        text = "no server of this cluster has users: authenticationEnabled is false"
        raise NotDone(Why.NOT_POSSIBLE, text)
    return accounts


class PutUser(Act, frozen=True):
    """A new user, or another password, type or status of one. ``is_new``: what it must be."""

    name: Line
    password: Text = ""
    type: Annotated[str, ChoiceField(tuple(UserType))] = ""
    status: Annotated[str, ChoiceField(tuple(UserStatus))] = ""
    is_new: bool | None = None

    def __repr__(self) -> str:
        return f"PutUser({self.name!r})"  # the password is nobody's business

    async def _accounts(self, at: Operated) -> tuple[Accounts, bool]:
        """And whether it is new. Raises InvalidMessage, MQError."""
        if not self.name:
            raise InvalidMessage("give the user's name", field="name")
        accounts = await everywhere(at)
        known = [each["user"] for each in await accounts.rows()]
        is_new = self.name not in known
        if is_new and self.is_new is False:
            raise absent("user", self.name, known)
        if not is_new and self.is_new:
            raise NotDone(Why.EXISTS, f"user {self.name} exists already", noun="user", name=self.name)
        return accounts, is_new

    async def preview(self, at: Operated) -> Preview:
        accounts, is_new = await self._accounts(at)
        if is_new and not self.password:
            raise InvalidMessage("a new user needs a password", field="password")
        facts = [
            ("Password", "a new one" if self.password else "stays"),
            ("Type", self.type or (UserType.NORMAL if is_new else "stays")),
            ("Status", self.status or (UserStatus.ENABLE if is_new else "stays")),
            ("At", ", ".join(accounts.servers)),
        ]
        verb = "Create" if is_new else "Change"
        is_dangerous = self.type == UserType.SUPER
        return Preview(f"{verb} the user {self.name}?", verb, facts, is_dangerous=is_dangerous)

    async def apply(self, at: Operated) -> Done:
        accounts, is_new = await self._accounts(at)
        kind, status = self.type or None, self.status or None
        await accounts.put(self.name, password=self.password or None, kind=kind, status=status)
        row = {"user": self.name, "type": kind, "status": status, "servers": accounts.servers}
        given = {name: value for name, value in row.items() if value is not None}
        return Done(f"user {self.name} was {'created' if is_new else 'changed'}", given)


class OfUser(Act, frozen=True):
    user: Id

    async def _found(self, at: Operated) -> tuple[Accounts, Row]:
        """With what is known of the user. Raises InvalidMessage, MQError."""
        accounts = await everywhere(at)
        known = {each["user"]: each for each in await accounts.rows()}
        if self.user not in known:
            raise absent("user", self.user, known)
        return accounts, known[self.user]

    async def facts(self, at: Operated) -> Facts:
        accounts, _ = await self._found(at)
        return [("At", ", ".join(accounts.servers))]


class DeleteUser(OfUser, frozen=True):
    title, button, is_dangerous = "Delete the user {0.user} with all rules?", "Delete", True
    done = "user {0.user} was deleted"

    async def act(self, at: Operated) -> Row:
        accounts, _ = await self._found(at)
        await accounts.remove(self.user)
        return {"user": self.user, "removed": True, "servers": accounts.servers}


class PutRule(OfUser, frozen=True):
    """Replaces the rule of a user for a resource."""

    title, button = "{0.decision} {0.user} this for {0.resource}?", "Change"
    done = "user {0.user} has a rule for {0.resource}"
    resource: Annotated[str, LineField(MAX_RESOURCE)] = ""
    decision: Annotated[str, ChoiceField(tuple(Ruling))] = ""
    actions: Annotated[tuple[str, ...], ListField(ACTIONS)] = ()
    sources: Annotated[tuple[str, ...], WordsField()] = ()

    async def facts(self, at: Operated) -> Facts:
        kind, _, name = self.resource.partition(":")
        if not self.actions or not self.decision or not name or kind not in RESOURCES:
            text = "give a decision, an action and a resource: Topic:NAME, Group:NAME or Cluster:NAME; * at the end"
            raise InvalidMessage(text, field="resource")
        return [("Rule", rule_text(msgspec.structs.asdict(self))), *await super().facts(at)]

    async def act(self, at: Operated) -> None:
        await self.facts(at)
        accounts, _ = await self._found(at)
        is_allowed = self.decision == Ruling.ALLOW
        await accounts.put_rule(self.user, self.resource, self.actions, self.sources, allows=is_allowed)


class DeleteRule(OfUser, frozen=True):
    """``kind``: of the policy; none: of all."""

    title, button, is_dangerous = "Delete the rule of {0.user} for {0.resource}?", "Delete", True
    done = "user {0.user} has no rule about {0.resource}"
    resource: Text = ""
    kind: Text = PolicyType.CUSTOM

    async def _found(self, at: Operated) -> tuple[Accounts, Row]:
        accounts, row = await super()._found(at)
        known = [rule["resource"] for rule in row["rules"]]
        if self.resource not in known:
            raise absent(f"rule of {self.user} about", self.resource, known)
        return accounts, row

    async def act(self, at: Operated) -> Row:
        accounts, _ = await self._found(at)
        await accounts.forget(self.user, self.resource, self.kind or None)
        return {"user": self.user, "resource": self.resource, "removed": True}
