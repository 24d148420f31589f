"""The unmodified clients of other languages, each with its driver: what builds one, and what runs it."""

import sys
from functools import partial
from pathlib import Path

from tests.interop.driver import Program
from tests.interop.jars import HERE
from tests.support.maven import cached, obtain, run
from tests.support.packages import cargo_program, go_program, npm_program, pip_packages

BUILD_TIMEOUT_S = 600

CPP_PACKAGE = "rocketmq==0.4.4"
"""The binding, whose wheel brings librocketmq.so 1.2.x with it."""
PYTHON_PACKAGE = "rocketmq-python-client==5.1.2"
"""RocketMQ's own client for Python: gRPC, to a proxy."""
AGENT_PACKAGES = ("rocketmq-a2a==0.0.5", "mcp<2")
"""It says that any MCP does, and runs with the first ones."""


def _go(module: Path, versions: str = "go") -> Program:
    sources = sorted(module.glob("*.go"))
    build = partial(go_program, "driver", module, versions=versions, sources=sources)
    return Program(build, lambda program: ["env", "ROCKETMQ_GO_LOG_LEVEL=warn", str(program)])


def _js(source: Path) -> Program:
    return Program(partial(npm_program, source), lambda program: ["node", str(program)])


def _python(source: Path, package: str, *, alone: bool = False) -> Program:
    build = partial(pip_packages, package, alone=alone)
    return Program(build, lambda found: ["env", f"PYTHONPATH={found}", sys.executable, str(source)])


GO = _go(HERE / "go")
"""github.com/apache/rocketmq-client-go/v2, the newest release."""
GO_TLS = _go(HERE / "go", "tls")
"""The branch after it, which can speak TLS."""
CPP = _python(HERE / "cpp" / "driver.py", CPP_PACKAGE, alone=True)
JS = _js(HERE / "js" / "driver.js")
"""npm's ali-ons."""
GRPC_GO = _go(HERE / "grpc" / "go")
"""github.com/apache/rocketmq-clients/golang/v5."""
GRPC_JS = _js(HERE / "grpc" / "js" / "grpcdriver.js")
"""npm's rocketmq-client-nodejs."""
GRPC_RUST = Program(partial(cargo_program, HERE / "grpc" / "rust"), lambda program: [str(program)])
"""crates.io's rocketmq."""
GRPC_PYTHON = _python(HERE / "python" / "driver.py", PYTHON_PACKAGE)
JS_SCHEMAS = partial(npm_program, HERE / "jsschemas" / "schemas.js")
"""The program around npm's client of schema registries, which is no driver."""


def agent_programs() -> Path:
    """The folder with the programs of PyPI's rocketmq-a2a, in an environment of their own. Raises ToolMissing."""

    def install(folder: Path) -> None:
        environment = folder / "env"
        run([sys.executable, "-m", "venv", str(environment)], BUILD_TIMEOUT_S)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        obtain(AGENT_PACKAGES[0], [*pip, *AGENT_PACKAGES])

    return cached(AGENT_PACKAGES[0].replace("==", "-"), install) / "env" / "bin"
