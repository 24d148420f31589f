"""What the first requests over HTTP need is loaded by the thread that builds the application, not by the loop."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys, threading
from mqspark_server.web.http import load_server

def build():
    import fastapi
    app = fastapi.FastAPI()
    app.get("/")(lambda: 7)  # runs in a thread
    return app

servers = []
thread = threading.Thread(target=lambda: servers.append(load_server(build, 10, None)))
thread.start()
thread.join()
sent = []

async def ask():
    scope = {
        "type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": [],
        "http_version": "1.1", "scheme": "http", "root_path": "", "server": None, "client": None,
    }

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event):
        sent.append(event)

    [server] = servers
    assert server.config.loaded
    await server.config.loaded_app(scope, receive, send)

before = set(sys.modules)
asyncio.run(ask())
assert sent[0]["status"] == 200, sent
print(*sorted(set(sys.modules) - before))
"""


def test_the_first_request_loads_nothing_on_the_loop() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout
    assert loaded.split() == []
