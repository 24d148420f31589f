"""The figures that mqadmin's statsAll shows, on a clock that is moved by hand."""

from mqspark.base.histogram import Histogram
from mqspark.broker.stats.meters import SAMPLE_INTERVAL_MS
from mqspark.broker.stats.rpctimes import Rpc, RpcTimes
from mqspark.broker.stats.stats import ROWS_AT_ONCE, Stats
from mqspark.broker.tables.topics import Topic
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import encode_response
from mqspark.protocol.slices import finished
from tests.support.clocks import ManualClock
from tests.support.slices import sliced

TICKS_PER_MINUTE = 60_000 // SAMPLE_INTERVAL_MS


def sample(stats: Stats, topics: list[Topic]) -> None:
    finished(stats.sample(topics, {topic.name for topic in topics}.__contains__))


def test_what_made_a_row_appear_is_counted(clock: ManualClock) -> None:
    stats = Stats(clock)
    topic = Topic(TopicConfig(topic_name="T"))
    topic.counted = 10
    stats.got("T", "G", 7, 700)
    sample(stats, [topic])
    put, got = stats.meter("TOPIC_PUT_NUMS", "T"), stats.meter("GROUP_GET_NUMS", "T@G")
    assert put is not None
    assert got is not None
    assert (put.minute.growth(), put.minute.per_second()) == (10, 1.0)
    assert got.minute.growth() == 7
    sample(stats, [])  # the topic is gone, and its rows with it
    assert stats.meter("TOPIC_PUT_NUMS", "T") is None
    assert stats.meter("GROUP_GET_NUMS", "T@G") is None


def test_tables_of_pop_dead_letters_connections_and_the_broker() -> None:
    stats = Stats(ManualClock(), cluster="C")
    own, system = Topic(TopicConfig(topic_name="T")), Topic(TopicConfig(topic_name="SCHEDULE_TOPIC_XXXX"))
    own.counted, system.counted, stats.put_messages = 3, 2, 5
    stats.got("T", "G", 4, 40)
    stats.got("SCHEDULE_TOPIC_XXXX", "CID_RMQ_SYS_X", 2, 20)
    stats.were_acked("T", "G", 3)
    stats.was_checked("T", "G")
    stats.became_dead("T", "G")
    stats.became_dead("a@property@of@a@peer", "G")
    stats.connected, stats.closed = 6, 1
    sample(stats, [own, system])

    def sums(table: str, key: str) -> int | None:
        meter = stats.meter(table, key)
        return None if meter is None else meter.minute.growth()

    assert [sums(table, "T@G") for table in ("GROUP_ACK_NUMS", "GROUP_CK_NUMS")] == [3, 1]
    assert [sums(f"BROKER_{table}_NUMS", "C") for table in ("PUT", "GET", "ACK", "CK")] == [5, 6, 3, 1]
    without = [sums(f"BROKER_{table}_NUMS_WITHOUT_SYSTEM_TOPIC", "C") for table in ("PUT", "GET")]
    assert without == [3, 4]
    assert sums("SNDBCK2DLQ_TIMES", "null@T@G@SEND_BACK_TO_DLQ") == 1
    assert [sums("CHANNEL_ACTIVITY", key) for key in ("CONNECT", "CLOSE", "IDLE")] == [6, 1, None]
    sample(stats, [own, system])  # the topic of the property never was
    assert ("a@property@of@a@peer", "G") not in stats.dead
    finished(stats.forget_group("G"))
    assert sums("SNDBCK2DLQ_TIMES", "null@T@G@SEND_BACK_TO_DLQ") is None
    assert sums("GROUP_ACK_NUMS", "T@G") is None


