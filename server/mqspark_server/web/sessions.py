"""Logins over HTTP: sessions by their secret ids, and addresses that have failed to log in too often.

A session's id is known to its holder alone; the table has its hash. Times are milliseconds of a clock that only moves
forward. Must not know HTTP, users or policies.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from dataclasses import dataclass

__all__ = ["Failures", "Login", "Logins"]

MAX_LOGINS = 1_024
MAX_LOGINS_OF_ONE = 64
"""Of one user; a further login ends the one that has been idle for longest."""
IDLE_MS = 30 * 60_000
"""A session that a browser does not use for so long has ended."""
LONGEST_MS = 12 * 3_600_000
"""A session ends after so long however much it is used."""

MAX_ADDRESSES = 1_024
FAILURES = 10
"""An address may fail so often at once, and then once in each REGAIN_MS."""
REGAIN_MS = 6_000


@dataclass(slots=True)
class Login:
    user: str
    """Empty: nobody, for a holder of the loopback token."""
    proof: str
    csrf_token: str
    """Empty for a bearer's token, which no browser sends by itself."""
    reads_only: bool
    ends_ms: int
    used_ms: int


class Logins:
    def __init__(self) -> None:
        self._open: dict[bytes, Login] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self,
        user: str,
        proof: str,
        now_ms: int,
        *,
        is_bearer: bool = False,
        reads_only: bool = False,
        lasts_ms: int = LONGEST_MS,
    ) -> tuple[str, Login]:
        """A new session and its id."""
        self._make_room(user, now_ms)
        secret = secrets.token_urlsafe(32)
        csrf_token = "" if is_bearer else secrets.token_urlsafe(32)
        login = Login(user, proof, csrf_token, reads_only, now_ms + min(lasts_ms, LONGEST_MS), now_ms)
        self._open[_hashed(secret)] = login
        return secret, login

    def find(self, secret: str, now_ms: int) -> Login | None:
        """The session with this id, which counts as used now."""
        key = _hashed(secret)
        login = self._open.get(key)
        if login is None:
            return None
        if _has_ended(login, now_ms):
            del self._open[key]
            return None
        login.used_ms = now_ms
        return login

    def end(self, secret: str) -> None:
        self._open.pop(_hashed(secret), None)

    def _make_room(self, user: str, now_ms: int) -> None:
        for key in [key for key, login in self._open.items() if _has_ended(login, now_ms)]:
            del self._open[key]
        of_user = [key for key, login in self._open.items() if login.user == user]
        crowd = of_user if len(of_user) >= MAX_LOGINS_OF_ONE else list(self._open)
        if len(of_user) >= MAX_LOGINS_OF_ONE or len(crowd) >= MAX_LOGINS:
            del self._open[min(crowd, key=lambda key: self._open[key].used_ms)]


def _has_ended(login: Login, now_ms: int) -> bool:
    is_idle = bool(login.csrf_token) and now_ms >= login.used_ms + IDLE_MS
    return is_idle or now_ms >= login.ends_ms


def _hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class Failures:
    """Failed logins by address; of IPv6 by the 64 bits that one network has."""

    def __init__(self) -> None:
        self._free_ms: dict[str, int] = {}
        """Address to the time at which all of its failures are forgotten."""

    def wait_ms(self, address: str, now_ms: int) -> int:
        """How long the address has to wait before it may try again; 0: it may."""
        free_ms = self._free_ms.get(_network(address), now_ms)
        return max(0, free_ms - (FAILURES - 1) * REGAIN_MS - now_ms)

    def note(self, address: str, now_ms: int) -> None:
        key = _network(address)
        free_ms = max(now_ms, self._free_ms.pop(key, now_ms)) + REGAIN_MS
        if len(self._free_ms) >= MAX_ADDRESSES:
            del self._free_ms[min(self._free_ms, key=self._free_ms.__getitem__)]
        self._free_ms[key] = free_ms


def _network(address: str) -> str:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))
