"""Settings of a name server, under RocketMQ's names in snake case (NamesrvConfig). Only settings that have an
effect."""

from __future__ import annotations

from dataclasses import dataclass

from mqspark.config import check_numbers

__all__ = ["NamesrvConfig", "UPDATABLE_KEYS"]


@dataclass(slots=True)
class NamesrvConfig:
    kv_config_path: str | None = None
    """File of the key-value table (codes 100 to 102); None keeps the table in memory."""
    order_message_enable: bool = False
    """Whether routes contain ``orderTopicConf``."""
    return_order_topic_config_to_broker: bool = True
    scan_not_active_broker_interval: int = 5_000  # ms
    broker_expiry_timeout: int = 120_000
    """Silence in ms after which a broker is unregistered. A broker's own heartbeatTimeoutMillis takes
    precedence. A constant in RocketMQ."""
    max_brokers: int = 2_000
    """Limit of broker addresses, including slaves; a further broker is refused. Like all limits here it is
    not in RocketMQ."""
    max_brokers_per_connection: int = 64
    """A RocketMQ broker has its own connection; the brokers of a container share one."""
    max_topics_per_broker: int = 300_000
    max_routes: int = 500_000
    """Limit of (topic, broker) pairs, some 400 bytes each. Topics of a registration beyond this or the next
    limit are dropped."""
    max_queues_per_topic: int = 65_536
    """Limit for one broker. A topic with more queues, or with a negative number, is dropped from the
    registration."""
    max_register_body_size: int = 16 * 1024 * 1024
    """Limit in bytes of an inflated registration: some 200,000 topics."""
    broker_takeover_silence: int = 45_000
    """Silence in ms after which another host may register under the name and id, or the address, of a broker
    whose connection still exists."""
    delete_topic_with_broker_registration: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    support_acting_master: bool = False
    """Whether the routes of brokers with enableSlaveActingMaster show the slave with the smallest id as the master
    while the master is down. Such a slave is read-only."""
    notify_min_broker_id_changed: bool = False
    """Whether brokers with enableSlaveActingMaster are notified at once when the smallest id of their name has changed
    (NOTIFY_MIN_BROKER_ID_CHANGE). The name server connects to the addresses that brokers registered."""
    enable_controller_in_namesrv: bool = False
    """Whether the process is also a controller, on the port of controllerDLegerPeers."""
    max_kv_table_bytes: int = 32 << 20
    """Limit of the key-value table; a full table refuses new keys. Like the next limit, it is not in RocketMQ."""
    max_mapping_table_bytes: int = 64 << 20
    """Limit of the mappings of static topics; further ones are dropped from the registration."""
    max_route_cache_bytes: int = 64 << 20
    """Limit of the cached route answers."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"

    def __post_init__(self) -> None:
        check_numbers(
            self,
            "scan_not_active_broker_interval",
            "broker_expiry_timeout",
            "max_kv_table_bytes",
            "max_mapping_table_bytes",
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
        "supportActingMaster",
        "notifyMinBrokerIdChanged",
        "maxBrokers",
        "maxBrokersPerConnection",
        "maxTopicsPerBroker",
        "maxRoutes",
        "maxQueuesPerTopic",
        "maxRegisterBodySize",
        "brokerTakeoverSilence",
        "maxKvTableBytes",
        "maxMappingTableBytes",
    }
)
"""Settings that UPDATE_NAMESRV_CONFIG (318) may change; others are refused."""
