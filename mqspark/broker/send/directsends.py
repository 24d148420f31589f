"""Plain sends of clients in the broker's own process: they become records, queue entries and acknowledgements without
requests and answers as bytes, a run of one client at a time.

What is not plain, or is refused, takes the long way (``send``) as a request of remoting; nothing has been changed for
it then.

Must not know who sends, or how it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mqspark.base.bounded import Memo
from mqspark.broker.state.acks import Acks, DirectRun
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.topics import Topic, count_stored
from mqspark.errors import InvalidMessage, MessageTooLarge, NotNow, StoreReadOnly
from mqspark.message import MAX_PROPERTIES_BYTES, PERM_WRITE, java_hashes
from mqspark.protocol.session import Session
from mqspark.store.messages.append import PlainForm, PlainMessage, PlainPlace

_NO_PLACES: tuple[PlainPlace, ...] = ()


class _Alike(NamedTuple):
    """What sends have in common whose properties have one length."""

    topic: str
    properties_bytes: int
    tags: str
    sys_flag: int
    suffix: bytes


def _form(alike: _Alike) -> PlainForm:
    tags_code = java_hashes[alike.tags] if alike.tags else 0
    return PlainForm.around(
        alike.topic, alike.properties_bytes, alike.suffix, tags_code=tags_code, sys_flag=alike.sys_flag
    )


_forms: Memo[_Alike, PlainForm] = Memo(
    "send.forms", _form, weigh=lambda alike, form: 600 + 4 * len(alike.topic) + len(alike.tags)
)


class DirectSends:
    def __init__(self, state: BrokerState, acks: Acks, may_concern_broker: Callable[[str], bool]) -> None:
        """``may_concern_broker``: whether one of these properties does."""
        self._state, self._acks = state, acks
        self._may_concern_broker = may_concern_broker
        self._topic = state.topics.get
        self._static_topics = state.mappings.table
        self._put_run = state.store.appender.put_run
        self._capacity = 0
        self._suffix = b""
        self.is_open = False
        """False where users, extensions or traces stand around sends, or these must not be served."""

    def refresh(self, capacity: int, suffix: str, *, starts_late: bool) -> None:
        """The settings have changed. ``capacity``: how many messages may wait for their answers. ``suffix``: the
        broker's own properties. ``starts_late``: sends may have to be refused until a time."""
        self._capacity = 0 if starts_late else capacity
        self._suffix = suffix.encode()

    def topic(self, name: str) -> Topic | None:
        """The topic, if messages for it may be plain."""
        topic = self._topic(name)
        if topic is None or not self.is_open or self._static_topics:
            return None
        return None if not topic.plain or topic.validation or topic.needs_key or topic.multi_tag else topic

    @property
    def generation(self) -> int:
        """That of the topics: what was found out of one holds while it stays."""
        return self._state.topics.generation

    def queues_of(self, topic: Topic) -> int:
        """How many queues it may be written to."""
        is_writable = topic.config.perm & self._state.config.broker_permission & PERM_WRITE
        return topic.write_queue_nums if is_writable else 0

    def message(
        self,
        topic: Topic,
        queue_id: int,
        born_ms: int,
        properties: str,
        tags: str,
        body: bytes,
        sender: object,
        *,
        sys_flag: int = 0,
    ) -> PlainMessage | None:
        """A message with a unique id; ``properties`` as in a header, ``tags`` among them. ``sender`` comes back with
        its place. None: it is not plain."""
        if self._may_concern_broker(properties):
            return None
        encoded = properties.encode()
        if len(encoded) + len(self._suffix) > MAX_PROPERTIES_BYTES or queue_id >= topic.queue_limit:
            return None
        form = _forms[_Alike(topic.name, len(encoded), tags, sys_flag, self._suffix)]
        return form, queue_id, born_ms, encoded, body, sender

    def put(
        self, session: Session, messages: Sequence[PlainMessage], topics: Sequence[Topic], run: DirectRun
    ) -> Sequence[PlainPlace]:
        """Store messages, whose acknowledgement ``run`` is told. Returns the places of the first ones; the others are
        left."""
        acks = self._acks
        room = self._capacity - len(acks)
        if room <= 0 or not self.is_open:
            return _NO_PLACES
        try:
            places, sizes = self._put_run(session.peer_host, messages[:room])
        except (MessageTooLarge, InvalidMessage, StoreReadOnly, NotNow):
            return _NO_PLACES
        count = len(places)
        if not count:
            return _NO_PLACES
        count_stored(topics, sizes)
        self._state.stats.put_messages += count
        acks.add_direct(places[-1][0] + sizes[-1], run, count)
        return places
