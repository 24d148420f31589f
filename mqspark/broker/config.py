"""Settings of a broker, RocketMQ's names in snake case (BrokerConfig, BrokerIdentity). Only keys that have an
effect."""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass, field

from mqspark.config import INT64_MAX, check_numbers, parse_addresses
from mqspark.errors import ConfigError
from mqspark.message import PERM_READ, PERM_WRITE, TRACE_TOPIC

__all__ = ["BrokerConfig", "BrokerRole", "UPDATABLE_KEYS"]


MIN_TABLES_BYTES = 64 << 20
"""The bound of all tables together on a machine with less than four times as much memory."""


class BrokerRole(enum.StrEnum):
    """Whether a master waits for its slaves before it acknowledges a message, or the broker is a slave."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(slots=True)
class BrokerConfig:
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_id: int = 0
    broker_ip1: str = field(default="127.0.0.1", metadata={"key": "brokerIP1"})
    """The address or host name that clients connect to. Its IP address is part of every offset message id."""
    broker_ip2: str | None = field(default=None, metadata={"key": "brokerIP2"})
    """The address that slaves connect to; None: brokerIP1."""
    listen_port: int = 10911
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    ha_listen_port: int | None = None  # None: listenPort + 1
    in_sync_replicas: int = 1
    """Brokers that must have a message, including this one, before a SYNC_MASTER acknowledges it. 0 means 1."""
    min_in_sync_replicas: int = 1
    """Brokers that must be in sync, including this one, for a SYNC_MASTER to accept a message, and that must have it
    before it is acknowledged."""
    all_ack_in_sync_state_set: bool = False
    """Whether a SYNC_MASTER waits for all slaves that are in sync, and consumers see only what these have."""
    enable_auto_in_sync_replicas: bool = False
    """Whether a SYNC_MASTER waits for fewer than inSyncReplicas while fewer are in sync."""
    slave_timeout: int = 3_000  # ms; then a send is answered FLUSH_SLAVE_TIMEOUT
    ha_send_heartbeat_interval: int = 5_000  # ms
    ha_housekeeping_interval: int = 20_000  # ms; a slave that is silent for longer is disconnected
    ha_transfer_batch_size: int = 32 * 1024  # bytes of the log in one frame
    ha_max_gap_not_in_sync: int = 256 * 1024 * 1024
    """Bytes of the log that a slave may lack and still count as in sync."""
    ha_master_address: str | None = None
    """A slave's: ``host:port`` of its master's HA port; None: the one that the name servers name."""
    ha_unproven_peers: str = ""
    """``address,network``: masters and slaves of RocketMQ, which can neither prove who they are nor speak TLS. They
    exchange the log with this broker as if it had no users."""
    sync_from_last_file: bool = False
    """A slave's: whether it begins with its master's newest segment when it has no log, instead of the oldest."""
    enable_controller_mode: bool = False
    """Whether controllers decide which broker of this name is the master. Then they also set brokerRole and
    brokerId."""
    controller_addr: str | None = None
    """The controllers: ``host:port;host:port``."""
    broker_heartbeat_interval: int = 1_000  # ms; to the controllers
    send_heartbeat_timeout_millis: int = 1_000
    controller_heart_beat_timeout_mills: int = 8_000
    """ms without a heartbeat after which another broker is elected. A master that gets no answer for almost that long
    acknowledges nothing more."""
    broker_election_priority: int = (1 << 31) - 1
    """The smallest one is elected among equals."""
    sync_broker_metadata_period: int = 5_000  # ms; a controller is asked who the master is
    sync_controller_metadata_period: int = 10_000  # ms; and which controller leads
    check_sync_state_set_period: int = 5_000  # ms
    ha_max_time_slave_not_catchup: int = 15_000
    """ms after which a slave that lacks something leaves the SyncStateSet."""
    async_learner: bool = False
    """A slave's in controller mode: it copies the log and never belongs to the SyncStateSet, so it is not elected."""
    enable_slave_acting_master: bool = False
    """A slave's: whether it acts as the master while no master is there, if its id is the smallest. A master's: whether
    it takes over what such a slave has done, before name servers learn of it. For all brokers of a name."""
    enable_remote_escape: bool = False
    """Whether an acting slave delivers messages whose wait is over to masters of other names. It stores none itself."""
    skip_pre_online: bool = False
    """A master's: whether it registers at once, without what an acting slave has done."""
    broker_not_active_timeout_millis: int = 10_000
    """ms without a heartbeat after which name servers forget a broker with enableSlaveActingMaster."""
    sync_broker_member_group_period: int = (
        1_000  # ms; name servers are asked which brokers of this name are there
    )
    slave_read_enable: bool = False
    """A slave's: whether it serves pulls. A master's: whether it sends consumers of old messages to a slave."""
    offset_check_in_slave: bool = False
    """A slave's: whether a pull at an offset that it lacks is answered with the nearest that it has. Otherwise the
    consumer keeps its offset and waits."""
    namesrv_addr: str | None = None
    """``host:port;host:port``."""
    broker_permission: int = PERM_READ | PERM_WRITE
    region_id: str = "DefaultRegion"
    trace_on: bool = True

    register_name_server_period: int = 30_000  # ms; held between 10 and 60 s
    register_broker_timeout_mills: int = 24_000
    force_register: bool = True
    """False: a name server is first asked for its data version, and skipped when it is current."""

    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = TRACE_TOPIC
    default_topic_queue_nums: int = 8
    max_topic_queue_nums: int = 8_192
    """The limit of read and write queues when a topic is created or changed. RocketMQ has no limit. Several
    requests have a cost proportional to the number of queues, and each queue with messages is a file."""
    split_metadata_size: int = 2000
    """Topics or groups in one page of codes 21 and 201."""

    start_accept_send_request_time_stamp: int = 0  # ms since the epoch
    send_thread_pool_queue_capacity: int = 10_000
    """Sends that may wait for their flush; further ones are answered SYSTEM_BUSY. RocketMQ uses this name for the
    same limit."""
    pull_thread_pool_queue_capacity: int = 100_000
    """Pulls that may be parked."""
    pull_bytes_per_turn: int = 64 * 1024 * 1024
    """Not RocketMQ's. The bytes that one connection may receive in one turn of the loop; further pulls are
    answered SYSTEM_BUSY."""

    enable_split_registration: bool = False
    """Whether topics are always registered in pieces of splitRegistrationSize; otherwise only when one frame is
    too small."""
    split_registration_size: int = 800
    max_topics: int = 100_000
    """Not RocketMQ's, like the next settings. No request may create more topics. Topics found at start, and retry
    and dead letter topics of existing groups, come on top. An mqspark name server accepts three times as many."""
    max_subscription_groups: int = 100_000
    max_groups_per_heartbeat: int = 10_000
    max_new_groups_per_heartbeat: int = 1_000
    """Further groups are created by later heartbeats."""
    max_new_groups_per_connection: int = 5_000
    """Counts groups created by heartbeats, pulls and pops of one connection."""
    max_new_groups_per_user: int = 20_000
    """Counts those of all connections of a user who is not super, since the start."""
    max_table_share_per_user: int = 25
    """Percent. What one user who is not super may hold of each table, of its entries where their number is limited (as
    of topics, groups, parked pulls), and of maxTablesBytes in all tables together. 0: no limit."""
    max_delayed_messages_per_user: int = 5_000_000
    """Messages with a delay, sent since the start, that wait for a user who is not super. 0: no limit."""
    max_check_points_per_user: int = 2_000_000
    """The same for pops whose invisible time is not over."""
    max_acknowledgements_per_user: int = 10_000_000
    """The same for acknowledgements of pops, which are kept until the invisible time is over. Those of one pop that
    come together count once."""
    max_client_table_bytes: int = 512 << 20
    """Memory for client data from heartbeats; enough for some 200,000 clients in 100,000 groups."""
    max_topic_table_bytes: int = 256 << 20
    """Topics with their settings; enough for some 200,000."""
    max_group_table_bytes: int = 128 << 20
    """Groups with their settings, forbidden topics and request modes; enough for some 100,000 groups."""
    max_offset_table_bytes: int = 512 << 20
    """Committed and pulled offsets of groups; enough for some 3,000,000 queues."""
    max_lock_table_bytes: int = 128 << 20
    """Locks of queues."""
    max_parked_bytes: int = 256 << 20
    """Filters and texts that parked pulls hold; parked pops and notifications may each hold as much."""
    max_pop_table_bytes: int = 256 << 20
    """Messages handed out by POP that are not acknowledged yet."""
    max_half_table_bytes: int = 128 << 20
    """Half messages of users who are not super, sent since the start and not decided yet; some 300,000 of all users."""
    max_statistics_bytes: int = 512 << 20
    """Rates by topic and group; rows beyond the limit count only in the totals."""
    max_waiting_bytes: int = 32 << 20
    """Answers that wait for a name server, for another broker or for a table to be saved; a limit for each."""
    forward_timeout: int = 3_000
    """The longest time in ms that a request about a static topic waits for another broker, which has an earlier part of
    the queue."""

    max_tables_bytes: int = 0
    """All tables above together; a table may also not be larger than what is left of it. 0: a quarter of the
    machine's memory or of the limit of its control group, and 64 MiB at least."""

    sync_flush_timeout: int = 5_000  # ms; a send that waits longer is answered FLUSH_DISK_TIMEOUT

    enable_property_filter: bool = False
    """Whether consumers may filter by SQL92."""
    lite_pull_message_enable: bool = True
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1_000

    revive_queue_num: int = 8
    """Queues of the topic that holds POP's check points when that topic is made. Above 256 it is also how many queues
    without records a start accepts from ``topics.json``."""
    pop_polling_size: int = 1_024
    """Pops that may be parked for one (topic, group, queue)."""
    max_pop_polling_size: int = 100_000
    pop_from_retry_probability: int = 20  # percent of pops that look at the retries first
    pop_from_retry_probability_for_priority: int = 0
    """The same for pops that take the highest priority first. 0: retries come last, 100: they come first."""
    priority_order_asc: bool = True
    """Whether the highest queue id has the highest priority; otherwise queue 0 has it."""
    use_separate_retry_queue: bool = False
    """Whether POP's retry topics have a queue for each queue of the topic, so that a retry keeps its priority."""
    enable_retry_topic_v2: bool = False
    """Retries of POP go to ``%RETRY%group+topic`` instead of ``%RETRY%group_topic``."""
    retrieve_message_from_pop_retry_topic_v1: bool = True
    """With V2, also read the old retry topics."""

    default_message_request_mode: str = "PULL"
    """PULL or POP: the mode of consumers that leave the choice to the broker when none is set for their group."""
    default_pop_share_queue_num: int = -1
    """With POP, the number of neighbours whose queues a consumer shares; 0 or less: all consumers share all
    queues."""
    server_load_balancer_enable: bool = True
    """False: each of these consumers gets all queues."""

    channel_expired_timeout: int = 120_000  # ms without a heartbeat
    notify_consumer_ids_changed_enable: bool = True
    rebalance_lock_max_live_time: int = 60_000  # ms
    flush_consumer_offset_interval: int = 5_000  # ms
    consumer_offset_update_version_step: int = 500
    use_server_side_reset_offset: bool = True
    """Whether the broker stores a reset of a group's offsets (222) and applies it with the next pull; otherwise
    it sends the reset to the group's clients (220), one of which must be online."""
    delay_offset_update_version_step: int = 200
    recall_message_enable: bool = False
    """Whether a timer message can be cancelled with the handle that its producer received."""
    allow_recall_when_broker_not_writeable: bool = True

    max_error_rate_of_bloom_filter: int = 20
    """Percent. This and the next one say which bits stand for a group's filter in ``consumerFilter.json``. Filters are
    exact here; the bits are RocketMQ's."""
    expect_consumer_num_use_filter: int = 32
    filter_data_clean_time_span: int = 86_400_000
    """ms after which ``consumerFilter.json`` loses the filter of a group that is gone."""

    disable_consume_if_consumer_read_slowly: bool = False
    """Whether a group that reads too far behind the end of the log may not consume any longer."""
    consumer_fallbehind_threshold: int = 16 << 30
    """How many bytes behind the end of the log is too far."""
    cg_cold_read_threshold: int = 3 << 20
    """With coldDataFlowControlEnable, bytes of cold data that a group may read in five seconds."""
    global_cold_read_threshold: int = 100 << 20
    """The same for all groups together."""
    cold_ctr_strategy_enable: bool = False
    """Whether the thresholds of groups follow the load of the disk."""
    use_pid_cold_ctr_strategy: bool = field(default=True, metadata={"key": "usePIDColdCtrStrategy"})
    """Whether they follow the last ten periods (a PID controller); otherwise only the present one."""

    message_store_plug_in: str = field(default="", metadata={"key": "messageStorePlugIn"})
    """``name,name``: entry points of extensions that see what the store makes visible
    (mqspark.extensions.StoreObserver)."""
    open_telemetry_enable: bool = False
    """Whether a stored message that comes with a trace gets a span, which the process's SDK exports."""
    archive_url: str = field(default="", repr=False)
    """The table of the job ``archive``: its messages are served when the log no longer has them; "": none."""
    archive_cache_path: str = ""
    """Where fetched messages are kept; "": ``mqspark.archivecache`` in storePathRootDir. Emptied at the start."""
    archive_cache_bytes: int = 1 << 30
    archive_read_timeout: int = 10_000
    """ms that a request waits for messages of the archive; then it is refused, and they are still fetched."""
    archive_refresh_interval: int = 60_000
    """ms between two checks of the archive's contents."""
    archive_fetch_memory_bytes: int = 1 << 30
    """Memory of the process that reads the archive."""

    lite_event_check_interval: int = 10_000
    """ms between two checks for clients that do not read lite topics with new messages."""
    lite_ttl_check_interval: int = 120_000
    """ms between two checks for expired lite topics."""
    min_lite_ttl: int = field(default=900_000, metadata={"key": "minLiteTTl"})
    """ms that a lite topic lives at least after its last message, and after a start."""
    lite_subscription_check_interval: int = 120_000
    lite_subscription_check_timeout_mills: int = 180_000
    """ms after which the subscriptions of a client to lite topics are forgotten unless it repeats them."""
    max_lite_subscription_count: int = 100_000
    """Limit of the subscriptions of all clients to lite topics."""
    max_client_event_count: int = 100
    """Limit of lite topics with new messages that wait for one client, unless its group has a limit of its own."""
    lite_event_full_dispatch_delay_time: int = 10_000
    """ms after which a client beyond that limit is notified of all its lite topics with new messages."""
    lite_event_full_dispatch_delay_time_for_wildcard_group: int = 10_000
    """The same for clients of groups that read all lite topics, when none of them took the notification."""
    lite_lag_count_metrics_enable: bool = False
    """Whether metrics say how many messages of lite topics groups have not consumed, by their parent topic."""
    lite_lag_latency_metrics_enable: bool = False
    """Whether they say how old the oldest one is."""
    max_lite_table_bytes: int = 128 << 20
    """Limit of the table of subscriptions to lite topics. Not in RocketMQ."""

    store_reply_message_enable: bool = True
    """Whether replies to requests are stored as well as forwarded."""
    reject_transaction_message: bool = False
    transaction_time_out: int = 6_000
    """ms after its birth during which a transaction is not checked."""
    transaction_check_interval: int = 30_000  # ms
    transaction_check_max: int = 15
    """Checks after which a transaction is given up."""
    transaction_op_batch_interval: int = 3_000  # ms
    transaction_op_msg_max_size: int = 4_096  # characters

    broker_fast_failure_enable: bool = True
    """Whether requests that waited longer than these limits are refused with SYSTEM_BUSY."""
    wait_time_mills_in_send_queue: int = 200  # ms
    wait_time_mills_in_pull_queue: int = 5_000  # ms
    wait_time_mills_in_lite_pull_queue: int = 5_000  # ms
    wait_time_mills_in_heartbeat_queue: int = 31_000  # ms
    wait_time_mills_in_transaction_queue: int = 3_000  # ms
    wait_time_mills_in_ack_queue: int = 3_000  # ms
    wait_time_mills_in_admin_broker_queue: int = 5_000  # ms

    config_black_list: str = "configBlackList;brokerConfigPath"

    def tables_bound(self, memory_bytes: int) -> int:
        """``max_tables_bytes`` on a machine with this much memory."""
        return self.max_tables_bytes or max(memory_bytes // 4, MIN_TABLES_BYTES)

    def __post_init__(self) -> None:
        for name, key in (
            ("broker_cluster_name", "brokerClusterName"),
            ("broker_name", "brokerName"),
            ("broker_ip1", "brokerIP1"),
        ):
            if not getattr(self, name):
                raise ConfigError(f"setting {key} must not be empty", key=key)
        parse_addresses(self.namesrv_addr or "", key="namesrvAddr")
        if self.default_message_request_mode not in ("PULL", "POP"):
            raise ConfigError(
                f"setting defaultMessageRequestMode={self.default_message_request_mode} is not PULL or POP",
                key="defaultMessageRequestMode",
            )
        for name, port in (("listenPort", self.listen_port), ("haListenPort", self.ha_listen_port)):
            if port is not None and not 0 <= port <= 65535:
                raise ConfigError(f"setting {name}={port} is not a port (0 to 65535)", key=name)
        if self.enable_controller_mode and not parse_addresses(
            self.controller_addr or "", key="controllerAddr"
        ):
            raise ConfigError("setting enableControllerMode needs controllerAddr", key="controllerAddr")
        if self.broker_role is BrokerRole.SLAVE and self.broker_id <= 0:
            raise ConfigError(
                f"setting brokerId={self.broker_id} is a master's: a slave (brokerRole=SLAVE) needs one above 0",
                key="brokerId",
            )
        if self.enable_remote_escape and not self.enable_slave_acting_master:
            raise ConfigError(
                "setting enableRemoteEscape needs enableSlaveActingMaster", key="enableRemoteEscape"
            )
        if self.enable_slave_acting_master and self.enable_controller_mode:
            raise ConfigError(
                "enableSlaveActingMaster cannot be combined with enableControllerMode: controllers replace a master",
                key="enableSlaveActingMaster",
            )
        host, _, ha_port = (self.ha_master_address or "host:1").rpartition(":")
        if not host or not ha_port.isdecimal() or not 0 < int(ha_port) <= 65535:
            raise ConfigError(
                f"setting haMasterAddress={self.ha_master_address} is not of the form host:port",
                key="haMasterAddress",
            )
        self.unproven_networks  # noqa: B018 - raises for what is no address
        check_numbers(self, "max_error_rate_of_bloom_filter", most=99)
        check_numbers(self, "broker_id", "in_sync_replicas", least=0)
        check_numbers(
            self,
            "max_tables_bytes",
            "consumer_fallbehind_threshold",
            "cg_cold_read_threshold",
            "global_cold_read_threshold",
            least=0,
            most=INT64_MAX,
        )
        check_numbers(self, "max_table_share_per_user", least=0, most=100)
        check_numbers(self, "max_delayed_messages_per_user", "max_check_points_per_user", least=0)
        check_numbers(self, "max_acknowledgements_per_user", least=0)
        check_numbers(self, "archive_cache_bytes", "archive_fetch_memory_bytes", most=INT64_MAX)
        check_numbers(self, "archive_read_timeout", "archive_refresh_interval")
        check_numbers(
            self,
            "register_name_server_period",
            "register_broker_timeout_mills",
            "default_topic_queue_nums",
            "max_topic_queue_nums",
            "split_metadata_size",
            "send_thread_pool_queue_capacity",
            "pull_thread_pool_queue_capacity",
            "pull_bytes_per_turn",
            "split_registration_size",
            "max_topics",
            "max_subscription_groups",
            "max_groups_per_heartbeat",
            "max_new_groups_per_heartbeat",
            "max_new_groups_per_connection",
            "max_new_groups_per_user",
            "max_client_table_bytes",
            "max_topic_table_bytes",
            "max_group_table_bytes",
            "max_offset_table_bytes",
            "max_lock_table_bytes",
            "max_parked_bytes",
            "max_pop_table_bytes",
            "max_half_table_bytes",
            "max_statistics_bytes",
            "max_waiting_bytes",
            "forward_timeout",
            "sync_flush_timeout",
            "slave_timeout",
            "min_in_sync_replicas",
            "ha_send_heartbeat_interval",
            "ha_housekeeping_interval",
            "ha_transfer_batch_size",
            "ha_max_gap_not_in_sync",
            "broker_heartbeat_interval",
            "broker_not_active_timeout_millis",
            "sync_broker_member_group_period",
            "send_heartbeat_timeout_millis",
            "controller_heart_beat_timeout_mills",
            "sync_broker_metadata_period",
            "sync_controller_metadata_period",
            "check_sync_state_set_period",
            "ha_max_time_slave_not_catchup",
            "short_polling_time_mills",
            "revive_queue_num",
            "pop_polling_size",
            "max_pop_polling_size",
            "lite_event_check_interval",
            "lite_ttl_check_interval",
            "lite_subscription_check_interval",
            "lite_subscription_check_timeout_mills",
            "max_client_event_count",
            "lite_event_full_dispatch_delay_time",
            "lite_event_full_dispatch_delay_time_for_wildcard_group",
            "max_lite_table_bytes",
            "channel_expired_timeout",
            "rebalance_lock_max_live_time",
            "flush_consumer_offset_interval",
            "consumer_offset_update_version_step",
            "expect_consumer_num_use_filter",
            "filter_data_clean_time_span",
            "transaction_time_out",
            "transaction_check_interval",
            "transaction_check_max",
            "transaction_op_batch_interval",
            "transaction_op_msg_max_size",
            "delay_offset_update_version_step",
            "wait_time_mills_in_send_queue",
            "wait_time_mills_in_pull_queue",
            "wait_time_mills_in_lite_pull_queue",
            "wait_time_mills_in_heartbeat_queue",
            "wait_time_mills_in_transaction_queue",
            "wait_time_mills_in_ack_queue",
            "wait_time_mills_in_admin_broker_queue",
        )

    @property
    def address(self) -> str:
        return f"{_bracketed(self.broker_ip1)}:{self.listen_port}"

    @property
    def unproven_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """haUnprovenPeers. Raises ConfigError."""
        words = [word.strip() for word in self.ha_unproven_peers.split(",") if word.strip()]
        try:
            return tuple(ipaddress.ip_network(word, strict=False) for word in words)
        except ValueError as error:
            raise ConfigError(f"setting haUnprovenPeers: {error}", key="haUnprovenPeers") from None

    @property
    def ha_address(self) -> str:
        host, port = self.broker_ip2 or self.broker_ip1, self.ha_listen_port or self.listen_port + 1
        return f"{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


UPDATABLE_KEYS = frozenset(
    {
        "brokerPermission",
        "traceOn",
        "autoCreateTopicEnable",
        "autoCreateSubscriptionGroup",
        "defaultTopicQueueNums",
        "maxTopicQueueNums",
        "splitMetadataSize",
        "startAcceptSendRequestTimeStamp",
        "sendThreadPoolQueueCapacity",
        "pullThreadPoolQueueCapacity",
        "pullBytesPerTurn",
        "slaveReadEnable",
        "offsetCheckInSlave",
        "inSyncReplicas",
        "minInSyncReplicas",
        "enableAutoInSyncReplicas",
        "slaveTimeout",
        "enableSplitRegistration",
        "splitRegistrationSize",
        "maxTopics",
        "maxSubscriptionGroups",
        "maxGroupsPerHeartbeat",
        "maxNewGroupsPerHeartbeat",
        "maxNewGroupsPerConnection",
        "maxClientTableBytes",
        "maxTopicTableBytes",
        "maxGroupTableBytes",
        "maxOffsetTableBytes",
        "maxLockTableBytes",
        "maxParkedBytes",
        "maxPopTableBytes",
        "maxStatisticsBytes",
        "maxWaitingBytes",
        "maxTablesBytes",
        "enablePropertyFilter",
        "litePullMessageEnable",
        "longPollingEnable",
        "shortPollingTimeMills",
        "accessMessageInMemoryMaxRatio",
        "defaultMessageRequestMode",
        "defaultPopShareQueueNum",
        "serverLoadBalancerEnable",
        "popPollingSize",
        "maxPopPollingSize",
        "popFromRetryProbability",
        "popFromRetryProbabilityForPriority",
        "priorityOrderAsc",
        "useSeparateRetryQueue",
        "enableRetryTopicV2",
        "retrieveMessageFromPopRetryTopicV1",
        "channelExpiredTimeout",
        "notifyConsumerIdsChangedEnable",
        "rebalanceLockMaxLiveTime",
        "flushConsumerOffsetInterval",
        "consumerOffsetUpdateVersionStep",
        "recallMessageEnable",
        "allowRecallWhenBrokerNotWriteable",
        "useServerSideResetOffset",
        "disableConsumeIfConsumerReadSlowly",
        "consumerFallbehindThreshold",
        "liteEventCheckInterval",
        "liteTtlCheckInterval",
        "minLiteTTl",
        "liteSubscriptionCheckInterval",
        "liteSubscriptionCheckTimeoutMills",
        "maxLiteSubscriptionCount",
        "maxClientEventCount",
        "liteEventFullDispatchDelayTime",
        "liteEventFullDispatchDelayTimeForWildcardGroup",
        "liteLagCountMetricsEnable",
        "liteLagLatencyMetricsEnable",
        "maxLiteTableBytes",
        "storeReplyMessageEnable",
        "rejectTransactionMessage",
        "transactionTimeOut",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionOpBatchInterval",
        "transactionOpMsgMaxSize",
        "registerNameServerPeriod",
        "registerBrokerTimeoutMills",
        "forceRegister",
        "syncFlushTimeout",
        "brokerFastFailureEnable",
        "waitTimeMillsInSendQueue",
        "waitTimeMillsInPullQueue",
        "waitTimeMillsInLitePullQueue",
        "waitTimeMillsInHeartbeatQueue",
        "waitTimeMillsInTransactionQueue",
        "waitTimeMillsInAckQueue",
        "waitTimeMillsInAdminBrokerQueue",
        "cgColdReadThreshold",
        "globalColdReadThreshold",
        "coldCtrStrategyEnable",
        "usePIDColdCtrStrategy",
        # of the store's settings
        "accessMessageInMemoryHotRatio",
        "coldDataFlowControlEnable",
        "coldDataScanEnable",
        "dataReadAheadEnable",
        "maxMessageSize",
        "youngQueueFromStart",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferCountOnMessageInDisk",
        "maxTransferBytesOnBulkRead",
        "maxTransferCountOnBulkRead",
        "maxFilterMessageSize",
        "maxMsgsNumBatch",
        "defaultQueryMaxNum",
        "checkCRCOnRead",
        "flushIntervalCommitLog",
        "flushIntervalConsumeQueue",
        "deleteArchivedOnly",
        "deleteCompactedOnly",
        "enableCompaction",
        "compactionScheduleInternal",
        "maxOffsetMapSize",
        "fileReservedTime",
        "deleteWhen",
        "timerWheelEnable",
        "timerMaxDelaySec",
        "timerCongestNumEachSlot",
        "timerFlushIntervalMs",
        "appendTopicForTimerDeleteKey",
        "deleteFileBatchMax",
        "cleanResourceInterval",
        "cleanFileForciblyEnable",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
    }
)
"""The settings that UPDATE_BROKER_CONFIG (25) may change while the broker runs; others are refused. Values are
validated by type."""
