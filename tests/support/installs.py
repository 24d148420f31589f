"""Environments that have what an installation of the wheel gets, and nothing else.

What an extra asks for, and what that asks for, is linked from the environment of the tests. So an environment takes a
second, needs no package index, and lacks what the extra forgot to declare.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def declared(*extras: str) -> list[str]:
    """The requirements in pyproject.toml: those of the plain wheel and of these extras, with what they include."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    seen: set[str] = set()
    waiting = list(extras)
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for line in project["optional-dependencies"][extra]:
            needed = Requirement(line)
            if needed.name == project["name"]:
                waiting += needed.extras
            else:
                lines.append(line)
    return lines


def distributions(lines: list[str]) -> dict[str, Distribution]:
    """What these requirements ask for, directly or not, by canonical name. Raises PackageNotFoundError for one that is
    not here."""
    found: dict[str, Distribution] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(line) for line in lines]
    while waiting:
        needed = waiting.pop()
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        key = canonicalize_name(needed.name), frozenset(needed.extras)
        if key in asked:
            continue
        asked.add(key)
        chosen = distribution(needed.name)
        found[key[0]] = chosen
        for line in chosen.requires or []:
            inner = Requirement(line)
            contexts = [{"extra": extra} for extra in needed.extras] or [{"extra": ""}]
            if inner.marker is None or any(inner.marker.evaluate(context) for context in contexts):
                inner.marker = None
                waiting.append(inner)
    return found


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return wheel


@functools.cache
def unpacked(wheel: Path) -> Path:
    """What is in the wheel, for all environments: its modules are compiled once."""
    folder = wheel.with_suffix("")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


class Install:
    """``pip install 'WHEEL[extras]'`` in an environment of its own in ``folder``."""

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        self.python = str(self.bin / "python")
        (packages,) = folder.glob("lib/python*/site-packages")
        for part in unpacked(wheel).iterdir():
            (packages / part.name).symlink_to(part)
        command = self.bin / "mqspark"
        command.write_text(f"#!{self.python}\nfrom mqspark.__main__ import main\n\nmain()\n")
        command.chmod(0o755)
        for each in distributions(declared(*extras)).values():
            for name in _top_level(each):
                link, target = packages / name, Path(str(each.locate_file(name)))
                if target.exists() and not link.exists():
                    link.symlink_to(target)

    def environment(self) -> dict[str, str]:
        """Without what the tests' own environment adds."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))
        }
        return kept | {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}

    def run(self, *command: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def _top_level(each: Distribution) -> Iterator[str]:
    files = each.files
    if files is None:
        raise PackageNotFoundError(f"{each.name} has no list of its files")
    yield from sorted({path.parts[0] for path in files if path.parts[0] not in ("..", "__pycache__")})
