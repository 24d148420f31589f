"""/api/v1/users: the users of this broker, and what their policies let them do."""

from __future__ import annotations

from typing import Literal

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from mqspark.auth.authadmin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.admin_headers import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    GetAclRequestHeader,
    GetUserRequestHeader,
    ListUsersRequestHeader,
    UpdateUserRequestHeader,
)
from mqspark_server.web.problems import Problem
from mqspark_server.web.v1.asking import (
    ERRORS,
    After,
    Asker,
    AskerNow,
    Limit,
    UserName,
    check_match,
    etag,
    page_after,
)

__all__ = ["router"]

MAX_POLICIES = 16
MAX_RULES = 1_024

router = APIRouter(prefix="/api/v1/users", tags=["users"], responses=ERRORS)


class UserView(BaseModel):
    user: str
    type: str = Field(description="Super, which needs no policy, or Normal")
    status: str = Field(description="enable or disable")


class UserPage(BaseModel):
    items: list[UserView]
    next: str | None = Field(description="for `after` of the next page; null: this is the last one")


class UserChange(BaseModel):
    """Of a user; what is absent stays as it is. A new user needs a password."""

    model_config = ConfigDict(extra="forbid")

    password: str | None = Field(default=None, min_length=1, max_length=512, repr=False)
    type: Literal["Super", "Normal"] | None = None
    status: Literal["enable", "disable"] | None = None


class PolicyRule(BaseModel):
    model_config = ConfigDict(extra="forbid")

    resource: str = Field(max_length=512, description="Topic:NAME, Group:NAME, Cluster:NAME; * at the end")
    actions: list[str] = Field(
        min_length=1, max_length=8, description="All, Pub, Sub, Create, Update, Delete, Get, List"
    )
    decision: Literal["Allow", "Deny"]
    sourceIps: list[str] = Field(default_factory=list, max_length=256, description="from anywhere when empty")


class UserPolicy(BaseModel):
    model_config = ConfigDict(extra="forbid")

    policyType: Literal["Custom", "Default"] = "Custom"
    entries: list[PolicyRule] = Field(max_length=MAX_RULES)


class UserPolicies(BaseModel):
    model_config = ConfigDict(extra="forbid")

    policies: list[UserPolicy] = Field(max_length=MAX_POLICIES)


@router.get("")
async def list_users(asker: AskerNow, limit: Limit = 100, after: After = None) -> UserPage:
    """Users in the order of their names; never a password."""
    answer = await asker.ask(RequestCode.AUTH_LIST_USER, ListUsersRequestHeader(filter=""))
    body = bytes(answer.body)
    found = (
        {info.username or "": info for info in msgspec.json.decode(body, type=list[UserInfo])} if body else {}
    )
    page, following = page_after(found, after, limit)
    return UserPage(items=[_view(found[name]) for name in page], next=following)


@router.get("/{user}")
async def show_user(user: UserName, asker: AskerNow, response: Response) -> UserView:
    found = await _user(asker, user)
    if found is None:
        raise Problem(404, f"no user {user!r}")
    return _tagged(found, response)


@router.put("/{user}", responses={201: {"model": UserView, "description": "made"}})
async def put_user(
    user: UserName, change: UserChange, asker: AskerNow, request: Request, response: Response
) -> UserView:
    """Make a user, or change it: with If-Match only as it was read, with `If-None-Match: *` only if it is new."""
    old = await _user(asker, user)
    check_match(request, None if old is None else etag(_view(old).model_dump()))
    info = UserInfo(password=change.password, user_type=change.type, user_status=change.status)
    if old is None:
        if change.password is None:
            raise Problem(422, "a new user needs a password")
        await asker.ask(
            RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader(username=user), encode_body(info)
        )
    else:
        await asker.ask(
            RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader(username=user), encode_body(info)
        )
    response.status_code = 201 if old is None else 200
    new = await _user(asker, user)
    if new is None:
        raise Problem(409, f"user {user!r} was deleted meanwhile")
    return _tagged(new, response)


@router.delete("/{user}", status_code=204)
async def delete_user(user: UserName, asker: AskerNow, request: Request) -> None:
    """Delete a user, and its policies."""
    old = await _user(asker, user)
    if old is None:
        raise Problem(404, f"no user {user!r}")
    check_match(request, etag(_view(old).model_dump()))
    await asker.ask(RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader(username=user))


@router.get("/{user}/policies")
async def show_policies(user: UserName, asker: AskerNow, response: Response) -> UserPolicies:
    policies = await _policies(asker, user)
    response.headers["ETag"] = etag(policies.model_dump())
    return policies


@router.put("/{user}/policies")
async def put_policies(
    user: UserName, policies: UserPolicies, asker: AskerNow, request: Request, response: Response
) -> UserPolicies:
    """Rules for resources: each replaces the one that the user has for it, and all others stay."""
    check_match(request, etag((await _policies(asker, user)).model_dump()))
    info = AclInfo(
        subject=f"User:{user}",
        policies=[
            PolicyInfo(
                policy_type=policy.policyType,
                entries=[
                    PolicyEntryInfo(
                        resource=rule.resource,
                        actions=rule.actions,
                        source_ips=rule.sourceIps,
                        decision=rule.decision,
                    )
                    for rule in policy.entries
                ],
            )
            for policy in policies.policies
        ],
    )
    header = CreateAclRequestHeader(subject=f"User:{user}")
    await asker.ask(RequestCode.AUTH_CREATE_ACL, header, encode_body(info))
    new = await _policies(asker, user)
    response.headers["ETag"] = etag(new.model_dump())
    return new


@router.delete("/{user}/policies", status_code=204)
async def delete_policy(
    user: UserName,
    asker: AskerNow,
    resource: str | None = None,
    policyType: Literal["Custom", "Default"] | None = None,
) -> None:
    """Delete the rule for a resource, or all of them."""
    header = DeleteAclRequestHeader(subject=f"User:{user}", policy_type=policyType, resource=resource)
    await asker.ask(RequestCode.AUTH_DELETE_ACL, header)


async def _user(asker: Asker, name: str) -> UserInfo | None:
    answer = await asker.ask(RequestCode.AUTH_GET_USER, GetUserRequestHeader(username=name))
    return decode_body(UserInfo, answer.body) if len(answer.body) else None


async def _policies(asker: Asker, name: str) -> UserPolicies:
    if await _user(asker, name) is None:
        raise Problem(404, f"no user {name!r}")
    answer = await asker.ask(RequestCode.AUTH_GET_ACL, GetAclRequestHeader(subject=f"User:{name}"))
    info = decode_body(AclInfo, answer.body) if len(answer.body) else AclInfo()
    return UserPolicies.model_validate(
        {
            "policies": [
                {
                    "policyType": policy.policy_type or "Custom",
                    "entries": [
                        {
                            "resource": entry.resource or "",
                            "actions": entry.actions or [],
                            "sourceIps": entry.source_ips or [],
                            "decision": entry.decision or "Deny",
                        }
                        for entry in policy.entries or ()
                    ],
                }
                for policy in info.policies or ()
            ]
        }
    )


def _view(info: UserInfo) -> UserView:
    return UserView(user=info.username or "", type=info.user_type or "", status=info.user_status or "")


def _tagged(info: UserInfo, response: Response) -> UserView:
    view = _view(info)
    response.headers["ETag"] = etag(view.model_dump())
    return view
