"""Whatever a peer asks, broker and name server answer it with a code of the protocol: never with a fault of
their own, never with silence, never with an exception for the shell."""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Iterator

import pytest

from mqspark.auth.access import header_of
from mqspark.broker.broker import BrokerCore
from mqspark.broker.config import BrokerConfig
from mqspark.message import encode_host
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.header import Header
from mqspark.protocol.session import Session
from mqspark.store.config import StoreConfig
from mqspark.store.store import MessageStore
from tests.support.clocks import ManualClock
from tests.support.draws import some

VECTORS = pathlib.Path(__file__).parents[1] / "golden" / "vectors"
REQUESTS = 3000

TOPICS = ["T", "Orders", "TBW102", "%RETRY%CG", "U"]
GROUPS = ["CG", "PG", "G2"]
SMALL = ["0", "0", "0", "1", "2", "3", "5", "6", "7", "16", "32", "-1"]
LARGE = ["100", "2147483647", "-2147483648"]
HUGE = ["1700000000000", "9223372036854775807", "-9223372036854775808"]
PROPERTIES = [
    *("", "\x02", "UNIQ_KEY\x01u\x02TAGS\x01TagA", "TAGS\x01B\x02", "KEYS\x01k\x02", "UNIQ_KEY\x01"),
    *("DELAY\x013\x02", "DELAY\x01--3\x02", "DELAY\x01²\x02", "TRAN_MSG\x01true\x02", "\x01\x02\x01"),
]
ODD = [
    "",
    "x\x01y",
    "中",
    "²",
    "||",
    "*",
    "TagA||B",
    "SQL92",
    "TAG",
    "=",
    "+=",
    "+a=b",
    "-",
    "a b",
    "{",
    "true",
]
HEARTBEAT = (
    '{"clientID":"c%d","consumerDataSet":[{"groupName":"%s","subscriptionDataSet":'
    '[{"topic":"T","subString":"%s","subVersion":%d}]}],"producerDataSet":[{"groupName":"PG"}]}'
)


def golden_bodies() -> Iterator[str]:
    for name in ("bodies.jsonl", "body_defaults.jsonl"):
        for line in (VECTORS / name).read_text().splitlines():
            vector = json.loads(line)
            for member in ("json", "default", "scalarsFilled"):
                if str(vector.get(member, "")).startswith("{"):
                    yield vector[member]


BODIES = sorted(set(golden_bodies()))


class Asker:
    """Makes requests that are half sensible."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def request(self, codes: list[int], opaque: int) -> bytes:
        code = self.random.choice(codes)
        ext = self._ext(header_of(code)) if self.random.random() < 0.98 else None
        version = self.random.choice([0, 300, 479, 515])
        return encode_request(code, opaque, ext, self._body(code), version=version)

    def _ext(self, header_type: type[Header] | None) -> dict[str, str]:
        ext = {}
        pick = self.random.choice
        for name, wire in zip(
            header_type.__struct_fields__ if header_type else (),
            header_type.__struct_encode_fields__ if header_type else (),
            strict=True,
        ):
            hint = str(header_type.__annotations__.get(name, "bool | None"))
            if "None" in hint and self.random.random() < 0.4:
                continue
            if "I32" in hint or "I64" in hint:
                ext[wire] = pick(SMALL + LARGE + (HUGE if "I64" in hint else []))
            elif "bool" in hint:
                ext[wire] = pick(["true", "false"])
            elif "topic" in name and "type" not in name:
                ext[wire] = pick(TOPICS)
            elif "group" in name:
                ext[wire] = pick(GROUPS)
            elif name == "properties":
                ext[wire] = pick(PROPERTIES)
            else:
                ext[wire] = pick(ODD + TOPICS)
            if self.random.random() < 0.02:
                ext[wire] = pick(ODD + HUGE)
        return ext

    def _body(self, code: int) -> bytes:
        pick = self.random.choice
        if code == RequestCode.HEART_BEAT and self.random.random() < 0.8:
            expression = pick(["*", "TagA", "TagA||B", "||", ""])
            return (
                HEARTBEAT % (self.random.randrange(3), pick(GROUPS), expression, self.random.randrange(5))
            ).encode()
        kind = self.random.random()
        if kind < 0.25:
            return b""
        if kind < 0.35:
            return self.random.randbytes(self.random.randrange(60))
        if kind < 0.4:
            return b"k=v\nbrokerPermission=6\nflushDiskType=X\n=\n"
        text = list(pick(BODIES))
        for _ in range(pick([0, 0, 1, 2])):
            text[self.random.randrange(len(text))] = pick('{}[]",:0-9nt\\')
        return "".join(text).encode()


@pytest.mark.parametrize(
    "seed",
    some(
        [*range(8), *(pytest.param(seed, marks=pytest.mark.slow("more seeds")) for seed in range(8, 24))], 2
    ),
)
def test_no_request_is_an_internal_error(
    seed: int, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    store_config = StoreConfig(
        store_path_root_dir=str(tmp_path / "store"), message_delay_level="1s 2s 5s 30s"
    )
    store = MessageStore(store_config, clock, store_host=encode_host("127.0.0.1", 10911))
    store.open()
    try:
        broker_config = BrokerConfig(broker_ip1="127.0.0.1")
        broker = BrokerCore(broker_config, store, clock, random=random.Random(seed))
        name_server = NameServer(NamesrvConfig(kv_config_path=str(tmp_path / "kv.json")), clock)
        frequent = [10, 310, 310, 11, 11, 34, 14, 15]
        asker = Asker(seed)
        for core, codes in (
            (broker, [*broker.handlers, *(frequent * 5)]),
            (name_server, list(name_server.handlers)),
        ):
            sessions = [Session(n, "127.0.0.1", 5000 + n, core.outbox) for n in range(3)]
            for session in sessions:
                core.connected(session)
            for opaque in range(REQUESTS):
                session = asker.random.choice(sessions)
                frame = asker.request(codes, opaque)
                core.received(session, Connection().receive_data(frame))
                if opaque % 3 == 0:
                    core.turn()
                if opaque % 50 == 0:  # what is delayed, popped or parked comes to its time, too
                    clock.advance(asker.random.choice([200, 5_000]))
                    core.tick()
                for written in core.outbox:
                    for command in Connection().receive_data(b"".join(written.take())):
                        assert "internal error" not in (command.remark or ""), (frame, caplog.text[-3000:])
                core.outbox.clear()
    finally:
        store.close()
    assert not [record for record in caplog.records if record.exc_info]
