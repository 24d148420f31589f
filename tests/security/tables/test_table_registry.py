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
import mqspark_server.web.sessions  # noqa: F401, a broker imports it once users log in
from mqspark.base.bounded import MEMOS, Memo
from mqspark.client.remoting import instance
from mqspark.message import Message
from mqspark.testing import Broker, Clients
from mqspark_server.proxy import messaging_pb2 as pb
from tests.security.tables.object_walk import containers_of, globals_of
from tests.support.grpcclients import bare_caller, message

BOTH = {"Outages._out": "MAX_OUT names, each with MAX_REASONS"}
"""In brokers and in clients."""

SERVERS = BOTH | {
    # --- gRPC
    "GrpcClient.streams": "MAX_STREAMS of telemetry",
    "GrpcClient._asked": "MAX_ASKED of grpcclients",
    "Renewals._again": "its ledger, which no core has",
    "Renewals._clients": "its ledger, which no core has",
    "Renewals._due": "its ledger, which no core has",
    "Shared._tasks": "one a call that has ended, with grpcMaxCalls, until a broker has answered",
    "Deadlines._slots": "one entry a call, with grpcMaxCalls",
    "ConnectionTurns._readers": "one entry a connection, with maxConnections",
    "ConnectionTurns._ring": "one entry a connection, with maxConnections",
    "ConnectionTurns._to_write": "one entry a connection, with maxConnections",
    "GrpcListener.methods": "one entry a method of the service",
    "DirectLink._messages": "one entry a call, with grpcMaxCalls, until the end of the turn",
    "DirectLink._topics": "one entry a call, with grpcMaxCalls, until the end of the turn",
    "RemotingServer._before_turn": "two entries a client in this process, until the end of the turn",
    "GrpcClient.acks": "one entry a broker of the cluster, until the end of the turn",
    "TurnAcks._calls": "one entry a call, with grpcMaxCalls, until the broker has answered",
    "TurnAcks._given": "one entry a call, with grpcMaxCalls, until the broker has answered",
    "TurnAcks._of_pops": "one entry a call, with grpcMaxCalls, until the broker has answered",
    "LocalPeer._pending": "one entry a request: of gRPC, grpcMaxCalls",
    "BrokerServer._addresses": "the name servers of the settings, or one broker",
    "ClusterRoutes._masters": "the brokers of the cluster",
    "ClusterRoutes._own": "the brokers of the cluster",
    "Recent._asked": "requests that wait for an answer",
    "Recent._known": "MAX_KNOWN of clusterroutes, the oldest forgotten",
    # --- the charts, whose samples begin some time after the start
    "History._series": "MAX_SAMPLES_BYTES, the oldest forgotten",
    "Sampler._known": "MAX_GROUPS",
    "_SampleRing._numbers": "the steps of its span",
    "_Series.rings": "one entry a span",
    # --- made at the start, or of settings
    "*.handlers": "one entry a request code",
    "SavedState._timed": "made at the start",
    "BrokerServices._running": "made at the start",
    "BrokerServices._told": "made at the start",
    "BrokerApp.more_handlers": "one entry a request code",
    "BrokerApp.recovery": "what the last recovery found: numbers by name",
    "BrokerSettings.unused": "keys of the settings",
    "NameServer._shell_settings": "settings",
    "SettingsProcessor._shell_settings": "settings",
    "NamesrvSettings.unused": "keys of the settings",
    "Layer.values": "settings",
    "Logins._open": "MAX_LOGINS, each of a bounded user name",
    "Failures._free_ms": "MAX_KEYS, of MAX_USER_LENGTH",
    "Attempts._known": "MAX_KEYS, of MAX_USER_LENGTH",
    "Bindings._known": "MAX_CONNECTIONS, each an id of MAX_ID_LENGTH",
    "Gate._connections": "one entry a connection",
    "SubscriptionGroups._made_by": "one entry a user",
    "Holders.bytes": "one entry a user",
    "Shares._held": "one entry a user",
    "TimedShares._held": "one entry a user",
    "TimedShares._ends": "one entry a user and minute, as far as a delay reaches",
    "Acks._others": "one entry a request code",
    "Histogram._counts": "one entry a bound, which are fixed",
    "BrokerServices._registries": "one or none",
    "SchemaRegistry._changes": "MAX_CHANGES",
    "SchemaRegistry._owners": "the records of one change",
    "SchemaAnswers._operations": "one entry an operation",
    "RpcTimes._rows": "one entry a combination of known codes that occurred",
    "Stats.creations": "its keys are three flags",
    "Topic.kinds": "one entry a type of messages",
    "DevCluster._layers": "settings",
    "DevCluster._ports": "settings",
    "DevCluster._roles": "settings",
    "DevCluster._reserved": "one a broker of this process",
    "DevCluster.brokers": "one a broker of this process",
    "DelayLevels.delays_ms": "the setting messageDelayLevel",
    "DelayOffsets.table": "one entry a delay level",
    "DelayService._levels": "one a delay level",
    "DelayService._stuck": "one entry a delay level",
    "FastFail._limits_ms": "one entry a request code",
    "ProcessLifecycle.reached_ms": "one entry a phase",
    "ParsedSchemas._parsing": "MAX_PARSING",
    "SchemaCopy._missed": "MAX_MISSED, each the name of a subject and a number",
    "SchemaGuard._known": "_MAX_KNOWN, each a topic's name and five bytes",
    "PopRevival._away": "MAX_AWAY",
    "PopRevival._queues": "one a queue of the revive log, which operators make",
    "PutTimes._current": "classes of milliseconds, fixed",
    "PutTimes._shown": "classes of milliseconds, fixed",
    "Registrar._servers": "the setting namesrvAddr",
    "Registrar._tasks": "one a name server",
    "Registrar._zone": "two variables of the environment",
    "RouteFinder._addresses": "the setting namesrvAddr",
    "PeerLink._connections": "MAX_PEERS",
    "PeerLink._tasks": "MAX_TALKS of Peers",
    "ReadsElsewhere._held": "MAX_HELD frames of some 300 bytes",
    "RemotingServer._listeners": "one a port",
    "SendProcessor._marks": "three properties",
    "SendProcessor._trace": "two properties",
    "Stats._totals": "fixed names",
    "Stats._watched": "fixed names",
    "Stats.junk": "fixed names of kinds",
    "Totals._notes": "as many notes as it is made for",
    "Writer.diversions": "made at the start",
    "ChangedSettings._values": "the settings that may be changed",
    "Saves._tables": "made at the start",
    "Memo": "a memo is bounded by itself",
    "KeyOrder._blocks": "the keys of a table, which its ledger holds",
    "Ledger._maps": "made at the start",
    "BoundedMap": "by its ledger",
    "BoundedSet": "by its ledger",
    "_Requests": "by its ledger",
    # --- emptied with every turn, write or round, or bounded in number with entries of a fixed size
    "MemberNotices.changed": "groups of the table of groups, emptied within the turns that follow",
    "Acks._turns": "one entry a turn, as long as answers of it wait",
    "Acks.waiting": "sendThreadPoolQueueCapacity answers, each shorter than its message's properties",
    "Acks.unsafe": "answers of one turn, each shorter than its message's properties",
    "Appender._dirty": "queues that this turn wrote to",
    "Appender._heads": "the two lengths of a host",
    "BrokerCore.outbox": "connections with answers, emptied every turn",
    "NameServer.outbox": "connections with answers, emptied every turn",
    "RemotingServer._outbox": "connections with answers, emptied every turn",
    "Session._outbox": "connections with answers, emptied every turn",
    "Calls._waiting": "MAX_CALLS, without the bodies",
    "ColdReads._errors": "ten numbers",
    "Deferred.waiting": "MAX_UNSYNCED pops",
    "DelayOffsets._waiting": "deliveries until the next sync, a slice of messages each tick: three numbers each",
    "Fetcher.damaged": "damaged records of one read, some kept for the report",
    "EntryHealer._given_up": "queue entries whose record was not found, the first thousand",
    "AckProcessor.records": "emptied every turn",
    "AckProcessor._known": "emptied every turn",
    "PopOffsets._ahead": "queues with pops whose check points are not synced: MAX_UNSYNCED at most",
    "PopProcessor._expired": "maxPopPollingSize with those that are parked; answered in the next turns",
    "PopProcessor._grown": "topics, groups and queues of the parked pops, served in the next turns",
    "PopProcessor.given": "sessions, emptied every turn",
    "PopWatchProcessor._expired": "maxPopPollingSize with those that are parked; answered in the next turns",
    "PopWatchProcessor._grown": "topics, groups and queues of the parked notifications, served in the next turns",
    "PullProcessor._woken": "pullThreadPoolQueueCapacity with those that are parked; served in the next turns",
    "PullProcessor.given": "sessions, emptied every turn",
    "TimerService._floors": "one entry a slot that is being delivered",
    "TimerService._new_floors": "one entry a slot that is being delivered",
    "TimerService._known": "eight bytes a timer message that a crash left; emptied when they are read",
    "TimerService._undurable": "one entry a save",
    "TimerWheel._dirty": "pages of the wheel's file",
    "Snapshot.numbers": "pages of the wheel's file",
    "Snapshot.left": "pages of the wheel's file",
    "Snapshot._pages": "pages of the wheel's file",
    "TransactionService._absent": "MAX_ABSENT",
    "TransactionService._checks": "copies of one tick, SLICE_BYTES and a message",
    "TransactionService._rests": "commits that a crash let through in part; filled at the start only",
    "TransactionService._unsaved": "one entry a round of checks",
    "TransactionService._unwritten": "eight bytes a decided half message, until the next op message",
    "Decisions._extents": "two numbers a stretch of decided half messages",
    "Decisions._flags": "a byte a half message, as far as some are open",
    "LongWork.running": "MAX_RUNNING",
    "LongWork._waiting": "connections, which are not read while theirs waits",
    # --- the store: as many as there are files, or writes in a turn
    "BatchTable.light": "bounded queues",
    "QueueTable.light": "bounded queues",
    "TableNotices._followers": "MAX_FOLLOWERS",
    "BatchTable.batch_topics": "topics of the bounded topic table",
    "QueueTable.batch_topics": "topics of the bounded topic table",
    "EndsFile._changed": "queues of bounded tables, and those deleted, that the next checkpoint records",
    "BatchTable.dirty_files": "files of bounded queues that the next checkpoint syncs",
    "QueueTable.dirty_files": "files of bounded queues that the next checkpoint syncs",
    "BatchTable.hidden": "queues of bounded deletions, until their files are removed",
    "BatchTable.new_directories": "directories of bounded queues, until the next checkpoint",
    "QueueTable.new_directories": "directories of bounded queues, until the next checkpoint",
    "BatchTable.doubted": "bounded queues",
    "QueueTable.doubted": "bounded queues",
    "Damages.counts": "fixed kinds and outcomes",
    "Scrub._looks": "_MAX_LOOKS",
    "Scrub._marks": "one entry a segment of the log",
    "Fetcher._missed": "_MAX_MISSED",
    "OpenDamage._ranges": "MAX_RANGES",
    "OpenDamage._suspects": "MAX_SUSPECTS",
    "Healing._disputed": "MAX_WANTED",
    "Healing._wanted": "MAX_WANTED",
    "Healing._doubted_ms": "MAX_DISPUTES",
    "Healing._opinions": "MAX_DISPUTES",
    "Healing._places": "MAX_DISPUTES",
    "Healing._refused": "MAX_DISPUTES",
    "Healing._told": "MAX_DISPUTES",
    "Healing._undecided": "MAX_DISPUTES: refused places whose question is open",
    "Healing._tries": "MAX_DISPUTES",
    "Healing._lost": "damaged stretches of the log that its master lacks, too",
    "Healing._unsure": "damaged stretches of the log",
    "StoreDirectory._log_fds": "one entry a directory of the log",
    "TableNotes._notes": "one entry a table of config/",
    "TableNotes._tables": "one entry a table of config/",
    "TableNotes._unnoted": "one entry a table of config/, each with at most MAX_SAVES saves after a write",
    "Damages.found": "MAX_KEPT",
    "Cleaner._unlinked_next": "files on the disk",
    "Cleaner._with_dead_files": "bounded queues",
    "CommitLog._new_directories": "directories of the log",
    "CommitLog._unsynced": "segments, until the next sync",
    "CommitLog.pending": "what one turn writes",
    "CommitLog.segments": "files on the disk",
    "CommitPipeline._groups": "writes that wait for one sync",
    "Unsettled.dirty": "queues that this turn wrote to",
    "Unsettled.undispatched": "queues whose entries wait for room on the disk",
    "CommitPipeline._unreported_arrivals": "arrivals of one turn",
    "CompactRunner._examined": "queues of compacted topics whose files are damaged",
    "CompactRunner._topics": "compacted topics",
    "CompactedQueues._known": "generations that are on the disk",
    "CompactedQueues._their_topics": "directories on the disk",
    "CompactedQueues._theirs": "queues that are on the disk",
    "ConsumeQueue.entries": "what one turn writes",
    "ConsumeQueue.file_starts": "files on the disk",
    "IndexMaps._maps": "a fixed number of files",
    "IndexMaps._writable": "a fixed number of files",
    "AheadKeys._rows": "MAX_ROWS stretches of the log that are being indexed",
    "KnownRow.*": "MAX_RECORDS records in all rows, with MAX_KEY_BYTES each",
    "MappedFiles._tails": "maxMappedFiles",
    "MappedFiles._writable": "maxMappedFiles",
    "MapsByUse.idle": "maxMappedFiles",
    "MapsByUse.used": "maxMappedFiles",
    "MapBudget.unmapped": "maxMappedFiles, until the next job frees them",
    "MessageIndex._dirty": "index files",
    "MessageIndex.ignored_files": "files that were there at the start",
    "MessageIndex.index_files": "files on the disk",
    "TimerLog._pending": "what one tick writes",
    "TimerLog._starts": "files on the disk",
    "TimerLog._unsynced": "files, until the next sync",
    "TimerLog._views": "files on the disk",
    **{
        f"{job}.*": "one such job at a time, with what was left for it since the last"
        for job in (
            "CheckpointJob",
            "CleaningJob",
            "EndsBlock",
            "FlushJob",
            "IndexJob",
            "KernelSync",
            "Progress",
            "ReadAheadJob",
            "TimerFlush",
            "ZeroAheadJob",
            "_SaveJob",
        )
    },
    # --- connections: their number and what each keeps is bounded by the server
    "Connection._partial": "one frame; all of them together maxBufferedBytes",
    "Outbound._out": "requests of ours, of one turn",
    "Outbound._pending": "requests of ours",
    "MemoryBudget._held": "maxConnections",
    "OpenSockets.by_address": "maxConnections",
    "UnreadAnswers._blocked": "maxConnections",
    "Handshakes._since": "maxConnections",
    "RemotingServer._unfinished": "maxConnections",
    "RemotingServer._ring": "maxConnections",
    "Handshakes._ready": "reads of an iteration of the loop, one a connection",
    "OpenSockets._unidentified": "maxConnections",
    "OpenSockets._all": "maxConnections",
    "RemotingServer._writers": "maxConnections",
    "ReplicationServer._connections": "connections of slaves",
    "Replicas._all": "connections of slaves",
    "Session.attributes": "a few keys of the core's",
    "Session.out": "answers; the server stops reading from those who do not read theirs",
    "RemotingConnection._waiting": "requests of frames that were counted",
    # --- routes of a name server: maxBrokers, maxTopicsPerBroker, maxRoutes; names have at most 255 characters
    "BrokerSet.addresses": "MAX_REPLICAS",
    "BrokerSet.topics": "maxTopicsPerBroker",
    "Notifier._sending": "MAX_SENDING",
    "RouteTable._brokers": "maxBrokers",
    "RouteTable._clusters": "maxBrokers",
    "RouteTable._without_master": "maxBrokers",
    "RouteTable._removed_brokers": "maxRoutes, which counts what is in it",
    "RouteTable._live": "maxBrokers",
    "RouteTable._keys_by_session": "maxBrokers",
    "RouteTable._notices": "maxBrokers; empty without notifyMinBrokerIdChanged",
    "RouteTable._topics": "maxRoutes",
}

