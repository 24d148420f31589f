"""Requests that waited too long are refused at once, so that their client can try another broker
(BrokerFastFailure).

RocketMQ checks the queues of its thread pools every 10 ms. Here a request is handled as soon as its bytes are
read, so only requests read late in a long turn of the loop have waited. The shell measures that
(``mqspark_server.net.lateness``) and calls ``sift``. A request that waits for the disk is already stored; its limit
is syncFlushTimeout. A request that waits because its peer does not read answers is not the broker's delay, and is
handled.

Facts: docs/rocketmq/broker.md#overload.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.broker.config import BrokerConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.session import Session

__all__ = ["FastFail"]

_NEVER_MS = 1 << 62

_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.RECALL_MESSAGE,
)
_PULLS = (
    RequestCode.PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
)
_ACKS = (
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)


class FastFail:
    """``admin``: the codes of administration requests. Codes not listed are never refused, as in RocketMQ."""

    def __init__(self, config: BrokerConfig, admin: Iterable[int]) -> None:
        self._config = config
        self._admin = tuple(admin)
        self._limits_ms: dict[int, int] = {}
        self.patience_ms = _NEVER_MS
        """Requests that waited less than this are never refused."""
        self.refused_count = 0
        self.refresh_settings()

    def refresh_settings(self) -> None:
        config = self._config
        self._limits_ms = {}
        if config.broker_fast_failure_enable:
            self._limits_ms = {
                **dict.fromkeys(self._admin, config.wait_time_mills_in_admin_broker_queue),
                **dict.fromkeys(_SENDS, config.wait_time_mills_in_send_queue),
                **dict.fromkeys(_PULLS, config.wait_time_mills_in_pull_queue),
                **dict.fromkeys(_ACKS, config.wait_time_mills_in_ack_queue),
                RequestCode.LITE_PULL_MESSAGE: config.wait_time_mills_in_lite_pull_queue,
                RequestCode.HEART_BEAT: config.wait_time_mills_in_heartbeat_queue,
                RequestCode.END_TRANSACTION: config.wait_time_mills_in_transaction_queue,
            }
        self.patience_ms = min(self._limits_ms.values(), default=_NEVER_MS)

    def sift(self, session: Session, commands: list[Command], age_ms: int) -> list[Command]:
        """Refuse those of ``commands`` for which ``age_ms`` is too much; return the others."""
        kept = []
        for number, command in enumerate(commands):
            if command.is_response or age_ms < self._limits_ms.get(command.code, _NEVER_MS):
                kept.append(command)
                continue
            self.refused_count += 1
            if not command.is_oneway:
                remark = (
                    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while,"
                    f" period in queue: {age_ms}ms, size of queue: {len(commands) - number - 1}"
                )
                session.send(encode_response(command.opaque, ResponseCode.SYSTEM_BUSY, remark=remark))
        return kept
