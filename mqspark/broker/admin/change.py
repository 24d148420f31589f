"""How a change that an operator asked for is answered."""

from __future__ import annotations

from typing import Protocol

from mqspark.protocol.command import Command
from mqspark.protocol.session import Session

__all__ = ["Change"]


class Change(Protocol):
    """Answers a change, when it is safe, in the handler's stead."""

    def __call__(self, session: Session, command: Command, *, topics: bool) -> None: ...
