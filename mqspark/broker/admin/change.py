"""How the answer to an operator's change is sent, and a change of settings is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mqspark.protocol.command import Command
from mqspark.protocol.session import Session


class AnswerWhenSafe(Protocol):
    """Sends the answer in place of the handler, once the change is safe."""

    def __call__(self, session: Session, command: Command, *, topics: bool) -> None: ...


class KeepSettings(Protocol):
    """Answers a change of settings: at once if it lasts until the process ends, otherwise later, when it is in the
    settings file."""

    def __call__(self, session: Session, command: Command, values: Mapping[str, Any]) -> bytes | None: ...
