"""Builds settings objects from files, ``--set`` and profiles.

One flat name space of RocketMQ's keys. A value is looked up in this order, the first that has it wins:

    ``--set key=value``  >  the -c file  >  environment (NAMESRV_ADDR)  >  profile  >  the field's default

Every key may be spelled as RocketMQ does (``flushDiskType``) or in snake case (``flush_disk_type``). A TOML file
may group keys under table headers. They carry no meaning, but for ``[tls.server]`` and ``[tls.client]``, which are
parts of their keys. RocketMQ's keys without an effect in mqspark are collected in ``Settings.unused`` for one line in
the log. Unknown keys are a ConfigError, and so are values that promise a feature that this version does not have
(``rocketmq_keys``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import socket
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mqspark.auth.config import AuthConfig
from mqspark.broker.config import BrokerConfig, BrokerRole
from mqspark.config import (
    INT64_MAX,
    ForeignKeys,
    check_numbers,
    did_you_mean,
    known_keys,
    parse_settings,
    rocketmq_key,
)
from mqspark.controller.config import ControllerConfig
from mqspark.errors import ConfigError
from mqspark.namesrv.config import NamesrvConfig
from mqspark.store.config import StoreConfig
from mqspark_server.net.httpget import WebServer
from mqspark_server.net.servertls import ClientTls, ServerTls
from mqspark_server.settings.properties import parse_properties
from mqspark_server.settings.rocketmq_keys import REFUSED, ROCKETMQ_KEYS

__all__ = [
    "ServerConfig",
    "BrokerSettings",
    "ControllerSettings",
    "NamesrvSettings",
    "DEVELOPMENT",
    "WILDCARDS",
    "production",
    "Layer",
    "broker_settings",
    "consent_to_anonymous",
    "controller_settings",
    "file_layer",
    "foreign_keys",
    "is_loopback",
    "local_address",
    "namesrv_production",
    "namesrv_settings",
    "override_layer",
    "values_in",
]

WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound
HIGH_WATER_BYTES = 4 * 1024 * 1024


def production() -> dict[str, Any]:
    """``mqspark broker run``: an acknowledged message survives a power cut; operators create topics."""
    return {
        "autoCreateTopicEnable": False,
        "flushDiskType": "SYNC_FLUSH",
        "brokerName": socket.gethostname(),
        "brokerIP1": local_address(),
    }


def namesrv_production() -> dict[str, Any]:
    """``mqspark namesrv run``: the key-value table is where RocketMQ keeps it."""
    return {"kvConfigPath": "~/namesrv/kvConfig.json"}


def local_address() -> str:
    """The address that this host would use to reach another one; sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


DEVELOPMENT: Mapping[str, Any] = {
    "autoCreateTopicEnable": True,
    "enablePropertyFilter": True,
    # For development, a power cut may lose the last half second; a killed process loses nothing.
    "flushDiskType": "ASYNC_FLUSH",
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "brokerName": "dev",
    # A developer's disk is often nearly full of other data: neither refuse nor delete messages because of that.
    "diskSpaceWarningLevelRatio": 100,
    "cleanFileForciblyEnable": False,
}
"""``mqspark dev`` and ``mqspark.testing``: loopback only, topics are created on first use."""


