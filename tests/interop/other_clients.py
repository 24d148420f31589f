"""The unmodified clients of other languages, built or fetched once into the cache beside the jars.

What cannot be had on this machine raises ToolMissing, and its tests are skipped with the reason.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.clusters import process
from tests.interop.driver import Driver
from tests.interop.jars import HERE, ToolMissing, cached, digest, require_tools, run

GO_FOLDER = HERE / "go"
FETCH_TIMEOUT_S = 300
BUILD_TIMEOUT_S = 600


def go_program() -> Path:
    """The driver around the Go client, github.com/apache/rocketmq-client-go/v2. Raises ToolMissing."""
    require_tools("go")
    sources = sorted(path for path in GO_FOLDER.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    folder = cached(f"go-{digest(*sources)}", _build_go)
    return folder / "driver"


def _build_go(folder: Path) -> None:
    try:
        run(["go", "mod", "download"], FETCH_TIMEOUT_S, cwd=GO_FOLDER)
    except RuntimeError as error:
        raise ToolMissing(f"the Go client's modules cannot be had: {error}") from error
    run(
        ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(folder / "driver"), "."],
        BUILD_TIMEOUT_S,
        cwd=GO_FOLDER,
    )


@contextmanager
def go_driver(program: Path, folder: Path) -> Iterator[Driver]:
    """The Go client in a process of its own. It keeps broadcast offsets below HOME."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "driver.err"
    environment = {"HOME": str(folder), "ROCKETMQ_GO_LOG_LEVEL": "warn"}
    with process([str(program)], log, env=environment, stdout=subprocess.PIPE) as child:
        yield Driver(child, log)
