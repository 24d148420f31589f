"""A refusal's status and advice follow from its code and typed reason, never from its text."""

from __future__ import annotations

import pytest

from mqspark.base.config import parse_addresses
from mqspark.errors import BrokerError, NoNameServer
from mqspark.protocol.codes import Reason, ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.dispatch import Refusal, failure
from mqspark.protocol.headers.client_headers import QueryMessageResponseHeader
from mqspark_server.commands.refusals import describe
from mqspark_server.web.v1.asking import refused


def answer_to(refusal: Refusal) -> Command:
    (answer,) = Connection().receive_data(failure(None, Command(1, 7), refusal))  # type: ignore[arg-type]
    return answer


@pytest.mark.parametrize(
    ("reason", "status"),
    [(Reason.WRONG_VALUE, 400), (Reason.FEATURE_OFF, 501), (Reason.NOT_NOW, 503), (None, 500)],
)
@pytest.mark.parametrize("remark", ["setting a=b", "property DELAY", "this broker has no users", "anything"])
def test_the_status_of_a_system_error_is_that_of_its_reason(
    reason: Reason | None, status: int, remark: str
) -> None:
    answer = answer_to(Refusal(ResponseCode.SYSTEM_ERROR, remark, reason=reason))
    assert (answer.code, answer.remark, answer.reason) == (1, remark, reason)
    problem = refused(answer)
    assert (problem.status, problem.detail) == (status, f"code 1: {remark}")


def test_a_code_that_says_all_needs_no_reason() -> None:
    assert refused(answer_to(Refusal(ResponseCode.TOPIC_NOT_EXIST, "x"))).status == 404
    odd = Refusal(ResponseCode.NO_PERMISSION, "x", reason=Reason.FIXED_SETTING)
    assert refused(answer_to(odd)).status == 403
    wrong = Refusal(ResponseCode.NO_PERMISSION, "an action that is none", reason=Reason.WRONG_VALUE)
    assert refused(answer_to(wrong)).status == 400
    assert refused(answer_to(Refusal(99_999, "x"))).status == 500


def test_a_reason_goes_beside_the_fields_of_the_answer() -> None:
    header = QueryMessageResponseHeader(index_last_update_timestamp=3, index_last_update_phyoffset=4)
    answer = answer_to(Refusal(1, "x", header, reason=Reason.NOT_NOW))
    assert answer.reason is Reason.NOT_NOW
    assert answer.header(QueryMessageResponseHeader) == header
    assert answer_to(Refusal(1, "x", {"a": "b"}, reason=Reason.NOT_NOW)).ext["a"] == "b"


def test_an_unknown_reason_is_none() -> None:
    (answer,) = Connection().receive_data(encode_response(1, 1, {"mqsparkReason": "of a later release"}))
    assert answer.reason is None


def test_the_advice_to_log_in_is_for_rights_alone() -> None:
    code = ResponseCode.NO_PERMISSION
    assert "--credentials" in describe(BrokerError(code, "Can not update config by this user"))
    assert "--credentials" not in describe(BrokerError(code, "no", reason=Reason.FIXED_SETTING))


def test_the_advice_for_a_missing_name_server_is_for_that_alone() -> None:
    with pytest.raises(NoNameServer) as none:
        parse_addresses(" ; ", key="namesrv", required=True)
    assert "--nameserver" in describe(none.value)
    with pytest.raises(Exception, match="not of the form") as odd:
        parse_addresses("no name server:here", key="namesrv", required=True)
    assert "--nameserver" not in describe(odd.value)
