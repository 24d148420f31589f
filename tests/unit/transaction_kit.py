"""A broker whose transactions a test can end, and look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqspark.broker.transaction.halfmessages import op_offsets
from mqspark.message import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, MessageExt, encode_stored_properties
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import HeartbeatData, ProducerData
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import CheckTransactionStateRequestHeader
from mqspark.record.record import decode_records
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "CID_RMQ_SYS_TRANS"


class Kit(Bench):
    """A broker and one producer of the group PG."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.alive: list[tuple[str, str, Peer]] = []
        self.producer = self.live_producer()

    def live_producer(self, client_id: str = "c1", group: str = "PG") -> Peer:
        peer = self.peer()
        peer.ask(
            RequestCode.HEART_BEAT,
            body=encode_body(HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group)])),
        )
        self.alive.append((group, client_id, peer))
        return peer

    def beat(self) -> None:
        """Everybody's heartbeat."""
        for group, client_id, peer in self.alive:
            if peer.session.open:
                self.broker.state.clients.produce(group, client_id, peer.session, 0, 479)

    def prepare(self, unique_id: str = "U1", body: bytes = b"hello", **more: Any) -> dict[str, str]:
        """The END_TRANSACTION header that a client makes of the answer, without the decision."""
        properties = {
            "TRAN_MSG": "true",
            "PGROUP": "PG",
            "UNIQ_KEY": unique_id,
            "TAGS": "A",
            **more.pop("properties", {}),
        }
        ext = send_ext(
            properties=encode_stored_properties(properties).decode(),
            f="4",
            g=str(self.clock.now_ms()),
            **more,
        )
        answer = self.producer.ask(SEND, ext, body)
        assert answer.code == 0, answer.remark
        return self.end_ext(int(answer.ext["msgId"][16:], 16), int(answer.ext["queueOffset"]), unique_id)

    @staticmethod
    def end_ext(position: int, offset: int, unique_id: str) -> dict[str, str]:
        return {
            "producerGroup": "PG",
            "commitLogOffset": str(position),
            "tranStateTableOffset": str(offset),
            "msgId": unique_id,
            "transactionId": unique_id,
            "fromTransactionCheck": "false",
        }

    def end(self, ext: dict[str, str], decision: int, **more: str) -> Command:
        return self.producer.ask(
            RequestCode.END_TRANSACTION, {**ext, "commitOrRollback": str(decision), **more}
        )

    def settle(self) -> None:
        """Everything put is written, synced and told."""
        self.broker.turn()
        self.housekeeping()
        self.flush()

    def run(self, ms: int, step_ms: int = 500) -> None:
        """Let time pass."""
        for _ in range(ms // step_ms):
            self.clock.advance(step_ms)
            self.beat()
            while self.broker.tick() == 0:
                self.settle()
            self.settle()

    def checks(self, peer: Peer | None = None) -> list[Command]:
        return [
            command
            for command in (peer or self.producer).heard()
            if command.code == RequestCode.CHECK_TRANSACTION_STATE and not command.is_response
        ]

    def answer_check(self, check: Command, decision: int) -> Command:
        header = check.header(CheckTransactionStateRequestHeader)
        ext = self.end_ext(header.commit_log_offset, header.tran_state_table_offset, header.msg_id or "")
        return self.end(ext, decision, fromTransactionCheck="true")

    def messages(self, topic: str = "T", queue_id: int = 0) -> list[MessageExt]:
        result = self.store.reads.get(
            topic, queue_id, max(0, self.store.offsets.min_offset(topic, queue_id)), 1000, 1 << 24
        )
        return decode_records(b"".join(result.buffers))

    def ops(self) -> list[int]:
        return [offset for op in self.messages(TRANS_OP_HALF_TOPIC) for offset in op_offsets(op.body)]

    def saved(self, topic: str = TRANS_HALF_TOPIC) -> int:
        return self.broker.state.offsets.query(GROUP, topic, 0)

    def crash(self) -> None:
        """The process is killed: what was written stays, what was in memory is gone; another starts."""
        self.store.abandon()
        self.open()
        self.producer = self.live_producer()

    def reopen(self) -> None:
        super().reopen()
        self.producer = self.live_producer()
