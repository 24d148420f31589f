"""Which tests run in the same worker, and in which order workers get them: the long ones first.

Tests that share sessions, JVMs or clusters form a group, so that each of these is started once: four of Spark, and four
of interop. Elsewhere a file is a group, or each test if the tests share nothing. ``SECONDS`` need only be approximate;
when you add a test of more than ten seconds, add or raise an entry.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SPARK, WRITES, DRIVERS = "spark", "spark: writes and jobs", "spark: drivers of their own"
PARTS = "spark: parts without a session"
BROKERS, TOPICS = "interop: brokers of their own", "interop: topics, users and features"
CLIENTS, SOON = "interop: clients", "interop: clients of a broker that is asked again soon"
RULES = "rules"
GROUPS = {
    # They kill or choose their driver, and do not need the session.
    "tests/spark/test_versions.py": DRIVERS,
    "tests/spark/test_work_kills.py": DRIVERS,
    **{
        f"tests/spark/test_{name}.py": WRITES
        for name in (
            "archive", "compact", "evolution", "exactly_once", "job_schedule_runs", "jobs", "object_store_jobs",
            "redeliver", "session_settings", "work_queue", "write",
        )
    },
    **{
        f"tests/spark/test_{name}.py": PARTS
        for name in (
            "decode", "encode", "fetch", "lent", "notebooks", "options", "orphans", "pipeline", "plan", "sender",
            "signing", "stream_reader", "task_spans", "work_calls",
        )
    },
    "tests/spark/": SPARK,
    "tests/interop/test_work_queue.py": SPARK,
    **{
        f"tests/interop/test_{name}.py": TOPICS
        for name in (
            "auth", "cold_reads", "console_pages_of", "delay_retry", "features", "lite", "metrics", "priority",
            "proxy", "signed_clients", "tiered_reads_java",
        )
    },
    **{
        f"tests/interop/test_{name}.py": BROKERS
        for name in (
            "compaction_directory", "credentials", "delay_directory", "differential", "mixed_cluster", "old_clients",
            "overload", "python_client", "replication", "restart", "slave_of_rocketmq", "static_topics",
            "store_directory", "tls",
        )
    },
    # Slow throughout, with brokers of their own only: one worker would have them all to do beside the clients.
    **{
        (file := f"tests/interop/test_{name}.py"): file
        for name in (
            "acting_master", "grpc_before_rocketmq", "mixed_broker_set", "production_settings", "rocksdb_directory",
            "rolling_replacement", "zones",
        )
    },
    **{
        f"tests/interop/{name}": SOON
        for name in (
            "grpc/", "test_cpp_client.py", "test_go_client.py", "test_js_client.py", "test_transactions.py",
        )
    },
    "tests/interop/": CLIENTS,
    "tests/unit/project/test_packaging.py": RULES,
    "tests/unit/project/test_rules": RULES,  # they share the trees of all modules
}  # fmt: skip
"""By the begin of a test's id; the first that fits."""
EACH_ALONE = (
    "tests/crash/",
    "tests/property/",
    "tests/simulation/",
    "tests/integration/replicas/test_replica_damage.py::test_each",
    "tests/security/test_fuzz.py::test_its_part",
    "tests/security/test_fuzz.py::test_guided",
)
SECONDS = {
    SPARK: 130,
    WRITES: 125,
    CLIENTS: 110,
    BROKERS: 100,
    TOPICS: 110,
    SOON: 80,
    DRIVERS: 40,
    PARTS: 30,
    RULES: 15,
    "tests/interop/test_rocksdb_directory.py": 250,
    "tests/interop/test_rolling_replacement.py": 160,
    "tests/interop/test_mixed_broker_set.py": 100,
    "tests/interop/test_grpc_before_rocketmq.py": 60,
    "tests/interop/test_acting_master.py": 60,
    "tests/interop/test_production_settings.py": 60,
    "tests/interop/test_zones.py": 30,
    "tests/security/test_fuzz.py": 40,
    "tests/security/store/test_damaged_stores.py": 75,
    "tests/integration/client/test_client_tools.py": 30,
    "tests/security/sockets/test_unread.py": 40,
    "tests/security/store/test_scrub.py": 40,
    "tests/crash/test_sigkill.py": 15,
    "tests/integration/replicas/test_controller_mode.py": 40,
    "tests/integration/commands/test_cli.py": 25,
    "tests/integration/servers/test_auth.py": 20,
    "tests/integration/servers/test_broker_host.py": 20,
    "tests/integration/consumers/test_client_push.py": 25,
    "tests/integration/consumers/test_client_pop.py": 20,
    "tests/integration/client/test_client_static_topics.py": 15,
    "tests/integration/consumers/test_client_chaos.py": 20,
    "tests/integration/consumers/test_client_consume.py": 20,
    "tests/integration/servers/test_testing.py": 20,
    "tests/integration/commands/test_commands_operating.py": 15,
    "tests/integration/commands/test_commands.py": 10,
    "tests/simulation/": 8,
    "tests/integration/replicas/test_replica_rounds.py": 120,
    "tests/integration/replicas/test_replica_damage.py": 40,
    "tests/unit/store/tools/test_tools.py": 20,
    "tests/security/store/test_interrupted_starts.py": 15,
    "tests/security/sockets/test_descriptors.py": 15,
    "tests/security/sockets/test_partial_frames.py": 15,
    "tests/unit/broker/timer/test_timers.py": 10,
    "tests/unit/jobs/test_rebuild.py": 25,
    "tests/security/store/test_reads_go_on.py": 20,
    "tests/security/requests/test_json.py": 20,
    "tests/security/sockets/test_loop.py": 20,
    "tests/security/requests/test_costs.py": 20,
    "tests/security/sockets/test_http.py": 20,
    "tests/integration/replicas/test_controllers_in_etcd.py": 20,
    "tests/integration/replicas/test_replica_set.py": 60,
    "tests/security/spark/test_spark_inflate.py": 15,
    "tests/integration/replicas/test_slave.py": 15,
    "tests/security/requests/test_names.py": 15,
    "tests/security/tables/test_table_leaks.py": 15,
    "tests/security/tables/test_tables.py": 15,
    "tests/security/sockets/test_tls.py": 10,
    "tests/security/store/test_shortages.py": 10,
    "tests/crash/": 5,
    "tests/property/": 2,
}
"""Seconds of groups, or of all that begins so, on an idle machine. The rest is short."""


def group_of(nodeid: str) -> str:
    for begin, group in GROUPS.items():
        if nodeid.startswith(begin):
            return group
    return nodeid if nodeid.startswith(EACH_ALONE) else nodeid.partition("::")[0]


def seconds_of(group: str) -> int:
    return max((seconds for begin, seconds in SECONDS.items() if group.startswith(begin)), default=0)


def is_late(nodeid: str) -> bool:
    """Whether it comes last in its group: a real broker is busy all its life, and starts late; the test of interop that
    runs with Spark finds the session that the others have started."""
    return nodeid.startswith("tests/interop/") and (
        group_of(nodeid) == SPARK or "rocketmq" in nodeid.partition("[")[2]
    )


class Scheduling(LoadScopeScheduling):
    """A worker gets one group after the other, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Its groups go to the others, but for those that it has completed: who gets nothing but such a group tells
        nothing any more, and all would wait for each other."""
        work = self.assigned_work[node]
        for group in [group for group, tests in work.items() if all(tests.values())]:
            del work[group]
        return super().remove_node(node)
