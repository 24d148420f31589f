"""The tables of docs/security.md, from the table of all requests and the list of tests:

python -m tests.unit.auth.security_table
"""

from __future__ import annotations

from mqspark.auth.access import TABLE, Row
from mqspark.protocol.codes import RequestCode
from tests.support.madepages import DOCS, MadePage
from tests.unit.auth.security_shown import shown_table

PAGE = MadePage(DOCS / "security.md", "tests.unit.auth.security_table")


def needs(row: Row) -> str:
    if row.super_only:
        return "nothing gives it: super users only"
    if row.to_client:
        return "nothing gives it: servers send it to clients"
    return "; ".join(need.text for need in row.needs)


def tables() -> str:
    lines = ["| code | request | a user who is not super needs |", "|---|---|---|"]
    lines += [f"| {int(code)} | {RequestCode(code).name} | {needs(TABLE[code])} |" for code in sorted(TABLE)]
    return "\n".join(lines) + "\n" + shown_table()


if __name__ == "__main__":
    PAGE.write(tables())
