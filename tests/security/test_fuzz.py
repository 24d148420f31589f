"""Each target of the fuzzer: what it found before, and new cases for a moment, or its part of ten minutes in
``make test-all``. See ``tests.security.fuzz``."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.security.fuzz.__main__ import fuzz
from tests.security.fuzz.kinds import Decoding
from tests.security.fuzz.targets import TARGETS, Served
from tests.security.fuzz.victims import Victim, running
from tests.support.processes import run_to_end

CORPUS = Path(__file__).parent / "fuzz" / "corpus"
MAX_CASES, MAX_CORPUS_BYTES = 200, 512 << 10
MOMENT_S = 0.1
GUIDED = [name for name, kind in TARGETS.items() if issubclass(kind, Decoding)]
TEN_MINUTES_S = 600
PART_S = int(os.environ.get("MQSPARK_FUZZ_SECONDS", TEN_MINUTES_S // (len(TARGETS) + len(GUIDED))))
"""Time of each target, and of each decoder under atheris."""


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Victim]]:
    """A server by its kind, which is started when it is first needed: a start costs more than a moment of fuzzing."""
    started: dict[str, Victim] = {}
    with ExitStack() as stack:

        def of(kind: str) -> Victim:
            if kind not in started:
                started[kind] = stack.enter_context(running(kind, tmp_path_factory.mktemp(kind)))
            return started[kind]

        yield of


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_before_and_a_moment_more(
    name: str, tmp_path: Path, victim: Callable[[str], Victim]
) -> None:
    known = {path.name: path.read_bytes() for path in sorted(CORPUS.glob(f"{name}-*.case"))}
    target = TARGETS[name](tmp_path)
    if isinstance(target, Served):
        target.lent = victim(target.kind)
    assert fuzz(target, seed=20, seconds=MOMENT_S, known=known) == []


def test_the_corpus_is_of_known_targets_and_small() -> None:
    cases = list(CORPUS.glob("*.case"))
    assert {path.stem.rpartition("-")[0] for path in cases} <= TARGETS.keys()
    assert 30 <= len(cases) <= MAX_CASES
    assert sum(path.stat().st_size for path in cases) <= MAX_CORPUS_BYTES


@pytest.mark.slow("its part of ten minutes for all targets; a moment of each is the fast twin")
@pytest.mark.timeout(PART_S + 300)
@pytest.mark.parametrize("name", TARGETS)
def test_its_part_of_ten_minutes(name: str, tmp_path: Path) -> None:
    assert fuzz(TARGETS[name](tmp_path), seed=21, seconds=PART_S) == []


@pytest.mark.slow(
    "atheris changes the code that it imports, and has a part of the ten minutes for each decoder"
)
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="there is no atheris for this Python")
@pytest.mark.timeout(PART_S + 600)
@pytest.mark.parametrize("name", GUIDED)
def test_guided_by_what_code_is_reached(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.security.fuzz.guided", name, "--seconds", str(PART_S)]
    findings = tmp_path / "findings"
    run = run_to_end(
        [*command, "--findings", str(findings), "--corpus", str(tmp_path / "corpus")], timeout_s=PART_S + 500
    )
    assert run.returncode == 0, run.stdout[-2_000:] + run.stderr[-4_000:]
    assert not list(findings.iterdir())
