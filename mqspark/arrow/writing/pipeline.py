"""Sends of one task on their way to brokers: in flight, repeated when that may help, until they are stored.

One pipeline serves both delivery guarantees and the retries of work queues; a ``SendPolicy`` says where they differ,
and why. A broker that does not answer, or is too busy, is given ``retryTimeout``: its sends wait while those to other
brokers go on.

Must not know rows.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from mqspark.arrow.writing.sendchoice import SendChoice
from mqspark.base.clock import wall_ms
from mqspark.base.logs import Outages, escaping
from mqspark.client.blocking import BUSY, SYSTEM_ERRORS, BlockingClient
from mqspark.client.remoting.blockingconnection import SILENT_S, BlockingConnection
from mqspark.client.remoting.topic_routes import is_logic_broker
from mqspark.errors import BrokerError, ClientError, ConnectionLost, ProtocolError, RequestTimeout
from mqspark.message import MessageQueue
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2

log = escaping("mqspark.arrow")

_UNSTORED_BYTES = 8 << 20
"""The rows that are sent or wait before the task reads more of them from Spark; also the limit in flight."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 2.0
_RETRIED = BUSY | {ResponseCode.SYSTEM_ERROR}
_WEAKLY_STORED = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Stored, but with a weaker guarantee than the broker's settings promise."""


@dataclass(frozen=True, slots=True)
class SendPolicy:
    one_per_queue: bool
    """A queue has one send in flight, so that a repetition never overtakes the next one."""
    accepts_weakly_stored: bool
    """Otherwise such a send is repeated."""
    may_move: bool = False
    """A send whose broker left the route goes to the queue that ``Addresses.instead_of`` names."""


AT_LEAST_ONCE = SendPolicy(one_per_queue=True, accepts_weakly_stored=True)
"""Rows are visible where they are stored, so their order is that of the sends. What is stored with a weaker
guarantee counts as sent, as in RocketMQ's producers: a repetition would be a duplicate."""

EXACTLY_ONCE = SendPolicy(one_per_queue=False, accepts_weakly_stored=False)
"""Half messages become visible when they are committed, in the order of the rows, so the order in which they are
stored does not matter. A repetition costs nothing but space, as the first copy is never committed; but a decision
that names a half message which is lost later would lose rows."""


WORK_RETRIES = SendPolicy(one_per_queue=False, accepts_weakly_stored=True, may_move=True)
"""The order of failed messages is that of their delays. What is stored with a weaker guarantee counts as sent, as a
repetition would be processed twice. Any broker takes a retry, so one that leaves the cluster is not waited for."""


class SendTimes(Protocol):
    @property
    def send_timeout_ms(self) -> int: ...
    @property
    def retry_timeout_ms(self) -> int: ...


class Addresses(Protocol):
    """Where the master of a queue is."""

    def address(self, queue: MessageQueue) -> str: ...
    def refresh(self, topic: str) -> None:
        """Never waits for a name server."""

    def instead_of(self, queue: MessageQueue) -> MessageQueue:
        """``queue`` itself while its broker is in the route. Asked only under ``SendPolicy.may_move``."""


@dataclass(slots=True)
class Send:
    """One request with everything needed to repeat it."""

    queue: MessageQueue
    code: RequestCode
    header: SendMessageRequestHeaderV2
    body: bytes | memoryview
    count: int
    """Messages."""
    stored: Callable[[Command], None] | None = None
    """Gets the answer."""
    mark: str = ""
    """Passed to ``may_come_twice`` before a repetition."""


@dataclass(slots=True, eq=False)
class _Lane:
    """The sends to one queue."""

    waiting: deque[Send] = field(default_factory=deque)
    in_flight: int = 0
    failing_since: float | None = None
    pause_s: float = 0.0
    """The length of the last pause."""
    paused_until: float = 0.0
    system_errors: int = 0


def send_header(
    options: SendChoice,
    queue: MessageQueue,
    *,
    batch: bool = False,
    properties: str = "",
    sys_flag: int = 0,
) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2.of(
        options.group,
        queue.topic,
        queue.queue_id,
        wall_ms(),
        properties,
        reconsume_times=1 if options.as_dead_letters else 0,
        max_reconsume_times=0 if options.as_dead_letters else None,
        sys_flag=sys_flag,
        batch=batch,
        bname=queue.broker_name,
    )


