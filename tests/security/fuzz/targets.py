"""What is fuzzed. A target makes cases as bytes and runs them; what is wrong with one comes back as text."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import re
import resource
import shutil
import socket
import struct
import tempfile
import time
import traceback
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mqspark.auth.access import TABLE, header_of
from mqspark.errors import MQError
from mqspark.filter import sql
from mqspark.message import decode_properties
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import (
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
    UnlockBatchRequestBody,
)
from mqspark.protocol.bodies.lite_bodies import LiteSubscriptionCtlRequestBody
from mqspark.protocol.bodies.topic_bodies import (
    CreateTopicListRequestBody,
    DeleteSubscriptionGroupListRequestBody,
    DeleteTopicListRequestBody,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicQueueMappingDetail,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.connection import Connection
from mqspark.protocol.servers import registration
from mqspark.protocol.slices import finished
from mqspark.record.compression import LZ4, ZLIB, ZSTD, decompress
from mqspark.record.record import decode_records
from mqspark.testing import Broker, FakeClock
from mqspark_server.process import diskwork
from mqspark_server.web.api import store_report
from tests.security.fuzz import cases
from tests.security.fuzz.cases import Chance
from tests.security.fuzz.decoders import DECODERS
from tests.security.fuzz.kinds import Decoding, Finding, Target
from tests.security.fuzz.victims import GROWTH_BYTES, Probe, Victim, http_get, running
from tests.support import protocol_classes
from tests.support.remoting import (
    SEND_MESSAGE_V2,
    UPDATE_AND_CREATE_TOPIC,
    RawConnection,
    send_fields,
    topic_fields,
)
from tests.support.store_tools import copy_store

HEADERS = [*protocol_classes.HEADERS.values()]
BODIES = [*protocol_classes.BODIES.values()]
REQUEST_BODIES: dict[int, type[msgspec.Struct]] = {
    RequestCode.HEART_BEAT: HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: LockBatchRequestBody,
    RequestCode.UNLOCK_BATCH_MQ: UnlockBatchRequestBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: SubscriptionGroupList,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: CreateTopicListRequestBody,
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST: DeleteTopicListRequestBody,
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: DeleteSubscriptionGroupListRequestBody,
    RequestCode.CHECK_CLIENT_CONFIG: CheckClientRequestBody,
    RequestCode.QUERY_ASSIGNMENT: QueryAssignmentRequestBody,
    RequestCode.SET_MESSAGE_REQUEST_MODE: SetMessageRequestModeRequestBody,
    RequestCode.BATCH_ACK_MESSAGE: BatchAckMessageRequestBody,
    RequestCode.REGISTER_BROKER: RegisterBrokerBody,
    RequestCode.LITE_SUBSCRIPTION_CTL: LiteSubscriptionCtlRequestBody,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: TopicQueueMappingDetail,
}


COMMON_CODES = [
    code
    for code, row in TABLE.items()
    if row.header and not re.match("AUTH|CONTROLLER", RequestCode(code).name)
]


class Headers(Decoding):
    """Frames as the parser takes them apart, each header read as every class that it might be."""

    name = "headers"

    def make(self, chance: Chance) -> bytes:
        frame = b"".join(_frame(chance, None) for _ in range(chance.choice([1, 1, 3])))
        return cases.mutated(chance, frame) if chance.random() < 0.6 else frame

    def decode(self, case: bytes) -> None:
        for command in Connection().receive_data(case):
            kind = header_of(command.code) or HEADERS[command.code % len(HEADERS)]
            with contextlib.suppress(MQError):
                command.header(kind)
            properties = command.ext.get("i") or command.ext.get("properties")
            if properties:
                decode_properties(properties)


class Bodies(Decoding):
    """JSON as every class of body, fastjson's dialect and broken JSON among it; SQL92; compressed bytes; records."""

    name = "bodies"

    def make(self, chance: Chance) -> bytes:
        number = chance.randrange(len(BODIES) + 4)
        if number < len(BODIES):
            content = _json(chance, BODIES[number])
        elif number == len(BODIES):
            content = cases.text(chance).encode("utf-8", "replace")
            if chance.random() < 0.5:
                content = b" AND ".join([b"(a > 5 OR b = 'x')"] * chance.choice([1, 30, 3_000]))
        elif number == len(BODIES) + 3:
            topics = cases.document(chance, RegisterBrokerBody)
            content = _json(chance, RegisterBrokerBody) if topics is None else json.dumps(topics).encode()
        else:
            content = bytes(chance.getrandbits(8) for _ in range(chance.randrange(200)))
        if chance.random() < 0.4:
            content = cases.mutated(chance, content)
        return bytes([number]) + content

    def decode(self, case: bytes) -> None:
        number, content = (case[0] if case else 0) % (len(BODIES) + 4), case[1:]
        if number < len(BODIES):
            decode_body(BODIES[number], content)
        elif number == len(BODIES):
            sql.compile_sql(content.decode("utf-8", "replace"))
        elif number == len(BODIES) + 1:
            for kind in (LZ4, ZSTD, ZLIB):
                with contextlib.suppress(MQError):
                    decompress(content, kind, 1 << 22)
        elif number == len(BODIES) + 2:
            decode_records(content)
        else:
            for version in (0, 413, 479):
                with contextlib.suppress(MQError):
                    finished(registration.read_registration(content, version))
            fastjson.loads(content)


