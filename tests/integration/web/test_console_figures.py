"""Every figure on every page of the console, compared with what was sent and with what stores and clients say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock
from urllib.parse import quote

import pytest

from mqspark import AdminClient, Message, MessageExt, Producer, TransactionState
from mqspark.errors import BrokerError
from mqspark.message import dlq_topic, is_system_topic
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.testing import Broker, Clients, FakeClock
from mqspark_server.console.pages import SECTIONS
from mqspark_server.console.rendering import NONE
from mqspark_server.scheduler.servedtables import TableRow
from mqspark_server.shown.timezones import UTC_ZONE
from tests.support.observed import HOSTILE, QUERY, job_server, live_tables, progress
from tests.support.shownfigures import figures_of
from tests.support.visits import page, set_aside
from tests.support.waiting import eventually

HOUR_MS = 3_600_000
PAUSE_MS = 2_000
DISK = SimpleNamespace(total=1 << 40, used=3 << 38, free=1 << 38)
CONSUMED = 8
"""Messages that were handed out: four to each group that fails."""


@dataclass(frozen=True)
class Traffic:
    """A broker on a clock that stands still, and what it was sent."""

    began_ms: int
    broker: Broker
    admin: AdminClient
    clock: FakeClock
    part: str
    """The file of what was set aside."""
    member: str
    """The client id of the consumer of ``readers``."""
    traced: str
    """The id of a message that was traced."""

    @property
    def name(self) -> str:
        return self.broker.apps[0].config.broker_name

    @property
    def address(self) -> str:
        return self.broker.apps[0].address


def stored(admin: AdminClient, topic: str) -> int:
    if topic not in admin.topic_list():
        return 0
    return sum(each.max_offset - each.min_offset for each in admin.topic_stats(topic).values())


def send_to(producer: Producer, admin: AdminClient, topic: str, counts: tuple[int, ...]) -> None:
    """That many messages to each queue."""
    queues = sorted(admin.topic_stats(topic), key=lambda queue: queue.queue_id)
    for queue, count in zip(queues, counts, strict=True):
        for number in range(count):
            producer.send(Message.of(topic, f"{queue.queue_id}.{number}"), queue=queue)


@pytest.fixture(scope="module")
def traffic() -> Iterator[Traffic]:
    clock = FakeClock()
    began_ms = clock.now_ms()
    with ExitStack() as stack:
        # As the clock, the disk stands still: other processes of this machine write to the real one.
        stack.enter_context(mock.patch("shutil.disk_usage", return_value=DISK))
        shown: list[TableRow] = []
        jobs = stack.enter_context(job_server(began_ms, shown))
        settings = {"httpJobServer": jobs}
        broker = stack.enter_context(Broker(http=True, clock=clock, settings=settings))
        shown += live_tables(began_ms, broker.namesrv)
        clients = stack.enter_context(Clients(broker.namesrv, clock=clock.running))
        admin = clients.admin()
        for topic, queues in (("Orders", 2), ("Later", 1), ("Deadly", 1), ("Flaky", 1), ("Bought", 1)):
            clients.topic(topic, queues=queues)
        producer = clients.producer("shop")
        send_to(producer, admin, "Orders", (7, 3))
        # Four are delivered, three wait; a level that nobody waits for any more is the other case.
        for number in range(4):
            producer.send(Message.of("Later", f"soon {number}", delay_level=3))
        clock.advance(20_000)
        for number in range(3):
            producer.send(Message.of("Later", f"later {number}", delay_level=3 if number else 18))
        for _ in range(2):
            producer.send(Message.of("Later", "at a time", delay_ms=HOUR_MS))
        transactions = clients.transaction_producer(check=lambda _: TransactionState.UNKNOWN)
        for state in (TransactionState.COMMIT, TransactionState.UNKNOWN):
            transactions.send_in_transaction(
                Message.of("Bought", state.name), execute=lambda _, state=state: state
            )

        def fail(message: MessageExt) -> None:
            raise ValueError("this test has bad days")

        for group, topic, retries in (("mourners", "Deadly", 0), ("retriers", "Flaky", 16)):
            admin.create_group(group, config=SubscriptionGroupConfig(retry_max_times=retries))
            send_to(producer, admin, topic, (4,))
            consumer = clients.push_consumer(topic, fail, group=group)
            waits = dlq_topic(group) if retries == 0 else "SCHEDULE_TOPIC_XXXX"
            before = 0 if retries == 0 else 7
            eventually(lambda waits=waits, before=before: stored(admin, waits) == before + 4)
            consumer.stop()
        admin.create_group("readers")
        admin.reset_offsets("readers", "Orders", -1)
        reader = clients.push_consumer("Orders", lambda message: None, group="readers")
        eventually(lambda: len(admin.group_members("readers").connection_set) == 1)
        admin.create_group("sleepers")
        admin.reset_offsets("sleepers", "Orders", 0)
        queue = next(each for each in admin.topic_stats("Orders") if each.queue_id == 0)
        admin.reset_offset("sleepers", queue, 2)
        observer = clients.producer("observer")
        for number in range(5):
            observer.send(Message.of("mqspark_spark", progress(number)))
        # The only one with a record that is stored some time later, which is waited for.
        traced = clients.producer("traced", trace=True).send(Message.of("Bought", "plainly"))
        eventually(lambda: stored(admin, "RMQ_SYS_TRACE_TOPIC") == 1)
        for fields in ('[{"name":"id","type":"long"}]', "[]"):
            text = json.dumps({"schema": f'{{"type":"record","name":"Order","fields":{fields}}}'})
            assert admin.ask_schemas("register", subject="Orders-value", body=text.encode()).status == 200
        clock.advance(PAUSE_MS)
        part = set_aside(broker)
        yield Traffic(began_ms, broker, admin, clock, part, reader.client_id, traced.message_id)


# --- the truth, page by page ---

Truth = dict[str, object]


def bytes_text(count: int) -> str:
    return f"{count / 1024:,.1f} KiB" if count >= 1024 else f"{count} B"


def figures(tiles: Truth | None = None, pager: str = "", messages: int = 0, **tables: list[object]) -> Truth:
    """``tables``: the columns of numbers, and rows of a name and these numbers."""
    found = {"tiles": tiles, "tables": tables, "pager": pager, "messages": messages}
    return {name: each for name, each in found.items() if each}


def overview(traffic: Traffic) -> Truth:
    runtime = traffic.admin.broker_runtime_info(traffic.address)
    rates = [f"{float(runtime[key].split()[0]):.1f}" for key in ("putTps", "getTransferredTps")]
    counts = {
        topic: sum(each.max_offset for each in traffic.admin.topic_stats(topic).values())
        for topic in traffic.admin.topic_list()
    }
    own = sum(count for topic, count in counts.items() if not is_system_topic(topic))
    put = int(runtime["msgPutTotalTodayNow"]) - int(runtime["msgPutTotalTodayMorning"])
    assert own <= put <= sum(counts.values())  # system topics are left out from the next sample on
    tiles = {
        "Messages in, per second": rates[0],
        "Messages out, per second": rates[1],
        "Messages today": f"{put}",
        "Replicas in sync": "none",
        "Brokers that answer": "1 of 1",
        "Fullest disk": f"{DISK.used / DISK.total:.0%}",
    }
    columns = ("In/s", "Out/s", "In today", "Out today")
    row = ("devDefaultCluster", *rates, f"{put}", f"{CONSUMED}")
    return figures(tiles, Brokers=[columns, row])


def lags(traffic: Traffic) -> Truth:
    tiles = {
        "Dead letters": "4",
        "In the last hour": "4",
        "Oldest": "2 s ago",
        "Groups that have some": "1",
    }
    letters = [("Dead letters", "In the last hour"), ("mourners", "4", "4")]
    behind = [("Lag",), ("sleepers", "8")]
    return figures(tiles, **{"Groups that are behind": behind, "Dead letters": letters})


def brokers(traffic: Traffic) -> Truth:
    return figures(Brokers=[("Log", "99 % of sends, ms"), ("dev", log_size(traffic), "0.0")])


def log_end(traffic: Traffic) -> int:
    store = traffic.broker.apps[0].store
    assert store is not None
    return store.log.position


def log_size(traffic: Traffic) -> str:
    return bytes_text(log_end(traffic))


def broker(traffic: Traffic) -> Truth:
    end = log_end(traffic)
    times = ("99 % within, ms", "99.9 % within, ms", "Slowest, ms")
    return figures(
        **{
            "Stores": [
                ("Log", "Positions", "Not dispatched"),
                ("master", log_size(traffic), f"0{NONE}{end:,}", "0 B"),
            ],
            "Replicas by broker id": [("Log up to", "Behind the master"), ("0", f"{end:,}", "0 B")],
            "Time until a send is acknowledged": [times, ("master", "0.0", "0.0", "0")],
            "Set aside": [("Position", "Size"), (traffic.part, "0", log_size(traffic))],
        }
    )


def producers(traffic: Traffic) -> Truth:
    found = traffic.admin.producers(traffic.address)
    assert {"shop", "observer"} <= set(found)
    count = sum(map(len, found.values()))
    return figures(pager=f"1{NONE}{count} of {count}")


def set_aside_part(traffic: Traffic) -> Truth:
    shown = min(100, sum(stored(traffic.admin, topic) for topic in traffic.admin.topic_list()))
    return figures(messages=shown)


def topics(traffic: Traffic) -> Truth:
    sizes = {"Bought": 2, "Deadly": 4, "Flaky": 4, "Later": 4, "Orders": 10, "mqspark_spark": 5}
    assert sizes == {topic: stored(traffic.admin, topic) for topic in sizes}
    rows = [
        (topic, str(len(traffic.admin.topic_stats(topic))), f"{size}", put_rate(traffic, topic))
        for topic, size in sizes.items()
    ]
    return figures(pager=f"1{NONE}6 of 6", Topics=[("Queues", "Messages", "In/s"), *rows])


def put_rate(traffic: Traffic, topic: str) -> str:
    try:
        minute = traffic.admin.broker_stats(traffic.address, "TOPIC_PUT_NUMS", topic).stats_minute
    except BrokerError:
        minute = None
    return f"{minute.tps if minute else 0.0:.1f}"


def topic(traffic: Traffic) -> Truth:
    tiles = {
        "Messages": "10",
        "Queues": "2",
        "Consumer groups": "2",
        "Oldest": "22 s ago",
        "Newest": "22 s ago",
    }
    queues = [
        ("Queue", "First", "Next", "Messages"),
        ("dev", "0", "0", "7", "7"),
        ("dev", "1", "0", "3", "3"),
    ]
    groups = [("Lag",), ("readers", "0"), ("sleepers", "8")]
    return figures(tiles, **{"Queues": queues, "Consumer groups": groups})


def topic_settings(traffic: Traffic) -> Truth:
    return figures(Configuration=[("Read queues", "Write queues"), ("dev", "2", "2")])


def groups(traffic: Traffic) -> Truth:
    rows = [
        ("mourners", "0", "0", "4", "4", "0"),
        ("readers", "1", "0", "0", "0", "16"),
        ("retriers", "0", "0", "0", "0", "16"),
        ("sleepers", "0", "8", "0", "0", "16"),
    ]
    for name, members, lag, dead, _, retries in rows:
        assert str(stored(traffic.admin, dlq_topic(name))) == dead
        assert str(traffic.admin.group_lag(name)) == lag
        assert str(traffic.admin.groups()[name].retry_max_times) == retries
        assert (name == "readers") == (members == "1")
    columns = ("Members", "Lag", "Dead letters", "In the last hour", "Retries")
    return figures(pager=f"1{NONE}4 of 4", **{"Consumer groups": [columns, *rows]})


def group(traffic: Traffic) -> Truth:
    tiles = {
        "Lag, messages": "0",
        "Oldest not consumed": NONE,
        "Dead letters": "0",
        "Dead in the last hour": "0",
        "Members": "1",
        "Mode": "push",
        "Model": "clustering",
    }
    offsets = traffic.admin.group_offsets("readers")
    queues = [
        (queue.topic, *(str(each) for each in (queue.queue_id, found.committed, found.max_offset, found.lag)))
        for queue, found in offsets.items()
    ]
    assert queues[-2:] == [("Orders", "0", "7", "7", "0"), ("Orders", "1", "3", "3", "0")]
    columns = ("Queue", "Committed", "End", "Lag")
    return figures(tiles, Queues=[columns, *queues])


def member(traffic: Traffic) -> Truth:
    topics = ("%RETRY%readers", "Orders")
    queues = [("%RETRY%readers", "0", "0", "0"), ("Orders", "0", "7", "0"), ("Orders", "1", "3", "0")]
    rates = ("Pulled/s", "Consumed/s", "Failed/s", "Failed in an hour", "Listener, ms")
    return figures(
        Rates=[rates, *((topic, "0.0", "0.0", "0.0", "0", "0.0") for topic in topics)],
        Queues=[("Queue", "Committed", "Waiting for the listener"), *queues],
    )


def dead_groups(traffic: Traffic) -> Truth:
    assert stored(traffic.admin, dlq_topic("mourners")) == 4
    columns = ("Dead letters", "In the last hour")
    return figures(pager=f"1{NONE}1 of 1", **{"Dead letters": [columns, ("mourners", "4", "4")]})


def dead_letters(traffic: Traffic) -> Truth:
    tiles = {"Dead letters": "4", "In the last hour": "4", "Oldest": "2 s ago", "Last one": "2 s ago"}
    return figures(tiles, pager=f"1{NONE}4, the newest first", messages=4)


def delayed(traffic: Traffic) -> Truth:
    """Four of ten messages of level 3 were delivered."""
    tiles = {"Waiting for a level": "7", "Waiting for a time": "2", "Transactions under way, at most": "2"}
    levels = [("Level", "Waiting", "Ever"), ("dev", "3", "6", "10"), ("dev", "18", "1", "1")]
    columns = ("Queue", "Under way, at most", "Ever started", "Decisions")
    return figures(
        tiles,
        **{
            "By level": levels,
            "By time": [("Waiting",), ("dev", "2")],
            "Transactions": [columns, ("dev", "0", "2", "2", "1")],
        },
    )


def trace(traffic: Traffic) -> Truth:
    return figures()


def queries(traffic: Traffic) -> Truth:
    tiles = {"Running": "1", "Silent": "0", "Failed": "0"}
    columns = ("Batch", "Rows in/s", "Processed/s", "Batch, ms", "Lag", "State rows")
    row = (HOSTILE, "4", "300.5", "404.0", "800", "0", "0")
    return figures(tiles, **{"Streaming queries": [columns, row]})


def query(traffic: Traffic) -> Truth:
    tiles = {
        "State": "running",
        "Batch": "4",
        "Lag, messages": "0",
        "Rows in, per second": "300.5",
        "Processed, per second": "404.0",
        "Batch, ms": "800",
    }
    columns = ("Batch", "Rows", "Rows in/s", "Took, ms", "Lag", "State rows", "State")
    then = UTC_ZONE.text(traffic.clock.now_ms() - PAUSE_MS)
    offsets = [("Read up to", "End"), ("Orders dev:0", "40", "40"), ("Orders dev:1", "36", "36")]
    batches = [(then, str(number), "900", "300.5", "800", "0", "0", "0 B") for number in range(4, -1, -1)]
    return figures(tiles, **{"Offsets of pymq: Orders": offsets, "Batches": [columns, *batches]})


def tables(traffic: Traffic) -> Truth:
    tiles = {"Tables": "2", "Running": "1", "Failed": "1", "Rejected": "3"}
    columns = ("Lag", "Newest batch", "Delay", "Rejected")
    rows = [(f"orders/lake/{HOSTILE}", "8", "40", "1.5 s", "3"), ("bills/lake/bills", NONE, "0", NONE, "0")]
    return figures(tiles, pager="1\u20132 of 2", Tables=[columns, *rows])


TOOK = ["42.3 s", "1 min", "2 min", "3 min", "4 min", "4 min", "5 min"]
"""Times of the runs of the job archive: 42.3 s more each."""


def jobs(traffic: Traffic) -> Truth:
    tiles = {"Jobs": "4", "Running now": "2", "Failing": "1", "Next run": "in 20 min"}
    rows = [
        ("archivearchive", TOOK[0], "0"),
        ("compactcompact", TOOK[1], "3"),
        ("redeliverredeliver", NONE, "0"),
        ("rebuildrebuild-index", NONE, "0"),
    ]
    runs = [("archive", TOOK[0], "1", "0"), ("compact", TOOK[1], "1", "1")]
    runs += [("archive", took, "1", "0") for took in TOOK[1:]]
    columns = ("Took", "Attempt", "Exit code")
    return figures(tiles, **{"Jobs": [("Took", "Failures in a row"), *rows], "Newest runs": [columns, *runs]})


def job(traffic: Traffic) -> Truth:
    tiles = {
        "State": "running",
        "Next run": "in 20 min",
        "Last good run": "22 s ago",
        "Failures in a row": "0",
    }
    runs = [
        (UTC_ZONE.text(traffic.began_ms - number * HOUR_MS), took, "1", "0")
        for number, took in enumerate(TOOK, 1)
    ]
    values = [("Value",), ("rows", "120000"), ("bytes", "48000000"), ("note", HOSTILE)]
    columns = ("Took", "Attempt", "Exit code")
    return figures(tiles, **{"Newest runs": [columns, *runs], "Figures of the last run": values})


def subjects(traffic: Traffic) -> Truth:
    return figures(pager="1\u20131 of 1", Subjects=[("Version", "Id"), ("Orders-value", "2", "2")])


def subject(traffic: Traffic) -> Truth:
    return figures({"Version": "2", "Id": "2", "Versions": "2", "Type": "AVRO", "Compatibility": "BACKWARD"})


def nothing(traffic: Traffic) -> Truth:
    return figures()


PAGES: dict[str, Callable[[Traffic], Truth]] = {
    "": overview,
    "/": overview,
    "/lags": lags,
    "/brokers": brokers,
    "/brokers/{broker}": broker,
    "/brokers/{broker}/config": nothing,
    "/brokers/{broker}/set-aside/{file}": set_aside_part,
    "/producers": producers,
    "/users": nothing,
    "/topics": topics,
    "/topics/{topic}": topic,
    "/topics/{topic}/messages": lambda traffic: figures(pager="10 messages, the newest first.", messages=10),
    "/topics/{topic}/filter": nothing,
    "/topics/{topic}/live": nothing,
    "/topics/{topic}/send": nothing,
    "/topics/{topic}/config": topic_settings,
    "/groups": groups,
    "/groups/{group}": group,
    "/groups/{group}/members/{client}": member,
    "/groups/{group}/spark": nothing,
    "/groups/{group}/reset": nothing,
    "/groups/{group}/config": nothing,
    "/dead-letters": dead_groups,
    "/dead-letters/{group}": dead_letters,
    "/delayed": delayed,
    "/trace": trace,
    "/spark": queries,
    "/spark/{query}": query,
    "/schemas": subjects,
    "/schemas/{subject}": subject,
    "/tables": tables,
    "/jobs": jobs,
    "/jobs/{name}": job,
}
"""The truth about each page."""


def test_every_page_has_its_truth_here() -> None:
    assert {path for section in SECTIONS for path in section.views} == PAGES.keys()


@pytest.mark.parametrize("path", PAGES)
def test_every_figure_of_a_page_is_true(traffic: Traffic, path: str) -> None:
    names = {
        "broker": traffic.name,
        "file": traffic.part,
        "topic": "Orders",
        "group": "mourners" if path.startswith("/dead-letters") else "readers",
        "client": traffic.member,
        "query": QUERY,
        "name": "archive",
        "subject": "Orders-value",
    }
    shown = path.format(**{name: quote(each, safe="") for name, each in names.items()})
    assert figures_of(page(traffic.broker, shown)).everything() == PAGES[path](traffic)
