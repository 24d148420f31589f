"""Extension points of servers: what a program of the operator may implement, and what it is given.

A package offers an object through an entry point of the group ``mqspark.extensions``. A server loads those that its
settings name, and no others: ``extensions`` (send, consume and RPC hooks, transaction listeners, message store
observers), ``messageStorePlugIn`` (message store observers alone) and ``authenticationProvider``. The entry point is
called once, without arguments, before the server opens a port.

Every method is called on the server's only event loop, so it must return within a fraction of a millisecond: no
disk, no network, no lock that is held for long. While it runs, nobody is served. A call that takes over a tenth of a
second is counted, and a line of the log names the extension.

An error of an extension is counted and logged with the extension's name. Of what becomes of the request, each method
says one of two things: *refuses* (the request is answered with an error) or *is ignored* (the request goes on as if
the extension were not there).

docs/extensions.md has an example of each.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mqspark.errors import MQError
from mqspark.message import MessageExt

NO_PERMISSION = 16
"""ResponseCode.NO_PERMISSION."""


class RefusedByExtension(MQError):
    """Raised by an extension to refuse a request, which is answered with this code and remark (AbortProcessException).
    It is no error of the extension."""

    def __init__(self, remark: str, code: int = NO_PERMISSION) -> None:
        super().__init__(remark)
        self.remark = remark
        self.code = code


# --- sends -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """A message, or a batch, that a client sends (SendMessageContext)."""

    topic: str
    queue_id: int
    """-1: any."""
    group: str
    """The producer group."""
    properties: Mapping[str, str]
    """For a batch, those that the batch has beside those of its messages."""
    body_bytes: int
    is_batch: bool
    born_timestamp_ms: int
    peer: str
    """``address:port``."""
    user: str
    """Empty without authentication."""


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """What the client is answered."""

    code: int
    """0: the message is stored, and as safe as its sender asked for."""
    remark: str
    message_id: str
    """The offset message id; of a batch, several with commas. Empty if it is refused."""
    queue_id: int
    queue_offset: int
    """-1 if it is refused."""


@runtime_checkable
class SendHook(Protocol):
    """Sees messages of clients: requests 10, 310 and 320 (SendMessageHook)."""

    def before_send(self, attempt: SendAttempt, body: bytes | memoryview, /) -> None:
        """Called before a message is stored. RefusedByExtension refuses it; any other error is ignored. ``body`` must
        not be kept."""

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome, /) -> None:
        """Called when the answer is sent. It is not called for one-way sends, nor when the client has gone. An error
        is ignored."""


# --- deliveries ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumeAttempt:
    """A pull, or a pop, of a client (ConsumeMessageContext)."""

    topic: str
    queue_id: int
    """-1: any, of a pop."""
    group: str
    """The consumer group."""
    offset: int
    """The queue offset; -1 of a pop."""
    max_messages: int
    is_pop: bool
    peer: str
    """``address:port``."""
    user: str
    """Empty without authentication."""


@dataclass(frozen=True, slots=True)
class ConsumeOutcome:
    """What the client is answered, which may be long after it asked."""

    code: int
    """0: there are messages."""
    remark: str
    records: int
    """Records of the log that it is given. One of them may hold a whole batch."""
    size_bytes: int
    """The size of these records."""


@runtime_checkable
class ConsumeHook(Protocol):
    """Sees what consumers fetch: requests 11, 361 and 200050 (ConsumeMessageHook)."""

    def before_consume(self, attempt: ConsumeAttempt, /) -> None:
        """Called before messages are looked for. RefusedByExtension refuses the request; any other error is
        ignored."""

    def after_consume(self, attempt: ConsumeAttempt, outcome: ConsumeOutcome, /) -> None:
        """Called when the answer is sent; not when the client has gone. An error is ignored."""


# --- transactions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A half message."""

    topic: str
    """Where the message goes when it is committed."""
    group: str
    """The producer group."""
    transaction_id: str
    properties: Mapping[str, str]
    body: bytes
    """As it is stored; of a batch, the messages of the batch."""
    born_timestamp_ms: int
    check_count: int
    """How many checks were sent before."""


