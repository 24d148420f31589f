"""A table that nobody thought of: whoever adds a container to a broker, a name server, a store or a client says here,
or by a ledger that holds it, what keeps peers from making it grow.

Live objects are walked after some work: every dict, list, set or deque that one of ours has as an attribute is either
held by a registered ledger or memo, or is in one of the lists below with the reason why it stays small. So are globals
and ``lru_cache``.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import pytest

import mqspark.arrow.reading.openplaces
import mqspark.arrow.writing.framewrite  # noqa: F401, a reader of topics imports both
import mqspark_server.console.rendering
import mqspark_server.web.logins  # noqa: F401, a broker imports it once users log in
from mqspark.base.bounded import MEMOS, Memo
from mqspark.client.remoting import instance
from mqspark.message import Message
from mqspark.testing import Broker, Clients
from mqspark_server.proxy import messaging_pb2 as pb
from tests.security.tables.object_walk import containers_of, globals_of
from tests.support.grpcclients import bare_caller, message
from tests.support.tables import rows


def named(text: str) -> set[str]:
    """Names of containers, behind the reason why they stay small."""
    names = [name for row in rows(text) for name in row.rpartition(": ")[2].split()]
    assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
    return set(names)


BOTH = named("""
MAX_OUT names, each with MAX_REASONS: Outages._out
given by the program or its settings: NameServers._addresses
""")
"""In brokers and in clients."""

SERVERS = BOTH | named("""
# --- gRPC
MAX_STREAMS of telemetry: GrpcClient.streams
MAX_ASKED of grpcclients: GrpcClient._asked
its ledger, which no core has: Renewals._again Renewals._clients Renewals._due
one a call that has ended, with grpcMaxCalls, until a broker has answered: Shared._tasks
one entry a call, with grpcMaxCalls: Deadlines._slots
one entry a connection, with maxConnections: ConnectionTurns._readers ConnectionTurns._ring ConnectionTurns._to_write
one entry a method of the service: GrpcListener.methods
one entry a call, with grpcMaxCalls, until the end of the turn: DirectLink._messages DirectLink._topics
two entries a client in this process, until the end of the turn: RemotingServer._before_turn
one entry a broker of the cluster, until the end of the turn: GrpcClient.acks
one entry a call, with grpcMaxCalls, until the broker has answered: TurnAcks._calls TurnAcks._given TurnAcks._of_pops
one entry a request: of gRPC, grpcMaxCalls: LocalPeer._pending
one, of a name server of the settings or a broker: BrokerServer._addresses
the name servers of the settings: ClusterRoutes._names
the brokers of the cluster: ClusterRoutes._masters ClusterRoutes._own
requests that wait for an answer: Recent._asked
MAX_KNOWN of clusterroutes, the oldest forgotten: Recent._known
# --- the charts, whose samples begin some time after the start
MAX_SAMPLES_BYTES, the oldest forgotten: History._series
MAX_GROUPS: Sampler._known
the steps of its span: _SampleRing._numbers
one entry a span: _Series.rings
# --- made at the start, or of settings
one entry a request code: *.handlers BrokerApp.more_handlers Acks._others FastFail._limits_ms
made at the start: SavedState._timed BrokerServices._running BrokerServices._told Writer.diversions Saves._tables
    Ledger._maps
what the last recovery found: numbers by name: BrokerApp.recovery
keys of the settings: BrokerSettings.unused NamesrvSettings.unused
settings: NameServer._shell_settings SettingsProcessor._shell_settings Layer.values DevCluster._layers
    DevCluster._ports DevCluster._roles
