"""HTTP beside a name server: health, metrics, brokers; there only when it is asked for."""

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from mqspark.errors import ConfigError
from mqspark_server.settings.settings import Layer, namesrv_settings
from tests.support.clusters import mqspark_broker
from tests.support.processes import HOST, mqspark_command, process, ready_line, run_to_end, set_options


def test_health_metrics_and_brokers(tmp_path: Path) -> None:
    values = {"listenPort": 0, "bindAddress": HOST, "httpPort": 0, "kvConfigPath": tmp_path / "kvConfig.json"}
    command = [*mqspark_command(), "namesrv", "run", *set_options(values)]
    log = tmp_path / "namesrv.err"
    with process(command, log, stdout=subprocess.PIPE) as child:
        ready = ready_line(child, log)
        broker = {"brokerName": "b-a", "brokerClusterName": "C"}
        with (
            mqspark_broker(tmp_path, ready["namesrv"], broker) as running,
            httpx.Client(base_url=ready["http"], timeout=30) as http,
        ):
            assert http.get("/health/live").json() == {"status": "live"}
            assert http.get("/health/ready").json()["status"] == "ready"
            brokers = http.get("/api/v1/brokers").json()
            assert brokers["clusterAddrTable"] == {"C": ["b-a"]}
            assert brokers["brokerAddrTable"]["b-a"]["brokerAddrs"] == {"0": running.broker}
            for path in ("/docs", "/redoc", "/nothing"):  # FastAPI's pages would load scripts from elsewhere
                unknown = http.get(path)
                assert (unknown.status_code, unknown.json()["status"]) == (404, 404)
            assert "/api/v1/brokers" in http.get("/openapi.json").json()["paths"]
            text = http.get("/metrics").text
            assert http.get("/metrics", headers={"Host": "elsewhere.example"}).status_code == 403
    assert re.search(r"^mqspark_namesrv_brokers\{.*\} 1.0$", text, re.MULTILINE)
    assert re.search(r"^mqspark_namesrv_ready\{.*\} 1.0$", text, re.MULTILINE)
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed: it comes with Debian's package prometheus")
    command = [promtool, "check", "metrics"]
    checked = run_to_end(command, input=text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_no_http_with_users_yet() -> None:
    with pytest.raises(ConfigError, match="leave httpPort out"):
        namesrv_settings({}, Layer("--set", {"httpPort": "0", "authenticationEnabled": "true"}))
