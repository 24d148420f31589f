"""Keys as options of the source and the sink sign requests and are shown nowhere; forms that show them are refused."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from mqspark import AdminClient, Credentials
from mqspark.errors import ConfigError
from pyspark_pymq.options import ReadOptions, WriteOptions
from tests.support.clusters import mqspark_broker, mqspark_namesrv
from tests.support.jvm import spark_options
from tests.support.processes import mqspark_command, run_to_end

BASE = {"nameserver": "127.0.0.1:9876", "topic": "T"}
KEYS = {"accessKey": "canary-name", "secretKey": "canary-secret", "securityToken": "canary-token"}
INNER = {"accessKey": "inner", "secretKey": "inner-secret"}


def test_keys_are_in_no_text_and_reach_tasks() -> None:
    for options in (ReadOptions.parse(BASE | KEYS, streaming=False), WriteOptions.parse(BASE | KEYS)):
        assert "canary" not in repr(options)
        task = pickle.loads(pickle.dumps(options))  # noqa: S301
        assert task.signing.credentials() == Credentials(*KEYS.values())


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"accessKey": "canary"}, "secretKey"),
        ({"secretKey": "canary"}, "accessKey"),
        ({"securityToken": "canary"}, "accessKey"),
        ({"accessKey": "canary", "secretKey": ""}, "secretKey"),
        ({**KEYS, "credentialsFile": "/f"}, "credentialsFile"),
        ({"credentialsFile": "f"}, "credentialsFile"),
    ],
)
def test_contradictions(options: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: ") as caught:
        ReadOptions.parse(BASE | options, streaming=False)
    assert "canary" not in str(caught.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("accessKey: me\nsecretKey: canary\n")
    path.chmod(0o640)
    signing = ReadOptions.parse(BASE | {"credentialsFile": str(path)}, streaming=True).signing
    with pytest.raises(ConfigError, match=r"^credentialsFile: .*chmod 600") as caught:
        signing.credentials()
    assert "canary" not in str(caught.value)
    path.chmod(0o600)
    assert signing.credentials() == Credentials("me", "canary")
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        signing.credentials()


@pytest.mark.spark
@pytest.mark.slow("starts a Spark session with an event log, and a cluster with users")
def test_keys_are_nowhere_that_a_query_leaves_traces(tmp_path: Path) -> None:
    keys = {name: KEYS[name] for name in ("accessKey", "secretKey")}
    credentials = Credentials(*keys.values())
    settings = {"authenticationEnabled": True, "authorizationEnabled": True}
    settings["innerClientAuthenticationCredentials"] = json.dumps(INNER)  # type: ignore[assignment]
    for place in ("names", "users"):
        command = [*mqspark_command(), "user", "add", keys["accessKey"], "--directory", str(tmp_path / place)]
        subprocess.run(command, input=f"{keys['secretKey']}\n", text=True, check=True, timeout=60)
    file = tmp_path / "keys"
    file.write_text("".join(f"{name}: {value}\n" for name, value in keys.items()))
    file.chmod(0o600)
    folder = tmp_path / "spark"
    folder.mkdir()
    with mqspark_namesrv(tmp_path, settings | {"authConfigPath": tmp_path / "names"}) as namesrv:
        users = {"brokerName": "b", "brokerClusterName": "C", "authConfigPath": tmp_path / "users"}
        users["schemaRegistryEnable"] = True  # type: ignore[assignment]
        with mqspark_broker(tmp_path, namesrv, settings | users) as broker:
            with AdminClient(namesrv, credentials=credentials) as admin:
                for topic in ("Orders", "Typed"):
                    admin.create_topic(topic, queues=2)
            given: dict[str, object] = {
                "folder": str(folder),
                "nameserver": namesrv,
                "keys": keys,
                "file": str(file),
                "registry": broker.http,
            }
            given["java_options"] = spark_options()
            (tmp_path / "settings.json").write_text(json.dumps(given))
            script = Path(__file__).with_name("signing_driver.py")
            done = run_to_end(
                [sys.executable, str(script), str(tmp_path / "settings.json")], timeout_s=400, cwd=folder
            )
            assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((folder / "result.json").read_text())
    assert result["counts"] == [2, 2, 2]
    assert len(result["errors"]) == 3
    assert "accessKey: empty" in result["errors"][1]
    assert (
        "secretKey: no option of a table" in result["errors"][2]
        or "accessKey: no option of a table" in result["errors"][2]
    )
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "result.json"]
    found = [
        path for path in files if b"canary-secret" in path.read_bytes() or b"canary-name" in path.read_bytes()
    ]
    assert found == []
    events = b"".join(path.read_bytes() for path in files if "events" in path.parts)
    assert b"SparkListenerSQLExecutionStart" in events
    assert b"pymq" in events
    assert any("checkpoint" in path.parts for path in files)
    assert "canary-" not in done.stdout + done.stderr + "".join(result["shown"] + result["errors"])