@dataclass(slots=True)
class ServerConfig:
    """Settings of the shells; names as in NettyServerConfig where it has them."""

    bind_address: str = "0.0.0.0"  # noqa: S104 - RocketMQ's default; the dev profile binds loopback
    listen_port: int = 10911
    server_channel_max_idle_time_seconds: int = 120
    server_socket_backlog: int = 1024
    max_connections: int = 10_000  # or fewer: files come first when the process has few descriptors
    max_connections_per_address: int = 0  # 0: as many as in all
    write_buffer_high_water_mark: int = HIGH_WATER_BYTES  # bytes a slow reader may leave unread
    max_buffered_bytes: int = 256 * 1024 * 1024  # of frames not yet complete, over all connections
    max_stranger_bytes: int = 20 * 1024 * 1024  # of those, of connections that have not completed one yet
    max_unsent_bytes: int = 256 * 1024 * 1024  # of answers that peers have not read, over all connections
    unread_timeout_seconds: int = 60  # for which a peer may leave answers unread
    partial_frame_timeout_seconds: int = 30  # for which a frame may stay incomplete without much coming
    fast_port_enable: bool = True
    http_enable: bool = True
    http_bind_address: str = "127.0.0.1"
    http_port: int | None = None  # None: listenPort + 3, or any free port when that is 0
    http_allowed_hosts: str = ""
    """``name;name``: host names that requests may use in addition to loopback's names, httpBindAddress, brokerIP1
    and the address of the connection; ``*``: any, for use behind a proxy that checks the host."""
    http_max_connections: int = 128
    http_tls_cert_path: str = ""
    """With it HTTP accepts only TLS. On an address that other hosts reach, ``tls.server.certPath`` is the default."""
    http_tls_key_path: str = ""
    http_tls_key_password: str = field(default="", repr=False)
    http_allow_plaintext: bool = False
    """Consent to take secrets and show data without TLS on an address that other hosts reach, as behind a proxy."""
    http_job_server: str = ""
    """``http://host:port`` of a job server whose jobs the console shows. Everyone who may see the console's pages about
    the cluster sees the names, schedules and errors of those jobs."""
    metrics_max_series: int = 1_000
    """Per metric; the largest series are shown, and the sum of the others."""
    extensions: str = ""
    """``name,name``: entry points of extensions (mqspark.extensions), in the order in which they are called."""
    log_level: str = "INFO"
    log_format: str = "text"
    """``text`` for people, ``json`` for programs: one object a line."""
    tls_server_mode: str = field(default="", metadata={"key": "tls.server.mode"})
    """disabled, permissive (TLS and plain) or enforcing; by default permissive when there is a certificate."""
    tls_server_cert_path: str = field(default="", metadata={"key": "tls.server.certPath"})
    tls_server_key_path: str = field(default="", metadata={"key": "tls.server.keyPath"})
    tls_server_key_password: str = field(default="", repr=False, metadata={"key": "tls.server.keyPassword"})
    tls_server_trust_cert_path: str = field(default="", metadata={"key": "tls.server.trustCertPath"})
    tls_server_need_client_auth: str = field(default="none", metadata={"key": "tls.server.need.client.auth"})
    tls_server_crl_path: str = field(default="", metadata={"key": "tls.server.crlPath"})
    """Lists of revoked client certificates, one for each authority of client certificates. They are read again when the
    file changes; open connections are kept. A list that has expired refuses all
    certificates of its authority."""
    use_tls: bool = field(default=False, metadata={"key": "useTLS"})
    """For connections to name servers and to the master."""
    tls_client_cert_path: str = field(default="", metadata={"key": "tls.client.certPath"})
    tls_client_key_path: str = field(default="", metadata={"key": "tls.client.keyPath"})
    tls_client_key_password: str = field(default="", repr=False, metadata={"key": "tls.client.keyPassword"})
    tls_client_trust_cert_path: str = field(default="", metadata={"key": "tls.client.trustCertPath"})
    tls_client_auth_server: bool = field(default=True, metadata={"key": "tls.client.authServer"})
    """Whether the server has to show a trusted certificate that names its host (RocketMQ's default is false)."""

    def check(self) -> None:
        for name, port in (("listenPort", self.listen_port), ("httpPort", self.http_port)):
            if port is not None and not 0 <= port <= 65535:
                raise ConfigError(f"setting {name}={port} is not a port (0 to 65535)", key=name)
        check_numbers(
            self,
            "server_channel_max_idle_time_seconds",
            "server_socket_backlog",
            "max_connections",
            "http_max_connections",
            "metrics_max_series",
        )
        check_numbers(self, "max_buffered_bytes", "max_stranger_bytes", "max_unsent_bytes", most=INT64_MAX)
        check_numbers(self, "unread_timeout_seconds", "partial_frame_timeout_seconds")
        check_numbers(self, "max_connections_per_address", least=0)
        self._check_tls()
        _ = self.job_server
        if self.write_buffer_high_water_mark == 0:  # in a broker.conf: "the library's default"
            self.write_buffer_high_water_mark = HIGH_WATER_BYTES
        check_numbers(self, "write_buffer_high_water_mark", least=0)
        if self.log_format not in ("text", "json"):
            raise ConfigError(
                f"setting logFormat={self.log_format!r} is neither text nor json", key="logFormat"
            )
        self.log_level = self.log_level.upper()
        if self.log_level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ConfigError(
                f"setting logLevel={self.log_level!r} is not one of DEBUG, INFO, WARNING, ERROR",
                key="logLevel",
            )

    def _check_tls(self) -> None:
        for name, value, allowed in (
            ("tls.server.mode", self.tls_server_mode, ("", "disabled", "permissive", "enforcing")),
            (
                "tls.server.need.client.auth",
                self.tls_server_need_client_auth,
                ("none", "optional", "require"),
            ),
        ):
            if value not in allowed:
                choices = ", ".join(each for each in allowed if each)
                raise ConfigError(f"setting {name}={value!r} is not one of {choices}", key=name)
        if self.tls_server_mode in ("permissive", "enforcing") and not self.tls_server_cert_path:
            raise ConfigError(
                f"tls.server.mode={self.tls_server_mode} needs tls.server.certPath", key="tls.server.mode"
            )
        if self.tls_server_need_client_auth != "none" and not self.tls_server_trust_cert_path:
            raise ConfigError(
                "tls.server.need.client.auth needs tls.server.trustCertPath: the authorities of the clients",
                key="tls.server.need.client.auth",
            )
        if self.tls_server_crl_path and self.tls_server_need_client_auth == "none":
            raise ConfigError(
                "tls.server.crlPath needs tls.server.need.client.auth=optional or require: otherwise clients"
                " are not asked for a certificate",
                key="tls.server.crlPath",
            )

    @property
    def tls_server_values(self) -> dict[str, str]:
        """By key: what a name server of the same cluster takes over."""
        fields = known_keys(ServerConfig).values()
        return {
            rocketmq_key(spec): getattr(self, spec.name)
            for spec in fields
            if spec.name.startswith("tls_server_")
        }

    @property
    def server_tls(self) -> ServerTls | None:
        """None: remoting speaks no TLS."""
        if not self.tls_server_cert_path or self.tls_server_mode == "disabled":
            return None
        return ServerTls(
            self.tls_server_cert_path,
            self.tls_server_key_path,
            self.tls_server_key_password,
            self.tls_server_trust_cert_path,
            self.tls_server_need_client_auth,
            required=self.tls_server_mode == "enforcing",
            crl_path=self.tls_server_crl_path,
        )

    @property
    def http_tls(self) -> ServerTls | None:
        """None: HTTP is plain. Browsers are asked for no certificate."""
        own = self.http_tls_cert_path, self.http_tls_key_path, self.http_tls_key_password
        if own[0]:
            return ServerTls(*own, trust_cert_path="", client_auth="none", required=True)
        shared = self.server_tls
        if shared is None or is_loopback(self.http_bind_address):
            return None
        return dataclasses.replace(shared, trust_cert_path="", client_auth="none", required=True, crl_path="")

    def check_certificates(self, auth: AuthConfig) -> None:
        """Raises ConfigError when users are to be identified by client certificates that are not requested."""
        if auth.authenticate_by_certificate and (
            self.server_tls is None or self.tls_server_need_client_auth == "none"
        ):
            raise ConfigError(
                "authenticateByCertificate needs tls.server.certPath, tls.server.trustCertPath and"
                " tls.server.need.client.auth=optional or require",
                key="authenticateByCertificate",
            )

    @property
    def job_server(self) -> WebServer | None:
        return WebServer.parse(self.http_job_server, "httpJobServer") if self.http_job_server else None

    def check_http(self, auth: AuthConfig) -> None:
        """Raises ConfigError when other hosts would send users' secrets in clear text."""
        is_open = self.http_enable and not is_loopback(self.http_bind_address) and self.http_tls is None
        if is_open and auth.authentication_enabled and not self.http_allow_plaintext:
            raise ConfigError(
                f"httpBindAddress={self.http_bind_address}: secrets of users would go over HTTP in clear text: set"
                " httpTlsCertPath or tls.server.certPath, or consent with httpAllowPlaintext=true",
                key="httpBindAddress",
            )

    @property
    def client_tls(self) -> ClientTls | None:
        """None: connections to other servers are plain."""
        if not self.use_tls:
            return None
        return ClientTls(
            self.tls_client_cert_path,
            self.tls_client_key_path,
            self.tls_client_key_password,
            self.tls_client_trust_cert_path,
            verify=self.tls_client_auth_server,
        )


