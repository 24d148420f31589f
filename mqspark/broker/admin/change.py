"""How the answer to an operator's change is sent."""

from __future__ import annotations

from typing import Protocol

from mqspark.protocol.command import Command
from mqspark.protocol.session import Session

__all__ = ["AnswerWhenSafe"]


class AnswerWhenSafe(Protocol):
    """Sends the answer in place of the handler, once the change is safe."""

    def __call__(self, session: Session, command: Command, *, topics: bool) -> None: ...
