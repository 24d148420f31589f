"""/api/v1/users: the users of this broker, and their policies.

A change is made at this broker first, and then at the name servers and the other masters of its cluster. Requests to
them use the caller's own secret, so that they apply their own users and policies.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import Field, Strict

from mqspark.auth.authadmin import AclInfo, UserInfo
from mqspark.auth.policies import Action, PolicyInfo, PolicyType, Ruling
from mqspark.auth.users import MAX_PASSWORD_LENGTH, UserStatus, UserType
from mqspark.base.document import Document
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import MQError
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.admin_headers import GetAclRequestHeader, GetUserRequestHeader
from mqspark_server.accounts import Accounts, Ask, ChangedInPart, users_at
from mqspark_server.shown.nouns import MAX_RESOURCE
from mqspark_server.web.callers import Connect
from mqspark_server.web.problems import Problem, as_problem
from mqspark_server.web.v1.asking import ERRORS, Asker, AskerNow, Given, ItemPage, PagingNow, UserName

MAX_POLICIES = 16
MAX_RULES = 1_024
_OTHERS_TIMEOUT_MS = 5_000
"""For each request to another server."""
_NOTHING = "nothing was changed: {}; with hereOnly=true this broker alone is changed"
HereOnly = Annotated[bool, Query(description="leave the name servers and the other masters as they are")]

router = APIRouter(prefix="/api/v1/users", tags=["users"], responses=ERRORS)


@dataclass(slots=True)
class UserView(Document):
    user: str
    type: str = field(metadata={"description": "Super, which needs no policy, or Normal"})
    status: str = field(metadata={"description": "enable or disable"})

    @classmethod
    def of(cls, info: UserInfo) -> UserView:
        return cls(info.username or "", info.user_type or "", info.user_status or "")


class UserChange(Given):
    """Settings of a user. An absent field is unchanged. A new user needs a password."""

    password: str | None = Field(default=None, min_length=1, max_length=MAX_PASSWORD_LENGTH, repr=False)
    type: Annotated[UserType, Strict(False)] | None = None
    status: Annotated[UserStatus, Strict(False)] | None = None


class PolicyRule(Given):
    resource: str = Field(
        max_length=MAX_RESOURCE, description="Topic:NAME, Group:NAME, Cluster:NAME; * at the end"
    )
    actions: list[str] = Field(min_length=1, max_length=len(Action), description=", ".join(Action))
    decision: Annotated[Ruling, Strict(False)]
    sourceIps: list[str] = Field(default_factory=list, max_length=256, description="from anywhere when empty")


class UserPolicy(Given):
    policyType: Annotated[PolicyType, Strict(False)] = PolicyType.CUSTOM
    entries: list[PolicyRule] = Field(max_length=MAX_RULES)


class UserPolicies(Given):
    policies: list[UserPolicy] = Field(max_length=MAX_POLICIES)


@router.get("")
async def list_users(asker: AskerNow, paging: PagingNow) -> ItemPage[UserView]:
    """Users in the order of their names; never a password."""
    found = {view.user: view for view in map(UserView.of, await users_at(asker.ask))}
    page, following = paging.of(found)
    return ItemPage(items=[found[name] for name in page], next=following)


@router.get("/{user}")
async def show_user(user: UserName, asker: AskerNow) -> UserView:
    found = await _must_be_user(asker, user)
    asker.tag(found)
    return found


@router.put("/{user}", responses={201: {"model": UserView, "description": "made"}})
async def put_user(
    user: UserName, change: UserChange, asker: AskerNow, hereOnly: HereOnly = False
) -> UserView:
    """Create or change a user: with If-Match only if it is unchanged since it was read, with `If-None-Match: *` only if
    it is new."""
    old = await _user(asker, user)
    asker.check_match(old)
    if old is None and change.password is None:
        raise Problem(422, "a new user needs a password")
    async with _accounts(asker, here_only=hereOnly) as accounts:
        await accounts.put(user, password=change.password, kind=change.type, status=change.status)
    return await show_user(user, asker)


@router.delete("/{user}", status_code=204)
async def delete_user(user: UserName, asker: AskerNow, hereOnly: HereOnly = False) -> None:
    """Delete a user, and its policies."""
    asker.check_match(await _must_be_user(asker, user))
    async with _accounts(asker, here_only=hereOnly) as accounts:
        await accounts.remove(user)


@router.get("/{user}/policies")
async def show_policies(user: UserName, asker: AskerNow) -> UserPolicies:
    policies = await _policies(asker, user)
    asker.tag(policies.model_dump())
    return policies


@router.put("/{user}/policies")
async def put_policies(
    user: UserName, policies: UserPolicies, asker: AskerNow, hereOnly: HereOnly = False
) -> UserPolicies:
    """Set rules for resources: each replaces the rule of the user for the same resource; other rules are unchanged."""
    asker.check_match((await _policies(asker, user)).model_dump())
    given = msgspec.convert(policies.model_dump(mode="json")["policies"], list[PolicyInfo])
    async with _accounts(asker, here_only=hereOnly) as accounts:
        await accounts.put_rules(user, given)
    return await show_policies(user, asker)


@router.delete("/{user}/policies", status_code=204)
async def delete_policy(
    user: UserName,
    asker: AskerNow,
    resource: str | None = None,
    policyType: PolicyType | None = None,
    hereOnly: HereOnly = False,
) -> None:
    """Delete the rule for a resource, or all of them."""
    async with _accounts(asker, here_only=hereOnly) as accounts:
        await accounts.forget(user, resource, policyType)


@contextlib.asynccontextmanager
async def _accounts(asker: Asker, *, here_only: bool) -> AsyncIterator[Accounts]:
    """The users of this broker, asked in the caller's name, and then of the name servers and the other masters, asked
    with the caller's secret. Raises Problem: 502 when one of them is unreachable, before anything is changed, or when
    one did not make the change that this broker made."""
    app, user, authority = asker.app, asker.caller.user, asker.parts.core.authority
    here: dict[str, Ask] = {"this broker": asker.ask}
    if here_only or not user or authority is None or not app.config.namesrv_addr:
        yield Accounts(here)
        return
    connect: Connect = asker.request.app.state.connect
    admin = connect(Credentials(user, authority.users.secret_of(user)), _OTHERS_TIMEOUT_MS)
    with as_problem(502, MQError, text=_NOTHING), as_problem(502, ChangedInPart):
        async with admin:
            others = await Accounts.of(admin, without=app.address)
            others.check_open()
            yield Accounts(here | others.asked)


async def _user(asker: Asker, name: str) -> UserView | None:
    answer = await asker.ask(RequestCode.AUTH_GET_USER, GetUserRequestHeader(username=name))
    return UserView.of(decode_body(UserInfo, answer.body)) if len(answer.body) else None


async def _must_be_user(asker: Asker, name: str) -> UserView:
    """Raises Problem."""
    found = await _user(asker, name)
    if found is None:
        raise Problem(404, f"no user {name!r}")
    return found


async def _policies(asker: Asker, name: str) -> UserPolicies:
    await _must_be_user(asker, name)
    answer = await asker.ask(RequestCode.AUTH_GET_ACL, GetAclRequestHeader(subject=f"User:{name}"))
    info = decode_body(AclInfo, answer.body) if len(answer.body) else AclInfo()
    return UserPolicies.model_validate({"policies": msgspec.to_builtins(info.policies or [])})