@dataclass(slots=True)
class Layer:
    """Settings from one place; ``source`` names it in error messages."""

    source: str
    values: Mapping[str, Any]
    path: Path | None = None
    """Of a file."""


@dataclass(slots=True)
class BrokerSettings:
    server: ServerConfig
    broker: BrokerConfig
    store: StoreConfig
    auth: AuthConfig
    unused: list[str] = field(default_factory=list)
    file: Path | None = None
    """Receives settings that are changed while the process runs."""


@dataclass(slots=True)
class ControllerSettings:
    server: ServerConfig
    controller: ControllerConfig
    auth: AuthConfig
    unused: list[str] = field(default_factory=list)


@dataclass(slots=True)
class NamesrvSettings:
    server: ServerConfig
    namesrv: NamesrvConfig
    auth: AuthConfig
    unused: list[str] = field(default_factory=list)
    controller: ControllerSettings | None = None
    """Of a controller in the same process, with a port of its own."""
    file: Path | None = None
    """Receives settings that are changed while the process runs."""


def file_layer(path: str | os.PathLike[str]) -> Layer:
    """A ``.toml`` file, or anything else in broker.conf's syntax."""
    source = os.fspath(path)
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text (byte {error.start})") from None
    return Layer(source, values_in(text, source), Path(path).resolve())


