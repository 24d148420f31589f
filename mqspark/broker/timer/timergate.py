"""Which messages become timer messages, and in which slot of the wheel they wait
(HookUtils.handleScheduleMessage).

A delivery time belongs to the tick that ends at it or contains it; the slot is due when that tick is over.

Facts: docs/rocketmq/later.md#timer-messages.
"""

from __future__ import annotations

import re

from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft
from mqspark.broker.timer.delays import can_wait, delay_level
from mqspark.message import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_ROLLED_FROM,
    TIMER_TOPIC,
    is_system_topic,
)
from mqspark.protocol.codes import Reason, ResponseCode
from mqspark.protocol.dispatch import Refusal
from mqspark.store.timer.timerwheel import TimerWheel

_INTEGER = re.compile("[+-]?[0-9]+")


class TimerGate:
    def __init__(self, state: BrokerState, wheel: TimerWheel) -> None:
        self._state = state
        self._clock = state.clock
        self._store = state.store
        self._wheel = wheel
        self._precision_ms = state.store_config.timer_precision_ms

    def divert(self, draft: Draft) -> None:
        """Redirect a draft with a future delivery time to the timer topic. Raises Refusal, TableFull."""
        properties = draft.properties
        if not (
            TIMER_DELIVER_MS in properties or TIMER_DELAY_MS in properties or TIMER_DELAY_SEC in properties
        ):
            return
        if draft.topic == TIMER_TOPIC or TIMER_OUT_MS in properties or not can_wait(draft):
            return
        if DELAY in properties and delay_level(properties[DELAY]) > 0:
            return
        if not self._state.store_config.timer_wheel_enable:
            if is_system_topic(draft.topic):
                return  # POP's check points work without the wheel
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
                reason=Reason.FEATURE_OFF,
            )
        now_ms = self._clock.now_ms()
        deliver_ms = self._deliver_time_ms(properties, now_ms)
        out_ms = self._out_ms(deliver_ms, now_ms)
        if out_ms is None:
            if TIMER_DEL_UNIQKEY in properties:
                raise self._illegal()
            return
        if draft.session is not None:
            delayed = self._state.delayed
            delayed.hold_until(delayed.admit(draft.session), deliver_ms)
        properties.pop(TIMER_ROLLED_FROM, None)
        properties[TIMER_OUT_MS] = str(out_ms)
        properties[REAL_TOPIC] = draft.topic
        properties[REAL_QUEUE_ID] = str(draft.queue_id)
        draft.topic = TIMER_TOPIC
        draft.queue_id = 0

    def own_out_ms(self, deliver_ms: int, now_ms: int) -> int | None:
        """Where ``divert`` lets a message of the broker's own wait: TIMER_OUT_MS. None: it is stored at once. Raises
        Refusal."""
        return self._out_ms(deliver_ms, now_ms) if self._state.store_config.timer_wheel_enable else None

    def _out_ms(self, deliver_ms: int, now_ms: int) -> int | None:
        """None: it is due. Raises Refusal."""
        if deliver_ms <= self._store.appender.next_store_time_ms:
            return None
        if deliver_ms - now_ms > self._state.store_config.timer_max_delay_sec * 1000:
            raise self._illegal()
        tick = -(-deliver_ms // self._precision_ms) - 1
        self._check_congestion(tick)
        return tick * self._precision_ms

    def _deliver_time_ms(self, properties: dict[str, str], now_ms: int) -> int:
        """``properties`` have one of the three."""
        if TIMER_DELAY_SEC in properties:
            return now_ms + self._number(properties[TIMER_DELAY_SEC]) * 1000
        if TIMER_DELAY_MS in properties:
            return now_ms + self._number(properties[TIMER_DELAY_MS])
        return self._number(properties[TIMER_DELIVER_MS])

    def _number(self, text: str) -> int:
        if not (len(text) <= 19 and _INTEGER.fullmatch(text)):
            raise self._illegal()
        return int(text)

    def _illegal(self) -> Refusal:
        longest_ms = self._state.store_config.timer_max_delay_sec * 1000
        return Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, the delay time should not be bigger than the max delay {longest_ms}ms;"
            " or if set del msg, the delay time should be bigger than the current time",
        )

    def _check_congestion(self, tick: int) -> None:
        limit = self._state.store_config.timer_congest_num_each_slot
        excess = self._wheel.messages(tick) - limit
        if excess <= 0:
            return
        # RocketMQ's formula: above the limit a random share is refused; above twice the limit, all.
        if excess >= limit or self._state.random.randrange(1000) > 1000 * excess / (limit + 0.1):
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {limit * 2} or the current value is"
                f" greater than {limit} and less than {limit * 2}, trigger random flow control",
                reason=Reason.NOT_NOW,
            )
