"""Pulls of an earlier part of a logic queue, which another broker has: the pull is forwarded to that broker, and its
answer to the client (PullMessageProcessor.rewriteRequestForStaticTopic).

Facts: docs/rocketmq/statictopics.md#pull.
"""

from __future__ import annotations

from collections import deque

from mqspark.broker.pull.parked_pulls import Pull
from mqspark.broker.state.state import BrokerState
from mqspark.broker.statictopic.logicreads import LogicRead, PullOutcome
from mqspark.broker.statictopic.peers import Question, Talk
from mqspark.protocol.codes import PULL_ANSWERS, PullFlag, RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response, encode_response_head
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.client_headers import PullMessageRequestHeader, PullMessageResponseHeader
from mqspark.protocol.headers.header import to_ext
from mqspark.protocol.session import Session

PAUSE_MS = 500
"""The longest time that the answer to a suspended pull is held when the end of a part is reached and the logic offset
of the next one is not known yet. RocketMQ's broker answers at once, and its clients ask again at once."""
MAX_HELD = 1_000


class ReadsElsewhere:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._held: deque[tuple[int, Session, bytes]] = deque()
        """When to send (monotonic ms), and what: in this order."""

    def pull(
        self,
        session: Session,
        command: Command,
        header: PullMessageRequestHeader,
        pull: Pull,
        logic: LogicRead,
    ) -> None:
        """Ask the broker of the part. Raises Refusal when too many requests wait for other brokers."""
        self._subscribe(header)
        waits = header.sys_flag & PullFlag.SUSPEND != 0 and header.suspend_timeout_millis > 0
        header.sys_flag &= ~(PullFlag.SUSPEND | PullFlag.COMMIT)
        header.lo, header.bname = False, logic.part.bname
        if command.is_oneway:
            return
        self._state.peers.talk(session, command, self._talk(session, header, pull, logic, waits=waits))

    def _subscribe(self, header: PullMessageRequestHeader) -> None:
        """Name the filter: the other broker may not know the group's subscription."""
        if header.sys_flag & PullFlag.SUBSCRIPTION:
            return
        group = self._state.clients.consumer(header.consumer_group)
        subscription = None if group is None else group.subscriptions.get(header.topic)
        if subscription is not None:
            header.subscription = subscription.data.sub_string
            header.expression_type = subscription.data.expression_type
            header.sys_flag |= PullFlag.SUBSCRIPTION

    def _talk(
        self, session: Session, header: PullMessageRequestHeader, pull: Pull, logic: LogicRead, *, waits: bool
    ) -> Talk:
        code = RequestCode.PULL_MESSAGE
        answer = yield Question(logic.part.bname or "", code, to_ext(header))
        if answer.code not in PULL_ANSWERS:
            raise Refusal(answer.code, answer.remark or f"broker {logic.part.bname} answers {answer.code}")
        found = answer.header(PullMessageResponseHeader)
        place = PullOutcome(answer.code, found.next_begin_offset, max(0, found.min_offset), found.max_offset)
        body: bytes | memoryview = answer.body
        if session.room <= 0:  # the client does not read its answers; it asks again when it has
            place, body = (
                place._replace(code=ResponseCode.PULL_RETRY_IMMEDIATELY, next_offset=pull.offset),
                b"",
            )
            shown = logic.same(place)
        else:
            shown = logic.shown(pull.offset, place)
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(shown.next_offset),
            "minOffset": str(shown.min_offset),
            "maxOffset": str(shown.max_offset),
            "offsetDelta": str(shown.delta),
            "topicSysFlag": str(pull.topic_sys_flag),
            "groupSysFlag": str(pull.group_sys_flag),
        }
        if shown.code == ResponseCode.PULL_NOT_FOUND and waits and len(self._held) < MAX_HELD:
            frame = encode_response(pull.opaque, shown.code, ext)
            self._held.append((self._state.clock.monotonic_ms() + PAUSE_MS, session, frame))
            return None
        if shown.code != ResponseCode.SUCCESS:
            return encode_response(pull.opaque, shown.code, ext)
        session.send(encode_response_head(pull.opaque, shown.code, ext, len(body), answer.remark), body)
        return None

    def expire(self) -> None:
        """Send the answers that were held for long enough."""
        now_ms = self._state.clock.monotonic_ms()
        while self._held and self._held[0][0] <= now_ms:
            _, session, frame = self._held.popleft()
            session.send(frame)
