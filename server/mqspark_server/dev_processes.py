"""A development cluster of several brokers in which each part is a process (``mqspark dev --brokers N``).

A part that dies is restarted after a pause, so that a user can kill the master and watch the others take over.

Must not know the inside of a part: it starts ``mqspark namesrv run``, ``controller run`` and ``broker run``, reads
their READY lines, and asks the controller for the master.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqspark.errors import ConfigError, MQError
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.replica_bodies import BrokerReplicasInfo, ReplicasInfo
from mqspark.protocol.codes import RequestCode
from mqspark_server.broker_app import LOOPBACK_TOKEN_VARIABLE
from mqspark_server.net.outbound import Outbound
from mqspark_server.settings.settings import DEVELOPMENT, Layer, broker_settings

log = logging.getLogger("mqspark.dev")

RESTART_S = 10.0
"""How long a killed part stays down: longer than an election takes."""
START_S = 60.0
STOP_S = 20.0
_POLL_S = 0.25
_ASK_S = 1.0
_PR_SET_PDEATHSIG = 1
_REPLICAS = "dev"
_BROKER_STEP = 10
"""Distance between the brokers' ports: each broker uses up to four more ports."""
_CONTROLLER_STEP = 2


class PartFailed(MQError):
    """A part of the cluster ended before it served; its own log lines say why."""


