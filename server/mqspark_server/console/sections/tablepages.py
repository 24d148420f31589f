"""The page about live tables: what each does, how far behind its topic it is, and how fresh it is.

It shows the answer of a job server, which reads their definitions; how far a table is behind the cluster says.
"""

from __future__ import annotations

import msgspec

from mqspark_server.console.sections.jobpages import answer_of, check_may_look
from mqspark_server.console.site import Asking, ListView, Section
from mqspark_server.scheduler.servedtables import TableRow
from mqspark_server.survey.groupsurvey import lag_of
from mqspark_server.survey.surveying import Row

_KINDS = {"running": "good", "failed": "bad"}


class TableList(ListView, frozen=True):
    sortable = ("topic", "state", "lag", "rows", "delay_ms", "at_ms", "rejected")

    async def show(self, asked: Asking) -> Row:
        await check_may_look(asked)
        server = asked.at.job_server
        if server is None:
            return {"job_server": ""}
        found = await answer_of(server, "/api/v1/tables", list[TableRow])

        async def behind(row: Row) -> None:
            row["is_here"] = row["nameserver"] == asked.at.namesrv
            row["lag"] = await lag_of(asked.admin, row["group"], row["topic"]) if row["is_here"] else None
            row["kind"] = _KINDS.get(row["state"], "off")

        return {
            "job_server": str(server),
            "count": len(found),
            "running": sum(each.state == "running" for each in found),
            "failed": sum(each.state == "failed" for each in found),
            "rejected": sum(each.rejected for each in found),
            **await self.listed("name", [msgspec.to_builtins(each) for each in found], behind),
        }


TABLE_PAGES = Section("Tables", views={"/tables": (TableList, "tables.html")})