CLIENTS = BOTH | {
    # --- as many as the program asks for, or has given
    "*._interceptors": "given by the program",
    "*._asked_topics": "topics that the program sends to",
    "AssignedGroup._filters": "subscriptions of the program",
    "AssignedGroup.subscriptions": "subscriptions of the program",
    "GroupConsumer._filters": "subscriptions of the program",
    "GroupConsumer.subscriptions": "subscriptions of the program",
    "SubscriptionData.code_set": "the program's own",
    "SubscriptionData.tags_set": "the program's own",
    "ClientInstance._members": "clients of the program",
    "ClientInstance.namesrv": "given by the program",
    "ClientInstance._fetching": "topics of the program",
    "ClientInstance._routes": "topics of the program; each route is judged",
    "ClientInstance._brokers": "brokers of those routes",
    "Channel._fields": "given by the program",
    "Remoting._fields": "given by the program",
    "Targets._more": "given by the program",
    "Connection._partial": "one frame",
    "Channel._pending": "requests of ours that wait",
    "Channel._out": "requests of ours, until they are written",
    "Remoting._channels": "brokers of routes; idle ones are closed",
    "RoundAnswers.members": "brokers of routes, for a round",
    "RoundAnswers.silent": "brokers of routes, for a round",
    "Remoting._connecting": "brokers that the program talks to",
    "Remoting._connecting_since": "brokers that the program talks to",
    "Remoting._retired": "channels that wait for answers to requests of the program",
    "SilenceWatch._used": "brokers of routes; those without a channel leave while sends wait",
    "ClientInstance._beats": "heartbeats under way, each of which has a timeout",
    "SilenceWatch._looked_s": "brokers that are silent now",
    "Requests._waiting": "requests of the program that wait for a reply",
    "QueueWatch._listeners": "given by the program",
    "LoopThread._posted": "calls of the program",
    "Tasks._tasks": "background work of clients; answers to brokers MAX_ANSWERING_BYTES",
    "Window._waiting": "sends of the program",
    "Targets.topics": "topics that the program sends to",
    "TransactionProducer._threads": "two pools",
    "TransactionProducer._checkers": "the option concurrency",
    "TransactionProducer._waiting_checks": "MAX_WAITING_CHECKS, MAX_WAITING_CHECK_BYTES",
    # --- queues of judged routes
    "TopicRoute.brokers": "a route's brokers, judged when it comes",
    "TopicRoute.leaders": "MAX_ROUTE_QUEUES",
    "PublishTopic._by_queue": "MAX_MADE queues of a judged route",
    "PublishTopic.targets": "MAX_MADE queues of a judged route",
    "_Made._made": "MAX_MADE",
    "Timer._pending": "the queues that rest, and the batches that wait here for another delivery",
    "Timers._pending": "the queues that rest, and the batches that wait here for another delivery",
    "PopConsumer._last_pop_ms": "queues of the assignment",
    "PopConsumer._readers": "queues of the assignment",
    "PopConsumer._helping": "queues of the assignment",
    "PopConsumer._helpers": "queues of the assignment",
    "PushConsumer._leaving": "queues of the assignment",
    "PushConsumer._readers": "queues of the assignment",
    "LitePullConsumer._assigned": "queues of the assignment",
    "LitePullConsumer._paused": "queues of the assignment",
    "LitePullConsumer._space": "queues of the assignment",
    "LitePullConsumer._waiters": "callers of poll",
    "Ordered._giving_up": "queues of the assignment",
    "Ordered._idle": "queues of the assignment",
    "Ordered._of": "queues of the assignment",
    "Ordered._queues": "queues of the assignment",
    "Ordered._timers": "queues of the assignment",
    # --- messages on their way to the program: flow control
    "Assigned.batches": "flow control: messages and bytes of a queue",
    "LitePullConsumer._ready": "flow control",
    "Flow._full": "queues of the assignment",
    "Flow._of_topic": "subscriptions of the program",
    "Concurrent._returning": "flow control",
    "Concurrent._returns": "flow control",
    "OrderedQueue.held": "flow control",
    "OrderedQueue.running": "the batch size",
    "OrderedQueue.waiting": "flow control",
    "PopAcks._single": "brokers of routes",
    "PopAcks._tasks": "acknowledgements on their way",
    "PopAcks._waiting": "acknowledgements of one iteration of the loop",
    "PopConsumer._held": "maxUnacknowledged",
    "ProcessQueue._sizes": "flow control",
    "ProcessQueue._pending": "flow control",
    "_ThreadDelivery._calls": "flow control",
    "_ThreadDelivery._ended": "flow control",
    "_ThreadDelivery._callers": "threads",
    "_ThreadDelivery._threads": "threads",
    # --- what is remembered of brokers
    "ConsumeStatistics._topics": "_MAX_TOPICS",
    "_Topic.samples": "_SAMPLES",
    "FaultTable._until_ms": "_MAX_BROKERS",
    "Heartbeats._known": "_MAX_BROKERS",
    "Heartbeats._supporting": "_MAX_BROKERS",
    "Heartbeats._versions": "_MAX_BROKERS",
    "ClientInstance._names": "topics that a name server lists in one answer",
    "LoopThread._users": "clients of the program",
    "QueueCalls._damaged": "queues that the program reads",
    "QueueCalls._moves": "queues that the program reads",
    "Remoting._silent": "_MAX_SILENT",
    "Sender._lost": "topics that the program sends to",
    "_Heard._around": "made at the start",
}

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
    for module_name in ("mqspark_server.web.sessions", "mqspark.auth.failures", "mqspark.auth.gate"):
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