@dataclass(slots=True)
class _Child:
    name: str
    command: tuple[str, str]
    settings: dict[str, Any]
    """Settings that override all others."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    config: str | None = None
    assignments: Sequence[str] = ()
    process: asyncio.subprocess.Process | None = None
    fields: dict[str, str] = field(default_factory=dict)
    """The fields of its READY line."""

    @property
    def arguments(self) -> list[str]:
        words = [*self.command, *(["-c", self.config] if self.config else [])]
        for assignment in (*_assignments(self.defaults), *self.assignments, *_assignments(self.settings)):
            words += ["--set", assignment]
        return words

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError(f"{self.name} is not started")
        return self.process.pid


class ProcessCluster:
    """A name server, ``brokers`` brokers and, if ``replicated``, a controller. ``store`` None: a temporary directory,
    removed at the end; each part has a directory of its own below it. A port of 0 is any free one; otherwise brokers
    take every tenth port from ``broker_port`` on, and the controller takes ``namesrv_port + 2``.
    """

    def __init__(
        self,
        *,
        store: str | None,
        namesrv_port: int,
        broker_port: int,
        http_port: int | None,
        brokers: int,
        replicated: bool,
        config: str | None,
        file: Layer | None,
        assignments: Sequence[str],
        overrides: Layer,
    ) -> None:
        """``file`` is the content of ``config``, ``overrides`` that of ``assignments``. Raises ConfigError."""
        if store == "":
            raise ConfigError("the store directory must not be empty", key="store")
        layers = [*([file] if file is not None else []), overrides]
        checked = broker_settings(
            {**DEVELOPMENT, "storePathRootDir": tempfile.gettempdir()}, *layers, use_environment=False
        )
        if checked.server.server_tls is not None or checked.auth.authentication_enabled:
            raise ConfigError(
                "several brokers run without TLS and users: start name server, controller and brokers by hand for that",
                key="brokers",
            )
        self.log_level, self.log_format = checked.server.log_level, checked.server.log_format
        self._bind = checked.server.bind_address
        self._store, self._temporary = (
            store,
            None if store is not None else tempfile.mkdtemp(prefix="mqspark-"),
        )
        self._replicated = replicated
        self._namesrv = _Child(
            "namesrv",
            ("namesrv", "run"),
            {
                "bindAddress": self._bind,
                "listenPort": namesrv_port,
                "kvConfigPath": str(self._directory / "kvConfig.json"),
            },
        )
        self._controller = _Child(
            "controller",
            ("controller", "run"),
            {
                "bindAddress": self._bind,
                "listenPort": namesrv_port + _CONTROLLER_STEP if namesrv_port else 0,
                "controllerStorePath": str(self._directory / "controller"),
            },
        )
        profile = {**DEVELOPMENT, **({"minInSyncReplicas": 2} if replicated else {})}
        given = file.values if file is not None else {}
        defaults = {key: value for key, value in profile.items() if key not in given}
        self._brokers = [
            _Child(
                f"{_REPLICAS}-{number}",
                ("broker", "run"),
                {
                    "brokerName": _REPLICAS if replicated else f"{_REPLICAS}-{number}",
                    "storePathRootDir": str(self._directory / f"{_REPLICAS}-{number}"),
                    **_ports(number, broker_port, http_port),
                },
                defaults,
                config,
                assignments,
            )
            for number in range(brokers)
        ]
        self._loopback_token = os.environ.get(LOOPBACK_TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        self._watching: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._master: str | None = None

    @property
    def _directory(self) -> Path:
        return Path(self._store or self._temporary or "")

    async def start(self) -> None:
        """Raises PartFailed; nothing is left running then."""
        try:
            await self._launch(self._namesrv)
            common: dict[str, Any] = {"namesrvAddr": self._namesrv.fields["namesrv"]}
            if self._replicated:
                await self._launch(self._controller)
                common |= {
                    "enableControllerMode": True,
                    "controllerAddr": self._controller.fields["controller"],
                }
            for part in self._brokers:
                part.settings |= common
            await asyncio.gather(*(self._launch(part) for part in self._brokers))
            if self._replicated:
                await self._until_in_sync()
                self._watch(self._report_master())
            for part in self._parts:
                self._watch(self._restart_when_ended(part))
        except BaseException:
            with contextlib.suppress(PartFailed):
                await self.stop()
            raise

    @property
    def _parts(self) -> list[_Child]:
        return [self._namesrv, *([self._controller] if self._replicated else []), *self._brokers]

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    # --- parts ---

    async def _launch(self, part: _Child) -> None:
        """Start the part and wait for its READY line. Ports that the system chose are kept for its next start."""
        environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        environment[LOOPBACK_TOKEN_VARIABLE] = self._loopback_token
        part.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "mqspark",
            *part.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C reaches only this process, which stops the parts in order
            preexec_fn=_end_with_parent,
        )
        if part.process.stderr is None or part.process.stdout is None:
            raise RuntimeError("a child was started without its pipes")
        self._watch(_relay_log_lines(part.name, part.process.stderr))
        try:
            async with asyncio.timeout(START_S):
                line = (await part.process.stdout.readline()).decode()
        except TimeoutError:
            raise PartFailed(f"{part.name} does not serve after {START_S:.0f} s") from None
        if not line.startswith("READY "):
            code = await part.process.wait()
            raise PartFailed(f"{part.name} ended with exit code {code} before it served")
        part.fields = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        address = part.fields[{"namesrv": "namesrv", "controller": "controller"}.get(part.name, "broker")]
        part.settings["listenPort"] = address.rpartition(":")[2]
        if part.fields.get("http", "-") != "-":
            part.settings["httpPort"] = part.fields["http"].rpartition(":")[2]

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _restart_when_ended(self, part: _Child) -> None:
        """Start the part again whenever it has ended."""
        while part.process is not None:
            code = await part.process.wait()
            if self._stopping:
                return
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            log.warning(
                "%s (pid %d) ended by %s; it starts again in %.0f s", part.name, part.pid, how, RESTART_S
            )
            await asyncio.sleep(RESTART_S)
            if self._is_stopping():  # the stop has seen that this part has ended, and will not stop it again
                return
            try:
                await self._launch(part)
            except PartFailed as error:
                log.error("%s", error)
            else:
                log.info("%s serves again (pid %d)", part.name, part.pid)

    # --- the master ---

    async def _replicas(self) -> ReplicasInfo | None:
        """The replicas as the controller reports them; None if it does not answer."""
        try:
            connection = await Outbound.connect(self._controller.fields["controller"], lambda: None, _ASK_S)
            try:
                answer = await connection.request(
                    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
                    None,
                    encode_body([_REPLICAS]),
                    timeout_s=_ASK_S,
                )
            finally:
                connection.close()
            table = decode_body(BrokerReplicasInfo, answer.body).replicas_info_table
        except (OSError, MQError):
            return None
        return table.get(_REPLICAS)

    async def _until_in_sync(self) -> None:
        """Wait until every replica may be elected. A kill before that could leave no candidate."""
        try:
            async with asyncio.timeout(START_S):
                while True:
                    found = await self._replicas()
                    if found is not None and len(found.in_sync_replicas) == len(self._brokers):
                        self._master = found.master_address
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise PartFailed(f"not all brokers were in sync within {START_S:.0f} s") from None

    async def _report_master(self) -> None:
        while not self._stopping:
            await asyncio.sleep(_POLL_S)
            found = await self._replicas()
            if found is not None and found.master_address and found.master_address != self._master:
                self._master = found.master_address
                log.warning("%s", self.describe_master())

    def describe_master(self) -> str:
        for part in self._brokers:
            if part.fields["broker"] == self._master:
                return f"the master is {part.name} at {self._master} (pid {part.pid})"
        return f"the master is {self._master}"

    # --- what a user sees ---

    @property
    def namesrv_address(self) -> str:
        return self._namesrv.fields["namesrv"]

    @property
    def ready_line(self) -> str:
        brokers = ",".join(part.fields["broker"] for part in self._brokers)
        controller = f" controller={self._controller.fields['controller']}" if self._replicated else ""
        return f"READY namesrv={self.namesrv_address}{controller} broker={brokers} store={self._directory}"

    @property
    def hint(self) -> str:
        lines = [
            f"{part.name}: pid {part.pid}, http {part.fields.get('http', '-')}" for part in self._brokers
        ]
        if self._replicated:
            lines.append(f"{self.describe_master()}: kill -9 it, and watch another one take over")
            lines.append(f"token for changes in a console (/console) or over HTTP: {self._loopback_token}")
        return "\n".join(lines)

    async def stop(self) -> None:
        """The controller stops first: a cluster that ends must not elect a master. Raises PartFailed if a part did not
        end cleanly."""
        self._stopping = True
        master = [part for part in self._brokers if part.fields.get("broker") == self._master]
        others = [part for part in self._brokers if part not in master]
        failed = []
        for parts in ([self._controller], others, master, [self._namesrv]):
            codes = await asyncio.gather(*(_end(part.process) for part in parts))
            failed += [part.name for part, code in zip(parts, codes, strict=True) if code > 0]
        for task in list(self._watching):
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        if failed:
            raise PartFailed(f"did not stop cleanly: {', '.join(failed)}")


def _assignments(settings: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    ]


def _ports(number: int, broker_port: int, http_port: int | None) -> dict[str, int]:
    step = _BROKER_STEP * number
    # With ports chosen by the system, listenPort + 1 may be taken by another process when the broker restarts.
    ports = {"listenPort": broker_port + step} if broker_port else {"listenPort": 0, "haListenPort": 0}
    return ports if http_port is None else {**ports, "httpPort": http_port + step if http_port else 0}


async def _end(process: asyncio.subprocess.Process | None) -> int:
    if process is None:
        return 0
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
    return process.returncode or 0


async def _relay_log_lines(name: str, lines: asyncio.StreamReader) -> None:
    """Copy a part's log lines to standard error, each prefixed with the part's name."""
    while True:
        try:
            line = await lines.readline()
        except ValueError:  # the line is longer than the reader's limit: its rest follows
            continue
        if not line:
            return
        sys.stderr.write(f"{name} | {line.decode(errors='replace')}")
        sys.stderr.flush()


def _end_with_parent() -> None:
    """Make the kernel signal the child when this process is killed. Linux only."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
