"""Starts mqspark servers as forks of one process that has imported them, which saves the 0.4 s of the imports.

``Forked`` is the ``subprocess.Popen`` of such a server. It is an ordinary child of this process, with a pid, an exit
code, signals, pipes and, on request, its own session. Only ``/proc/PID/cmdline`` is that of the fork server. Linux only
(see ``IS_SUPPORTED``). A test of the start itself runs the command.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, NoReturn

IS_SUPPORTED = sys.platform == "linux"
MODULES = (
    "mqspark_server.cli",
    "mqspark_server.dev_cluster",
    "mqspark_server.controller_app",
    "mqspark_server.commands.administration.broker_cli",
    "mqspark_server.commands.administration.namesrv_cli",
    "mqspark_server.commands.administration.controller_cli",
    "mqspark_server.commands.local.servers_cli",
    "mqspark_server.commands.output",
    "mqspark_server.commands.clustercommand",
    "mqspark_server.console.history.sampler",
    "mqspark_server.process.collector",
    "mqspark_server.process.stalls",
    "mqspark_server.proxy.backends.brokerbackend",
    "mqspark_server.proxy.grpcserver",
    "uvloop",
)
"""The modules that servers import at their start."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MOST_BYTES = 1 << 20
"""Limit of a request: arguments and environment."""

_lock = threading.Lock()
_server: socket.socket | None = None


class Forked(subprocess.Popen[str]):
    """``args[0]`` is the ``mqspark`` command; the rest is as for ``Popen``."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (_, _, _, _, cwd, env, _, _, _, read_in, write_in, read_out, write_out, read_err, write_err, *_) = (
            rest
        )
        new_session = rest[-2]
        streams = [
            own if own != -1 else inherited
            for own, inherited in ((read_in, 0), (write_out, 1), (write_err, 2))
        ]
        request = {
            "args": list(args),
            "cwd": str(cwd),
            "env": dict(env),
            "umask": _umask(),
            "new_session": new_session,
        }
        with _lock:
            self.pid = _fork(json.dumps(request).encode(), streams)
        self._child_created = True
        # Close the child's ends of the pipes, as Popen does. A file passed by the caller stays open.
        for own, kept in ((read_in, write_in), (write_out, read_out), (write_err, read_err)):
            if own != -1 and kept != -1:
                os.close(own)


def _fork(request: bytes, streams: list[int]) -> int:
    global _server
    if _server is None:
        _server = _start()
    adopt = ctypes.CDLL(None, use_errno=True).prctl
    # The fork's parent ends at once. This process is a subreaper meanwhile, so it becomes the parent. It is not a
    # subreaper for longer, because processes left behind by servers must not become its children.
    adopt(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        socket.send_fds(_server, [request], streams)
        answer = _server.recv(32)
    finally:
        adopt(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    if not answer:
        _server = None
        raise RuntimeError("the fork server has ended")
    return int(answer)


def _umask() -> int:
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:")
    )
    return int(line.split()[1], 8)


def _start() -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MOST_BYTES)
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, str(its.fileno())], pass_fds=[its.fileno()], start_new_session=True
    )
    its.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# --- the fork server ----------------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Serve requests until the other end is closed."""
    for module in MODULES:
        __import__(module)
    gc.collect()
    gc.freeze()  # a collection would write to the pages that the forks share
    while True:
        descriptors = array.array("i")
        message, ancillary, _, _ = requests.recvmsg(MOST_BYTES, socket.CMSG_SPACE(3 * descriptors.itemsize))
        if not message:
            return
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        told, tell = os.pipe()
        parent = os.fork()
        if parent == 0:
            between = os.getpid()
            child = os.fork()
            if child:
                os.write(tell, b"%d" % child)
                os._exit(0)
            for unused in (told, tell, requests.detach()):
                os.close(unused)
            _end_with_parent(between)
            _become(json.loads(message), list(descriptors))
        os.waitpid(parent, 0)
        requests.send(os.read(told, 32))
        for used in (told, tell, *descriptors):
            os.close(used)


def _end_with_parent(between: int) -> None:
    """Have the kernel end this server when its parent is killed, which cannot end it then. ``between``: the parent
    that hands it over."""
    while os.getppid() == between:
        os.sched_yield()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _become(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run the command as a new process of Python would. It ends without taking the interpreter down, which writes to
    every page that it shares with the fork server, and takes longer than most commands."""
    if request["new_session"]:
        os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - the other one was a file, and believes that it still is
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = request["args"]
    if "PYTHONWARNINGS" in os.environ:  # one action, for all of them
        warnings.simplefilter(os.environ["PYTHONWARNINGS"])
    try:
        code = _run()
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(code)


def _run() -> int:
    """The exit code that Python would end with."""
    from mqspark.__main__ import main

    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
