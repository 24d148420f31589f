"""A broker's process as HTTP sees it: the parts that pages and metrics read. Must not know how they are created."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqspark.base.clock import Clock
    from mqspark.broker.broker import BrokerCore
    from mqspark.broker.config import BrokerConfig
    from mqspark.store.config import StoreConfig
    from mqspark.store.store import MessageStore
    from mqspark_server.compacting.compactrunner import CompactRunner
    from mqspark_server.compacting.mastercopy import MasterCopy
    from mqspark_server.net.grpc.grpccounts import GrpcCounts
    from mqspark_server.net.remotingserver import RemotingServer
    from mqspark_server.net.replicationserver import ReplicationServer
    from mqspark_server.peers.brokergroup import BrokerGroup
    from mqspark_server.peers.escaping import Escaping
    from mqspark_server.peers.following import Following
    from mqspark_server.peers.peerlink import PeerLink
    from mqspark_server.peers.registrar import Registrar
    from mqspark_server.peers.routefinder import RouteFinder
    from mqspark_server.peers.schemafollower import SchemaFollower
    from mqspark_server.process.diskwork import Flusher, Housekeeper
    from mqspark_server.process.phases import ProcessLifecycle
    from mqspark_server.settings.settings import BrokerSettings
    from mqspark_server.tiered.archivetier import ArchivedMessages


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts of a broker around its store; they exist together or not at all."""

    core: BrokerCore
    server: RemotingServer
    flusher: Flusher
    housekeeper: Housekeeper
    registrar: Registrar
    route_finder: RouteFinder
    peers: PeerLink
    slaves: ReplicationServer
    compaction: CompactRunner
    following: Following | None
    master_copy: MasterCopy | None
    """None on a master, as is ``following``."""
    group: BrokerGroup | None
    escaping: Escaping | None
    """None without enableSlaveActingMaster, as is ``group``."""
    archived: ArchivedMessages | None = None
    """None without archiveUrl."""
    schema_follower: SchemaFollower | None = None
    """None on a broker that keeps the schema registry, and without name servers."""


class BrokerNode(Protocol):
    """A part that is None has not been started yet."""

    settings: BrokerSettings
    clock: Clock
    lifecycle: ProcessLifecycle
    config: BrokerConfig
    store_config: StoreConfig
    address: str
    store: MessageStore | None
    recovery: dict[str, Any] | None
    parts: BrokerParts | None
    grpc_counts: Callable[[], GrpcCounts] | None
    """None without grpcEnable."""
    loopback_token: str
    """The token for changes over HTTP on a broker without users."""

    @property
    def store_path(self) -> Path: ...
