"""The examples of docs/http.md, one after the other, with curl against a new broker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mqspark.testing import Broker

PAGE = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
ROOT = "http://127.0.0.1:10914"
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the examples of the page use curl")


def test_the_examples_run_in_order() -> None:
    (block,) = (part.partition("```")[0] for part in PAGE.split("```console\n")[1:])
    lines = block.splitlines()
    commands = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    assert len(commands) > 6
    with Broker(http=True) as broker:
        environment = {**os.environ, "TOKEN": broker.apps[0].loopback_token, "NO_PROXY": "*"}
        answers = []
        for start, end in zip(commands, [*commands[1:], len(lines)], strict=True):
            command = lines[start][2:].replace(ROOT, str(broker.http_url))
            done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, timeout=60)
            assert done.returncode == 0, (command, done.stderr)
            answer = json.loads(done.stdout) if done.stdout else {}
            shown = "".join(lines[start + 1 : end])
            if shown:
                wanted = json.loads(shown)
                assert {key: answer.get(key) for key in wanted} == wanted, command
            else:
                assert answer.get("status", 200) < 300, (command, answer)
            answers.append(answer)
        (found,) = answers[2]["items"]
        assert (found["body"], found["keys"], found["tags"]) == ("hello", ["order-7"], "paid")
        assert answers[5]["bearerToken"]


def test_the_example_of_a_tail_shows_what_comes() -> None:
    (block,) = (part.partition("```")[0] for part in PAGE.split("```text\n")[1:])
    command, kind, data = block.splitlines()
    with Broker(http=True) as broker:
        url = f"{broker.http_url}/api/v1/topics/Orders"
        made = [
            "-s",
            "-H",
            "Content-Type: application/json",
            "-H",
            f"Authorization: Bearer {broker.apps[0].loopback_token}",
        ]
        subprocess.run(["curl", "-X", "PUT", url, *made, "-d", "{}"], check=True, capture_output=True)
        words = command[2:].replace(ROOT, str(broker.http_url))
        with subprocess.Popen(
            ["bash", "-c", f"exec {words} -s -D /dev/stderr"], stdout=-1, stderr=-1, text=True
        ) as tail:
            assert tail.stdout is not None
            assert tail.stderr is not None
            while tail.stderr.readline().strip():
                pass  # the headers come when the tail has begun
            body = json.dumps({"body": "hello", "tags": "paid"})
            subprocess.run(["curl", f"{url}/messages", *made, "-d", body], check=True, capture_output=True)
            came = []
            for line in tail.stdout:
                if line.strip() and not line.startswith(":"):
                    came.append(line.strip())
                if line.startswith("data:"):
                    break
            tail.terminate()
    assert came[0] == kind
    shown = data.removeprefix("data: ").replace("…", "")
    names = [part.partition('"')[0] for part in shown.split(',"')[1:]]
    document = json.loads(came[1].removeprefix("data: "))
    assert {"topic", *names[:4]} - {""} <= document.keys()
    assert (document["topic"], document["body"]) == ("Orders", "hello")
