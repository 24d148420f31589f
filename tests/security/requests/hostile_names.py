"""Every request of a broker and a name server with hostile names, in a process that an audit hook watches.

``python -m tests.security.requests.hostile_names DIRECTORY SETTINGS STEP`` prints, as JSON, what was created, opened
for writing, renamed or removed where the store has nothing, and what was answered with, for every STEP-th name. Hooks
cannot be taken back, hence the process.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import inspect

from mqspark import message
from mqspark.auth.access import header_of
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.bodies.client_bodies import (
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
    UnlockBatchRequestBody,
)
from mqspark.protocol.bodies.topic_bodies import (
    CreateTopicListRequestBody,
    DeleteSubscriptionGroupListRequestBody,
    DeleteTopicListRequestBody,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicRouteData,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.session import Session
from tests.support.clocks import ManualClock
from tests.support.store_tools import complete
from tests.unit.broker_kit import Bench, Peer, send_ext

BODIES: dict[int, Any] = {
    RequestCode.HEART_BEAT: HeartbeatData,
    RequestCode.CHECK_CLIENT_CONFIG: CheckClientRequestBody,
    RequestCode.LOCK_BATCH_MQ: LockBatchRequestBody,
    RequestCode.UNLOCK_BATCH_MQ: UnlockBatchRequestBody,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: CreateTopicListRequestBody,
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST: DeleteTopicListRequestBody,
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: DeleteSubscriptionGroupListRequestBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: SubscriptionGroupList,
    RequestCode.QUERY_ASSIGNMENT: QueryAssignmentRequestBody,
    RequestCode.SET_MESSAGE_REQUEST_MODE: SetMessageRequestModeRequestBody,
    RequestCode.BATCH_ACK_MESSAGE: BatchAckMessageRequestBody,
    RequestCode.REGISTER_BROKER: RegisterBrokerBody,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: TopicRouteData,
}
PROPERTIES = (
    {message.DELAY: "1", message.RETRY_TOPIC: "?", message.REAL_TOPIC: "?", message.REAL_QUEUE_ID: "?"},
    {message.TRANSACTION_PREPARED: "true", message.PRODUCER_GROUP: "?", message.REAL_TOPIC: "?"},
    {message.MULTI_DISPATCH: "?"},
    {message.MULTI_DISPATCH: "%LMQ%?,%LMQ%x"},
    {message.UNIQ_KEY: "?", message.KEYS: "? ?", message.TAGS: "?", message.POP_CK: "?"},
    {message.TIMER_DELIVER_MS: "1700000001000", message.REAL_TOPIC: "?", message.TIMER_DEL_UNIQKEY: "?"},
    {
        message.REPLY_TO_CLIENT: "?",
        message.CORRELATION_ID: "?",
        message.CLUSTER: "?",
        message.MESSAGE_TYPE: "reply",
    },
    {message.ORIGIN_GROUP: "?", message.MAX_RECONSUME_TIMES: "?", message.BORN_TIMESTAMP: "?"},
)
"""Properties of messages: names that a broker acts on later, when it delivers or checks."""
FREE = {"value": "v", "properties": "KEYS\x01k\x02", "compressed": "false", "bodyCrc32": "0"}
LAYOUT = re.compile(
    r"""
    (commitlog|timerlog)(/\d{20})?
    | (consumequeue|consumequeue_ext|batchconsumequeue)(/[%|+a-zA-Z0-9_-]{1,255}(/\d{1,10}(/\d{20})?)?)?
    | index(/\d{17})?
    | config(/[a-zA-Z]+(\.json)?(\.bak|\.new)?)?
    | abort | checkpoint | lock | timerwheel
    | mqspark\.[a-z]+(\.bak|\.new|\.room)?
    """,
    re.VERBOSE,
)
CHANGES = {
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod",
    "os.chown", "os.utime", "os.mkfifo", "os.mknod", "shutil.rmtree", "shutil.move", "shutil.copyfile",
    "tempfile.mkstemp", "tempfile.mkdtemp",
}  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def hostile_names(store: Path, outside: Path) -> list[str]:
    return [
        str(outside), f"{outside}/file", str(store), f"{store}/commitlog", "..", ".", "a/../../b", "../outside",
        "../../outside", "%RETRY%../outside", "%DLQ%../../outside", "%LMQ%../../outside", "%RETRY%../x+../y",
        "../config/topics.json", "outside\0", "a\0b", "a\nb\n", "a\x1b[2Jb", "%2e%2e%2foutside", "..%c0%af",
        "%s%n%x{0}{__class__}", "..\\outside", "C:\\outside", "a@b", "\ud800", "a\udfff", "\u2028", " ", "$HOME",
        "commitlog", "consumequeue", "config", "lock", "abort", "mqspark.compacted", "x" * 256, "x" * 100_000,
        "../" * 30_000, "",
    ]  # fmt: skip


def frame(code: int, opaque: int, ext: dict[str, str], body: bytes) -> bytes:
    """By hand: our own encoder sends no half surrogate pairs."""
    head = {"code": code, "opaque": opaque, "flag": 0, "language": "JAVA", "version": 479, "extFields": ext}
    text = json.dumps(head).encode()
    return struct.pack(">iI", 4 + len(text) + len(body), len(text)) + text + body


def headers_of(code: int, name: str) -> Iterator[dict[str, str]]:
    """All texts hostile; then one at a time, the others those of a topic and a group that are there."""
    kind = header_of(code)
    plain: dict[str, str] = {}
    texts: list[str] = []
    if kind is None:
        texts = ["topic", "group", "consumerGroup", "brokerName", "clientId"]
    for each in inspect.type_info(kind).fields if kind is not None else ():  # type: ignore[attr-defined]
        if each.encode_name in FREE:
            plain[each.encode_name] = FREE[each.encode_name]
        elif takes_text(each.type):
            texts.append(each.encode_name)
        else:
            plain[each.encode_name] = "0"
    if len(name) < 1000:
        yield plain | dict.fromkeys(texts, name)
    for text in texts:
        honest = {other: "T" if "opic" in other or other in "bc" else "CG" for other in texts}
        yield plain | honest | {text: name}


def takes_text(info: Any) -> bool:
    return isinstance(info, inspect.StrType) or any(
        isinstance(each, inspect.StrType) for each in getattr(info, "types", ())
    )


def filled(info: Any, name: str, depth: int = 0) -> Any:
    """A document of a body's type in which every text is the name."""
    if isinstance(info, inspect.UnionType):
        return filled(
            next(each for each in info.types if not isinstance(each, inspect.NoneType)), name, depth
        )
    if isinstance(info, inspect.StrType):
        return name
    if isinstance(info, inspect.ListType | inspect.SetType):
        return [filled(info.item_type, name, depth + 1)]
    if isinstance(info, inspect.DictType):
        key = filled(info.key_type, name, depth + 1)
        return {key: filled(info.value_type, name, depth + 1)}
    if isinstance(info, inspect.StructType):
        return {each.encode_name: filled(each.type, name, depth + 1) for each in info.fields}
    return False if isinstance(info, inspect.BoolType) else 1


