"""Transactions as a whole: whatever producers say and how often, whenever the broker dies, a committed message is
visible once and another never."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from mqspark.message import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, Message
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import CheckTransactionStateRequestHeader
from mqspark.record.batchitems import encode_batch
from tests.support.invariants import validate
from tests.unit.broker.transaction.test_broker_transactions import COMMIT, ROLLBACK, Kit
from tests.unit.broker_kit import SEND, send_ext

OP_INTERVAL_MS = 3_000


@dataclass
class Transaction:
    unique_id: str
    end_ext: dict[str, str]
    messages: int = 1
    decision: int = 0
    decided_ms: int = 0

    def __repr__(self) -> str:
        return f"{self.unique_id}({self.decision})"


class Transactions(RuleBasedStateMachine):
    transactions = Bundle("transactions")
    checks = Bundle("checks")

    @initialize(sync=st.booleans())
    def start(self, sync: bool) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.kit = Kit(self.folder, sync=sync, transaction_check_max=3)
        self.kit.producer.ask(SEND, send_ext(), b"so that the topic exists")
        self.all: dict[str, Transaction] = {}
        self.given_up: set[str] = set()
        self.resumed: Counter[str] = Counter()
        """How many parked messages each transaction had when it was resumed last."""

    def teardown(self) -> None:
        if not hasattr(self, "kit"):
            return
        self.kit.run(35_000, 5_000)
        self.agree()
        self.kit.close()
        shutil.rmtree(self.folder)

    # --- what is and what should be ---

    def visible(self) -> Counter[str]:
        """Copies of each transaction that consumers see, or will see after a delay. (A crash may repeat the delivery
        of a delayed message, transactional or not: what counts is how often it was stored for delay.)"""
        committed = self.kit.messages("T", 0) + self.kit.messages("T", 1)
        committed = [message for message in committed if "DELAY" not in message.properties]
        committed += self.kit.messages("SCHEDULE_TOPIC_XXXX")
        return Counter(
            message.properties["UNIQ_KEY"].partition(".")[0]
            for message in committed
            if "local" in message.properties
        )

    def wanted(self) -> Counter[str]:
        return Counter({one.unique_id: one.messages for one in self.all.values() if one.decision == COMMIT})

    @invariant()
    def the_broker_agrees_with_itself(self) -> None:
        if hasattr(self, "kit"):
            validate(self.kit.broker)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "kit"):
            return
        assert self.visible() == self.wanted()
        parked = Counter(one.properties["UNIQ_KEY"] for one in self.kit.messages(TRANS_CHECK_MAX_TIME_TOPIC))
        self.given_up = set(parked - self.resumed)

    # --- what happens ---

    @rule(
        target=transactions,
        queue_id=st.sampled_from(["0", "1"]),
        more=st.sampled_from([{}, {}, {"DELAY": "1"}, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "40"}]),
    )
    def prepare(self, queue_id: str, more: dict[str, str]) -> Transaction:
        unique_id = f"U{len(self.all)}"
        ext = self.kit.prepare(unique_id, e=queue_id, properties={"local": "1", **more})
        one = self.all[unique_id] = Transaction(unique_id, ext)
        return one

    @rule(target=transactions, queue_id=st.sampled_from(["0", "1"]), messages=st.integers(1, 4))
    def prepare_batch(self, queue_id: str, messages: int) -> Transaction:
        unique_id = f"U{len(self.all)}"
        body = encode_batch(
            [
                Message.of("T", "of a batch", properties={"local": "1", "UNIQ_KEY": f"{unique_id}.{number}"})
                for number in range(messages)
            ]
        )
        ext = self.kit.prepare(
            unique_id, body=body, e=queue_id, properties={"MQSPARK_BATCH": f"{messages}:0"}
        )
        one = self.all[unique_id] = Transaction(unique_id, ext, messages)
        return one

    def decided(self, one: Transaction, decision: int, answer: Command) -> None:
        """Note an END_TRANSACTION that was answered with success: the first one counts."""
        if answer.code != 0 or one.decision:
            return
        if one.unique_id in self.given_up:
            # Nothing or, when a crash has made the broker forget that it gave up, what was asked for.
            if one.unique_id in self.visible():
                one.decision = COMMIT
            return
        one.decision, one.decided_ms = decision, self.kit.clock.mono_ms

    @rule(one=transactions, decision=st.sampled_from([COMMIT, ROLLBACK]), times=st.integers(1, 2))
    def end(self, one: Transaction, decision: int, times: int) -> None:
        for _ in range(times):
            answer = self.kit.end(one.end_ext, decision)
            assert answer.code in (0, 604)
            self.decided(one, decision, answer)

    @rule(
        one=transactions, change=st.sampled_from(["producerGroup", "tranStateTableOffset", "commitLogOffset"])
    )
    def end_of_another(self, one: Transaction, change: str) -> None:
        answer = self.kit.end(one.end_ext, COMMIT, **{change: "987654"})
        assert answer.code in (1, 604)

    @rule(one=transactions)
    def end_that_is_lost(self, one: Transaction) -> None:
        """The broker dies before it has written what it was told."""
        self.kit.producer.give(RequestCode.END_TRANSACTION, {**one.end_ext, "commitOrRollback": str(COMMIT)})
        self.die()

    @rule(target=checks, ms=st.sampled_from([1_000, 4_000, 31_000, 31_000]))
    def pass_time(self, ms: int) -> object:
        self.kit.run(ms, max(1_000, ms // 8))
        return multiple(*self.kit.checks())

    @rule(check=consumes(checks), decision=st.sampled_from([0, COMMIT, COMMIT, ROLLBACK]))
    def answer_check(self, check: Command, decision: int) -> None:
        header = check.header(CheckTransactionStateRequestHeader)
        one = self.all[header.msg_id or ""]
        if decision == 0:
            self.kit.producer.give(
                RequestCode.END_TRANSACTION,
                {**one.end_ext, "commitOrRollback": "0", "fromTransactionCheck": "true"},
            )
        else:
            self.decided(one, decision, self.kit.answer_check(check, decision))

    @rule(number=st.integers(0, 10))
    def resume(self, number: int) -> None:
        """What was given up is checked anew."""
        parked = self.kit.messages(TRANS_CHECK_MAX_TIME_TOPIC)
        open_ones = [one for one in parked if not self.all[one.properties["UNIQ_KEY"]].decision]
        if not open_ones:
            return
        message = open_ones[number % len(open_ones)]
        ext = {"topic": "T", "msgId": message.offset_message_id}
        assert self.kit.producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext).code == 0
        self.kit.settle()
        name = message.properties["UNIQ_KEY"]
        self.resumed[name] = sum(one.properties["UNIQ_KEY"] == name for one in parked)
        self.given_up.discard(name)

    @rule(ms=st.sampled_from([-40_000, -2_000, 3_000, 100_000]))
    def the_clock_is_set(self, ms: int) -> None:
        self.kit.clock.wall_ms += ms

    @rule(one=transactions, kept=st.floats(0, 1))
    def end_in_a_power_cut(self, one: Transaction, kept: float) -> None:
        """A part of what the commit wrote is on the disk; what is there of a batch becomes the whole of it."""
        kit = self.kit
        kit.settle()
        before = kit.store.log.position
        code = kit.end(one.end_ext, COMMIT).code
        after = kit.store.log.position
        kit.store.abandon()
        cut = before + int((after - before) * kept)
        with (self.folder / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(cut)
            log.write(bytes(after - cut))
        shutil.rmtree(self.folder / "consumequeue")
        self.revive()
        kit.run(2 * OP_INTERVAL_MS, 1_000)
        if code == 0 and not one.decision and one.unique_id in self.visible():
            one.decision, one.decided_ms = COMMIT, kit.clock.mono_ms

    @rule()
    def die(self) -> None:
        """SIGKILL: what was not written is gone. A rollback is written with the op messages only."""
        self.kit.store.abandon()
        self.revive()

    def revive(self) -> None:
        self.kit.open()
        self.kit.producer = self.kit.live_producer()
        for one in self.all.values():
            if one.decision == ROLLBACK and self.kit.clock.mono_ms - one.decided_ms <= 2 * OP_INTERVAL_MS:
                forgotten = not self.is_noted(one)
                if forgotten:
                    one.decision = 0

    def is_noted(self, one: Transaction) -> bool:
        """Whether an op message names a copy of the transaction."""
        offsets = {
            half.queue_offset
            for half in self.kit.messages(TRANS_HALF_TOPIC)
            if half.properties["UNIQ_KEY"] == one.unique_id
        }
        return not offsets.isdisjoint(self.kit.ops())

    @rule()
    def restart(self) -> None:
        self.kit.reopen()

    @invariant()
    def offsets_are_in_range(self) -> None:
        if hasattr(self, "kit"):
            for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
                assert -1 <= self.kit.saved(topic) <= self.kit.store.offsets.max_offset(topic, 0)


Transactions.TestCase.settings = settings(
    max_examples=10,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTransactions = Transactions.TestCase
