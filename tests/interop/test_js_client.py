"""The unmodified JavaScript client (npm's ali-ons) on our broker; slow: the same on a real RocketMQ."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.driver import Driver, DriverError, Program, body_of
from tests.interop.handles import (
    bodies,
    check_compressed,
    committed,
    counted,
    group_offset,
    send,
    send_all,
    started,
    stored,
    take,
)
from tests.interop.other_clients import JS
from tests.interop.topics import QUEUES, create_group, create_topic, max_offset
from tests.support.clusters import Cluster
from tests.support.waiting import eventually

Name = Callable[[str], str]

TOPIC_NOT_EXIST = 17


@pytest.fixture(scope="module")
def js(drivers: Callable[[Program], Driver]) -> Driver:
    return drivers(JS)


def test_every_field_of_a_message_arrives(js: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("JsFields")), create_group(soon, name("js-fields"))
    before_ms = int(time.time() * 1000)
    body = "bytes \x00\x01\x02 and text: Grüße, 你好, 🚀".encode()
    with started(js, "producer", soon, "js-fields") as producer:
        sent = send(
            js, producer, topic, body, tags="TagÄ", keys=["k1", "k2"], flag=42, properties={"größe": "🛩"}
        )
    (kept,) = stored(soon, topic)
    assert (kept.body, kept.tags, kept.keys, kept.flag) == (body, "TagÄ", "k1 k2", 42)
    # Its ids are those that the broker makes.
    assert (kept.queue_id, kept.queue_offset, kept.offset_message_id) == (
        int(sent["queue_id"]), sent["queue_offset"], sent["msg_id"],
    )  # fmt: skip
    with started(js, "push", soon, group, topic=topic, expression="*") as consumer:
        (got,) = take(js, consumer, 1)
    assert (body_of(got), got["tags"], got["keys"], got["flag"]) == (body, "TagÄ", "k1 k2", 42)
    assert (got["topic"], got["queue_id"], got["msg_id"]) == (topic, kept.queue_id, sent["msg_id"])
    assert got["properties"]["größe"] == "🛩"
    assert before_ms <= got["born_timestamp"] <= got["store_timestamp"] <= time.time() * 1000 + 1
    assert got["physical_offset"] == kept.physical_offset


def test_large_bodies_travel_compressed(js: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("JsLarge")), create_group(soon, name("js-large"))
    large = [b"compressible " * 4000, bytes(range(256)) * 8000]
    with started(js, "push", soon, group, topic=topic, expression="*") as consumer:
        send_all(js, soon, topic, large)
        assert counted(take(js, consumer, 2)) == Counter(large)
    check_compressed(soon, topic, name("our-large"), large)


def test_an_unknown_topic_is_an_error(js: Driver, soon: Cluster, name: Name) -> None:
    """The client takes the name server's answer for one, and never asks for the topic that others are made from."""
    with pytest.raises(DriverError, match="No topic route info") as refused:
        send_all(js, soon, name("JsUnknown"), [b"first"])
    assert refused.value.code == TOPIC_NOT_EXIST


def test_delays(js: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("JsDelay")), create_group(soon, name("js-delay"))
    with started(js, "push", soon, group, topic=topic, expression="*") as consumer:
        before_ms = int(time.time() * 1000)
        send_all(js, soon, topic, [b"late"], delay_level=1)
        (got,) = take(js, consumer, 1)
    assert body_of(got) == b"late"
    assert got["store_timestamp"] - before_ms >= 1000


def test_tags_and_where_a_group_goes_on(js: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("JsPush")), create_group(soon, name("js-push"))
    with started(js, "producer", soon, "js-push-producer") as producer:
        for number in range(40):
            send(js, producer, topic, b"%d" % number, tags="ABCD"[number % 4])
    with started(js, "push", soon, group, topic=topic, expression="A || C") as consumer:
        assert {int(body_of(one)) for one in take(js, consumer, 20)} == set(range(0, 40, 2))
        eventually(lambda: committed(soon, group, topic) >= 39, "its offsets are committed")
    send_all(js, soon, topic, bodies("later", 4), tags="C")
    with started(js, "push", soon, group, topic=topic, expression="A || C") as consumer:
        received = {one["msg_id"]: one for one in take(js, consumer, 4) + take(js, consumer, 1, 300)}
    assert counted(list(received.values())) == Counter(bodies("later", 4))


