"""The units of ``conf/systemd``: systemd accepts them, they leave little open, and their commands exist."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import click
import pytest

from mqspark_server.cli import cli
from tests.support.processes import run_to_end

UNITS = sorted(Path("conf/systemd").glob("*.service"))
MOST_EXPOSED = 2.0
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze on this machine")


def analyze(*arguments: str) -> str:
    done = run_to_end([str(ANALYZE), *arguments])
    return done.stdout + done.stderr


def test_there_is_one_for_each_server_and_one_for_backups() -> None:
    assert [unit.stem for unit in UNITS] == [
        "mqspark-backup",
        "mqspark-broker",
        "mqspark-controller",
        "mqspark-jobs",
        "mqspark-namesrv",
    ]


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_it(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/mqspark/bin/", f"{Path(sys.prefix, 'bin')}/"))
    assert "mqspark" not in analyze("verify", "--recursive-errors=no", str(copy))


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_leaves_little_open(unit: Path) -> None:
    text = analyze("security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", text)
    assert found is not None, text
    assert float(found[1]) < MOST_EXPOSED


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_its_command_exists(unit: Path) -> None:
    line = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    program, *words = shlex.split(line.removeprefix("ExecStart="))
    assert program == "/opt/mqspark/bin/mqspark"
    command: click.Command | None = cli
    with click.Context(cli) as context:
        while isinstance(command, click.Group):
            command = command.get_command(context, words.pop(0))
        assert command is not None
        settings = words[words.index("-c") + 1]
        assert Path("conf", Path(settings).name).is_file()
        assert any("-c" in parameter.opts for parameter in command.params)