def values_in(text: str, source: str) -> dict[str, Any]:
    """The values of a settings file. Raises ConfigError."""
    if not source.endswith(".toml"):
        return dict(parse_properties(text, source=source))
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None
    return _flatten(document, source)


def _file_of(layers: Iterable[Layer]) -> Path | None:
    return next((layer.path for layer in layers if layer.path is not None), None)


def override_layer(assignments: Iterable[str]) -> Layer:
    """``--set key=value`` in order; the last of equal keys wins."""
    values: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {assignment!r} is not key=value")
        values[key.strip()] = value.strip()
    return Layer("--set", values)


def broker_settings(
    profile: Mapping[str, Any], *layers: Layer, use_environment: bool = True
) -> BrokerSettings:
    """Later layers override earlier ones; all of them override the environment, which overrides ``profile``."""
    if use_environment and (address := os.environ.get("NAMESRV_ADDR")):
        layers = (Layer("environment NAMESRV_ADDR", {"namesrvAddr": address}), *layers)
    (server, broker, store, auth), unused = _resolve(
        (ServerConfig, BrokerConfig, StoreConfig, AuthConfig), profile, layers
    )
    with _from(*layers):
        server.check()
        server.check_certificates(auth)
        server.check_http(auth)
    if broker.broker_id and broker.broker_role is not BrokerRole.SLAVE:
        broker.broker_id = 0  # a master's is always 0, whatever the file says (BrokerStartup)
        unused.append("brokerId")
    store.store_path_root_dir = _path(store.store_path_root_dir)
    if store.store_path_commit_log:
        store.store_path_commit_log = _paths(store.store_path_commit_log)
    if store.read_only_commit_log_store_paths:
        store.read_only_commit_log_store_paths = _paths(store.read_only_commit_log_store_paths)
    return BrokerSettings(server, broker, store, auth, unused, _file_of(layers))


