"""The process that compacts for a broker: ``python -m mqspark_server.compacting.compactchild``.

It gets its task as one line of JSON on its standard input, writes an empty line from time to time as a sign of life,
and its report as the last line. It ends when its standard input ends, because its broker is gone then.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from mqspark.store.disk.files import OsFiles
from mqspark.store.tools.compactor import Compactor, CompactTask

_NICE = 10
"""The niceness of the process: messages come first."""
_ALIVE_S = 1.0


def main() -> None:
    with contextlib.suppress(OSError):  # where that is forbidden, the process is as important as its broker
        os.nice(_NICE)
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=CompactTask)
    threading.Thread(target=_end_with_the_broker, daemon=True).start()
    said_s = time.monotonic()

    def alive() -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= _ALIVE_S:
            said_s = time.monotonic()
            _write_line(b"")

    files = OsFiles.like(Path(task.root) / "consumequeue")
    _write_line(msgspec.json.encode(Compactor(task, files, alive).run()))


def _write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _end_with_the_broker() -> None:
    # Not by sys.stdin, whose lock a thread holds while it waits: the end of the process would wait for it.
    while os.read(0, 1024):
        continue
    os._exit(1)


if __name__ == "__main__":
    main()
