"""The figures that mqadmin's statsAll shows, on a clock that is moved by hand."""

from mqspark.broker.state.stats import SAMPLE_INTERVAL_MS, Stats
from mqspark.broker.state.topics import Topic
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.slices import finished
from tests.unit.broker_kit import ManualClock

TICKS_PER_MINUTE = 60_000 // SAMPLE_INTERVAL_MS


def sample(stats: Stats, topics: list[Topic]) -> None:
    finished(stats.sample(topics, {topic.name for topic in topics}.__contains__))


def test_what_made_a_row_appear_is_counted() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    topic = Topic(TopicConfig(topic_name="T"))
    topic.put_count = 10
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
    own.put_count, system.put_count, stats.put_messages = 3, 2, 5
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


def test_minute_hour_and_day() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    topic = Topic(TopicConfig(topic_name="T"))

    def sums_after(minutes: int) -> tuple[int, int, int]:
        for _ in range(minutes * TICKS_PER_MINUTE):
            clock.advance(SAMPLE_INTERVAL_MS)
            topic.put_count += 10
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
