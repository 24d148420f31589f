"""What a broker's answer about a queue may say: no more than that was asked for, and offsets that can be.

A client believes no broker: a record of another topic or queue would reach a listener that expects its own, and an
offset that cannot be would be committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.errors import ProtocolError
from mqspark.message import INNER_BATCH, MessageExt, MessageQueue, is_dispatched
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import (
    PullMessageResponseHeader,
    QueryConsumerOffsetResponseHeader,
)

AHEAD = 1 << 20
"""How far a place may be behind the end that the same answer names: messages arrive while the broker answers."""


def check_offsets(queue: MessageQueue, asked: int, code: int, answer: PullMessageResponseHeader) -> int:
    """The next offset of an answer to a pull of ``asked``. Raises ProtocolError for one that cannot be."""
    following, end = answer.next_begin_offset, answer.max_offset
    if code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
        following = max(asked, following)
    is_stuck = code == ResponseCode.SUCCESS and following <= asked
    if following < 0 or is_stuck or (following != asked and following > max(end, 0) + AHEAD):
        raise ProtocolError(
            f"the broker of {queue} says to go on at {answer.next_begin_offset} after {asked}, and that the queue has "
            f"offsets {answer.min_offset} to {end}"
        )
    return following


def committed_in(answer: Command) -> int | None:
    """The offset in an answer to QUERY_CONSUMER_OFFSET; None for -1, which stands for none. Raises ProtocolError."""
    offset = answer.header(QueryConsumerOffsetResponseHeader).offset
    return None if offset < 0 else offset


def check_messages(queue: MessageQueue, asked: int, following: int, messages: Iterable[MessageExt]) -> None:
    """Raises ProtocolError unless the messages are of this queue, in order, and before ``following``. The first may
    be part of a record that begins before ``asked``."""
    last = -1
    for message in messages:
        is_ours = message.topic == queue.topic and message.queue_id == queue.queue_id
        if not is_ours and not is_dispatched(queue.topic, message.properties):
            raise ProtocolError(
                f"the broker of {queue} sends a message of queue {message.queue_id} of topic {message.topic}"
            )
        is_early = message.queue_offset < asked and not message.sys_flag & INNER_BATCH
        if is_ours and (is_early or not last < message.queue_offset < following):
            raise ProtocolError(
                f"the broker of {queue} sends offset {message.queue_offset} after {max(last, asked)} and before "
                f"{following}"
            )
        last = message.queue_offset if is_ours else last
