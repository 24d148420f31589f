"""Servers with users: their settings, and users whom a test adds over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx

User = tuple[str, str]
"""A name and its secret."""
ROOT: User = ("root", "root-secret")


def with_users(root: User = ROOT, inner: User | None = ROOT, **more: object) -> dict[str, Any]:
    """Settings of a server that asks who calls and what they may. ``inner``: as whom servers call each other."""
    settings: dict[str, object] = {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": root[0], "password": root[1]}),
    }
    if inner is not None:
        keys = {"accessKey": inner[0], "secretKey": inner[1]}
        settings["innerClientAuthenticationCredentials"] = json.dumps(keys)
    return {**settings, **more}


def add_user(url: str, name: str, resource: str, *actions: str) -> None:
    """Make a user who may do ``actions`` to ``resource``, with ``NAME-secret`` for a secret."""
    entry = {"resource": resource, "actions": actions, "decision": "Allow"}
    with httpx.Client(base_url=f"{url}/api/v1/users", auth=ROOT, timeout=60) as api:
        for path, body in (
            (f"/{name}", {"password": f"{name}-secret"}),
            (f"/{name}/policies", {"policies": [{"entries": [entry]}]}),
        ):
            answer = api.put(path, json=body)
            assert answer.is_success, answer.text
