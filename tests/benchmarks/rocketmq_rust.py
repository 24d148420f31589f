"""rocketmq-rust as a peer: its name server and its broker, built from the crates `rocketmq-namesrv` and
`rocketmq-broker` of crates.io (`cargo install NAME --version 1.0.0 --locked --root FOLDER`).

The programs are found in the folder that ``--rocketmq-rust`` or the environment names. Their settings are those that
they are shipped with, where the benchmark does not say otherwise, but for ``_TUNED``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.clusters import Cluster, brokers_known_to
from tests.support.maven import ToolMissing
from tests.support.processes import HOST, free_port, listens, process, wait_for_start

FOLDER = "MQSPARK_ROCKETMQ_RUST"
"""Environment: the folder with the two programs."""
VERSION = "1.0.0"
_NAMESRV, _BROKER = "rocketmq-namesrv-rust", "rocketmq-broker-rust"
_LOG_LEVEL = ("--log-filter", "warn")
_TUNED = {"commitLogMicroBatchEnabled": False}
"""As shipped, an append waits 50 µs for others, by a timer that counts milliseconds: 1,400 single sends a second."""


def programs(folder: str | None) -> Path:
    """The folder with the two programs, by the option or the environment. Raises ToolMissing."""
    named = folder or os.environ.get(FOLDER)
    if not named:
        raise ToolMissing(f"no rocketmq-rust {VERSION}: name the folder of its programs by {FOLDER}")
    missing = [name for name in (_NAMESRV, _BROKER) if not (Path(named) / name).is_file()]
    if missing:
        raise ToolMissing(f"no {' and no '.join(missing)} in {named}")
    return Path(named)


def _environment(folder: Path) -> dict[str, str]:
    """Both write below ``folder`` only, and refuse to listen elsewhere than on loopback."""
    return {
        "ROCKETMQ_HOME": str(folder),
        "HOME": str(folder),
        "ROCKETMQ_SECURITY_PROFILE": "development-insecure-loopback",
    }


@contextmanager
def rocketmq_rust_namesrv(program_folder: Path, folder: Path) -> Iterator[str]:
    """Its address."""
    folder.mkdir(parents=True)
    port = free_port()
    command = [str(program_folder / _NAMESRV), "--listenPort", str(port), "--bindAddress", HOST]
    command += ["--kvConfigPath", str(folder / "kvConfig.json"), *_LOG_LEVEL]
    log = folder / "namesrv.out"
    with process(command, log, env=_environment(folder)) as child:
        wait_for_start(lambda: listens(f"{HOST}:{port}"), "name server", child, log)
        yield f"{HOST}:{port}"


@contextmanager
def rocketmq_rust_cluster(
    program_folder: Path, folder: Path, settings: Mapping[str, object]
) -> Iterator[Cluster]:
    """``settings`` are those of its store."""
    with rocketmq_rust_namesrv(program_folder, folder / "namesrv") as namesrv:
        port = free_port(neighbours=2)
        broker = folder / "broker"
        store = broker / "store"
        store.mkdir(parents=True)
        tables: dict[str, dict[str, object]] = {
            "broker": {
                "namesrvAddr": namesrv, "brokerIp1": HOST, "brokerIp2": HOST, "listenPort": port,
                "storePathRootDir": store, "autoCreateTopicEnable": True,
            },
            "broker.brokerServerConfig": {"bindAddress": HOST},
            "broker.brokerIdentity": {
                "brokerName": "rust-a", "brokerClusterName": "RustCluster", "brokerId": 0,
            },
            "store": {
                "storeType": "LocalFile", "brokerRole": "ASYNC_MASTER", "storePathRootDir": store,
                "haListenAddress": HOST, "haListenPort": port + 1, **_TUNED, **settings,
            },
        }  # fmt: skip
        conf = broker / "broker.toml"
        conf.write_text(_toml(tables))
        command = [str(program_folder / _BROKER), "-c", str(conf), *_LOG_LEVEL]
        log = broker / "broker.out"
        with process(command, log, env=_environment(broker), stop_signal=signal.SIGKILL) as child:
            wait_for_start(lambda: "rust-a" in brokers_known_to(namesrv), "broker registration", child, log)
            yield Cluster(
                "rocketmq-rust", namesrv, f"{HOST}:{port}", "rust-a", "RustCluster", store, child.pid
            )


def _toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    lines: list[str] = []
    for name, values in tables.items():
        lines.append(f"[{name}]")
        for key, value in values.items():
            plain = str(value).lower() if isinstance(value, bool) else str(value)
            lines.append(f"{key} = {plain}" if isinstance(value, (bool, int)) else f'{key} = "{value}"')
    return "\n".join([*lines, ""])
