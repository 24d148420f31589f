"""The stores and connections that reads keep open: Spark reuses workers between tasks.

They are cached at module level and checked before use; segments that the broker has deleted are let go within seconds.
A store is opened only if this host's operator allows its directory, and the broker has proved to the driver that it
knows the secret in it (``mqspark.store.disk.trusted``).
"""

from __future__ import annotations

import hmac
import os
from dataclasses import replace

from mqspark.arrow.cluster.cluster_queues import BrokerPlace
from mqspark.arrow.reading.localstore import LocalStore
from mqspark.arrow.reading.lookout import Watch
from mqspark.base.logs import escaping
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import ConnectionLost, StoreError
from mqspark.store.disk.trusted import Trust, prove
from mqspark.store.tools.reader import StoreReader

log = escaping("mqspark.arrow")

ALLOWED_VARIABLE = "MQSPARK_LOCAL_STORES"
"""Environment variable of workers: the only directories in which stores are read locally, separated as in PATH."""
_MAX_STORES = 16
_MAX_CONNECTIONS = 64
"""The most of a worker: name servers choose how many brokers there are."""


class OpenPlaces:
    """The stores and connections that reads have opened, and keep until ``close``. Of one thread at a time."""

    def __init__(self) -> None:
        self.stores: dict[tuple[int, BrokerPlace, str], LocalStore] = {}
        self.connections: dict[tuple[int, str, Credentials | None], BlockingConnection] = {}
        """A worker serves queries of several users: each has connections of its own."""

    def close(self) -> None:
        _open.discard(self)
        self.stores.clear()
        while self.connections:
            self.connections.popitem()[1].close()

    def store(self, place: BrokerPlace) -> LocalStore | None:
        """The local store, if its directory may be read and is proved to be the broker's."""
        if not place.store_path or not place.proof:
            return None
        try:
            reader = StoreReader(
                place.store_path, place.commit_log_path or None, Trust(_allowed(place)), maps=True
            )
            nonce = reader.nonce() or ""
        except (OSError, StoreError) as error:
            log.debug("%s is not read locally: %s", place.store_path, error)
            return None
        proof = prove(nonce, place.challenge, place.store_path, place.commit_log_path)
        if not hmac.compare_digest(proof.encode(), place.proof.encode(errors="replace")):
            return None
        key = (os.getpid(), replace(place, challenge="", proof=""), nonce)
        store = self.stores.get(key)
        if store is None:
            # A restarted broker has another nonce and may have truncated its log: close what is open of it.
            for other in [other for other in self.stores if other[1].store_path == place.store_path] or list(
                self.stores
            )[: 1 - _MAX_STORES]:
                del self.stores[other]
            store = self.stores[key] = LocalStore(reader)
            _open.add(self)
            _watch.begin()
        return store

    def connection(self, address: str, credentials: Credentials | None) -> BlockingConnection:
        """The connection of this process, or a new one. A connection that the broker closed while idle is
        replaced."""
        key = (os.getpid(), address, credentials)
        connection = self.connections.get(key)
        if connection is not None:
            try:
                connection.receive_ready()
            except ConnectionLost:
                connection = None
        if connection is None:
            while len(self.connections) >= _MAX_CONNECTIONS:
                self.connections.pop(next(iter(self.connections))).close()
            connection = self.connections[key] = BlockingConnection(address, credentials=credentials)
        return connection

    def forget(self, address: str, credentials: Credentials | None) -> None:
        stale = self.connections.pop((os.getpid(), address, credentials), None)
        if stale is not None:
            stale.close()


_open: set[OpenPlaces] = set()
"""Those with stores; ``close`` takes them out."""


def _let_go() -> None:
    for places in list(_open):
        for store in list(places.stores.values()):
            store.let_go()


_watch = Watch(_let_go)
KEPT = OpenPlaces()
"""What a process of Spark's keeps between its tasks."""


def _allowed(place: BrokerPlace) -> tuple[str, ...] | None:
    """The directories allowed by this host's operator, or else by the query; None: decided by owner."""
    text = os.environ.get(ALLOWED_VARIABLE)
    return place.directories if text is None else tuple(filter(None, text.split(os.pathsep)))
