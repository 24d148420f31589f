"""The extensions shown in docs/extensions.md, which the tests load."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mqspark.extensions import (
    Arrival,
    AuthenticationProvider,
    ConsumeAttempt,
    ConsumeHook,
    ConsumeOutcome,
    OpenTransaction,
    PresentedCredentials,
    ReadMessages,
    RefusedByExtension,
    RpcHook,
    RpcRequest,
    RpcResponse,
    SendAttempt,
    SendHook,
    SendOutcome,
    StoreObserver,
    TransactionDecision,
    TransactionListener,
)


def install_examples(directory: Path, more: str = "") -> None:
    """Install the examples as a package into a directory, which must be on the path. ``more``: further entry points."""
    info = directory / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[mqspark.extensions]\nkeys-required = {__name__}:KeysRequired\ndeliveries = {__name__}:Deliveries\n"
        f"last-body = {__name__}:LastBody\nno-deletions = {__name__}:NoDeletions\ntokens = {__name__}:Tokens\n{more}"
    )


class KeysRequired(SendHook):
    """Orders need a key."""

    def __init__(self) -> None:
        self.stored: list[str] = []

    def before_send(self, attempt: SendAttempt, body: bytes | memoryview) -> None:
        if attempt.topic.startswith("Orders") and not attempt.properties.get("KEYS"):
            raise RefusedByExtension(f"a message of {attempt.topic} needs a key", 13)

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        if outcome.code == 0:
            self.stored.append(f"{attempt.topic}/{outcome.queue_id}/{outcome.queue_offset}")


class Deliveries(ConsumeHook):
    """How many records each group was given; the group Frozen gets none."""

    def __init__(self) -> None:
        self.records: Counter[str] = Counter()

    def before_consume(self, attempt: ConsumeAttempt) -> None:
        if attempt.group == "Frozen":
            raise RefusedByExtension("the group is frozen")

    def after_consume(self, attempt: ConsumeAttempt, outcome: ConsumeOutcome) -> None:
        self.records[attempt.group] += outcome.records


class Undecided(TransactionListener):
    """Asks nobody about transactions of the group Payments, decides those of Stock, keeps what was given up."""

    def __init__(self) -> None:
        self.due: list[str] = []
        self.ended: list[tuple[str, bool]] = []
        self.given_up: list[bytes] = []

    def on_check(self, transaction: OpenTransaction) -> bool | TransactionDecision:
        self.due.append(transaction.transaction_id)
        if transaction.group == "Stock":
            in_stock = transaction.properties.get("left", "0") != "0"
            return TransactionDecision.COMMIT if in_stock else TransactionDecision.ROLLBACK
        return transaction.group != "Payments"

    def on_end(self, transaction: OpenTransaction, is_committed: bool) -> None:
        self.ended.append((transaction.transaction_id, is_committed))

    def on_discard(self, transaction: OpenTransaction) -> None:
        self.given_up.append(transaction.body)


class LastBody(StoreObserver):
    """The last message of each topic."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    def arrived(self, arrivals: Sequence[Arrival], read: ReadMessages) -> None:
        for arrival in arrivals:
            if arrival.topic.startswith("Orders"):
                for message in read(arrival.topic, arrival.queue_id, arrival.end_offset - 1, 1):
                    self.bodies[arrival.topic] = message.body


class NoDeletions(RpcHook):
    """Forbids the deletion of topics, and records the answers that clients got."""

    DELETE_TOPIC_IN_BROKER = 215

    def __init__(self) -> None:
        self.answers: Counter[tuple[int, int]] = Counter()

    def before_request(self, request: RpcRequest, body: bytes | memoryview) -> None:
        if request.code == self.DELETE_TOPIC_IN_BROKER:
            raise RefusedByExtension(f"{request.fields.get('topic')} stays")

    def after_response(self, request: RpcRequest, response: RpcResponse) -> None:
        self.answers[request.code, response.code] += 1


class Tokens(AuthenticationProvider):
    """Clients whose access key is ``token`` give a token in the place of a signature."""

    def __init__(self) -> None:
        self.users = {"s3cret-token-of-anna": "anna"}

    def authenticate(self, credentials: PresentedCredentials) -> str | None:
        if credentials.access_key != "token":
            return None
        for token, user in self.users.items():
            if hmac.compare_digest(token.encode(), credentials.signature.encode()):
                return user
        raise RefusedByExtension("this token is not known")