# --- servers ------------------------------------------------------------------------------------------------


class Served(Target):
    """Cases go to a server beside an honest peer."""

    kind = "broker"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lent: Victim | None = None
        """A server that others use as well; None: it starts one of its own."""
        self.victim: Victim | None = None
        self.probe: Probe | None = None
        self._cases = 0
        self._base_bytes = 0
        self._frozen = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            victim = self.lent or stack.enter_context(running(self.kind, self.folder / self.name))
            self.victim = victim
            self.prepare()
            self.probe = Probe(victim, self.kind)
            self.probe.start()
            stack.callback(self.probe.stop)
            yield

    def prepare(self) -> None:
        """Before the first case."""

    def send(self, case: bytes) -> None:
        raise NotImplementedError(self.name)

    def run(self, case: bytes) -> Finding:
        victim, probe = self.victim, self.probe
        assert victim is not None
        assert probe is not None
        try:
            self.send(case)
        except ConnectionRefusedError:
            return "the server is gone"
        except OSError:
            pass  # it may close such a connection
        self._cases += 1
        if self._cases == 500:
            self._base_bytes = victim.settled_bytes()
        story = victim.new_tracebacks()
        if story is not None:
            return story
        if len(probe.freezes) > self._frozen:
            self._frozen = len(probe.freezes)
            return f"an honest peer waited {probe.freezes[-1]:.2f} s while the server was busy"
        return None

    def verdict(self) -> Finding:
        assert self.victim is not None
        grown = self.victim.settled_bytes() - self._base_bytes if self._base_bytes else 0
        return f"memory grew by {grown >> 20} MiB over {self._cases} cases" if grown > GROWTH_BYTES else None

    def measures(self) -> str:
        assert self.victim is not None
        assert self.probe is not None
        grown = self.victim.anonymous_bytes() - self._base_bytes if self._base_bytes else 0
        return (
            f"an honest peer waited {self.probe.worst_s * 1000:.0f} ms at worst and was cut off "
            f"{self.probe.lost} times, memory {grown / (1 << 20):+.1f} MiB, log {self.victim.log_bytes() >> 10} KiB"
        )


class Requests(Served):
    """Every request code with hostile fields and bodies to a broker."""

    name = "requests"

    def prepare(self) -> None:
        assert self.victim is not None
        with RawConnection(self.victim.address, 60) as connection:
            for topic in cases.TOPICS:
                _create(connection, topic)

    def make(self, chance: Chance) -> bytes:
        frames = []
        for _ in range(chance.choice([1, 5, 20, 60])):
            code = int(chance.choice(COMMON_CODES if chance.random() < 0.7 else list(RequestCode)))
            frame = _frame(chance, code)
            frames.append(cases.mutated(chance, frame) if chance.random() < 0.05 else frame)
        return b"".join(frames)

    def send(self, case: bytes) -> None:
        assert self.victim is not None
        _exchange(self.victim.address, case, quiet_s=0.02)


