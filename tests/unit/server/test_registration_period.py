"""How often a broker registers, whatever registerNameServerPeriod says."""

from __future__ import annotations

import pytest

from mqspark_server.peers.registrar import period_s


@pytest.mark.parametrize(
    ("asked_ms", "held_s"), [(1, 10), (10_000, 10), (30_000, 30), (60_001, 60), (2**31 - 1, 60)]
)
def test_the_period_is_from_ten_to_sixty_seconds(asked_ms: int, held_s: int) -> None:
    assert period_s(asked_ms) == held_s
