"""Places for requests that take long: a number at once, of which one caller has no more than a part.

Who is not logged in is their address.
"""

from __future__ import annotations

from collections import Counter

from mqspark_server.web.problems import Problem

__all__ = ["Places"]

OF_ONE = 2
"""One caller may hold a half."""


class Places:
    """``what``: requests of which kind are limited, for the refusal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    def take(self, user: str, address: str, most: int, *, retry_s: int) -> str:
        """To be given back with ``leave``. ``most``: of all callers; ``retry_s``: for a refusal. Raises Problem."""
        holder = f"User:{user}" if user else address
        if self.held >= most or self._held[holder] >= max(1, most // OF_ONE):
            text = f"{self.held} {self._what} already, {self._held[holder]} of them by this caller"
            raise Problem(503, text, headers={"Retry-After": str(retry_s)})
        self._held[holder] += 1
        return holder

    def leave(self, holder: str) -> None:
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]
