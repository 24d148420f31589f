"""What the service asks of brokers. ``brokerbackend`` answers in the broker's own process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from mqspark.auth.gate import Gate, Moved
from mqspark.auth.policies import Action, Kind
from mqspark.base.clock import Clock
from mqspark.broker.pop.ackrun import AckRun
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicRouteData
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.header import Header
from mqspark.protocol.session import Session
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcstatus import GrpcMoved, GrpcRefusal

ANSWER_TIMEOUT_S = 3.0
"""How long a broker may take for a request that it answers at once."""


class Proof(NamedTuple):
    """What a caller shows in its metadata: that it knows the secret of ``user``, by the HMAC of ``content``."""

    user: str
    content: bytes
    digest: bytes


class GrpcCaller(NamedTuple):
    """The program at the other end, as brokers are told."""

    client_id: str
    user: str
    """Empty without credentials."""
    address: tuple[str, int]
    language: int
    """mqspark.protocol.codes.Language."""
    version: int


class Rights:
    """What one client may do, once it has proved who it is. ``session``: where the gate notes that. Without users there
    is no gate, and everybody may do everything."""

    def __init__(self, gate: Gate | None, session: Session) -> None:
        self._gate = gate
        self._session = session

    def sign_in(self, proof: Proof | None, address: str) -> None:
        """``address``: of the peer that gives the proof. Raises GrpcRefusal when there are users, and the proof does
        not hold: GrpcMoved when it would for a new link from this address."""
        if self._gate is None:
            return
        if proof is None:
            raise GrpcRefusal(pb.UNAUTHORIZED, "username cannot be null.")
        try:
            self._gate.sign_in(self._session, *proof, address)
        except Moved as refusal:
            raise GrpcMoved(pb.UNAUTHORIZED, refusal.remark) from None
        except Refusal as refusal:
            raise GrpcRefusal(pb.UNAUTHORIZED, refusal.remark) from None

    def see(self, topic: str) -> None:
        """Raises GrpcRefusal when the client may neither write to the topic nor read it."""
        self._check(Kind.TOPIC, topic, "QueryRoute", Action.PUB, Action.SUB)

    def write(self, topic: str) -> None:
        """Raises GrpcRefusal when the client may not write to the topic."""
        self._check(Kind.TOPIC, topic, "Telemetry", Action.PUB)

    def change_server(self) -> None:
        """Raises GrpcRefusal when the client may not change the cluster."""
        self._check(Kind.CLUSTER, "", "ChangeLogLevel", Action.UPDATE)

    def _check(self, kind: Kind, name: str, request: str, *actions: Action) -> None:
        if self._gate is None:
            return
        try:
            self._gate.authorize(self._session, kind, name, frozenset(actions), request)
        except Refusal as refusal:
            raise GrpcRefusal(pb.FORBIDDEN, refusal.remark) from None


Doors = Mapping[str, tuple[str, int]]
"""Name of a broker → host and port of the service in its process."""


class DirectSender(Protocol):
    """Who sends one message, and is told once what became of it."""

    @property
    def is_over(self) -> bool:
        """Whether nobody waits any more."""
        ...

    def stored(self, queue_offset: int) -> None: ...
    def failed(self, code: int, remark: str) -> None:
        """The broker answers this instead, as for a message that is stored, but perhaps not as safely as asked for."""
        ...

    def refused(self, error: Exception) -> None:
        """There is no answer, or none in time; the message may be stored."""
        ...

    def take_long_way(self) -> None:
        """Nothing has happened so far."""
        ...


class DirectTopic(NamedTuple):
    """A topic whose messages may be plain."""

    where: Any
    """What the way to its queues knows it by."""
    message_type: str
    queues: int
    """How many it may be written to."""


class Direct(Protocol):
    """One client's way for plain sends, which need no task each."""

    def topic(self, name: str) -> DirectTopic | None:
        """None: its messages are not plain, or it has to be asked for."""
        ...

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
        """Send a message to one of the queues at the end of the turn, and tell its sender. ``properties`` as in a
        header of remoting, a unique id and ``tags`` among them. False: nothing has happened, and it has to take the
        long way."""
        ...


class Link(Protocol):
    """One client's way to brokers, which see it as one connection."""

    @property
    def direct(self) -> Direct:
        """For plain sends."""
        ...

    @property
    def rights(self) -> Rights: ...

    def request(
        self,
        broker: str,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
    ) -> Awaitable[Command]:
        """The answer of the master of ``broker``, whatever its code. Raises GrpcRefusal when it is unknown, cannot
        be reached or is too late, now or when it is awaited."""
        ...

    def acknowledge(self, broker: str, run: AckRun) -> bool:
        """Acknowledge messages of the broker without requests. False: requests have to be made."""
        ...

    def at_turn_end(self, work: Callable[[], None]) -> None:
        """Call ``work`` when everything that has arrived so far has been read."""
        ...

    async def announce(self, topics: Iterable[str], heartbeat: bytes) -> None:
        """Send a heartbeat with this body to every broker that has one of the topics. Raises GrpcRefusal when one of
        them refuses."""
        ...

    def answer(self, broker: str, frame: bytes) -> None:
        """The response frame to a request of ``broker``."""
        ...

    def close(self) -> None: ...


OnRequest = Callable[[str, Command], None]
"""Called with the name of a broker and its own request to the client."""


class ProxyBackend(Protocol):
    @property
    def max_message_bytes(self) -> int: ...

    @property
    def clock(self) -> Clock:
        """The time of brokers, by which receipts expire."""
        ...

    def link(self, caller: GrpcCaller, on_request: OnRequest) -> Link: ...

    async def route(self, topic: str) -> TopicRouteData:
        """The queues that are reached here. Raises GrpcRefusal when the topic does not exist."""
        ...

    async def whole_route(self, topic: str) -> tuple[TopicRouteData, Doors]:
        """The queues of all brokers, and the doors to those that are not reached here. Raises as ``route``."""
        ...

    async def message_type(self, topic: str) -> str:
        """One of ``mqspark.message.MESSAGE_TYPES``. UNSPECIFIED when the topic does not exist."""
        ...

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """None: the group does not exist."""
        ...

    def close(self) -> None: ...
