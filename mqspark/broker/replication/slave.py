"""Requests that a slave refuses, because only its master may store messages or change topics and groups
(SendMessageProcessor.rejectRequest, AdminBrokerProcessor.validateSlave)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices

_BUSY = "[REJECTREQUEST]system busy, this broker is a slave: its master stores messages"
_NO_PUT = "this broker is a slave: its master stores messages"
_NO_CHANGE = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker."
)

_REFUSED = {
    RequestCode.SEND_MESSAGE: (ResponseCode.SYSTEM_BUSY, _BUSY),
    RequestCode.SEND_MESSAGE_V2: (ResponseCode.SYSTEM_BUSY, _BUSY),
    RequestCode.SEND_BATCH_MESSAGE: (ResponseCode.SYSTEM_BUSY, _BUSY),
    RequestCode.CONSUMER_SEND_MSG_BACK: (ResponseCode.SYSTEM_BUSY, _BUSY),
    RequestCode.SEND_REPLY_MESSAGE: (ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.SEND_REPLY_MESSAGE_V2: (ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.POP_MESSAGE: (ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.POP_LITE_MESSAGE: (ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.LITE_SUBSCRIPTION_CTL: (ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.TRIGGER_LITE_DISPATCH: (ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.CHANGE_SCHEMAS: (ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.ACK_MESSAGE: (ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.BATCH_ACK_MESSAGE: (ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: (ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.END_TRANSACTION: (ResponseCode.SLAVE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.RECALL_MESSAGE: (ResponseCode.SLAVE_NOT_AVAILABLE, _NO_PUT),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (ResponseCode.SYSTEM_ERROR, _NO_CHANGE),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: (ResponseCode.SYSTEM_ERROR, _NO_CHANGE),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (ResponseCode.SYSTEM_ERROR, _NO_CHANGE),
    RequestCode.DELETE_TOPIC_IN_BROKER: (ResponseCode.SYSTEM_ERROR, _NO_CHANGE),
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST: (ResponseCode.SYSTEM_ERROR, _NO_CHANGE),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (ResponseCode.SYSTEM_ERROR, _NO_CHANGE),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (ResponseCode.SYSTEM_ERROR, _NO_CHANGE),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (ResponseCode.SYSTEM_ERROR, _NO_CHANGE),
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: (ResponseCode.SYSTEM_ERROR, _NO_CHANGE),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (ResponseCode.SYSTEM_ERROR, _NO_CHANGE),
}


def _refusing(code: int, remark: str) -> Handler:
    def refuse(session: Session, command: Command) -> bytes | None:
        raise Refusal(code, remark)

    return refuse


def slave_refusals() -> dict[int, Handler]:
    return {request: _refusing(*answer) for request, answer in _REFUSED.items()}


_NOT_YET = "this master is coming back: it learns what its slaves have done meanwhile; retry later"
_AFTERWARDS = (
    RequestCode.POP_MESSAGE,
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.END_TRANSACTION,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
)
"""Requests that need progress which a slave may have made."""


def refusals_before(handlers: Mapping[int, Handler], is_online: Callable[[], bool]) -> dict[int, Handler]:
    """Handlers of a master that serve only once it is online."""

    def late(handler: Handler) -> Handler:
        def handle(session: Session, command: Command) -> bytes | Slices | None:
            if not is_online():
                raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_YET)
            return handler(session, command)

        return handle

    return {code: late(handlers[code]) for code in _AFTERWARDS}
