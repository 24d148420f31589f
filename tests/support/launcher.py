"""A Python that is a fork of another: ``launcher.py SOCKET ARGUMENTS-OF-PYTHON``.

Whoever listens at the socket gets the arguments, the environment and the standard streams, and forks; the launcher
lives as long as the fork. When nobody listens it becomes an ordinary Python. It imports little: it starts often.
"""

import os
import socket
import sys


def main() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(sys.argv[1])
            told = [os.fsencode(word) for word in sys.argv[2:]]
            environment = [b"%s=%s" % each for each in os.environb.items()]
            request = b"\0\0".join(b"\0".join(words) for words in (told, environment))
            server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(request))
            socket.send_fds(server, [request], [0, 1, 2])
            if server.recv(1):
                os.closerange(0, 2)  # else nobody would see that the fork closes its own
                server.recv(1)  # the fork has ended
                os._exit(0)
        except OSError as error:
            print(f"no fork, a Python of its own: {error}", file=sys.stderr)
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])  # noqa: S606


if __name__ == "__main__":
    main()
