"""The alert rules of ``conf/prometheus``: they ask for metrics that a broker has, and Prometheus accepts them."""

from __future__ import annotations

import json
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark import LitePullConsumer, Message, Producer
from mqspark.testing import Broker
from tests.support import web
from tests.support.processes import free_port, listens, process, run_to_end, wait_for_start
from tests.support.waiting import eventually

RULES = Path("conf/prometheus/alerts.yml")
EXPRESSIONS = re.findall(r"^ +expr: (.+)$", RULES.read_text(), re.MULTILINE)
ONLY_IN_TROUBLE = {
    "rocketmq_storage_damage",
    "rocketmq_send_to_dlq_messages_total",
    "mqspark_table_refused_total",
}
"""Metrics without a sample as long as all is well."""
NAME = re.compile(r"\b(?:rocketmq|mqspark)_[a-z_]+\b")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as broker, Producer(broker.namesrv, group="p") as producer:
        for number in range(10):
            producer.send(Message.of("Rules", b"%d" % number))
        with LitePullConsumer(
            broker.namesrv, group="g", consume_from="CONSUME_FROM_FIRST_OFFSET"
        ) as consumer:
            consumer.subscribe("Rules")
            assert consumer.poll(30_000)
            consumer.commit()
            yield broker


def test_a_broker_has_the_metrics(broker: Broker) -> None:
    text = web.get(f"{broker.http_url}/metrics").text
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    asked = {name for expression in EXPRESSIONS for name in NAME.findall(expression)}
    assert len(asked) > 12
    for name in asked:
        family = name.removesuffix("_bucket")
        assert families[family] == ("histogram" if family != name else families[family]), name


def test_rates_are_asked_of_counters_only(broker: Broker) -> None:
    text = web.get(f"{broker.http_url}/metrics").text
    counters = {
        name for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE) if kind == "counter"
    }
    rated = set(re.findall(r"(?:rate|increase)\((\w+)\[", RULES.read_text()))
    assert rated
    assert {name for name in rated if not name.endswith("_bucket")} <= counters


def test_prometheus_accepts_them() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool on this machine (Debian: prometheus)")
    command = [promtool, "check", "rules", str(RULES)]
    done = run_to_end(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(EXPRESSIONS)} rules found" in done.stdout


def test_prometheus_gets_data_for_them(broker: Broker, tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("there is no prometheus on this machine (Debian: prometheus)")
    port = free_port()
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{RULES.absolute()}]\nscrape_configs:\n"
        f"  - job_name: mqspark\n    static_configs: [{{targets: ['{str(broker.http_url).removeprefix('http://')}']}}]\n"
    )
    command = [
        prometheus,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with process(command, tmp_path / "log") as child:
        address = f"127.0.0.1:{port}"
        wait_for_start(lambda: listens(address), "Prometheus", child, tmp_path / "log")
        eventually(lambda: web.get(f"http://{address}/-/ready").status_code == 200, "Prometheus to be ready")
        wanted = {re.split(" (?:==|>) ", expression)[0] for expression in EXPRESSIONS}
        wanted = {each for each in wanted if ONLY_IN_TROUBLE.isdisjoint(NAME.findall(each))}
        eventually(lambda: all(_has_data(port, each) for each in wanted), lambda: f"data for all of {wanted}")
        firing = [alert for alert in _ask(port, "alerts")["alerts"] if alert["state"] == "firing"]
        assert not firing, "a sound broker needs nobody"


def _ask(port: int, path: str) -> dict[str, list[dict[str, object]]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=60) as answer:
        data: dict[str, list[dict[str, object]]] = json.load(answer)["data"]
        return data


def _has_data(port: int, expression: str) -> bool:
    return bool(_ask(port, f"query?query={urllib.parse.quote(expression)}")["result"])
