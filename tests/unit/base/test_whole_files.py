"""Files that several replace at once, and the named clusters, which several commands may change at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path

import pytest

from mqspark.base.wholefile import replace_file
from mqspark_server.commands.contexts import ClusterContext, changed_contexts, load_contexts


def test_a_file_that_two_replace_at_once_is_that_of_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fsync = tmp_path / "file", os.fsync

    def interrupted(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        replace_file(path, b"the second")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", interrupted)
    replace_file(path, b"the first one", mode=0o600)
    assert path.read_bytes() == b"the first one"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_could_not_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def failing(fd: int) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="no space"):
        replace_file(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_two_commands_that_change_the_contexts_at_once_both_have_their_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQSPARK_CONTEXTS", str(tmp_path / "a" / "contexts.toml"))
    asked, flock = threading.Event(), fcntl.flock

    def add() -> None:
        with changed_contexts() as known:
            known.contexts["other"] = ClusterContext("127.0.0.1:9876")

    def noted(fd: int, operation: int) -> None:
        asked.set()
        flock(fd, operation)

    other = threading.Thread(target=add)
    with changed_contexts() as known:
        known.contexts["one"] = ClusterContext("127.0.0.1:9877")
        monkeypatch.setattr(fcntl, "flock", noted)
        other.start()
        assert asked.wait(60)
    other.join()
    assert sorted(load_contexts().contexts) == ["one", "other"]


def test_contexts_are_as_before_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQSPARK_CONTEXTS", str(tmp_path / "contexts.toml"))
    with contextlib.suppress(RuntimeError), changed_contexts() as known:
        known.contexts["one"] = ClusterContext("127.0.0.1:9877")
        raise RuntimeError
    assert not load_contexts().contexts
