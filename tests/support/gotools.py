"""Go programs that tests run, built once from their modules into the cache of jars."""

from __future__ import annotations

from pathlib import Path

from tests.support.maven import ToolMissing, cached, digest, require_tools, run

FETCH_TIMEOUT_S = 600
BUILD_TIMEOUT_S = 1_800


def go_program(name: str, module: Path, package: str) -> Path:
    """The program of ``package`` in the versions of ``module``, a folder with go.mod and go.sum. Raises ToolMissing."""

    def build(folder: Path) -> None:
        try:
            run(["go", "mod", "download"], FETCH_TIMEOUT_S, cwd=module)
        except RuntimeError as error:
            raise ToolMissing(f"the modules of {name} are not available: {error}") from error
        command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", str(folder / name)]
        run([*command, package], BUILD_TIMEOUT_S, cwd=module)

    require_tools("go")
    return cached(f"{name}-{digest(module / 'go.mod', module / 'go.sum')}", build) / name
