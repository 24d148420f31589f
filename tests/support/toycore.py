"""What a server of sockets asks of the core behind it."""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.protocol.command import Command
from mqspark.protocol.session import Session


class ToyCore:
    """Answers nothing and has nothing else to do."""

    @property
    def work_waits(self) -> bool:
        return False

    def connected(self, session: Session) -> None: ...

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        list(commands)

    def disconnected(self, session: Session) -> None: ...

    def turn(self) -> None: ...

    def work(self) -> bool:
        return False

    def tick(self) -> int:
        return 1000
