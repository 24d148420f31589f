"""The Helm chart by Helm itself: it is linted and rendered, Kubernetes' schemas take the objects, and the servers take
the settings in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest

from mqspark_server.cli import cli
from mqspark_server.scheduler.jobsfile import read_jobs_file
from mqspark_server.settings.settings import (
    broker_settings,
    consent_to_anonymous,
    controller_settings,
    file_layer,
    namesrv_settings,
    override_layer,
    production,
)
from tests.support.helm import CHART, KUBERNETES, helm, helm_program, rendered
from tests.support.maven import or_skip

pytestmark = [
    pytest.mark.slow("builds Helm once, some minutes; tests/unit/project/test_chart.py looks at the files"),
    pytest.mark.timeout(1_800),
]

PREFIX = "/etc/mqspark-settings/"
EVERYTHING = (
    *("--set", "controller.enabled=true", "--set", "broker.copies=3", "--set", "controller.replicas=3"),
    *("--set", "controller.etcdEndpoints={http://etcd-0:2379,http://etcd-1:2379}"),
    *("--set", "jobs.enabled=true", "--set", "jobs.brokerVolume=data-x", "--set", "jobs.brokerPod=x"),
    *(
        "--set",
        "serviceMonitor.enabled=true",
        "--set",
        "networkPolicy.monitoring[0].podSelector.matchLabels.a=b",
    ),
    *(
        "--set",
        "broker.settings.fileReservedTime=1000000",
        "--set",
        "broker.settings.maxTablesBytes=268435456",
    ),
    *("--set", "http.allowedHosts={mq.example.org}"),
)
OPEN = (
    "--set",
    "auth.enabled=false",
    "--set",
    "networkPolicy.enabled=false",
    "--set",
    "console.enabled=false",
)
CASES = {"default": (), "everything": EVERYTHING, "open": OPEN}
Objects = list[dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    or_skip(helm_program)


@pytest.fixture(scope="module", params=CASES)
def objects(request: pytest.FixtureRequest) -> Objects:
    return rendered(*CASES[request.param])


def pods(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name of the workload, and its template of a pod."""
    for each in objects:
        if each["kind"] in ("StatefulSet", "Deployment"):
            yield each["metadata"]["name"], each["spec"]["template"]


def of_kind(objects: Objects, kind: str) -> Objects:
    return [each for each in objects if each["kind"] == kind]


@pytest.mark.parametrize("case", CASES)
def test_helm_has_nothing_to_say_of_it(case: str) -> None:
    done = helm("lint", "--strict", str(CHART), *CASES[case])
    assert done.returncode == 0, done.stdout
    assert "[ERROR]" not in done.stdout
    assert "[WARNING]" not in done.stdout


def test_kubernetes_takes_it(objects: Objects) -> None:
    for each in objects:
        if each["kind"] != "ServiceMonitor":  # of the Prometheus operator
            kubernetes_validate.validate(each, KUBERNETES, strict=True)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)


def test_pods_may_little_and_say_how_they_are(objects: Objects) -> None:
    found = list(pods(objects))
    assert found
    for name, template in found:
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        (container,) = spec["containers"]
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]
        assert container["readinessProbe"]
        assert container["livenessProbe"]
        hook = (
            container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        )
        assert hook[0] == "sleep"
        assert int(hook[1]) <= 5
        assert spec["terminationGracePeriodSeconds"] > int(hook[1]) + 5
        mounted = {each["name"] for each in container["volumeMounts"]}
        own = {each["name"] for each in spec["volumes"]}
        claimed = {"data"} if name.rpartition("-")[2] != "console" else set()
        assert mounted == own | claimed


