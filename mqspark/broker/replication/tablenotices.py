"""Notifies slaves of a changed table of their master, so that they copy it at once instead of in their next round.

A slave of this project marks its request for the request modes (FOLLOWS). It is notified over the same connection, by a
one-way request with the code of that request. RocketMQ's slaves do not mark theirs and are not notified.
"""

from __future__ import annotations

from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.dispatch import Handler
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices

FOLLOWS = {"mqsparkFollows": "true"}
"""The field by which a slave asks for notices."""

MAX_FOLLOWERS = 64
"""Limit of notified slaves; as many may copy the log."""

_CODE = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE


def is_table_notice(command: Command) -> bool:
    return command.code == _CODE and not command.is_response


class TableNotices:
    """The master's half."""

    def __init__(self) -> None:
        self._followers: dict[int, Session] = {}
        """By the id of the session, in the order in which they last asked."""

    def watching(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """The handler of the request for the request modes, which also records who asks."""
        answer = handlers[_CODE]

        def note_and_answer(session: Session, command: Command) -> bytes | Slices | None:
            if FOLLOWS.items() <= command.ext.items():
                self._followers.pop(session.id, None)
                self._followers[session.id] = session
                while len(self._followers) > MAX_FOLLOWERS:
                    del self._followers[next(iter(self._followers))]
            return answer(session, command)

        return {_CODE: note_and_answer}

    def changed(self) -> None:
        for session in list(self._followers.values()):
            if session.open:
                session.send(encode_request(_CODE, session.next_opaque(), None, oneway=True))
            else:
                del self._followers[session.id]
