"""Requests about parts of RocketMQ's broker that this broker does not have (AdminBrokerProcessor).

Where a RocketMQ broker with default settings has nothing to show or to do, the answer is the same as RocketMQ's.
All other requests are refused with a remark that names the missing part.
"""

from __future__ import annotations

from mqspark.broker.state.state import BrokerState
from mqspark.protocol.codes import Reason, RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, merged, ok
from mqspark.protocol.session import Session

_ENGINE_KEY = "E_T"
"""Names the engine in request 5001 (MessageConst.TIMER_ENGINE_TYPE)."""
_FILE_ENGINE, _ROCKSDB_ENGINE = "F", "R"

_NO_USERS = "this broker has no users yet, everybody may do everything"
_NO_ACL = "this broker has no access control yet, everybody may do everything"
_NO_LITE = "a lite topic is acknowledged by ACK_MESSAGE, as in RocketMQ"
_NO_CONTAINER = "this broker is no container of brokers"

NOT_CONFIGURED = {
    RequestCode.AUTH_CREATE_USER: _NO_USERS,
    RequestCode.AUTH_UPDATE_USER: _NO_USERS,
    RequestCode.AUTH_DELETE_USER: _NO_USERS,
    RequestCode.AUTH_GET_USER: _NO_USERS,
    RequestCode.AUTH_LIST_USER: _NO_USERS,
    RequestCode.AUTH_CREATE_ACL: _NO_ACL,
    RequestCode.AUTH_UPDATE_ACL: _NO_ACL,
    RequestCode.AUTH_DELETE_ACL: _NO_ACL,
    RequestCode.AUTH_GET_ACL: _NO_ACL,
    RequestCode.AUTH_LIST_ACL: _NO_ACL,
    RequestCode.GET_BROKER_EPOCH_CACHE: "this request only for controllerMode",
}
"""Refused with SYSTEM_ERROR, as by a RocketMQ broker that is not configured for them."""

NOT_SUPPORTED = {
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: "no queue is kept in RocksDB",
    RequestCode.ADD_BROKER: _NO_CONTAINER,
    RequestCode.REMOVE_BROKER: _NO_CONTAINER,
    RequestCode.ACK_LITE_MESSAGE: _NO_LITE,
}
"""Refused with REQUEST_CODE_NOT_SUPPORTED."""

NOTHING_TO_DO = {
    RequestCode.RESET_MASTER_FLUSH_OFFSET: "a master does not follow another broker's flush offset",
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: "tables are in JSON files, not in RocksDB",
    RequestCode.POP_ROLLBACK: "POP's records are in files, not in RocksDB",
}
"""Answered with success, without any effect."""


class UnsupportedProcessor:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.handlers: dict[int, Handler] = merged(
            dict.fromkeys(NOT_CONFIGURED, self.refuse_unconfigured),
            dict.fromkeys(NOT_SUPPORTED, self.refuse_unsupported),
            dict.fromkeys(NOTHING_TO_DO, self.nothing_to_do),
            {RequestCode.SWITCH_TIMER_ENGINE: self.switch_timer_engine},
        )

    def refuse_unconfigured(self, session: Session, command: Command) -> bytes:
        remark = NOT_CONFIGURED[RequestCode(command.code)]
        raise Refusal(ResponseCode.SYSTEM_ERROR, remark, reason=Reason.FEATURE_OFF)

    def refuse_unsupported(self, session: Session, command: Command) -> bytes:
        reason = NOT_SUPPORTED[RequestCode(command.code)]
        raise Refusal(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported: {reason}"
        )

    def nothing_to_do(self, session: Session, command: Command) -> bytes:
        return ok(command)

    def switch_timer_engine(self, session: Session, command: Command) -> bytes:
        """Switch between timer wheel and RocksDB; only the timer wheel exists."""
        if not self._state.store_config.timer_wheel_enable:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "broker timerWheelEnable is false")
        engine = command.ext.get(_ENGINE_KEY)
        if engine not in (_FILE_ENGINE, _ROCKSDB_ENGINE):
            raise Refusal(ResponseCode.INVALID_PARAMETER, "param error")
        if engine == _ROCKSDB_ENGINE:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, "timerRocksDBEnable must be configured true when broker start"
            )
        return ok(command)
