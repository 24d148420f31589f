"""``mqspark controller``: a real controller behind a socket, and what the commands show and change of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mqspark.client.admin import AdminClient
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import BrokerData, ClusterInfo
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark_server.console.clusteraccess import ClusterAt
from mqspark_server.console.history.samples import History
from mqspark_server.console.rendering import render
from mqspark_server.console.sections.clusterpages import OneBroker
from mqspark_server.console.site import Asking
from mqspark_server.console.visitors import Visitor
from tests.support.commands import Outcome, mqspark
from tests.support.scripted import Answer, Scripted, served
from tests.support.shownfigures import figures_of
from tests.unit.controller_kit import CLUSTER, NAME, NOT_ALIVE_MS, ControllerBench


class Set:
    """A name server, a controller with a set of three, and the broker that names the controller."""

    def __init__(self, directory: Path) -> None:
        self.bench = ControllerBench(directory)
        self.bench.trio()
        self.names, self.controller, self.broker = map(Scripted, (self._name, self._control, self._tell))
        self.in_controller_mode = True

    def _name(self, command: Command) -> Answer:
        data = BrokerData(cluster=CLUSTER, broker_name=NAME, broker_addrs={0: self.broker.address})
        info = ClusterInfo(broker_addr_table={NAME: data}, cluster_addr_table={CLUSTER: [NAME]})
        return 0, None, encode_body(info)

    def _control(self, command: Command) -> Answer:
        answer = self.bench.operator.ask(command.code, command.ext, bytes(command.body))
        fields = dict(answer.ext or {})
        if command.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            fields["controllerLeaderAddress"] = self.controller.address
        return answer.code, fields, bytes(answer.body)

    def _tell(self, command: Command) -> Answer:
        mode = str(self.in_controller_mode).lower()
        return 0, None, f"enableControllerMode={mode}\ncontrollerAddr={self.controller.address}\n".encode()

    def ask(self, *words: str) -> Outcome:
        return mqspark("controller", *words, "-n", self.names.address, "--timeout", "2")

    def page(self) -> str:
        """The console's page of the broker, as a visitor sees it."""
        visitor, at = Visitor(None, has_users=False), ClusterAt(self.names.address, ClientOptions())
        view = OneBroker(NAME)

        async def shown() -> dict[str, Any]:
            async with AdminClient(at.namesrv, timeout_ms=2_000) as admin:
                found = await view.show(Asking(admin, at, visitor, History(), 0))
                return {**msgspec.structs.asdict(view), "look": view, **found}

        site = {"section": "", "here": "", "place": "", "visitor": visitor, "now_ms": 0}
        return render("broker.html", {**site, **asyncio.run(shown())}).decode()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Set]:
    found = Set(tmp_path)
    with served(found.names, found.controller, found.broker):
        yield found


def test_the_sync_state_set_is_shown(three: Set) -> None:
    assert three.bench.alter(1, 1, {1, 2}, 2).code == 0
    three.bench.die(3)
    rows = three.ask("replicas", "-o", "json").json
    shown = [(row["id"], row["role"], row["in_sync"], row["alive"], row["epoch"]) for row in rows]
    assert shown == [(1, "master", True, True, 1), (2, "slave", True, True, 1), (3, "slave", False, False, 1)]
    table = three.ask("replicas", NAME)
    assert (table.code, len(table.lines)) == (0, 4)
    missing = three.ask("replicas", "b-aa")
    assert (missing.code, "did you mean 'b-a'" in missing.err) == (3, True), missing.err


def test_the_console_shows_the_set_by_broker_id(three: Set) -> None:
    assert three.bench.alter(1, 1, {1, 2}, 2).code == 0
    three.bench.die(3)
    shown = figures_of(three.page())
    assert shown.tiles == {
        "Epoch of the master": "1",
        "Epoch of the SyncStateSet": "3",
        "In the SyncStateSet": "2 of 3",
    }
    rows = shown.tables["Replicas by broker id"].rows
    assert [(row["Broker id"], row["Role"], row["SyncStateSet"], row["State"]) for row in rows] == [
        ("1", "master", "in the set", "alive"),
        ("2", "slave", "in the set", "alive"),
        ("3", "slave", "not in the set", "silent"),
    ]
    three.in_controller_mode = False
    (row,) = figures_of(three.page()).tables["Replicas by broker id"].rows
    assert (row["Broker id"], row["Role"], row["Address"]) == ("0", "master", three.broker.address)
    assert "SyncStateSet" not in row


def test_the_controllers_are_listed(three: Set) -> None:
    rows = three.ask("list", "-o", "json").json
    assert rows == [
        {
            "address": three.controller.address,
            "leads": True,
            "leader": three.controller.address,
            "group": "mqspark",
        }
    ]
    (row,) = three.ask("list", "--controller", "127.0.0.1:1", "-o", "json").json
    assert (row["leads"], "127.0.0.1:1" in row["error"]) == (False, True)


def test_a_master_is_elected_after_a_question(three: Set) -> None:
    refused = three.ask("elect", NAME, "2")
    assert refused.code == 2
    assert (
        f"Elect 2 as master of {NAME} (1 is master now)? There is no terminal to ask: add --yes"
        in refused.err
    )
    assert three.bench.info()[0] == 1
    assert three.ask("elect", NAME, "2", "--yes").out.endswith("is master of b-a in epoch 2\n")
    assert three.bench.info()[:2] == (2, 2)
    unknown = three.ask("elect", NAME, "9", "--yes")
    assert (unknown.code, "it has 1, 2, 3" in unknown.err) == (3, True), unknown.err
    again = three.ask("elect", NAME, "2", "--yes")
    assert (again.code, "nothing was changed" in again.err) == (1, True), again.err


def test_a_replica_that_lacks_messages_is_refused(three: Set) -> None:
    assert three.bench.alter(1, 1, {1, 2}, 2).code == 0
    three.bench.advance(NOT_ALIVE_MS, 1, 2)
    refused = three.ask("elect", NAME, "3", "--yes")
    assert refused.code == 1
    assert three.bench.info()[:2] == (1, 1)


def test_controllers_that_cannot_be_found_are_an_error_with_a_way_on(three: Set) -> None:
    three.in_controller_mode = False
    refused = three.ask("replicas")
    assert (refused.code, "(controllerAddr); give --controller" in refused.err) == (1, True), refused.err
    assert three.ask("replicas", "--controller", three.controller.address).code == 0
    refused = three.ask("replicas", "--controller", "127.0.0.1:1")
    assert (refused.code, "no controller leads (127.0.0.1:1)" in refused.err) == (1, True), refused.err
    assert three.ask("replicas", "--controller", "nowhere").code == 2
