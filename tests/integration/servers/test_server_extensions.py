"""Extensions in a broker that clients reach over sockets."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from mqspark import ConsumeFromWhere, LitePullConsumer, Message, Producer
from mqspark.errors import BrokerError, ConfigError
from mqspark.testing import Broker
from tests.support.extension_examples import install_examples


def test_extensions_see_what_clients_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_examples(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"extensions": "keys-required,deliveries,no-deletions", "messageStorePlugIn": "last-body"}
    with Broker(settings=settings | {"flushDiskType": "SYNC_FLUSH"}, http=True) as broker:
        extensions = broker.apps[0].extensions
        assert extensions is not None
        with Producer(broker.namesrv, group="p") as producer:
            with pytest.raises(BrokerError, match="a message of Orders needs a key"):
                producer.send(Message.of("Orders", b"x"))
            sent = [producer.send(Message.of("Orders", b"%d" % n, keys="k")) for n in range(3)]
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        with LitePullConsumer(broker.namesrv, group="g", consume_from=first) as consumer:
            consumer.subscribe("Orders")
            got: list[Message] = []
            while len(got) < 3:
                got += consumer.poll(timeout_ms=10_000)
        (sends,), (consumes,), (observer,) = extensions.sends, extensions.consumes, extensions.observers
        stored = [f"Orders/{each.queue.queue_id}/{each.queue_offset}" for each in sent]
        assert sends.hooks.stored == stored  # type: ignore[attr-defined]
        assert consumes.hooks.records == {"g": 3}  # type: ignore[attr-defined]
        assert observer.hooks.bodies == {"Orders": b"2"}  # type: ignore[attr-defined]
        text = httpx.get(f"{broker.apps[0].http_url}/metrics", timeout=30).text
    assert re.search(
        r'^mqspark_extension_refusals_total\{.*extension="keys-required".*\} [1-9]', text, re.MULTILINE
    )
    assert re.search(r'^mqspark_extension_errors_total\{.*extension="deliveries".*\} 0', text, re.MULTILINE)


def test_an_unknown_extension_stops_the_start() -> None:
    with (
        pytest.raises(ConfigError, match="no installed package has an entry point"),
        Broker(settings={"extensions": "nobody-has-this"}),
    ):
        pass
