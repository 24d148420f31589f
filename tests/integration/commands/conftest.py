"""What the tests of commands share: the cluster of a module is the environment's."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.testing import Cluster


@pytest.fixture
def environment(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of contexts, which are the test's."""
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
    monkeypatch.setenv("MQSPARK_CONTEXTS", str(tmp_path / "contexts.toml"))
    monkeypatch.delenv("MQSPARK_CONTEXT", raising=False)
    return tmp_path / "contexts.toml"
