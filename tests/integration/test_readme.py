"""Every Python block of the README and the client's page runs alone, as written, and prints something."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.testing import Broker

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "client.md"]
BLOCKS = [
    (page, block)
    for page in PAGES
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]
PROGRAMS = [
    (page, block) for page, block in BLOCKS if "SparkSession" not in block and "def test_" not in block
]
TESTS = [block for _, block in BLOCKS if "def test_" in block]


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with Broker() as broker:
        yield broker.namesrv


def test_there_are_five_examples() -> None:
    assert sum(page.name == "README.md" for page, _ in BLOCKS) >= 5


@pytest.mark.parametrize(
    ("page", "block"), PROGRAMS, ids=[f"{page.stem}-{n}" for n, (page, _) in enumerate(PROGRAMS)]
)
def test_a_block_runs_alone_and_prints(page: Path, block: str, namesrv: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = compile(block.replace("127.0.0.1:9876", namesrv), str(page), "exec")
        exec(code, {"__name__": "example"})  # noqa: S102 - our own pages
    assert printed.getvalue().strip()


@pytest.mark.parametrize("block", TESTS)
def test_a_test_block_passes(block: str, tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(block)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
