"""Servers of the tests leave nothing behind, also when the process that runs the tests is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forkserver import IS_SUPPORTED
from tests.support.processes import is_gone, process
from tests.support.waiting import eventually

STARTS_ONE = """
import signal, sys
from pathlib import Path
from tests.support.processes import mqspark_command, ready_line, set_options, start
log = Path(sys.argv[1])
settings = set_options({"listenPort": 0, "bindAddress": "127.0.0.1", "kvConfigPath": f"{log}.kv"})
child = start([*mqspark_command(), "namesrv", "run", *settings], log, stdout=-1)
ready_line(child, log)
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.skipif(not IS_SUPPORTED, reason="servers are forked on Linux only")
def test_a_forked_server_ends_with_a_killed_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS_ONE, str(tmp_path / "log")]
    with process(command, tmp_path / "parent.log", stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        assert not is_gone(server)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    eventually(lambda: is_gone(server), "the server still runs")
