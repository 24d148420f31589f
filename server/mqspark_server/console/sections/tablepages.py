"""The page about live tables: what each does, how far behind its topic it is, and how fresh it is.

It shows the answer of a job server, which reads their definitions; how far a table is behind the cluster says. Changes
are made by the job server, with the visitor's keys: the cluster says who may.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any
from urllib.parse import quote

import msgspec

from mqspark.client.remoting.credentials import Credentials
from mqspark_server.actions.fields import ChoiceField, Name
from mqspark_server.actions.operating import Done, Preview
from mqspark_server.actions.tableactions import DROP, PAUSE, RESUME
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.sections.jobpages import answer_of, job_server_of
from mqspark_server.console.site import Asking, ListView, Section
from mqspark_server.net.webserver import NotAnswered, WebServer
from mqspark_server.scheduler.servedtables import TableRow
from mqspark_server.settings.serverconfig import is_loopback
from mqspark_server.survey.groupsurvey import lag_of
from mqspark_server.survey.surveying import Row

_OK = 200
_CHANGE_S = 30.0
"""The job server asks the cluster first."""
_KINDS = {"running": "good", "failed": "bad"}
CHANGES = {each.verb: each for each in (PAUSE, RESUME, DROP)}


class TableList(ListView, frozen=True):
    columns = (
        ("name", "Table"), ("topic", "Topic"), ("state", "State"), ("lag", "#Lag"),
        ("rows", "#Newest batch"), ("delay_ms", "#Delay"), ("at_ms", "Newest"), ("rejected", "#Rejected"),
        ("", "Change")
    )  # fmt: skip

    async def show(self, asked: Asking) -> Row:
        server = await job_server_of(asked)
        if server is None:
            return {"job_server": ""}
        found = await answer_of(server, "/api/v1/tables", list[TableRow])

        async def behind(row: Row) -> Row:
            is_here = row["nameserver"] == asked.at.namesrv
            lag = await lag_of(asked.admin, row["group"], row["topic"]) if is_here else None
            return {"is_here": is_here, "lag": lag, "kind": _KINDS.get(row["state"], "off")}

        return {
            "job_server": str(server),
            "tables": found,
            **await self.listed("name", [msgspec.to_builtins(each) for each in found], behind),
        }


class ChangeTable(msgspec.Struct, frozen=True):
    name: Name
    change: Annotated[str, ChoiceField(tuple(CHANGES))]

    async def preview(self, asked: Asking) -> Preview:
        _, row = await _of_cluster(asked, self.name)
        change, verb = CHANGES[self.change], self.change.capitalize()
        facts = [
            ("Topic", row.topic),
            ("Place", row.url),
            ("State", row.state),
            ("Then", f"it {change.done}"),
        ]
        return Preview(f"{verb} the table {self.name}?", verb, facts, is_dangerous=change.is_dangerous)

    async def apply(self, asked: Asking) -> Done:
        server, _ = await _of_cluster(asked, self.name)
        change = CHANGES[self.change]
        target = f"/api/v1/tables/{quote(self.name, safe='')}{change.step}"
        try:
            answer = await server.ask(target, _keys(asked, server), method=change.method, timeout_s=_CHANGE_S)
        except NotAnswered as error:
            raise Trouble(502, "The job server cannot be asked", str(error)) from None
        if answer.status != _OK:
            raise Trouble(answer.status, "The table was not changed", _detail(answer.body))
        return Done(f"table {self.name} {change.done}")


async def _of_cluster(asked: Asking, name: str) -> tuple[WebServer, TableRow]:
    """The job server, and what it says about a table of this cluster. Raises Trouble, MQError."""
    server = await job_server_of(asked)
    found = [] if server is None else await answer_of(server, "/api/v1/tables", list[TableRow])
    row = next((each for each in found if each.name == name), None)
    if server is None or row is None:
        raise Trouble(
            404, "There is no such table", "It was dropped, or never made on the host of the job server."
        )
    if row.nameserver != asked.at.namesrv:
        detail = f"It follows a topic of the cluster at {row.nameserver}: change it on the console of that cluster."
        raise Trouble(409, "This table is of another cluster", detail)
    return server, row


def _keys(asked: Asking, server: WebServer) -> list[tuple[str, str]]:
    """The visitor's keys as a header. Raises Trouble."""
    keys = asked.admin.options.credentials
    if not isinstance(keys, Credentials):
        return []
    if not (server.is_tls or is_loopback(server.host)):
        detail = f"Secrets are not sent in clear to {server}; use mqspark table on its host."
        raise Trouble(403, "The table was not changed", detail)
    encoded = base64.b64encode(f"{keys.access_key}:{keys.secret_key}".encode()).decode()
    return [("Authorization", f"Basic {encoded}")]


def _detail(body: bytes) -> str:
    try:
        found: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "The job server gives no reason."
    return str(found.get("detail"))[:1_000]


TABLE_PAGES = Section(
    "Tables",
    views={"/tables": (TableList, "tables.html")},
    changes={"/tables/{name}/{change}": (ChangeTable, "/tables")},
)
