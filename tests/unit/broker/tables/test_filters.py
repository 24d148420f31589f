"""``consumerFilter.json``: read as RocketMQ left it, kept, and written as RocketMQ writes it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mqspark.base.clock import Clock
from mqspark.broker.config import BrokerConfig
from mqspark.broker.tables.consumer_filters import ConsumerFilters
from mqspark.errors import ConfigError
from mqspark.filter.bloom import BloomFilter, murmur3
from mqspark.protocol.bodies.client_bodies import SubscriptionData
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.slices import finished
from tests.support.invariants import validate
from tests.support.remoting import heartbeat_body, subscription
from tests.unit.broker_kit import Bench, Peer

GOLDEN = Path("tests/golden/store/clean.tar.gz")
DAY_MS = 86_400_000


def recorded() -> bytes:
    """As RocketMQ 5.3.3 left it."""
    with tarfile.open(GOLDEN) as archive:
        content = archive.extractfile("store/config/consumerFilter.json")
        assert content is not None
        return content.read()


def subscribe(peer: Peer, *topics: str, expression: str = "n > 1", version: int = 5) -> None:
    found = [subscription(topic, expression, version, expressionType="SQL92") for topic in topics]
    assert peer.ask(RequestCode.HEART_BEAT, {}, heartbeat_body("c1", {"CG": found})).code == 0


def filters(bench: Bench) -> dict[str, dict[str, Any]]:
    """What the file would have, by topic and group."""
    document = json.loads(b"".join(bench.broker.state.filters.snapshot()()))
    return {
        f"{topic}@{group}": data
        for topic, table in document["filterDataByTopic"].items()
        for group, data in table["groupFilterData"].items()
    }


def test_the_hash_and_the_bits_are_guavas_and_rocketmqs() -> None:
    # MurmurHash3's own test values, and the bits in the recorded file.
    assert murmur3(b"") == (0, 0)
    assert "".join(f"{word:08x}" for word in reversed(murmur3(b"hello"))) == "cbd8a7b341bd9b02"
    assert "".join(f"{word:08x}" for word in reversed(murmur3(b"hello, world"))) == "342fac623a5ebc8e"
    bloom = BloomFilter(20, 32)
    assert (bloom.bits, bloom.positions(b"GsSqlGroup#GsPlain")) == (112, [91, 67, 68])


def test_a_file_of_rocketmq_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "config" / "consumerFilter.json"
    path.parent.mkdir()
    path.write_bytes(recorded())
    bench = Bench(tmp_path)
    bench.clock.advance(1_795_249_912_000 - bench.clock.now_ms())
    assert json.loads(b"".join(bench.broker.state.filters.snapshot()())) == json.loads(recorded())
    found = bench.broker.state.filters.find("GsPlain", "GsSqlGroup")
    assert found is not None
    assert (found.expression, found.client_version) == ("n > 10 AND n < 100", 1795249902840)
    bench.close()
    assert path.read_bytes() == recorded()  # nothing has changed


def test_a_filter_lives_with_its_group_and_is_saved(bench: Bench) -> None:
    peer, born_ms = bench.peer(), bench.clock.now_ms()
    subscribe(peer, "T")
    assert filters(bench) == {
        "T@CG": {
            "topic": "T", "consumerGroup": "CG", "expression": "n > 1", "expressionType": "SQL92",
            "clientVersion": 5, "bornTime": born_ms, "deadTime": 0, "dead": False,
            "bloomFilterData": {"bitNum": 112, "bitPos": BloomFilter(20, 32).positions(b"CG#T")},
        }
    }  # fmt: skip
    bench.clock.advance(1_000)
    subscribe(peer, "T", expression="n > 2", version=4)  # an older one
    assert filters(bench)["T@CG"]["expression"] == "n > 1"
    subscribe(peer, "T", version=6)
    assert (filters(bench)["T@CG"]["clientVersion"], filters(bench)["T@CG"]["bornTime"]) == (6, born_ms)
    subscribe(peer, "T", expression="n > 2", version=7)
    assert (filters(bench)["T@CG"]["expression"], filters(bench)["T@CG"]["bornTime"]) == (
        "n > 2",
        born_ms + 1_000,
    )
    subscribe(peer, "U", version=8)
    assert filters(bench)["T@CG"]["deadTime"] == born_ms + 1_000
    peer.disconnect()
    assert all(each["dead"] for each in filters(bench).values())
    validate(bench.broker)
    bench.close()

    bench.open()
    assert set(filters(bench)) == {"T@CG", "U@CG"}
    subscribe(bench.peer(), "U", version=8)  # the same member comes back
    assert [filters(bench)[key]["dead"] for key in ("T@CG", "U@CG")] == [True, False]
    bench.clock.advance(DAY_MS)
    finished(bench.broker.state.filters.clean())
    assert set(filters(bench)) == {"U@CG"}
    validate(bench.broker)


def test_who_was_there_when_the_broker_stopped_is_gone_when_it_starts(bench: Bench) -> None:
    subscribe(bench.peer(), "T")
    bench.clock.advance(60_000)
    bench.close()
    bench.open()
    assert filters(bench)["T@CG"]["deadTime"] == bench.clock.now_ms() - 30_000


def test_what_does_not_compile_is_not_written(bench: Bench) -> None:
    subscribe(bench.peer(), "T", expression="n >")
    assert filters(bench) == {}


def test_other_bits_are_made_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_error_rate_of_bloom_filter=1)
    bench.broker.state.filters.load(recorded())
    bloom = filters(bench)["GsPlain@GsSqlGroup"]["bloomFilterData"]
    assert (bloom["bitNum"], len(bloom["bitPos"])) == (312, 7)
    bench.close()
    with pytest.raises(ConfigError, match="maxErrorRateOfBloomFilter=100"):
        BrokerConfig(max_error_rate_of_bloom_filter=100)


def test_how_many_groups_the_bits_are_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, expect_consumer_num_use_filter=1_000)
    subscribe(bench.peer(), "T")
    assert filters(bench)["T@CG"]["bloomFilterData"]["bitNum"] == BloomFilter(20, 1_000).bits > 3_000


def test_how_long_a_filter_outlives_its_group(tmp_path: Path) -> None:
    bench = Bench(tmp_path, filter_data_clean_time_span=60_000)
    peer = bench.peer()
    subscribe(peer, "T")
    peer.disconnect()
    bench.clock.advance(59_999)
    finished(bench.broker.state.filters.clean())
    assert set(filters(bench)) == {"T@CG"}
    bench.clock.advance(1)
    finished(bench.broker.state.filters.clean())
    assert not filters(bench)


def test_a_full_table_refuses_silently_and_keeps_what_it_has(bench: Bench) -> None:
    clock: Clock = bench.clock
    table = ConsumerFilters(BrokerConfig(max_group_table_bytes=2_000), clock)
    for topic in ("A", "B", "C", "D"):
        table.subscribed(
            "CG", SubscriptionData(topic=topic, sub_string="n > 1", expression_type="SQL92", sub_version=1)
        )
    assert table.find("A", "CG") is not None
    assert table.find("D", "CG") is None
    assert table.ledger.refused
    assert table.ledger.bytes <= 2_000
    validate(table)
