"""The pages below ``docs/``: what they say of the tree and of each other is true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.protocol.codes import RequestCode, ResponseCode

ROOT = Path(__file__).parents[3]
FACTS = ROOT / "docs" / "rocketmq"
SOURCES = ("mqspark", "server", "datasource", "jobs", "tests", "docs", "notebooks", "conf")
CITATION = re.compile(r"docs/rocketmq/([a-z-]+\.md)(?:#([\w-]+))?")


def files() -> Iterator[Path]:
    for name in SOURCES:
        for path in sorted((ROOT / name).rglob("*")):
            if path.suffix in (".py", ".md", ".toml", ".conf", ".ipynb") and "golden" not in path.parts:
                yield path
    yield from ROOT.glob("*.md")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def sections(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_citation_names_a_section_that_exists() -> None:
    anchors = {page.name: sections(page) for page in FACTS.glob("*.md")}
    wrong, cited = [], set()
    for path in files():
        for page, section in CITATION.findall(path.read_text()):
            cited.add(page)
            if page not in anchors or (section and section not in anchors[page]):
                wrong.append(f"{path.relative_to(ROOT)}: {page}#{section}")
    assert wrong == []
    assert set(anchors) - cited == {"README.md"}, "no code cites these pages"


def test_no_citation_leaves_the_repository() -> None:
    outside = re.compile(r"[Rr]eference [a-z-]+,? (§|appendix)|fact sheet|§\d")
    found = [
        f"{path.relative_to(ROOT)}:{n}"
        for path in files()
        for n, line in enumerate(path.read_text().splitlines(), 1)
        if outside.search(line) and path != Path(__file__)
    ]
    assert found == []


PAGES = sorted(path for path in files() if path.suffix == ".md")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_sections(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, section = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{target}: there is no {path}"
        if section:
            assert section in sections(path), f"{target}: no such section"


def test_the_tables_of_codes_are_those_of_the_code() -> None:
    text = (FACTS / "protocol.md").read_text()
    requests, responses = text.split("## Request codes")[1].split("## Response codes")
    for part, codes, least in ((requests, RequestCode, 35), (responses, ResponseCode, 25)):
        rows = re.findall(r"^\| (\d+) \| ([A-Z_0-9]+) \|", part, re.MULTILINE)
        assert len(rows) > least
        assert {name: int(code) for code, name in rows}.items() <= codes.__members__.items()


def test_the_marks_of_the_page_of_compatibility_name_tests_that_exist() -> None:
    page = ROOT / "docs" / "compatibility.md"
    marks = re.findall(r"\[✓\]\(([^ )]+) \"([^\"]+)\"\)", page.read_text())
    assert len(marks) == page.read_text().count("✓")
    assert len(marks) > 100
    for target, named in marks:
        source = (page.parent / target).read_text()
        function, _, case = named.partition("[")
        assert re.search(rf"^(async )?def {function}\(", source, re.MULTILINE), f"{target}: no {function}"
        assert not case or "parametrize" in source or "params=" in source, (
            f"{target}: {function} has no cases"
        )
