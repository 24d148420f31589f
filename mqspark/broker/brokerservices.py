"""What a broker does by itself: it delivers delayed and timed messages, checks transactions, revives what POP has
handed out, serves lite topics, and keeps the schema registry.

Must not know who calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from mqspark.base.logs import sparing
from mqspark.broker.brokertables import BrokerTables
from mqspark.broker.config import BrokerRole
from mqspark.broker.lite.lite_service import LiteService
from mqspark.broker.pop.pop_service import PopService
from mqspark.broker.replication.preonline import comes_back
from mqspark.broker.schemaregistry.schemaregistry import Compute, SchemaRegistry
from mqspark.broker.service import Service, Told
from mqspark.broker.state.acks import Acks
from mqspark.broker.state.state import BrokerState
from mqspark.broker.timer.delays import DELAY_RETRY_MS, DelayService
from mqspark.broker.timer.timerservice import TimerService
from mqspark.broker.transaction.transactions import TransactionService
from mqspark.errors import NotNow
from mqspark.store.timer.timerfiles import TimerFiles

_log = sparing(__name__, lines=5)
_waits: Callable[[Told], Collection[Any]] = itemgetter(0)


class BrokerServices:
    """The services of one broker. On a slave, whose master's messages and progress are all it has, only the schema
    registry runs; on a master that comes back, none before ``begin``. Raises StoreCorrupt."""

    def __init__(
        self,
        shared: BrokerTables,
        acks: Acks,
        compute: Compute | None,
    ) -> None:
        """``compute``: as of ``SchemaRegistry``."""
        state, config_file = shared.state, shared.config_file
        config, store = state.config, state.store
        self._saved = shared.saved
        self._running: list[Service] = []
        self._told: list[Told] = []
        """Who is told what arrives."""
        self.delays = DelayService(state, config_file("delayOffset.json"))
        self.transactions = TransactionService(state, acks, store.store_host)
        self.timers = TimerService(state, _timer_files(state), config_file("timermetrics"))
        state.writer.diversions += [
            self.delays.divert,
            self.timers.gate.divert,
            self.transactions.check_draft,
        ]
        state.writer.own_out_ms = self.timers.gate.own_out_ms
        self.pop = PopService(
            state,
            acks,
            order_file=config_file("consumerOrderInfo.json"),
            timer_is_idle=self.timers.is_idle,
        )
        self.lite = LiteService(state)
        state.remove_lite_topics = self.lite.life.remove_all_of
        self.pop.serve_lite(self.lite.pops, self.lite.watch)
        self.schemas = SchemaRegistry(state, acks, config_file("schemaCopy.json"), compute)
        self._registries = [self.schemas] if config.schema_registry_enable else []
        if config.broker_role is BrokerRole.SLAVE:
            self.schemas.load()
            self._running += self._registries
            self._told += self._told_registries()
            for table in (*self.delays.saved_tables(), *self.timers.saved_tables()):
                table.load()
                self._saved.add([table])
        else:
            self._load(self.delays, self.timers)
            if not comes_back(config):
                self.begin()

    def begin(self) -> None:
        """Start them. Raises StoreCorrupt."""
        self._load(self.transactions, self.pop, self.lite, self.schemas)
        self._running += [self.delays, self.timers, self.transactions, self.pop, self.lite, *self._registries]
        self._told += [*self.transactions.told, *self.pop.told, *self.lite.told, *self._told_registries()]

    def _told_registries(self) -> list[Told]:
        return [each for registry in self._registries for each in registry.told]

    def _load(self, *services: Service) -> None:
        for service in services:
            service.load()
            self._saved.add(service.saved_tables())

    def arrived(self, arrivals: Sequence[tuple[str, int, int]]) -> None:
        for _, tell in filter(_waits, self._told):
            tell(arrivals)

    def tick(self, wait_ms: int) -> int:
        """Returns the ms until the next call, at most ``wait_ms``. A service that cannot read or write what it needs is
        called again soon, and keeps no other from its work."""
        for service in self._running:
            try:
                service_ms = service.tick()
            except (NotNow, OSError) as error:
                _log.error("%s waits: %s", type(service).__name__, error)
                service_ms = DELAY_RETRY_MS
            wait_ms = min(wait_ms, service_ms)
        return wait_ms


def _timer_files(state: BrokerState) -> TimerFiles:
    store, settings = state.store, state.store_config
    return TimerFiles(
        Path(settings.store_path_root_dir),
        store.files,
        precision_ms=settings.timer_precision_ms,
        log_file_bytes=settings.mapped_file_size_timer_log,
        on_failure=store.condition.distrust,
        note=store.damages.note,
    )
