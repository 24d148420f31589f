"""An S3-compatible server on loopback (moto, in a process), with the environment that clients need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.processes import HOST, free_port, listens, process, wait_for_start

BUCKET = "store"


@dataclass(frozen=True)
class ObjectStore:
    endpoint: str
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def put(self, key: str, data: bytes) -> None:
        httpx.put(
            f"{self.endpoint}/{BUCKET}/{key}", content=data, headers=SIGNED, trust_env=False, timeout=60
        ).raise_for_status()


SIGNED = {"authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Run a server with one bucket. This process's environment points to it meanwhile."""
    port = free_port()
    log = folder / "moto.log"
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", HOST, "-p", str(port)]
    with process(command, log) as child:
        wait_for_start(lambda: listens(f"{HOST}:{port}"), "the object store listens", child, log)
        store = ObjectStore(f"http://{HOST}:{port}", child.pid)
        httpx.put(
            f"{store.endpoint}/{BUCKET}", headers=SIGNED, trust_env=False, timeout=60
        ).raise_for_status()
        kept = dict(os.environ)
        os.environ.update(store.environment)
        try:
            yield store
        finally:
            os.environ.clear()
            os.environ.update(kept)
