"""The page that says who serves which request of the remoting protocol, from the handlers of the servers:

python -m tests.unit.project.requests_table > docs/requests.md
"""

from __future__ import annotations

import ast
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mqspark.auth.access import TABLE
from mqspark.base.config import camel_case
from mqspark.broker.admin.unsupported import NOT_CONFIGURED, NOT_SUPPORTED, NOTHING_TO_DO
from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.manager import ReplicasManager
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.codes import RequestCode
from mqspark.store.disk.notes.brokeridentity import IdentityFiles
from tests.support.clocks import ManualClock
from tests.support.store_tools import QuickFiles
from tests.unit.broker_kit import Bench
from tests.unit.controller_kit import ControllerBench

PAGE = Path(__file__).parents[3] / "docs" / "requests.md"
CLIENT = Path(__file__).parents[3] / "mqspark" / "client"

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
        "| code | request | broker | name server | controller | client | a broker refuses what waited |",
        "|---|---|---|---|---|---|---|",
    ]
    for code in RequestCode:
        if TABLE[code].nobody:
            cells = [f"nobody: {TABLE[code].nobody}", "", "", ""]
        else:
            cells = [of_broker(code) if code in found["broker"] else ""]
            cells += [
                SERVED if code in found[each] else "" for each in ("name server", "controller", "client")
            ]
        patience = TABLE[code].patience
        cells.append(f"`{camel_case(f'wait_time_mills_in_{patience}_queue')}`" if patience else "")
        lines.append(f"| {int(code)} | `{code.name}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(markdown(), end="")
