"""A process that has imported what Spark's Python processes import, for the pyspark modules that Spark starts.

Spark starts a Python for each kind of planning, for tasks, and for each start of a stream; most of their processor
time, a third of a second each, is imports. With ``warm_python`` they are forks of one process: Spark runs
``tests/support/warm_python.sh``, which asks for one. ``python -m tests.support.warm_python LISTENER``.
"""

from __future__ import annotations

import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tests.support.forkserver import IS_SUPPORTED
from tests.support.launched import LAUNCHER, Request, accepted, listener_at

PYTHON = Path(__file__).with_name("warm_python.sh")


@contextmanager
def warm_python(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which a Spark session has to start so that it has such Pythons. ``folder`` exists."""
    if not IS_SUPPORTED:
        yield {}
        return
    path = folder / "python"
    with listener_at(path) as listener:
        command = [sys.executable, "-m", __name__, str(listener.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    try:
        yield {
            "PYSPARK_PYTHON": str(PYTHON),
            "MQSPARK_PYTHON": sys.executable,
            "MQSPARK_LAUNCHER": str(LAUNCHER),
            "MQSPARK_WARM_PYTHON": str(path),
        }
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


# --- the process that forks -----------------------------------------------------------------------------------------


def become(request: Request) -> NoReturn:
    """Run the module as ``python -m`` does."""
    option, module, *arguments = request.arguments
    assert option == "-m"
    os.environ.clear()
    os.environ.update(request.environment)
    request.take_streams()
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 255)


def main(listener: socket.socket) -> None:
    """Until the standard input is closed."""
    import pyarrow  # noqa: F401
    import pyspark.daemon
    import pyspark.sql.streaming.python_streaming_source_runner
    import pyspark.sql.worker.commit_data_source_write
    import pyspark.sql.worker.create_data_source
    import pyspark.sql.worker.lookup_data_sources
    import pyspark.sql.worker.plan_data_source_read
    import pyspark.sql.worker.python_streaming_sink_runner
    import pyspark.sql.worker.write_into_data_source
    import pyspark.worker  # noqa: F401

    import pyspark_pymq.reading.batch
    import pyspark_pymq.reading.stream
    import pyspark_pymq.source
    import pyspark_pymq.writing.exactlyonce
    import pyspark_pymq.writing.sink  # noqa: F401

    gc.freeze()  # a worker collects after each task
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            return
        request = accepted(listener)
        if request is None:
            continue
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            become(request)
        request.close()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
