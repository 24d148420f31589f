"""How much memory a process may use: the machine's, or the limit of its control group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqspark.store.disk.files import usable_memory_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
LIMIT = 256 << 20


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        ("0::/system.slice/b.service\n", {"system.slice/b.service/memory.max": LIMIT}, LIMIT),
        ("0::/system.slice/b.service\n", {"system.slice/memory.max": LIMIT}, LIMIT),
        ("0::/a\n", {"a/memory.max": LIMIT, "memory.max": LIMIT // 2}, LIMIT // 2),
        ("0::/of/the/host\n", {"memory.max": LIMIT}, LIMIT),
        ("4:memory:/docker/1\n3:cpu:/x\n", {"memory/docker/1/memory.limit_in_bytes": LIMIT}, LIMIT),
        ("4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": LIMIT}, LIMIT),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": 1 << 62}, MACHINE),
        ("0::/a\n", {"a/memory.max": "max"}, MACHINE),
        ("0::/a\n", {}, MACHINE),
        ("", {}, MACHINE),
    ],
)
def test_limits_of_control_groups_count(
    tmp_path: Path, membership: str, limits: dict[str, object], expected: int
) -> None:
    (tmp_path / "cgroup").write_text(membership)
    for name, limit in limits.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    assert usable_memory_bytes(tmp_path / "cgroup", tmp_path / "fs") == expected


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert usable_memory_bytes(tmp_path / "none", tmp_path) == MACHINE
