"""One script on our broker and on RocketMQ's: every answer equal, or in the table of differences with its reason.

Each chapter (``script_*.py``) is played with JSON and with binary headers. Both brokers are fresh and have the same
names and settings.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.interop.differences import KEPT, excused
from tests.interop.differential import Entry, Finding, Play, differences
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.script_admin import CHAPTERS as ADMIN
from tests.interop.script_consuming import CHAPTERS as CONSUMING
from tests.interop.script_frames import CHAPTERS as FRAMES
from tests.interop.script_groups import CHAPTERS as GROUPS
from tests.interop.script_later import CHAPTERS as LATER
from tests.interop.script_messages import CHAPTERS as MESSAGES
from tests.interop.script_newer import CHAPTERS as NEWER
from tests.interop.script_pop import CHAPTERS as POP
from tests.interop.script_static import CHAPTERS as STATIC
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv

pytestmark = pytest.mark.slow(
    "a real RocketMQ plays hundreds of requests; recorded ones in tests/unit/broker/test_golden_replay.py are the twins"
)

CHAPTERS = {**MESSAGES, **CONSUMING, **GROUPS, **LATER, **POP, **NEWER, **ADMIN, **STATIC, **FRAMES}
AT_ONCE = 5
"""Chapters that are played side by side: they mostly wait."""

SETTINGS = {
    "brokerName": "diff",
    "brokerClusterName": "DiffCluster",
    "enablePropertyFilter": True,
    "recallMessageEnable": True,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionOpBatchInterval": 200,
    "maxMessageSize": 65536,
    "autoCreateTopicEnable": True,
}
THEIRS = {**SETTINGS, "brokerFastFailureEnable": False}
"""A loaded machine must not make it answer that it is busy."""


@dataclass(frozen=True, slots=True)
class Pair:
    ours: Cluster
    theirs: Cluster


@pytest.fixture(scope="module")
def pair(newest_jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with (
        rocketmq_namesrv(newest_jars, folder / "their-namesrv") as their_namesrv,
        rocketmq_broker(
            newest_jars, folder / "theirs", their_namesrv, settings=THEIRS, registered=False
        ) as theirs,
        mqspark_namesrv(folder / "our-namesrv") as our_namesrv,
        mqspark_broker(folder / "ours", our_namesrv, SETTINGS) as ours,
    ):
        yield Pair(ours, theirs)


class Season:
    """All chapters with one header serialisation, begun together."""

    def __init__(
        self, pair: Pair, serialize: str, stage: ThreadPoolExecutor, both: ThreadPoolExecutor
    ) -> None:
        self.serialize = serialize
        self._pair = pair
        self._both = both
        self._chapters: dict[str, Future[tuple[list[Entry], list[Entry]]]] = {
            chapter: stage.submit(self._perform, chapter, number) for number, chapter in enumerate(CHAPTERS)
        }

    def transcripts(self, chapter: str) -> tuple[list[Entry], list[Entry]]:
        return self._chapters[chapter].result(120)

    def findings(self, chapter: str) -> list[Finding]:
        return differences(*self.transcripts(chapter))

    def _perform(self, chapter: str, number: int) -> tuple[list[Entry], list[Entry]]:
        suffix = f"{self.serialize[0]}{number:02}"
        ours = self._both.submit(self._play, self._pair.ours, chapter, suffix)
        theirs = self._play(self._pair.theirs, chapter, suffix)
        return ours.result(), theirs

    def _play(self, cluster: Cluster, chapter: str, suffix: str) -> list[Entry]:
        play = Play(cluster, self.serialize, suffix)
        try:
            CHAPTERS[chapter](play)
        finally:
            play.close()
        return play.transcript


@pytest.fixture(
    scope="module",
    params=["JSON", pytest.param("ROCKETMQ", marks=pytest.mark.slow("json is the fast twin"))],
    ids=["json", "binary"],
)
def season(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Season]:
    with ThreadPoolExecutor(AT_ONCE) as stage, ThreadPoolExecutor(AT_ONCE) as both:
        yield Season(pair, request.param, stage, both)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_both_answer_alike(season: Season, chapter: str) -> None:
    left = [finding for finding in season.findings(chapter) if excused(chapter, finding) is None]
    assert not left, f"{len(left)} differences\n" + "\n".join(map(str, left[:20]))


def test_the_script_is_long_and_every_difference_is_there(season: Season) -> None:
    """An entry of the table that nothing needs any more would hide the next fault."""
    assert sum(len(season.transcripts(chapter)[0]) for chapter in CHAPTERS) > 300
    needed = {
        KEPT.index(kept)
        for chapter in CHAPTERS
        for finding in season.findings(chapter)
        if (kept := excused(chapter, finding)) is not None
    }
    unused = [kept for number, kept in enumerate(KEPT) if number not in needed]
    assert [kept.reason for kept in unused if not kept.sometimes] == []