MAX_LOGINS, each of a bounded user name: Logins._open
MAX_KEYS, of MAX_USER_LENGTH: Failures._free_ms Attempts._known
MAX_CONNECTIONS, each an id of MAX_ID_LENGTH: Bindings._known
one entry a connection: Gate._connections
one entry a user: SubscriptionGroups._made_by Holders.bytes Shares._held TimedShares._held
one entry a user and minute, as far as a delay reaches: TimedShares._ends
one entry a bound, which are fixed: Histogram._counts
one or none: BrokerServices._registries
MAX_CHANGES: SchemaRegistry._changes
the records of one change: SchemaRegistry._owners
one entry an operation: SchemaAnswers._operations
one entry a combination of known codes that occurred: RpcTimes._rows
its keys are three flags: Stats.creations
one entry a type of messages: Topic.kinds
one a broker of this process: DevCluster._reserved DevCluster.brokers
the setting messageDelayLevel: DelayLevels.delays_ms
one entry a delay level: DelayOffsets.table DelayService._stuck
one a delay level: DelayService._levels
one entry a phase: ProcessLifecycle.reached_ms
MAX_PARSING: ParsedSchemas._parsing
MAX_MISSED, each the name of a subject and a number: SchemaCopy._missed
_MAX_KNOWN, each a topic's name and five bytes: SchemaGuard._known
MAX_AWAY: PopRevival._away
one a queue of the revive log, which operators make: PopRevival._queues
classes of milliseconds, fixed: PutTimes._current PutTimes._shown
the setting namesrvAddr: Registrar._servers RouteFinder._addresses
one a name server: Registrar._tasks
two variables of the environment: Registrar._zone
MAX_PEERS: PeerLink._connections
MAX_TALKS of Peers: PeerLink._tasks
MAX_HELD frames of some 300 bytes: ReadsElsewhere._held
one a port: RemotingServer._listeners
three properties: SendProcessor._marks
two properties: SendProcessor._trace
fixed names: Stats._totals Stats._watched
fixed names of kinds: Stats.junk
as many notes as it is made for: Totals._notes
the settings that may be changed: ChangedSettings._values
a memo is bounded by itself: Memo
the keys of a table, which its ledger holds: KeyOrder._blocks
by its ledger: BoundedMap BoundedSet _Requests
# --- emptied with every turn, write or round, or bounded in number with entries of a fixed size
groups of the table of groups, emptied within the turns that follow: MemberNotices.changed
one entry a turn, as long as answers of it wait: Acks._turns
sendThreadPoolQueueCapacity answers, each shorter than its message's properties: Acks.waiting
answers of one turn, each shorter than its message's properties: Acks.unsafe
queues that this turn wrote to: Appender._dirty
the two lengths of a host: Appender._heads
connections with answers, emptied every turn: BrokerCore.outbox NameServer.outbox RemotingServer._outbox
    Session._outbox
MAX_CALLS, without the bodies: Calls._waiting
ten numbers: ColdReads._errors
MAX_UNSYNCED pops: Deferred.waiting
deliveries until the next sync, a slice of messages each tick: three numbers each: DelayOffsets._waiting
damaged records of one read, some kept for the report: Fetcher.damaged
queue entries whose record was not found, the first thousand: EntryHealer._given_up
emptied every turn: AckProcessor.records AckProcessor._known
queues with pops whose check points are not synced: MAX_UNSYNCED at most: PopOffsets._ahead
maxPopPollingSize with those that are parked; answered in the next turns: PopProcessor._expired
    PopWatchProcessor._expired
