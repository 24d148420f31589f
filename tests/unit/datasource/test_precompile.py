"""``python -m pyspark_pymq.precompile`` on an archive like Spark's."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyspark_pymq.precompile import archive_of_pyspark, main, precompile
from tests.support.processes import run_to_end, start

SOURCES = {"made/__init__.py": "from made.part import found\n", "made/part.py": "found = __file__\n"}


def archive_in(folder: Path) -> Path:
    archive = folder / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as made:
        for name, text in SOURCES.items():
            made.writestr(name, text)
        made.writestr("made/py.typed", "")
    return archive


def imported_from(archive: Path) -> str:
    command = [sys.executable, "-c", "import made; print(made.found)"]
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    return run_to_end(command, env=environment, check=True).stdout.strip()


def test_modules_are_imported_compiled(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    assert imported_from(archive) == f"{archive}/made/part.py"
    assert precompile(archive) == len(SOURCES)
    assert imported_from(archive) == f"{archive}/made/part.pyc"
    with zipfile.ZipFile(archive) as made:
        assert {name: made.read(name).decode() for name in SOURCES} == SOURCES
        assert sorted(made.namelist()) == sorted(
            [*SOURCES, "made/py.typed", *(f"{each}c" for each in SOURCES)]
        )
    assert [each.name for each in archive.parent.iterdir()] == [archive.name]


def test_warnings_of_sources_are_no_errors(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    with zipfile.ZipFile(archive, "a") as made:
        made.writestr("made/old.py", r"text = '\_'")
    assert precompile(archive) == len(SOURCES) + 1


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    precompile(archive)
    before = archive.stat()
    assert precompile(archive) == 0
    assert archive.stat().st_ino == before.st_ino


def test_an_archive_that_another_python_compiled_is_left_alone(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    with zipfile.ZipFile(archive, "a") as made:
        made.writestr("made/part.pyc", b"\x00\x01\x02\x03 of another version")
    before = archive.read_bytes()
    assert imported_from(archive) == f"{archive}/made/part.py"
    with pytest.raises(ValueError, match="another version of Python"):
        precompile(archive)
    assert archive.read_bytes() == before


def test_a_process_that_knows_the_old_archive_goes_on(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    program = (
        "import sys, zipimport; z = zipimport.zipimporter(sys.argv[1] + '/made'); print(flush=True); input()"
    )
    command = [sys.executable, "-c", f"{program}; print(z.get_source('part'))", str(archive)]
    running = start(command, tmp_path / "log", stdout=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.readline()
    precompile(archive)
    found, _ = running.communicate("\n")
    assert found.strip() == SOURCES["made/part.py"].strip()


def test_a_source_that_does_not_compile_leaves_the_archive_alone(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    with zipfile.ZipFile(archive, "a") as made:
        made.writestr("made/broken.py", "def")
    before = archive.read_bytes()
    with pytest.raises(Exception, match=r"broken\.py"):
        precompile(archive)
    assert archive.read_bytes() == before
    assert [each.name for each in archive.parent.iterdir()] == [archive.name]


def test_the_command_takes_spark_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert archive_of_pyspark() is None
    assert main() == 1
    assert "is pyspark installed?" in capsys.readouterr().err
    archive = archive_in(tmp_path)
    assert main() == 0
    assert capsys.readouterr().out == f"{archive}: 2 modules compiled\n"
    assert main() == 0
    assert capsys.readouterr().out == f"{archive}: is compiled already\n"
