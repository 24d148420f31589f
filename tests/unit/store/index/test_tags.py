"""The index of tags: parts of an index with and without them, in fsck and when it is made again."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.store.index import indexer
from mqspark.store.index.keys import KeyColumns, key_steps
from mqspark.store.log.scan import Run
from mqspark.store.store import MessageStore
from mqspark.store.tools.fsck import FsckReport, fsck
from mqspark.store.tools.offlinestore import OfflineStore
from mqspark.store.tools.remake import remake
from tests.support.clocks import ManualClock
from tests.support.store_tools import QuickFiles, flush, opened, put, query


def send(store: MessageStore, numbers: range) -> None:
    for number in numbers:
        put(store, "T", 0, b"%d" % number, b"KEYS\x01k%d\x02TAGS\x01red\x02" % number)
    flush(store)


def red(store: MessageStore) -> int:
    return len(query(store, "T", "red", 64, 0, 1 << 62, is_tag=True))


def checked(store: MessageStore) -> FsckReport:
    return fsck(OfflineStore(store.config))


def test_an_index_that_was_begun_without_tags_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a directory comes from a RocketMQ before 5.5."""

    with monkeypatch.context() as before:
        before.setattr(indexer, "key_steps", functools.partial(key_steps, tags=False))
        store = opened(tmp_path, None, QuickFiles())
        send(store, range(10))
        assert red(store) == 0
        store.close()
    (finding,) = checked(store).findings
    assert (finding.severity, finding.kind) == ("note", "index.untagged")
    store = opened(tmp_path, None, QuickFiles())
    send(store, range(10, 15))
    assert red(store) == 5
    assert len(query(store, "T", "k3", 9, 0, 1 << 62)) == 1
    store.close()
    (finding,) = checked(store).findings
    assert (finding.severity, finding.kind) == ("note", "index.untagged")
    assert "10 tags" in finding.text
    remake(store.config, ManualClock())
    assert checked(store).findings == []
    store = opened(tmp_path, None, QuickFiles())
    assert red(store) == 15
    store.close()


def test_a_missing_key_is_still_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_third(run: Run) -> Iterator[KeyColumns]:
        for keys in key_steps(run):
            kept = keys.positions != run.positions[2]
            yield KeyColumns(*(column[kept] for column in keys))

    with monkeypatch.context() as wrong:
        wrong.setattr(indexer, "key_steps", without_the_third)
        store = opened(tmp_path, None, QuickFiles())
        send(store, range(10))
        store.close()
    found = checked(store).findings
    assert {(finding.severity, finding.kind) for finding in found} == {
        ("error", "index.missing"),
        ("note", "index.untagged"),
    }
