"""Settings of users and policies, under RocketMQ's names in snake case (AuthConfig).

They belong to the process: no request shows or changes them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from mqspark.config import INT64_MAX, check_numbers
from mqspark.errors import ConfigError
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.signature import Signer

__all__ = ["AuthConfig"]

DEFAULT_PROVIDER = "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"


@dataclass(slots=True)
class AuthConfig:
    authentication_enabled: bool = False
    """Whether every request has to be signed by a user."""
    authorization_enabled: bool = False
    """Whether users who are not super need a policy for what they do."""
    auth_config_path: str = ""
    """Directory of the users and their key; by default in the store of a broker or controller. Name servers need it."""
    authenticate_by_certificate: bool = False
    """Whether an unsigned request is that of the user whom the connection's trusted client certificate names
    (the common name of its subject). Needs tls.server.need.client.auth."""
    init_authentication_user: str = field(default="", repr=False)
    """``{"username":…,"password":…}``: made as super user at the start, unless the user is there."""
    inner_client_authentication_credentials: str = field(default="", repr=False)
    """``{"accessKey":…,"secretKey":…}``: how this server signs to others of the cluster; also made as super
    user, unless the user is there."""
    authentication_provider: str = ""
    """The entry point of an extension that says who sent a request (mqspark.extensions.AuthenticationProvider); empty,
    or RocketMQ's default class: the signature says it."""
    authentication_whitelist: str = ""
    """``code,code``: requests that need no signature."""
    authorization_whitelist: str = ""
    """``code,code``: requests that need no policy."""
    migrate_auth_from_v1_enabled: bool = False
    """Whether the accounts of ``plainAclPath`` become users at the start, unless they are there."""
    plain_acl_path: str = ""
    """RocketMQ 4's ``plain_acl.yml``."""
    allow_anonymous: bool = False
    """Consent to serve an address that others reach without authentication."""
    max_auth_table_bytes: int = 16 << 20
    """Limit of users and policies; a full table refuses new ones."""
    max_connections_per_user: int = 5_000
    """Of a user who is not super, at a broker or a name server; 0: as many as in all."""
    audit_log_path: str = ""
    """File of the audit log; by default ``audit.log`` beside the users."""
    audit_log_max_bytes: int = 16 << 20
    audit_log_files: int = 8
    """Files of the audit log, the present one included."""

    def __post_init__(self) -> None:
        check_numbers(self, "max_auth_table_bytes", "audit_log_max_bytes", most=INT64_MAX)
        check_numbers(self, "audit_log_files")
        check_numbers(self, "max_connections_per_user", least=0)
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled needs authenticationEnabled: a name that nobody proves gives no rights",
                key="authorizationEnabled",
            )
        if self.authenticate_by_certificate and not self.authentication_enabled:
            raise ConfigError(
                "authenticateByCertificate needs authenticationEnabled", key="authenticateByCertificate"
            )
        if self.authentication_provider.strip() == DEFAULT_PROVIDER:
            self.authentication_provider = ""
        if self.authentication_provider and not self.authentication_enabled:
            raise ConfigError(
                "authenticationProvider needs authenticationEnabled", key="authenticationProvider"
            )
        if self.migrate_auth_from_v1_enabled and not (self.authentication_enabled and self.plain_acl_path):
            raise ConfigError(
                "migrateAuthFromV1Enabled needs authenticationEnabled and plainAclPath",
                key="migrateAuthFromV1Enabled",
            )
        self.unsigned_codes  # noqa: B018 - raises for what is no code
        self.unchecked_codes  # noqa: B018
        self.initial_user  # noqa: B018
        self.inner_credentials  # noqa: B018

    @property
    def unsigned_codes(self) -> frozenset[int]:
        return _codes(self.authentication_whitelist, "authenticationWhitelist")

    @property
    def unchecked_codes(self) -> frozenset[int]:
        return _codes(self.authorization_whitelist, "authorizationWhitelist")

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
        """How this server signs its requests to others."""
        pair = self.inner_credentials
        return None if pair is None else Signer(*pair)


def _codes(text: str, key: str) -> frozenset[int]:
    known = {str(int(code)): int(code) for code in RequestCode}
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise ConfigError(f"setting {key}: {word[:20]!r} is no request code", key=key)
    return frozenset(known[word] for word in words)


def _pair(text: str, key: str, first: str, second: str) -> tuple[str, str] | None:
    """Shows no part of the text in an error."""
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
