"""The Dockerfile and compose.yaml: what they name is there, commands and settings exist, nothing runs as root."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from mqspark_server import healthcheck
from mqspark_server.cli import cli
from mqspark_server.settings.settings import (
    broker_settings,
    consent_to_anonymous,
    file_layer,
    namesrv_settings,
    override_layer,
    production,
)
from tests.support.maven import or_skip
from tests.support.packages import go_program
from tests.support.processes import run_to_end

COMPOSE_MODULE = Path("tests/support/compose_module")
DOCKERFILE = Path("Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(Path("compose.yaml").read_text())
OURS = {
    name: service for name, service in COMPOSE["services"].items() if service["image"].startswith("mqspark")
}


def stages() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        first, *lines = re.sub(r"\\\n", " ", part).splitlines()
        found[first.split(" AS ")[1]] = lines
    return found


def test_what_is_copied_is_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert copied
    for sources in copied:
        for source in sources.split():
            assert list(Path().glob(source)), source


@pytest.mark.parametrize("stage", ["server", "jobs"])
def test_an_image_runs_as_a_user_and_says_whether_it_is_well(stage: str) -> None:
    base, lines = stages()["base"], stages()[stage]
    assert "USER 10001:10001" in lines
    assert any(line.startswith("HEALTHCHECK ") and "mqspark_server.healthcheck" in line for line in base)
    assert "STOPSIGNAL SIGTERM" in base
    assert 'ENTRYPOINT ["mqspark"]' in base


def test_the_last_stage_is_the_servers() -> None:
    assert list(stages())[-1] == "server"


@pytest.mark.parametrize("name", OURS)
def test_its_command_exists(name: str) -> None:
    words = list(OURS[name].get("command", ["job", "serve", "-c", "/etc/mqspark/jobs.toml"]))
    command: click.Command | None = cli
    with click.Context(cli) as context:
        while isinstance(command, click.Group):
            command = command.get_command(context, words.pop(0))
        assert command is not None
        command.make_context(name, words)


@pytest.mark.parametrize("name", [name for name in OURS if name != "jobs"])
def test_a_server_would_start_with_its_settings(name: str) -> None:
    words = OURS[name]["command"]
    layer = override_layer(words[place + 1] for place, word in enumerate(words) if word == "--set")
    if name == "namesrv":
        settings: Any = namesrv_settings({}, layer)
    else:
        settings = broker_settings(production(), file_layer("conf/broker.toml"), layer)
        assert settings.broker.broker_name == settings.broker.broker_ip1 == name
        assert settings.server.http_bind_address not in ("127.0.0.1", "localhost")
        assert name in settings.server.http_allowed_hosts.split(";")
    warning = consent_to_anonymous(settings.server, settings.auth, layer)
    assert warning is not None


def test_nothing_is_published_to_other_hosts() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_what_is_mounted_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or Path(source).exists(), volume


def test_prometheus_scrapes_the_brokers() -> None:
    scraped = yaml.safe_load(Path("conf/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert [each["job_name"] for each in scraped] == ["mqspark"]
    targets = scraped[0]["static_configs"][0]["targets"]
    assert sorted(target.partition(":")[0] for target in targets) == sorted(
        n for n in OURS if n.startswith("broker")
    )


def test_the_settings_that_matter_are_settings() -> None:
    top = Path("conf/broker.toml").read_text().partition("[identity]")[0]
    named = re.findall(r"^#   (\w+) ", top, re.MULTILINE)
    assert len(named) == 7
    rest = Path("conf/broker.toml").read_text().partition("[identity]")[2]
    for key in named:
        assert re.search(rf"^(?:# )?{key} = ", rest, re.MULTILINE), key


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint is not installed (the extra dev has it on x86-64)")
    command = [program, "--failure-threshold", "warning", "Dockerfile"]
    ran = run_to_end(command)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_services_wait_for_what_can_become_healthy() -> None:
    """Names in depends_on are services; who is waited for to be healthy has an image with a HEALTHCHECK."""
    for name, service in COMPOSE["services"].items():
        wanted = service.get("depends_on", {})
        conditions = wanted if isinstance(wanted, dict) else {other: {} for other in wanted}
        for other, condition in conditions.items():
            assert other in COMPOSE["services"], name
            if condition.get("condition") == "service_healthy":
                assert other in OURS, name


@pytest.mark.slow("builds the parser of Docker Compose once; the tests above read the file without it")
def test_docker_compose_takes_the_file() -> None:
    """Its own library checks the file by the schema, follows its references and prints what it means."""
    package = "github.com/compose-spec/compose-go/v2/cmd"
    program = or_skip(lambda: go_program("compose", COMPOSE_MODULE, package))
    done = run_to_end([program, "compose.yaml"])
    assert (done.returncode, done.stderr) == (0, "")
    understood = yaml.safe_load(done.stdout)
    assert understood["services"].keys() == COMPOSE["services"].keys()
    for name in ("broker-a", "broker-b", "broker-c"):
        service = understood["services"][name]
        assert service["depends_on"]["namesrv"]["condition"] == "service_healthy"
        assert service["read_only"] is True
        assert service["command"] == COMPOSE["services"][name]["command"]
    assert set(understood["volumes"]) == set(COMPOSE["volumes"])


# --- the health check -----------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health/ready" else 503)
            self.end_headers()
            self.wfile.write(b"the disk is full")

        def log_message(self, format: str, *arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_health(
    server: HTTPServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"127.0.0.1:{server.server_port}"
    assert healthcheck.main([f"http://{place}/health/ready"]) == 0
    assert healthcheck.main([place]) == 0
    assert healthcheck.main([f"http://{place}/other"]) == 1
    assert "answers 503: the disk is full" in capsys.readouterr().err
    monkeypatch.setenv("MQSPARK_HEALTH", f"http://{place}/health/ready")
    assert healthcheck.main([]) == 0


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "nowhere", "http://127.0.0.1:1/x", "127.0.0.1:1"])
def test_nobody_is_there(place: str) -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert healthcheck.main([place]) == 1
