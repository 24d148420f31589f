"""POP as one part of a broker: its request handlers, parked requests and background work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from mqspark.base.histogram import Histogram
from mqspark.broker.pop.ack import AckProcessor, LiteAcks
from mqspark.broker.pop.ackrun import AckRun
from mqspark.broker.pop.checks import unknown_topic
from mqspark.broker.pop.poporder import PopOrder
from mqspark.broker.pop.popprocessor import PopProcessor
from mqspark.broker.pop.revive import PopRevival
from mqspark.broker.pop.revivelog import ReviveLog
from mqspark.broker.pop.start_offsets import PopOffsets
from mqspark.broker.pop.watch import LiteNotifications, PopWatchProcessor
from mqspark.broker.service import TICK_MS, Told
from mqspark.broker.state.acks import Acks, Deferred
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.dispatch import Handler, merged
from mqspark.protocol.session import Session
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.diskjobs import StoreProgress
from mqspark.store.disk.savedtables import SavedTable

SCAN_BOUNDS_MS = (1, 10, 100, 1_000, 2_000, 3_000)
"""Buckets of rocketmq_pop_buffer_scan_time_consume (PopMetricsManager)."""


class PopService:
    """A Service, plus the calls that a broker makes in each turn of its loop."""

    def __init__(
        self,
        state: BrokerState,
        acks: Acks,
        *,
        order_file: ConfigFile,
        timer_is_idle: Callable[[], bool] = lambda: True,
    ) -> None:
        """``timer_is_idle()``: no timed message is late."""
        self._clock = state.clock
        self.scans_ms = Histogram(SCAN_BOUNDS_MS)
        """Duration of each scan of the revive log."""
        self._answers, self._durably = Deferred(), Deferred()
        log = ReviveLog(state)
        self._offsets = offsets = PopOffsets(state)
        self._order = PopOrder(state)
        self._saved_order = SavedTable(self._order, order_file)
        self.pops = PopProcessor(state, log, offsets, self._order, self._answers, self._durably)
        self._watch = PopWatchProcessor(state, self.pops, offsets, self._order)
        self._acks = AckProcessor(state, log, self._order, acks, self._wake)
        self._revival = PopRevival(state, log, self._durably, timer_is_idle)
        parts = self.pops.parked, self._watch.parked, self._order, self._revival
        self.ledgers = tuple(part.ledger for part in parts)
        self.handlers: dict[int, Handler] = merged(
            self.pops.handlers,
            self._acks.handlers,
            self._watch.handlers,
        )

    def serve_lite(self, acks: LiteAcks, notifications: LiteNotifications) -> None:
        """``acks`` takes the acknowledgements that name a lite topic, ``notifications`` those of lite consumers."""
        self._acks.lite = acks
        self._watch.lite = notifications

    def load(self) -> None:
        """Raises StoreCorrupt."""
        self._saved_order.load()
        self._revival.load()

    def saved_tables(self) -> Sequence[SavedTable]:
        return (self._saved_order,)

    def tick(self) -> int:
        self.pops.expire()
        self._watch.expire()
        for key in self._order.freed():
            self._wake(*key)
        began_ms = self._clock.monotonic_ms()
        wait_ms = self._revival.tick()
        self.scans_ms.record(self._clock.monotonic_ms() - began_ms)
        return min(TICK_MS, wait_ms)

    @property
    def unanswered(self) -> int:
        """Pops whose check points are not acked yet."""
        return len(self._answers)

    @property
    def unsettled(self) -> int:
        """Pops and revivals whose offsets wait for the disk."""
        return len(self._durably)

    def revive_behind(self) -> list[tuple[int, int]]:
        """For each revive queue: records and ms."""
        return self._revival.behind()

    @property
    def told(self) -> Sequence[Told]:
        return (self.pops.parked.requests, self.pops.arrived), (
            self._watch.parked.requests,
            self._watch.arrived,
        )

    @property
    def acknowledged(self) -> Collection[object]:
        """What ``before_commit`` has to write. To be looked at only."""
        return self._acks.records

    @property
    def awaited(self) -> tuple[Deferred, Deferred]:
        """What ``progress`` releases. To be looked at only."""
        return self._answers, self._durably

    @property
    def given(self) -> Collection[int]:
        """What ``end_turn`` forgets. To be looked at only."""
        return self.pops.given

    def _wake(self, topic: str, group: str, queue_id: int) -> None:
        self.pops.wake(topic, group, queue_id)
        self._watch.wake(topic, group, queue_id)

    def topic_gone(self, topic: str) -> None:
        """The topic is deleted: answer the requests that wait for its messages."""
        refusal = unknown_topic(topic)
        self.pops.topic_gone(refusal, topic)
        self._watch.topic_gone(refusal, topic)

    def acknowledge(self, session: Session, run: AckRun) -> None:
        """What requests would do, had they come."""
        self._acks.take_run(session, run)

    def before_commit(self) -> None:
        """Called at the end of a turn, before the store writes."""
        self._acks.end_turn()

    def end_turn(self) -> None:
        self.pops.end_turn()

    def progress(self, progress: StoreProgress) -> None:
        if self._answers.waiting:
            self._answers.release(progress.acked)
        if self._durably.waiting:
            self._durably.release(progress.durable)
        if progress.failed is not None:
            self._answers.fail()
            self._durably.fail()
