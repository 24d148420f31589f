"""The transactional producer. Facts: RocketMQ's TransactionMQProducer,
DefaultMQProducerImpl.sendMessageInTransaction and checkTransactionState.

    prepare   the message is stored by the broker, where no consumer sees it
    execute   the caller's local transaction
    end       COMMIT shows the message to consumers, ROLLBACK drops it, UNKNOWN leaves it
    check     the broker asks any producer of the group for the outcome of an undecided message

END_TRANSACTION has no answer; if it is lost, a check replaces it. So ``check`` must know the outcome of every
local transaction, of this process and of others in the group, and return UNKNOWN while one is running.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Unpack

import msgspec

from mqspark.base.logs import escaping
from mqspark.base.names import bracketed
from mqspark.base.valuetypes import NonNegativeInt, PositiveInt, checked
from mqspark.client.delivery.awaiting import awaited, is_coroutine_function
from mqspark.client.delivery.results import SendResult, SendStatus, TransactionState
from mqspark.client.hooks.hooks import EndTransactionContext
from mqspark.client.hooks.hooks import call as call_hooks
from mqspark.client.life.lifecycle import Within
from mqspark.client.producer.outgoing import QueueSelector
from mqspark.client.producer.producer import Producer
from mqspark.client.producer.producer_settings import ProducerKeywords, ProducerSettings
from mqspark.client.remoting.channel import Channel
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.keywords import NAMES, spelled_out
from mqspark.client.remoting.remoting import level_of
from mqspark.client.remoting.topic_routes import is_logic_broker
from mqspark.errors import ClientError, ConfigError, InvalidMessage, MQError, NoRoute, ProtocolError
from mqspark.message import (
    DEFAULT_TOPIC,
    DELAYS,
    PRODUCER_GROUP,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    Message,
    MessageExt,
    MessageQueue,
    decode_offset_id,
    new_unique_id,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from mqspark.record.record import decode_record

log = escaping(__name__)

MAX_WAITING_CHECKS = 2_000
"""Further checks are dropped; the broker repeats them (TransactionMQProducer.checkRequestHoldMax)."""
MAX_WAITING_CHECK_BYTES = 64 << 20
"""Limit of their messages' size; further checks are dropped."""


Decided = TransactionState | None
"""What ``execute`` and ``check`` return; None means UNKNOWN."""
Execute = Callable[[Message], Decided | Awaitable[Decided]]
"""The local transaction: a function or coroutine function that returns a TransactionState. The message has its
unique id (``unique_id``), which ``check`` will get."""
Check = Callable[[MessageExt], Decided | Awaitable[Decided]]
"""Returns the outcome of a local transaction; ``message_id`` is the unique id. A function or coroutine function.
"""


class TransactionResult(SendResult, frozen=True, gc=False, kw_only=True):
    """Where the prepared message is (in the broker's half topic), and the state reported to the broker."""

    state: TransactionState = TransactionState.UNKNOWN

    @property
    def transaction_id(self) -> str:
        """The unique id of the message."""
        return self.message_id


class Prepared(NamedTuple):
    """A message that is stored and not visible to consumers."""

    message: Message
    result: SendResult

    def outcome(self, state: TransactionState) -> TransactionResult:
        """The result of the send, with the state that the producer reports to the broker."""
        return TransactionResult(**msgspec.structs.asdict(self.result), state=state)


def state_of(returned: Any) -> TransactionState:
    """Raises TypeError for anything but a state, because a guess could commit by mistake."""
    if returned is None:
        return TransactionState.UNKNOWN
    if isinstance(returned, TransactionState):
        return returned
    raise TypeError(f"a transaction listener must return a TransactionState, not {returned!r}")


