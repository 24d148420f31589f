"""One user holds no more than a share: ordered pops, recalls, and requests of the broker to clients."""

from __future__ import annotations

import json
from pathlib import Path

from mqspark.broker.state.calls import MAX_CALLS
from mqspark.message import encode_recall_handle
from mqspark.protocol.codes import RequestCode as R
from mqspark.protocol.command import Command
from tests.security.tables.test_shares import BUSY, greedy, is_named, until_refused
from tests.unit.auth_kit import SignedPeer
from tests.unit.broker_kit import send_ext
from tests.unit.pop_kit import pop_ext


def test_ordered_pops(tmp_path: Path) -> None:
    """The queues that a group blocks until it acknowledges."""
    with greedy(tmp_path, {}, max_pop_table_bytes=2_000_000) as greed:
        for queue_id in range(8):
            assert greed.root.ask(R.SEND_MESSAGE_V2, send_ext("T", queue_id), b"x").code == 0

        def popped(who: SignedPeer, number: int) -> Command:
            group, queue_id = f"G{number // 8}", str(number % 8)
            return who.ask(R.POP_MESSAGE, pop_ext(greed.bench, "T", group, queueId=queue_id, order="true"))

        count, refusal = until_refused(lambda number: popped(greed.mallory, number))
        assert 0 < count < 16
        assert is_named(refusal, BUSY, "maxTableSharePerUser", "popOrder"), refusal.remark
        assert popped(greed.bob, 80).code == 0
        held, _ = greed.shares("popOrder").held("mallory")
        assert held == count


def test_recalls(tmp_path: Path) -> None:
    """A recall waits like the message that it names, which need not be there."""
    with greedy(tmp_path, {}, recall_message_enable=True) as greed:

        def recalled(who: SignedPeer, number: int) -> Command:
            handle = encode_recall_handle("T", "b-a", greed.bench.clock.now_ms() + 60_000, f"id{number}")
            return who.ask(R.RECALL_MESSAGE, {"producerGroup": "PG", "topic": "T", "recallHandle": handle})

        count, refusal = until_refused(lambda number: recalled(greed.mallory, number))
        assert count == 4
        assert "maxDelayedMessagesPerUser" in (refusal.remark or "")
        assert recalled(greed.bob, 0).code == 0


def test_calls_of_clients(tmp_path: Path) -> None:
    """Replies to a client that does not answer: others wait for theirs."""
    with greedy(tmp_path, {}) as greed:
        for who, client in ((greed.mallory, "m"), (greed.bob, "b")):
            beat = {"clientID": client, "producerDataSet": [{"groupName": f"P{client}"}]}
            assert who.ask(R.HEART_BEAT, {}, json.dumps(beat).encode()).code == 0

        def reply(who: SignedPeer, client: str) -> list[Command]:
            """The answers, of which there is none as long as the client gives none."""
            properties = f"REPLY_TO_CLIENT\x01{client}\x02CORRELATION_ID\x01c\x02"
            who.peer.give(
                R.SEND_REPLY_MESSAGE_V2, who.signer.signed(send_ext(properties=properties), b"x"), b"x"
            )
            who.peer.core.turn()
            return [each for each in who.peer.heard() if each.is_response]

        count = 0
        while not (refused := reply(greed.mallory, "m")):
            count += 1
        assert count == MAX_CALLS // 100
        assert is_named(refused[0], BUSY, "maxTableSharePerUser", "clientCalls"), refused[0].remark
        assert reply(greed.bob, "b") == []
        greed.bench.run_for(10_000, step_ms=1_000)
        greed.mallory.peer.heard()
        assert greed.shares("clientCalls").held("mallory") == (0, 0)
        assert reply(greed.mallory, "m") == []
