"""Each target of the fuzzer for a few seconds, and what it found before: see ``tests.security.fuzz``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security.fuzz.__main__ import fuzz, replay
from tests.security.fuzz.kinds import Decoding
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


@pytest.mark.slow("atheris changes the code that it imports, and takes ten minutes a decoder")
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="there is no atheris for this Python")
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", [name for name, kind in TARGETS.items() if issubclass(kind, Decoding)])
def test_guided_by_what_code_is_reached(name: str, tmp_path: Path) -> None:
    seconds = os.environ.get("MQSPARK_FUZZ_SECONDS", "600")
    command = [sys.executable, "-m", "tests.security.fuzz.guided", name, "--seconds", seconds]
    run = subprocess.run(
        [*command, "--findings", str(tmp_path)], capture_output=True, text=True, timeout=1_100, check=False
    )
    assert run.returncode == 0, run.stdout[-2_000:] + run.stderr[-4_000:]
    assert not list(tmp_path.iterdir())
