"""Lite topics as one part of a broker: its request handlers, parked pops and background work."""

from __future__ import annotations

from collections.abc import Sequence

from mqspark.broker.lite.liteadmin import LiteAdminProcessor
from mqspark.broker.lite.liteclients import LiteClients
from mqspark.broker.lite.litelife import LiteLife
from mqspark.broker.lite.litepop import LitePops
from mqspark.broker.lite.litewatch import LiteWatch
from mqspark.broker.pop.poporder import PopOrder
from mqspark.broker.pop.start_offsets import PopOffsets
from mqspark.broker.service import Told
from mqspark.broker.state.litenames import LITE_PREFIX, checked_lite_queue
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.lite_bodies import LiteSubscription, LiteSubscriptionCtlRequestBody
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, merged, ok
from mqspark.protocol.session import Session
from mqspark.protocol.slices import ESSENTIAL, Slices, Work
from mqspark.store.disk.savedtables import SavedTable

TICK_MS = 100
FORGET_INTERVAL_MS = 300_000
"""How often the state of ordered pops is cleaned."""
MAX_LITE_BODY_BYTES = 4 << 20
"""The body of a request that changes subscriptions: some 60,000 names. It is decoded in one slice."""
CHANGED_AT_ONCE = 256
"""Entries of a request that are handled in one slice, if they have few names."""
NAMES_AT_ONCE = 1_024
"""Names that are checked in one slice."""
_FORBIDDEN = "java.lang.IllegalStateException: Consumer group is not allowed to consume."


class LiteService:
    """Handlers and background service (``mqspark.broker.service``)."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.order = PopOrder(state, "liteOrder")
        self.clients = LiteClients(state, self._moved)
        self.pops = LitePops(state, self.clients, self.order, PopOffsets(state))
        self.watch = LiteWatch(state, self.clients)
        self.clients.on_event = self._wake
        self.life = LiteLife(state, self.clients, self.order)
        now_ms = state.clock.monotonic_ms()
        self._next_scan_ms = now_ms + state.config.lite_event_check_interval
        self._next_check_ms = now_ms + state.config.lite_subscription_check_interval
        self._next_forget_ms = now_ms + FORGET_INTERVAL_MS
        parked = self.pops.parked, self.watch.parked
        self.ledgers = (self.clients.ledger, *(each.ledger for each in parked), self.order.ledger)
        self.handlers: dict[int, Handler] = merged(
            {
                RequestCode.POP_LITE_MESSAGE: self.pops.pop,
                RequestCode.LITE_SUBSCRIPTION_CTL: self.subscribe,
            },
            LiteAdminProcessor(state, self.clients, self.life, self.order).handlers,
        )

    def load(self) -> None:
        """Nothing is kept in files but offsets, which are those of all groups."""

    def saved_tables(self) -> Sequence[SavedTable]:
        return ()

    @property
    def told(self) -> Sequence[Told]:
        return ((self.clients.all, self._arrived),)

    def _arrived(self, arrivals: Sequence[tuple[str, int, int]]) -> None:
        for topic, _, _ in arrivals:
            if topic.startswith(LITE_PREFIX):
                self.clients.dispatch(topic)

    def tick(self) -> int:
        config, now_ms = self._state.config, self._state.clock.monotonic_ms()
        self.pops.expire()
        self.watch.expire()
        for queue, group, _ in self.order.freed():
            self.pops.freed(queue, group)
        self.clients.tick()
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + config.lite_event_check_interval
            self.clients.scan()
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + config.lite_subscription_check_interval
            self.clients.expire()
        if now_ms >= self._next_forget_ms:
            self._next_forget_ms = now_ms + FORGET_INTERVAL_MS
            self.order.forget_old()
        self.life.tick()
        return TICK_MS

    def was_reset(self, group: str, topic: str) -> None:
        """A tool has moved the group in a topic: of a lite topic, a client gets what comes there."""
        if topic.startswith(LITE_PREFIX):
            self.pops.freed(topic, group)

    def _wake(self, client_id: str) -> None:
        self.pops.wake(client_id)
        self.watch.wake(client_id)

    def _moved(self, queue: str, group: str) -> None:
        self.order.clear(queue, group, 0)

    # --- subscriptions (LiteSubscriptionCtlProcessor) ---

    def subscribe(self, session: Session, command: Command) -> Slices:
        """Several changes of subscriptions. One that fails ends the request; those before it hold."""
        if not command.body:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "Request body is null.")
        if len(command.body) > MAX_LITE_BODY_BYTES:
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"the subscriptions have {len(command.body)} bytes, the limit is {MAX_LITE_BODY_BYTES}",
            )
        entries = decode_body(LiteSubscriptionCtlRequestBody, command.body).lite_subscription_set
        if not entries:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
        for number, entry in enumerate(entries, 1):
            if entry.client_id and entry.group and entry.topic:
                yield from self._change(session, entry, entry.client_id, entry.group, entry.topic)
            if number % CHANGED_AT_ONCE == 0:
                yield ESSENTIAL
        return ok(command)

    def _change(
        self, session: Session, entry: LiteSubscription, client_id: str, group: str, topic: str
    ) -> Work[None]:
        self.clients.check(client_id, session)
        queues = []
        for number, name in enumerate(dict.fromkeys(entry.lite_topic_set or ()), 1):
            queues.append(self._queue(topic, name))
            if number % NAMES_AT_ONCE == 0:
                yield
        if entry.action == "PARTIAL_ADD":
            config = self._may_consume(session, group)
            yield from self.clients.add(client_id, config, topic, queues, session, entry.offset_option)
        elif entry.action == "PARTIAL_REMOVE":
            yield from self.clients.remove(client_id, group, topic, queues, session)
        elif entry.action == "COMPLETE_ADD":
            config = self._may_consume(session, group)
            yield from self.clients.replace(client_id, config, topic, queues, session)
        elif entry.action == "COMPLETE_REMOVE":
            yield from self.clients.remove_client(client_id, group, topic)

    def _may_consume(self, session: Session, group: str) -> SubscriptionGroupConfig:
        config = self._state.subscriptions.find(group, session)
        if config is None or not config.consume_enable:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, _FORBIDDEN)
        return config

    @staticmethod
    def _queue(topic: str, name: str) -> str:
        queue = checked_lite_queue(topic, name)
        if queue is None:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, f"{name[:80]!r} is not a name of a lite topic")
        return queue
