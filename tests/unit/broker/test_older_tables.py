"""Every table that a broker saves, as an older file beside a newer log: after a backup of a part was restored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.auth.users import UserType
from mqspark.broker.tables.ranges import found_in_tables
from mqspark.message import encode_properties
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.header import Header
from mqspark.protocol.signature import Signer
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.notes.tablenotes import MAX_SAVES, TableNotes
from mqspark.store.tools.offlinestore import OfflineStore
from tests.support.remoting import heartbeat_body, subscription, topic_fields
from tests.unit.auth_kit import ROOT, authority
from tests.unit.broker.admin.admin_kit import commit, create, group
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext
from tests.unit.pop_kit import POP, pop_ext

TABLES = (
    "topics.json",
    "topicQueueMapping.json",
    "subscriptionGroup.json",
    "messageRequestMode.json",
    "consumerOffset.json",
    "consumerFilter.json",
    "consumerOrderInfo.json",
    "delayOffset.json",
    "timermetrics",
    "users.auth",
    "mqspark.deletions",
)


class RootPeer(Peer):
    def ask(
        self, code: int, header: Header | Mapping[str, str] | None = None, body: bytes = b"", **more: Any
    ) -> Command:
        assert not isinstance(header, Header)
        return super().ask(code, Signer(*ROOT).signed(header or {}, body), body, **more)


class Used(Bench):
    """A broker whose every table ``change`` changes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            store_settings={"timer_wheel_enable": True},
            enable_property_filter=True,
            new_authority=lambda: authority(directory / "config" / "auth"),
        )

    def peer(self, *, fast: bool = False, address: str = "127.0.0.1") -> Peer:
        return RootPeer(self.broker, super().peer(fast=fast, address=address).session, self.housekeeping)

    def tables(self) -> dict[str, Path]:
        """The files of all tables, by name."""
        files = [*self.directory.glob("config/**/*"), self.directory / "mqspark.deletions"]
        return {
            path.name: path
            for path in files
            if path.is_file() and path.suffix not in _OTHERS and path.name != _POSITIONS
        }

    def change(self, number: int) -> None:
        peer = self.peer()
        for topic in ("T", "Ordered", f"T{number}", f"Doomed{number}"):
            assert create(peer, topic) == 0
        group(peer, f"g{number}")
        for topic in ("T", "Ordered", f"Doomed{number}"):
            assert peer.ask(SEND, send_ext(topic, 0), b"x").code == 0
        for properties in ({"DELAY": "1"}, {"TIMER_DELAY_SEC": "100"}):
            text = encode_properties(properties).decode()
            assert peer.ask(SEND, send_ext("T", 0, properties=text), b"later").code == 0
        assert commit(peer, "g1", "T", 0, number) == 0
        self.flush()
        assert peer.ask(POP, pop_ext(self, "Ordered", f"g{number}", order="true")).code == 0
        mode = {"consumerGroup": "g1", "mode": "POP", "popShareQueueNum": number, "topic": "T"}
        assert peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode()).code == 0
        subscribe(peer, number)
        self.make_static(peer, f"S{number}")
        assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": f"Doomed{number}"}).code == 0
        users = self.broker.authority
        assert users is not None
        users.users.add(f"user{number}", "secret-of-it", UserType.NORMAL)
        self.run_for(6_000, 1_000)
        self.run_jobs()
        self.run_jobs()

    def make_static(self, peer: Peer, topic: str) -> None:
        header = topic_fields(topic)
        body = {
            "topic": topic,
            "bname": "b-a",
            "totalQueues": 1,
            "epoch": 1,
            "hostedQueues": {0: [{"bname": "b-a"}]},
        }
        text = json.dumps(body).encode()
        peer.give(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, Signer(*ROOT).signed(header, text), text)
        self.broker.turn()
        self.run_jobs()

    def said(self) -> list[str]:
        return sorted(each.text for each in self.store.damages.found)

    def checked(self) -> list[str]:
        found = found_in_tables(OfflineStore(self.store_config), self.clock, self.store.log.position)
        return sorted(each.text for each in found)


NUMBERED = {"topics.json", "subscriptionGroup.json", "consumerOffset.json"}
_OTHERS = {".bak", ".key", ".lock", ".log"}
_POSITIONS = "timercheck"  # checked by the timers (docs/damage.md)


def subscribe(peer: Peer, number: int) -> None:
    wanted = subscription("T", f"n > {number}", number, expressionType="SQL92")
    assert peer.ask(RequestCode.HEART_BEAT, {}, heartbeat_body("c1", {"g1": [wanted]})).code == 0


