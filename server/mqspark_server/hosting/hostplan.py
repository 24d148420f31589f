"""What the brokers of one host are, by the settings of one file: names, ports and directories by number.

broker 3 of brokerName=a, listenPort=10911, storePathRootDir=/data:
brokerName=a-3, listenPort=10941 (and every other given port 30 higher), storePathRootDir=/data/broker-3
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mqspark.base.config import MAX_PORT
from mqspark.broker.config import MIN_TABLES_BYTES
from mqspark.errors import ConfigError
from mqspark.store.disk.files import usable_memory_bytes
from mqspark_server.broker_app import HTTP_PORT_DISTANCE
from mqspark_server.settings.serverconfig import GRPC_PORT_DISTANCE
from mqspark_server.settings.settings import BrokerSettings, Layer, broker_settings

PORT_STEP = 10
"""Distance between the ports of two brokers: each uses up to four more ports around its own."""
PAGE_PORT_DISTANCE = 5
"""The page's port is that of the first broker + 5 by default."""

_DIRECTORY = re.compile(r"broker-(0|[1-9][0-9]{0,8})")


class PlannedBroker(NamedTuple):
    name: str
    own: Mapping[str, Any]
    """The settings that differ by number."""
    settings: BrokerSettings

    @property
    def directory(self) -> Path:
        return Path(self.settings.store.store_path_root_dir)


class HostPlan:
    """``store``: the directory of all stores; None: storePathRootDir. ``page_port`` None: the default. Raises
    ConfigError, also for settings that only one broker can have."""

    def __init__(
        self,
        count: int,
        profile: Mapping[str, Any],
        layers: Sequence[Layer],
        *,
        store: str | None = None,
        page_port: int | None = None,
    ) -> None:
        if store == "":
            raise ConfigError("the store directory must not be empty", key="store")
        placed = [*layers, *([Layer("--store", {"storePathRootDir": store})] if store is not None else [])]
        self._profile, self._layers = profile, layers
        self.base = broker_settings(profile, *placed)
        self.parent = Path(self.base.store.store_path_root_dir)
        if count > 1 and self.base.broker.ha_master_address:
            raise ConfigError(
                "haMasterAddress is the master of one broker: leave it out, the name servers name each broker's",
                key="haMasterAddress",
            )
        self.brokers = [self._broker(number, count) for number in range(count)]
        port = self.base.broker.listen_port
        self.page_port = page_port if page_port is not None else port + PAGE_PORT_DISTANCE if port else 0
        self._check_ports()

    def _broker(self, number: int, count: int) -> PlannedBroker:
        own = own_settings(self.base, number, count)
        settings = broker_settings(self._profile, *self._layers, Layer(f"broker {number} of this host", own))
        return PlannedBroker(settings.broker.broker_name, own, settings)

    def _check_ports(self) -> None:
        """The ports that must be had; the fast port and the default one for slaves are others when they are taken."""
        ports = Counter[int]()
        for each in self.brokers:
            listen, http = each.settings.broker.listen_port, each.settings.server.http_port
            ports.update([listen, each.settings.broker.ha_listen_port or 0])
            if each.settings.server.http_enable:
                ports[http if http is not None else listen and listen + HTTP_PORT_DISTANCE] += 1
            grpc = each.settings.server.grpc_server_port
            if each.settings.server.grpc_enable:
                ports[grpc if grpc is not None else listen and listen + GRPC_PORT_DISTANCE] += 1
        if self.base.server.http_enable:
            ports[self.page_port] += 1
        del ports[0]
        twice = sorted(port for port, uses in ports.items() if uses > 1)
        if twice:
            raise ConfigError(
                f"port {twice[0]} would be used twice on this host: brokers are {PORT_STEP} ports apart; change"
                " listenPort, haListenPort, httpPort, grpcServerPort or --page-port",
                key="listenPort",
            )
        if self.page_port > MAX_PORT:
            raise ConfigError(
                f"there is no port {self.page_port} for the page: use --page-port", key="listenPort"
            )

    def check_directory(self, *, leave_out: bool) -> None:
        """Raises ConfigError if starting these brokers would leave messages unserved: those of a store that is
        ``parent`` itself, or, unless ``leave_out``, those of brokers that this host had. Raises StoreError, OSError."""
        if (self.parent / "commitlog").is_dir():
            raise ConfigError(
                f"{self.parent} is the store of one broker, and would be served by none: make it broker-0 of another"
                " directory",
                key="storePathRootDir",
            )
        if leave_out or not self.parent.is_dir():
            return
        for number in sorted(_numbers_in(self.parent)):
            if number >= len(self.brokers) and (size := self._log_bytes(number)):
                raise ConfigError(
                    f"{self.parent / directory_name(number)} has {size} bytes of messages, which no broker would serve:"
                    f" run --brokers {number + 1}, or leave it out with --leave-out",
                    key="brokers",
                )

    def _log_bytes(self, number: int) -> int:
        from mqspark.store.tools.offlinestore import OfflineStore  # here, because few starts need it
        from mqspark.store.tools.storestats import store_stats

        own = own_settings(self.base, number, number + 1)
        config = broker_settings(self._profile, *self._layers, Layer(f"broker {number}", own)).store
        logs = [config.store_path_commit_log or str(Path(config.store_path_root_dir) / "commitlog")]
        if not any(Path(path).is_dir() for path in logs[0].split(",")):
            return 0  # it never was a store
        return store_stats(OfflineStore(config)).log_bytes


def directory_name(number: int) -> str:
    return f"broker-{number}"


def _numbers_in(parent: Path) -> set[int]:
    """The numbers of the brokers that have directories there."""
    found = (_DIRECTORY.fullmatch(each.name) for each in parent.iterdir() if each.is_dir())
    return {int(each[1]) for each in found if each is not None}


def own_settings(base: BrokerSettings, number: int, count: int) -> dict[str, Any]:
    """What broker ``number`` of ``count`` has for itself."""
    broker, store, server, auth = base.broker, base.store, base.server, base.auth
    step, name = PORT_STEP * number, directory_name(number)
    own: dict[str, Any] = {
        "brokerName": f"{broker.broker_name}-{number}",
        "storePathRootDir": str(Path(store.store_path_root_dir) / name),
    }
    if broker.listen_port:
        own["listenPort"] = broker.listen_port + step
        if broker.ha_listen_port:
            own["haListenPort"] = broker.ha_listen_port + step
    else:
        # With ports chosen by the system, listenPort + 1 may be taken by another process when the broker restarts.
        own |= {"listenPort": 0, "haListenPort": 0}
    if server.http_port:
        own["httpPort"] = server.http_port + step
    if server.grpc_server_port:
        own["grpcServerPort"] = server.grpc_server_port + step
    for key, paths in (
        ("storePathCommitLog", store.store_path_commit_log),
        ("readOnlyCommitLogStorePaths", store.read_only_commit_log_store_paths),
        ("archiveCachePath", broker.archive_cache_path),
        ("authConfigPath", auth.auth_config_path),
    ):
        if paths:
            own[key] = ",".join(str(Path(each) / name) for each in paths.split(","))
    if auth.audit_log_path:
        path = Path(auth.audit_log_path)
        own["auditLogPath"] = str(path.with_name(f"{path.stem}-{number}{path.suffix}"))
    if not broker.max_tables_bytes:  # all brokers together have what one has by default
        own["maxTablesBytes"] = max(broker.tables_bound(usable_memory_bytes()) // count, MIN_TABLES_BYTES)
    return own
