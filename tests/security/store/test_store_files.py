"""The store's files as seen by others on the host: who may read them, what stands in their place, who may start a
second broker on them, and what a limit on file sizes does."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqspark.auth.config import AuthConfig
from mqspark.client.consumer.offset_stores import LocalOffsets
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.errors import ConfigError, StoreLocked, StoreReadOnly
from mqspark.message import MessageQueue
from mqspark.store.config import StoreConfig
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import OsFiles, give_to_owner, open_regular
from mqspark.store.tools.offlinestore import ReadOnlyFiles
from mqspark.store.tools.reader import StoreReader
from mqspark.testing import Broker
from mqspark_server.authfiles import open_authority
from tests.support.clocks import ManualClock
from tests.support.draws import some
from tests.support.processes import process, run_python, run_to_end
from tests.support.store_tools import drain, make_store, opened, put
from tests.unit.broker_kit import SEND, Bench, send_ext

HERE = Path(__file__).resolve().parents[3]
FILE = "store_file_mode"
STRANGER = 65534


@pytest.fixture(params=[0o022, 0o000, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path, *, files: bool) -> set[int]:
    found = set()
    for path in (root, *root.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a table has just been replaced
            mode = path.stat().st_mode
            if stat.S_ISREG(mode) == files:
                found.add(stat.S_IMODE(mode))
    return found


# --- modes ------------------------------------------------------------------------------------------------------


def test_a_broker_lets_nobody_else_read_what_it_stores(tmp_path: Path, umask: int) -> None:
    store = tmp_path / "not" / "there"
    with Broker(store=store) as broker:
        connection = BlockingConnection(broker.address)
        assert connection.wait(connection.send(SEND, send_ext("T"), b"x")).code == 0
        connection.close()
        assert modes(store, files=True) == {0o600}
        assert modes(store, files=False) == {0o700}
    assert modes(store, files=True) == {0o600}  # what the end saves, too
    assert (store / "config" / "topics.json").exists()
    assert (store / "consumequeue" / "T" / "0").is_dir()


def test_an_operator_may_let_a_group_read(tmp_path: Path, umask: int) -> None:
    settings = {"storeFileMode": "0640", "storeDirectoryMode": "0750"}
    with Broker(store=tmp_path / "store", settings=settings):
        assert modes(tmp_path / "store", files=True) == {0o640}
        assert modes(tmp_path / "store", files=False) == {0o750}
    # What tools make there later may be read by the same.
    tool = OsFiles.like(tmp_path / "store" / "commitlog")
    assert (tool.file_mode, tool.directory_mode) == (0o640, 0o750)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_root_makes_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """Else a broker that is no root could not start after a repair by root."""
    os.chown(tmp_path, STRANGER, STRANGER)
    files = OsFiles.like(tmp_path)
    files.make_directory(tmp_path / "config" / "deeper", durable=True)
    ConfigFile(tmp_path / "config" / "topics.json", files).save(b"{}")
    with open(tmp_path / "config" / "deeper" / "report", "w", opener=files.opener) as file:
        file.write("x")
    files.close(files.open(tmp_path / "abort", create=True))
    _, close = open_authority(AuthConfig(), tmp_path / "config" / "auth", ManualClock(), needs_a_user=False)
    close()
    made = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in tmp_path.rglob("*")}
    assert made.keys() >= {"topics.json", "deeper", "report", "abort", "users.auth.key", "audit.log"}
    assert set(made.values()) == {(STRANGER, STRANGER)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_the_owner_of_a_directory_puts_in_the_place_of_what_root_made_is_not_given_away(
    tmp_path: Path,
) -> None:
    theirs, of_root = tmp_path / "theirs", tmp_path / "secret"
    theirs.mkdir()
    of_root.write_text("x")
    os.chown(theirs, STRANGER, STRANGER)
    (theirs / "directory").symlink_to(of_root)
    (theirs / "report").hardlink_to(of_root)
    give_to_owner(theirs / "directory")
    assert (theirs / "directory").lstat().st_uid == STRANGER
    with open(theirs / "report", "a", opener=OsFiles().opener):
        assert of_root.stat().st_uid == os.geteuid()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("store_file_mode", "0400"),
        ("store_file_mode", "4600"),
        ("store_file_mode", "rw"),
        ("store_directory_mode", "0600"),
    ],
)
def test_a_mode_that_is_none_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError):
        StoreConfig(**{key: value})


def test_a_name_servers_table_and_local_offsets_are_private(tmp_path: Path, umask: int) -> None:
    ConfigFile(tmp_path / "namesrv" / "kvConfig.json").save(b"{}")
    assert modes(tmp_path / "namesrv", files=True) == {0o600}
    assert modes(tmp_path / "namesrv", files=False) == {0o700}


async def test_local_offsets_are_private(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path / "offsets", "10.0.0.1@1", "G")
    await offsets.write({MessageQueue("T", "b", 0): 1})
    assert modes(tmp_path / "offsets" / "10.0.0.1@1", files=True) == {0o600}
    assert modes(tmp_path / "offsets" / "10.0.0.1@1", files=False) == {0o700}
    assert await offsets.read(MessageQueue("T", "b", 0)) == 1


# --- the lock ---------------------------------------------------------------------------------------------------


def start_elsewhere(root: Path) -> str:
    script = (
        "import sys; from pathlib import Path; from tests.support.store_tools import make_store\n"
        "try: make_store(Path(sys.argv[1])).open()\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        "else: print('started')"
    )
    return run_python(script, str(root), cwd=HERE, check=True).stdout


@pytest.mark.parametrize("what", some(["kept", "removed", "replaced", "renamed"], 1))
def test_a_second_broker_does_not_start_whatever_became_of_the_lock_file(tmp_path: Path, what: str) -> None:
    store = opened(tmp_path)
    lock = tmp_path / "lock"
    if what == "renamed":
        lock.rename(tmp_path / "lock.old")
    elif what != "kept":
        lock.unlink()
    if what == "replaced":
        lock.write_bytes(b"lock")
    said = start_elsewhere(tmp_path)
    assert said.startswith("StoreLocked")
    assert f"in use by process {os.getpid()}" in said
    assert "python" in said
    with pytest.raises(StoreLocked, match=f"by this process \\({os.getpid()}\\)"):
        make_store(tmp_path).open()
    assert ReadOnlyFiles().is_locked(lock)
    put(store, "T", 0, b"x")
    store.pipeline.commit()
    store.close()
    assert not ReadOnlyFiles().is_locked(lock)
    assert start_elsewhere(tmp_path).startswith("started")
    again = opened(tmp_path)
    assert [message.body for message in drain(again, "T", 0)] == [b"x"]


TRY_LOCK = (
    "import fcntl, os, sys\n"
    "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
    "try: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
    "except OSError: print('locked')\n"
    "else: print('free')\n"
    "sys.stdout.flush(); sys.stdin.read()"
)
"""As FileChannel.tryLock(0, 1) does: a POSIX lock of the first byte, held until standard input ends."""


@contextlib.contextmanager
def rocketmq(root: Path) -> Iterator[tuple[str, int]]:
    """What a broker of RocketMQ finds that starts on a directory, and its process."""
    command = [sys.executable, "-c", TRY_LOCK, str(root / "lock")]
    with process(command, root.with_name("rocketmq.log"), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        yield child.stdout.readline().strip(), child.pid


def test_rocketmqs_broker_finds_the_lock_where_it_looks(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with rocketmq(tmp_path) as (said, _):
        assert said == "locked"
    store.close()
    assert (tmp_path / "lock").read_bytes() == b"lock"
    with rocketmq(tmp_path) as (said, pid):
        assert said == "free"
        with pytest.raises(StoreLocked, match=f"in use by process {pid} "):
            opened(tmp_path)
    opened(tmp_path).close()


def test_a_removed_lock_file_is_made_and_locked_anew_for_rocketmqs_broker(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (tmp_path / "lock").unlink()
    store.maintenance()
    assert (tmp_path / "lock").stat().st_size == 4  # reading it here would free the lock
    with rocketmq(tmp_path) as (said, _):
        assert said == "locked"
    assert store.condition.read_only is None
    put(store, "T", 0, b"x")
    store.pipeline.commit()
    store.close()
    opened(tmp_path).close()


def test_a_broker_writes_no_more_when_rocketmqs_was_faster(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (tmp_path / "lock").unlink()
    with rocketmq(tmp_path) as (said, pid):
        assert said == "free"
        store.maintenance()
        assert store.condition.read_only is not None
        assert f"in use by process {pid} " in store.condition.read_only
        with pytest.raises(StoreReadOnly):
            put(store, "T", 0, b"x")
    store.abandon()


def test_a_lock_file_that_is_replaced_while_it_is_locked_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = OsFiles(), tmp_path / "lock"
    lockf, calls = fcntl.lockf, []

    def replaced(fd: int, *args: int) -> None:
        lockf(fd, *args)
        calls.append(fd)
        if len(calls) == 1:
            path.unlink()

    monkeypatch.setattr(fcntl, "lockf", replaced)
    fd = files.lock(path)
    assert len(calls) == 2
    assert os.fstat(fd).st_ino == path.stat().st_ino
    files.unlock(path, fd)


def test_a_lock_that_is_not_alone_leaves_the_broker_its_directory(tmp_path: Path) -> None:
    files = OsFiles()
    ours = files.lock(tmp_path / "mqspark.compact.lock", alone=False)
    store = opened(tmp_path)
    store.close()
    files.unlock(tmp_path / "mqspark.compact.lock", ours)


# --- what stands in the place of a file -------------------------------------------------------------------------


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        os.chdir(path.parent)  # the name of a socket must be short
        unix.bind(path.name)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (os.mkfifo, "a FIFO"),
    "socket": (make_socket, "a socket"),
    "symlink": (lambda path: path.symlink_to("/etc/hostname"), "a symbolic link"),
    "dangling": (lambda path: path.symlink_to("/nowhere/at/all"), "a symbolic link"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a symbolic link"),
    "directory": (os.mkdir, "a directory"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "abort",
        "checkpoint",
        "lock",
        "mqspark.checkpoint",
        "mqspark.deletions",
        "commitlog/00000000000000000000",
        "consumequeue/T/0/00000000000000000000",
    ],
)
def test_a_start_refuses_what_is_no_file_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    store = opened(tmp_path)
    put(store, "T", 0, b"x")
    store.pipeline.commit()
    store.close()
    path = tmp_path / name
    path.unlink(missing_ok=True)
    make, words = KINDS[kind]
    make(path)
    found: list[BaseException] = []

    def start() -> None:
        try:
            opened(tmp_path).close()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for the FIFO"
    assert len(found) == 1
    assert isinstance(found[0], OSError)
    assert words in str(found[0])
    assert name in str(found[0])
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()
    if "/" not in name:
        opened(tmp_path).close()  # the lock was given back


@pytest.mark.parametrize("kind", KINDS)
def test_the_secret_of_a_start_is_a_new_file_whatever_stood_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mqspark.nonce"
    KINDS[kind][0](path)
    store = opened(tmp_path)
    found = path.lstat()
    assert stat.S_ISREG(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert path.read_text() == store.directory.nonce


@pytest.mark.parametrize("kind", ["fifo", "symlink", "socket"])
@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "timercheck"])
def test_a_broker_refuses_a_table_that_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path)
    bench.peer().ask(SEND, send_ext("T"), b"x")
    bench.close()
    path = tmp_path / "config" / name
    path.unlink(missing_ok=True)
    KINDS[kind][0](path)
    with pytest.raises(OSError, match=name):
        bench.open()
    if bench.store.condition.read_only is None:
        bench.store.close()


def test_a_device_is_not_even_opened(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="a device stands where a regular file belongs"):
        open_regular("/dev/null", os.O_RDWR)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("topics.json", "topics.json.new"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / name).symlink_to(victim)
        with pytest.raises(OSError, match="a symbolic link"):
            ConfigFile(directory / "topics.json").save(b"{}")
    assert victim.read_text() == "precious"


def test_a_reader_of_the_store_waits_for_no_fifo_and_follows_no_link(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "T", 0, b"x")
    store.pipeline.commit()
    store.close()
    path = tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)
    content = path.rename(tmp_path / "elsewhere")
    os.mkfifo(path)
    assert len(StoreReader(tmp_path).entries("T", 0, 0, 1)) == 0
    path.unlink()
    path.symlink_to(content)
    with pytest.raises(OSError, match="a symbolic link"):
        StoreReader(tmp_path).entries("T", 0, 0, 1)


@pytest.mark.parametrize("name", ["abort", "checkpoint", "mqspark.checkpoint", "mqspark.deletions"])
def test_a_file_of_impossible_length_is_refused_and_not_read(tmp_path: Path, name: str) -> None:
    opened(tmp_path).close()
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 1 << 36)
    with pytest.raises(OSError, match=rf"damaged: .* restore it, or move it away.*{name}"):
        opened(tmp_path)
    (tmp_path / name).unlink()
    opened(tmp_path).close()


def test_names_of_impossible_numbers_are_those_of_others(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "T", 0, b"x")
    store.pipeline.commit()
    store.close()
    queue = tmp_path / "consumequeue" / "T"
    for directory in ("00", "9" * 12, "9" * 200):
        shutil.copytree(queue / "0", queue / directory)
    for directory in (queue / "0", tmp_path / "commitlog"):
        shutil.copy(directory / ("0" * 20), directory / ("9" * 20))
        shutil.copy(directory / ("0" * 20), directory / ("0" * 20 + " "))
    store = opened(tmp_path)
    assert list(store.table.queues) == [("T", 0)]
    assert [message.body for message in drain(store, "T", 0)] == [b"x"]
    assert store.damages.found == []


@pytest.mark.parametrize("settings", [{}, {"mapped_file_size_consume_queue": 400}])
def test_a_queue_file_that_is_too_long_misleads_nobody(tmp_path: Path, settings: dict[str, int]) -> None:
    store = opened(tmp_path, **settings)
    for number in range(25):
        put(store, "A", 0, b"%d" % number)
    put(store, "B", 0, b"b")
    store.pipeline.commit()
    store.close()
    os.truncate(tmp_path / "consumequeue" / "A" / "0" / ("0" * 20), 5_000)
    store = opened(tmp_path)
    assert store.table.file_bytes == settings.get("mapped_file_size_consume_queue", 200)
    assert [message.body for message in drain(store, "A", 0)] == [b"%d" % number for number in range(25)]
    assert put(store, "A", 0, b"after")[0] == 25
    store.close()


# --- limits -----------------------------------------------------------------------------------------------------


def test_a_limit_on_file_sizes_is_named_with_the_file(tmp_path: Path) -> None:
    script = (
        "import resource, sys; from pathlib import Path; from mqspark.store.disk.files import OsFiles, give_to_owner\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "files = OsFiles(); fd = files.open(Path(sys.argv[1]), create=True)\n"
        "for call in (lambda: files.write(fd, b'x' * 8192, 0), lambda: files.set_length(fd, 8192),\n"
        "             lambda: files.allocate(fd, 0, 8192)):\n"
        "    try: call()\n"
        "    except OSError as error: print(error.errno, error)\n"
    )
    path = tmp_path / "segment"
    said = run_python(script, str(path), cwd=HERE, check=True).stdout.splitlines()
    assert len(said) == 3
    for line in said:
        assert line.startswith(f"{errno.EFBIG} ")
        assert "File too large: this process may write files of 4096 bytes (RLIMIT_FSIZE, ulimit -f)" in line
        assert str(path) in line


def test_a_start_under_a_limit_on_file_sizes_names_the_segment(tmp_path: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))

    ports = ("--namesrv-port", "0", "--broker-port", "0", "--http-port", "0")
    said = run_to_end(
        [sys.executable, "-m", "mqspark", "dev", "--store", str(tmp_path / "store"), *ports],
        cwd=HERE,
        preexec_fn=limited,
    )
    print(said)
    assert said.returncode == 1
    assert "File too large: this process may write files of 1048576 bytes" in said.stderr
    assert "Traceback" not in said.stderr


@contextlib.contextmanager
def file_limit(limit: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_log_that_a_limit_stops_says_which_file_and_which_limit(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with file_limit(2048):
        for _ in range(3):
            put(store, "T", 0, b"x" * 600)
        store.pipeline.commit()
        with pytest.raises(StoreReadOnly, match="may write files of 2048 bytes") as refused:
            put(store, "T", 0, b"x")
    assert f"{tmp_path}/commitlog/{0:020d}" in str(refused.value)
    store.abandon()


def test_a_table_that_a_limit_stops_costs_itself_until_there_is_room(tmp_path: Path) -> None:
    failures: list[OSError] = []
    file = ConfigFile(tmp_path / "consumerOffset.json", on_failure=lambda path, error: failures.append(error))
    with file_limit(4096), pytest.raises(OSError, match=r"consumerOffset\.json\.new"):
        file.save(b"x" * 8192)
    assert failures == []  # nothing that would poison a store
    file.save(b"x" * 8192)
    assert file.load() == b"x" * 8192


def test_every_failed_call_names_its_file(tmp_path: Path) -> None:
    files = OsFiles()
    path = tmp_path / "file"
    os.close(files.open(path, create=True))
    fd = os.open(path, os.O_RDONLY)
    for call in (
        lambda: files.write(fd, b"x", 0),
        lambda: files.set_length(fd, 1),
        lambda: files.allocate(fd, 0, 1),
    ):
        with pytest.raises(OSError, match=str(path)):
            call()
    os.close(fd)