def test_an_older_file_of_any_table_is_reported(tmp_path: Path) -> None:
    """Once, and by ``fsck`` before; a kill after the saves is no older file. The list has all that is saved."""
    bench = Used(tmp_path)
    bench.change(1)
    older = {name: path.read_bytes() for name, path in bench.tables().items()}
    bench.change(2)
    assert sorted(older) == sorted(TABLES)
    newest = {name: path.read_bytes() for name, path in bench.tables().items()}
    assert [name for name in TABLES if newest[name] == older[name]] == []
    bench.crash()
    assert bench.said() == []
    bench.close()
    assert bench.checked() == []
    room = tmp_path / "mqspark.deletions.room"
    for name in TABLES:
        path = bench.tables()[name]
        kept = {each: each.read_bytes() for each in (path, room, tmp_path / "mqspark.tables")}
        path.write_bytes(older[name])
        room.unlink()
        said = [text for text in bench.checked() if "an older one" in text]
        assert [text.split()[0] for text in said] == [name]
        assert "when the log ended at" in said[0]
        assert "it has version" in said[0] or name not in NUMBERED
        path.unlink()
        backup = path.with_name(name + ".bak")
        backup.rename(path.with_name("aside"))
        wanted = (
            f"{name} is missing"
            if name != "topics.json"
            else f"{name}: the last save is lost; made from stored"
        )
        assert wanted in "".join(bench.checked())
        path.with_name("aside").rename(backup)
        for each, data in kept.items():
            each.write_bytes(data)
    assert bench.checked() == []
    for name in TABLES:
        bench.tables()[name].write_bytes(older[name])
    room.unlink()
    found = bench.checked()
    bench.open()
    assert bench.said() == found
    assert [text.split()[0] for text in found if "an older one" in text] == sorted(TABLES)
    bench.change(3)
    bench.reopen()
    assert bench.said() == []


def test_an_older_list_of_deletions_brings_no_topic_back(tmp_path: Path, bench: Bench) -> None:
    """Its copy has the deletion, also when the list is missing, and is not used when it is the older one."""
    peer, path = bench.peer(), tmp_path / "mqspark.deletions"
    room = path.with_name("mqspark.deletions.room")

    def delete(topic: str) -> None:
        assert create(peer, topic) == 0
        assert peer.ask(SEND, send_ext(topic, 0), b"x").code == 0
        bench.flush()
        assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 0
        bench.run_jobs()

    delete("One")
    older, older_copy = path.read_bytes(), room.read_bytes()
    delete("Two")
    bench.close()
    for is_missing in (False, True):
        path.write_bytes(older)
        if is_missing:
            path.unlink()
            path.with_name("mqspark.deletions.bak").unlink(missing_ok=True)
        assert OfflineStore(bench.store_config).older_deletions
        bench.open()
        assert [(each.kind, each.outcome) for each in bench.store.damages.found] == [
            ("deletions.older", "healed")
        ]
        assert set(bench.store.deletions.positions) == {"One", "Two"}
        bench.reopen()
        assert bench.store.damages.found == []
        bench.close()
    room.write_bytes(older_copy)
    bench.open()
    assert bench.store.damages.found == []
    assert set(bench.store.deletions.positions) == {"One", "Two"}


@pytest.mark.parametrize("is_made_again", [False, True])
def test_an_older_table_brings_no_deleted_topic_back(tmp_path: Path, is_made_again: bool) -> None:
    """Unless it was made again, and has messages."""
    bench = Bench(tmp_path)
    peer, topics = bench.peer(), tmp_path / "config" / "topics.json"
    for topic in ("Doomed", "Kept"):
        assert create(peer, topic) == 0
        assert peer.ask(SEND, send_ext(topic, 0), b"x").code == 0
    bench.flush()
    bench.run_jobs()
    older = topics.read_bytes()
    assert peer.ask(SEND, send_ext("Kept", 0), b"y").code == 0
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Doomed"}).code == 0
    bench.run_jobs()
    if is_made_again:
        assert create(peer, "Doomed") == 0
        assert peer.ask(SEND, send_ext("Doomed", 1), b"new").code == 0
    bench.close()
    topics.write_bytes(older)
    bench.open()
    state = bench.broker.state
    assert "Kept" in state.topics
    assert ("Doomed" in state.topics) == is_made_again
    assert [each.body for each in bench.records("Doomed", 1)] == ([b"new"] if is_made_again else [])


def test_the_saves_that_are_noted_are_bounded(tmp_path: Path) -> None:
    """Also when the notes cannot be written for long."""
    table = Saved(tmp_path / "config" / "t.json")
    file = ConfigFile(tmp_path / "mqspark.tables")
    notes = TableNotes(file, tmp_path / "config", SimpleNamespace(durable=7))
    notes.watch(table)
    for digest in range(3 * MAX_SAVES):
        table.told(digest)
    notes.write()
    assert not notes.is_behind
    text = file.path.read_text()
    assert text.count("@7") == MAX_SAVES
    for digest, is_older in ((3 * MAX_SAVES - 1, False), (2 * MAX_SAVES, True), (1 << 31, False)):
        again = TableNotes(file, tmp_path / "config")
        older = again.watch(Saved(table.path, digest))
        assert (older is not None) == is_older, digest


class Saved:
    """A table without a data version."""

    saved_version = None
    is_missing = is_known_damaged = False

    def __init__(self, path: Path, digest: int = 1) -> None:
        self.path = path
        self.digest = digest
        self.told: Callable[[int], None] = lambda digest: None

    def tell_saves(self, on_written: Callable[[int], None]) -> None:
        self.told = on_written
