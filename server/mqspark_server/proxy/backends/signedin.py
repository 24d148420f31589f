"""A client that has proved who it is, and what it may do: the same in a broker's process and before a cluster."""

from __future__ import annotations

from mqspark.auth.gate import Gate
from mqspark.auth.policies import Action, Kind
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.session import Session
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import Proof
from mqspark_server.proxy.grpcstatus import GrpcRefusal

_USES = frozenset({Action.PUB, Action.SUB})
_WRITES = frozenset({Action.PUB})
_CHANGES = frozenset({Action.UPDATE})


def sign_in(gate: Gate, session: Session, proof: Proof | None, address: str) -> None:
    """Raises GrpcRefusal unless the proof holds."""
    if proof is None:
        raise GrpcRefusal(pb.UNAUTHORIZED, "username cannot be null.")
    try:
        gate.sign_in(session, *proof, address)
    except Refusal as refusal:
        raise GrpcRefusal(pb.UNAUTHORIZED, refusal.remark) from None


def check_seeing(gate: Gate, session: Session, topic: str) -> None:
    """Raises GrpcRefusal when the client may neither write to the topic nor read it."""
    _check(gate, session, Kind.TOPIC, topic, _USES, "QueryRoute")


def check_writing(gate: Gate, session: Session, topic: str) -> None:
    """Raises GrpcRefusal when the client may not write to the topic."""
    _check(gate, session, Kind.TOPIC, topic, _WRITES, "Telemetry")


def check_changing(gate: Gate, session: Session) -> None:
    """Raises GrpcRefusal when the client may not change the cluster."""
    _check(gate, session, Kind.CLUSTER, "", _CHANGES, "ChangeLogLevel")


def _check(
    gate: Gate, session: Session, kind: Kind, name: str, actions: frozenset[Action], request: str
) -> None:
    try:
        gate.authorize(session, kind, name, actions, request)
    except Refusal as refusal:
        raise GrpcRefusal(pb.FORBIDDEN, refusal.remark) from None
