"""Every code block of the pages that needs no Spark runs alone, as written, and prints something."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.testing import Broker
from tests.support.draws import some
from tests.support.pages import ADDRESS, GRPC_ADDRESS, HTTP_ADDRESS, SHOWN, Block, blocks
from tests.support.processes import run_to_end

PYTHON = [each for each in blocks("python") if not each.needs_spark]
PROGRAMS = [each for each in PYTHON if "def test_" not in each.text]
TESTS = [each for each in PYTHON if "def test_" in each.text]
RUN_ELSEWHERE = {"command-line.md", "http.md"}
"""Pages with transcripts, which ``test_commands_page_runs.py`` and ``test_http_page.py`` run."""
SCRIPTS = [each for each in blocks("sh") if not each.needs_spark and not each.is_shown_only]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"grpcEnable": True, "schemaRegistryEnable": True}, http=True) as one:
        yield one


def test_every_block_has_a_language_and_is_run_or_excused() -> None:
    known = ("python", "sh", "sql", "text", "console")
    assert [each.name for each in blocks() if each.language not in known] == []
    assert {each.page.name for each in blocks("console")} == RUN_ELSEWHERE
    firsts = [each.text for each in blocks("sh")]
    assert [first for first in SHOWN if not any(text.startswith(first) for text in firsts)] == []
    assert len([each for each in blocks("python") if each.page.name == "README.md"]) >= 7
    assert len(SCRIPTS) >= 2


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.name)
def test_a_program_runs_alone_and_prints(
    block: Block, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        text = block.text.replace(ADDRESS, broker.namesrv).replace(GRPC_ADDRESS, str(broker.grpc_address))
        text = text.replace(HTTP_ADDRESS, str(broker.http_url))
        code = compile(text, str(block.page), "exec")
        exec(code, {"__name__": "example"})  # noqa: S102 - our own pages
    assert printed.getvalue().strip()


@pytest.mark.slow(
    "a pytest of its own; test_a_program_runs_alone_and_prints and test_testing.py are the fast twins"
)
@pytest.mark.parametrize("block", TESTS, ids=lambda block: block.name)
def test_a_test_passes(block: Block, tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(block.text)
    run = run_to_end(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"], cwd=tmp_path
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("block", some(SCRIPTS, 1), ids=lambda block: block.name)
def test_a_script_runs_alone_and_prints(block: Block, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = run_to_end(["bash", "-eu", "-c", block.text], cwd=tmp_path, env={**os.environ, "PATH": path})
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip()
