"""Helm itself, on the PATH or built once from its Go modules into the cache beside the jars."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.maven import ToolMissing, cached, digest, require_tools, run

__all__ = ["CHART", "KUBERNETES", "helm", "helm_program", "rendered"]

MODULE = Path(__file__).parent / "helm_module"
CHART = Path("conf/helm/mqspark")
KUBERNETES = "1.30"
FETCH_TIMEOUT_S = 600
BUILD_TIMEOUT_S = 1_800


def helm_program() -> Path:
    """Raises ToolMissing."""
    found = shutil.which("helm")
    if found is not None:
        return Path(found)
    require_tools("go")
    folder = cached(f"helm-{digest(MODULE / 'go.mod', MODULE / 'go.sum')}", _build)
    return folder / "helm"


def _build(folder: Path) -> None:
    try:
        run(["go", "mod", "download"], FETCH_TIMEOUT_S, cwd=MODULE)
    except RuntimeError as error:
        raise ToolMissing(f"Helm's modules cannot be had: {error}") from error
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", str(folder / "helm")]
    run([*command, "helm.sh/helm/v3/cmd/helm"], BUILD_TIMEOUT_S, cwd=MODULE)


def helm(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``lint`` or ``template``. Helm as built from its modules takes Kubernetes for an old one, unless it is told."""
    command = [str(helm_program()), verb, *arguments, "--kube-version", f"{KUBERNETES}.0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def rendered(*arguments: str) -> list[dict[str, Any]]:
    """The objects that a release ``r`` in the namespace ``prod`` would have."""
    done = helm("template", "r", str(CHART), "--namespace", "prod", *arguments)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]
