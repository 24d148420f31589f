"""Parked pulls: requests that found no message and wait (PullRequestHoldService).

They wait under (topic, queue id) until that queue grows past their offset or their time is up. Pulls of a closed
connection are dropped when they are next examined.

Facts: docs/rocketmq/broker.md#long-polling.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqspark.base.bounded import Ledger, require
from mqspark.base.clock import Clock
from mqspark.base.shares import NOBODY
from mqspark.broker.state.selection import HeldRequests, Wanted
from mqspark.broker.statictopic.logicreads import LogicRead
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.session import Session

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.gate import Grant

MAX_PARKED_BYTES = 256 << 20
_PULL_BYTES = 300
SWEEP_INTERVAL_MS = 200
"""A sweep visits every parked pull, so its rate is limited; a suspension ends at most this much late. RocketMQ: 5
s."""


class Pull:
    """A validated pull. ``offset`` advances while the pull is parked and finds only messages that do not match."""

    __slots__ = (
        "began_ms", "bulk", "code", "deadline_ms", "first_offset", "grant", "group", "group_sys_flag",
        "logic", "max_messages", "offset", "opaque", "owner", "queue_id", "session", "size_bytes", "topic",
        "topic_sys_flag", "wanted",
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
        self.session = session
        self.opaque = opaque
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.first_offset = offset
        self.offset = offset
        self.max_messages = max_messages
        self.bulk = bulk
        self.logic = logic
        self.wanted = wanted
        self.topic_sys_flag = topic_sys_flag
        self.group_sys_flag = group_sys_flag
        self.deadline_ms = 0
        self.code = code
        self.began_ms = -1
        self.size_bytes = _PULL_BYTES
        """Without the filter."""
        self.owner = NOBODY
        """The user whose share of the parked or held pulls it takes."""
        self.grant: Grant | None = None
        """Set when it is parked or held."""

    @property
    def lapsed(self) -> str:
        """Why it may no longer be answered, or ''."""
        return "" if self.grant is None else self.grant.problem(self.topic, self.group)


class ParkedPulls:
    def __init__(
        self,
        clock: Clock,
        max_bytes: Callable[[], int] = lambda: MAX_PARKED_BYTES,
        most: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """``max_bytes``: the limit for the filters of parked pulls. ``most``: how many there may be, of which one user
        parks a share; the caller refuses more."""
        self.ledger = Ledger(
            "parkedPulls",
            max_bytes,
            "ParkedPulls._waiting",
            setting="maxParkedBytes",
            most=most,
        )
        self._requests: HeldRequests[Pull] = HeldRequests(self.ledger)
        self._clock = clock
        self._waiting: dict[tuple[str, int], list[Pull]] = {}
        self._next_sweep_ms: int | None = None

    @property
    def count(self) -> int:
        return len(self._requests)

    def admit(self, pull: Pull) -> None:
        """Raises TableFull."""
        self.ledger.admit(self._requests.size_of(pull))
        pull.owner = self._requests.admit(pull)

    def _left(self, pulls: list[Pull]) -> None:
        for pull in pulls:
            self._requests.release(pull)

    def park(self, pull: Pull) -> None:
        """``deadline_ms`` (monotonic) must be set. Never refuses; callers that park for a peer call ``admit``
        first."""
        self._requests.hold(pull)
        key = (pull.topic, pull.queue_id)
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [pull]
        else:
            waiting.append(pull)
        if self._next_sweep_ms is None or pull.deadline_ms < self._next_sweep_ms:
            self._next_sweep_ms = pull.deadline_ms

    def validate(self) -> None:
        """Check that every pull waits for a later message of its queue, is found by a sweep, and is counted once."""
        parked = []
        for (topic, queue_id), pulls in self._waiting.items():
            require(bool(pulls), f"nobody waits for queue {queue_id} of {topic}")
            parked += pulls
            for pull in pulls:
                require((pull.topic, pull.queue_id) == (topic, queue_id), f"{pull.topic} waits for {topic}")
        require(not parked or self._next_sweep_ms is not None, "no sweep is due")
        self._requests.validate(parked)

    def arrived(self, topic: str, queue_id: int, max_offset: int) -> list[Pull]:
        """The queue has grown: remove and return the pulls that may now find something."""
        key = (topic, queue_id)
        waiting = self._waiting.get(key)
        if waiting is None:
            return []
        due = [pull for pull in waiting if pull.offset < max_offset]
        if len(due) == len(waiting):
            del self._waiting[key]
        elif due:
            self._waiting[key] = [pull for pull in waiting if pull.offset >= max_offset]
        self._left(due)
        return due

    def take(self, group: str | None, topic: str) -> list[Pull]:
        """Remove and return the group's pulls of any queue of the topic; None: those of all groups."""
        taken: list[Pull] = []
        for key in [key for key in self._waiting if key[0] == topic]:
            waiting = self._waiting[key]
            mine = [pull for pull in waiting if group in (None, pull.group)]
            if mine:
                taken += mine
                kept = [pull for pull in waiting if group not in (None, pull.group)]
                if kept:
                    self._waiting[key] = kept
                else:
                    del self._waiting[key]
        self._left(taken)
        return taken

    def expired(self) -> list[Pull]:
        """Remove and return the pulls whose time is up."""
        now_ms = self._clock.monotonic_ms()
        if self._next_sweep_ms is None or now_ms < self._next_sweep_ms:
            return []
        due: list[Pull] = []
        earliest_ms: int | None = None
        for key, waiting in list(self._waiting.items()):
            kept = []
            for pull in waiting:
                if not pull.session.open:
                    self._left([pull])
                elif pull.deadline_ms <= now_ms:
                    due.append(pull)
                else:
                    kept.append(pull)
                    if earliest_ms is None or pull.deadline_ms < earliest_ms:
                        earliest_ms = pull.deadline_ms
            if not kept:
                del self._waiting[key]
            elif len(kept) < len(waiting):
                self._waiting[key] = kept
        self._left(due)
        self._next_sweep_ms = None if earliest_ms is None else max(earliest_ms, now_ms + SWEEP_INTERVAL_MS)
        return due