topics, groups and queues of the parked pops, served in the next turns: PopProcessor._grown
sessions, emptied every turn: PopProcessor.given PullProcessor.given
topics, groups and queues of the parked notifications, served in the next turns: PopWatchProcessor._grown
pullThreadPoolQueueCapacity with those that are parked; served in the next turns: PullProcessor._woken
one entry a slot that is being delivered: TimerService._floors TimerService._new_floors
eight bytes a timer message that a crash left; emptied when they are read: TimerService._known
one entry a save: TimerService._undurable
pages of the wheel's file: TimerWheel._dirty Snapshot.numbers Snapshot.left Snapshot._pages
MAX_ABSENT: TransactionService._absent
copies of one tick, TRANSACTION_SLICE_BYTES and a message: TransactionService._checks
commits that a crash let through in part; filled at the start only: TransactionService._rests
one entry a round of checks: TransactionService._unsaved
eight bytes a decided half message, until the next op message: TransactionService._unwritten
two numbers a stretch of decided half messages: Decisions._extents
a byte a half message, as far as some are open: Decisions._flags
MAX_RUNNING: LongWork.running
connections, which are not read while theirs waits: LongWork._waiting
# --- the store: as many as there are files, or writes in a turn
bounded queues: BatchTable.light QueueTable.light BatchTable.doubted QueueTable.doubted Cleaner._with_dead_files
MAX_FOLLOWERS: TableNotices._followers
topics of the bounded topic table: BatchTable.batch_topics QueueTable.batch_topics
queues of bounded tables, and those deleted, that the next checkpoint records: EndsFile._changed
files of bounded queues that the next checkpoint syncs: BatchTable.dirty_files QueueTable.dirty_files
queues of bounded deletions, until their files are removed: BatchTable.hidden
directories of bounded queues, until the next checkpoint: BatchTable.new_directories QueueTable.new_directories
fixed kinds and outcomes: Damages.counts
_MAX_LOOKS: Scrub._looks
one entry a segment of the log: Scrub._marks
_MAX_MISSED: Fetcher._missed
MAX_RANGES: OpenDamage._ranges
MAX_SUSPECTS: OpenDamage._suspects
MAX_WANTED: Healing._disputed Healing._wanted
MAX_DISPUTES: Healing._doubted_ms Healing._opinions Healing._places Healing._refused Healing._told Healing._tries
MAX_DISPUTES: refused places whose question is open: Healing._undecided
damaged stretches of the log that its master lacks, too: Healing._lost
damaged stretches of the log: Healing._unsure
one entry a directory of the log: StoreDirectory._log_fds
one entry a table of config/: TableNotes._notes TableNotes._tables
one entry a table of config/, each with at most MAX_SAVES saves after a write: TableNotes._unnoted
MAX_KEPT: Damages.found
files on the disk: Cleaner._unlinked_next CommitLog.segments ConsumeQueue.file_starts MessageIndex.index_files
    TimerLog._starts TimerLog._views
directories of the log: CommitLog._new_directories
segments, until the next sync: CommitLog._unsynced
what one turn writes: CommitLog.pending ConsumeQueue.entries
writes that wait for one sync: CommitPipeline._groups
queues that this turn wrote to: Unsettled.dirty
queues whose entries wait for room on the disk: Unsettled.undispatched
arrivals of one turn: CommitPipeline._unreported_arrivals
queues of compacted topics whose files are damaged: CompactRunner._examined
compacted topics: CompactRunner._topics
generations that are on the disk: CompactedQueues._known
directories on the disk: CompactedQueues._their_topics
queues that are on the disk: CompactedQueues._theirs
a fixed number of files: IndexMaps._maps IndexMaps._writable
MAX_ROWS stretches of the log that are being indexed: AheadKeys._rows
MAX_RECORDS records in all rows, with MAX_KEY_BYTES each: KnownRow.*
maxMappedFiles: MappedFiles._tails MappedFiles._writable MapsByUse.idle MapsByUse.used
maxMappedFiles, until the next job frees them: MapBudget.unmapped
index files: MessageIndex._dirty
files that were there at the start: MessageIndex.ignored_files
what one tick writes: TimerLog._pending
files, until the next sync: TimerLog._unsynced
one such job at a time, with what was left for it since the last: CheckpointJob.* CleaningJob.* EndsBlock.* FlushJob.*
    IndexJob.* KernelSync.* Progress.* ReadAheadJob.* TimerFlush.* ZeroAheadJob.* _SaveJob.*
# --- connections: their number and what each keeps is bounded by the server
one frame; all of them together maxBufferedBytes: Connection._partial Connection._pieces
requests of ours, of one turn: Outbound._out
requests of ours: Outbound._pending
maxConnections: MemoryBudget._held OpenSockets.by_address UnreadAnswers._blocked Handshakes._since
    RemotingServer._unfinished RemotingServer._ring OpenSockets._unidentified OpenSockets._all RemotingServer._writers
