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

from mqspark.auth.access import TABLE
from mqspark.base.clock import NEVER_MS
from mqspark.broker.config import BrokerConfig
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.session import Session


class FastFail:
    """Requests whose row in the table has no patience are never refused, as in RocketMQ."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._limits_ms: dict[int, int] = {}
        self.patience_ms = NEVER_MS
        """Requests that waited less than this are never refused."""
        self.refused_count = 0
        self.refresh_settings()

    def refresh_settings(self) -> None:
        self._limits_ms = {}
        if self._config.broker_fast_failure_enable:
            self._limits_ms = {
                code: getattr(self._config, f"wait_time_mills_in_{row.patience}_queue")
                for code, row in TABLE.items()
                if row.patience is not None
            }
        self.patience_ms = min(self._limits_ms.values(), default=NEVER_MS)

    def sift(self, session: Session, commands: list[Command], age_ms: int) -> list[Command]:
        """Refuse those of ``commands`` for which ``age_ms`` is too much; return the others."""
        kept = []
        for number, command in enumerate(commands):
            if command.is_response or age_ms < self._limits_ms.get(command.code, NEVER_MS):
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