class NameServer(Requests):
    """The same to a name server."""

    name = "namesrv"
    kind = "namesrv"

    def prepare(self) -> None:
        """It knows nothing, as one that has just been started."""


PATHS = [
    "/", "/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json", "/api/v1/cluster", "/api/v1/topics",
    "/api/v1/groups", "/api/v1/topics/{}", "/api/v1/groups/{}", "/api/v1/topics/{}/messages",
]  # fmt: skip


class Http(Served):
    """Requests over HTTP, well-formed and not."""

    name = "http"

    def prepare(self) -> None:
        """The broker loads what serves HTTP with the first request."""
        assert self.victim is not None
        http_get(self.victim, "/health/live").raise_for_status()

    def make(self, chance: Chance) -> bytes:
        path = chance.choice(PATHS).replace(
            "{}", urllib.parse.quote(cases.text(chance)[:2_000], errors="replace")
        )
        if chance.random() < 0.2:
            path += "?" + urllib.parse.quote(cases.text(chance)[:2_000], safe="=&", errors="replace")
        method = chance.choice(["GET", "GET", "POST", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "X" * 300])
        document = {
            name: chance.choice([cases.text(chance), cases.number(chance), None, {}, [], True])
            for name in (
                "body",
                "tags",
                "keys",
                "properties",
                "queueId",
                "delayLevel",
                "deliverAtMs",
                "bodyBase64",
                "key",
            )
            if chance.random() < 0.4
        }
        body = json.dumps(document).encode("utf-8", "replace") if method == "POST" else b""
        if body and chance.random() < 0.3:
            body = chance.choice(
                [cases.odd_json(chance, body), body.replace(b": 0", b": NaN"), b'{"queueId": NaN}']
            )
        head = [
            f"{method} {path} HTTP/1.1",
            f"Host: {chance.choice(['127.0.0.1', 'localhost', 'evil.example', ''])}",
        ]
        if chance.random() < 0.8:
            head.append(f"Content-Length: {chance.choice([len(body)] * 6 + [0, -1, 10**20])}")
        if chance.random() < 0.8:
            head.append(
                f"Content-Type: {chance.choice(['application/json', 'text/plain', cases.text(chance)[:100]])}"
            )
        if chance.random() < 0.1:
            head.append("Transfer-Encoding: chunked")
        if chance.random() < 0.2:
            head.append(
                f"{chance.choice(['Origin', 'Cookie', 'X-A', 'Expect', 'Upgrade'])}: {cases.text(chance)[:4_000]}"
            )
        request = "\r\n".join([*head, "", ""]).encode("utf-8", "replace") + body
        return cases.mutated(chance, request) if chance.random() < 0.3 else request

    def send(self, case: bytes) -> None:
        assert self.victim is not None
        _exchange(self.victim.http.removeprefix("http://"), case, quiet_s=0.02)


