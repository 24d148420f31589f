"""The links of a span about a batch say of each message what the conventions for messaging ask of one."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mqspark import OpenTelemetry
from mqspark.client.hooks.hooks import ConsumeContext
from mqspark.message import MessageExt
from mqspark.record.record import decode_record, encode_record


def message(number: int, properties: str) -> MessageExt:
    record = encode_record(
        topic="Orders",
        body=b"x" * number,
        properties=f"traceparent\x0100-{number:032x}-{number:016x}-01\x02{properties}".encode(),
        queue_id=number,
        queue_offset=5,
        physical_offset=0,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=0,
        born_host=b"\x7f\0\0\x01\0\0\0\0",
        store_timestamp_ms=0,
        store_host=b"\x7f\0\0\x01\0\0\0\0",
        reconsume_times=0,
        prepared_transaction_offset=0,
    )
    return decode_record(record)


def test_each_link_has_the_attributes_of_its_message() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    interceptor = OpenTelemetry(provider)
    messages = [
        message(1, "UNIQ_KEY\x01ID1\x02TAGS\x01paid\x02KEYS\x01a b\x02"),
        message(2, "UNIQ_KEY\x01ID2\x02"),
    ]
    context = ConsumeContext("billing", messages)
    interceptor.before_consume(context)
    interceptor.after_consume(context)
    (span,) = exporter.get_finished_spans()
    assert [link.context.trace_id for link in span.links] == [1, 2]
    assert [dict(link.attributes or {}) for link in span.links] == [
        {
            "messaging.message.id": "ID1",
            "messaging.message.body.size": 1,
            "messaging.rocketmq.message.tag": "paid",
            "messaging.rocketmq.message.keys": ("a", "b"),
            "messaging.destination.partition.id": "1",
        },
        {
            "messaging.message.id": "ID2",
            "messaging.message.body.size": 2,
            "messaging.destination.partition.id": "2",
        },
    ]
    assert "messaging.message.id" not in dict(span.attributes or {})
