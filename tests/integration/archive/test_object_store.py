"""Archives and logs in an object store: fsspec and s3fs against a real S3-compatible server, without Spark.

With Spark and Delta: tests/spark/test_object_store_jobs.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.arrow.cluster.archives import load_manifests
from mqspark.arrow.files.deltafiles import delta_table
from mqspark.arrow.files.locations import names, read_bytes, remove_tree, write_bytes
from mqspark.arrow.files.logfiles import find_log, local_copy, local_log
from mqspark.client.blocking import BlockingClient
from mqspark.errors import ConfigError
from mqspark.protocol.codes import ResponseCode
from mqspark.store.disk.notes.archivednote import ARCHIVED, encode_archived
from mqspark.testing import Broker
from tests.integration.archive.test_tiered_reads import fill, log_begin, pull, read_all, settings
from tests.support.archive_tools import archive_log
from tests.support.jobs_tools import filled_store
from tests.support.object_store import BUCKET, ObjectStore, object_store
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as running:
        yield running


def test_small_files(s3: ObjectStore) -> None:
    url = f"s3://{BUCKET}/small/file"
    assert names(f"s3://{BUCKET}/small") == []
    with pytest.raises(FileNotFoundError):
        read_bytes(url)
    write_bytes(url, b"one")
    write_bytes(url, b"two")
    assert read_bytes(url) == b"two"
    assert names(f"s3a://{BUCKET}/small") == ["file"]
    s3.put("small/later", b"of another process, after the list")
    assert read_bytes(f"s3://{BUCKET}/small/later").startswith(b"of another")
    remove_tree(f"s3://{BUCKET}/small")
    assert names(f"s3://{BUCKET}/small") == []


def test_a_log_that_was_copied_there(s3: ObjectStore, tmp_path: Path) -> None:
    filled_store(tmp_path / "store", 60, mapped_file_size_commit_log=16_384).close()
    segments = sorted((tmp_path / "store/commitlog").iterdir())
    for path in segments:
        s3.put(f"copy/commitlog/{path.name}", path.read_bytes())
    log = find_log(f"s3://{BUCKET}/copy/commitlog")
    assert [file.start for file in log] == [int(path.name) for path in segments]
    with local_copy(log[-1]) as copied:
        assert copied.read_bytes() == segments[-1].read_bytes()
    with local_log(f"s3://{BUCKET}/copy/commitlog") as directory:
        assert directory is not None
        copies = sorted(Path(directory).iterdir())
        assert [path.read_bytes() for path in copies] == [path.read_bytes() for path in segments]
    assert not Path(directory).exists()
    with pytest.raises(ConfigError, match="there is no"):
        find_log(f"s3://{BUCKET}/nothing/commitlog")


@pytest.mark.slow("two brokers and storage that hangs; a local archive is the fast twin")
def test_a_broker_serves_an_archive_of_the_object_store(s3: ObjectStore, tmp_path: Path) -> None:
    """Expired log, s3fs in the process that reads; then storage that hangs, and one that answers again."""
    url = f"s3a://{BUCKET}/archive"
    wanted = settings(tmp_path, archiveUrl=url)
    with Broker(store=tmp_path / "store", settings=wanted) as broker:
        fill(broker, range(500))
        before = [message.body for message in read_all(broker, 0)]
        end = archive_log(broker.store_path, url)
        (broker.store_path / ARCHIVED).write_bytes(encode_archived(end))
        eventually(lambda: log_begin(broker) > 20)
        assert [message.body for message in read_all(broker, 0)] == before
        assert sum(manifest.rows for manifest in load_manifests(url, "dev")) == 500
        assert len(delta_table(url).files) >= 1
    wanted["archiveReadTimeout"] = 500
    os.kill(s3.pid, signal.SIGSTOP)
    try:
        with Broker(store=tmp_path / "store", settings=wanted) as broker:
            client = BlockingClient(broker.namesrv)
            answer = pull(client, broker.address, 0, 0)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert "archive" in (answer.remark or "")
            assert pull(client, broker.address, 0, log_begin(broker)).code == ResponseCode.SUCCESS
            os.kill(s3.pid, signal.SIGCONT)
            eventually(lambda: pull(client, broker.address, 0, 0).code == ResponseCode.SUCCESS)
            assert [message.body for message in read_all(broker, 0)] == before
            client.close()
    finally:
        os.kill(s3.pid, signal.SIGCONT)


def test_storage_that_refuses_fails_the_job(s3: ObjectStore, tmp_path: Path) -> None:
    """A bucket that is not there: nothing is marked as archived."""
    filled_store(tmp_path / "store", 40).close()
    with pytest.raises(OSError, match=r"(?i)bucket"):
        archive_log(tmp_path / "store", "s3://no-such-bucket-here/archive")
    assert not (tmp_path / "store" / ARCHIVED).exists()
