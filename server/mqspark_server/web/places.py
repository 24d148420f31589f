"""Bounds on concurrent long requests: of all callers together, and of each caller.

A caller who is not logged in is identified by the address.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from mqspark_server.web.problems import Problem

OF_ONE = 2
"""One caller may hold half of the places."""


class HeldPlace(NamedTuple):
    held: Counter[str]
    holder: str

    def leave(self) -> None:
        self.held[self.holder] -= 1
        if not self.held[self.holder]:
            del self.held[self.holder]


class Places:
    """``what``: the kind of requests, as a refusal names it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    def take(self, user: str, address: str, most: int, *, retry_s: int) -> HeldPlace:
        """``most``: of all callers; ``retry_s``: for a refusal. Raises
        Problem."""
        holder = f"User:{user}" if user else address
        if self.held >= most or self._held[holder] >= max(1, most // OF_ONE):
            text = f"{self.held} {self._what} already, {self._held[holder]} of them by this caller"
            raise Problem(503, text, headers={"Retry-After": str(retry_s)})
        self._held[holder] += 1
        return HeldPlace(self._held, holder)
