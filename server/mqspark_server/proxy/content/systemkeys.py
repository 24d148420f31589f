"""Keys of properties that are not the program's own: a client may not set them as such, and does not get them as such
(MessageConst.STRING_HASH_SET, and some that RocketMQ's proxy lets through)."""

from __future__ import annotations

from mqspark import message as properties
from mqspark.broker.transaction.halfmessages import IMMUNITY_SECONDS

BORN_HOST = properties.BORN_HOST
TRACE_CONTEXT = "TRACE_CONTEXT"


SYSTEM_KEYS = properties.SET_BY_BROKERS | frozenset(
    {
        properties.SHARDING_KEY,
        properties.MULTI_DISPATCH,
        TRACE_CONTEXT,
        IMMUNITY_SECONDS,
        properties.KEYS,
        properties.TAGS,
        properties.INSTANCE_ID,
        properties.LITE_TOPIC,
        properties.PRIORITY,
        properties.TIMER_DEL_UNIQKEY,
        properties.MESSAGE_TYPE,
        properties.CORRELATION_ID,
        properties.REPLY_TO_CLIENT,
        properties.TTL,
        properties.PUSH_REPLY_TIME,
        properties.ARRIVE_TIME,
        BORN_HOST,
        "BUYER_ID",
        "CORRECTION_FLAG",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "MQ2_FLAG",
        "POP_CK_OFFSET",
        "TIMER_DELAY_LEVEL",
        "TRANSFER_FLAG",
    }
)
