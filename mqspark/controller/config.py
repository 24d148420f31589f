"""Settings of a controller, under RocketMQ's names in snake case (ControllerConfig). Only settings that have an
effect."""

from __future__ import annotations

from dataclasses import dataclass

from mqspark.base.config import check_settings, setting
from mqspark.base.names import ID, is_address, is_sound
from mqspark.errors import ConfigError

EMBEDDED, ETCD = "embedded", "etcd"
MAX_ETCD_BYTES = 1 << 20
MAX_PREFIX_LENGTH = 256


@dataclass(slots=True)
class ControllerConfig:
    controller_store: str = setting(EMBEDDED, one_of=(EMBEDDED, ETCD), ours=True, section="controller")
    """Where the state is kept: in a file of the only controller (``embedded``), or in etcd, for several controllers.
    Not in RocketMQ, whose controllers replicate it by Raft."""
    controller_store_path: str = ""
    """Directory of an embedded state; empty: ``mqsparkController`` in the home directory."""
    etcd_endpoints: str = setting("", ours=True, secret=True)
    """``http://host:2379;http://...``: members of one etcd cluster. A majority has to be reachable."""
    etcd_prefix: str = setting("/mqspark/controller", ours=True)
    """Prefix of all keys. Controllers with the same prefix share one state."""
    etcd_lease_seconds: int = setting(4, unit="s", least=2, most=60, otherwise="is not 2 to 60", ours=True)
    """A leader that cannot reach etcd for this long stops answering, and another controller takes over. This happens
    while masters still hold their own lease."""
    etcd_tls_ca_path: str = setting("", ours=True)
    """For ``https`` endpoints: a PEM file of trusted authorities. Empty: those of the system."""
    etcd_tls_cert_path: str = setting("", ours=True)
    """This controller's certificate for etcd."""
    etcd_tls_key_path: str = setting("", ours=True)
    controller_d_leger_group: str = "mqspark"
    """Shown to tools."""
    controller_d_leger_self_id: str = "n0"
    """The id of this controller in controllerDLegerPeers."""
    controller_d_leger_peers: str = ""
    """``id-host:port``: the address given to brokers, and the port to listen on. Empty: listenPort and this host's
    address."""
    scan_not_active_broker_interval: int = setting(5_000, unit="ms", least=1, live=True)
    """ms between two looks for silent brokers."""
    scan_inactive_master_interval: int = setting(5_000, unit="ms", least=1, live=True)
    """ms between two looks for brokers without a living master."""
    enable_elect_unclean_master: bool = setting(False, live=True)
    """Whether a replica outside the SyncStateSet may be elected when no member of the set is alive. Acknowledged
    messages may be lost then."""
    notify_broker_role_changed: bool = setting(True, live=True)
    """Whether brokers are told of a new master; otherwise they ask within some seconds."""
    max_replica_table_bytes: int = setting(8 << 20, unit="bytes", least=1, live=True, ours=True)
    """Limit of the table of replicas, some 1,200 bytes each; a full table refuses new ones."""
    config_black_list: str = "configBlackList;configStorePath"
    """Keys that no remote request may change."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.in_etcd:
            self._check_etcd()
        for key, text in (
            ("controllerDLegerGroup", self.controller_d_leger_group),
            ("controllerDLegerSelfId", self.controller_d_leger_self_id),
        ):
            if not text or not is_sound(text, ID) or ";" in text:
                raise ConfigError(f"setting {key}={text!r} is not a name", key=key)
        self.advertised_address()

    @property
    def in_etcd(self) -> bool:
        return self.controller_store == ETCD

    @property
    def replica_table_bytes(self) -> int:
        """Limit of the table in memory. Its JSON is smaller; etcd accepts 1.5 MiB per request."""
        return (
            min(self.max_replica_table_bytes, MAX_ETCD_BYTES)
            if self.in_etcd
            else self.max_replica_table_bytes
        )

    def peers(self, own_address: str) -> str:
        """The peers in the form for tools: ``id:host:port;``."""
        if not self.controller_d_leger_peers:
            return f"{self.controller_d_leger_self_id}:{own_address};"
        return "".join(f"{peer.replace('-', ':', 1)};" for peer in self._peers())

    def _peers(self) -> list[str]:
        return [peer.strip() for peer in self.controller_d_leger_peers.split(";") if peer.strip()]

    @property
    def endpoints(self) -> list[str]:
        return [each.strip().rstrip("/") for each in self.etcd_endpoints.split(";") if each.strip()]

    def _check_etcd(self) -> None:
        if not self.endpoints:
            raise ConfigError("setting controllerStore=etcd needs etcdEndpoints", key="etcdEndpoints")
        for endpoint in self.endpoints:
            scheme, separator, address = endpoint.partition("://")
            if scheme not in ("http", "https") or not separator or not is_address(address):
                raise ConfigError(
                    f"setting etcdEndpoints: {endpoint[:80]!r} is not http://host:port or https://host:port",
                    key="etcdEndpoints",
                )
        if not self.etcd_prefix.startswith("/") or len(self.etcd_prefix) > MAX_PREFIX_LENGTH:
            raise ConfigError(f"setting etcdPrefix={self.etcd_prefix[:80]!r} is not a path", key="etcdPrefix")
        if bool(self.etcd_tls_cert_path) != bool(self.etcd_tls_key_path):
            raise ConfigError(
                "settings etcdTlsCertPath and etcdTlsKeyPath belong together", key="etcdTlsCertPath"
            )

    def advertised_address(self) -> str:
        """``host:port`` of this controller in ``controllerDLegerPeers``, or nothing. Raises ConfigError."""
        key = "controllerDLegerPeers"
        peers = self._peers()
        if len(peers) > 1 and not self.in_etcd:
            raise ConfigError(
                f"setting {key} has {len(peers)} peers, but an embedded store holds the state of a single controller:"
                " give one peer, and give the brokers no other controller",
                key=key,
            )
        own = ""
        for peer in peers:
            name, dash, address = peer.partition("-")
            if not dash or not is_address(address):
                raise ConfigError(f"setting {key}: {peer!r} is not of the form id-host:port", key=key)
            if name == self.controller_d_leger_self_id:
                own = address
        if peers and not own:
            raise ConfigError(
                f"setting {key} has no peer controllerDLegerSelfId={self.controller_d_leger_self_id!r}",
                key=key,
            )
        return own
