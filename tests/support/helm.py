"""Helm, from the PATH or built once from its Go modules into the cache of jars."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.packages import go_program

MODULE = Path(__file__).parent / "helm_module"
CHART = Path("conf/helm/mqspark")
KUBERNETES = "1.30"


def helm_program() -> Path:
    """Raises ToolMissing."""
    found = shutil.which("helm")
    return Path(found) if found else go_program("helm", MODULE, "helm.sh/helm/v3/cmd/helm")


def helm(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``lint`` or ``template``. Helm built from its modules assumes an old Kubernetes unless a version is given."""
    command = [str(helm_program()), verb, *arguments, "--kube-version", f"{KUBERNETES}.0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def rendered(*arguments: str) -> list[dict[str, Any]]:
    """The Kubernetes objects of a release ``r`` in the namespace ``prod``."""
    done = helm("template", "r", str(CHART), "--namespace", "prod", *arguments)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]
