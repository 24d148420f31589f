"""Checks shared by the requests of POP: permission, existence, timeout.

All raise Refusal.
"""

from __future__ import annotations

from mqspark.broker.pop.parked_pops import ANY_QUEUE
from mqspark.broker.pull.pull import check_port, not_parsed
from mqspark.broker.state.groups import TAG
from mqspark.broker.state.heldrequests import Wanted
from mqspark.broker.state.state import BrokerState
from mqspark.errors import InvalidFilter, InvalidMessage
from mqspark.filter.sql import SQL92, compile_sql
from mqspark.filter.tags import tag_codes
from mqspark.message import PERM_READ
from mqspark.protocol.codes import FAQ, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.session import Session

LATE_MS = 500
"""A request whose polling time ended longer ago than this has lost its client."""


NO_WAY_MS = 300_000
"""No request is on its way for so long: the clocks of client and broker differ."""


def check_time(state: BrokerState, what: str, born_ms: int, poll_ms: int) -> int:
    """How long the request may still wait, in ms: at most the time that it asks for, even if the client's clock
    is wrong."""
    now_ms = state.clock.now_ms() - state.ahead_ms
    waited_ms = now_ms - (born_ms or now_ms)
    if waited_ms > NO_WAY_MS:
        waited_ms = 0
    if waited_ms - poll_ms > LATE_MS:
        raise Refusal(
            ResponseCode.POLLING_TIMEOUT, f"the broker[{state.config.broker_ip1}] {what} is timeout too much"
        )
    return min(poll_ms, poll_ms - waited_ms)


def check_invisible_time(state: BrokerState, invisible_ms: int, least_ms: int) -> None:
    """Check points are timer messages, so the invisible time cannot exceed timerMaxDelaySec."""
    most_ms = state.store_config.timer_max_delay_sec * 1000
    if not least_ms <= invisible_ms <= most_ms:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime={invisible_ms} is not between {least_ms} and {most_ms} ms",
        )


def check_readable(state: BrokerState, session: Session, command: Command, what: str) -> None:
    check_port(session, command)
    if not state.config.broker_permission & PERM_READ:
        raise Refusal(
            ResponseCode.NO_PERMISSION, f"the broker[{state.config.broker_ip1}] {what} is forbidden"
        )


def unknown_topic(name: str) -> Refusal:
    """The answer to a request for a topic that does not exist."""
    return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {FAQ}")


def check_topic(state: BrokerState, session: Session, name: str, queue_id: int) -> None:
    topic = state.topics.get(name)
    if topic is None:
        raise unknown_topic(name)
    if not topic.readable:
        raise Refusal(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
    if not ANY_QUEUE <= queue_id < topic.read_queue_nums:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{name}]"
            f" topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{session.peer}]",
        )


def check_group(state: BrokerState, session: Session, name: str) -> None:
    group = state.subscriptions.find(name, session)
    if group is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist, {FAQ}"
        )
    if not group.consume_enable:
        raise Refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")


def parse_wanted(kind: str | None, expression: str | None) -> Wanted:
    """Parse the filter expression of a request."""
    if not expression:
        return None
    try:
        if not kind or kind == TAG:
            return tag_codes[expression]
        if kind == SQL92:
            return compile_sql(expression)
    except (InvalidMessage, InvalidFilter) as error:
        raise not_parsed(error) from None
    raise not_parsed(f"{kind} is not an expression type")
