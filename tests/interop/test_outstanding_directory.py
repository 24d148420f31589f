"""All that waits in a directory while it moves from a real broker to ours and back: delayed and timed messages, half
messages, messages that POP consumers hold. Each is finished once, by whoever has the directory when its time comes."""

import itertools
import signal
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mqspark.message import MessageExt
from mqspark.protocol.receipts import Receipt
from mqspark.record.record import decode_records
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker
from tests.interop.test_pop import MOVING, Hands, send_raw
from tests.interop.topics import dispatched
from tests.support.clusters import Cluster, mqspark_broker
from tests.support.processes import free_port
from tests.support.remoting import GET_MAX_OFFSET, RawConnection, Reply
from tests.support.waiting import eventually

SETTINGS = MOVING | {
    "messageDelayLevel": "1s 2s 60s",
    "transactionCheckInterval": 3_600_000,
    "transactionOpBatchInterval": 100,
}
DELAYED, PREPARED = "OutDelayed", "OutPrepared"
HELD_MS = 90_000
PATIENCE_S = 240
END_TRANSACTION, COMMIT, ROLL_BACK = 37, 8, 12


def send(
    connection: RawConnection, topic: str, body: bytes, properties: dict[str, str], flag: int = 0
) -> Reply:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return connection.send(topic, body, 0, text, a="tx", d=1, f=flag, g=int(time.time() * 1000))


def messages(cluster: Cluster, topic: str) -> list[MessageExt]:
    found: list[MessageExt] = []
    dispatched(cluster)
    with RawConnection(cluster.broker) as connection:
        end = int(connection.request(GET_MAX_OFFSET, topic=topic, queueId=0).ext["offset"])
        offset = 0
        while offset < end:
            reply = connection.pull(topic, 0, offset)
            assert reply.code == 0, reply
            found += decode_records(reply.body)
            offset = int(reply.ext["nextBeginOffset"])
    return found


class Outstanding:
    """What was sent and not finished yet."""

    def __init__(self) -> None:
        self._names = itertools.count()
        self.due_ms: dict[bytes, int] = {}
        self.undecided: list[tuple[bytes, Reply]] = []
        self.committed: set[bytes] = set()
        self.held: list[tuple[bytes, str, Receipt]] = []
        self.popped: set[bytes] = set()
        """Sent for POP consumers."""
        self.done: set[bytes] = set()

    def make(self, cluster: Cluster, connection: RawConnection, hands: Hands) -> None:
        """Some of each."""
        for delay_ms, properties in (
            (60_000, {"DELAY": "3"}),
            (60_000, {"TIMER_DELAY_MS": "60000"}),
            (75_000, {"TIMER_DELAY_SEC": "75"}),
        ):
            body = b"later %d" % next(self._names)
            self.due_ms[body] = time.time_ns() // 1_000_000 + delay_ms
            send(connection, DELAYED, body, properties)
        for _ in range(5):
            body = b"half %d" % next(self._names)
            key = f"unique-{body.decode()}"
            prepared = {"TRAN_MSG": "true", "PGROUP": "tx", "UNIQ_KEY": key}
            self.undecided.append((body, send(connection, PREPARED, body, prepared, flag=4)))
        sent = {b"pop %d" % next(self._names) for _ in range(6)}
        send_raw(connection, sent)
        self.popped |= sent
        dispatched(cluster)
        popped = eventually(lambda: hands.pop(4, HELD_MS), "something to pop")
        (body, (topic, receipt)), *rest = popped.items()
        hands.acknowledge(topic, receipt)
        self.done.add(body)
        self.held += [(body, topic, receipt) for body, (topic, receipt) in rest]

    def finish_some(self, connection: RawConnection, hands: Hands) -> None:
        """The oldest, which another broker has handed out or prepared."""
        for how in (COMMIT, ROLL_BACK):
            body, half = self.undecided.pop(0)
            self._end(connection, half, how)
            if how == COMMIT:
                self.committed.add(body)
        body, topic, receipt = self.held.pop(0)
        hands.acknowledge(topic, receipt)
        if time.time_ns() // 1_000_000 < receipt.visible_again_ms - 10_000:
            self.done.add(body)  # else it may have become visible again meanwhile

    def _end(self, connection: RawConnection, half: Reply, how: int) -> None:
        reply = connection.request(
            END_TRANSACTION,
            producerGroup="tx",
            tranStateTableOffset=half.ext["queueOffset"],
            commitLogOffset=int(half.ext["msgId"][16:], 16),
            commitOrRollback=how,
            fromTransactionCheck=False,
            msgId=half.ext["transactionId"],
            transactionId=half.ext["transactionId"],
            topic=PREPARED,
        )
        assert reply.code == 0, reply


@pytest.mark.slow("a real broker starts twice")
def test_what_waits_is_finished_once(newest_jars: Jars, tmp_path: Path) -> None:
    folder, namesrv = tmp_path / "broker", f"127.0.0.1:{free_port()}"
    work = Outstanding()

    def broker(turn: int) -> AbstractContextManager[Cluster]:
        if turn == 1:
            return mqspark_broker(folder, namesrv, SETTINGS, stop_signal=signal.SIGTERM)
        return rocketmq_broker(
            newest_jars, folder, namesrv, settings=SETTINGS, registered=False, stop_signal=signal.SIGTERM
        )

    for turn in range(2):
        with broker(turn) as cluster, RawConnection(cluster.broker) as connection:
            hands = Hands(connection)
            if turn:
                work.finish_some(connection, hands)
            work.make(cluster, connection, hands)
            time.sleep(2)  # a real broker saves once a second
    with broker(2) as cluster, RawConnection(cluster.broker) as connection:
        hands = Hands(connection)
        for _ in range(3):  # those that both have left
            work.finish_some(connection, hands)
        assert work.held
        assert work.undecided
        got = hands.pop_all(len(work.popped - work.done), PATIENCE_S)
        eventually(
            lambda: {one.body for one in messages(cluster, DELAYED)} >= work.due_ms.keys(),
            "all that was delayed",
            PATIENCE_S,
        )
        time.sleep(3)  # for what would come twice
        delayed, prepared = messages(cluster, DELAYED), messages(cluster, PREPARED)
        assert hands.pop(32) == {}
    assert got == work.popped - work.done
    assert Counter(one.body for one in delayed) == Counter(work.due_ms.keys())
    for one in delayed:
        assert one.store_timestamp_ms >= work.due_ms[one.body], one.body
    assert Counter(one.body for one in prepared) == Counter(work.committed)