def namesrv_settings(profile: Mapping[str, Any], *layers: Layer) -> NamesrvSettings:
    """Later layers win. Raises ConfigError, for a key that only brokers have, too."""
    for layer in layers:
        with _from(layer):
            for key in layer.values:
                _check_name_server_has(key)
    classes: tuple[type[Any], ...] = (ServerConfig, NamesrvConfig, AuthConfig)
    if _has_controller(layers):
        classes += (ControllerConfig,)
    (server, namesrv, auth, *more), unused = _resolve(classes, {"listenPort": 9876, **profile}, layers)
    with _from(*layers):
        server.check()
        server.check_certificates(auth)
        if server.http_port is not None and auth.authentication_enabled:
            raise ConfigError(
                "a name server with users has no HTTP port yet: leave httpPort out", key="httpPort"
            )
    namesrv.kv_config_path = namesrv.kv_config_path and _path(namesrv.kv_config_path)
    settings = NamesrvSettings(server, namesrv, auth, unused, file=_file_of(layers))
    for controller in more:
        port = _advertised_port(controller)
        if port is None:
            raise ConfigError(
                "enableControllerInNamesrv needs controllerDLegerPeers=id-host:port and controllerDLegerSelfId=id: the"
                " controller listens on that port",
                key="enableControllerInNamesrv",
            )
        settings.controller = ControllerSettings(
            dataclasses.replace(server, listen_port=port), controller, auth
        )
    return settings


def controller_settings(profile: Mapping[str, Any], *layers: Layer) -> ControllerSettings:
    """Later layers win. It listens on the port of controllerDLegerPeers, unless listenPort is given."""
    (server, controller, auth), unused = _resolve(
        (ServerConfig, ControllerConfig, AuthConfig), {"listenPort": 19876, **profile}, layers
    )
    port = _advertised_port(controller)
    if port is not None and not any({"listenPort", "listen_port"} & layer.values.keys() for layer in layers):
        server.listen_port = port
    with _from(*layers):
        server.check()
        server.check_certificates(auth)
        if server.extensions:
            raise ConfigError("a controller has no extension points", key="extensions")
    controller.controller_store_path = controller.controller_store_path and _path(
        controller.controller_store_path
    )
    return ControllerSettings(server, controller, auth, unused)


def _has_controller(layers: Iterable[Layer]) -> bool:
    """Checked first: without a controller its settings are unused, and need not be valid."""
    keys = ("enableControllerInNamesrv", "enable_controller_in_namesrv")
    values = [layer.values[key] for layer in layers for key in keys if key in layer.values]
    return bool(values) and str(values[-1]).strip().lower() == "true"


def _advertised_port(controller: ControllerConfig) -> int | None:
    port = controller.advertised_address().rpartition(":")[2]
    return int(port) if port else None


def consent_to_anonymous(server: ServerConfig, auth: AuthConfig, *layers: Layer) -> str | None:
    """The warning to log when other hosts can reach a server without authentication; None if they cannot, or if it has
    users. Raises ConfigError unless an operator has consented."""
    if auth.authentication_enabled:
        return None
    if not is_loopback(server.bind_address):
        text = f"anyone who can reach {server.bind_address}:{server.listen_port} may read, write and delete everything"
    elif server.http_enable and not is_loopback(server.http_bind_address):
        text = f"anyone who can reach {server.http_bind_address} over HTTP may read everything, and send"
    else:
        return None
    spellings = {"authenticationEnabled", "authentication_enabled"}
    if not auth.allow_anonymous and not any(spellings & layer.values.keys() for layer in layers):
        raise ConfigError(
            f"{text}: set authenticationEnabled=true (first user: `mqspark user add`), or bindAddress=127.0.0.1,"
            " or consent with allowAnonymous=true",
            key="allowAnonymous",
        )
    return f"NO AUTHENTICATION: {text} (authenticationEnabled=false)"


