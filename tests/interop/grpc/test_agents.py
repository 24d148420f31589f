"""A program that nobody here wrote: PyPI's rocketmq-a2a, agents that talk over RocketMQ. Its agent and its MCP server
are in an environment of their own, and have nothing but the gRPC port of our broker."""

import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.other_clients import agent_programs
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster, mqspark_cluster
from tests.support.maven import or_skip
from tests.support.processes import process, set_options, tail
from tests.support.waiting import eventually

ANSWER_S = 90.0
"""The Python client subscribes to each letter of a lite topic's name at first, and to the name after half a minute."""


@pytest.fixture
def programs() -> Path:
    return or_skip(agent_programs)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    lite = {"enableLmq": "true", "enableMultiDispatch": "true"}
    with mqspark_cluster(tmp_path / "cluster", *set_options(lite)) as running:
        yield running


class Mcp:
    """An MCP server at the other end of pipes."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self._child, self._number = child, 0
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        client = {"name": "test", "version": "1"}
        self.request("initialize", protocolVersion="2024-11-05", capabilities={}, clientInfo=client)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line)

    def _write(self, message: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(message) + "\n")
        self._child.stdin.flush()

    def request(self, method: str, **params: Any) -> Any:
        self._number += 1
        self._write({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = json.loads(self._lines.get(timeout=deadline - time.monotonic()))
            if answer.get("id") == self._number:
                return answer["result"]

    def tool(self, name: str, **arguments: Any) -> str:
        content = self.request("tools/call", name=name, arguments=arguments)["content"]
        return "\n".join(each["text"] for each in content)


@contextmanager
def mcp_server(programs: Path, folder: Path, environment: dict[str, str]) -> Iterator[Mcp]:
    log = folder / "mcp.err"
    command = [str(programs / "rocketmq-a2a-mcp")]
    with process(command, log, env=environment, stdout=subprocess.PIPE) as child:
        yield Mcp(child)


@pytest.mark.slow("its client takes half a minute to subscribe")
def test_agents_talk_over_our_broker(programs: Path, cluster: Cluster, tmp_path: Path) -> None:
    tasks = create_topic(cluster, "AgentTasks")
    answers = create_topic(cluster, "AgentAnswers", 1, attributes="+message.type=LITE")
    workers = create_group(cluster, "agents")
    listeners = create_group(cluster, "listeners", attributes={"+lite.bind.topic": answers})
    environment = {
        "HOME": str(tmp_path),
        "ROCKETMQ_ENDPOINT": cluster.grpc,
        "ROCKETMQ_ACCESS_KEY": "",
        "ROCKETMQ_SECRET_KEY": "",
        "ROCKETMQ_NAMESPACE": "agents",  # it asks for one, and servers do not care
        "ROCKETMQ_WORK_AGENT_RESPONSE_TOPIC": answers,
        "ROCKETMQ_WORK_AGENT_RESPONSE_GROUP_ID": listeners,
    }
    log = tmp_path / "agent.out"
    command = [str(programs / "rocketmq-a2a-agentd"), "--biz-topic", tasks, "--consumer-group", workers]
    with process([*command, "--executor", "echo", "--agent-name", "echo"], log, env=environment):
        eventually(lambda: "Agent daemon started" in tail(log), "the agent starts", 60)
        with mcp_server(programs, tmp_path, environment) as mcp:
            tools = {each["name"] for each in mcp.request("tools/list")["tools"]}
            assert {"a2a_register_agent", "a2a_send_message", "a2a_get_task"} <= tools
            registered = mcp.tool("a2a_register_agent", agent_name="echo", topic=tasks)
            assert "rror" not in registered, registered
            answer = mcp.tool("a2a_send_message", agent_name="echo", message="how do you do?")
            assert "Echo: how do you do?" in answer, (answer, tail(log))
