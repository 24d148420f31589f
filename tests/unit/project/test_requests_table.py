"""docs/requests.md says of each request code who serves it, or why nobody does."""

from __future__ import annotations

from pathlib import Path

from mqspark.auth.access import TABLE
from mqspark.broker.admin.unsupported import NOT_CONFIGURED
from mqspark.protocol.codes import RequestCode
from tests.unit.auth_kit import authority
from tests.unit.broker_kit import Bench
from tests.unit.project.requests_table import IN_CONTROLLER_MODE, PAGE, markdown, served


def test_the_page_is_made_of_the_handlers() -> None:
    made = "python -m tests.unit.project.requests_table > docs/requests.md"
    assert PAGE.read_text(encoding="utf-8") == markdown(), made


def test_a_code_has_a_handler_or_a_reason() -> None:
    found: set[int] = set().union(*served().values())
    nowhere = {code for code, row in TABLE.items() if row.nobody}
    assert found | nowhere == set(RequestCode)
    assert not found & nowhere


def test_with_users_their_requests_are_served(tmp_path: Path) -> None:
    (tmp_path / "auth").mkdir()
    bench = Bench(tmp_path / "store", new_authority=lambda: authority(tmp_path / "auth"))
    users = NOT_CONFIGURED.keys() - IN_CONTROLLER_MODE
    answers = {code: bench.peer().ask(code).remark or "" for code in users}
    assert [code for code, remark in answers.items() if NOT_CONFIGURED[code] in remark] == []
