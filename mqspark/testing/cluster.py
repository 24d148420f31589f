"""A development cluster in a background thread. See the package's docstring."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from mqspark.base.clock import Clock
from mqspark.testing.fake_clock import FakeClock
from mqspark_server.broker_app import BrokerApp
from mqspark_server.dev_cluster import DevCluster
from mqspark_server.settings.settings import Layer

R = TypeVar("R")


class Cluster:
    """A name server and ``brokers`` brokers, each with a store of its own, and with ``slaves`` slaves each.

    ``store``: where their files go, kept afterwards; None is a temporary directory that is removed.
    ``settings`` are RocketMQ's keys or ours (``{"flushDiskType": "SYNC_FLUSH"}``). ``clock`` is the brokers': with a
    ``FakeClock`` their time stands still until ``advance`` moves it, and them with it. ``http`` opens the HTTP port
    too. Brokers are known by their numbers, from 0; the slaves' numbers follow: first all of broker 0.

    ``replication="controller"``: the brokers are replicas of one, and a controller beside them elects their master, at
    first number 0 (see ``master``). A message is acknowledged when all replicas in the SyncStateSet have it, and two at
    least (``minInSyncReplicas``). ``start`` returns when all of them are in it. Not together with ``slaves`` and
    ``clock``.

    Use it as a context manager, or call ``start`` and ``stop``. Safe to use from any thread.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        slaves: int = 0,
        replication: str | None = None,
        store: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        namesrv_port: int = 0,
        broker_port: int = 0,
        http: bool = False,
    ) -> None:
        """Raises ConfigError for settings that do not fit."""
        self._cluster = DevCluster(
            store=None if store is None else str(store),
            namesrv_port=namesrv_port,
            broker_port=broker_port,
            brokers=brokers,
            slaves=slaves,
            replication=replication,
            layers=[Layer("settings", {"httpEnable": http, **(settings or {})})],
            clock=clock,
        )
        self._clock = clock if isinstance(clock, FakeClock) else None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked: asyncio.Event | None = None
        self._failure: BaseException | None = None

    def start(self) -> Self:
        """Raises what kept the cluster from starting: OSError, StoreError."""
        if self._thread is not None:
            raise RuntimeError("started already")
        up = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(up,), name="mqspark-cluster", daemon=True)
        self._thread.start()
        up.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        if self._clock is not None:
            self._clock.attach(self)
        return self

    def stop(self) -> None:
        """Clean shutdown; raises the error of a part that failed to stop. May be called more than once."""
        thread, loop, asked = self._thread, self._loop, self._stop_asked
        if thread is None or not thread.is_alive() or loop is None or asked is None:
            return
        if self._clock is not None:
            self._clock.detach(self)
        loop.call_soon_threadsafe(asked.set)
        thread.join()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def namesrv(self) -> str:
        """Address of the name server, ``host:port``."""
        return self._cluster.namesrv.address

    @property
    def addresses(self) -> list[str]:
        """The addresses of the brokers, ``host:port``."""
        return [app.address for app in self._cluster.brokers]

    @property
    def store_paths(self) -> list[Path]:
        """The brokers' store directories."""
        return [app.store_path for app in self._cluster.brokers]

    @property
    def http_urls(self) -> list[str | None]:
        """The URLs of the brokers, ``http://host:port``; None without ``http``."""
        return [app.http_url for app in self._cluster.brokers]

    @property
    def grpc_addresses(self) -> list[str | None]:
        """The addresses of the brokers for RocketMQ's gRPC clients; None without the setting grpcEnable."""
        return [app.grpc_address for app in self._cluster.brokers]

    @property
    def master(self) -> int | None:
        """With ``replication``: the number of the broker that is the master and takes messages; None while there is
        none."""
        return self.call(lambda: self._cluster.master)

    @property
    def sync_state_set(self) -> frozenset[int]:
        """With ``replication``: the numbers of the brokers that have all acknowledged messages, any of which may
        become the master. Empty while there is no master."""
        return self.call(lambda: self._cluster.sync_state_set)

    def kill(self, number: int = 0) -> None:
        """End a broker as SIGKILL would: connections break, what was not written is lost."""
        self.run(self._cluster.kill(number))

    def shut_down(self, number: int = 0) -> None:
        """Stop a broker cleanly."""
        self.run(self._cluster.brokers[number].stop())

    def restart(self, number: int = 0) -> None:
        """Start a killed or stopped broker again, on its files and its port; one that runs is stopped first."""
        self.run(self._cluster.restart(number))

    def add_broker(self) -> int:
        """Add a broker; returns its number. It has none of the existing topics, only those that every broker creates by
        itself. Raises ValueError for a cluster that began with one broker, or with ``replication``."""
        return self.run(self._cluster.add())

    def follow(self) -> int:
        """Called by the clock: run what has become due."""

        ahead_ms = 0 if self._clock is None else self._clock.moved_ms

        async def tick() -> int:
            return min([await app.tick(ahead_ms) for app in self._cluster.brokers])

        return self.run(tick())

    def call(self, function: Callable[[], R]) -> R:
        """Run ``function`` on the cluster's loop and return its result: for reading internals without a race."""

        async def on_loop() -> R:
            return function()

        return self.run(on_loop())

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the cluster's loop."""
        if self._loop is None or self._thread is threading.current_thread():
            coroutine.close()
            raise RuntimeError("not started" if self._loop is None else "the cluster would wait for itself")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @property
    def apps(self) -> list[BrokerApp]:
        """The brokers' internals, for ``call`` and ``run``; not a stable interface."""
        return self._cluster.brokers

    @property
    def processes(self) -> DevCluster:
        """The internals of the cluster; not a stable interface."""
        return self._cluster

    def _run(self, up: threading.Event) -> None:
        factory = None
        if importlib.util.find_spec("uvloop") is not None:
            import uvloop

            factory = uvloop.new_event_loop
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(self._serve(up))
        except BaseException as error:
            self._failure = error
        finally:
            self._loop = None
            up.set()

    async def _serve(self, up: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        async with self._cluster:
            up.set()
            await self._stop_asked.wait()


class Broker(Cluster):
    """One broker and its name server."""

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        namesrv_port: int = 0,
        broker_port: int = 0,
        http: bool = False,
    ) -> None:
        super().__init__(
            1,
            store=store,
            settings=settings,
            clock=clock,
            namesrv_port=namesrv_port,
            broker_port=broker_port,
            http=http,
        )

    @property
    def address(self) -> str:
        """Address of the broker, ``host:port``."""
        return self.addresses[0]

    @property
    def store_path(self) -> Path:
        """The broker's store directory."""
        return self.store_paths[0]

    @property
    def http_url(self) -> str | None:
        """The URL of the broker, ``http://host:port``; None without ``http``."""
        return self.http_urls[0]

    @property
    def grpc_address(self) -> str | None:
        """The address of the broker for RocketMQ's gRPC clients; None without the setting grpcEnable."""
        return self.grpc_addresses[0]
