"""A plan for a static topic is on disk before a broker is told any of it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from mqspark.protocol.bodies.topic_bodies import TopicRemappingDetailWrapper
from mqspark_server.commands.administration.staticplans import KeptPlan


def test_a_plan_and_its_name_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = list[str](), os.fsync

    def record(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.chdir(tmp_path)
    with KeptPlan(TopicRemappingDetailWrapper(topic="T"), "plan"):
        assert (tmp_path / "plan").read_bytes()
    assert len(synced) == 2
    assert re.fullmatch(r"plan\.[0-9a-f]{8}\.tmp", synced[0])
    assert synced[1] == tmp_path.name
