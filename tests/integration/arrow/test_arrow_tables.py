"""Records of a store, dead letters and lag as tables, from a broker over real sockets and from its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

import mqspark.arrow
from mqspark.client.blocking import BlockingClient
from mqspark.errors import ConfigError, NoSuchTopic
from mqspark.message import dlq_topic
from mqspark.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        rows = pa.table(
            {
                "key": [f"k{n}" for n in range(40)],
                "value": [b"body"] * 40,
                "partition": [n % 4 for n in range(40)],
            }
        )
        mqspark.arrow.write(running.namesrv, "Orders", rows)
        mqspark.arrow.write(running.namesrv, "Other", pa.table({"value": ["x", "y"]}))
        yield running


def test_the_records_of_a_store(broker: Broker) -> None:
    directory = str(broker.store_path)
    table = mqspark.arrow.store(directory, topics=["Orders", "Other"], broker="b-a").read_all()
    assert set(table["broker"].to_pylist()) == {"b-a"}
    assert table["topic"].to_pylist() == ["Orders"] * 40 + ["Other"] * 2
    positions = table["physicalOffset"].to_pylist()
    assert positions == sorted(positions)
    one = mqspark.arrow.store(directory, columns=["topic", "value"], topics=["Other"], start=positions[-1])
    assert one.read_all().to_pylist() in (
        [{"topic": "Other", "value": b"x"}],
        [{"topic": "Other", "value": b"y"}],
    )
    small = list(mqspark.arrow.store(directory, topics=["Orders"], batch_rows=7))
    assert max(batch.num_rows for batch in small) == 7


def test_a_store_that_is_not_there_is_refused(broker: Broker) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        mqspark.arrow.store("/nowhere/at/all")
    for wrong in (
        {"topics": "Orders"},
        {"start": -1},
        {"end": 1.5},
        {"columns": ["valeu"]},
        {"batch_rows": 0},
    ):
        with pytest.raises(ConfigError) as refused:
            mqspark.arrow.store(str(broker.store_path), **wrong)
        assert refused.value.key == next(iter(wrong))


def test_the_lag_of_a_group(broker: Broker) -> None:
    never = mqspark.arrow.lag(broker.namesrv, "never", "Orders")
    assert never["lag"].to_pylist() == [10] * 4
    assert never["offset"].to_pylist() == [None] * 4
    with closing(BlockingClient(broker.namesrv)) as client:
        route = client.route("Orders")
        address = route.address("dev")
        assert address is not None
        client.commit_group_offsets(address, "reader", dict.fromkeys(route.subscribe_queues, 10))
        assert (
            mqspark.arrow.read(broker.namesrv, "Orders", group="reader", start="group").read_all().num_rows
            == 0
        )
    table = mqspark.arrow.lag(broker.namesrv, "reader", ["Orders", "Other"])
    by_topic = table.group_by("topic").aggregate([("lag", "sum")]).to_pylist()
    assert {row["topic"]: row["lag_sum"] for row in by_topic} == {"Orders": 0, "Other": 2}
    assert table.schema.names == ["topic", "broker", "partition", "offset", "end", "lag"]


def test_the_dead_letters_of_a_group(broker: Broker) -> None:
    mqspark.arrow.write(broker.namesrv, dlq_topic("failing"), pa.table({"value": ["lost"], "key": ["k"]}))
    (row,) = mqspark.arrow.dead_letters(broker.namesrv, "failing").read_all().to_pylist()
    assert (row["key"], row["value"], row["reconsumeTimes"]) == ("k", b"lost", 0)
    assert dict(row["properties"])["KEYS"] == "k"
    with pytest.raises(NoSuchTopic):
        mqspark.arrow.dead_letters(broker.namesrv, "sound")
