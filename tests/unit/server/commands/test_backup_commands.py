"""``mqspark store backup``, ``verify`` and ``restore``: what they say, their exit codes, and how fast they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark_server.commands.local.backup_cli import Throttle
from tests.support import commands
from tests.support.commands import Outcome
from tests.support.store_tools import QuickFiles, crash, flush, opened, put


def mqspark(*arguments: object) -> Outcome:
    return commands.mqspark("store", *map(str, arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store in use, with 30 messages and a table of offsets as RocketMQ writes it, and its backup."""
    store = opened(tmp_path / "store", None, QuickFiles())
    for number in range(30):
        put(store, "Orders", number % 2, b"order %d" % number)
    flush(store)
    (tmp_path / "store/config").mkdir()
    (tmp_path / "store/config/consumerOffset.json").write_text('{"offsetTable":{"Orders@billing":{0:7,1:5}}}')
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=orders\nbrokerClusterName=c1\nmappedFileSizeCommitLog=4096\n")
    done = mqspark("backup", tmp_path / "store", "--to", tmp_path / "backup", "-c", conf, "-o", "json")
    assert done.code == 0, done.err
    assert (done.json["broker"], done.json["backup"], done.json["attempts"]) == ("orders of c1", 1, 1)
    crash(store)
    return tmp_path


def test_a_restore_says_where_groups_go_on(folder: Path) -> None:
    assert mqspark("verify", folder / "backup").code == 0
    done = mqspark("restore", folder / "backup", "--to", folder / "new")
    assert done.code == 0, done.err
    assert ["billing", "Orders", "12"] in [line.split() for line in done.lines]
    assert "Delivered again" in done.out
    assert "are not in it" in done.out
    again = mqspark("restore", folder / "backup", "--to", folder / "new")
    assert again.code == 2
    assert "is not empty" in again.err


def test_verify_names_file_and_bytes(folder: Path) -> None:
    (path,) = (folder / "backup/log").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:])
    done = mqspark("verify", folder / "backup", "-o", "json")
    assert done.code == 3
    assert [(row["place"], row["from_byte"], row["to_byte"]) for row in done.json] == [
        (f"log/{path.name}", 0, len(content))
    ]
    restored = mqspark("restore", folder / "backup", "--to", folder / "new")
    assert restored.code == 1
    assert path.name in restored.err
    for tool in ("fsck", "stats", "rebuild"):
        assert "a restore did not finish" in mqspark(tool, folder / "new").err


def test_another_broker_is_refused_unless_it_is_meant(folder: Path) -> None:
    other = folder / "other.conf"
    other.write_text("brokerName=payments\nbrokerClusterName=c1\n")
    back = ["restore", folder / "backup", "--to", folder / "new", "-c", other]
    refused = mqspark(*back)
    assert refused.code == 2
    assert "brokerName=orders" in refused.err
    assert not (folder / "new").exists()
    assert mqspark(*back, "--other-broker").code == 0


@pytest.mark.parametrize("rate", ["fast", "0", "-1", "5X", ""])
def test_a_rate_that_is_none_is_refused(folder: Path, rate: str) -> None:
    done = mqspark("verify", folder / "backup", "--rate", rate)
    assert done.code == 2
    assert "not a number of bytes a second" in done.err


def test_a_throttle_waits_for_what_was_read() -> None:
    now_s, slept_s = 100.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s, slept_s
        now_s += seconds
        slept_s += seconds

    pace = Throttle(1000, lambda: now_s, sleep)
    for _ in range(10):
        pace(500)
    assert slept_s == pytest.approx(5)
    now_s += 60
    pace(500)
    assert slept_s == pytest.approx(5.5), "time that was not used gives no burst"
