"""Spark as the console observes it: progress as the listener of a query publishes it, and answers of a job server.

Names and texts are hostile: a page shows them as text.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from mqspark_server.scheduler.jobrecords import JobOverview, JobRow, RunPage, RunRecord
from mqspark_server.scheduler.servedtables import TableRow

QUERY = "7c1c9a9e-3f0e-4a53-8a51-0123456789ab"
HOSTILE = "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 2'>"


def progress(number: int) -> str:
    queues = {"q": {"Orders": {"dev:0": number * 10, "dev:1": number * 9}}, "v": 1}
    return json.dumps(
        {
            "event": "progress",
            "id": QUERY,
            "runId": "1",
            "name": HOSTILE,
            "progress": {
                "batchId": number,
                "numInputRows": 900,
                "inputRowsPerSecond": 300.5,
                "processedRowsPerSecond": 400.0 + number,
                "durationMs": {"triggerExecution": 800},
                "sources": [{"description": HOSTILE, "endOffset": queues, "latestOffset": queues}],
                "sink": {"description": "DeltaSink[/lake]"},
            },
        }
    )


def live_tables(now_ms: int, nameserver: str = "") -> list[TableRow]:
    """What it answers about tables of a cluster; one is of another."""
    return [
        TableRow(
            "orders", "Orders", nameserver, "sleepers", "running", f"/lake/{HOSTILE}", rows=40,
            at_ms=now_ms - 2_000, delay_ms=1_500, rejected=3,
        ),
        TableRow("bills", "Bills", "10.0.0.1:9876", "none", "failed", "/lake/bills", error=f"no storage at {HOSTILE}"),
    ]  # fmt: skip


def jobs(now_ms: int) -> dict[str, Any]:
    """What it answers, by its path."""

    def run(job: str, number: int, outcome: str, error: str = "") -> RunRecord:
        begun = now_ms - number * 3_600_000
        code = {"ok": 0, "failed": 1}.get(outcome)
        figures = {"rows": 120_000 * number, "bytes": 48_000_000, "note": HOSTILE}
        return RunRecord(job, job, outcome, begun, 1, begun, begun + 42_300 * number, code, error, figures)

    runs = [run("archive", 1, "ok"), run("compact", 2, "failed", f"no storage at {HOSTILE}")]
    runs += [run("archive", number, "ok") for number in range(2, 8)]
    rows = [
        JobRow(
            "archive", "archive", "17 * * * *", running=True, running_here=True, running_since_ms=now_ms - 60_000,
            pid=4711, next_ms=now_ms + 1_200_000, last=runs[0], last_good_ms=now_ms, outcomes={"ok": 12},
        ),
        JobRow(
            "compact", "compact", "40 2 * * *", "Europe/Berlin", next_ms=now_ms + 50_000_000, failures=3,
            retry_ms=now_ms + 90_000, attempt=2, last=runs[1], outcomes={"failed": 3},
        ),
        JobRow("redeliver", "redeliver", "*/10 * * * *", enabled=False),
        JobRow("rebuild", "rebuild-index", "@daily", running=True, next_ms=now_ms + 5_000_000),
    ]  # fmt: skip
    return {
        "/api/v1/overview": JobOverview(True, None, rows, runs),
        "/api/v1/jobs": rows,
        "/api/v1/jobs/archive/runs": RunPage([each for each in runs if each.job == "archive"]),
    }


@contextmanager
def job_server(now_ms: int | None = None, tables: Sequence[TableRow] = ()) -> Iterator[str]:
    """The address of a server that answers as a job server does. ``now_ms``: its time. ``tables``: also those that
    come later."""
    answers = jobs(time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    answers["/api/v1/tables"] = tables

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            self.send_response(200 if found is not None else 404)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(found))

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
