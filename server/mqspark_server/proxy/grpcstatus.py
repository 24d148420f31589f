"""Why a call is refused, in the codes of the service (ResponseBuilder of RocketMQ's proxy)."""

from __future__ import annotations

from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark_server.proxy import messaging_pb2 as pb

_CODES: dict[int, pb.Code] = {
    ResponseCode.SUCCESS: pb.OK,
    ResponseCode.SYSTEM_BUSY: pb.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: pb.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: pb.NOT_IMPLEMENTED,
    ResponseCode.INVALID_PARAMETER: pb.BAD_REQUEST,
    ResponseCode.NO_PERMISSION: pb.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: pb.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: pb.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.LMQ_QUOTA_EXCEEDED: pb.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


class GrpcRefusal(Exception):
    """A call ends with this code of ``pb.Code`` and this text."""

    def __init__(self, code: pb.Code, text: str) -> None:
        super().__init__(code, text)  # both, or it could not be pickled
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return self.text

    @property
    def status(self) -> pb.Status:
        return pb.Status(code=self.code, message=self.text)


class GrpcMoved(GrpcRefusal):
    """The client's link was made for another address, and one may be made for this."""


def status(code: pb.Code, text: str = "") -> pb.Status:
    """A status whose text is by default the name of its code."""
    return pb.Status(code=code, message=text or pb.Code.Name(code))


OK = status(pb.OK)


def code_of(response_code: int) -> pb.Code:
    """The code for a broker's response code."""
    return _CODES.get(response_code, pb.INTERNAL_SERVER_ERROR)


def too_late() -> GrpcRefusal:
    return GrpcRefusal(pb.PROXY_TIMEOUT, "the broker did not answer in time")


def refusal(response_code: int, remark: str | None) -> GrpcRefusal:
    """The refusal for a broker's answer that is not what was asked for."""
    return GrpcRefusal(code_of(response_code), remark or str(response_code))


def refusal_of(answer: Command) -> GrpcRefusal:
    return refusal(answer.code, answer.remark)


def checked(answer: Command) -> Command:
    """The answer. Raises GrpcRefusal unless the broker did what it was asked."""
    if answer.code != ResponseCode.SUCCESS:
        raise refusal_of(answer)
    return answer


def ack_refusal(answer: Command | Exception) -> GrpcRefusal:
    """The refusal for what a broker answers to an acknowledgement instead of success, or why it is not known."""
    if isinstance(answer, Exception):
        return (
            answer if isinstance(answer, GrpcRefusal) else GrpcRefusal(pb.INTERNAL_SERVER_ERROR, str(answer))
        )
    if answer.code == ResponseCode.NO_PERMISSION:
        return refusal_of(answer)
    return GrpcRefusal(pb.INTERNAL_SERVER_ERROR, f"ack failed: status is abnormal: {answer.remark}")