def body_of(code: int, name: str) -> bytes:
    if code in BODIES:
        return json.dumps(filled(inspect.type_info(BODIES[code]), name)).encode()
    return b"x"


class Watch:
    """What is done to files at other places than those that the store has names for; keeps it from being done."""

    def __init__(self, store: Path, namesrv: Path) -> None:
        self.roots = {str(store), str(namesrv)}
        self.strange: set[str] = set()
        self.now = ""
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writes = flags & WRITING if isinstance(flags, int) else set("wax+") & set(mode or "")
            if writes and isinstance(path, str | bytes):
                self.look(event, os.fsdecode(path))
        elif event in CHANGES:
            for path in args[: 2 if event in ("os.rename", "os.link", "shutil.move") else 1]:
                if isinstance(path, str | bytes | os.PathLike):
                    self.look(event, os.fsdecode(path))

    def look(self, event: str, path: str) -> None:
        for root in self.roots:
            if path == root:
                return
            if path.startswith(f"{root}/") and LAYOUT.fullmatch(path[len(root) + 1 :]):
                return
        self.strange.add(f"{event} {path[:200]!r} in {self.now}")
        raise PermissionError(f"{event} {path[:200]!r}")  # a hook that raises keeps it from being done


def finish(peer: Peer) -> None:
    """Long answers, too, as far as they do not wait for the disk."""
    while peer.core.work():
        pass
    peer.core.turn()


