"""Logins over HTTP: sessions by their secret ids.

Only its holder knows the id of a session; the table has the hash. Times are milliseconds of a clock that only moves
forward. Must not know HTTP, users or policies.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

MAX_LOGINS = 1_024
MAX_LOGINS_OF_ONE = 64
"""The most logins of one user; a further login ends the one that has been idle for longest."""
IDLE_MS = 30 * 60_000
"""A session ends when a browser has not used it for this time."""
LONGEST_MS = 12 * 3_600_000
"""A session ends after this time, however much it is used."""


@dataclass(slots=True)
class Login:
    user: str
    """Empty for a holder of the loopback token, who is not a user."""
    proof: str = field(repr=False)
    csrf_token: str = field(repr=False)
    """Empty for a bearer token, which no browser sends by itself."""
    reads_only: bool
    ends_ms: int
    used_ms: int
    kept: object = field(default=None, repr=False)
    """Data that its owner keeps as long as the session lasts."""
    was_ended: bool = False


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
        kept: object = None,
    ) -> tuple[str, Login]:
        """A new session and its id."""
        self._make_room(user, now_ms)
        secret = secrets.token_urlsafe(32)
        csrf_token = "" if is_bearer else secrets.token_urlsafe(32)
        login = Login(user, proof, csrf_token, reads_only, now_ms + min(lasts_ms, LONGEST_MS), now_ms, kept)
        self._open[_hashed(secret)] = login
        return secret, login

    def find(self, secret: str, now_ms: int) -> Login | None:
        """The session with this id, which counts as used now."""
        key = _hashed(secret)
        login = self._open.get(key)
        if login is None:
            return None
        if _has_ended(login, now_ms):
            self._drop(key)
            return None
        login.used_ms = now_ms
        return login

    def end(self, secret: str) -> None:
        self._drop(_hashed(secret))

    def is_over(self, login: Login, now_ms: int) -> bool:
        return login.was_ended or _has_ended(login, now_ms)

    def _drop(self, key: bytes) -> None:
        login = self._open.pop(key, None)
        if login is not None:
            login.was_ended = True

    def _make_room(self, user: str, now_ms: int) -> None:
        for key in [key for key, login in self._open.items() if _has_ended(login, now_ms)]:
            self._drop(key)
        of_user = [key for key, login in self._open.items() if login.user == user]
        crowd = of_user if len(of_user) >= MAX_LOGINS_OF_ONE else list(self._open)
        if len(of_user) >= MAX_LOGINS_OF_ONE or len(crowd) >= MAX_LOGINS:
            self._drop(min(crowd, key=lambda key: self._open[key].used_ms))


def _has_ended(login: Login, now_ms: int) -> bool:
    is_idle = bool(login.csrf_token) and now_ms >= login.used_ms + IDLE_MS
    return is_idle or now_ms >= login.ends_ms


def _hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