class TransactionDecision(enum.Enum):
    """How a listener ends a transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


@runtime_checkable
class TransactionListener(Protocol):
    """Sees what becomes of transactions, and may decide them (AbstractTransactionalMessageCheckListener,
    TransactionalMessageService). A broker may have several; all of them are called."""

    def on_check(self, transaction: OpenTransaction, /) -> bool | TransactionDecision:
        """Called when it is time to ask a producer about a transaction (resolveHalfMsg). A decision ends the
        transaction, as a producer's would; the first listener that has one decides. False: nobody is asked, because
        the listener sees to it that somebody ends the transaction. The check counts all the same. An error is
        ignored: the producer is asked. It is called again when the disk did not take the outcome."""
        return True

    def on_end(self, transaction: OpenTransaction, is_committed: bool, /) -> None:
        """Called when the decision of a producer or listener has been carried out in memory, before it is answered. An
        error is ignored."""

    def on_discard(self, transaction: OpenTransaction, /) -> None:
        """Called when a transaction is given up and its message is moved to TRANS_CHECK_MAX_TIME_TOPIC
        (resolveDiscardMsg). An error is ignored."""


# --- the message store -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrival:
    """A queue has grown."""

    topic: str
    queue_id: int
    end_offset: int
    """The queue offset behind the last message that consumers may read."""


ReadMessages = Callable[[str, int, int, int], Sequence[MessageExt]]
"""Reads up to so many messages of (topic, queue id) from a queue offset on: at most 32, and 1 MiB. Raises what the
store raises: OSError, or NotNow for messages that only an archive has."""


@runtime_checkable
class StoreObserver(Protocol):
    """Sees what the message store makes visible to consumers (MessageArrivingListener, CommitLogDispatcher): messages
    of clients, and those of the broker itself. To refuse messages of clients, be a SendHook."""

    def arrived(self, arrivals: Sequence[Arrival], read: ReadMessages, /) -> None:
        """Called once for all queues that have grown in a turn. Some queues may be named again without having grown.
        ``read`` works as long as the call lasts. An error is ignored: nothing is told twice."""


# --- requests --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A request of a client, a tool or a broker, after it was authenticated and authorised."""

    code: int
    fields: Mapping[str, str]
    """``extFields`` of the header."""
    body_bytes: int
    is_oneway: bool
    peer: str
    """``address:port``."""
    user: str
    """Empty without authentication."""


@dataclass(frozen=True, slots=True)
class RpcResponse:
    code: int
    remark: str
    fields: Mapping[str, str]
    body_bytes: int


@runtime_checkable
class RpcHook(Protocol):
    """Sees every request that a broker or a name server has a handler for (RPCHook)."""

    def before_request(self, request: RpcRequest, body: bytes | memoryview, /) -> None:
        """RefusedByExtension refuses the request. So does any other error, with SYSTEM_ERROR. ``body`` must not be
        kept."""

    def after_response(self, request: RpcRequest, response: RpcResponse, /) -> None:
        """Called when the answer is sent, which may be long after the request; not for one-way requests, nor when the
        client has gone. An error is ignored."""


# --- authentication --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PresentedCredentials:
    """What a request says of who sent it (DefaultAuthenticationContext). Nothing of it is proven."""

    access_key: str
    signature: str
    content: bytes
    """The values of the header's fields, but for the signature. A client signs this, and then the body."""
    body: bytes | memoryview
    """Must not be kept."""
    fields: Mapping[str, str]
    code: int
    peer: str
    """``address:port``."""
    certificate_name: str
    """The common name of the client certificate that the connection has shown and that was verified; empty: none."""


@runtime_checkable
class AuthenticationProvider(Protocol):
    """Says who sent a request (AuthenticationProvider). What this user may do is up to the policies of the server."""

    def authenticate(self, credentials: PresentedCredentials, /) -> str | None:
        """The name of a user of the server. None: the signature decides, as without a provider. RefusedByExtension
        refuses the request with its remark, and counts as a failed attempt of the address. Any other error refuses
        the request, too."""
        return None