def test_sql_filter(js: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("JsSql")), create_group(soon, name("js-sql"))
    with started(js, "producer", soon, "js-sql-producer") as producer:
        for number in range(20):
            send(js, producer, topic, b"%d" % number, properties={"a": str(number)})
    with started(js, "push", soon, group, topic=topic, sql="a BETWEEN 5 AND 7 OR a = 19") as consumer:
        assert {int(body_of(one)) for one in take(js, consumer, 4)} == {5, 6, 7, 19}
        assert not take(js, consumer, 1, 300)


@pytest.mark.slow("the first retry is due after ten seconds")
def test_failed_messages_come_back(js: Driver, soon: Cluster, name: Name) -> None:
    """By the group's table of delays: the first time after ten seconds."""
    topic, group = create_topic(soon, name("JsRetry")), create_group(soon, name("js-retry"))
    with started(js, "push", soon, group, topic=topic, expression="*") as consumer:
        send_all(js, soon, topic, [b"twice"], tags="T", properties={"failures": "1"})
        first, again = take(js, consumer, 2)
    assert (body_of(again), again["topic"], again["tags"]) == (b"twice", topic, "T")
    assert (first["reconsume_times"], again["reconsume_times"]) == (0, 1)
    assert again["properties"]["RETRY_TOPIC"] == topic
    assert max_offset(soon, f"%RETRY%{group}", 0) == 1


def test_two_members_share_and_one_takes_over(js: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("JsShare")), create_group(soon, name("js-share"))
    with started(js, "push", soon, group, topic=topic, expression="*") as first:
        with started(js, "push", soon, group, topic=topic, expression="*") as second:
            sent: list[bytes] = []
            parts: dict[int, list[dict[str, Any]]] = {first: [], second: []}

            def both_work() -> bool:
                probe = bodies(f"probe-{len(sent)}", 8)
                sent.extend(probe)
                send_all(js, soon, topic, probe)
                for member, part in parts.items():
                    part += take(js, member, 8, 300)
                return all(
                    part and len({one["queue_id"] for one in part[-2:]}) == 2 for part in parts.values()
                )

            eventually(both_work, "both have two queues", 60)

            def every_probe_came() -> bool:
                for member, part in parts.items():
                    part += take(js, member, 8, 100)
                return set(counted(parts[first] + parts[second])) == set(sent)

            eventually(every_probe_came, "every probe at one of them")
        send_all(js, soon, topic, bodies("after", 8))
        received: list[dict[str, Any]] = []

        def all_came() -> bool:
            received.extend(take(js, first, 1, 200))
            return set(bodies("after", 8)) <= set(counted(received))

        eventually(all_came, "the survivor has all")


def test_every_broadcast_consumer_gets_everything(js: Driver, soon: Cluster, name: Name) -> None:
    topic, group = create_topic(soon, name("JsBroadcast")), create_group(soon, name("js-broadcast"))
    send_all(js, soon, topic, bodies("all", 12))
    for _ in range(2):
        with started(js, "push", soon, group, topic=topic, expression="*", model="BROADCASTING") as member:
            assert counted(take(js, member, 12)) == Counter(bodies("all", 12))
    assert all(group_offset(soon, group, topic, queue) is None for queue in range(QUEUES))


def test_namespaces(js: Driver, soon: Cluster, name: Name) -> None:
    space, topic, group = name("space"), name("JsNamed"), name("js-named")
    create_topic(soon, f"{space}%{topic}"), create_group(soon, f"{space}%{group}")
    with started(js, "producer", soon, name("js-naming"), namespace=space) as producer:
        send(js, producer, topic, b"inside")
    with started(js, "push", soon, group, topic=topic, expression="*", namespace=space) as consumer:
        assert counted(take(js, consumer, 1)) == Counter([b"inside"])
    assert [one.body for one in stored(soon, f"{space}%{topic}")] == [b"inside"]