def _exchange(address: str, data: bytes, quiet_s: float) -> None:
    """Write all, read until nothing comes for a while."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(data)
        connection.settimeout(quiet_s)
        with contextlib.suppress(TimeoutError):
            while connection.recv(1 << 20):
                pass


# --- store directories --------------------------------------------------------------------------------------

QUEUES = [("Orders", 0), ("Orders", 1), ("Other", 0)]
SETTINGS = {
    "mappedFileSizeCommitLog": 16_384, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 16, "maxIndexNum": 64,
    "mappedFileSizeTimerLog": 4_096, "diskMaxUsedSpaceRatio": 100, "diskSpaceCleanForciblyRatio": 100,
    "diskSpaceWarningLevelRatio": 100, "autoCreateTopicEnable": False, "scrubBytesPerSecond": 1 << 30,
}  # fmt: skip
MESSAGES = 120
FOUND, RETRY_IMMEDIATELY, OFFSET_MOVED = 0, 20, 21
"""Codes of answers to pulls after which a consumer goes on."""

CASE_CPU_S = 10
CASE_MEMORY_BYTES = 512 << 20
SCRUB_S = 30.0
SCRUB_STEP_MS = 10_000
HOUSEKEEPING_S = 0.01
"""In a child, of whose second most would be spent on waiting for it."""


class Stores(Target):
    """A broker on a damaged directory: it refuses or serves, serves nothing wrong, and tells what is gone.

    A case names one of the two directories, one that was closed and one whose broker was killed, and the seed of the
    damage. Each runs in a child, which a signal may end without ending the run.
    """

    name = "store"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._bodies: dict[tuple[str, int], list[bytes]] = {}
        self._outcomes: dict[str, int] = {}
        self._worst_s = 0.0

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            self._root = Path(name)
            for number in range(MESSAGES):
                topic, queue = QUEUES[number % len(QUEUES)]
                self._bodies.setdefault((topic, queue), []).append(b"message %d " % number * (1 + number % 9))
            for kind in ("closed", "killed"):
                self._make_template(kind)
            yield

    def _make_template(self, kind: str) -> None:
        with Broker(store=self._root / "live", settings=SETTINGS) as broker:
            with RawConnection(broker.address, 60) as connection:
                for topic in ("Orders", "Other"):
                    _create(connection, topic)
                for number in range(MESSAGES):
                    topic, queue = QUEUES[number % len(QUEUES)]
                    body = self._bodies[topic, queue][number // len(QUEUES)]
                    properties = f"TAGS\x01t{number % 3}\x02KEYS\x01k{number}\x02"
                    assert _send(connection, topic, queue, body, properties) == 0
                for number in range(6):
                    properties = (
                        f"TIMER_DELAY_SEC\x01{3_600 + number}\x02" if number % 2 else "DELAY\x0118\x02"
                    )
                    assert _send(connection, "Orders", 0, b"later", properties) == 0
            store = broker.store_paths[0]
            if kind == "killed":
                broker.kill()
                copy_store(store, self._root / kind)
        if kind == "closed":
            copy_store(store, self._root / kind)
        shutil.rmtree(self._root / "live")

    def make(self, chance: Chance) -> bytes:
        kind = chance.choice(["closed", "killed"])
        return json.dumps({"directory": kind, "seed": chance.getrandbits(48)}).encode()

    def run(self, case: bytes) -> Finding:
        spec = json.loads(case)
        work = self._root / "case"
        copy_store(self._root / spec["directory"], work / "store")
        done = _damage(Chance(spec["seed"]), work / "store")
        report, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(report)
            self._in_child(work / "store", write_end)
        os.close(write_end)
        with os.fdopen(report, "rb") as pipe:
            story = pipe.read().decode("utf-8", "replace")
        _, status, usage = os.wait4(pid, 0)
        shutil.rmtree(work)
        self._worst_s = max(self._worst_s, usage.ru_utime)
        what = "; ".join(done)
        if os.WIFSIGNALED(status):
            return f"{what}: the process died of signal {os.WTERMSIG(status)}\n{story}"
        outcome = story.partition("\n")[0]
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
        if outcome not in ("refused", "whole", "told"):
            return f"{what}: {story}"
        return None

    def _in_child(self, store: Path, pipe: int) -> None:
        """Never returns."""
        resource.setrlimit(resource.RLIMIT_CPU, (CASE_CPU_S, CASE_CPU_S))
        here = int(re.findall(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (here + CASE_MEMORY_BYTES, here + CASE_MEMORY_BYTES))
        diskwork.HOUSEKEEPING_S = HOUSEKEEPING_S
        noise = _Noise()
        logging.getLogger().addHandler(noise)
        try:
            story = self._outcome(store)
            if noise.stories:
                story = "traceback in the log\n" + noise.stories[0]
        except BaseException:
            story = "unexpected\n" + traceback.format_exc()
        os.write(pipe, story.encode("utf-8", "replace")[:60_000])
        os._exit(0)

    def _outcome(self, store: Path) -> str:
        try:
            clock = FakeClock(
                time.time_ns() // 1_000_000
            )  # so that what is done once a second takes no second
            broker = Broker(store=store, settings=SETTINGS, clock=clock).start()
        except (MQError, OSError) as error:
            return f"refused\n{type(error).__name__}: {error}"
        deadline = time.monotonic() + SCRUB_S
        while not _is_scrubbed(health := broker.call(lambda: _health(broker))):
            if time.monotonic() > deadline:
                return f"not scrubbed\nafter {SCRUB_S} s: {json.dumps(health['store'])[:3_000]}"
            clock.advance(SCRUB_STEP_MS)
            broker.run(asyncio.sleep(HOUSEKEEPING_S))  # its threads need the time that passes for real
        wrong, missing = [], []
        with RawConnection(broker.address, 60) as connection:
            for (topic, queue), expected in self._bodies.items():
                _create(connection, topic)
                served = _pull_all(connection, topic, queue)
                for offset, body in served.items():
                    # The clock may have passed the hour of the delayed messages, which follow the others then.
                    if body != b"later" and expected[offset : offset + 1] != [body]:
                        wrong.append((topic, queue, offset, body[:40]))
                missing += [(topic, queue, offset) for offset in range(len(expected)) if offset not in served]
        health = broker.call(lambda: _health(broker))
        broker.stop()
        if wrong:
            return f"wrong content\n{wrong[:5]}"
        if missing and not _tells(health):
            return f"silent loss\n{missing[:5]}, {len(missing)} in all; health: {json.dumps(health)[:3_000]}"
        return "told\n" if missing else "whole\n"

    def measures(self) -> str:
        return f"outcomes {self._outcomes}, worst case {self._worst_s:.1f} s of processor time"


class _Noise(logging.Handler):
    """Keeps log records that come with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.stories: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.stories.append(logging.Formatter().format(record)[:8_000])


