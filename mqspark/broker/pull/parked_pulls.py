"""Parked pulls: requests that found no message and wait (PullRequestHoldService).

They wait under (topic, queue id) until that queue grows past their offset or their time is up. Pulls of a closed
connection are dropped when they are next examined, within ``slots.LOOK_MS``. (RocketMQ visits every parked pull, every
5 s.)

Facts: docs/rocketmq/broker.md#long-polling.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import chain, islice

from mqspark.base.bounded import Ledger
from mqspark.base.clock import Clock
from mqspark.base.config import Bound
from mqspark.base.shares import NOBODY
from mqspark.broker.state.heldrequests import HeldRequests, Wanted
from mqspark.broker.state.slots import LongPoll, Slots
from mqspark.broker.statictopic.logicreads import LogicRead
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.session import Session

MAX_PARKED_BYTES = 256 << 20
_PULL_BYTES = 300
LOOKED_AT_ONCE = 256
"""Pulls looked at in one slice when all those of a topic, or of a group, leave."""
_NONE: Mapping[int, dict[Pull, None]] = {}


class Pull(LongPoll):
    """A validated pull. ``offset`` advances while the pull is parked and finds only messages that do not match."""

    __slots__ = (
        "began_ms", "bulk", "code", "first_offset", "group_sys_flag", "logic", "max_messages", "offset", "owner",
        "queue_id", "slot", "topic_sys_flag", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        opaque: int,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        wanted: Wanted,
        topic_sys_flag: int,
        group_sys_flag: int,
        bulk: bool = False,
        logic: LogicRead | None = None,
        code: int = RequestCode.PULL_MESSAGE,
    ) -> None:
        """``queue_id`` and ``offset`` are of the physical queue; ``logic``: the pull is of a logic queue. ``code``: of
        the request. ``began_ms`` is set when it is parked."""
        super().__init__(session, opaque, topic, group, 0, _PULL_BYTES)
        self.queue_id = queue_id
        self.first_offset = offset
        self.offset = offset
        self.max_messages = max_messages
        self.bulk = bulk
        self.logic = logic
        self.wanted = wanted
        self.topic_sys_flag = topic_sys_flag
        self.group_sys_flag = group_sys_flag
        self.slot = 0
        self.code = code
        self.began_ms = -1
        self.owner = NOBODY
        """The user whose share of the parked or held pulls it takes."""


class ParkedPulls:
    def __init__(
        self,
        clock: Clock,
        max_bytes: Bound = MAX_PARKED_BYTES,
        most: Bound = sys.maxsize,
    ) -> None:
        """``max_bytes``: the limit for the filters of parked pulls. ``most``: how many there may be, of which one user
        parks a share; the caller refuses more."""
        self.ledger = Ledger(
            "parkedPulls",
            max_bytes,
            "ParkedPulls._waiting",
            "Slots._slots",
            "PullProcessor._grown",
            most=most,
        )
        self._requests: HeldRequests[Pull] = HeldRequests(self.ledger)
        self.requests = self._requests.requests
        """All of them. To be looked at only: every turn asks whether there are any."""
        self._clock = clock
        self._waiting: dict[str, dict[int, dict[Pull, None]]] = {}
        """Topic → queue id → pulls in the order in which they were parked."""
        self._slots: Slots[Pull] = Slots()

    @property
    def count(self) -> int:
        return len(self.requests)

    def admit(self, pull: Pull) -> None:
        """Raises TableFull."""
        self.ledger.admit(self._requests.size_of(pull))
        pull.owner = self._requests.admit(pull)

    def _leave(self, pull: Pull) -> None:
        self._slots.leave(pull)
        self._forget(pull)

    def _forget(self, pull: Pull) -> None:
        """It is in no slot any more."""
        queues = self._waiting[pull.topic]
        waiting = queues[pull.queue_id]
        del waiting[pull]
        if not waiting:
            del queues[pull.queue_id]
            if not queues:
                del self._waiting[pull.topic]
        self._requests.release(pull)

    def park(self, pull: Pull) -> None:
        """``deadline_ms`` (monotonic) must be set. Never refuses; callers that park for a peer call ``admit``
        first."""
        self._requests.hold(pull)
        self._waiting.setdefault(pull.topic, {}).setdefault(pull.queue_id, {})[pull] = None
        self._slots.enter(pull, self._clock.monotonic_ms())

    def waiting(self, topic: str, queue_id: int) -> int:
        """How many wait for messages of a queue."""
        return len(self._waiting.get(topic, _NONE).get(queue_id, ()))

    def arrived(self, topic: str, queue_id: int, max_offset: int, most: int = sys.maxsize) -> list[Pull]:
        """The queue has grown: remove and return the pulls that may now find something, at most so many."""
        waiting = self._waiting.get(topic, _NONE).get(queue_id)
        if waiting is None:
            return []
        due = list(islice((pull for pull in waiting if pull.offset < max_offset), most))
        for pull in due:
            self._leave(pull)
        return due

    def leaving(self, group: str | None, topic: str) -> Iterator[list[Pull]]:
        """Remove and return, slice by slice, the group's pulls of any queue of the topic; None: those of all groups.
        Pulls that are parked meanwhile stay."""
        queues = self._waiting.get(topic, _NONE).values()
        parked = iter(list(chain.from_iterable(queues)))
        while some := list(islice(parked, LOOKED_AT_ONCE)):
            taken = [pull for pull in some if group in (None, pull.group) and pull in self.requests]
            for pull in taken:
                self._leave(pull)
            yield taken

    def expired(self, most: int = sys.maxsize) -> list[Pull]:
        """Remove and return pulls whose time is up or whose connection is closed; at most so many are examined."""
        over = list(self._slots.over(self._clock.monotonic_ms(), most))
        for pull in over:
            self._forget(pull)
        return over
