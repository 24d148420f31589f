"""The processes as a user starts them: READY, signals, exit codes, and one clear line when something is wrong."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from mqspark.protocol.codes import RequestCode, ResponseCode
from tests.support import processes
from tests.support.commands import mqspark
from tests.support.draws import some
from tests.support.processes import run_python, run_to_end
from tests.support.remoting import RawConnection, Reply, ask, send_fields
from tests.support.waiting import eventually

CONF = Path(__file__).parents[3] / "conf"
READY = re.compile(
    r"^READY namesrv=127\.0\.0\.1:\d+ broker=127\.0\.0\.1:\d+ http=http://127\.0\.0\.1:\d+"
    r"( grpc=127\.0\.0\.1:\d+)? store=/.+\n$"
)


AS_A_MODULE = [sys.executable, "-m", "mqspark_server.cli"]
"""A Python of its own, a second of processor time; ``processes.start`` forks the other command."""


class Process:
    def __init__(self, log: Path, command: Sequence[str], *arguments: str) -> None:
        self._log = log
        self.popen = processes.start(
            [*command, *arguments], log, env={"PYTHONWARNINGS": "error"}, stdout=subprocess.PIPE
        )

    @property
    def errors(self) -> str:
        """What it has said on standard error so far."""
        return self._log.read_text()

    def ready(self) -> dict[str, str]:
        assert self.popen.stdout is not None
        self.line = self.popen.stdout.readline()
        assert self.line.startswith("READY "), (self.line, self.errors)
        return dict(part.split("=", 1) for part in self.line.split()[1:])

    def end(self) -> tuple[int, str, str]:
        """It ends by itself: its exit code, standard output and standard error."""
        out, _ = self.popen.communicate(timeout=60)
        return self.popen.returncode, out, self.errors

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        code, _, errors = self.end()
        return code, errors


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []
    folder = tmp_path_factory.mktemp("logs")

    def run(*arguments: str, command: Sequence[str] = ()) -> Process:
        log = folder / f"{len(started)}.log"
        started.append(Process(log, command or processes.mqspark_command(), *arguments))
        return started[-1]

    yield run
    for process in started:
        processes.stop(process.popen, signal.SIGKILL)


@pytest.fixture
def dev(start: Callable[..., Process]) -> Callable[..., Process]:
    return partial(start, "dev", "--namesrv-port", "0", "--broker-port", "0")


def send(address: str, topic: str, body: bytes = b"x") -> Reply:
    return ask(address, RequestCode.SEND_MESSAGE_V2, body, **send_fields(topic))


def failure(process: Process, code: int) -> str:
    """The one line on standard error of a process that cannot start."""
    ended, out, errors = process.end()
    assert (ended, out) == (code, ""), errors
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("mqspark: error: ")]
    return line.removeprefix("mqspark: error: ")


@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGINT, signal.SIGHUP], 1))
def test_dev_serves_and_stops_cleanly(dev: Callable[..., Process], tmp_path: Path, number: int) -> None:
    here = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which ignores it
    process = dev("--store", str(tmp_path), command=AS_A_MODULE)
    signal.signal(signal.SIGHUP, here)
    ready = process.ready()
    assert READY.match(process.line), process.line
    assert ready["store"] == str(tmp_path)
    assert (tmp_path / "abort").exists()
    assert send(ready["broker"], "t").code == ResponseCode.SUCCESS
    code, errors = process.stop(number)
    assert code == 0, errors
    assert "Traceback" not in errors
    assert not (tmp_path / "abort").exists()


def test_dev_says_what_to_try_and_it_works(dev: Callable[..., Process]) -> None:
    process = dev()
    namesrv = process.ready()["namesrv"]
    said = eventually(
        lambda: re.search(r"^try: (.*)\n(?:.*\n)*?then in pyspark: (.*)\n", process.errors, re.M)
    )
    command, spark = said.groups()
    program, *arguments = shlex.split(command)
    assert program == "python"
    done = run_to_end([sys.executable, *arguments], check=True)
    assert "SEND_OK" in done.stdout
    assert f"option('nameserver', '{namesrv}').load('Hello')" in spark
    compile(spark, "hint", "eval")
    assert process.stop()[0] == 0


def test_log_lines_are_for_people(dev: Callable[..., Process], tmp_path: Path) -> None:
    process = dev("--store", str(tmp_path))
    send(process.ready()["broker"], "T")
    process.stop()
    process = dev("--store", str(tmp_path))
    process.ready()
    _, errors = process.stop()
    (line,) = [line for line in errors.splitlines() if "recovered: " in line]
    assert re.search(
        r"recovered: stopped cleanly; 1 segments, \d+ queues, log from 0 to [1-9]\d*; \d+ records read from \d+ on,"
        r" \d+ queue entries written; in \d+ ms$",
        line,
    )
    assert "Report(" not in errors
    assert max(map(len, errors.splitlines())) < 300


def test_dev_without_store_leaves_no_directory(dev: Callable[..., Process]) -> None:
    process = dev()
    store = Path(process.ready()["store"])
    assert store.is_dir()
    assert process.stop()[0] == 0
    assert not store.exists()


def test_messages_survive_a_restart(dev: Callable[..., Process], tmp_path: Path) -> None:
    for offset in range(2):
        process = dev("--store", str(tmp_path))
        assert send(process.ready()["broker"], "t").ext["queueOffset"] == str(offset)
        assert process.stop()[0] == 0


def test_the_second_process_on_a_store_is_refused(dev: Callable[..., Process], tmp_path: Path) -> None:
    process = dev("--store", str(tmp_path))
    broker = process.ready()["broker"]
    assert "is in use by process" in failure(dev("--store", str(tmp_path)), 1)
    assert send(broker, "t").code == ResponseCode.SUCCESS


def test_a_port_in_use_is_named(start: Callable[..., Process], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, what in (
            (("--namesrv-port", port, "--broker-port", "0"), "name server"),
            (("--namesrv-port", "0", "--broker-port", port), "broker"),
            (("--namesrv-port", "0", "--broker-port", "0", "--http-port", port), "HTTP"),
        ):
            line = failure(start("dev", "--store", str(tmp_path), *arguments), 1)
            assert (
                line == f"{what} cannot listen on 127.0.0.1:{port}: Address already in use (errno EADDRINUSE)"
            )
    assert not (tmp_path / "abort").exists()


def test_an_unusable_store_directory_is_named(dev: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = failure(dev("--store", str(tmp_path / "file" / "store")), 1)
    assert str(tmp_path / "file") in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("dev", "--set", "noSuchKey=1"), "--set: unknown setting 'noSuchKey'"),
        (("dev", "--set", "flushDiskType=SOMETIMES"), "one of ASYNC_FLUSH, SYNC_FLUSH"),
        (("dev", "--set", "nothing"), "--set 'nothing' is not key=value"),
        (("broker", "run", "-c", "/nowhere/broker.conf"), "cannot read /nowhere/broker.conf"),
        (("broker", "run", "--set", "listenPort=x"), "setting listenPort='x' is not a whole number"),
        (("broker", "run", "--set", "brokerRole=SLAVE"), "a slave (brokerRole=SLAVE) needs one above 0"),
        (("namesrv", "run", "--set", "listenPort=-1"), "is not a port"),
        (("namesrv", "run", "--set", "listenPort=0"), "or consent with allowAnonymous=true"),
        (
            ("proxy", "run", "-n", "127.0.0.1:9", "--set", "listenPort=0"),
            "or consent with allowAnonymous=true",
        ),
        (("broker", "run", "--set", "listenPort=0"), "or consent with allowAnonymous=true"),
        (("dev", "--store", ""), "the store directory must not be empty"),
    ],
)
def test_settings_that_do_not_fit(arguments: tuple[str, ...], says: str) -> None:
    ended = mqspark(*arguments)
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("mqspark: error: ")
    assert says in line


def test_a_process_whose_settings_do_not_fit_says_it_in_one_line(start: Callable[..., Process]) -> None:
    assert "one of ASYNC_FLUSH, SYNC_FLUSH" in failure(
        start("dev", "--set", "flushDiskType=SOMETIMES", command=AS_A_MODULE), 2
    )


def test_an_unmodified_broker_conf(start: Callable[..., Process], tmp_path: Path) -> None:
    names = start(
        "namesrv", "run", "--set", "listenPort=0", "--set", "bindAddress=127.0.0.1", "--set", "kvConfigPath="
    )
    namesrv = names.ready()["namesrv"]
    assert names.line == f"READY namesrv={namesrv}\n"
    process = start(
        "broker", "run", "-c", str(CONF / "broker.conf"),
        "--set", "listenPort=0", "--set", f"namesrvAddr={namesrv}", "--set", f"storePathRootDir={tmp_path}",
        "--set", "bindAddress=127.0.0.1", "--set", "brokerIP1=127.0.0.1",
        "--set", "useEpollNativeSelector=true",
    )  # fmt: skip
    ready = process.ready()
    assert READY.match(process.line), process.line
    cluster = ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO).body
    assert b'"broker-a"' in cluster
    assert ready["broker"].encode() in cluster
    # broker run is the production profile, and the file asks for no automatic topics.
    assert send(ready["broker"], "unknown").code == ResponseCode.TOPIC_NOT_EXIST
    code, errors = process.stop()
    assert code == 0, errors
    assert errors.count("settings without an effect here: useEpollNativeSelector") == 1
    # It has said good-bye.
    assert b'"broker-a"' not in ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO).body
    assert names.stop()[0] == 0


def test_two_name_servers_of_one_user_do_not_share_a_file(
    start: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default both would save their tables in it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    common = ("namesrv", "run", "--set", "listenPort=0", "--set", "bindAddress=127.0.0.1")
    first = start(*common)
    first.ready()
    said = failure(start(*common), 2)
    assert f"kvConfigPath: {tmp_path}/namesrv/kvConfig.json is in use by process " in said
    others = [start(*common, "--set", f"kvConfigPath={path}") for path in ("", tmp_path / "other.json")]
    for other in others:
        other.ready()
        assert other.stop()[0] == 0
    assert first.stop()[0] == 0
    again = start(*common)
    again.ready()
    assert again.stop()[0] == 0


def test_what_was_changed_while_servers_ran_outlives_their_kill(
    start: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    common = 'listenPort = 0\nbindAddress = "127.0.0.1"  # loopback\n'
    names_toml, broker_conf = tmp_path / "namesrv.toml", tmp_path / "broker.conf"
    names_toml.write_text(common)
    store = f"storePathRootDir={tmp_path / 'store'}\nhttpEnable=false\nbrokerIP1=127.0.0.1\n"
    broker_conf.write_text(f"# ours\nlistenPort=0\nbindAddress=127.0.0.1\n{store}")
    entry = {"namespace": "ns", "key": "k"}
    for is_first in (True, False):
        names = start("namesrv", "run", "-c", str(names_toml))
        broker = start("broker", "run", "-c", str(broker_conf))
        namesrv, address = names.ready()["namesrv"], broker.ready()["broker"]
        if is_first:
            assert ask(namesrv, RequestCode.PUT_KV_CONFIG, **entry, value="v").code == 0
            assert ask(namesrv, RequestCode.UPDATE_NAMESRV_CONFIG, b"maxRoutes=7").code == 0
            assert ask(address, RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=7").code == 0
        assert ask(namesrv, RequestCode.GET_KV_CONFIG, **entry).ext == {"value": "v"}
        assert b"\nmaxRoutes=7\n" in ask(namesrv, RequestCode.GET_NAMESRV_CONFIG).body
        assert b"\nfileReservedTime=7\n" in ask(address, RequestCode.GET_BROKER_CONFIG).body
        for process in (names, broker):
            processes.stop(process.popen, signal.SIGKILL)
    assert names_toml.read_text() == f"{common}maxRoutes = 7\n"
    assert broker_conf.read_text().startswith("# ours\n")
    assert (tmp_path / "namesrv" / "kvConfig.json").exists()


def test_a_broker_waits_for_no_name_server_and_finds_it_later(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = start(
        "broker", "run", "--set", "listenPort=0", "--set", f"namesrvAddr=127.0.0.1:{port}",
        "--set", f"storePathRootDir={tmp_path}", "--set", "bindAddress=127.0.0.1", "--set", "brokerIP1=127.0.0.1",
    )  # fmt: skip
    address = process.ready()["broker"]
    names = start(
        "namesrv", "run",
        "--set", f"listenPort={port}", "--set", "bindAddress=127.0.0.1", "--set", "kvConfigPath=",
    )  # fmt: skip
    names.ready()

    def known() -> bytes:
        return ask(f"127.0.0.1:{port}", RequestCode.GET_BROKER_CLUSTER_INFO).body

    eventually(lambda: address.encode() in known(), "the registration at a name server that came later")
    assert process.stop()[0] == 0


@pytest.mark.slow("many starts; test_dev_serves_and_stops_cleanly is the fast twin")
def test_a_signal_right_after_the_first_connection_to_http(dev: Callable[..., Process]) -> None:
    """What serves HTTP is loaded only then, and takes longer than the signal."""
    process = dev("--http-port", "0", command=AS_A_MODULE)
    host, _, port = process.ready()["http"].removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60):
        time.sleep(0.05)
        code, errors = process.stop()
    assert code == 0, errors
    assert "Traceback" not in errors


def test_a_signal_during_the_start_ends_it_cleanly(start: Callable[..., Process], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts, and never answers a registration
        process = start(
            "broker", "run", "--set", "listenPort=0", "--set", f"namesrvAddr=127.0.0.1:{mute.getsockname()[1]}",
            "--set", f"storePathRootDir={tmp_path}", "--set", "bindAddress=127.0.0.1",
        )  # fmt: skip
        mute.settimeout(60)
        connection, _ = mute.accept()  # it is registering: the store is open
        assert (tmp_path / "abort").exists()
        with connection:
            process.popen.send_signal(signal.SIGTERM)
            code, out, errors = process.end()
    assert (code, out) == (0, ""), errors
    assert not (tmp_path / "abort").exists()


def test_a_broker_may_be_known_by_a_host_name(start: Callable[..., Process], tmp_path: Path) -> None:
    arguments = ("broker", "run", "--set", "listenPort=0", "--set", "bindAddress=127.0.0.1")
    arguments += ("--set", "autoCreateTopicEnable=true", "--set", f"storePathRootDir={tmp_path}")
    process = start(*arguments, "--set", "brokerIP1=localhost")
    host, port = process.ready()["broker"].split(":")
    assert host == "localhost"
    assert send(f"127.0.0.1:{port}", "t").ext["msgId"].startswith(f"7F000001{int(port):08X}")
    assert process.stop()[0] == 0
    line = failure(start(*arguments, "--set", "brokerIP1=no such host"), 2)
    assert line.startswith("setting brokerIP1=no such host is not the address of a host: ")


def test_there_are_no_ports_beyond_65535(dev: Callable[..., Process]) -> None:
    line = failure(dev("--broker-port", "65534"), 2)
    assert line == "there is no port 65537 (listenPort + 3) for HTTP: set httpPort"


def test_a_damaged_config_file_is_named(dev: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{ broken")
    assert "topics.json" in failure(dev("--store", str(tmp_path)), 1)
    assert not (tmp_path / "abort").exists()


def test_help_and_version(start: Callable[..., Process]) -> None:
    for arguments, command in (
        (["--help"], AS_A_MODULE),
        (["--version"], []),
        (["broker", "run", "--help"], []),
    ):
        process = start(*arguments, command=command)
        code, out, errors = process.end()
        assert (code, errors) == (0, "")
        assert "mqspark" in out


def test_the_package_is_the_command() -> None:
    done = run_to_end([sys.executable, "-m", "mqspark", "--version"])
    assert (done.returncode, done.stdout.startswith("mqspark, version ")) == (0, True), done.stderr


def test_without_the_extra_the_command_says_so() -> None:
    program = "import sys; sys.modules['click'] = None; from mqspark.__main__ import main; main()"
    done = run_python(program)
    assert done.returncode == 1
    assert done.stderr == "mqspark: error: the command line needs click: pip install 'mqspark[server]'\n"


@pytest.mark.slow(
    "a cluster of processes; tests/integration/replicas/test_controller_mode.py is the fast twin"
)
def test_a_cluster_of_processes_goes_on_without_its_master(
    dev: Callable[..., Process], tmp_path: Path
) -> None:
    process = dev("--store", str(tmp_path), "--brokers", "3", "--replication", "controller")
    ready = process.ready()
    brokers = ready["broker"].split(",")
    hint = re.compile(r"^the master is (\S+) at (\S+) \(pid (\d+)\): kill -9", re.M)
    ((name, address, pid),) = eventually(lambda: hint.findall(process.errors))
    assert address in brokers
    assert send(address, "T", b"before").code == ResponseCode.SUCCESS
    os.kill(int(pid), signal.SIGKILL)

    def next_master() -> str | None:
        found = re.findall(r"mqspark\.dev: the master is \S+ at (\S+) ", process.errors)
        return found[-1] if found else None

    second = eventually(next_master, timeout_s=60)
    assert second != address
    assert second in brokers
    eventually(lambda: _is_sent(second, b"after"), timeout_s=60)  # it starts its parts anew first
    queue_id = int(send(second, "T").ext["queueId"])
    with RawConnection(second) as connection:
        assert b"before" in connection.pull("T", queue_id, 0).body
    assert f"{name} (pid {pid}) ended by SIGKILL; it starts again in 10 s" in process.errors
    pids = [int(each) for each in re.findall(r"^dev-\d: pid (\d+)", process.errors, re.M)]
    code, errors = process.stop()
    assert code == 0, errors
    assert not any(_lives(each) for each in pids)


def _is_sent(address: str, body: bytes) -> bool:
    try:
        return send(address, "T", body).code == ResponseCode.SUCCESS
    except ConnectionError:
        return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow("a cluster of processes; test_dev_serves_and_stops_cleanly is the fast twin")
def test_a_cluster_of_processes_ends_with_its_parent(dev: Callable[..., Process], tmp_path: Path) -> None:
    process = dev("--store", str(tmp_path), "--brokers", "2")
    assert len(process.ready()["broker"].split(",")) == 2
    pids = eventually(lambda: re.findall(r"^dev-\d: pid (\d+)", process.errors, re.M))
    process.stop(signal.SIGKILL)
    eventually(lambda: not any(_lives(int(each)) for each in pids))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ("--brokers", "2", "--set", "authenticationEnabled=true"),
            2,
            "several brokers run without TLS and users",
        ),
        (("--brokers", "2", "--set", "noSuchKey=1"), 2, "--set: unknown setting 'noSuchKey'"),
        (("--brokers", "2", "--set", "bindAddress=203.0.113.1"), 1, "namesrv ended with exit code 2"),
    ],
)
def test_what_a_cluster_of_processes_refuses(
    dev: Callable[..., Process], arguments: tuple[str, ...], code: int, words: str
) -> None:
    process = dev(*arguments)
    ended, out, errors = process.end()
    assert (ended, out) == (code, ""), errors
    assert words in errors
    assert "Traceback" not in errors


def test_replication_needs_brokers(dev: Callable[..., Process]) -> None:
    ended, _, errors = dev("--replication", "controller").end()
    assert ended == 2
    assert "--replication controller needs two brokers or more: --brokers 3" in errors
