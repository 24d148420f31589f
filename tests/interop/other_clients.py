"""The unmodified clients of other languages, built or fetched once into the cache beside the jars.

What cannot be had on this machine raises ToolMissing, and its tests are skipped with the reason.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.interop.driver import Driver
from tests.interop.jars import HERE
from tests.support.maven import ToolMissing, cached, digest, require_tools, run
from tests.support.processes import process

GO_FOLDER = HERE / "go"
FETCH_TIMEOUT_S = 300
BUILD_TIMEOUT_S = 600


def go_program(module: str = "go", source: Path = GO_FOLDER) -> Path:
    """The driver around the Go client, github.com/apache/rocketmq-client-go/v2. ``module``: "go", the newest release;
    or "tls", the branch after it, which can speak TLS. Raises ToolMissing."""
    require_tools("go")
    own = f"{module}.mod", f"{module}.sum"
    sources = sorted(path for path in source.iterdir() if path.suffix == ".go" or path.name in own)

    def build(folder: Path) -> None:
        chosen = f"-modfile={module}.mod"
        try:
            run(["go", "mod", "download", chosen], FETCH_TIMEOUT_S, cwd=source)
        except RuntimeError as error:
            raise ToolMissing(f"the Go client's modules cannot be had: {error}") from error
        options = ["-mod=readonly", "-buildvcs=false", chosen, "-tags", module]
        run(["go", "build", *options, "-o", str(folder / "driver"), "."], BUILD_TIMEOUT_S, cwd=source)

    return cached(f"{module}-{digest(*sources)}", build) / "driver"


GRPC_FOLDER = HERE / "grpc"
"""Drivers around RocketMQ's gRPC clients, one language a folder."""


def grpc_go_program() -> Path:
    """The driver around github.com/apache/rocketmq-clients/golang/v5. Raises ToolMissing."""
    return go_program(source=GRPC_FOLDER / "go")


def grpc_js_program() -> Path:
    """The driver around npm's rocketmq-client-nodejs. Raises ToolMissing."""
    return _installed(GRPC_FOLDER / "js", "grpcdriver.js")


@contextmanager
def grpc_driver_of(command: Sequence[str], folder: Path) -> Iterator[Driver]:
    """A gRPC client in a process of its own, which writes its log below HOME."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "driver.err"
    environment = {"HOME": str(folder)}
    with process(command, log, env=environment, stdout=subprocess.PIPE, stop_signal=signal.SIGKILL) as child:
        yield Driver(child, log)


AGENT_PACKAGES = ("rocketmq-a2a==0.0.5", "mcp<2")
"""It says that any MCP does, and runs with the first ones."""


def agent_programs() -> Path:
    """The folder with the programs of PyPI's rocketmq-a2a, in an environment of their own. Raises ToolMissing."""

    def install(folder: Path) -> None:
        environment = folder / "env"
        run([sys.executable, "-m", "venv", str(environment)], BUILD_TIMEOUT_S)
        try:
            command = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            run([*command, *AGENT_PACKAGES], BUILD_TIMEOUT_S)
        except RuntimeError as error:
            raise ToolMissing(f"rocketmq-a2a cannot be had: {error}") from error

    return cached(AGENT_PACKAGES[0].replace("==", "-"), install) / "env" / "bin"


CPP_PACKAGE = "rocketmq==0.4.4"
"""The binding, whose wheel brings librocketmq.so 1.2.x with it."""


def cpp_binding() -> Path:
    """The folder with the C++ client and its Python binding, kept beside the jars. Raises ToolMissing."""

    def install(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        try:
            run([*command, CPP_PACKAGE], FETCH_TIMEOUT_S)
        except RuntimeError as error:
            raise ToolMissing(f"the C++ client cannot be had: {error}") from error

    return cached(CPP_PACKAGE.replace("==", "-"), install)


PYTHON_PACKAGE = "rocketmq-python-client==5.1.2"
"""RocketMQ's own client for Python: gRPC, to a proxy."""


def python_client() -> Path:
    """The folder with RocketMQ's gRPC client for Python and what it needs. Raises ToolMissing."""

    def install(folder: Path) -> None:
        try:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
            run([*command, PYTHON_PACKAGE], FETCH_TIMEOUT_S)
        except RuntimeError as error:
            raise ToolMissing(f"the Python client cannot be had: {error}") from error

    return cached(PYTHON_PACKAGE.replace("==", "-"), install)


@contextmanager
def python_driver(client: Path, folder: Path, authorities: Path) -> Iterator[Driver]:
    """The Python client in a process of its own, which writes its log below HOME. ``authorities``: whom it trusts."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "driver.err"
    environment = {
        "HOME": str(folder),
        "PYTHONPATH": str(client),
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authorities),
    }
    command = [sys.executable, str(HERE / "python" / "driver.py")]
    with process(command, log, env=environment, stdout=subprocess.PIPE, stop_signal=signal.SIGKILL) as child:
        yield Driver(child, log)


JS_FOLDER = HERE / "js"


def js_program() -> Path:
    """The driver around the JavaScript client, npm's ali-ons. Raises ToolMissing."""
    return _installed(JS_FOLDER, "driver.js")


def js_schemas_program() -> Path:
    """The program around npm's client of schema registries. Raises ToolMissing."""
    return _installed(HERE / "jsschemas", "schemas.js")


def _installed(folder: Path, program: str) -> Path:
    """A program beside the packages that it needs. Raises ToolMissing."""
    require_tools("node", "npm")
    sources = [folder / name for name in (program, "package.json", "package-lock.json")]

    def install(target: Path) -> None:
        for source in sources:
            shutil.copy(source, target)
        try:
            run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], FETCH_TIMEOUT_S, cwd=target)
        except RuntimeError as error:
            raise ToolMissing(f"the JavaScript client cannot be had: {error}") from error

    return cached(f"js-{digest(*sources)}", install) / program


@contextmanager
def js_driver(program: Path, folder: Path) -> Iterator[Driver]:
    """The JavaScript client in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "driver.err"
    with process(["node", str(program)], log, stdout=subprocess.PIPE) as child:
        yield Driver(child, log)


@contextmanager
def cpp_driver(binding: Path, folder: Path) -> Iterator[Driver]:
    """The C++ client in a process of its own. It writes its log, and broadcast offsets, below HOME."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "driver.err"
    environment = {"HOME": str(folder), "PYTHONPATH": str(binding)}
    command = [sys.executable, str(HERE / "cpp" / "driver.py")]
    with process(command, log, env=environment, stdout=subprocess.PIPE, stop_signal=signal.SIGKILL) as child:
        yield Driver(child, log)


@contextmanager
def go_driver(program: Path, folder: Path) -> Iterator[Driver]:
    """The Go client in a process of its own. It keeps broadcast offsets below HOME."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "driver.err"
    environment = {"HOME": str(folder), "ROCKETMQ_GO_LOG_LEVEL": "warn"}
    with process([str(program)], log, env=environment, stdout=subprocess.PIPE) as child:
        yield Driver(child, log)
