"""Programs and packages of Go, Rust, JavaScript and Python that tests run, fetched once into the cache beside the jars.

Each function raises ToolMissing for what cannot be had on this machine.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.maven import cached, digest, obtain, require_tools, run

GO_BUILD_TIMEOUT_S = 1_800
CARGO_BUILD_TIMEOUT_S = 3_600
"""It compiles two hundred crates."""
NPM = ("--ignore-scripts", "--no-audit", "--no-fund")


def go_program(
    name: str, module: Path, package: str = ".", *, versions: str = "go", sources: Sequence[Path] = ()
) -> Path:
    """The program of ``package`` in the versions of a module, a folder with ``{versions}.mod`` and ``.sum``, which is
    a tag of the build, too. ``sources``: what else it is built from."""
    chosen = f"-modfile={versions}.mod"

    def build(folder: Path) -> None:
        obtain(f"the modules of {name}", ["go", "mod", "download", chosen], cwd=module)
        options = ["-mod=readonly", "-buildvcs=false", chosen, "-tags", versions]
        run(["go", "build", *options, "-o", str(folder / name), package], GO_BUILD_TIMEOUT_S, cwd=module)

    require_tools("go")
    named = [module / f"{versions}.mod", module / f"{versions}.sum", *sources]
    return cached(f"{name}-{digest(*named)}", build) / name


def cargo_program(crate: Path) -> Path:
    """The program of a crate, a folder with ``Cargo.toml``, ``Cargo.lock`` and ``src/main.rs``: ``driver``."""
    require_tools("cargo", "cc")
    sources = [crate / "Cargo.toml", crate / "Cargo.lock", crate / "src" / "main.rs"]

    def build(folder: Path) -> None:
        manifest = ["--manifest-path", str(sources[0]), "--locked"]
        obtain("the crates", ["cargo", "fetch", *manifest])
        with tempfile.TemporaryDirectory(dir=folder) as target:
            options = ["--offline", "--target-dir", target]
            run(["cargo", "build", *manifest, *options], CARGO_BUILD_TIMEOUT_S)
            shutil.move(Path(target) / "debug" / "driver", folder)

    return cached(f"rust-{digest(*sources)}", build) / "driver"


def npm_program(program: Path) -> Path:
    """A copy of a program beside the packages of the ``package-lock.json`` in its folder."""
    require_tools("node", "npm")
    sources = [program, *(program.with_name(name) for name in ("package.json", "package-lock.json"))]

    def install(folder: Path) -> None:
        for source in sources:
            shutil.copy(source, folder)
        obtain(f"the packages of {program.name}", ["npm", "ci", *NPM], cwd=folder)

    return cached(f"js-{digest(*sources)}", install) / program.name


def npm_package(package: str) -> Path:
    """The folder of a package of npm, ``name@version``."""
    require_tools("npm")

    def install(folder: Path) -> None:
        obtain(package, ["npm", "install", *NPM, "--prefix", str(folder), package], cwd=folder)

    return cached(package.replace("@", "-"), install) / "node_modules" / package.partition("@")[0]


def pip_packages(*packages: str, alone: bool = False) -> Path:
    """The folder with packages of PyPI. ``alone``: without what they depend on."""

    def install(folder: Path) -> None:
        options = ["--quiet", "--disable-pip-version-check", "--target", str(folder)]
        more = ["--no-deps"] if alone else []
        obtain(packages[0], [sys.executable, "-m", "pip", "install", *options, *more, *packages])

    return cached(re.sub("[=<>]+", "-", "-".join(packages)), install)
