"""Settings of a controller, under RocketMQ's names in snake case (ControllerConfig). Only settings that have an
effect."""

from __future__ import annotations

from dataclasses import dataclass

from mqspark.config import check_numbers
from mqspark.errors import ConfigError
from mqspark.names import ID, is_address, is_sound

__all__ = ["UPDATABLE_KEYS", "ControllerConfig"]

EMBEDDED, ETCD = "embedded", "etcd"


@dataclass(slots=True)
class ControllerConfig:
    controller_store: str = EMBEDDED
    """Where the state is: a file of this controller. Not in RocketMQ, whose controllers replicate it by Raft."""
    controller_store_path: str = ""
    """Directory of the state; empty: ``mqsparkController`` in the home directory."""
    controller_d_leger_group: str = "mqspark"
    """Shown to tools."""
    controller_d_leger_self_id: str = "n0"
    """This controller in controllerDLegerPeers."""
    controller_d_leger_peers: str = ""
    """``id-host:port``: the address that brokers are told, and the port to listen on. Empty: listenPort and this
    host's address."""
    scan_not_active_broker_interval: int = 5_000  # ms
    scan_inactive_master_interval: int = 5_000  # ms
    enable_elect_unclean_master: bool = False
    """Whether a replica outside the SyncStateSet may be elected when nobody of the set is alive: acknowledged
    messages are lost then."""
    notify_broker_role_changed: bool = True
    max_replica_table_bytes: int = 8 << 20
    """Limit of the table of replicas, some 1,200 bytes each; a full table refuses new ones. Not in RocketMQ."""
    config_black_list: str = "configBlackList;configStorePath"

    def __post_init__(self) -> None:
        check_numbers(
            self,
            "scan_not_active_broker_interval",
            "scan_inactive_master_interval",
            "max_replica_table_bytes",
        )
        if self.controller_store == ETCD:
            raise ConfigError(
                "controllerStore=etcd: a state in etcd is not available yet; use controllerStore=embedded",
                key="controllerStore",
            )
        if self.controller_store != EMBEDDED:
            raise ConfigError(
                f"setting controllerStore={self.controller_store!r} is not embedded", key="controllerStore"
            )
        for key, text in (
            ("controllerDLegerGroup", self.controller_d_leger_group),
            ("controllerDLegerSelfId", self.controller_d_leger_self_id),
        ):
            if not text or not is_sound(text, ID) or ";" in text:
                raise ConfigError(f"setting {key}={text!r} is not a name", key=key)
        self.advertised_address()

    def advertised_address(self) -> str:
        """``host:port`` of this controller in ``controllerDLegerPeers``, or nothing. Raises ConfigError."""
        key = "controllerDLegerPeers"
        peers = [peer.strip() for peer in self.controller_d_leger_peers.split(";") if peer.strip()]
        if len(peers) > 1:
            raise ConfigError(
                f"setting {key} has {len(peers)} peers, but the state of an embedded store is that of one controller:"
                " give one, and no other controller to the brokers",
                key=key,
            )
        for peer in peers:
            name, dash, address = peer.partition("-")
            if not dash or not is_address(address):
                raise ConfigError(f"setting {key}: {peer!r} is not of the form id-host:port", key=key)
            if name != self.controller_d_leger_self_id:
                raise ConfigError(
                    f"setting {key}: {name!r} is not controllerDLegerSelfId={self.controller_d_leger_self_id!r}",
                    key=key,
                )
            return address
        return ""


UPDATABLE_KEYS = frozenset(
    {
        "scanNotActiveBrokerInterval",
        "scanInactiveMasterInterval",
        "enableElectUncleanMaster",
        "notifyBrokerRoleChanged",
        "maxReplicaTableBytes",
    }
)
"""Settings that UPDATE_CONTROLLER_CONFIG (1009) may change; others are refused."""
