"""``python -m mqspark_server.healthcheck [URL | HOST:PORT]``: exit code 0 if that server is healthy. For containers.

Without an argument, MQSPARK_HEALTH gives the address. A URL has to answer 200. A host and port, for a server without
HTTP, has to accept a connection.
"""

from __future__ import annotations

import http.client
import os
import socket
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

VARIABLE = "MQSPARK_HEALTH"
DEFAULT = "http://127.0.0.1:10914/health/ready"
HEALTH_TIMEOUT_S = 4.0
MAX_TEXT = 2_000


def main(arguments: Sequence[str]) -> int:
    """Returns 0 when the server is healthy, otherwise 1; the reason goes to standard error."""
    place = arguments[0] if arguments else os.environ.get(VARIABLE, DEFAULT)
    try:
        problem = _ask(place) if "://" in place else _connect(place)
    except (OSError, http.client.HTTPException, ValueError) as error:
        problem = f"{place}: {error or type(error).__name__}"
    if problem is not None:
        sys.stderr.write(f"{problem}\n")
    return 0 if problem is None else 1


def _ask(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        return f"{url} is not an http:// URL"
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
        answer = connection.getresponse()
        text = answer.read(MAX_TEXT).decode(errors="replace")
    finally:
        connection.close()
    return None if answer.status == http.client.OK else f"{url} answers {answer.status}: {text}"


def _connect(place: str) -> str | None:
    host, _, port = place.rpartition(":")
    socket.create_connection((host, int(port)), HEALTH_TIMEOUT_S).close()
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
