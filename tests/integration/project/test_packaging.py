"""What an installation gets."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = {"mqspark", "mqspark_server", "mqspark_jobs", "pyspark_pymq"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = target.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_the_wheel_has_exactly_the_four_packages(wheel: list[str]) -> None:
    top = {name.split("/")[0] for name in wheel}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES


def test_every_package_is_typed_and_importable(wheel: list[str]) -> None:
    for package in PACKAGES:
        assert f"{package}/py.typed" in wheel
        assert f"{package}/__init__.py" in wheel


def test_the_console_has_its_templates_and_static_files(wheel: list[str]) -> None:
    console = ROOT / "server" / "mqspark_server" / "console"
    files = {file for folder in ("templates", "static") for file in (console / folder).iterdir()}
    assert {file.name for file in files} >= {"base.html", "htmx.min.js", "htmx.LICENSE.txt", "console.css"}
    missing = [file.name for file in files if str(file.relative_to(ROOT / "server")) not in wheel]
    assert missing == []


def test_no_tests_data_or_caches_are_in_it(wheel: list[str]) -> None:
    allowed = (".py", ".typed", ".html", ".css", ".js", ".svg", ".LICENSE.txt", ".proto", ".pyi", ".binpb")
    odd = [name for name in wheel if ".dist-info/" not in name and not name.endswith(allowed)]
    assert odd == []


def test_the_console_script_is_there(wheel: list[str]) -> None:
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel)
