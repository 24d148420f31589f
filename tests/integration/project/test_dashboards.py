"""The dashboards of ``conf/grafana``: every query returns data from a Prometheus that scrapes a running cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark import Message, Producer, PushConsumer
from mqspark.testing import Broker
from tests.support import web
from tests.support.processes import free_port, listens, process, ready_line, wait_for_start
from tests.support.waiting import eventually

BOARDS = sorted(Path("conf/grafana").glob("*.json"))
VARIABLES = {
    "$__rate_interval": "15s",
    "$cluster": ".*",
    "$broker": ".*",
    "$topic": ".*",
    "$group": ".*",
    "$job": ".*",
}
JOB_SERVER = """
import asyncio, sys
sys.path[:0] = {path!r}
from pathlib import Path
from mqspark_server.scheduler.jobrecords import JobState
from tests.integration.web.test_job_server import JobServerApp, jobs_file, says
async def main():
    app = JobServerApp(jobs_file(Path({root!r}), "archive"), command=says("print('{{\\"ok\\": true}}')"))
    app.directory.make()
    app.directory.save("archive", JobState(taken_ms=1))
    await app.start()
    print("READY http=" + app.url, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def boards() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in BOARDS:
        yield path.stem, json.loads(path.read_text())


def expressions() -> dict[str, list[str]]:
    """Query to the panels that have it."""
    found: dict[str, list[str]] = {}
    for name, board in boards():
        for panel in board["panels"]:
            for target in panel["targets"]:
                found.setdefault(target["expr"], []).append(f"{name}: {panel['title']}")
    return found


def test_there_is_one_for_each_subject() -> None:
    assert [path.stem for path in BOARDS] == [
        "mqspark-cluster",
        "mqspark-group",
        "mqspark-spark",
        "mqspark-topic",
    ]
    for name, board in boards():
        assert board["uid"] == name
        panels = board["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)
        places = {(x, y) for panel in panels for x, y in squares(panel["gridPos"])}
        assert len(places) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels), (
            "they overlap"
        )
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def squares(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def test_a_query_asks_for_variables_that_there_are() -> None:
    for name, board in boards():
        known = {f"${variable['name']}" for variable in board["templating"]["list"]} | {"$__rate_interval"}
        for panel in board["panels"]:
            for target in panel["targets"]:
                used = set(re.findall(r"\$\w+", target["expr"]))
                assert used <= known, f"{name}: {panel['title']}"
                assert used <= VARIABLES.keys()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Prometheus that scrapes a broker at work and a job server."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("there is no prometheus on this machine (Debian: prometheus)")
    root = tmp_path_factory.mktemp("prometheus")
    script = JOB_SERVER.format(path=sys.path, root=str(root / "jobs"))
    stop = threading.Event()
    with (
        Broker(http=True) as broker,
        process([sys.executable, "-c", script], root / "jobs.log", stdout=subprocess.PIPE) as server,
    ):
        jobs = ready_line(server, root / "jobs.log")["http"]
        targets = [url.removeprefix("http://") for url in (str(broker.http_url), jobs)]
        port = free_port()
        (root / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s}\nscrape_configs:\n"
            f"  - job_name: mqspark\n    static_configs: [{{targets: {json.dumps(targets)}}}]\n"
        )
        command = [
            prometheus,
            f"--config.file={root / 'prometheus.yml'}",
            f"--storage.tsdb.path={root / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        consumer = PushConsumer(
            broker.namesrv,
            group="reader",
            listener=lambda message: None,
            consume_from="CONSUME_FROM_FIRST_OFFSET",
        )
        consumer.subscribe("Boards")
        with Producer(broker.namesrv, group="writer") as producer:

            def send() -> None:
                while not stop.wait(0.2):
                    producer.send(Message.of("Boards", "x"))

            producer.send(Message.of("Boards", "first"))
            sender = threading.Thread(target=send)
            sender.start()
            try:
                with consumer, process(command, root / "log") as child:
                    wait_for_start(lambda: listens(f"127.0.0.1:{port}"), "Prometheus", child, root / "log")
                    yield port
            finally:
                stop.set()
                sender.join()


def test_every_query_returns_data(scraped: int) -> None:
    missing = dict(expressions())

    def all_there() -> bool:
        for expression in list(missing):
            text = expression
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            answer = web.get(f"http://127.0.0.1:{scraped}/api/v1/query?query={urllib.parse.quote(text)}")
            if answer.status_code == 400:
                raise AssertionError(f"{expression}: {answer.text}")
            if answer.status_code == 200 and answer.json()["data"]["result"]:
                del missing[expression]
        return not missing

    eventually(all_there, lambda: f"no data: {missing}")


def test_the_variables_have_values(scraped: int) -> None:
    for name, board in boards():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None, name
            selector, label = found[1].replace("$cluster", ".*"), found[2]

            def values(selector: str = selector, label: str = label) -> list[str]:
                match = urllib.parse.quote(selector)
                answer = web.get(f"http://127.0.0.1:{scraped}/api/v1/label/{label}/values?match[]={match}")
                data: list[str] = answer.json()["data"]
                return data

            assert eventually(values), f"{name}: {variable['name']}"
