"""What clients report about themselves, their locks, and POP's assignments and acknowledgements."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import field

from mqspark.message import java_hash, split_tags
from mqspark.protocol.bodies.body import Body, Queue
from mqspark.protocol.codes import Language
from mqspark.protocol.headers.header import I32, I64

# --- clients ----------------------------------------------------------------------------------------------


class ConsumeType(StrEnum):
    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Who gets a message: every member of the group (BROADCASTING), or one of them (CLUSTERING)."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"
    LITE_SELECTIVE = "LITE_SELECTIVE"
    """Clients that read lite topics choose by name what they get."""


class ConsumeFromWhere(StrEnum):
    """Where a group begins in a queue in which it has committed nothing. RocketMQ treats the three middle names, which
    are deprecated, as CONSUME_FROM_LAST_OFFSET."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body):
    topic: str = ""
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[I32] = []
    sub_version: I64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


def build_subscription(
    topic: str, expression: str | None, expression_type: str | None = "TAG", version: int = 0
) -> SubscriptionData:
    """The subscription of a client. ``version``: time of subscribing in ms (FilterAPI)."""
    if expression_type and expression_type != "TAG":
        return SubscriptionData(
            topic=topic, sub_string=expression or "", sub_version=version, expression_type=expression_type
        )
    tags = split_tags(expression)
    return SubscriptionData(
        topic=topic,
        sub_string=expression or "*",
        tags_set=tags,
        code_set=sorted({java_hash(tag) for tag in tags}),
        sub_version=version,
    )


class ProducerData(Body):
    group_name: str = ""


class ConsumerData(Body):
    group_name: str = ""
    consume_type: str = ConsumeType.CONSUME_PASSIVELY
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


_ORDINALS: dict[str, type[StrEnum]] = {
    "consumeType": ConsumeType,
    "messageModel": MessageModel,
    "consumeFromWhere": ConsumeFromWhere,
}


class HeartbeatData(Body):
    client_id: str = field(default="", name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: I32 = 0
    without_sub: bool = False

    @staticmethod
    def adapt(document: Any) -> None:
        """Convert the enumerations of the C++ client, which sends ordinals. fastjson accepts these."""
        consumers = document.get("consumerDataSet") if isinstance(document, dict) else None
        for consumer in consumers if isinstance(consumers, list) else ():
            for name, enumeration in _ORDINALS.items() if isinstance(consumer, dict) else ():
                ordinal = consumer.get(name)
                if isinstance(ordinal, int) and 0 <= ordinal < len(enumeration):
                    consumer[name] = str(list(enumeration)[ordinal])


class CheckClientRequestBody(Body):
    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None


class GetConsumerListByGroupResponseBody(Body):
    consumer_id_list: list[str] = []


class LockBatchRequestBody(Body):
    consumer_group: str | None = None
    client_id: str | None = None
    mq_set: list[Queue] = []
    only_this_broker: bool = False


class UnlockBatchRequestBody(LockBatchRequestBody):
    pass


class LockBatchResponseBody(Body):
    lock_ok_mq_set: list[Queue] = field(default_factory=list, name="lockOKMQSet")


class ConnectionInfo(Body):
    """One client of a group (Connection)."""

    client_id: str = ""
    client_addr: str = ""
    language: str = Language.JAVA.name
    version: I32 = 0


class ConsumerConnection(Body):
    connection_set: list[ConnectionInfo] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProducerConnection(Body):
    connection_set: list[ConnectionInfo] = []


class ProducerInfo(Body):
    client_id: str = ""
    remote_ip: str = field(default="", name="remoteIP")
    language: str = Language.JAVA.name
    version: I32 = 0
    last_update_timestamp: I64 = 0


class ProducerTableInfo(Body):
    data: dict[str, list[ProducerInfo]] = {}


# --- POP and assignment -----------------------------------------------------------------------------------


class QueryAssignmentRequestBody(Body):
    topic: str | None = None
    consumer_group: str | None = None
    client_id: str | None = None
    strategy_name: str | None = None
    message_model: str | None = None


class MessageQueueAssignment(Body):
    message_queue: Queue | None = None
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(Body):
    message_queue_assignments: list[MessageQueueAssignment] | None = None


class SetMessageRequestModeRequestBody(Body):
    topic: str | None = None
    consumer_group: str | None = None
    mode: str = "PULL"
    pop_share_queue_num: I32 = 0


class MessageRequestModeSerializeWrapper(Body):
    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}
    """Topic → group → mode."""


class BatchAck(Body):
    consumer_group: str = field(default="", name="c")
    topic: str = field(default="", name="t")
    retry: str = field(default="", name="r")
    start_offset: I64 = field(default=0, name="so")
    queue_id: I32 = field(default=0, name="q")
    revive_queue_id: I32 = field(default=0, name="rq")
    pop_time: I64 = field(default=0, name="pt")
    invisible_time: I64 = field(default=0, name="it")
    bit_set: bytes = field(default=b"", name="b")
    """Bit i, counted from the lowest of the first byte, acknowledges ``start_offset + i``."""


class BatchAckMessageRequestBody(Body):
    broker_name: str | None = None
    acks: list[BatchAck] | None = None