def test_services_policies_and_budgets_choose_pods_that_are_there(objects: Objects) -> None:
    templates = [template for _, template in pods(objects)]
    ports = {port["name"] for each in templates for port in each["spec"]["containers"][0].get("ports", ())}
    numbers = {
        port["containerPort"] for each in templates for port in each["spec"]["containers"][0].get("ports", ())
    }

    def chosen(selector: dict[str, str]) -> bool:
        return any(selector.items() <= each["metadata"]["labels"].items() for each in templates)

    for service in of_kind(objects, "Service"):
        assert chosen(service["spec"]["selector"])
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for policy in of_kind(objects, "NetworkPolicy"):
        assert chosen(policy["spec"]["podSelector"]["matchLabels"])
        for rule in policy["spec"]["ingress"]:
            assert {port["port"] for port in rule["ports"]} <= numbers
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert chosen(budget["spec"]["selector"]["matchLabels"])
    for each in of_kind(objects, "StatefulSet"):
        services = {service["metadata"]["name"] for service in of_kind(objects, "Service")}
        assert each["spec"]["serviceName"] in services
    secrets = {each["metadata"]["name"]: each["stringData"] for each in of_kind(objects, "Secret")}
    for monitor in of_kind(objects, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        (scraped,) = (
            s for s in of_kind(objects, "Service") if wanted.items() <= s["metadata"]["labels"].items()
        )
        assert "http" in [port["name"] for port in scraped["spec"]["ports"]]
        (endpoint,) = monitor["spec"]["endpoints"]
        # Brokers with users show metrics to callers with keys alone; the job server has none, and gets none.
        assert ("basicAuth" in endpoint) is (wanted["app.kubernetes.io/component"] == "broker")
        for key in endpoint.get("basicAuth", {}).values():
            assert key["key"] in secrets[key["name"]]


def test_servers_would_start_with_their_commands_and_settings(objects: Objects, tmp_path: Path) -> None:
    for each in objects:
        for name, text in (each.get("stringData") or each.get("data") or {}).items():
            (tmp_path / name).write_text(text)
    has_users = "password" in {key for each in objects for key in each.get("stringData", ())}
    for name, template in pods(objects):
        (container,) = template["spec"]["containers"]
        words = [
            word.replace("$(POD_NAME)", "x-0").replace(PREFIX, f"{tmp_path}/") for word in container["args"]
        ]
        given = override_layer(words[place + 1] for place, word in enumerate(words) if word == "--set")
        command: click.Command | None = cli
        with click.Context(cli) as context:
            rest = list(words)
            while isinstance(command, click.Group):
                command = command.get_command(context, rest.pop(0))
            assert command is not None
            command.make_context(name, rest)
        settings: Any
        match container["name"]:
            case "namesrv":
                layer = file_layer(tmp_path / "namesrv.toml")
                settings = namesrv_settings({}, layer, given)
            case "broker":
                layer = file_layer(tmp_path / "broker.toml")
                settings = broker_settings(production(), layer, given)
                assert settings.broker.broker_ip1 == "x-0.r-mqspark-broker.prod.svc.cluster.local"
                assert settings.broker.broker_name == name
                assert settings.server.http_port == 10914
                hosts = settings.broker.namesrv_addr.split(";")
                assert hosts == [
                    f"r-mqspark-namesrv-{n}.r-mqspark-namesrv.prod.svc.cluster.local:9876" for n in range(2)
                ]
            case "controller":
                layer = file_layer(tmp_path / "controller.toml")
                settings = controller_settings({}, layer, given)
            case "jobs":
                file = read_jobs_file(tmp_path / "jobs.toml")
                assert file.server.http_bind_address not in ("127.0.0.1", "localhost")
                continue
            case _:
                assert container["name"] == "console"
                continue
        assert settings.unused == []
        assert settings.auth.authentication_enabled is has_users
        warning = consent_to_anonymous(settings.server, settings.auth, layer)
        assert (warning is None) is has_users


def test_the_password_is_drawn_and_the_same_everywhere(tmp_path: Path) -> None:
    (secret,) = of_kind(rendered(), "Secret")
    password = secret["stringData"]["password"]
    assert len(password) == 32
    for name in ("namesrv.toml", "broker.toml", "controller.toml"):
        assert secret["stringData"][name].count(password) == 2
    (other,) = of_kind(rendered(), "Secret")
    assert other["stringData"]["password"] != password


def test_large_numbers_stay_whole() -> None:
    (secret,) = of_kind(rendered(*EVERYTHING), "Secret")
    text = secret["stringData"]["broker.toml"]
    assert "fileReservedTime = 1000000\n" in text
    assert "maxTablesBytes = 268435456\n" in text
    assert json.loads(text.partition("httpAllowedHosts = ")[2].splitlines()[0]).endswith(";mq.example.org")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["broker.copies=2"], "needs controller.enabled"),
        (["controller.enabled=true", "controller.replicas=3"], "needs controller.etcdEndpoints"),
        (["jobs.enabled=true", "jobs.brokerVolume=x"], "needs jobs.brokerPod"),
        (["brokers.sets=2"], "brokers"),
        (["broker.preStopSeconds=60"], "preStopSeconds"),
    ],
)
def test_what_it_refuses(values: list[str], why: str) -> None:
    options = [word for value in values for word in ("--set", value)]
    done = helm("template", "r", str(CHART), *options)
    assert done.returncode != 0
    assert why in done.stderr
