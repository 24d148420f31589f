"""Failed proofs of who somebody is, so that secrets cannot be guessed at the rate of the network.

Times are milliseconds of a clock that only moves forward. Must not know requests, HTTP or users.
"""

from __future__ import annotations

import ipaddress

__all__ = ["Failures"]

MAX_KEYS = 4_096
MAX_USER_LENGTH = 64
FAILURES = 10
"""So many failures are allowed at once, and then one in each REGAIN_MS."""
REGAIN_MS = 6_000


class Failures:
    """By address, and by user where one is given; IPv6 addresses count by the 64 bits of a network. Some 1 MB at
    most."""

    def __init__(self) -> None:
        self._free_ms: dict[tuple[str, str], int] = {}
        """The time at which all failures are forgotten."""

    def wait_ms(self, address: str, now_ms: int, user: str = "") -> int:
        """How long to wait before the next attempt; 0: none."""
        free_ms = self._free_ms.get(_key(address, user), now_ms)
        return max(0, free_ms - (FAILURES - 1) * REGAIN_MS - now_ms)

    def note(self, address: str, now_ms: int, user: str = "") -> None:
        key = _key(address, user)
        free_ms = max(now_ms, self._free_ms.pop(key, now_ms)) + REGAIN_MS
        if len(self._free_ms) >= MAX_KEYS:
            del self._free_ms[min(self._free_ms, key=self._free_ms.__getitem__)]
        self._free_ms[key] = free_ms


def _key(address: str, user: str) -> tuple[str, str]:
    ip = ipaddress.ip_address(address.partition("%")[0])
    network = str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))
    return network, user[:MAX_USER_LENGTH]