reads of an iteration of the loop, one a connection: Handshakes._ready
connections of slaves: ReplicationServer._connections Replicas._all
a few keys of the core's: Session.attributes
answers; the server stops reading from those who do not read theirs: Session.out
requests of frames that were counted: RemotingConnection._waiting
# --- routes of a name server: maxBrokers, maxTopicsPerBroker, maxRoutes; names have at most 255 characters
MAX_REPLICAS: BrokerSet.addresses
maxTopicsPerBroker: BrokerSet.topics
MAX_SENDING: Notifier._sending
maxBrokers: RouteTable._brokers RouteTable._clusters RouteTable._without_master RouteTable._live
    RouteTable._keys_by_session
maxRoutes, which counts what is in it: RouteTable._removed_brokers
maxBrokers; empty without notifyMinBrokerIdChanged: RouteTable._notices
maxRoutes: RouteTable._topics
""")

CLIENTS = BOTH | named("""
# --- as many as the program asks for, or has given
given by the program: *._interceptors ClientInstance.namesrv Channel._fields Remoting._fields Targets._more
    QueueWatch._listeners
topics that the program sends to: *._asked_topics Targets.topics
subscriptions of the program: AssignedGroup._filters AssignedGroup.subscriptions GroupConsumer._filters
    GroupConsumer.subscriptions
the program's own: SubscriptionData.code_set SubscriptionData.tags_set
clients of the program: ClientInstance._members
topics of the program: ClientInstance._fetching
topics of the program; each route is judged: ClientInstance._routes
brokers of those routes: ClientInstance._brokers
one frame: Connection._partial Connection._pieces
requests of ours that wait: Channel._pending
requests of ours, until they are written: Channel._out
brokers of routes; idle ones are closed: Remoting._channels
brokers of routes, for a round: RoundAnswers.members RoundAnswers.silent
brokers that the program talks to: Remoting._connecting Remoting._connecting_since
channels that wait for answers to requests of the program: Remoting._retired
brokers of routes; those without a channel leave while sends wait: SilenceWatch._used
heartbeats under way, each of which has a timeout: ClientInstance._beats
brokers that are silent now: SilenceWatch._looked_s
requests of the program that wait for a reply: Requests._waiting
calls of the program: LoopThread._posted
background work of clients; answers to brokers MAX_ANSWERING_BYTES: Tasks._tasks
sends of the program: Window._waiting
two pools: TransactionProducer._threads
the option concurrency: TransactionProducer._checkers
MAX_WAITING_CHECKS, MAX_WAITING_CHECK_BYTES: TransactionProducer._waiting_checks
# --- queues of judged routes
a route's brokers, judged when it comes: TopicRoute.brokers
MAX_ROUTE_QUEUES: TopicRoute.leaders
MAX_MADE queues of a judged route: PublishTopic._by_queue PublishTopic.targets
MAX_MADE: _Made._made
the queues that rest, and the batches that wait here for another delivery: Timer._pending Timers._pending
queues of the assignment: PopConsumer._last_pop_ms PopConsumer._readers PopConsumer._helping PopConsumer._helpers
    PushConsumer._leaving PushConsumer._readers LitePullConsumer._assigned LitePullConsumer._paused
    LitePullConsumer._space Ordered._giving_up Ordered._idle Ordered._of Ordered._queues Ordered._timers
callers of poll: LitePullConsumer._waiters
# --- messages on their way to the program: flow control
flow control: messages and bytes of a queue: Assigned.batches
flow control: LitePullConsumer._ready Concurrent._returning Concurrent._returns OrderedQueue.held OrderedQueue.waiting
    ProcessQueue._sizes ProcessQueue._pending _ThreadDelivery._calls _ThreadDelivery._ended
