"""The examples of docs/http.md, one after the other, with curl against a new broker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mqspark.testing import Broker
from tests.support import processes
from tests.support.waiting import eventually

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


def test_the_example_of_a_tail_shows_what_comes(tmp_path: Path) -> None:
    (block,) = (part.partition("```")[0] for part in PAGE.split("```text\n")[1:])
    command, kind, data = block.splitlines()
    with Broker(http=True) as broker:
        url = f"{broker.http_url}/api/v1/topics/Orders"
        token = f"Authorization: Bearer {broker.apps[0].loopback_token}"
        made = ["-s", "-H", "Content-Type: application/json", "-H", token]
        subprocess.run(["curl", "-X", "PUT", url, *made, "-d", "{}"], check=True, capture_output=True)
        words, headers = command[2:].replace(ROOT, str(broker.http_url)), tmp_path / "headers"
        follow = ["bash", "-c", f"exec {words} -s -D /dev/stderr"]
        with processes.process(follow, headers, stdout=subprocess.PIPE) as tail:
            assert tail.stdout is not None
            eventually(lambda: " 200 " in headers.read_text(), "the tail to begin")
            body = json.dumps({"body": "hello", "tags": "paid"})
            subprocess.run(["curl", f"{url}/messages", *made, "-d", body], check=True, capture_output=True)
            came = []
            for line in tail.stdout:
                if line.strip() and not line.startswith(":"):
                    came.append(line.strip())
                if line.startswith("data:"):
                    break
    assert came[0] == kind
    shown = data.removeprefix("data: ").replace("…", "")
    names = [part.partition('"')[0] for part in shown.split(',"')[1:]]
    document = json.loads(came[1].removeprefix("data: "))
    assert {"topic", *names[:4]} - {""} <= document.keys()
    assert (document["topic"], document["body"]) == ("Orders", "hello")
