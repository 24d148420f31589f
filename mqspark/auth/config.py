"""Settings of users and policies, under RocketMQ's names in snake case (AuthConfig).

They belong to the process: no request shows or changes them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mqspark.base.config import INT64_MAX, check_settings, setting
from mqspark.errors import ConfigError
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.signature import Signer

DEFAULT_PROVIDER = "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"


class BindingRule(StrEnum):
    """Whose requests need bound signatures (``mqspark.protocol.binding``)."""

    OWN_CLIENTS = "ownClients"
    """Requests of clients that bind them: nobody can take that away. Others are believed as in RocketMQ."""
    SUPER_USERS = "superUsers"
    ALL = "all"


@dataclass(slots=True)
class AuthConfig:
    authentication_enabled: bool = setting(False, section="users")
    """Whether every request has to be signed by a user."""
    authorization_enabled: bool = setting(False, needs=("authentication_enabled",))
    """Whether users other than super users need a policy for each request. An unproved name grants no rights."""
    auth_config_path: str = ""
    """Directory of the users and their key. Default: in the store of a broker or controller; a name server needs it."""
    authenticate_by_certificate: bool = setting(False, needs=("authentication_enabled",), ours=True)
    """Whether an unsigned request is attributed to the user named in the connection's trusted client certificate (the
    common name of its subject). Needs tls.server.need.client.auth."""
    init_authentication_user: str = setting("", secret=True)
    """``{"username":…,"password":…}``: created as super user at the start, unless the user exists."""
    inner_client_authentication_credentials: str = setting("", secret=True)
    """``{"accessKey":…,"secretKey":…}``: the credentials with which this server signs requests to other servers of the
    cluster; also created as super user, unless the user exists."""
    authentication_provider: str = setting("", needs=("authentication_enabled",))
    """Entry point of an extension that identifies the sender of a request (mqspark.extensions.AuthenticationProvider).
    Empty, or RocketMQ's default class: the signature identifies the sender."""
    authentication_whitelist: str = ""
    """``code,code``: requests that need no signature."""
    authorization_whitelist: str = ""
    """``code,code``: requests that need no policy."""
    signature_binding_required: BindingRule = setting(BindingRule.OWN_CLIENTS, ours=True)
    """Whose requests need a signature that holds for one request to one server: ``ownClients`` (of clients that send
    such signatures, as mqspark's do), ``superUsers`` or ``all``. RocketMQ's clients and mqadmin cannot send them."""
    signature_binding_exempt: str = setting("", ours=True)
    """``user;user``: users of RocketMQ's clients, brokers or mqadmin, whom signatureBindingRequired leaves out."""
    signature_binding_addresses: str = setting("", ours=True)
    """``host:port;host:port``: addresses under which clients reach this server through a proxy or NAT, besides its own.
    ``*``: any."""
    signature_binding_window_sec: int = setting(300, unit="s", least=1, ours=True)
    """How far the time of a bound signature may be from this server's clock."""
    migrate_auth_from_v1_enabled: bool = setting(False, needs=("authentication_enabled", "plain_acl_path"))
    """Whether the accounts of ``plainAclPath`` become users at the start, unless the users exist."""
    plain_acl_path: str = setting("", ours=True)
    """Path of RocketMQ 4's ``plain_acl.yml``."""
    allow_anonymous: bool = setting(False, ours=True)
    """Consent to serve an address that other hosts can reach, without authentication."""
    max_auth_table_bytes: int = setting(16 << 20, unit="bytes", least=1, most=INT64_MAX, ours=True)
    """Limit of users and policies in memory; a full table refuses new ones."""
    max_connections_per_user: int = setting(5_000, least=0, ours=True)
    """Limit of connections to a broker or name server, or of clients of a proxy, for each user other than super users.
    0: no limit per user."""
    audit_log_path: str = setting("", ours=True)
    """Path of the audit log; by default ``audit.log`` beside the users."""
    audit_log_max_bytes: int = setting(16 << 20, unit="bytes", least=1, most=INT64_MAX, ours=True)
    """Bytes of one file."""
    audit_log_files: int = setting(8, least=1, ours=True)
    """Number of audit log files to keep, including the current one."""

    def __post_init__(self) -> None:
        if self.authentication_provider.strip() == DEFAULT_PROVIDER:
            self.authentication_provider = ""
        check_settings(self)
        self.unsigned_codes  # noqa: B018 - raises for an invalid code
        self.unchecked_codes  # noqa: B018
        self.binding_addresses  # noqa: B018
        self.initial_user  # noqa: B018
        self.inner_credentials  # noqa: B018

    @property
    def unsigned_codes(self) -> frozenset[int]:
        return _codes(self.authentication_whitelist, "authenticationWhitelist")

    @property
    def unchecked_codes(self) -> frozenset[int]:
        return _codes(self.authorization_whitelist, "authorizationWhitelist")

    @property
    def binding_exempt(self) -> frozenset[str]:
        return frozenset(filter(None, map(str.strip, self.signature_binding_exempt.split(";"))))

    @property
    def binding_addresses(self) -> frozenset[str]:
        """In lower case."""
        words = {word.strip().lower() for word in self.signature_binding_addresses.split(";")} - {""}
        for word in words - {"*"}:
            host, _, port = word.rpartition(":")
            if not host or not port.isdecimal():
                key = "signatureBindingAddresses"
                raise ConfigError(f"setting {key}: {word[:60]!r} is not of the form host:port", key=key)
        return frozenset(words)

    @property
    def initial_user(self) -> tuple[str, str] | None:
        """Name and password."""
        return _pair(self.init_authentication_user, "initAuthenticationUser", "username", "password")

    @property
    def inner_credentials(self) -> tuple[str, str] | None:
        """Access key and secret key."""
        text = self.inner_client_authentication_credentials
        return _pair(text, "innerClientAuthenticationCredentials", "accessKey", "secretKey")

    @property
    def inner_signer(self) -> Signer | None:
        """The signer of this server's requests to other servers."""
        pair = self.inner_credentials
        return None if pair is None else Signer(*pair)


def _codes(text: str, key: str) -> frozenset[int]:
    known = {str(int(code)): int(code) for code in RequestCode}
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise ConfigError(f"setting {key}: {word[:20]!r} is not a request code", key=key)
    return frozenset(known[word] for word in words)


def _pair(text: str, key: str, first: str, second: str) -> tuple[str, str] | None:
    """Two values of a JSON object. An error shows no part of the text, because it holds a secret."""
    if not text.strip():
        return None
    try:
        document: Any = json.loads(text)
        pair = document[first], document[second]
    except (ValueError, KeyError, TypeError, RecursionError):
        pair = "", ""
    if not all(isinstance(value, str) and value.strip() for value in pair):
        raise ConfigError(f'setting {key} is not of the form {{"{first}":"...","{second}":"..."}}', key=key)
    return pair