def test_minute_hour_and_day(clock: ManualClock) -> None:
    stats = Stats(clock)
    topic = Topic(TopicConfig(topic_name="T"))

    def sums_after(minutes: int) -> tuple[int, int, int]:
        for _ in range(minutes * TICKS_PER_MINUTE):
            clock.advance(SAMPLE_INTERVAL_MS)
            topic.counted += 10
            sample(stats, [topic])
        meter = stats.meter("TOPIC_PUT_NUMS", "T")
        assert meter is not None
        return meter.minute.growth(), meter.hour.growth(), meter.day.growth()

    assert sums_after(1) == (60, 0, 0)
    assert sums_after(9) == (60, 600, 0)
    assert sums_after(50) == (60, 3600, 3600)
    assert sums_after(26 * 60) == (60, 3600, 86_400)


def test_rows_of_the_whole_broker_and_of_what_was_sent_back() -> None:
    stats = Stats(ManualClock(), cluster="C")
    topic = Topic(TopicConfig(topic_name="T"))
    sample(stats, [topic])
    assert stats.meter("BROKER_PUT_NUMS", "C") is None
    stats.put_messages += 30
    stats.got("T", "G", 20, 2000)
    stats.was_sent_back("T", "G")
    stats.was_sent_back("T", "G")

    def sum_of(table: str, key: str) -> int | None:
        meter = stats.meter(table, key)
        return None if meter is None else meter.minute.growth()

    sample(stats, [topic])
    sums = [sum_of("BROKER_PUT_NUMS", "C"), sum_of("BROKER_GET_NUMS", "C"), sum_of("SNDBCK_PUT_NUMS", "T@G")]
    assert sums == [30, 20, 2]
    finished(stats.forget_group("G"))
    assert sum_of("SNDBCK_PUT_NUMS", "T@G") is None
    sample(stats, [])
    assert sum_of("BROKER_PUT_NUMS", "C") == 30


def test_latencies_of_queues_and_reads_from_disk() -> None:
    stats = Stats(ManualClock(), cluster="C")
    topic = Topic(TopicConfig(topic_name="T"))
    topic.count(300)
    stats.got("T", "G", 5, 500, 3, 20)
    stats.got("T", "G", 1, 100, 3)
    stats.got("T", "G", 2, 200, 4)
    stats.read_from_disk("T", "G", 2, 200)
    stats.puts_took([("T", 1, 10), ("T", 2, 7)], 4)
    stats.puts_took([("T", 1, 12)], 3)
    stats.delayed_went_on(2, 50)
    stats.registered(0, consumers=True, producers=False)
    sample(stats, [topic, Topic(TopicConfig(topic_name="SCHEDULE_TOPIC_XXXX"))])

    def of(table: str, key: str) -> tuple[int, int | None] | None:
        meter, times = stats.meter(table, key), stats.times(table, key)
        return (
            None
            if meter is None
            else (meter.minute.growth(), None if times is None else times.minute.growth())
        )

    assert of("GROUP_GET_LATENCY", "3@T@G") == (20, 2)
    assert of("GROUP_GET_LATENCY", "4@T@G") is None  # nothing took a millisecond
    assert of("GROUP_GET_NUMS", "T@G") == (8, 3)
    assert of("GROUP_GET_FROM_DISK_SIZE", "T@G") == (200, None)
    assert of("BROKER_GET_FROM_DISK_NUMS", "C") == (2, None)
    assert of("TOPIC_PUT_LATENCY", "1@T") == (4 + 2 * 3, 12)
    assert of("QUEUE_GET_NUMS", "SCHEDULE_TOPIC_XXXX@2@SCHEDULE_CONSUMER") == (1, 1)
    assert stats.meter("CONSUMER_REGISTER_TIME", "C") is not None
    assert stats.meter("PRODUCER_REGISTER_TIME", "C") is None
    assert stats.meter("QUEUE_GET_TIMES", "3@T@G") is None  # not one of RocketMQ's
    assert stats.get_longest_ms == 20
    before = stats.ledger.bytes
    finished(stats.forget_group("G"))
    assert of("GROUP_GET_LATENCY", "3@T@G") is None
    sample(stats, [])
    assert of("TOPIC_PUT_LATENCY", "1@T") is None
    assert stats.ledger.bytes < before


