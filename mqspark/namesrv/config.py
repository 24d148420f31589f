"""Settings of a name server, RocketMQ's names in snake case (NamesrvConfig). Only keys that do something."""

from __future__ import annotations

from dataclasses import dataclass

from mqspark.config import check_numbers

__all__ = ["NamesrvConfig", "UPDATABLE_KEYS"]


@dataclass(slots=True)
class NamesrvConfig:
    kv_config_path: str | None = None
    """File of the key-value table (codes 100 to 102); None keeps it in memory."""
    order_message_enable: bool = False
    """Routes carry ``orderTopicConf``."""
    return_order_topic_config_to_broker: bool = True
    scan_not_active_broker_interval: int = 5_000  # ms
    broker_expiry_timeout: int = 120_000
    """ms without a sign of life; a broker's own heartbeatTimeoutMillis goes first. RocketMQ has it as a
    constant."""
    max_brokers: int = 2_000
    """Ours, as all bounds here: addresses of brokers, slaves among them. One more is refused."""
    max_brokers_per_connection: int = 64
    """RocketMQ's broker has a connection of its own; a container's brokers share one."""
    max_topics_per_broker: int = 300_000
    max_routes: int = 500_000
    """(topic, broker) pairs, some 400 bytes each. What a registration brings beyond either bound is left out."""
    max_queues_per_topic: int = 65_536
    """Of one broker. A topic with more, or with fewer than none, is left out of the registration."""
    max_register_body_size: int = 16 * 1024 * 1024
    """Bytes that a registration may have when it is inflated: some 200,000 topics."""
    broker_takeover_silence: int = 45_000
    """ms without a sign of life after which another host may register under the name and id, or the address, of a
    broker whose connection is still there."""
    delete_topic_with_broker_registration: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    max_kv_table_bytes: int = 32 << 20
    """Ours, as the next: of the key-value table; one that is full refuses new keys."""
    max_route_cache_bytes: int = 64 << 20
    """Of answers to questions for routes that are kept."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"

    def __post_init__(self) -> None:
        check_numbers(
            self,
            "scan_not_active_broker_interval",
            "broker_expiry_timeout",
            "max_kv_table_bytes",
            "max_route_cache_bytes",
            "max_brokers",
            "max_brokers_per_connection",
            "max_topics_per_broker",
            "max_routes",
            "max_queues_per_topic",
            "max_register_body_size",
        )
        check_numbers(self, "broker_takeover_silence", least=0)


UPDATABLE_KEYS = frozenset(
    {
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "scanNotActiveBrokerInterval",
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableTopicList",
        "maxBrokers",
        "maxBrokersPerConnection",
        "maxTopicsPerBroker",
        "maxRoutes",
        "maxQueuesPerTopic",
        "maxRegisterBodySize",
        "brokerTakeoverSilence",
        "maxKvTableBytes",
    }
)
"""What UPDATE_NAMESRV_CONFIG (318) may change; anything else is refused."""
