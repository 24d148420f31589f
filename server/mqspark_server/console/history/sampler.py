"""Takes samples of a cluster in the background: rates and disks of its brokers, lag and dead letters of its
groups.

Its cost is bounded, whatever the size of the cluster: a limited number of requests a round, and pauses that are longer
than the rounds by PAUSE_FACTOR. Each broker of a cluster has a sampler. While nobody views its pages, a sampler
pauses one second for each broker of the cluster, so that all of them together ask a broker about once a second. A
cluster that does not answer is asked again after a minute, then less and less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mqspark.base.clock import Clock
from mqspark.client.admin import AdminClient
from mqspark.errors import MQError
from mqspark.message import MASTER_ID, dlq_topic
from mqspark_server.console.clusteraccess import ShownCluster, Trouble, admin_of
from mqspark_server.console.history.samples import History
from mqspark_server.process.tasks import end_all
from mqspark_server.survey.brokersurvey import broker_rows, totals_of
from mqspark_server.survey.groupsurvey import group_names
from mqspark_server.survey.surveying import Row, each_of
from mqspark_server.survey.topicsurvey import is_there

SAMPLE_PERIOD_S = 10.0
PAUSE_FACTOR = 10
"""A round that takes longer than usual, as with a broker that does not answer, is followed by a longer pause."""
ROUND_S = 20.0
SAMPLE_TIMEOUT_MS = 2_000
MAX_BROKERS = 64
MAX_GROUPS = 64
REQUESTS_FOR_GROUPS = 64
"""Groups of one round; each group is asked of every master, and about its dead letters if it has any."""
UNWATCHED_S = 1.0
"""Pause between two rounds for each broker, while nobody views a page."""
WATCHED_FOR_MS = 3_600_000
"""How long a visitor counts as present after the last request for a page."""
NAMES_S = 300.0
NAMES_FACTOR_S = 0.5
"""For each group that the cluster has: the names of all groups come in one answer for each master, which is large where
there are many."""
CLUSTER = "cluster"
"""The series of all masters: messages per second in and out, and the part of the fullest disk that is in use."""
ALL_LAGS = "lag"
"""The series of the lag of all groups together, or of the first MAX_GROUPS."""
ALL_LETTERS = "dead letters"
"""The series of the dead letters of these groups together."""
AWAY_S = 60.0
LONGEST_AWAY_S = 600.0

log = logging.getLogger("mqspark.console")


def broker_series(name: str) -> str:
    """The series of a broker's master: messages per second in and out, and the part of the disk in use."""
    return f"broker {name}"


def group_series(name: str) -> str:
    """The lag of a group in messages."""
    return f"group {name}"


@dataclass(slots=True)
class _Known:
    """What was last heard of a group."""

    lag: int | None = None
    has_letters: bool | None = None
    """None: it is asked for in its next turn."""
    letters: int = 0