queues of the assignment: Flow._full
subscriptions of the program: Flow._of_topic
the batch size: OrderedQueue.running
brokers of routes: PopAcks._single
acknowledgements on their way: PopAcks._tasks
acknowledgements of one iteration of the loop: PopAcks._waiting
maxUnacknowledged: PopConsumer._held
threads: _ThreadDelivery._callers _ThreadDelivery._threads
# --- what is remembered of brokers
_MAX_TOPICS: ConsumeStatistics._topics
_SAMPLES: _Topic.samples
_MAX_BROKERS: FaultTable._until_ms Heartbeats._known Heartbeats._supporting Heartbeats._versions
topics that a name server lists in one answer: ClientInstance._names
clients of the program: LoopThread._users
queues that the program reads: QueueCalls._damaged QueueCalls._moves
_MAX_SILENT: Remoting._silent
topics that the program sends to: Sender._lost
made at the start: _DeliveryHeard._around
""")

GLOBALS = {
    "mqspark_server.net.testcertificate.made_certificate": "one a process",
    "mqspark.client.life.ending._open": "clients of the program",
    "mqspark.arrow.reading.openplaces._open": "reads of the program",
    "mqspark.arrow.messagecolumns.arrow_type_of": "one a type of a message's column",
    "mqspark.base.valuetypes._hints": "one entry a class of settings",
    "mqspark.protocol.bodies.body._names": "one entry a class of bodies",
    "mqspark.base.config.camel_case": "MAX_NAMES names of fields of settings",
    "mqspark.base.config._types_of": "MAX_CLASSES classes of settings",
    "mqspark_server.settings.declarations._texts": "one a settings class",
    "mqspark_server.settings.settings.foreign_keys": "one a kind of servers",
    "mqspark_server.console.rendering._environment": "made once",
    "mqspark_server.console.rendering._static": "made once, of the files in static/",
    "mqspark.client.remoting.instance._instances": "clients of the program",
    "mqspark.base.logs._filters": "one a logger",
    "mqspark.base.names._known": "_MAX_KNOWN texts of _MAX_KNOWN_LENGTH",
    "mqspark.protocol.bodies.body._decoders": "one a body class",
    "mqspark.protocol.headers.header.value_types": "one a header class",
    "mqspark.protocol.command._reader": "made once",
    "mqspark.store.index.aheadkeys._form": "1,024, each of three numbers",
    "mqspark.store.index.aheadkeys._powers": "one a length up to MAX_KEY_BYTES",
    "mqspark.store.index.keys._powers": "one a power of two up to 2^17, 2 MB together",
    "mqspark.protocol.headertemplates.places_of": "one entry a class of headers",
    "mqspark.protocol.command._send_templates": "one a region, which is a setting",
    "mqspark.protocol.command._prefixes": "_MAX_PREFIXES prefixes",
    "mqspark.protocol.headers.header._fields": "one a header class",
    "mqspark.protocol.headers.header.json_decoder": "one a header class",
    "mqspark.protocol.named._checker_of": "one a header class",
    "mqspark.protocol.named.header_names": "one a header class",
    "mqspark.store.messages.membertable._member_dtype": "256 by numbers",
    "mqspark.store.messages.membertable._record_dtype": "256 by numbers",
    "mqspark.store.messages.soundness._tail": "256 by numbers",
}


class Seen:
    def __init__(self) -> None:
        with Broker(http=True, settings={"grpcEnable": True}) as broker, Clients(broker.namesrv) as clients:
            topic = clients.topic()
            with bare_caller(broker.grpc_address) as caller:
                sent = caller.SendMessage(pb.SendMessageRequest(messages=[message(topic)]))
                assert sent.status.code == pb.OK
            producer = clients.producer()
            for _ in range(10):
                producer.send(Message.of(topic, b"x", tags="a", keys="k"))
            producer.send(Message.of(topic, b"x", delay_level=3))
            producer.send(Message.of(topic, b"x", delay_ms=600_000))
            got: list[Any] = []
            clients.push_consumer(topic, got.append, tags="a||b")
            clients.push_consumer(topic, got.append, ordered=True)
            clients.pop_consumer(topic, got.append)
            clients.transaction_producer(check=lambda message: None)
            lite = clients.lite_pull_consumer(topic)
            while len(got) < 30:
                lite.poll(500)
            (app,) = broker.apps
            assert app.parts is not None
            # A broker has samples after some seconds, which have passed on a slow machine alone.
            broker.call(lambda: app._load_sampler().history.note("broker", 0, 1.0))
            self.servers = broker.call(lambda: containers_of([broker.processes]))
            self.clients = containers_of([clients._clients, instance._instances])
            tables = [*app.parts.core.tables, *broker.processes.namesrv.core.tables]
            self.held = {name for table in tables for name in table.holds}
            self.globals = globals_of()


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


def unknown(found: dict[str, Any], held: Iterable[str], reasons: Iterable[str]) -> list[str]:
    """Names of containers that nobody answers for. A held one may go by several names."""
    known = {*held, *reasons}
    held_ids = {id(container) for name, container in found.items() if name in known}
    return sorted(
        name
        for name, container in found.items()
        if not (
            name in known
            or id(container) in held_ids
            or f"*.{name.partition('.')[2]}" in known
            or f"{name.partition('.')[0]}.*" in known
        )
    )


def test_every_container_of_a_running_broker_and_name_server_is_bounded(seen: Seen) -> None:
    assert len(seen.servers) > 100
    assert unknown(seen.servers, seen.held, SERVERS) == [], (
        "a ledger has to hold it, or SERVERS say what bounds it"
    )


def test_every_container_of_running_clients_is_bounded(seen: Seen) -> None:
    # The brokers of this process are reached from its clients by nothing.
    assert len(seen.clients) > 40
    assert unknown(seen.clients, (), CLIENTS) == [], "CLIENTS has to say what bounds it"


def test_every_cache_and_every_global_table_is_bounded(seen: Seen) -> None:
    loose = {
        name: found
        for name, found in seen.globals.items()
        if name not in GLOBALS and not (isinstance(found, Memo) and any(found is memo for memo in MEMOS))
    }
    assert loose == {}


def test_no_reason_has_outlived_what_it_is_about(seen: Seen) -> None:
    classes: dict[str, list[type]] = {}
    for module_name in ("mqspark_server.web.logins", "mqspark.auth.failures", "mqspark.auth.gate"):
        import_module(module_name)  # imported only where users log in
    for name, module in list(sys.modules.items()):
        if name.startswith("mqspark"):
            for cls in vars(module).values():
                if isinstance(cls, type) and cls.__module__.startswith("mqspark"):
                    classes.setdefault(cls.__name__, []).append(cls)
    names = {name for name in {*SERVERS, *CLIENTS, *seen.held} if "." in name and "*" not in name}
    for name in sorted(names):
        class_name, _, attribute = name.partition(".")
        sources = [source_of(base.__module__) for cls in classes.get(class_name, ()) for base in bases(cls)]
        assert any(attribute in source for source in sources), name
    assert set(GLOBALS) <= seen.globals.keys()


@functools.cache
def source_of(module: str) -> str:
    return inspect.getsource(sys.modules[module])


def bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith("mqspark")]


class Careless:
    __slots__ = ("_by_peer", "hook")
    __module__ = "mqspark.broker.careless"

    def __init__(self, hook: Callable[[], object]) -> None:
        self._by_peer: dict[str, bytes] = {}
        self.hook = hook


class Inner:
    __module__ = "mqspark.broker.careless"

    def __init__(self) -> None:
        self.names: set[str] = set()


def test_a_new_table_is_found(seen: Seen) -> None:
    inner = Inner()
    found = containers_of([{"anything": [Careless(lambda: inner)]}])
    assert unknown(found, seen.held, SERVERS) == ["Careless._by_peer", "Inner.names"]
