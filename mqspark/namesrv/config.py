"""Settings of a name server, under RocketMQ's names in snake case (NamesrvConfig). Only settings that have an
effect."""

from __future__ import annotations

from dataclasses import dataclass

from mqspark.base.config import check_settings, setting


@dataclass(slots=True)
class NamesrvConfig:
    kv_config_path: str | None = setting(None, sample="~/namesrv/kvConfig.json", section="config")
    """File of the key-value table (codes 100 to 102); without it the table stays in memory."""
    max_kv_table_bytes: int = setting(32 << 20, unit="bytes", least=1, live=True, ours=True)
    """Limit of the key-value table; a full table refuses new keys."""
    max_mapping_table_bytes: int = setting(64 << 20, unit="bytes", least=1, live=True, ours=True)
    """Limit of the mappings of static topics; further ones are dropped from the registration."""
    max_route_cache_bytes: int = setting(64 << 20, unit="bytes", least=1, ours=True)
    """Limit of the cached route answers."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys that no remote request may change."""

    order_message_enable: bool = setting(False, live=True, section="order")
    """Whether routes contain ``orderTopicConf``."""
    return_order_topic_config_to_broker: bool = setting(True, live=True)

    scan_not_active_broker_interval: int = setting(5_000, unit="ms", least=1, live=True, section="routes")
    """ms between two scans for dead brokers."""
    broker_expiry_timeout: int = setting(120_000, unit="ms", least=1, ours=True)
    """Silence after which a broker is unregistered. A broker's own heartbeatTimeoutMillis takes precedence."""
    max_brokers: int = setting(2_000, least=1, live=True, ours=True)
    """Limit of broker addresses, including slaves; a further broker is refused."""
    max_brokers_per_connection: int = setting(64, least=1, live=True, ours=True)
    """A RocketMQ broker has its own connection; the brokers of a container share one."""
    max_topics_per_broker: int = setting(300_000, least=1, live=True, ours=True)
    """Topics of one broker; further topics of a registration are ignored."""
    max_routes: int = setting(500_000, least=1, live=True, ours=True)
    """Limit of (topic, broker) pairs, some 400 bytes each. Topics of a registration beyond this or the next limit are
    dropped."""
    max_queues_per_topic: int = setting(65_536, least=1, live=True, ours=True)
    """Limit for one broker. A topic with more queues, or with a negative number, is dropped from the registration."""
    max_register_body_size: int = setting(16 * 1024 * 1024, unit="bytes", least=1, live=True, ours=True)
    """Limit of an inflated registration: some 200,000 topics."""
    broker_takeover_silence: int = setting(45_000, unit="ms", least=0, live=True, ours=True)
    """Silence after which another host may register under the name and id, or the address, of a broker whose
    connection still exists."""
    delete_topic_with_broker_registration: bool = setting(False, live=True)
    """Whether a registration without a topic removes it."""
    enable_all_topic_list: bool = setting(True, live=True)
    """Whether requests for all topics are answered."""
    enable_topic_list: bool = setting(True, live=True)
    """Whether requests for the topics of a cluster are answered."""
    support_acting_master: bool = setting(False, live=True)
    """Whether the routes of brokers with enableSlaveActingMaster show the slave with the smallest id as the master
    while the master is down. Such a slave is read-only."""
    notify_min_broker_id_changed: bool = setting(False, live=True)
    """Whether brokers with enableSlaveActingMaster are notified at once when the smallest id of their name has changed
    (NOTIFY_MIN_BROKER_ID_CHANGE). The name server connects to the addresses that brokers registered."""

    enable_controller_in_namesrv: bool = setting(False, section="controller")
    """Whether the process is also a controller, on the port of controllerDLegerPeers."""

    def __post_init__(self) -> None:
        check_settings(self)
