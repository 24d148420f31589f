"""Archives and logs in Google Cloud Storage and Azure: gcsfs and adlfs against emulators.

With S3: test_object_store.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.arrow.cluster.archives import Archive, load_manifests
from mqspark.arrow.files.deltafiles import delta_table
from mqspark.arrow.files.locations import names, read_bytes, remove_tree, write_bytes
from mqspark.arrow.files.logfiles import find_log, local_copy
from mqspark.store.disk.notes.archivednote import ARCHIVED, encode_archived
from mqspark.testing import Broker
from tests.integration.archive.test_tiered_reads import fill, log_begin, read_all, settings
from tests.support.archive_tools import archive_log
from tests.support.emulators import EmulatedStore, azure_store, google_store
from tests.support.jobs_tools import filled_store
from tests.support.maven import ToolMissing
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow("fetches emulators and their clients once; S3 is the fast twin")


@pytest.fixture(scope="module", params=["gcs", "azure"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmulatedStore]:
    kinds = {"gcs": google_store, "azure": azure_store}
    try:
        with kinds[request.param](tmp_path_factory.mktemp(request.param)) as running:
            yield running
    except ToolMissing as missing:
        pytest.skip(str(missing))


def test_small_files(store: EmulatedStore) -> None:
    folder = f"{store.url}/small"
    assert names(folder) == []
    with pytest.raises(FileNotFoundError):
        read_bytes(f"{folder}/file")
    write_bytes(f"{folder}/file", b"one")
    write_bytes(f"{folder}/file", b"two")
    assert read_bytes(f"{folder}/file") == b"two"
    assert names(folder) == ["file"]
    remove_tree(folder)
    assert names(folder) == []


def test_a_log_that_was_copied_there(store: EmulatedStore, tmp_path: Path) -> None:
    filled_store(tmp_path / "store", 60, mapped_file_size_commit_log=16_384).close()
    segments = sorted((tmp_path / "store/commitlog").iterdir())
    for path in segments:
        write_bytes(f"{store.url}/copy/commitlog/{path.name}", path.read_bytes())
    log = find_log(f"{store.url}/copy/commitlog")
    assert [file.start for file in log] == [int(path.name) for path in segments]
    with local_copy(log[-1]) as copied:
        assert copied.read_bytes() == segments[-1].read_bytes()


def test_a_broker_serves_an_archive_that_is_there(store: EmulatedStore, tmp_path: Path) -> None:
    """Archived, gone from the log, and read again: by the broker's process for that, and by the driver of a query."""
    url = f"{store.url}/archive"
    with Broker(store=tmp_path / "store", settings=settings(tmp_path, archiveUrl=url)) as broker:
        fill(broker, range(500))
        before = [message.body for message in read_all(broker, 0)]
        end = archive_log(broker.store_path, url)
        (broker.store_path / ARCHIVED).write_bytes(encode_archived(end))
        eventually(lambda: log_begin(broker) > 20, "the log expires", 60)
        assert [message.body for message in read_all(broker, 0)] == before
    assert sum(manifest.rows for manifest in load_manifests(url, "dev")) == 500
    assert len(delta_table(url).files) >= 1
    assert {queue.broker_name for queue in Archive(url).ranges()} == {"dev"}
