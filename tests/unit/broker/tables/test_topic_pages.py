"""The table of topics is visited while it changes, and knows its compacted topics."""

from mqspark.base.keyorder import BLOCK_KEYS
from mqspark.broker.config import BrokerConfig
from mqspark.broker.tables.topics import Topics
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.slices import finished
from tests.support.clocks import ManualClock

COMPACTED = {"cleanup.policy": "COMPACTION"}


def many_topics(count):
    topics = Topics(BrokerConfig(), ManualClock())
    for number in range(count):
        topics.put(TopicConfig(topic_name=f"T{number:05d}"))
    return topics


def test_topics_come_and_go_while_they_are_visited():
    count = 3 * BLOCK_KEYS
    topics = many_topics(count)
    seen = []
    for number, topic in enumerate(topics):
        seen.append(topic.name)
        if number == BLOCK_KEYS // 2:
            for gone in range(0, count, 2):  # some were visited, some are on this page, others come later
                topics.remove(f"T{gone:05d}")
            topics.put(TopicConfig(topic_name="ZZ-new"))
    assert seen == sorted(set(seen))
    assert {f"T{number:05d}" for number in range(1, count, 2)} <= set(seen)
    assert "ZZ-new" in topics.names()
    assert f"T{count - 2:05d}" not in seen


def test_compacted_topics_follow_every_change():
    topics = many_topics(3)
    assert topics.compacted() == []
    topics.put(TopicConfig(topic_name="T00001", attributes=dict(COMPACTED)))
    topics.put(TopicConfig(topic_name="New", attributes=dict(COMPACTED)))
    topics.put(TopicConfig(topic_name="Batches", attributes=COMPACTED | {"queue.type": "BatchCQ"}))
    assert topics.compacted() == ["New", "T00001"]
    saved = b"".join(topics.snapshot()())
    topics.put(TopicConfig(topic_name="T00001"))
    topics.remove("New")
    assert topics.compacted() == []
    topics.load(saved)
    assert topics.compacted() == ["New", "T00001"]
    master = many_topics(1)
    finished(topics.follow(master.data_version, {topic.name: topic.config for topic in master}))
    assert topics.compacted() == []