def is_loopback(host: str) -> bool:
    """Whether only this host reaches the address or name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@cache
def foreign_keys(*own: type[Any]) -> ForeignKeys:
    """Keys without an effect in a process whose core has the settings of the classes ``own``, as in a file."""
    fixed = known_keys(ServerConfig) | known_keys(AuthConfig)
    names = set(_canonical((ServerConfig, AuthConfig, *own)).values())
    if NamesrvConfig in own:
        names -= _OF_BROKERS_ONLY

    def judge(changes: Mapping[str, str]) -> Collection[str]:
        for key, value in changes.items():
            if NamesrvConfig in own:
                _check_name_server_has(key)
            _check_promise(key, value)
            if key not in fixed and key not in ROCKETMQ_KEYS:
                raise _unknown(key, names)
        return [key for key in changes if key in fixed]

    return judge


def _unknown(key: str, names: Iterable[str]) -> ConfigError:
    # mqspark's own keys first: many of RocketMQ's have no effect here.
    hint = did_you_mean(key, names) or did_you_mean(key, ROCKETMQ_KEYS)
    return ConfigError(f"unknown setting {key!r}{hint}", key=key)


_OF_BROKER_SHELLS = ("fast_port_enable", "use_tls")
_OF_HTTP = ("http_port", "http_bind_address", "http_max_connections", "http_allowed_hosts")
"""Settings of HTTP that a name server has, too."""


def _of_brokers_only() -> set[str]:
    """Both spellings of the keys that a name server does not have."""
    of_shells = {
        key
        for key, spec in known_keys(ServerConfig).items()
        if spec.name not in _OF_HTTP
        and (spec.name.startswith(("http_", "metrics_", "tls_client_")) or spec.name in _OF_BROKER_SHELLS)
    }
    of_brokers = known_keys(BrokerConfig).keys() | known_keys(StoreConfig).keys()
    return of_shells | (of_brokers - known_keys(ServerConfig).keys() - known_keys(NamesrvConfig).keys())


_OF_BROKERS_ONLY = frozenset(_of_brokers_only())


def _check_name_server_has(key: str) -> None:
    if key in _OF_BROKERS_ONLY:
        why = "; it has HTTP when httpPort is set" if key.startswith("http") else ""
        raise ConfigError(f"{key} is a setting of brokers, not of name servers{why}", key=key)


def _path(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


def _paths(text: str) -> str:
    """Several paths, separated by commas."""
    return ",".join(_path(word.strip()) for word in text.split(",") if word.strip())


def _canonical(classes: Iterable[type[Any]]) -> dict[str, str]:
    """Maps both spellings of every key to RocketMQ's."""
    return {key: rocketmq_key(spec) for cls in classes for key, spec in known_keys(cls).items()}


def _resolve(
    classes: tuple[type[Any], ...], profile: Mapping[str, Any], layers: tuple[Layer, ...]
) -> tuple[tuple[Any, ...], list[str]]:
    canonical = _canonical(classes)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    unused: dict[str, None] = {}
    for layer in (Layer("profile", profile), *layers):
        for key, value in layer.values.items():
            with _from(layer):
                _check_promise(key, value)
                name = canonical.get(key)
                if name is not None:
                    values[name], sources[name] = value, layer.source
                elif key in ROCKETMQ_KEYS:
                    unused[key] = None
                elif layer.source != "profile":
                    raise _unknown(key, canonical.values())
    built: list[Any] = []
    for cls in classes:
        try:
            built.append(parse_settings(cls, values)[0])
        except ConfigError as error:
            source = sources.get(canonical.get(error.key or "", ""), "settings")
            raise ConfigError(f"{source}: {error}", key=error.key) from None
    return tuple(built), list(unused)


@contextlib.contextmanager
def _from(*layers: Layer) -> Iterator[None]:
    """A ConfigError names the layer of its key: the last one, which takes precedence."""
    try:
        yield
    except ConfigError as error:
        source = next((layer.source for layer in reversed(layers) if error.key in layer.values), "settings")
        raise ConfigError(f"{source}: {error}", key=error.key) from None


def _check_promise(key: str, value: Any) -> None:
    refused = REFUSED.get(key)
    if refused is not None and refused.refuses(value):
        raise ConfigError(f"{key}={str(value).strip()}: {refused.reason} in this version", key=key)


def _flatten(table: Mapping[str, Any], source: str, *, dotted: bool = False) -> dict[str, Any]:
    """``dotted``: the headers are parts of the keys, as in ``[tls.server]``."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        inner = {key: value}
        if isinstance(value, dict):
            is_dotted = dotted or key == "tls"
            inner = _flatten(value, source, dotted=is_dotted)
            if is_dotted:
                inner = {f"{key}.{name}": content for name, content in inner.items()}
        for name, content in inner.items():
            if name in values:
                raise ConfigError(f"{source}: {name!r} is given twice", key=name)
            values[name] = content
    return values
