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
    delete_topic_with_broker_registration: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"

    def __post_init__(self) -> None:
        check_numbers(self, "scan_not_active_broker_interval", "broker_expiry_timeout")


UPDATABLE_KEYS = frozenset(
    {
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "scanNotActiveBrokerInterval",
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableTopicList",
    }
)
"""What UPDATE_NAMESRV_CONFIG (318) may change; anything else is refused."""
