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
import os
import socket
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mqspark.auth.config import AuthConfig
from mqspark.base.config import ForeignKeys, did_you_mean, known_keys, parse_settings, rocketmq_key
from mqspark.base.textfile import encoding_of
from mqspark.broker.config import BrokerConfig, BrokerRole
from mqspark.controller.config import ControllerConfig
from mqspark.errors import ConfigError
from mqspark.namesrv.config import NamesrvConfig
from mqspark.store.config import StoreConfig
from mqspark_server.settings.declarations import spellings_of
from mqspark_server.settings.properties import parse_properties
from mqspark_server.settings.rocketmq_keys import REFUSED, ROCKETMQ_KEYS
from mqspark_server.settings.serverconfig import ServerConfig, is_loopback

WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound


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


PROXY_PORT = 8081
"""The port of RocketMQ's proxy, which gRPC clients take for granted."""

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
class Layer:
    """Settings from one place; ``source`` names it in error messages."""

    source: str
    values: Mapping[str, Any]
    path: Path | None = None
    """The file they come from."""


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
class ProxySettings:
    server: ServerConfig
    auth: AuthConfig
    unused: list[str] = field(default_factory=list)


@dataclass(slots=True)
class NamesrvSettings:
    server: ServerConfig
    namesrv: NamesrvConfig
    auth: AuthConfig
    unused: list[str] = field(default_factory=list)
    controller: ControllerSettings | None = None
    """The settings of a controller in the same process, with a port of its own."""
    file: Path | None = None
    """Receives settings that are changed while the process runs."""


def file_layer(path: str | os.PathLike[str]) -> Layer:
    """A ``.toml`` file, or anything else in broker.conf's syntax."""
    source = os.fspath(path)
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from None
    return Layer(source, values_in(decoded(raw, source)[0], source), Path(path).resolve())


def decoded(raw: bytes, source: str) -> tuple[str, str]:
    """The text of a settings file and its encoding: UTF-8, with or without a byte order mark, or else Latin-1, in which
    java.util.Properties reads every file. Raises ConfigError for UTF-16, and for a .toml file that is not UTF-8."""
    encoding = encoding_of(raw, source)
    try:
        return raw.decode(encoding), encoding
    except UnicodeDecodeError as error:
        if source.endswith(".toml"):
            raise ConfigError(f"{source} is not UTF-8 text (byte {error.start})") from None
        return raw.decode("latin-1"), "latin-1"


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


def layers_of(file: str | None, assignments: Iterable[str]) -> list[Layer]:
    """What a command line says: a file, if it names one, and assignments. Raises ConfigError."""
    return [*([file_layer(file)] if file else []), override_layer(assignments)]


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
    is_told = any({"brokerIP1", "broker_ip1"} & layer.values.keys() for layer in layers)
    if not is_told and server.bind_address not in WILDCARDS:
        broker.broker_ip1 = server.bind_address  # at any other one nobody would find the broker
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


def proxy_settings(profile: Mapping[str, Any], *layers: Layer) -> ProxySettings:
    """Later layers win. It listens on listenPort."""
    (server, auth), unused = _resolve(
        (ServerConfig, AuthConfig), {"listenPort": PROXY_PORT, **profile}, layers
    )
    with _from(*layers):
        server.check()
    return ProxySettings(server, auth, unused)


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


_OF_BROKERS_ONLY = spellings_of("broker") - spellings_of("namesrv")


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