def _health(broker: Broker) -> dict[str, Any]:
    """What /health/ready says of a store. A process that serves HTTP takes longer to begin than the rest of a case."""
    (app,) = broker.apps
    report: dict[str, Any] = {**app.lifecycle.describe(), **store_report(app)}
    if app.parts is not None:
        report["delayProblem"] = app.parts.core.delay_problem
        report["housekeepingError"] = app.parts.housekeeper.error
    return report


def _is_scrubbed(health: Any) -> bool:
    scrub = health["store"]["scrub"]
    return scrub is None or scrub["done"] or bool(scrub["problem"]) or health["store"]["readOnly"] is not None


def _tells(health: Any) -> bool:
    """Whether anything under a key of the health that names damage is set."""
    if isinstance(health, dict):
        return any(
            (bool(value) and re.search("damage|lost|missing|problem", key, re.I) is not None) or _tells(value)
            for key, value in health.items()
        )
    return isinstance(health, list) and any(_tells(item) for item in health)


def _create(connection: RawConnection, topic: str) -> None:
    connection.request(UPDATE_AND_CREATE_TOPIC, **topic_fields(topic, 2))


def _send(connection: RawConnection, topic: str, queue: int, body: bytes, properties: str) -> int:
    return connection.request(SEND_MESSAGE_V2, body, **send_fields(topic, queue, properties)).code


def _pull_all(connection: RawConnection, topic: str, queue: int) -> dict[int, bytes]:
    served: dict[int, bytes] = {}
    offset, tries = 0, 0
    while tries < 2 * MESSAGES:
        tries += 1
        reply = connection.pull(topic, queue, offset)
        if reply.code == FOUND:
            for message in decode_records(reply.body, decompress=False):
                served[message.queue_offset] = bytes(message.body)
        following = int(reply.ext.get("nextBeginOffset", offset))
        if following <= offset or reply.code not in (FOUND, RETRY_IMMEDIATELY, OFFSET_MOVED):
            break
        offset = following
    return served


