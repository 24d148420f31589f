"""Answers to changes by operators and first sends: what each kind of change has to wait for.

Must not know how a change is made, and who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mqspark.broker.savedstate import SavedState
from mqspark.broker.state.acks import Acks, Receiver
from mqspark.broker.state.changes import PendingChanges
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import ok
from mqspark.protocol.session import Session
from mqspark.store.log.commitlog import CommitLog


class _Settled:
    """A session whose answers are sent once all messages stored so far are acknowledged."""

    def __init__(self, acks: Acks, log: CommitLog, session: Session) -> None:
        self._acks = acks
        self._log = log
        self._session = session

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None:
        frame = b"".join((buffer, *more))
        self._acks.waiting.append((self._log.position, self._session, frame))


class ChangeAnswers:
    """``on_remapped`` is called with the name of a static topic whose queues have moved."""

    def __init__(
        self,
        state: BrokerState,
        pending: PendingChanges,
        saved: SavedState,
        acks: Acks,
        on_remapped: Callable[[str], None],
    ) -> None:
        self._state = state
        self._pending = pending
        self._saved = saved
        self._acks = acks
        self._on_remapped = on_remapped

    @property
    def _has_name_servers(self) -> bool:
        return bool(self._state.config.namesrv_addr)

    def changed(self, session: Session, command: Command, *, topics: bool) -> None:
        """Answer a change of the topics (otherwise of the groups) once it is on disk and, if a topic, known to a
        name server, so that the requester can rely on it."""
        saved = self._saved.topics if topics else self._saved.groups
        self._pending.answer_when_safe(session, command, saved, published=topics and self._has_name_servers)

    def remapped(self, session: Session, command: Command, topic: str) -> None:
        """Answer a change of a static topic like any other, but not before every stored message is readable, because
        the requester then asks where the old queues end, and these ends are final."""
        self._on_remapped(topic)
        settled = _Settled(self._acks, self._state.store.log, session)
        self._pending.answer_when_safe(settled, command, self._saved.topics, published=self._has_name_servers)

    def keep_settings(self, session: Session, command: Command, values: Mapping[str, Any]) -> bytes | None:
        """Answer a change of settings once they are in the settings file, if there is one."""
        if self._saved.settings is None or not values:
            return ok(command)
        self._saved.note_settings(values)
        self._pending.answer_when_safe(session, command, self._saved.settings)
        return None

    def mode_changed(self, session: Session, command: Command) -> None:
        """Answer a change of how a group reads a topic once it is on disk."""
        self._pending.answer_when_safe(session, command, self._saved.modes)

    def once_known(self, session: Session) -> Receiver:
        """Hold an answer back until a name server knows the topics as they are now."""
        return self._pending.once_known(session, self._state.topics.generation)
