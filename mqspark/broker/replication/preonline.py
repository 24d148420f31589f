"""A master takes over what a slave has done in its place, before name servers learn that it is there
(BrokerPreOnlineService). Answers of one slave in, requests out.

    announce    the slave learns where the log of its master is, and follows
    progress    once it follows: consumer offsets, delay levels, timer messages

Only progress goes this way: nothing was stored meanwhile. Must not know connections.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from mqspark.broker.config import BrokerConfig, BrokerRole
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.offset_row import offsets_in_slices
from mqspark.broker.timer.delays import DelayService
from mqspark.broker.timer.timerservice import TimerService
from mqspark.errors import ProtocolError
from mqspark.protocol.bodies.admin_bodies import DelayOffsetSerializeWrapper
from mqspark.protocol.bodies.body import decode_table
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.cluster_headers import ExchangeHAInfoRequestHeader
from mqspark.protocol.headers.header import Header


def comes_back(config: BrokerConfig) -> bool:
    """Whether a broker is a master in whose place a slave may have acted, and has to learn what that did."""
    is_master = config.broker_role is not BrokerRole.SLAVE
    return is_master and config.enable_slave_acting_master and not config.skip_pre_online


class SlaveRequest(NamedTuple):
    code: int
    header: Header | None


Talk = Generator[SlaveRequest | None, Command, None]
"""None: others are served before it goes on, whatever it is sent."""


class PreOnline:
    def __init__(
        self, config: BrokerConfig, state: BrokerState, delays: DelayService, timers: TimerService
    ) -> None:
        self._config = config
        self._state = state
        self._delays = delays
        self._timers = timers

    def announce(self) -> Talk:
        """Raises ProtocolError if the slave refuses."""
        config = self._config
        header = ExchangeHAInfoRequestHeader(
            master_ha_address=config.ha_address,
            master_flush_offset=self._state.store.log.durable,
            master_address=config.address,
        )
        _success((yield SlaveRequest(RequestCode.EXCHANGE_BROKER_HA_INFO, header)))

    def progress(self) -> Talk:
        """Take over the slave's progress where it is further. Raises ProtocolError, OSError, TableFull."""
        delays = decode_table(
            DelayOffsetSerializeWrapper,
            _success((yield SlaveRequest(RequestCode.GET_ALL_DELAY_OFFSET, None))),
        )
        answer = yield SlaveRequest(RequestCode.GET_ALL_CONSUMER_OFFSET, None)
        offsets, version = yield from offsets_in_slices(_success(answer))
        timers = yield SlaveRequest(RequestCode.GET_TIMER_CHECK_POINT, None)
        yield from self._state.offsets.catch_up(offsets, version)
        self._delays.catch_up(delays)
        if timers.code == ResponseCode.SUCCESS:  # else it has no timer messages
            self._timers.catch_up(bytes(timers.body))


def _success(answer: Command) -> bytes | memoryview:
    if answer.code != ResponseCode.SUCCESS:
        raise ProtocolError(f"the slave answers {answer.code}: {(answer.remark or '')[:200]}")
    return answer.body
