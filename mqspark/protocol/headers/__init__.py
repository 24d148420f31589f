"""The typed headers of the remoting protocol: the content of ``extFields``, one class for each RocketMQ header class.

Attributes are in snake case, wire names in camel case (``org.apache.rocketmq.remoting.protocol.header``).
Every value is sent as text; absent and None are the same. A field without a default is mandatory.
``SendMessageRequestHeaderV2`` has one-letter wire names but the attribute names of
``SendMessageRequestHeader``, so that a handler takes either.

Offsets, timestamps (ms) and broker ids are I64, the other integers I32. A value out of its range is
malformed.

Must not know frames or commands (``mqspark.protocol.command``).

Facts: docs/rocketmq/protocol.md#values.
"""
