"""``conf/install.sh``: what it makes, that it can be run again, and that settings stay."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.processes import run_to_end

SCRIPT = Path("conf/install.sh")


def install(*options: str, code: int = 0) -> str:
    done = run_to_end(["sh", str(SCRIPT), *options])
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def files_below(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_the_files_are_put_in_their_places_and_settings_stay(tmp_path: Path) -> None:
    options = ("--files-only", "--destdir", str(tmp_path), "--prefix", "/srv/mq-spark")
    assert install(*options) == ""
    first = files_below(tmp_path)
    units = {Path(name).name for name in first if name.startswith("etc/systemd/system/")}
    assert units == {path.name for path in Path("conf/systemd").glob("mqspark-*")}
    settings = {Path(name).name for name in first if name.startswith("etc/mqspark/")}
    assert settings == {path.name for path in Path("conf").glob("*.toml")}
    assert {mode for name, (mode, _) in first.items() if name.startswith("etc/mqspark/")} == {0o640}
    mode, unit = first["etc/systemd/system/mqspark-broker.service"]
    assert mode == 0o644
    assert b"\nExecStart=/srv/mq-spark/bin/mqspark broker run -c /etc/mqspark/broker.toml\n" in unit
    assert b"/opt/mqspark/" not in unit
    assert install(*options) == ""
    assert files_below(tmp_path) == first
    own = tmp_path / "etc/mqspark/broker.toml"
    own.write_text("brokerName = 'mine'\n")
    assert "stays as it is" in install(*options)
    again = files_below(tmp_path)
    assert own.read_text() == "brokerName = 'mine'\n"
    assert again.pop("etc/mqspark/broker.toml.dist") == first["etc/mqspark/broker.toml"]
    assert again.keys() == first.keys()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--nonsense"], "there is no option --nonsense"),
        (["--prefix"], "--prefix needs a value"),
        (["--prefix", "opt"], "an absolute path"),
        (["--prefix", "/opt/a b"], "units take letters"),
        (["--prefix", "/opt/a|e"], "units take letters"),
        (["--extras", "server;rm"], "names like"),
        (["--no-files", "--prefix", "/nowhere", "--python", "false"], "is not Python 3.11"),
    ],
)
def test_what_it_refuses(options: list[str], why: str) -> None:
    assert why in install(*options, code=1)
    assert not Path("/nowhere").exists()


def test_it_clears_no_directory_of_others(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    options = ("--no-files", "--prefix", str(tmp_path), "--python", sys.executable)
    assert "nothing is deleted" in install(*options, code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert "--files-only" in install("--help")


@pytest.mark.slow("makes a virtual environment, twice: half a minute; the files have a fast test")
def test_the_environment_is_made_repaired_and_upgraded(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    prefix = tmp_path / "opt"
    options = ("--no-files", "--no-deps", "--wheel", str(wheel), "--python", sys.executable)
    install(*options, "--prefix", str(prefix))
    # What it depends on comes from this interpreter's packages.
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": sysconfig.get_paths()["purelib"]}

    def said(*command: str) -> str:
        done = run_to_end(command, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (version,) = {each.split("-")[1] for each in [wheel.name]}
    assert version in said(str(prefix / "bin/mqspark"), "--version")
    module = said(str(prefix / "bin/python"), "-c", "import mqspark_server; print(mqspark_server.__file__)")
    assert module.startswith(f"{prefix}/")
    assert (prefix / "README.md").is_file()
    # An interrupted run, a file that is gone, and a second run.
    Path(module.strip()).unlink()
    install(*options, "--prefix", str(prefix))
    assert Path(module.strip()).is_file()
    shutil.rmtree(prefix / "bin")
    install(*options, "--prefix", str(prefix))
    assert version in said(str(prefix / "bin/mqspark"), "--version")
