"""Each target of the fuzzer for a few seconds, and what it found before: see ``tests.security.fuzz``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.fuzz.__main__ import fuzz, replay
from tests.security.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "fuzz" / "corpus"
SECONDS = 1.0


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_seconds_of_a_target(name: str, tmp_path: Path) -> None:
    assert fuzz(TARGETS[name](tmp_path), seed=20, seconds=SECONDS) == []


@pytest.mark.slow("ten minutes a target; the kept cases are the fast twin")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TARGETS)
def test_ten_minutes_of_a_target(name: str, tmp_path: Path) -> None:
    assert fuzz(TARGETS[name](tmp_path), seed=21, seconds=600) == []


@pytest.mark.parametrize("name", sorted({path.stem.rpartition("-")[0] for path in CORPUS.glob("*.case")}))
def test_what_was_found_before(name: str, tmp_path: Path) -> None:
    cases = {path.name: path.read_bytes() for path in sorted(CORPUS.glob(f"{name}-*.case"))}
    assert replay(TARGETS[name](tmp_path), cases) == []
