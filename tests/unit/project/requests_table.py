"""The page that says who serves which request of the remoting protocol, from the handlers of the servers:

python -m tests.unit.project.requests_table > docs/requests.md
"""

from __future__ import annotations

import ast
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mqspark.broker.admin.unsupported import NOT_CONFIGURED, NOT_SUPPORTED, NOTHING_TO_DO
from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.manager import ReplicasManager
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.codes import RequestCode
from mqspark.store.disk.brokeridentity import IdentityFiles
from tests.support.store_tools import QuickFiles
from tests.unit.broker_kit import Bench, ManualClock
from tests.unit.controller_kit import ControllerBench

PAGE = Path(__file__).parents[3] / "docs" / "requests.md"
CLIENT = Path(__file__).parents[3] / "mqspark" / "client"

_NUMBER_ALONE = "a number that RocketMQ 5.5 has no handler for, either"
_FILTER_SERVERS = "filter servers, which RocketMQ 5 no longer has"
_AMONG_CONTROLLERS = (
    "among controllers of RocketMQ that replicate by JRaft; controllers here share their state in etcd"
)
NOWHERE = {
    **dict.fromkeys(
        (
            RequestCode.QUERY_BROKER_OFFSET,
            RequestCode.GET_TOPIC_CONFIG_LIST,
            RequestCode.GET_TOPIC_NAME_LIST,
            RequestCode.TRIGGER_DELETE_FILES,
            RequestCode.GET_CLIENT_CONFIG,
            RequestCode.SUSPEND_CONSUMER,
            RequestCode.RESUME_CONSUMER,
            RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
            RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
            RequestCode.ADJUST_CONSUMER_THREAD_POOL,
            RequestCode.WHO_CONSUME_THE_MESSAGE,
        ),
        _NUMBER_ALONE,
    ),
    RequestCode.REGISTER_FILTER_SERVER: _FILTER_SERVERS,
    RequestCode.REGISTER_MESSAGE_FILTER_CLASS: _FILTER_SERVERS,
    **dict.fromkeys(
        (
            RequestCode.BROKER_CLOSE_CHANNEL_REQUEST,
            RequestCode.CHECK_NOT_ACTIVE_BROKER_REQUEST,
            RequestCode.GET_BROKER_LIVE_INFO_REQUEST,
            RequestCode.GET_SYNC_STATE_DATA_REQUEST,
            RequestCode.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
        ),
        _AMONG_CONTROLLERS,
    ),
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: (
        "brokers send it to clients with lite subscriptions, which are RocketMQ's: the proxy's and 5.x clients"
    ),
}
"""Why nobody here serves a request."""
IN_CONTROLLER_MODE = frozenset({RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.GET_BROKER_EPOCH_CACHE})
SERVED = "served"


@functools.cache
def served() -> dict[str, set[int]]:
    """Server -> the codes that it has a handler for."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        bench = Bench(folder / "store")
        try:
            broker = set(bench.broker.handlers)
        finally:
            bench.close()
        identity = IdentityFiles(folder, QuickFiles(), "c", "b")
        broker |= set(ReplicasManager(BrokerConfig(), ManualClock(), identity, "").handlers)
        return {
            "broker": broker,
            "name server": set(NameServer(NamesrvConfig(), ManualClock()).handlers),
            "controller": set(ControllerBench(folder / "controller").core.handlers),
            "client": set(client_codes()),
        }


def client_codes() -> Iterator[int]:
    """What clients compare the code of a server's request with."""
    for path in sorted(CLIENT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and ast.unparse(node.left) == "request.code":
                for other in node.comparators:
                    name = ast.unparse(other).removeprefix("RequestCode.")
                    yield RequestCode[name]


def of_broker(code: RequestCode) -> str:
    if code in NOT_SUPPORTED:
        return f"refused (code 3): {NOT_SUPPORTED[code]}"
    if code in NOTHING_TO_DO:
        return f"succeeds without an effect: {NOTHING_TO_DO[code]}"
    if code in IN_CONTROLLER_MODE:
        refusal = "; otherwise refused (code 1), as there" if code in NOT_CONFIGURED else ""
        return f"served in controller mode{refusal}"
    if code in NOT_CONFIGURED:
        return "served with `authenticationEnabled`; otherwise refused (code 1), as there"
    return SERVED


def markdown() -> str:
    found = served()
    everywhere = set().union(*found.values())
    lines = [
        "# Requests",
        "",
        f"RocketMQ 5.5 knows {len(RequestCode)} request codes of the remoting protocol, and so does this project:"
        f" {len(everywhere)} have a handler here.",
        "A server answers all others with code 3, as RocketMQ's do. That both brokers serve and refuse the same codes",
        "is tested against RocketMQ 5.5.0 ([test_differential.py](../tests/interop/test_differential.py), its codes).",
        "A test compares this page with the handlers. It is made by",
        "`python -m tests.unit.project.requests_table > docs/requests.md`.",
        "",
        "| code | request | broker | name server | controller | client |",
        "|---|---|---|---|---|---|",
    ]
    for code in RequestCode:
        if code in NOWHERE:
            cells = [f"nobody: {NOWHERE[code]}", "", "", ""]
        else:
            cells = [of_broker(code) if code in found["broker"] else ""]
            cells += [
                SERVED if code in found[each] else "" for each in ("name server", "controller", "client")
            ]
        lines.append(f"| {int(code)} | `{code.name}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(markdown(), end="")
