"""A trace from producer through broker to listener, by OpenTelemetry's in-memory exporter."""

from __future__ import annotations

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mqspark import Message, MessageExt, OpenTelemetry, Producer, PushConsumer
from mqspark.errors import ConfigError
from mqspark.testing import Broker
from tests.support.waiting import eventually


def test_one_trace_from_send_to_listener() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hook = OpenTelemetry(provider)
    inside: list[int] = []
    failed: list[int] = []

    def listen(message: MessageExt) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)
        if message.body == b"bad" and not failed:
            failed.append(1)
            raise ValueError("not this one")

    def spans(name: str) -> list[ReadableSpan]:
        return [span for span in exporter.get_finished_spans() if span.name == name]

    with Broker() as broker:
        consumer = PushConsumer(
            broker.namesrv,
            group="readers",
            listener=listen,
            consume_from="CONSUME_FROM_FIRST_OFFSET",
            interceptors=[hook],
        )
        consumer.subscribe("Traced")
        with Producer(broker.namesrv, group="writers", interceptors=[hook]) as producer:
            sent = producer.send(Message.of("Traced", "good", keys=["k1", "k2"], tags="t"))
            (send,) = spans("send Traced")
            with consumer:
                (process,) = eventually(lambda: spans("process Traced"))
                producer.send(Message.of("Traced", "bad"))
                eventually(lambda: len(spans("process Traced")) == 2)
                assert producer.send_batch([Message.of("Traced", str(n)) for n in range(3)])
        assert send.kind is SpanKind.PRODUCER
        assert process.kind is SpanKind.CONSUMER
        assert send.context is not None
        assert process.context is not None
        assert process.context.trace_id == send.context.trace_id
        assert process.parent is not None
        assert process.parent.span_id == send.context.span_id
        assert inside[0] == process.context.span_id
        for span, operation in ((send, "send"), (process, "process")):
            attributes = dict(span.attributes or {})
            assert attributes["messaging.system"] == "rocketmq"
            assert attributes["messaging.operation.type"] == operation
            assert attributes["messaging.destination.name"] == "Traced"
            assert attributes["messaging.message.id"] == sent.message_id
            assert attributes["messaging.rocketmq.message.tag"] == "t"
            assert attributes["messaging.rocketmq.message.keys"] == ("k1", "k2")
        assert dict(process.attributes or {})["messaging.consumer.group.name"] == "readers"
        bad = spans("process Traced")[1]
        assert bad.status.status_code is StatusCode.ERROR
        assert dict(bad.attributes or {})["error.type"] == "ValueError"
        assert spans("send Traced")[2].attributes["messaging.batch.message_count"] == 3  # type: ignore[index]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_broker_takes_part_if_it_is_asked(monkeypatch: pytest.MonkeyPatch, flush: str) -> None:
    """From the request to the acknowledgement; only messages that come with a trace."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    get_tracer = trace.get_tracer
    monkeypatch.setattr(trace, "get_tracer", lambda name, **more: get_tracer(name, tracer_provider=provider))
    with Broker(settings={"openTelemetryEnable": True, "flushDiskType": flush}) as broker:
        with Producer(broker.namesrv, group="p", interceptors=[OpenTelemetry()]) as producer:
            producer.send(Message.of("Traced", "x"))
        with Producer(broker.namesrv, group="q") as producer:
            producer.send(Message.of("Plain", "x"))

        def found() -> dict[str, ReadableSpan]:
            return {span.name: span for span in exporter.get_finished_spans()}

        spans = eventually(lambda: len(found()) == 2 and found())
    send, store = spans["send Traced"], spans["store Traced"]
    assert store.kind is SpanKind.SERVER
    assert store.parent is not None
    assert send.context is not None
    assert store.parent.span_id == send.context.span_id
    assert dict(store.attributes or {})["messaging.system"] == "rocketmq"
    assert "messaging.rocketmq.message.physical_offset" in (store.attributes or {})


def test_without_an_sdk_nothing_happens() -> None:
    with Broker() as broker, Producer(broker.namesrv, group="p", interceptors=[OpenTelemetry()]) as producer:
        assert producer.send(Message.of("Plain", "x")).message_id


def test_without_the_api_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"mqspark\[otel\]"):
        OpenTelemetry()
