"""A child process that calls the function, for messages that may kill the process that handles them.

The worker sends slices of a batch and reads their outcomes. When the child dies, the slice is halved until one message
is left. That message is called once more in a fresh child; if this one dies too, the message is the cause. A child is
the first process that Linux kills when memory runs out.

Parent and child talk over pipes: what is pickled comes from this program alone.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_pymq.watching import end_with_parent
from pyspark_pymq.work.functions import Handled
from pyspark_pymq.work.verdicts import Failure

if TYPE_CHECKING:
    from pyspark_pymq.work.functions import ArrowFunction, RowFunction

DIED = "WorkerDied"
"""The error type of a message that killed its process."""
_LENGTH = struct.Struct(">Q")


class Isolated:
    """A form of function whose calls happen in a child."""

    def __init__(self, form: RowFunction | ArrowFunction) -> None:
        from pyspark import cloudpickle

        self._form = form
        self._pickled: bytes = cloudpickle.dumps(form)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_fresh = True

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end(self._process)

    def call(self, batch: pa.RecordBatch) -> Handled:
        calls = Handled()
        parts: list[pa.Array] = []
        size = self._form.slice_rows
        waiting = [(first, min(size, batch.num_rows - first)) for first in range(0, batch.num_rows, size)][
            ::-1
        ]
        while waiting:
            first, rows = waiting.pop()
            was_fresh = self._is_fresh
            done = self._exchange(batch.slice(first, rows))
            if isinstance(done, str):
                if rows > 1:
                    half = rows // 2
                    waiting += [(first + half, rows - half), (first, half)]
                elif was_fresh:
                    calls.failures[first] = Failure(DIED, done, is_final=True)
                else:
                    waiting.append((first, rows))
                continue
            calls.failures |= {first + row: failure for row, failure in done.failures.items()}
            if done.results is not None:
                parts.append(done.results)
        if self._form.results is not None:
            calls.results = pa.concat_arrays([pa.nulls(0, self._form.results), *parts])
        return calls

    def _exchange(self, batch: pa.RecordBatch) -> Handled | str:
        """The outcomes of the rows, or how the child died."""
        process = self._process or self._start()
        try:
            if process.stdin is None or process.stdout is None:
                raise BrokenPipeError
            _write(process.stdin, batch)
            calls: Handled = _read(process.stdout)
        except (EOFError, BrokenPipeError):
            return self._end(process)
        self._is_fresh = False
        return calls

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-c", "from pyspark_pymq.work.isolated import serve; serve()"]
        process = subprocess.Popen(  # noqa: S603 - this interpreter and a constant
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._process, self._is_fresh = process, True
        if process.stdin is not None:
            process.stdin.write(_LENGTH.pack(len(self._pickled)) + self._pickled)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> str:
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what was buffered for the dead process
        self._process, self._is_fresh = None, True
        if code < 0:
            return f"the message killed its process by signal {-code} ({signal.Signals(-code).name})"
        return f"the message ended its process with exit code {code}"


def _write(pipe: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> Any:
    """Raises EOFError when the other side is gone."""
    return pickle.loads(_frame(pipe))  # noqa: S301 - from this program's own child or parent


def _frame(pipe: IO[bytes]) -> bytes:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data


def serve() -> None:
    """The child: reads slices from its standard input until that ends. What the function prints goes to standard
    error."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if sys.platform == "linux":
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    end_with_parent()
    form = pickle.loads(_frame(requests))  # noqa: S301 - from the parent
    while True:
        try:
            batch = _read(requests)
        except EOFError:
            return
        try:
            _write(answers, form.call(batch))
        except BrokenPipeError:
            os._exit(1)  # nobody is left to answer, or to clean up for