class Attack:
    def __init__(self, watch: Watch, names: list[str]) -> None:
        self.watch = watch
        self.names = names
        self.requests = 0
        self.long_answers: list[str] = []
        self.broken: list[str] = []
        self.accepted: set[str] = set()
        """Requests that succeeded although every name in them was hostile."""

    def run(self, peer: Peer, codes: list[int], housekeeping: Any, what: str) -> None:
        for code in codes:
            for name in self.names:
                self.watch.now = f"{what} {code} {name[:40]!r}"
                body = body_of(code, name)
                for number, ext in enumerate(headers_of(code, name)):
                    self.requests += 1
                    try:
                        peer.give_frame(frame(code, self.requests, ext, body))
                        finish(peer)
                        answers = peer.heard()
                    except Exception as error:
                        self.broken.append(f"{self.watch.now}: {type(error).__name__}: {error}"[:300])
                        continue
                    self.judge(code, name, answers, number == 0 and len(name) < 1000)
                housekeeping()

    def send_properties(self, peer: Peer, housekeeping: Any) -> None:
        for name in (name for name in self.names if len(name) < 1000):
            for properties in PROPERTIES:
                self.requests += 1
                self.watch.now = f"broker, properties {[*properties]} {name[:40]!r}"
                ext = send_ext(
                    "T",
                    properties="".join(
                        f"{key}\x01{value.replace('?', name)}\x02" for key, value in properties.items()
                    ),
                )
                try:
                    peer.give_frame(frame(RequestCode.SEND_MESSAGE_V2, self.requests, ext, b"x"))
                    finish(peer)
                    self.judge(RequestCode.SEND_MESSAGE_V2, "", peer.heard(), False)
                except Exception as error:
                    self.broken.append(f"{self.watch.now}: {type(error).__name__}: {error}"[:300])
            housekeeping()

    def judge(self, code: int, name: str, answers: list[Command], is_all_hostile: bool) -> None:
        for answer in answers:
            if not answer.is_response:
                continue
            if len(answer.remark or "") > 4096 or (len(name) > 10_000 and len(answer.body) > 50_000):
                self.long_answers.append(self.watch.now)
            if "internal error" in (answer.remark or ""):
                self.broken.append(f"{self.watch.now}: {answer.remark}"[:300])
            if is_all_hostile and answer.code == ResponseCode.SUCCESS and ".." in name and "/" in name:
                self.accepted.add(RequestCode(code).name)


def main() -> None:
    root = Path(sys.argv[1])
    outside, store, namesrv = root / "outside", root / "store", root / "namesrv"
    for each in (outside, namesrv):
        each.mkdir()
    (outside / "file").write_text("precious")
    watch = Watch(store, namesrv)
    options = ("enable_lmq", "enable_multi_dispatch", "enable_consume_queue_ext", "timer_wheel_enable")
    everything = dict.fromkeys(options, True)
    bench = Bench(store, store_settings=everything if sys.argv[2] == "everything" else {})
    peer = bench.peer()
    for topic in ("T", "Kept"):
        answer = peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"precious")
        if answer.code != 0:
            raise SystemExit(f"the broker does not work: {answer!r}")
    attack = Attack(watch, hostile_names(store, outside)[:: int(sys.argv[3])])

    def keep_house() -> None:
        bench.flush()
        bench.run_jobs()

    attack.run(peer, sorted(bench.broker.handlers), keep_house, "broker")
    attack.send_properties(peer, keep_house)
    bench.run_for(10_000, step_ms=1_000)
    keep_house()

    clock, outbox = ManualClock(), list[Session]()
    config = NamesrvConfig(kv_config_path=str(namesrv / "config" / "kvConfig.json"))
    core = NameServer(config, clock, outbox=outbox)
    their_peer = Peer(core, Session(1, "127.0.0.1", 40_000, outbox))

    def save() -> None:
        complete(core.jobs())

    attack.run(their_peer, sorted(core.handlers), save, "name server")
    keep_house()
    peer.heard()  # answers that have waited for the disk
    answer = peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("Kept"), b"still here")
    kept = [message.body.decode() for message in bench.records("Kept")]
    bench.flush()
    bench.reopen()
    print(
        json.dumps(
            {
                "requests": attack.requests,
                "strange": sorted(watch.strange),
                "long": attack.long_answers,
                "broken": attack.broken,
                "accepted": sorted(attack.accepted),
                "outside": sorted(str(path.relative_to(root)) for path in outside.rglob("*")),
                "root": sorted(path.name for path in root.iterdir()),
                "kept": kept,
                "code": answer.code,
                "restarted": [message.body.decode() for message in bench.records("Kept")] == kept,
            }
        )
    )


if __name__ == "__main__":
    main()
