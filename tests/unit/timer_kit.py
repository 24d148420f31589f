"""What the tests of timer messages share."""

from __future__ import annotations

from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

WHEEL = "rmq_sys_wheel_timer"
DAY_MS = 86_400_000


def send(
    bench: Bench, body: bytes = b"x", *, queue_id: int = 0, topic: str = "T", more: str = "", **when: int
) -> Command:
    """``when``: one of the timer properties, in small letters without ``timer_``."""
    ((name, value),) = when.items()
    properties = f"TIMER_{name.upper()}\x01{value}\x02TAGS\x01a\x02{more}"
    answer = bench.peer().ask(SEND, send_ext(topic, queue_id, properties), body)
    assert answer.code == 0, answer.remark
    return answer


def bodies(bench: Bench, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in bench.records("T", queue_id)]


# --- recall ---


def recall(peer: Peer, handle: str, topic: str = "T") -> Command:
    return peer.ask(
        RequestCode.RECALL_MESSAGE, {"producerGroup": "PG", "topic": topic, "recallHandle": handle}
    )
