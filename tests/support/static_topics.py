"""Creates and remaps static topics like ``mqadmin updateStaticTopic`` and ``remappingStaticTopic`` (MQAdminUtils)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from msgspec.structs import replace

from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.credentials import Credentials
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.admin_bodies import TopicStatsTable
from mqspark.protocol.bodies.body import decode_body, encode_body, queue_key
from mqspark.protocol.bodies.topic_bodies import (
    LogicQueueMappingItem,
    TopicConfigAndQueueMapping,
    TopicQueueMappingDetail,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from tests.support.remoting import topic_fields

BLOCK = 10_000
_epochs = itertools.count(1_000, 1_000)

Configs = dict[str, TopicConfigAndQueueMapping]


class StaticTopicTool:
    """``masters``: broker name → address, of all brokers."""

    def __init__(
        self, namesrv: str, masters: Mapping[str, str], topic: str, credentials: Credentials | None = None
    ) -> None:
        self.client = BlockingClient(namesrv, credentials=credentials)
        self.masters = masters
        self.topic = topic

    def close(self) -> None:
        self.client.close()

    def configs(self) -> Configs:
        found = {}
        for name, address in self.masters.items():
            answer = self.client.request(
                address,
                RequestCode.GET_TOPIC_CONFIG,
                {"topic": self.topic, "lo": "true"},
                accept=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST),
            )
            if answer.code == ResponseCode.SUCCESS:
                found[name] = decode_body(TopicConfigAndQueueMapping, answer.body)
        return found

    def put(self, name: str, config: TopicConfigAndQueueMapping) -> None:
        assert config.read_queue_nums == config.write_queue_nums
        header = topic_fields(self.topic, config.read_queue_nums, force="false")
        body = encode_body(config.mapping_detail)
        self.client.request(self.masters[name], RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, header, body)

    def create(self, queues: int, on: str) -> None:
        """Create a topic with all logic queues on one broker; the others know the topic."""
        epoch = next(_epochs)
        for name in self.masters:
            count = queues if name == on else 0
            hosted = {number: [LogicQueueMappingItem(queue_id=number, bname=name)] for number in range(count)}
            self.put(name, self._config(name, count, queues, epoch, hosted))

    def _config(
        self,
        name: str,
        count: int,
        total: int,
        epoch: int,
        hosted: dict[int, list[LogicQueueMappingItem]],
    ) -> TopicConfigAndQueueMapping:
        detail = TopicQueueMappingDetail(
            topic=self.topic, total_queues=total, bname=name, epoch=epoch, hosted_queues=hosted
        )
        return TopicConfigAndQueueMapping(
            topic_name=self.topic, read_queue_nums=count, write_queue_nums=count, mapping_detail=detail
        )

    def remap(self, to: str) -> None:
        """Move all logic queues that another broker leads."""
        configs, epoch = self.configs(), next(_epochs)
        total, moved, old = 0, {}, set()
        for config in configs.values():
            assert config.mapping_detail is not None
            total = max(total, config.mapping_detail.total_queues)
            for number, parts in config.mapping_detail.hosted_queues.items():
                if parts[-1].bname == config.mapping_detail.bname and parts[-1].bname != to:
                    moved[number] = list(parts)
                    old.add(parts[-1].bname or "")
        target = configs[to]
        for number, parts in moved.items():
            target.read_queue_nums = target.write_queue_nums = target.write_queue_nums + 1
            queue_id = target.write_queue_nums - 1
            parts.append(
                LogicQueueMappingItem(gen=parts[-1].gen + 1, queue_id=queue_id, bname=to, logic_offset=-1)
            )
            for name in (to, *old):
                detail = configs[name].mapping_detail
                assert detail is not None
                if name == to or number in detail.hosted_queues:
                    detail.hosted_queues[number] = parts
        for config in configs.values():
            assert config.mapping_detail is not None
            config.mapping_detail.epoch = epoch
        self.put(to, target)
        for name in old:
            self.put(name, configs[name])
        for number, parts in moved.items():
            before = parts[-2]
            assert before.bname is not None
            answer = self.client.request(
                self.masters[before.bname], RequestCode.GET_TOPIC_STATS_INFO, {"topic": self.topic}
            )
            table = decode_body(TopicStatsTable, answer.body).offset_table
            end = table[queue_key(MessageQueue(self.topic, before.bname, before.queue_id))].max_offset
            parts[-1] = replace(parts[-1], logic_offset=rounded(before.logic_offset + end))
            assert target.mapping_detail is not None
            target.mapping_detail.hosted_queues[number] = parts
        self.put(to, target)
        for name in configs.keys() - {to, *old}:
            self.put(name, configs[name])


def rounded(offset: int) -> int:
    """TopicQueueMappingUtils.blockSeqRoundUp."""
    blocks, left = divmod(offset, BLOCK)
    return (blocks + 1 if left < BLOCK // 2 else blocks + 2) * BLOCK
