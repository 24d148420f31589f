"""What a broker believes of an archive: manifests and Delta's log that lie are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqspark.errors import MQError, StoreCorrupt
from mqspark_server.tiered.archivecatalog import ArchiveCatalog, RangeOfLog


def write(
    root: Path, *manifests: dict[str, Any], files: list[dict[str, Any]] | None = None
) -> ArchiveCatalog:
    for manifest in manifests:
        path = root / "_mqspark" / "b" / f"{manifest['low']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(manifest))
    log = root / "_delta_log"
    log.mkdir(exist_ok=True)
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        *({"add": add} for add in files or []),
    ]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return ArchiveCatalog(str(root), "b")


def manifest(low: int, high: int, **ends: Any) -> dict[str, Any]:
    sums = {"rows": 1, "value_crcs": 0, "offsets": 0, "positions": 0, "v": 1}
    return {"broker": "b", "low": low, "high": high, "queues": {"T": ends}, **sums}


def add(path: str, low: int = 0, high: int = 9) -> dict[str, Any]:
    stats = {"minValues": {"physicalOffset": low}, "maxValues": {"physicalOffset": high}}
    return {"path": path, "size": 1, "partitionValues": {"topic": "T"}, "stats": json.dumps(stats)}


def test_ranges_files_and_offsets(tmp_path: Path) -> None:
    files = [add("topic=T/a.parquet", 0, 90), add("topic=T/b.parquet", 100, 190)]
    catalog = write(
        tmp_path,
        manifest(0, 100, **{"0": [0, 5]}),
        manifest(100, 200, **{"0": [5, 9], "1": [0, 1]}),
        files=files,
    )
    catalog.refresh({})
    assert sorted(catalog.bounds()) == [("T", 0, 0, 9), ("T", 1, 0, 1)]
    assert [part.first for part in catalog.parts("T", 0, 0)] == [0, 5]
    assert [part.first for part in catalog.parts("T", 0, 4)] == [0, 5]
    assert [part.first for part in catalog.parts("T", 0, 5)] == [5]
    assert catalog.parts("T", 0, 9) == []
    assert [Path(file.url).name for file in catalog.files("T", RangeOfLog(100, 200))] == ["b.parquet"]
    part = catalog.part_of("T", 0, RangeOfLog(100, 200))
    assert part is not None
    assert (part.first, part.end) == (5, 9)
    assert catalog.part_of("T", 0, RangeOfLog(0, 50)) is None


def test_only_the_newest_topic_of_a_name_counts(tmp_path: Path) -> None:
    catalog = write(
        tmp_path,
        *(
            manifest(low, low + 10, **{"0": ends})
            for low, ends in ((0, [0, 50]), (10, [50, 90]), (20, [0, 7]))
        ),
    )
    catalog.refresh({})
    assert list(catalog.bounds()) == [("T", 0, 0, 7)]
    # Offsets alone would not tell: the log position of the deletion does.
    catalog = write(tmp_path, manifest(20, 30, **{"0": [90, 95]}))
    catalog.refresh({"T": 15})
    assert list(catalog.bounds()) == [("T", 0, 90, 95)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"broker": "c"},
        {"low": 10},
        {"low": -1},
        {"low": True},
        {"low": "0"},
        {"high": 1 << 64},
        {"high": None},
        {"queues": []},
        {"queues": {"../T": {"0": [0, 1]}}},
        {"queues": {"T": {"-1": [0, 1]}}},
        {"queues": {"T": {"99999999999": [0, 1]}}},
        {"queues": {"T": {"0": [5, 1]}}},
        {"queues": {"T": {"0": [0, 1, 2]}}},
        {"queues": {"T": {"0": "01"}}},
    ],
)
def test_a_manifest_that_lies(tmp_path: Path, wrong: dict[str, Any]) -> None:
    catalog = write(tmp_path, manifest(0, 10, **{"0": [0, 1]}))
    path = tmp_path / "_mqspark" / "b" / "0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(StoreCorrupt, match=r"is not a manifest"):
        catalog.refresh({})


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", '{"low": 1}'])
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    catalog = write(tmp_path, manifest(0, 10, **{"0": [0, 1]}))
    (tmp_path / "_mqspark" / "b" / "0.json").write_text(text)
    with pytest.raises(StoreCorrupt, match=r"is not a manifest"):
        catalog.refresh({})


def test_ranges_that_overlap(tmp_path: Path) -> None:
    catalog = write(tmp_path, manifest(0, 10, **{"0": [0, 1]}), manifest(9, 20, **{"0": [1, 2]}))
    with pytest.raises(StoreCorrupt, match="overlap"):
        catalog.refresh({})


@pytest.mark.parametrize(
    "path",
    [
        "../secret.parquet",
        "topic=T/../../secret",
        "%2e%2e/secret",
        "/etc/passwd",
        "topic=T//x",
        "s3://elsewhere/x",
        "topic=T/file://x",
    ],
)
def test_files_outside_of_the_table_are_refused(tmp_path: Path, path: str) -> None:
    catalog = write(tmp_path, manifest(0, 10, **{"0": [0, 1]}), files=[add(path)])
    with pytest.raises(MQError, match="which is not in it"):
        catalog.refresh({})


def test_an_archive_of_too_many_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark_server.tiered.archivecatalog.MAX_QUEUES", 2)
    ends = {str(queue): [0, 1] for queue in range(3)}
    catalog = write(tmp_path, manifest(0, 10, **ends), manifest(10, 20, **ends))
    with pytest.raises(StoreCorrupt, match="more than 2 queues"):
        catalog.refresh({})


def test_a_failed_refresh_changes_nothing(tmp_path: Path) -> None:
    catalog = write(tmp_path, manifest(0, 10, **{"0": [0, 1]}), files=[add("topic=T/a")])
    catalog.refresh({})
    (tmp_path / "_mqspark" / "b" / "10.json").write_text("{")
    with pytest.raises(StoreCorrupt):
        catalog.refresh({})
    assert list(catalog.bounds()) == [("T", 0, 0, 1)]


def test_no_archive_yet(tmp_path: Path) -> None:
    catalog = ArchiveCatalog(str(tmp_path / "none"), "b")
    catalog.refresh({})
    assert list(catalog.bounds()) == []
