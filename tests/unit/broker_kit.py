"""A broker without sockets: a real store in a directory, a clock that stands still, peers that are lists."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mqspark.auth.authority import Authority
from mqspark.broker.broker import BrokerCore
from mqspark.broker.config import BrokerConfig
from mqspark.broker.registration import Registration
from mqspark.broker.replication.term import Term
from mqspark.message import MessageExt, encode_host, new_unique_id
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.codes import Language, RequestCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.extending import Extensions, TappedSession
from mqspark.protocol.headers.header import Header
from mqspark.protocol.session import Core, Session
from mqspark.record.record import decode_records
from mqspark.store import FlushDiskType, MessageStore, StoreConfig
from mqspark.store.disk.configfile import ConfigFile
from tests.support import leftopen
from tests.support.clocks import ManualClock
from tests.support.remoting import send_fields
from tests.support.store_tools import QuickFiles, complete
from tests.support.storefiles import segments_of


class Peer:
    """A connection to a core: ``ask`` sends a request, ends the turn and gives back the answer."""

    def __init__(self, core: Core, session: Session, housekeeping: Callable[[], None] = lambda: None) -> None:
        self._housekeeping = housekeeping
        self.core = core
        self.session = session
        self._requests = Connection()
        self._wire = Connection()
        self._opaque = 0
        core.connected(session)

    def give(
        self,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
        language: int = Language.JAVA,
        version: int = 479,
    ) -> int:
        """Hand a request over without ending the turn; its opaque."""
        self._opaque += 1
        frame = encode_request(
            code, self._opaque, header, body, oneway=oneway, language=language, version=version
        )
        self.give_frame(frame)
        return self._opaque

    def pull(self, *place: Any, **more: str) -> Command:
        """The answer to a pull, as ``pull_ext`` makes it."""
        return self.ask(PULL, pull_ext(*place, **more))

    def give_pull(self, *place: Any, **more: str) -> int:
        """Hand a pull over without ending the turn; its opaque."""
        return self.give(PULL, pull_ext(*place, **more))

    def give_frame(self, frame: bytes) -> None:
        self.give_frames(frame)

    def give_frames(self, data: bytes) -> None:
        """Hand over whatever frames these bytes complete, each as a command."""
        self.core.received(self.session, self._requests.receive_data(data))

    def give_bytes(self, data: bytes) -> int:
        """The same as a server does it: the core takes what it can without commands. Returns how many it took."""
        taken, take = 0, getattr(self.core, "take", None)
        if take is None or (whole := self._requests.joined(data)) is None:
            self.give_frames(data)
            return taken
        at, size = 0, len(whole)
        while True:
            end = self._requests.taken(take, self.session, whole, at)
            while at < end:
                at += 4 + int.from_bytes(whole[at : at + 4])
                taken += 1
            assert at == end
            if at == size:
                return taken
            end = self._requests.left(whole, at)
            self.give_frames(whole[at:end])
            if end == size:
                return taken
            at = end

    def heard(self) -> list[Command]:
        """What was sent to this connection since the last call."""
        return self._wire.receive_data(b"".join(self.session.take()))

    def ask(
        self, code: int, header: Header | Mapping[str, str] | None = None, body: bytes = b"", **more: Any
    ) -> Command:
        opaque = self.give(code, header, body, **more)
        while self.core.work():
            pass
        self.core.turn()
        self._housekeeping()
        answers = [command for command in self.heard() if command.is_response]
        assert [answer.opaque for answer in answers] == [opaque]
        return answers[0]

    def disconnect(self) -> None:
        self.session.open = False
        self.core.disconnected(self.session)
        self.core.turn()


class Bench:
    """A broker on ``directory``; ``reopen`` closes it cleanly and starts another on the same files. A test need not
    close it."""

    def __init__(
        self,
        directory: Path,
        *,
        sync: bool = False,
        start: bool = True,
        term: Term | None = None,
        store_settings: Mapping[str, Any] | None = None,
        new_authority: Callable[[], Authority] | None = None,
        extensions: Extensions | None = None,
        new_unique_id: Callable[[], str] = new_unique_id,
        **settings: Any,
    ) -> None:
        self.new_authority = new_authority
        self.new_unique_id = new_unique_id
        self.extensions = extensions
        self.directory = directory
        self.store_settings = dict(store_settings or {})
        self.clock = ManualClock()
        self.settings = settings
        self.term = term
        self.sync = sync
        self.settings_file: ConfigFile | None = None
        self.shell_settings: Mapping[str, str] = {}
        self._sessions = 0
        self.outbox: list[Session] = []
        if start:
            self.open()

    def open(self) -> None:
        self.config = BrokerConfig(
            **{"broker_name": "b-a", "broker_cluster_name": "C", "listen_port": 10911, **self.settings}
        )
        self.store_config = StoreConfig(
            **{
                "store_path_root_dir": str(self.directory),
                "mapped_file_size_commit_log": 1 << 22,
                "mapped_file_size_consume_queue": 20_000,
                "allocation_step_commit_log": 1 << 20,
                "max_hash_slot_num": 100,
                "max_index_num": 200,
                "flush_disk_type": FlushDiskType.SYNC_FLUSH if self.sync else FlushDiskType.ASYNC_FLUSH,
                # However full this machine's disk is.
                "disk_max_used_space_ratio": 100,
                "disk_space_clean_forcibly_ratio": 100,
                "disk_space_warning_level_ratio": 100,
                **self.store_settings,
            }
        )
        self.store = MessageStore(
            self.store_config,
            self.clock,
            store_host=encode_host(self.config.broker_ip1, 10911),
            files=QuickFiles(),
        )
        self.store.open()
        leftopen.opened(self)
        self.broker = BrokerCore(
            self.config,
            self.store,
            self.clock,
            random=random.Random(7),
            outbox=self.outbox,
            memory_bytes=1 << 30,
            authority=None if self.new_authority is None else self.new_authority(),
            term=self.term,
            settings_file=self.settings_file,
            shell_settings=self.shell_settings,
            extensions=self.extensions,
            new_unique_id=self.new_unique_id,
        )

    def peer(self, *, fast: bool = False, address: str = "127.0.0.1") -> Peer:
        self._sessions += 1
        kind = Session if self.extensions is None else TappedSession
        session = kind(self._sessions, address, 40_000 + self._sessions, self.outbox, fast=fast)
        return Peer(self.broker, session, self.housekeeping)

    def flush(self) -> None:
        job = self.store.pipeline.begin_flush()
        if job is not None:
            job.run()
            self.broker.progress(self.store.pipeline.end_flush(job))

    def housekeeping(self) -> None:
        """What the shell does after a turn."""
        if self.sync:
            self.flush()
        if self.broker.jobs_due:
            self.run_jobs()

    def run_jobs(self) -> None:
        complete(self.broker.jobs())

    def records(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[MessageExt]:
        """What consumers could see of a queue."""
        found = []
        while True:
            result = self.store.reads.get(topic, queue_id, offset, 1000, 1 << 24)
            found += decode_records(b"".join(result.buffers))
            if result.next_offset <= offset:
                return found
            offset = result.next_offset

    def later(self, ms: int) -> None:
        """Let time pass at once, and tell the broker."""
        self.clock.advance(ms)
        self.broker.tick()

    def run_for(self, ms: int, step_ms: int = 100) -> None:
        """Let time pass as the shell would: ticks, and the flushes that a store without SYNC_FLUSH gets twice a
        second."""
        end_ms = self.clock.mono_ms + ms
        while True:
            wait_ms = max(1, self.broker.tick())
            self.flush()
            if self.clock.mono_ms >= end_ms:
                return
            self.clock.advance(min(wait_ms, step_ms, end_ms - self.clock.mono_ms))

    def close(self) -> None:
        leftopen.closed(self)
        self.flush()
        complete(self.broker.shutdown())
        self.store.close()

    def leave(self) -> None:
        if self.store.condition.read_only is None:
            self.close()
        else:
            leftopen.closed(self)
            self.store.abandon()

    def crash(self) -> None:
        """A new broker on the files as a killed one leaves them: nothing more saved, nothing flushed."""
        leftopen.closed(self)
        self.store.abandon()
        self.open()

    def reopen(self) -> None:
        self.close()
        self.open()


def last_registration(broker: BrokerCore) -> Registration:
    """What the broker tells a name server last, or at once when it takes one registration."""
    return [registration for registration in broker.publication.requests() if registration is not None][-1]


def namesrv_peer(
    config: NamesrvConfig | None = None,
    clock: ManualClock | None = None,
    settings_file: ConfigFile | None = None,
    shell_settings: Mapping[str, str] | None = None,
    extensions: Extensions | None = None,
) -> tuple[NameServer, ManualClock, Peer]:
    clock = clock or ManualClock()
    outbox: list[Session] = []
    core = NameServer(
        config or NamesrvConfig(),
        clock,
        outbox=outbox,
        settings_file=settings_file,
        shell_settings=shell_settings,
        extensions=extensions,
    )
    kind = Session if extensions is None else TappedSession
    return core, clock, Peer(core, kind(1, "127.0.0.1", 40_000, outbox))


def expire_segments(bench: Bench) -> None:
    """Let retention remove every segment but the last."""
    long_ago_s = bench.clock.now_ms() / 1000 - 4 * 3600
    for path in segments_of(bench.directory)[:-1]:
        os.utime(path, (long_ago_s, long_ago_s))
    bench.store_config.file_reserved_time = 3
    assert bench.peer().ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    for _ in range(4):
        bench.flush()
        bench.run_jobs()
        bench.clock.advance(10_000)


send_ext = send_fields


def pull_ext(topic: str = "T", queue_id: int = 0, offset: int = 0, **more: str) -> dict[str, str]:
    """A pull with the expression ``*`` in the request; no suspension."""
    return {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        **more,
    }


SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
