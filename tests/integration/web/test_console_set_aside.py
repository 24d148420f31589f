"""What a broker has set aside, on its own console: read and sent again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from mqspark import AdminClient, Message, Producer
from mqspark.testing import Broker
from tests.support.visits import change, csrf, page, set_aside
from tests.support.waiting import eventually

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running, Producer(running.namesrv, group="console_tests") as producer:
        producer.send(Message.of("Orders", '{"a": [1, 2]}', keys="k1"))
        producer.send(Message.of("Hostile", HOSTILE, keys="h", properties={"p": HOSTILE}))
        producer.send(Message.of("Large", "L" * 100_000))
        yield running


def test_what_was_set_aside_is_read_and_sent_again(visitor: httpx.Client, broker: Broker) -> None:
    name = broker.apps[0].config.broker_name
    path = f"/brokers/{name}/set-aside/{set_aside(broker)}"
    assert f'href="/console{path}"' in page(broker, f"/brokers/{name}")
    text = page(broker, path)
    assert re.search(r"Orders \d @ 0", text)
    for shown in ("k1", "&#34;a&#34;: [1, 2]", "Hostile", "&lt;script&gt;"):
        assert shown in text, shown
    assert "/send" not in text, "nobody is logged in"
    text = page(broker, f"{path}?topic=Large")
    assert re.search(r"Large \d @ 0", text)
    assert "Orders" not in text
    with AdminClient(broker.namesrv) as admin:
        before = _count(admin, "Hostile")
        done = change(visitor, f"{path}/send", {"topic": "Hostile"}, path)
        assert f"Messages sent again as new: {before}." in done
        eventually(lambda: _count(admin, "Hostile") == 2 * before)
    token = csrf(visitor.get(path).text)
    for where, fields, status in (
        (f"{path}/send", {"topic": "Nowhere"}, 404),
        (f"{path}/send", {"topic": "a b"}, 400),
        (f"/brokers/{name}/set-aside/checkpoint/send", {}, 404),
        (f"/brokers/other/set-aside/{path.rpartition('/')[2]}/send", {}, 404),
    ):
        assert visitor.post(where, data={"csrf": token, "sure": "yes", **fields}).status_code == status, where
    for where, status in ((f"{path}?from=-1", 400), (f"{path}?topic=a%20b", 400), (f"{path}x", 404)):
        assert visitor.get(where).status_code == status, where
    assert "No message is left" in page(broker, f"{path}?from=999999999999")


def _count(admin: AdminClient, topic: str) -> int:
    return sum(each.max_offset - each.min_offset for each in admin.topic_stats(topic).values())