def test_days_begin_at_local_midnight_and_leave_out_system_topics(clock: ManualClock) -> None:
    until_midnight = 86_400_000 - (clock.now_ms() + 7_200_000) % 86_400_000
    stats = Stats(clock, utc_offset_ms=lambda now_ms: 7_200_000)
    own, system = Topic(TopicConfig(topic_name="T")), Topic(TopicConfig(topic_name="SCHEDULE_TOPIC_XXXX"))
    own.counted, system.counted, stats.put_messages = 3, 2, 5
    sample(stats, [own, system])
    assert stats.day_counters()["msgPutTotalTodayNow"] == "3"
    assert stats.day_counters()["msgPutTotalTodayMorning"] == "0"
    clock.advance(until_midnight)
    sample(stats, [own, system])
    assert stats.day_counters()["msgPutTotalTodayMorning"] == "3"
    clock.advance(86_400_000)
    sample(stats, [own, system])
    assert stats.day_counters()["msgPutTotalYesterdayMorning"] == "3"


def test_messages_by_their_type_and_size() -> None:
    topic = Topic(TopicConfig(topic_name="T"))
    topic.count(200)
    topic.count(6_000)
    topic.count(3_000, messages=3)
    topic.count(100, "fifo")
    topic.put_bytes += 2_000
    topic.up_to_4k += 1  # as the fast path of a send does it
    kinds = dict(topic.of_kinds())
    assert {kind: (part.messages, part.bytes) for kind, part in kinds.items()} == {
        "fifo": (1, 100),
        "normal": (6, 11_200),
    }
    sizes = kinds["normal"].sizes
    assert [count for _, count in sizes.buckets()] == [2, 3, 4, 4, 4, 4, 4]
    assert sizes.total == 200 + 6_000 + 1_000 + 2_000


def test_answers_are_counted_by_request_answer_and_wait(clock: ManualClock) -> None:
    rpc = RpcTimes(clock)
    rpc.record(RequestCode.PULL_MESSAGE, ResponseCode.SUCCESS, 4, 10, waited=True)
    rpc.row(Rpc(RequestCode.PULL_MESSAGE, ResponseCode.SUCCESS, False)).quick += 3
    rpc.record(987_654, 7_654, 1)
    rpc.record(987_655, 7_655, 1)  # codes that peers make up share one row
    rows = {tuple(key)[:3]: found for key, found in rpc}
    assert rows[(11, 0, True)].buckets()[:3] == [("1.0", 0.0), ("3.0", 0.0), ("5.0", 10.0)]
    assert (rows[(11, 0, True)].total, rows[(11, 0, False)].count) == (40, 3)
    assert rows[(-1, -1, False)].count == 2
    assert len(rows) == 3
    frame = encode_response(1, ResponseCode.QUERY_NOT_FOUND, {"code": "7"}, remark="r")
    handlers = rpc.timed({1: lambda session, command: frame}, frozenset())
    assert set(handlers) == {1}


def test_a_histogram() -> None:
    found = Histogram((1, 3))
    found.quick += 2
    for value in (0, 1, 2, 3, 4, 5):
        found.record(value)
    assert found.buckets() == [("1.0", 4.0), ("3.0", 6.0), ("+Inf", 8.0)]
    assert (found.count, found.total) == (8, 15)


def test_traffic_of_very_many_queues_is_added_up_in_slices() -> None:
    stats = Stats(ManualClock())
    queues, groups = 3 * ROWS_AT_ONCE, 4
    for queue_id in range(queues):
        for group in range(groups):
            stats.got("T", f"G{group}", 2, 10 * group, queue_id)
    adding = stats.traffic()
    next(adding)
    stats.got("T", "Later", 1, 1, 0)
    sums, slices = sliced(adding)
    assert slices + 1 == queues * groups // ROWS_AT_ONCE
    assert {key: (each.messages, each.bytes) for key, each in sums.items()} == {
        ("T", f"G{group}"): (2 * queues, 10 * group * queues) for group in range(groups)
    }
    assert ("T", "Later") in finished(stats.traffic())
