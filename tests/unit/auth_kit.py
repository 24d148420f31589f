"""Users without a disk's files: an authority in a directory, and peers that sign."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mqspark.auth.authority import Authority
from mqspark.auth.config import AuthConfig
from mqspark.auth.gate import Audited
from mqspark.auth.policies import AclPolicy, Entry, PolicyType
from mqspark.auth.users import UserType
from mqspark.base.clock import Clock
from mqspark.protocol.binding import Binder, endpoint
from mqspark.protocol.command import Command
from mqspark.protocol.headers.header import Header, to_ext
from mqspark.protocol.signature import Signer
from mqspark.store.disk.configfile import ConfigFile
from mqspark_server.authfiles import AesGcm
from tests.unit.broker_kit import Peer

KEY = bytes(range(32))
ROOT = ("root", "root-secret")
SECRET = "of users that allow() makes"  # noqa: S105 - known to these tests alone


def authority(
    directory: Path,
    audited: list[Audited] | None = None,
    key: bytes = KEY,
    *,
    clock: Clock | None = None,
    **settings: Any,
) -> Authority:
    """With the super user ROOT."""
    config = AuthConfig(
        **{
            "authentication_enabled": True,
            "authorization_enabled": True,
            "init_authentication_user": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
            **settings,
        }
    )
    seen = audited if audited is not None else []
    return Authority(config, AesGcm(key), ConfigFile(directory / "users.auth"), seen.append, clock=clock)


def allow(one: Authority, name: str, *rules: str, secret: str = SECRET) -> None:
    """Add a user with rules as ``Topic:T Pub,Sub [Deny] [10.0.0.0/8]``."""
    one.users.add(name, secret, UserType.NORMAL)
    if rules:
        one.users.update_acl(name, [AclPolicy(PolicyType.CUSTOM, tuple(map(entry, rules)))])


def entry(rule: str) -> Entry:
    resource, actions, *more = rule.split()
    decision = "Deny" if "Deny" in more else "Allow"
    return Entry.parse(resource, actions.split(","), decision, [word for word in more if word != "Deny"])


class SignedPeer:
    """Asks as a user."""

    def __init__(self, peer: Peer, name: str, secret: str = SECRET) -> None:
        self.peer = peer
        self.signer = Signer(name, secret)

    def ask(
        self,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        **more: Any,
    ) -> Command:
        ext = to_ext(header) if isinstance(header, Header) else header or {}
        return self.peer.ask(code, self.signer.signed(ext, body), body, **more)

    def codes(self, requests: Iterable[tuple[int, Mapping[str, str], bytes]]) -> list[int]:
        return [self.ask(*request).code for request in requests]


class BoundPeer:
    """Asks as a user of a client that binds its signatures, and was connected to ``address``."""

    def __init__(
        self,
        peer: Peer,
        name: str,
        secret: str = SECRET,
        *,
        clock: Clock,
        address: tuple[str, int] = ("10.0.0.5", 10911),
        dialled: str = "",
        connection: str = "c1",
    ) -> None:
        self.peer = peer
        dialled = dialled or endpoint(address)
        self.binder = Binder(Signer(name, secret), dialled, address, connection, clock.now_ms)

    def signed(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> dict[str, str]:
        return self.binder.signed(code, ext or {}, body)

    def ask(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", **more: Any) -> Command:
        return self.peer.ask(code, self.signed(code, ext, body), body, **more)