def _damage(chance: Chance, store: Path) -> list[str]:
    """Change the directory; what was done, in words."""
    done = []
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        files = sorted(path for path in store.rglob("*") if path.is_file() and not path.is_symlink())
        room = chance.choice(
            ["commitlog", "consumequeue", "config", "index", "timerwheel", "timerlog", "", ""]
        )
        chosen = [path for path in files if room in path.relative_to(store).parts] or files
        if not chosen:
            break
        path = chance.choice(chosen)
        data = path.read_bytes()
        kind = chance.randrange(10)
        name = path.relative_to(store)
        if kind <= 2:
            path.write_bytes(cases.mutated(chance, data) if kind else _flipped(chance, data))
            done.append(f"{name} mutated")
        elif kind == 3:
            length = chance.choice([0, 1, 13, len(data) // 2, max(len(data) - 1, 0)])
            path.write_bytes(data[:length])
            done.append(f"{name} cut to {length}")
        elif kind == 4:
            path.unlink()
            done.append(f"{name} removed")
        elif kind == 5:
            at = chance.randrange(len(data) + 1)
            length = chance.choice([20, 512, 4096, len(data)])
            path.write_bytes(data[:at] + bytes(len(data[at : at + length])) + data[at + length :])
            done.append(f"{name} zeroed from {at} on for {length}")
        elif kind == 6:
            path.write_bytes(bytes(chance.getrandbits(8) for _ in range(min(len(data), 16_384))))
            done.append(f"{name} random")
        elif kind == 7:
            other = chance.choice(files)
            path.write_bytes(other.read_bytes())
            done.append(f"{name} replaced by {other.relative_to(store)}")
        elif kind == 8:
            path.write_bytes(data + bytes(chance.choice([1, 20, 4096])))
            done.append(f"{name} extended")
        else:
            path.write_bytes(_other_numbers(chance, data))
            done.append(f"{name} with other numbers")
    return done


def _flipped(chance: Chance, data: bytes) -> bytes:
    content = bytearray(data)
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(content)


def _other_numbers(chance: Chance, data: bytes) -> bytes:
    """In JSON another number in the place of one; elsewhere another 4 or 8 bytes at an aligned place."""
    if data[:1] in (b"{", b"["):
        found = list(re.finditer(rb"-?\d+", data))
        if found:
            hit = chance.choice(found)
            return data[: hit.start()] + str(cases.number(chance)).encode() + data[hit.end() :]
    if len(data) < 8:
        return data
    at = chance.randrange(len(data) // 4) * 4
    return data[:at] + struct.pack(">I", cases.number(chance) & 0xFFFFFFFF) + data[at + 4 :]


# --- helpers ------------------------------------------------------------------------------------------------


def _frame(chance: Chance, code: int | None) -> bytes:
    if code is None:
        code = int(chance.choice(list(RequestCode)))
    ext = cases.fields(chance, header_of(code))
    body = b""
    kind = REQUEST_BODIES.get(code)
    if kind is not None and chance.random() < 0.9:
        body = _json(chance, kind)
    elif chance.random() < 0.5:
        body = chance.choice(
            [b"x" * 100, base64.b64decode("eJwDAAAAAAE="), cases.text(chance).encode("utf-8", "replace")]
        )
        if code == RequestCode.SEND_BATCH_MESSAGE:
            body = cases.mutated(
                chance, struct.pack(">IIIIi", 26, 0, 0, 0, 4) + b"body" + struct.pack(">h", 0)
            )
    flag = chance.choice([0, 0, 0, 0, 0, 0, 2, 1])
    make = cases.binary_frame if chance.random() < 0.4 else cases.json_frame
    return make(code, flag, chance.randrange(1 << 20), ext, body)


def _json(chance: Chance, kind: type[msgspec.Struct]) -> bytes:
    plain = json.dumps(cases.document(chance, kind)).encode("utf-8", "replace")
    return cases.odd_json(chance, plain) if chance.random() < 0.1 else plain


TARGETS: dict[str, type[Target]] = {
    target.name: target for target in (Headers, Bodies, *DECODERS, Requests, NameServer, Http, Stores)
}
