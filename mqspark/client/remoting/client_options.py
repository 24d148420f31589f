"""Who a client is: its options, its name servers, its client id (ClientConfig).

Facts: docs/rocketmq/client.md#identity.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from mqspark.base.clock import Clock
from mqspark.base.config import parse_addresses
from mqspark.base.valuetypes import NonNegativeInt, PositiveInt, check_fields
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.keywords import described
from mqspark.client.remoting.remoting import split_address
from mqspark.client.remoting.tls import Tls
from mqspark.errors import ConfigError, ConnectionLost, NoNameServer
from mqspark.record.compression import LIMITS, MAX_INFLATED_BYTES, InflateLimits

STREAM_FIELDS = {"ReqT": "0"}
"""The field of every request of a client that pulls by itself (StreamTypeRPCHook)."""


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What producers, consumers and admins have in common (ClientConfig's defaults)."""

    instance_name: str = "DEFAULT"
    """Part of the client id, ``ip@instance_name``. All producers, consumers and admins of a process with the same
    client id share connections, one heartbeat and one table of routes. They must have the same options (except
    ``namespace``) and name servers and belong to one event loop. At most one producer and one consumer of a group may
    be among them. Lite pull consumers share among themselves only, because their client id ends with ``@STREAM``.

    ``DEFAULT`` becomes ``pid#time``, different for each client, as with RocketMQ. To share, give a name. Broadcasting
    consumers keep ``DEFAULT``, because their local offsets are stored under the client id: they share, and two of them
    in one group on one host need two names."""
    unit_name: str = ""
    """Appended to the client id, ``ip@instance_name@unit``."""
    client_ip: str | None = None
    """Part of the client id; by default the address from which the first name server is reached."""
    namespace: str = ""
    """Prefix of all topics and groups: ``Orders`` is ``<namespace>%Orders`` in the cluster. Applies to producers and
    consumers; administration uses the cluster's names."""
    namespace_v2: str = ""
    """A namespace as in RocketMQ 5: names stay unchanged, and every request names its namespace (fields ``nsd`` and
    ``ns``). It is for servers that separate namespaces; brokers of RocketMQ and mqspark ignore it."""
    heartbeat_v2: bool = False
    """Send subscriptions in heartbeats only after they change, to brokers that support it (RocketMQ 5.1 and later,
    and mqspark)."""
    connect_timeout_ms: PositiveInt = 3_000
    """The limit of opening a connection, the name look-up included."""
    request_timeout_ms: PositiveInt = 3_000
    """The limit of a request for a route, a heartbeat or a member list."""
    route_interval_ms: PositiveInt = 30_000
    """How often routes are looked up again."""
    heartbeat_interval_ms: PositiveInt = 30_000
    """Interval of heartbeats; brokers remove a client that is silent for 120 s."""
    idle_timeout_ms: PositiveInt = 120_000
    """An idle connection is closed after this time (clientChannelMaxIdleTimeSeconds), and opened again when it is
    needed."""

    credentials: Credentials | Literal[False] | None = None
    """Sign every request with these; None: with the credentials of the environment, if any; False: with none."""
    tls: Tls | None = None
    """TLS: True, ``TlsSettings`` or an ``ssl.SSLContext``; False: no TLS; None: according to the environment."""
    clock: Clock | None = None
    """For pauses, time limits of listeners and invisible times; None: the system's. Connections, memberships and locks
    use real time."""
    max_inflated_bytes: PositiveInt = MAX_INFLATED_BYTES
    """Decompressed size limit of a body; a message with a larger body cannot be consumed."""
    max_inflate_ratio: NonNegativeInt = LIMITS.max_ratio
    """Maximum ratio of decompressed to stored size, for bodies that decompress to more than 4 MiB; 0: no limit."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def inflate_limits(self) -> InflateLimits:
        """``max_inflated_bytes`` and ``max_inflate_ratio`` as one value."""
        return InflateLimits(self.max_inflated_bytes, self.max_inflate_ratio)

    @property
    def fields(self) -> dict[str, str]:
        """The fields of every request besides its header (NamespaceRpcHook)."""
        return {"nsd": "true", "ns": self.namespace_v2} if self.namespace_v2 else {}


class ClientKeywords(TypedDict, total=False):
    """The fields of ``ClientOptions``, as keywords of every client."""

    instance_name: str
    unit_name: str
    client_ip: str | None
    namespace: str
    namespace_v2: str
    heartbeat_v2: bool
    connect_timeout_ms: int
    request_timeout_ms: int
    route_interval_ms: int
    heartbeat_interval_ms: int
    idle_timeout_ms: int
    credentials: Credentials | Literal[False] | None
    tls: Tls | None
    clock: Clock | None
    max_inflated_bytes: int
    max_inflate_ratio: int


def resolve_namesrv(namesrv: str | Sequence[str] | None) -> list[str]:
    """``host:port`` addresses from a list, a text with semicolons, or the environment's NAMESRV_ADDR.

    Raises ConfigError when there is none.
    """
    if namesrv is None:
        namesrv = os.environ.get("NAMESRV_ADDR", "")
    parts = [namesrv] if isinstance(namesrv, str) else namesrv
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"namesrv={namesrv!r} is neither text nor a list of text", key="namesrv")
    addresses = parse_addresses(";".join(parts), key="namesrv")
    if not addresses:
        raise NoNameServer("give namesrv='host:port;host:port' or set NAMESRV_ADDR", key="namesrv")
    return addresses


def local_address(towards: str) -> str:
    """The local address for connections to ``towards``. Sends no packets."""
    try:
        host, port = split_address(towards)
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError, ConnectionLost):  # ValueError: not a host name
        return "127.0.0.1"


def client_id_of(
    namesrv: Sequence[str],
    options: ClientOptions,
    *,
    keep_default_name: bool = False,
    is_stream: bool = False,
) -> str:
    """``ip@instance name``, and ``@unit`` if there is one (ClientConfig.buildMQClientId). The name ``DEFAULT`` is made
    unique (changeInstanceNameToPID), or kept. ``is_stream``: of a client that pulls by itself, ``@STREAM``.
    """
    name = options.instance_name
    if name == "DEFAULT" and not keep_default_name:
        name = f"{os.getpid()}#{time.monotonic_ns()}"
    client_ip = options.client_ip or local_address(namesrv[0])
    unit = [options.unit_name] if options.unit_name else []
    return "@".join([client_ip, name, *unit, *(["STREAM"] if is_stream else [])])
