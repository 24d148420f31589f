"""Which tests go to one worker together, and in which order the workers get them: the long ones first.

Spark and interop are a group each: their sessions, JVMs and clusters are started once. Elsewhere a file is a group, or
where its tests share nothing each test. ``SECONDS`` need only be roughly right; who adds a test of more than ten
seconds adds or raises an entry.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["Scheduling", "group_of", "seconds_of"]

TOGETHER = ("tests/spark/", "tests/interop/")
EACH_ALONE = ("tests/crash/", "tests/property/")
SECONDS = {
    "tests/spark/": 360,
    "tests/interop/": 240,
    "tests/security/test_damaged_stores.py": 60,
    "tests/integration/test_client_tools.py": 40,
    "tests/crash/test_sigkill.py": 30,
    "tests/integration/test_cli.py": 30,
    "tests/integration/test_store_cli.py": 30,
    "tests/security/test_fuzz.py": 25,
    "tests/integration/test_client_push.py": 25,
    "tests/integration/test_client_chaos.py": 20,
    "tests/integration/test_client_consume.py": 20,
    "tests/integration/test_testing.py": 20,
    "tests/security/test_unread.py": 20,
    "tests/crash/test_sigkill_transactions.py": 15,
    "tests/security/test_interrupted_starts.py": 15,
    "tests/security/test_scrub.py": 15,
    "tests/unit/test_broker_timers.py": 10,
    "tests/crash/": 5,
    "tests/property/": 2,
}
"""Of groups, or of all that begins so, on an idle machine. The rest is short."""


def group_of(nodeid: str) -> str:
    for folder in TOGETHER:
        if nodeid.startswith(folder):
            return folder
    return nodeid if nodeid.startswith(EACH_ALONE) else nodeid.partition("::")[0]


def seconds_of(group: str) -> int:
    return max((seconds for begin, seconds in SECONDS.items() if group.startswith(begin)), default=0)


class Scheduling(LoadScopeScheduling):
    """A worker gets one group after the other, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
