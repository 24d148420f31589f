"""The examples of the pages for programmers, as type checkers see them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.processes import run_to_end

ROOT = Path(__file__).parents[3]

EXTENSIONS = """
import hmac
from collections import Counter
from collections.abc import Sequence
from mqspark.extensions import *

"""
"""What the parts of docs/extensions.md need."""

LISTENERS = """
import mqspark
from mqspark import aio

def success(message: mqspark.MessageExt) -> None: ...
def later(message: mqspark.MessageExt) -> mqspark.RetryLater | None:
    return None
async def status(message: mqspark.MessageExt) -> mqspark.ConsumeStatus:
    return mqspark.ConsumeStatus.CONSUME_SUCCESS
def many(messages: list[mqspark.MessageExt]) -> None: ...

for listener in (success, later, status):
    mqspark.PushConsumer("h:1", group="g", listener=listener, consume_from="earliest")
aio.PopConsumer("h:1", group="g", listener=lambda message: status(message), consume_from="latest")
aio.PushConsumer("h:1", group="g", batch_listener=many, consume_from="CONSUME_FROM_FIRST_OFFSET")
"""
"""Listeners of every kind."""

WRONG = """
import mqspark

def truth(message: mqspark.MessageExt) -> bool:
    return False

mqspark.PushConsumer("h:1", group="g", listener=truth)
mqspark.PushConsumer("h:1", group="g", listener=print, consume_from="first")
"""
"""Two lines that a type checker has to refuse."""


def examples(*pages: str) -> dict[str, str]:
    """The Python examples of these pages, by a name for each. Those with RocketMQ's own client are left out: it calls
    what it returns by other types."""
    return {
        f"{Path(page).stem.lower()}_{number}": part.partition("```")[0]
        for page in pages
        for number, part in enumerate((ROOT / page).read_text().split("```python\n")[1:])
        if "from rocketmq import" not in part
    }


PAGES = (
    "README.md",
    "docs/client.md",
    "docs/from-kafka.md",
    "docs/extensions.md",
    "datasource/README.md",
    "docs/arrow.md",
    "docs/schemas.md",
)
"""Those with examples in Python."""


def test_no_page_is_left_out() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").rglob("*.md")]
    assert {str(page.relative_to(ROOT)) for page in pages if "```python\n" in page.read_text()} == set(PAGES)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of whole programs: the parts of a page that follow each other are one."""
    readme, client, kafka, extensions, source, arrow, schemas = PAGES
    programs = examples(readme, client, kafka, arrow, schemas)
    assert len(programs) > 8
    sources = examples(source)
    assert len(sources) > 2
    programs |= {
        "extensions": EXTENSIONS + "\n".join(examples(extensions).values()),
        "sources": "\n".join(sources.values()),
        "listeners": LISTENERS,
        "wrong": WRONG,
    }
    for name, program in programs.items():
        (tmp_path / f"{name}.py").write_text(program)
    return tmp_path


@pytest.mark.slow("half a minute; test_pyright_takes_the_examples is the fast twin")
def test_mypy_takes_the_examples(programs: Path) -> None:
    """As strict as it can be, in one run."""
    run = run_to_end(
        [sys.executable, "-m", "mypy", "--strict", "--scripts-are-modules", "--no-error-summary"]
        + [str(path) for path in sorted(programs.glob("*.py"))],
        cwd=ROOT,
    )
    found = [line for line in run.stdout.splitlines() if ": error: " in line]
    assert [Path(line.partition(":")[0]).stem for line in found] == ["wrong", "wrong"], run.stdout
    assert '"listener"' in found[0]
    assert '"consume_from"' in found[1]


@pytest.mark.slow("a dozen seconds; make lint checks the examples of the tests as strictly")
def test_pyright_takes_the_examples(programs: Path) -> None:
    """It takes other things for exports than mypy does, and knows the types of pyspark. The package brings Node, and
    wants more than pyright unless it is told."""
    (programs / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    run = run_to_end(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, str(programs)],
        cwd=programs,
    )
    found = [each for each in json.loads(run.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    assert [Path(each["file"]).stem for each in found] == ["wrong", "wrong"], run.stdout
    assert '"listener"' in found[0]["message"]
    assert '"consume_from"' in found[1]["message"]
