"""Messages of each type over gRPC as the broker stores them, recall, batches, and offsets of queues."""

from __future__ import annotations

import time
from collections.abc import Callable

from mqspark.client.sync import AdminClient
from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.methods.grpcsending import consistent_hash
from tests.support.grpcclients import BareCaller, bare_caller, message, resource, stored_messages


def sent(caller: BareCaller, *messages: pb.Message) -> pb.SendResultEntry:
    answer = caller.SendMessage(pb.SendMessageRequest(messages=messages))
    assert answer.status.code == pb.OK, answer.status
    (entry,) = answer.entries
    return entry


def test_messages_of_one_group_are_in_one_queue(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    topic = topic_of_type("groups", "FIFO", queues=4)
    with bare_caller(broker.grpc_address) as caller:
        for number in range(8):
            sent(caller, message(topic, b"%d" % number, message_group=f"g{number % 2}", message_type=pb.FIFO))
    by_group: dict[str, set[int]] = {}
    for each in stored_messages(broker, topic):
        by_group.setdefault(each.properties["__SHARDINGKEY"], set()).add(each.queue_id)
    assert sorted(by_group) == ["g0", "g1"]
    assert {len(queues) for queues in by_group.values()} == {1}


def test_a_hash_moves_few_groups_when_a_queue_is_added() -> None:
    """The values are those of Guava's own test."""
    golden = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [consistent_hash(value, 100) for value in range(20)] == golden
    assert consistent_hash(10863919174838991, 11) == 6
    moved = [value for value in range(1000) if consistent_hash(value, 8) != consistent_hash(value, 9)]
    assert {consistent_hash(value, 9) for value in moved} == {8}


def test_a_batch_is_of_one_queue_and_has_one_entry(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    topic = topic_of_type("batched")
    batch = [message(topic, b"%d" % number, tag="t") for number in range(3)]
    with bare_caller(broker.grpc_address) as caller:
        entry = sent(caller, *batch)
    assert entry.message_id == ",".join(each.system_properties.message_id for each in batch)
    stored = stored_messages(broker, topic)
    assert [each.body for each in stored] == [b"0", b"1", b"2"]
    assert len({each.queue_id for each in stored}) == 1


def test_a_delayed_message_can_be_recalled(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    topic, other = topic_of_type("later", "DELAY"), topic_of_type("sooner")
    given = message(topic, message_type=pb.DELAY)
    given.system_properties.delivery_timestamp.FromMilliseconds(int(time.time() * 1000) + 3_600_000)
    with bare_caller(broker.grpc_address) as caller:
        entry = sent(caller, given)
        assert entry.recall_handle
        recalled = caller.RecallMessage(
            pb.RecallMessageRequest(topic=resource(topic), recall_handle=entry.recall_handle)
        )
        assert (recalled.status.code, recalled.message_id) == (pb.OK, entry.message_id)
        for name, handle, code in (
            (other, entry.recall_handle, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
            (topic, "no handle", pb.INTERNAL_SERVER_ERROR),
        ):
            request = pb.RecallMessageRequest(topic=resource(name), recall_handle=handle)
            assert caller.RecallMessage(request).status.code == code


def test_priorities_and_traces_are_properties(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    topic = topic_of_type("urgent", "PRIORITY")
    with bare_caller(broker.grpc_address) as caller:
        sent(caller, message(topic, priority=2, message_type=pb.PRIORITY, trace_context="00-1-2-01"))
    (stored,) = stored_messages(broker, topic)
    assert (stored.priority, stored.properties["TRACE_CONTEXT"]) == (2, "00-1-2-01")


def test_a_group_has_offsets_of_queues(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    topic = topic_of_type("counted", queues=1)
    queue = pb.MessageQueue(topic=resource(topic), id=0, broker=pb.Broker(name="dev"))
    group = resource("counting")
    with AdminClient(broker.namesrv) as admin:
        admin.create_group("counting")
    with bare_caller(broker.grpc_address) as caller:
        for _ in range(3):
            sent(caller, message(topic))
        ends = [
            caller.QueryOffset(pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)).offset
            for policy in (pb.BEGINNING, pb.END)
        ]
        assert ends == [0, 3]
        asked = pb.GetOffsetRequest(group=group, message_queue=queue)
        assert caller.GetOffset(asked).status.code == pb.OFFSET_NOT_FOUND
        kept = caller.UpdateOffset(pb.UpdateOffsetRequest(group=group, message_queue=queue, offset=2))
        assert kept.status.code == pb.OK
        assert caller.GetOffset(asked).offset == 2
        pulled = list(caller.PullMessage(pb.PullMessageRequest(group=group, message_queue=queue, offset=1)))
        assert [each.WhichOneof("content") for each in pulled] == ["status", "message", "next_offset"]
        assert (pulled[1].message.body, pulled[2].next_offset) == (b"body", 2)
        wrong = caller.UpdateOffset(pb.UpdateOffsetRequest(group=group, message_queue=queue, offset=-1))
        assert wrong.status.code == pb.ILLEGAL_OFFSET
