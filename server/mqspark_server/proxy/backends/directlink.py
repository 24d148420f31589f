"""Plain sends of one client to the broker in this process (``mqspark.broker.send.directsends``): those of a turn are
stored together, and each is told its place when its guarantee is met."""

from __future__ import annotations

from collections.abc import Sequence

from mqspark.broker.broker import BrokerCore
from mqspark.broker.state.acks import DirectRun
from mqspark.broker.tables.topics import Topic
from mqspark.protocol.session import Session
from mqspark.store.messages.append import PlainMessage, PlainPlace
from mqspark_server.net.deadlines import NO_SLOT
from mqspark_server.net.remotingserver import RemotingServer
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S, DirectSender, DirectTopic
from mqspark_server.proxy.grpcstatus import too_late


class _LinkRun(DirectRun):
    __slots__ = ("_link", "places", "slot")

    def __init__(self, link: DirectLink) -> None:
        self._link = link
        self.places: Sequence[PlainPlace] = ()
        self.slot = NO_SLOT

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None:
        self._link.server.deadlines.discard(self)
        places, self.places = self.places, ()
        for _, _, queue_offset, _, sender in places:
            sender.stored(queue_offset)

    def failed(self, code: int, remark: str) -> None:
        self._link.server.deadlines.discard(self)
        places, self.places = self.places, ()
        for _, _, _, _, sender in places:
            sender.failed(code, remark)

    def expire(self) -> None:
        places, self.places = self.places, ()
        for _, _, _, _, sender in places:
            sender.refused(too_late())


class DirectLink:
    def __init__(self, core: BrokerCore, server: RemotingServer, session: Session) -> None:
        self.server = server
        self._core = core
        self._session = session
        self._messages: list[PlainMessage] = []
        self._topics: list[Topic] = []
        self._generation = 0
        """That of the topics when the first of the messages came."""

    def topic(self, name: str) -> DirectTopic | None:
        direct = self._core.direct
        topic = direct.topic(name)
        if topic is None:
            return None
        return DirectTopic(
            topic, topic.config.attributes.get("message.type", "NORMAL"), direct.queues_of(topic)
        )

    def send(
        self,
        topic: DirectTopic,
        queue: int,
        born_ms: int,
        properties: str,
        tags: str,
        body: bytes,
        sys_flag: int,
        sender: DirectSender,
    ) -> bool:
        message = self._core.direct.message(
            topic.where, queue, born_ms, properties, tags, body, sender, sys_flag=sys_flag
        )
        if message is None:
            return False
        if not self._messages:
            self._generation = self._core.direct.generation
            self.server.before_turn(self._store)
        self._messages.append(message)
        self._topics.append(topic.where)
        return True

    def _store(self) -> None:
        messages, self._messages = self._messages, []
        topics, self._topics = self._topics, []
        direct, run = self._core.direct, _LinkRun(self)
        if self._generation == direct.generation:  # otherwise a topic may be gone, or refuse them now
            try:
                run.places = direct.put(self._session, messages, topics, run)
            except Exception as error:
                for message in messages:
                    message[-1].refused(error)
                raise
        places = run.places
        if places:
            self.server.deadlines.add(run, self.server.loop.time() + ANSWER_TIMEOUT_S)
        for message in messages[len(places) :]:
            message[-1].take_long_way()