class Pipeline:
    """``add`` sends, ``throttle`` after each portion of rows, ``finish`` at the end. Raises BrokerError for a refusal
    that is final, and the last error of a broker that fails for longer than ``retryTimeout``."""

    def __init__(
        self,
        options: SendTimes,
        client: BlockingClient,
        router: Addresses,
        policy: SendPolicy,
        *,
        may_come_twice: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        """``may_come_twice`` gets the marks of sends that may be stored already, before any of them is repeated."""
        self.messages = 0
        """The number of messages that are stored."""
        self._timeout_ms = options.send_timeout_ms
        self._retry_s = options.retry_timeout_ms / 1000
        self._client = client
        self._router = router
        self._policy = policy
        self._may_come_twice = may_come_twice
        self._lanes: dict[MessageQueue, _Lane] = {}
        self._in_flight: dict[str, dict[int, tuple[Send, float]]] = {}
        """Address to opaque to a send and its deadline."""
        self._heard: dict[str, float] = {}
        """Address to when it has last answered while something was in flight, or its place was last looked up."""
        self._in_flight_bytes = 0
        self._unstored = self._unstored_bytes = 0
        """The sends that wait or are in flight."""
        self._outages = Outages(log)

    def add(self, send: Send) -> None:
        lane = self._lanes.setdefault(send.queue, _Lane())
        lane.waiting.append(send)
        self._unstored += 1
        self._unstored_bytes += len(send.body)
        self._start(send.queue, lane, time.monotonic())

    def throttle(self, most_sends: int | None = None) -> None:
        """Returns when few enough sends are left: in bytes of bodies, and in number where one is given."""
        while self._unstored_bytes >= _UNSTORED_BYTES or (
            most_sends is not None and self._unstored >= most_sends
        ):
            self._turn()

    def finish(self) -> None:
        """Returns when all sends are stored."""
        while self._unstored:
            self._turn()

    def _turn(self) -> None:
        """Receive answers, or wait for one or for the end of a pause; then send what may be sent."""
        now = time.monotonic()
        paused = [
            lane.paused_until for lane in self._lanes.values() if lane.paused_until > now and lane.waiting
        ]
        if self._in_flight:
            self._receive(min(paused, default=None))
        elif paused:
            time.sleep(max(0.0, min(paused) - now))
        now = time.monotonic()
        for queue, lane in list(self._lanes.items()):
            if lane.waiting:
                self._start(queue, lane, now)

    def _start(self, queue: MessageQueue, lane: _Lane, now: float) -> None:
        while lane.waiting and lane.paused_until <= now:
            if self._policy.one_per_queue and lane.in_flight:
                return
            if self._in_flight_bytes and self._in_flight_bytes + len(lane.waiting[0].body) > _UNSTORED_BYTES:
                return
            self._send(lane, lane.waiting[0], self._router.address(queue))

    def _send(self, lane: _Lane, send: Send, address: str) -> None:
        try:
            connection = self._client.connection(address)
            opaque = connection.send(send.code, send.header, send.body, timeout_ms=self._timeout_ms)
        except ConnectionLost as error:
            self._requeue_lost(address, error, also=lane)
            return
        lane.waiting.popleft()
        lane.in_flight += 1
        self._in_flight_bytes += len(send.body)
        now = time.monotonic()
        if address not in self._in_flight:
            self._in_flight[address], self._heard[address] = {}, now
        self._in_flight[address][opaque] = send, now + self._timeout_ms / 1000

    def _receive(self, until: float | None) -> None:
        """Handle answers; waits for one until the first deadline, until a broker is silent, or ``until``."""
        if len(self._in_flight) > 1 and self._receive_from(list(self._in_flight), 0.0):
            return
        deadline = min(each for sends in self._in_flight.values() for _, each in sends.values())
        ends = [deadline, min(self._heard[address] for address in self._in_flight) + SILENT_S]
        timeout_s = max(0.0, min(ends if until is None else [*ends, until]) - time.monotonic())
        if len(self._in_flight) > 1:
            readable = _readable([self._client.connection(address) for address in self._in_flight], timeout_s)
            self._receive_from([connection.address for connection in readable], 0.0)
        else:
            self._receive_from(list(self._in_flight), timeout_s)
        now = time.monotonic()
        for address, sends in list(self._in_flight.items()):
            if any(deadline <= now for _, deadline in sends.values()):
                self._requeue_lost(address, RequestTimeout(address, self._timeout_ms))
            elif self._heard[address] + SILENT_S <= now:
                self._leave_replaced(address)

    def _leave_replaced(self, address: str) -> None:
        """Send elsewhere what is in flight to a silent broker once another one has its place: one that is frozen or
        cut off ends no connection."""
        send, _ = next(iter(self._in_flight[address].values()))
        self._router.refresh(send.queue.topic)
        self._heard[address] = time.monotonic()
        place = self._router.address(send.queue)
        if place != address:
            self._requeue_lost(address, ConnectionLost(address, f"it is silent, and {place} has its place"))

    def _receive_from(self, addresses: Iterable[str], timeout_s: float) -> bool:
        """True if there was an answer or a connection is lost."""
        found = False
        for address in addresses:
            try:
                answers = self._client.connection(address).poll(self._in_flight[address], timeout_s)
            except (ConnectionLost, ProtocolError) as error:
                lost = error if isinstance(error, ConnectionLost) else ConnectionLost(address, str(error))
                self._requeue_lost(address, lost)
                return True
            for opaque, answer in answers.items():
                found, self._heard[address] = True, time.monotonic()
                self._answered(address, opaque, answer)
        return found

    def _answered(self, address: str, opaque: int, answer: Command) -> None:
        sends = self._in_flight[address]
        send, _ = sends.pop(opaque)
        if not sends:
            del self._in_flight[address]
        lane = self._lanes[send.queue]
        lane.in_flight -= 1
        self._in_flight_bytes -= len(send.body)
        is_weak = answer.code in _WEAKLY_STORED
        if answer.code == ResponseCode.SUCCESS or (is_weak and self._policy.accepts_weakly_stored):
            if is_weak:
                log.warning(
                    "%s stored messages of %s with a weaker guarantee: %s",
                    address,
                    send.queue.topic,
                    answer.remark,
                )
            if send.stored is not None:
                send.stored(answer)
            self._unstored -= 1
            self._unstored_bytes -= len(send.body)
            self.messages += send.count
            lane.failing_since, lane.pause_s, lane.system_errors = None, 0.0, 0
            self._outages.over(address, "%s stores messages again", address)
            return
        lane.waiting.appendleft(send)
        error = BrokerError(answer.code, answer.remark, address=address)
        if answer.code == ResponseCode.SYSTEM_ERROR and lane.paused_until <= time.monotonic():
            lane.system_errors += 1
        # The queue of a static topic has moved to another broker; this one has stored nothing.
        has_moved = answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE and is_logic_broker(
            send.queue.broker_name
        )
        if lane.system_errors > SYSTEM_ERRORS or not (is_weak or has_moved or answer.code in _RETRIED):
            raise error
        self._failed(address, [lane], error)
        if has_moved:
            self._router.refresh(send.queue.topic)

    def _requeue_lost(self, address: str, error: ClientError, *, also: _Lane | None = None) -> None:
        """The connection is lost or silent: everything in flight on it is sent again, in its order."""
        self._client.forget(address)
        lanes = [] if also is None else [also]
        unsure = [] if also is None else [also.waiting[0].mark]
        for send, _ in reversed(self._in_flight.pop(address, {}).values()):
            lane = self._lanes[send.queue]
            lane.waiting.appendleft(send)
            lane.in_flight -= 1
            self._in_flight_bytes -= len(send.body)
            unsure.append(send.mark)
            if lane not in lanes:
                lanes.append(lane)
        if self._may_come_twice is not None:
            self._may_come_twice(unsure)
        self._failed(address, lanes, error)
        for topic in {lane.waiting[0].queue.topic for lane in lanes}:
            self._router.refresh(topic)
        if self._policy.may_move:
            for lane in lanes:
                self._move(lane)

    def _move(self, lane: _Lane) -> None:
        """Give the waiting sends of a lane to another queue if the broker of theirs left the route. Time without
        success counts on."""
        old = lane.waiting[0].queue
        new = self._router.instead_of(old)
        if new == old:
            return
        log.warning("broker %s left the route; its sends go to %s", old.broker_name, new.broker_name)
        target = self._lanes.setdefault(new, _Lane())
        if target.failing_since is None:
            target.failing_since = lane.failing_since
        while lane.waiting:
            send = lane.waiting.popleft()
            send.queue = new
            send.header.queue_id, send.header.bname = new.queue_id, new.broker_name
            target.waiting.append(send)
        lane.failing_since, lane.pause_s, lane.paused_until = None, 0.0, 0.0

    def _failed(self, address: str, lanes: Iterable[_Lane], error: ClientError) -> None:
        """Pause the lanes; several failures of one moment are one pause. Raises ``error`` when a lane has failed for
        too long."""
        now = time.monotonic()
        for lane in lanes:
            if lane.failing_since is None:
                lane.failing_since = now
            left_s = lane.failing_since + self._retry_s - now
            if left_s <= 0:
                error.add_note(f"Nothing was stored for retryTimeout ({self._retry_s:.0f} s).")
                raise error
            text = "%s; sending again, for %.0f s more (retryTimeout)"
            self._outages.failed(address, None, text, error, left_s)
            if lane.paused_until <= now:
                lane.pause_s = min(2 * lane.pause_s or _FIRST_PAUSE_S, _LAST_PAUSE_S)
                lane.paused_until = now + min(lane.pause_s, left_s)


def _readable(connections: list[BlockingConnection], timeout_s: float) -> list[BlockingConnection]:
    poll = select.poll()
    by_descriptor = {connection.fileno(): connection for connection in connections}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(timeout_s * 1000)]