class Sampler:
    """``pause`` waits for that many seconds."""

    def __init__(
        self,
        cluster: ShownCluster,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self.history = History()
        self._clock = clock
        self._pause = pause
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._known: dict[str, _Known] = {}
        self._next_group = 0
        self._names_at_ms = 0
        self._brokers = 0
        self._watched_ms: int | None = None

    def watched(self) -> None:
        """Called for each request for a page; samples are taken from then on."""
        self._watched_ms = self._clock.monotonic_ms()
        self.begin()

    def begin(self) -> None:
        """Take samples until ``stop``. A second call does nothing."""
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="mqspark-samples")

    async def stop(self) -> None:
        self._stopped = True
        await end_all(self._task)

    async def _run(self) -> None:
        away_s = AWAY_S
        while True:
            try:
                at = self._cluster.cluster_to_show()
                if at.problem is None:
                    async with admin_of(at, at.own_credentials, SAMPLE_TIMEOUT_MS) as admin:
                        while True:
                            began_ms = self._clock.monotonic_ms()
                            async with asyncio.timeout(ROUND_S):
                                await self.take(admin)
                            away_s = AWAY_S
                            took_s = (self._clock.monotonic_ms() - began_ms) / 1000
                            await self._pause(self._rest_s(took_s))
            except (MQError, OSError, TimeoutError, Trouble) as error:
                why = str(error) or f"no answer within {ROUND_S:g} s"
                log.warning("no samples for the charts: %s; the next try is in %d s", why[:300], away_s)
            await self._pause(away_s)
            away_s = min(away_s * 2, LONGEST_AWAY_S)

    def _rest_s(self, took_s: float) -> float:
        rest_s = max(SAMPLE_PERIOD_S - took_s, took_s * PAUSE_FACTOR)
        watched_ms = self._watched_ms
        if watched_ms is not None and self._clock.monotonic_ms() - watched_ms < WATCHED_FOR_MS:
            return rest_s
        return max(rest_s, self._brokers * UNWATCHED_S)

    async def take(self, admin: AdminClient) -> None:
        """One round. Raises MQError, Trouble when no broker answers."""
        brokers, left_out = await broker_rows(admin, MAX_BROKERS)
        self._brokers = len(brokers) + left_out
        totals = totals_of(brokers)
        if brokers and not totals["answering"]:
            raise Trouble(502, "No broker answers", brokers[0]["error"])
        note_brokers(self.history, brokers, totals, self._clock.now_ms())
        masters = sum(each["id"] == MASTER_ID for each in brokers)
        await self._take_lags(admin, max(1, REQUESTS_FOR_GROUPS // max(1, masters)))

    async def _take_lags(self, admin: AdminClient, most: int) -> None:
        """The next groups in turn, and the sum of all that are known."""
        mono_ms = self._clock.monotonic_ms()
        if mono_ms >= self._names_at_ms:
            names = await group_names(admin)
            known = {name: self._known.get(name) or _Known() for name in names[:MAX_GROUPS]}
            for each in known.values():
                each.has_letters = None
            self._known = known
            self._names_at_ms = mono_ms + int(1000 * max(NAMES_S, NAMES_FACTOR_S * len(names)))
        groups = [*self._known]
        count = min(most, len(groups))
        chosen = [groups[(self._next_group + number) % len(groups)] for number in range(count)]
        self._next_group += count

        async def ask(group: str) -> None:
            known = self._known[group]
            with contextlib.suppress(MQError):  # it has committed nothing, or its broker is unreachable
                known.lag = await admin.group_lag(group)
                self.history.note(group_series(group), self._clock.now_ms(), known.lag)
            with contextlib.suppress(MQError):  # these keys may not, or its broker is unreachable
                if known.has_letters is None:
                    known.has_letters = await is_there(admin, dlq_topic(group))
                stats = await admin.topic_stats(dlq_topic(group)) if known.has_letters else {}
                known.letters = sum(each.max_offset - each.min_offset for each in stats.values())

        await each_of(chosen, ask)
        lags = [each.lag for each in self._known.values() if each.lag is not None]
        if lags and self._next_group >= len(groups):
            letters = sum(each.letters for each in self._known.values())
            self.history.note(ALL_LAGS, self._clock.now_ms(), sum(lags))
            self.history.note(ALL_LETTERS, self._clock.now_ms(), letters)


def note_brokers(history: History, brokers: Sequence[Row], totals: Row, now_ms: int) -> None:
    """``brokers`` and ``totals``: as ``broker_rows`` and ``totals_of`` return them."""
    history.note(CLUSTER, now_ms, totals["in_tps"], totals["out_tps"], totals["disk"])
    for each in [row for row in brokers if row["id"] == MASTER_ID and not row["error"]][:MAX_BROKERS]:
        name = broker_series(each["broker"])
        history.note(name, now_ms, each["in_tps"], each["out_tps"], each["disk_ratio"])
