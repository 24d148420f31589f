"""What a blocking lite pull consumer does by itself: it hands out messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType

from mqspark.base.valuetypes import NonNegativeInt, checked
from mqspark.client.lite import litepull
from mqspark.client.lite.assigned import PulledBatch
from mqspark.client.sync.facade import Facade
from mqspark.message import MessageExt, MessageQueue


@checked()
class PollingFacade(Facade):
    """Hands out the messages of a lite pull consumer, and knows which the program has."""

    _aio: litepull.LitePullConsumer
    _handed: tuple[PulledBatch, int] | None = None
    """How many messages of which batch were handed to the program last. The line that sets it and the ``return`` after
    it contain no call, so that no interruption by a signal comes between them: what a program was not handed is offered
    again, and not committed."""

    def assign(
        self, queues: Iterable[MessageQueue], tags: str | Iterable[str] = "*", *, sql: str | None = None
    ) -> None:
        """Read exactly these queues, each from its committed offset, filtered as by ``subscribe``. Raises
        ConfigError after ``subscribe``.
        """
        if self._thread is None:
            # It only stores them, so there is nothing to wait for.
            asyncio.run(self._aio.assign(queues, tags, sql=sql))
        else:
            self._call(self._aio.assign, queues, tags, sql=sql)

    def poll(self, timeout_ms: NonNegativeInt = 5_000) -> list[MessageExt]:
        """The next messages, all of one queue and in order; an empty list if there are none for ``timeout_ms``."""
        offer = self._running.call(self._offer(timeout_ms), self._offer_at_once)
        if offer is None:
            return []
        batch, given = offer
        messages = batch.messages[given:]
        handed = (batch, len(batch.messages))
        self._handed = handed
        return messages

    def __iter__(self) -> Iterator[MessageExt]:
        return self

    def __next__(self) -> MessageExt:
        """Waits without a limit; ends when the consumer is stopped. Raises ClientError before the start."""
        if self._thread is None:
            self._aio.check_iterable()
            raise StopIteration
        self._tell()
        # Within a batch no change of threads is needed.
        batch = self._aio.offered()
        given = self._aio.given
        if batch is None:
            offer = self._thread.call(self._offer(None), self._offer_at_once)
            if offer is None:
                raise StopIteration
            batch, given = offer
        message = batch.messages[given]
        handed = (batch, given + 1)
        self._handed = handed
        return message

    def _tell(self) -> None:
        """The program has what it was handed. May be interrupted and repeated."""
        if self._handed is not None:
            self._aio.hand(*self._handed)

    def _offer_at_once(self) -> tuple[PulledBatch, int] | None:
        """As ``_offer``, if it need not wait."""
        self._tell()
        batch = self._aio.at_once()
        return None if batch is None else (batch, self._aio.given)

    async def _offer(self, timeout_ms: NonNegativeInt | None) -> tuple[PulledBatch, int] | None:
        self._tell()
        batch = await self._aio.offer(timeout_ms)
        return None if batch is None else (batch, self._aio.given)

    def stop(self) -> None:
        """With ``auto_commit``, commit everything that was delivered. Then leave the group."""
        self._tell()
        super().stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell()
        super().__exit__(kind, error, trace)

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message to deliver. Raises ClientError for a queue that is not assigned."""
        self._tell()
        return self._do(self._aio.position, queue)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the delivered messages, or the given offsets; returns when the broker has stored them."""
        self._tell()
        self._call(self._aio.commit, offsets)
