"""What the commits of a live table say of its progress, read from its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqspark.errors import MQError
from mqspark_jobs.tables.tablerecord import (
    TableRecord,
    TableVersion,
    later_version,
    metadata_of,
    newest_version,
)


def record(batch: int, end: int) -> TableRecord:
    return TableRecord("Orders", "c", "r", batch, {"broker-a:0": end})


def commit(root: Path, number: int, metadata: str | None = None, *stats: dict[str, Any]) -> None:
    info = {} if metadata is None else {"userMetadata": metadata}
    actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "WRITE", **info}}]
    actions += [{"add": {"path": "x", "stats": json.dumps({"minValues": each})}} for each in stats]
    log = root / "_delta_log"
    log.mkdir(exist_ok=True)
    (log / f"{number:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def test_the_newest_record_counts_whatever_others_commit_after_it(tmp_path: Path) -> None:
    url = str(tmp_path)
    assert newest_version(url) == TableVersion(-1, None)
    commit(tmp_path, 0)
    assert newest_version(url) == TableVersion(0, None)
    commit(tmp_path, 1, metadata_of(record(0, 5)))
    commit(tmp_path, 2, metadata_of(record(1, 9)))
    commit(tmp_path, 3, "the metadata of another writer")
    commit(tmp_path, 4, '{"mqspark": 3}')
    commit(tmp_path, 5)
    (tmp_path / "_delta_log" / "00000000000000000009.checkpoint.parquet").write_bytes(b"")
    assert newest_version(url) == TableVersion(5, record(1, 9))


def test_what_is_known_is_not_read_again(tmp_path: Path) -> None:
    url = str(tmp_path)
    commit(tmp_path, 7, metadata_of(record(0, 5)))
    known = newest_version(url)
    assert later_version(url, known) == known
    commit(tmp_path, 8)
    commit(
        tmp_path,
        9,
        metadata_of(record(1, 9)),
        {"t": "2026-01-02T00:00:01Z"},
        {"t": "2026-01-01T00:00:00Z"},
        {},
    )
    commit(tmp_path, 10)
    (tmp_path / "_delta_log" / f"{7:020d}.json").unlink()
    assert later_version(url, known, "t") == TableVersion(10, record(1, 9), "2026-01-01T00:00:00Z")


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"commitInfo": 3}', b"\xff"])
def test_a_damaged_commit_is_named(tmp_path: Path, data: bytes) -> None:
    commit(tmp_path, 0)
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_bytes(data)
    with pytest.raises(MQError, match=r"damaged commit 00000000000000000001\.json"):
        newest_version(str(tmp_path))
