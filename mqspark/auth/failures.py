"""Failed proofs by address and user, so that secrets cannot be guessed fast.

Times are milliseconds of a clock that only moves forward. Must not know requests, HTTP or users.
"""

from __future__ import annotations

import ipaddress

MAX_KEYS = 4_096
MAX_USER_LENGTH = 64
FAILURES = 10
"""This many failures are allowed at once, then one per REGAIN_MS."""
REGAIN_MS = 6_000
ADDRESS_FAILURES = 100
ADDRESS_REGAIN_MS = 100
"""The limits for all users at one address together, against trying one password on many names."""


class Failures:
    """Failures by address, and by user where one is given. IPv6 addresses count by their /64 network. Takes about 1 MB
    at most."""

    most, regain_ms = FAILURES, REGAIN_MS

    def __init__(self) -> None:
        self._free_ms: dict[tuple[str, str], int] = {}
        """Key → the time at which all its failures are forgotten."""

    def wait_ms(self, address: str, now_ms: int, user: str = "") -> int:
        """Milliseconds to wait before the next attempt; 0: none."""
        free_ms = self._free_ms.get(_key(address, user), now_ms)
        return max(0, free_ms - (self.most - 1) * self.regain_ms - now_ms)

    def note(self, address: str, now_ms: int, user: str = "") -> None:
        key = _key(address, user)
        free_ms = max(now_ms, self._free_ms.pop(key, now_ms)) + self.regain_ms
        if len(self._free_ms) >= MAX_KEYS:
            del self._free_ms[min(self._free_ms, key=self._free_ms.__getitem__)]
        self._free_ms[key] = free_ms


class _OfAddresses(Failures):
    most, regain_ms = ADDRESS_FAILURES, ADDRESS_REGAIN_MS


class Attempts:
    """Login attempts. After FAILURES a user has to wait at an address; after ADDRESS_FAILURES everybody at that address
    has to. Users who logged in from there before are exempt, so a stranger at the same address cannot lock them out."""

    def __init__(self) -> None:
        self._of_users = Failures()
        self._of_addresses = _OfAddresses()
        self._known: dict[tuple[str, str], None] = {}
        """(address, user) of successful logins, the latest last."""

    def wait_ms(self, address: str, now_ms: int, user: str = "") -> int:
        wait_ms = self._of_users.wait_ms(address, now_ms, user) if user else 0
        if not wait_ms and _key(address, user) not in self._known:
            wait_ms = self._of_addresses.wait_ms(address, now_ms)
        return wait_ms

    def note(self, address: str, now_ms: int, user: str = "") -> None:
        if user:
            self._of_users.note(address, now_ms, user)
        self._of_addresses.note(address, now_ms)

    def let_in(self, address: str, user: str) -> None:
        key = _key(address, user)
        self._known.pop(key, None)
        if len(self._known) >= MAX_KEYS:
            del self._known[next(iter(self._known))]
        self._known[key] = None


def _key(address: str, user: str) -> tuple[str, str]:
    ip = ipaddress.ip_address(address.partition("%")[0])
    network = str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))
    return network, user[:MAX_USER_LENGTH]