@checked(but=("end", "prepare"), own=NAMES)
class TransactionProducer(Producer):
    """A producer whose messages become visible only if the caller's local transaction succeeds.

    ``check`` answers for transactions whose outcome the broker does not know; ``execute`` runs the local one,
    unless ``send_in_transaction`` is given another. Functions run in threads (``concurrency`` at a time, for each
    of the two), coroutine functions on the loop. Other sends are those of ``Producer``.

    A retried send may leave two prepared messages with the same id. A check then commits the second one, too, and
    consumers see the message twice, as with other sends. ``retries=0`` excludes that.
    """

    @spelled_out(ProducerSettings, ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        check: Check,
        execute: Execute | None = None,
        concurrency: PositiveInt = 4,
        topics: Iterable[str] = (),
        settings: ProducerSettings | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[ProducerKeywords],
    ) -> None:
        """``topics``: topics whose brokers learn of this producer at start, so that they can check earlier
        messages even if it sends none. Brokers that create topics automatically always learn of it. Settings,
        keywords and errors are those of ``Producer``."""
        super().__init__(namesrv, group=group, settings=settings, options=options, **changes)
        self.execute = execute
        self._check = check
        self._concurrency = concurrency
        self._announced = frozenset({DEFAULT_TOPIC, *map(self._namespace.wrap, topics)})
        self._waiting_checks: deque[tuple[Channel, Command]] = deque()
        self._waiting_check_bytes = 0
        self._checkers: set[asyncio.Task[None]] = set()
        self._threads: dict[str, concurrent.futures.ThreadPoolExecutor] = {}
        self._under_way = 0
        self._quiet: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """As ``Producer``, and tell the brokers of ``topics`` about this producer, so that they can ask it. A broker
        that does not answer is told later, by a heartbeat. Raises ConfigError without a name server."""
        if self._running:
            return
        await super().start()
        await asyncio.gather(*(self._announce(topic) for topic in self._announced))
        await self._instance.heartbeat()

    async def _announce(self, topic: str) -> None:
        try:
            await self._instance.route(topic)
        except NoRoute:
            log.debug("no broker has topic %s yet", topic)
        except ClientError as error:
            log.warning("the brokers of %s cannot ask this producer yet: %s", topic, error)

    async def stop(self, timeout_ms: NonNegativeInt = 30_000) -> None:
        """Wait up to ``timeout_ms`` for running local transactions and checks, and for sends as in ``Producer``."""
        await self._ended_by(functools.partial(self._stop, timeout_ms))

    async def stop_at_exit(self, timeout_ms: int) -> None:
        """As ``Lifecycle.stop_at_exit``."""
        await self.stop(timeout_ms)

    async def _stop(self, timeout_ms: int = 30_000) -> None:
        if not self._running:
            return
        self._waiting_checks.clear()
        self._waiting_check_bytes = 0
        if self._under_way or self._checkers:
            self._quiet = self._loop.create_future()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._quiet
            except TimeoutError:
                log.warning("a transaction listener of group %s does not end", self.group)
            self._quiet = None
        await super()._stop()
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        self._threads.clear()

    def _kept_topics(self) -> Collection[str]:
        return dict.fromkeys((*super()._kept_topics(), *self._announced))

    # --- sending ----------------------------------------------------------------------------------------

    async def send_in_transaction(
        self,
        message: Message,
        *,
        execute: Execute | None = None,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: NonNegativeInt | None = None,
    ) -> TransactionResult:
        """Prepare the message, run the local transaction, report its outcome to the broker.

        A message that may not be stored safely (a status other than SEND_OK) is rolled back without ``execute``.
        An exception of ``execute`` is raised from here and the transaction is UNKNOWN: the broker will check. Raises
        like ``send``, and InvalidMessage for a message with a delay or a priority.
        """
        function = self.local_transaction(execute)
        self._under_way += 1
        try:
            prepared = await self.prepare(
                message, queue=queue, hash_key=hash_key, selector=selector, timeout_ms=timeout_ms
            )
            if prepared.result.status is not SendStatus.SEND_OK:
                return await self.end(prepared, TransactionState.ROLLBACK)
            try:
                state = state_of(await self._run("execute", function, prepared.message))
            except Exception as error:
                await self.end(prepared, TransactionState.UNKNOWN, error)
                raise
            return await self.end(prepared, state)
        finally:
            self._under_way -= 1
            self._tell_quiet()

    def local_transaction(self, execute: Execute | None) -> Execute:
        """``execute``, or the producer's. Raises ConfigError if there is neither."""
        function = execute or self.execute
        if function is None:
            raise ConfigError(
                "no local transaction: give execute to TransactionProducer or to send_in_transaction",
                key="execute",
            )
        return function

    async def prepare(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: NonNegativeInt | None = None,
    ) -> Prepared:
        """The first half of ``send_in_transaction``, for callers that run the local transaction themselves.
        ``end`` must follow, or the broker will check. Raises InvalidMessage for a message with a delay, as RocketMQ's
        clients, and for one with a priority, which brokers do not keep in a transaction."""
        if not message.properties.keys().isdisjoint(DELAYS):
            raise InvalidMessage("a transactional message has no delay", field="properties")
        if message.priority is not None:
            raise InvalidMessage("a transactional message has no priority", field="priority")
        if self.typed is not None:
            message = await self.typed.written(message)
        properties = dict(message.properties)
        properties.setdefault(UNIQ_KEY, new_unique_id())
        known = Message(topic=message.topic, body=message.body, properties=properties, flag=message.flag)
        half = Message(
            topic=message.topic,
            body=message.body,
            properties={**properties, TRANSACTION_PREPARED: "true", PRODUCER_GROUP: self.group},
            flag=message.flag,
        )
        sent = await self._begin_in_turn(half, queue, hash_key, selector, timeout_ms, prepared=True)
        result = await sent
        try:
            decode_offset_id(result.offset_message_id)
        except InvalidMessage as error:  # before the local transaction: its outcome could not be reported
            raise ProtocolError(
                f"the broker of {result.queue} gives no place of a prepared message: {error}"
            ) from None
        return Prepared(known, result)

    async def end(
        self, prepared: Prepared, state: TransactionState, error: BaseException | None = None
    ) -> TransactionResult:
        """Report the outcome to the broker. A failure is only logged: the broker will check."""
        result = prepared.result
        host, port, position = decode_offset_id(result.offset_message_id)
        broker_name = result.queue.broker_name
        if is_logic_broker(broker_name):
            # The half message is where it was stored, whoever leads its queue now.
            route = self._instance.cached_route(self._namespace.wrap(prepared.message.topic))
            address = f"{bracketed(host)}:{port}"
            broker_name = (None if route is None else route.broker_at(address)) or broker_name
        header = EndTransactionRequestHeader(
            topic=self._namespace.wrap(prepared.message.topic),
            producer_group=self.group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=position,
            commit_or_rollback=state.value,
            from_transaction_check=False,
            msg_id=result.message_id,
            transaction_id=result.message_id,
            bname=broker_name,
        )
        known = self._instance.broker_address(broker_name)
        try:
            if known is None:
                raise NoRoute(prepared.message.topic, f"broker {broker_name} has no address")
            async with asyncio.timeout(self._send_timeout_ms / 1000):
                channel = await self._instance.remoting.connect(known)
                await channel.drain()
            channel.oneway(RequestCode.END_TRANSACTION, header, remark=_remark(error))
            self._saw_end(prepared.message, header, state, channel)
        except (ClientError, TimeoutError) as failure:
            log.log(
                level_of(failure),
                "%s of transaction %s did not reach the broker, which will ask: %s",
                state.name,
                result.message_id,
                failure,
            )
        return prepared.outcome(state)

    async def _run(self, purpose: str, function: Callable[..., Any], argument: Message) -> Any:
        within = Within(self)
        token = within.begin()
        try:
            return await self._called(purpose, function, argument)
        finally:
            within.end(token)

    async def _called(self, purpose: str, function: Callable[..., Any], argument: Message) -> Any:
        if is_coroutine_function(function):
            return await awaited(function(argument))
        threads = self._threads.get(purpose)
        if threads is None:
            threads = self._threads[purpose] = concurrent.futures.ThreadPoolExecutor(
                self._concurrency, thread_name_prefix=f"mqspark-{purpose}"
            )
        context = contextvars.copy_context()
        returned = self._loop.run_in_executor(threads, functools.partial(context.run, function, argument))
        return await awaited(returned)

    # --- checks -----------------------------------------------------------------------------------------

    def _asked(self, channel: Channel, request: Command) -> bool:
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return super()._asked(channel, request)
        try:
            # Other producers may share the connection; the message is decoded only to find its recipient.
            group = decode_record(request.body, decompress=False).properties.get(PRODUCER_GROUP)
        except MQError as error:
            log.warning("a check of %s cannot be read: %s", channel.address, error)
            return True
        if group != self.group:
            return False
        if not self._running or self._quiet is not None:
            return True  # stopping: the broker will ask another member or repeat the check
        if (
            len(self._waiting_checks) >= MAX_WAITING_CHECKS
            or self._waiting_check_bytes >= MAX_WAITING_CHECK_BYTES
        ):
            log.warning("group %s gets more transaction checks than it can process", self.group)
            return True
        self._waiting_checks.append((channel, request))
        self._waiting_check_bytes += len(request.body)
        if len(self._checkers) < self._concurrency:
            task = self._tasks.spawn(self._check_waiting())
            self._checkers.add(task)
            task.add_done_callback(self._checker_ended)
        return True

    def _checker_ended(self, task: asyncio.Task[None]) -> None:
        self._checkers.discard(task)
        self._tell_quiet()

    def _tell_quiet(self) -> None:
        if self._quiet is not None and not self._quiet.done() and not self._under_way and not self._checkers:
            self._quiet.set_result(None)

    async def _check_waiting(self) -> None:
        while self._waiting_checks:
            channel, request = self._waiting_checks.popleft()
            self._waiting_check_bytes -= len(request.body)
            try:
                await self._answer_check(channel, request)
            except MQError as error:
                log.log(level_of(error), "a check of %s cannot be answered: %s", channel.address, error)

    async def _answer_check(self, channel: Channel, request: Command) -> None:
        header = request.header(CheckTransactionStateRequestHeader)
        message = decode_record(request.body)
        message.topic = self._namespace.unwrap(message.topic)
        if header.bname:
            message.broker_name = header.bname
        error: Exception | None = None
        try:
            state = state_of(await self._run("check", self._check, message))
        except Exception as failure:
            log.exception("the check of transaction %s failed", message.message_id)
            state, error = TransactionState.UNKNOWN, failure
        unique_id = message.properties.get(UNIQ_KEY) or header.msg_id or ""
        answer = EndTransactionRequestHeader(
            topic=header.topic,
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=unique_id,
            transaction_id=header.transaction_id,
            bname=header.bname,
        )
        if not channel.open:
            # The broker asks on another connection; this decision can still arrive.
            channel = await self._instance.remoting.connect(channel.address)
        channel.oneway(RequestCode.END_TRANSACTION, answer, remark=_remark(error))
        self._saw_end(message, answer, state, channel)

    def _saw_end(
        self, message: Message, header: EndTransactionRequestHeader, state: TransactionState, channel: Channel
    ) -> None:
        if self._interceptors:
            context = EndTransactionContext(
                self._namespace.unwrap(self.group),
                message,
                header.msg_id or "",
                header.transaction_id,
                state,
                channel.address,
                bool(header.from_transaction_check),
            )
            call_hooks([interceptor.after_end_transaction for interceptor in self._interceptors], context)


def _remark(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"[:1_000]
