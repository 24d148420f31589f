"""Settings of a broker, RocketMQ's names in snake case (BrokerConfig, BrokerIdentity). Only keys that have an
effect."""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass

from mqspark.base.config import INT64_MAX, check_settings, parse_addresses, port, setting
from mqspark.base.names import bracketed, is_address
from mqspark.errors import ConfigError
from mqspark.message import NEW_TOPIC_QUEUES, PERM_READ, PERM_WRITE, TRACE_TOPIC

MIN_TABLES_BYTES = 64 << 20
"""The bound of all tables together on a machine with less than four times as much memory."""


class BrokerRole(enum.StrEnum):
    """Whether a master waits for its slaves before it acknowledges a message, or the broker is a slave."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(slots=True)
class BrokerConfig:
    broker_cluster_name: str = setting("DefaultCluster", least=1, section="identity")
    broker_name: str = setting("broker-a", least=1, sample="<host name>")
    """Brokers of one name are master and slaves; give each master its own."""
    broker_id: int = setting(0, least=0)
    """0 is the master; a slave needs one above 0."""
    region_id: str = "DefaultRegion"
    """Sent to producers with each acknowledgement."""

    broker_ip1: str = setting("127.0.0.1", key="brokerIP1", least=1, sample="<this host>", section="network")
    """What clients connect to, by default a bindAddress that is one. Its IP address is part of offset message ids."""
    listen_port: int = port(10911)
    """TCP port; the fast port is listenPort - 2."""
    namesrv_addr: str | None = setting(None, sample="host1:9876;host2:9876")
    """The name servers; by default those of the environment variable NAMESRV_ADDR."""
    register_name_server_period: int = setting(30_000, unit="ms", least=1, live=True)
    """ms between two registrations when nothing changes."""
    register_broker_timeout_mills: int = setting(24_000, unit="ms", least=1, live=True)
    force_register: bool = setting(True, live=True)
    """False: a name server is first asked for its data version, and skipped when it is current."""

    broker_ip2: str | None = setting(None, key="brokerIP2", section="replication")
    """The address that slaves connect to; by default brokerIP1."""
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    """ASYNC_MASTER; SYNC_MASTER: a send is answered when inSyncReplicas brokers have the message; or SLAVE."""
    ha_listen_port: int | None = port(None, sample=10912)
    """Where slaves connect to; listenPort + 1 when absent, or any free port."""
    in_sync_replicas: int = setting(1, least=0, live=True)
    """Brokers that must have a message, including this one, before a SYNC_MASTER acknowledges it. 0 means 1."""
    min_in_sync_replicas: int = setting(1, least=1, live=True)
    """Brokers that must be in sync, including this one, for a SYNC_MASTER to accept a message, and that must have it
    before it is acknowledged."""
    all_ack_in_sync_state_set: bool = False
    """Whether a SYNC_MASTER waits for all slaves that are in sync, and consumers see only what these have."""
    enable_auto_in_sync_replicas: bool = setting(False, live=True)
    """Whether a SYNC_MASTER waits for fewer than inSyncReplicas while fewer are in sync."""
    slave_timeout: int = setting(3_000, unit="ms", least=1, live=True)
    """A send that waits longer for slaves is answered FLUSH_SLAVE_TIMEOUT."""
    ha_send_heartbeat_interval: int = setting(5_000, unit="ms", least=1)
    ha_housekeeping_interval: int = setting(20_000, unit="ms", least=1)
    """A slave that is silent for longer is disconnected."""
    ha_transfer_batch_size: int = setting(32 * 1024, unit="bytes", least=1)
    """Bytes of the log in one frame to a slave."""
    ha_max_gap_not_in_sync: int = setting(256 * 1024 * 1024, unit="bytes", least=1)
    """Bytes of the log that a slave may lack and still count as in sync."""
    ha_master_address: str | None = None
    """A slave's: ``host:port`` of its master's HA port; by default the one that name servers name."""
    ha_unproven_peers: str = setting("", ours=True)
    """``address,network``: masters and slaves of RocketMQ, which can neither prove who they are nor speak TLS. They
    exchange the log with this broker as if it had no users."""
    sync_from_last_file: bool = False
    """A slave's: whether it begins with its master's newest segment when it has no log, instead of the oldest."""
    enable_controller_mode: bool = False
    """Whether controllers decide which broker of this name is the master, and set its brokerRole and brokerId."""
    controller_addr: str | None = None
    """The controllers: ``host:port;host:port``."""
    broker_heartbeat_interval: int = setting(1_000, unit="ms", least=1)
    """ms between two heartbeats to the controllers."""
    send_heartbeat_timeout_millis: int = setting(1_000, unit="ms", least=1)
    controller_heart_beat_timeout_mills: int = setting(8_000, unit="ms", least=1)
    """ms without a heartbeat after which another broker is elected. A master that gets no answer for almost that long
    acknowledges nothing more."""
    broker_election_priority: int = (1 << 31) - 1
    """The smallest one is elected among equals."""
    sync_broker_metadata_period: int = setting(5_000, unit="ms", least=1)
    """A controller is asked who the master is."""
    sync_controller_metadata_period: int = setting(10_000, unit="ms", least=1)
    """A controller is asked which controller leads."""
    check_sync_state_set_period: int = setting(5_000, unit="ms", least=1)
    ha_max_time_slave_not_catchup: int = setting(15_000, unit="ms", least=1)
    """ms after which a slave that lacks something leaves the SyncStateSet."""
    async_learner: bool = False
    """A slave's in controller mode: it copies the log and never belongs to the SyncStateSet, so it is not elected."""
    enable_slave_acting_master: bool = False
    """A slave's: whether it acts as the master while no master is there, if its id is the smallest. A master's: whether
    it takes over what such a slave has done, before name servers learn of it. For all brokers of a name."""
    enable_remote_escape: bool = setting(False, needs=("enable_slave_acting_master",))
    """Whether an acting slave delivers messages whose wait is over to masters of other names. It stores none itself."""
    skip_pre_online: bool = False
    """A master's: whether it registers at once, without what an acting slave has done."""
    broker_not_active_timeout_millis: int = setting(10_000, unit="ms", least=1)
    """ms without a heartbeat after which name servers forget a broker with enableSlaveActingMaster."""
    sync_broker_member_group_period: int = setting(1_000, unit="ms", least=1)
    """Name servers are asked which brokers of this name are there."""
    slave_read_enable: bool = setting(False, live=True)
    """A slave's: whether it serves pulls. A master's: whether it sends consumers of old messages to a slave."""
    offset_check_in_slave: bool = setting(False, live=True)
    """A slave's: whether a pull at an offset that it lacks is answered with the nearest that it has. Otherwise the
    consumer keeps its offset and waits."""

    broker_permission: int = setting(PERM_READ | PERM_WRITE, live=True, section="topics")
    """Bits: 4 read, 2 write."""
    trace_on: bool = setting(True, live=True)
    """Whether clients are told to record traces."""
    auto_create_topic_enable: bool = setting(True, live=True)
    """Whether a send to an unknown topic creates it."""
    auto_create_subscription_group: bool = setting(True, live=True)
    """Whether a pull of an unknown group creates it."""
    cluster_topic_enable: bool = True
    """Whether there is a topic named like the cluster."""
    broker_topic_enable: bool = True
    """Whether there is a topic named like the broker."""
    trace_topic_enable: bool = False
    """Whether there is a topic for message traces, msgTraceTopicName."""
    msg_trace_topic_name: str = TRACE_TOPIC
    schema_registry_enable: bool = setting(False, ours=True)
    """Whether this broker keeps the schema registry of its cluster. Of the masters of a cluster one does."""
    default_topic_queue_nums: int = setting(NEW_TOPIC_QUEUES, least=1, live=True)
    """Limit of queues of an automatically created topic."""
    max_topic_queue_nums: int = setting(8_192, least=1, live=True, ours=True)
    """The limit of read and write queues of a topic, because the cost of several requests grows with the queues."""
    split_metadata_size: int = setting(2000, least=1, live=True)
    """Topics or groups in one page of codes 21 and 201."""
    enable_split_registration: bool = setting(False, live=True)
    """Whether topics are registered in pieces of splitRegistrationSize even when one frame holds all."""
    split_registration_size: int = setting(800, least=1, live=True)
    """Topics in one piece."""
    max_topics: int = setting(100_000, least=1, live=True, ours=True)
    """No request may create more. Those found at start, and retry and dead letter topics of existing groups, come on
    top. An mqspark name server accepts three times as many."""
    max_subscription_groups: int = setting(100_000, least=1, live=True, ours=True)
    """No more groups can be created."""
    max_groups_per_heartbeat: int = setting(10_000, least=1, live=True, ours=True)
    """A heartbeat that names more is refused."""
    max_new_groups_per_heartbeat: int = setting(1_000, least=1, live=True, ours=True)
    """Further groups are created by later heartbeats."""
    max_new_groups_per_connection: int = setting(5_000, least=1, live=True, ours=True)
    """Counts groups created by heartbeats, pulls and pops of one connection."""
    max_new_groups_per_user: int = setting(20_000, least=1, ours=True)
    """Counts groups created by all connections of a user who is not super, since the start."""
    max_table_share_per_user: int = setting(25, unit="percent", least=0, most=100, ours=True)
    """Percent that one user who is not super may hold of each table, of its entries where their number is limited, as
    of topics, groups and parked pulls, and of maxTablesBytes in all tables together. 0: no limit."""
    max_delayed_messages_per_user: int = setting(5_000_000, least=0, ours=True)
    """Messages with a delay, sent since the start, that wait for a user who is not super. 0: no limit."""
    max_check_points_per_user: int = setting(2_000_000, least=0, ours=True)
    """Pops of such a user whose invisible time is not over. 0: no limit."""
    max_acknowledgements_per_user: int = setting(10_000_000, least=0, ours=True)
    """Acknowledgements of pops of such a user whose invisible time is not over; those that come together count once."""
    config_black_list: str = "configBlackList;brokerConfigPath"
    """Keys that no remote request may change."""

    sync_flush_timeout: int = setting(5_000, unit="ms", least=1, live=True, section="store")
    """A send that waits longer is answered FLUSH_DISK_TIMEOUT."""
    archive_url: str = setting("", ours=True, secret=True)
    """The table of the job ``archive``: its messages are served when the log no longer has them; "": none."""
    archive_cache_path: str = setting("", ours=True)
    """Where fetched messages are kept; "": ``mqspark.archivecache`` in storePathRootDir. Emptied at the start."""
    archive_cache_bytes: int = setting(1 << 30, unit="bytes", least=1, most=INT64_MAX, ours=True)
    """Bytes of it kept on this disk."""
    archive_read_timeout: int = setting(10_000, unit="ms", least=1, ours=True)
    """ms that a request waits for messages of the archive; then it is refused, and they are still fetched."""
    archive_refresh_interval: int = setting(60_000, unit="ms", least=1, ours=True)
    """ms between two checks of the archive's contents."""
    archive_fetch_memory_bytes: int = setting(1 << 30, unit="bytes", least=1, most=INT64_MAX, ours=True)
    """Memory of the process that reads the archive."""
    broker_fast_failure_enable: bool = setting(True, live=True)
    """Whether requests that waited longer than these limits are refused with SYSTEM_BUSY."""
    wait_time_mills_in_send_queue: int = setting(200, unit="ms", least=1, live=True)
    """For sends, and what consumers send back."""
    wait_time_mills_in_pull_queue: int = setting(5_000, unit="ms", least=1, live=True)
    """For pulls and pops."""
    wait_time_mills_in_lite_pull_queue: int = setting(5_000, unit="ms", least=1, live=True)
    wait_time_mills_in_heartbeat_queue: int = setting(31_000, unit="ms", least=1, live=True)
    wait_time_mills_in_transaction_queue: int = setting(3_000, unit="ms", least=1, live=True)
    """For commits and rollbacks."""
    wait_time_mills_in_ack_queue: int = setting(3_000, unit="ms", least=1, live=True)
    """For POP's acknowledgements."""
    wait_time_mills_in_admin_broker_queue: int = setting(5_000, unit="ms", least=1, live=True)
    """For administration requests."""

    forward_timeout: int = setting(3_000, unit="ms", least=1, section="consumers")
    """ms that a request about a static topic waits for another broker, which has an earlier part of the queue."""
    enable_property_filter: bool = setting(False, live=True)
    """Whether consumers may filter by SQL92."""
    lite_pull_message_enable: bool = setting(True, live=True)
    long_polling_enable: bool = setting(True, live=True)
    """Whether a pull that finds nothing waits."""
    short_polling_time_mills: int = setting(1_000, unit="ms", least=1, live=True)
    """ms that it waits when long polling is off."""
    revive_queue_num: int = setting(8, least=1)
    """Queues of the topic that holds POP's check points when that topic is made. Above 256 it is also how many queues
    without records a start accepts from ``topics.json``."""
    pop_polling_size: int = setting(1_024, least=1, live=True)
    """Pops that may be parked for one (topic, group, queue)."""
    max_pop_polling_size: int = setting(100_000, least=1, live=True)
    """Pops that may wait in total."""
    pop_from_retry_probability: int = setting(20, unit="percent", live=True)
    """Percent of pops that look at the retries first."""
    pop_from_retry_probability_for_priority: int = setting(0, live=True)
    """The same for pops that take the highest priority first. 0: retries come last, 100: they come first."""
    priority_order_asc: bool = setting(True, live=True)
    """Whether the highest queue id has the highest priority; otherwise queue 0 has it."""
    use_separate_retry_queue: bool = setting(False, live=True)
    """Whether POP's retry topics have a queue for each queue of the topic, so that a retry keeps its priority."""
    enable_retry_topic_v2: bool = setting(False, live=True)
    """Retries of POP go to ``%RETRY%group+topic`` instead of ``%RETRY%group_topic``."""
    retrieve_message_from_pop_retry_topic_v1: bool = setting(True, live=True)
    """With V2, also read the old retry topics."""
    default_message_request_mode: str = setting("PULL", one_of=("PULL", "POP"), live=True)
    """PULL or POP: the mode of consumers that leave the choice to the broker when none is set for their group."""
    default_pop_share_queue_num: int = setting(-1, live=True)
    """With POP, the number of neighbours whose queues a consumer shares; 0 or less: all consumers share all queues."""
    server_load_balancer_enable: bool = setting(True, live=True)
    """False: each of these consumers gets all queues."""
    channel_expired_timeout: int = setting(120_000, unit="ms", least=1, live=True)
    """ms without a heartbeat, then a client is gone."""
    notify_consumer_ids_changed_enable: bool = setting(True, live=True)
    """Whether the members of a group are notified when it changes."""
    rebalance_lock_max_live_time: int = setting(60_000, unit="ms", least=1, live=True, ours=True)
    """ms that a queue lock lives without renewal."""
    flush_consumer_offset_interval: int = setting(5_000, unit="ms", least=1, live=True)
    """ms between two saves of the groups' offsets; after a long save up to a minute more, so that saves take a tenth
    of the time."""
    consumer_offset_update_version_step: int = setting(500, least=1, live=True)
    """Commits after which the offset table's version moves."""
    use_server_side_reset_offset: bool = setting(True, live=True)
    """Whether the broker stores a reset of a group's offsets (222) and applies it with the next pull; otherwise it
    sends the reset to the group's clients (220), one of which must be online."""
    delay_offset_update_version_step: int = setting(200, least=1)
    """Steps of the delay levels after which their table's version moves."""
    recall_message_enable: bool = setting(False, live=True)
    """Whether a timer message can be cancelled with the handle that its producer received."""
    allow_recall_when_broker_not_writeable: bool = setting(True, live=True)
    """Whether it can be cancelled while the broker accepts no messages, too."""
    max_error_rate_of_bloom_filter: int = setting(20, unit="percent", least=1, most=99)
    """Which bits of ``consumerFilter.json``, with the next one, stand for a group's filter. RocketMQ reads them."""
    expect_consumer_num_use_filter: int = setting(32, least=1)
    """Groups that these bits are made for."""
    filter_data_clean_time_span: int = setting(86_400_000, unit="ms", least=1)
    """ms after which ``consumerFilter.json`` loses the filter of a group that is gone."""
    disable_consume_if_consumer_read_slowly: bool = setting(False, live=True)
    """Whether a group that reads too far behind the end of the log may not consume any longer."""
    consumer_fallbehind_threshold: int = setting(16 << 30, unit="bytes", least=0, most=INT64_MAX, live=True)
    """Bytes behind the end of the log that are too far."""
    cg_cold_read_threshold: int = setting(3 << 20, unit="bytes", least=0, most=INT64_MAX, live=True)
    """Bytes of cold data that a group may read in five seconds, with coldDataFlowControlEnable."""
    global_cold_read_threshold: int = setting(100 << 20, unit="bytes", least=0, most=INT64_MAX, live=True)
    """Bytes of cold data that all groups together may read in five seconds."""
    cold_ctr_strategy_enable: bool = setting(False, live=True)
    """Whether the thresholds of groups follow the load of the disk."""
    use_pid_cold_ctr_strategy: bool = setting(True, key="usePIDColdCtrStrategy", live=True)
    """Whether they follow the last ten periods (a PID controller); otherwise only the present one."""
    lite_event_check_interval: int = setting(10_000, unit="ms", least=1, live=True)
    """ms between two checks for clients that do not read lite topics with new messages."""
    lite_ttl_check_interval: int = setting(120_000, unit="ms", least=1, live=True)
    """ms between two checks for expired lite topics."""
    min_lite_ttl: int = setting(900_000, key="minLiteTTl", unit="ms", live=True)
    """ms that a lite topic lives at least after its last message, and after a start."""
    lite_subscription_check_interval: int = setting(120_000, unit="ms", least=1, live=True)
    lite_subscription_check_timeout_mills: int = setting(180_000, unit="ms", least=1, live=True)
    """ms after which the subscriptions of a client to lite topics are forgotten unless it repeats them."""
    max_lite_subscription_count: int = setting(100_000, live=True)
    """Limit of the subscriptions of all clients to lite topics."""
    max_client_event_count: int = setting(100, least=1, live=True)
    """Limit of lite topics with new messages that wait for one client, unless its group has a limit of its own."""
    lite_event_full_dispatch_delay_time: int = setting(10_000, unit="ms", least=1, live=True)
    """ms after which a client beyond that limit is notified of all its lite topics with new messages."""
    lite_event_full_dispatch_delay_time_for_wildcard_group: int = setting(
        10_000, unit="ms", least=1, live=True
    )
    """The same for clients of groups that read all lite topics, when none of them took the notification."""
    lite_lag_count_metrics_enable: bool = setting(False, live=True)
    """Whether metrics say how many messages of lite topics groups have not consumed, by their parent topic."""
    lite_lag_latency_metrics_enable: bool = setting(False, live=True)
    """Whether they say how old the oldest one is."""
    max_lite_table_bytes: int = setting(128 << 20, unit="bytes", least=1, live=True, ours=True)
    """Limit of the table of subscriptions to lite topics."""
    store_reply_message_enable: bool = setting(True, live=True)
    """Whether replies to requests are stored as well as forwarded."""
    reject_transaction_message: bool = setting(False, live=True)
    """Whether transactional messages are refused."""
    transaction_time_out: int = setting(6_000, unit="ms", least=1, live=True)
    """ms after its birth during which a transaction is not checked."""
    transaction_check_interval: int = setting(30_000, unit="ms", least=1, live=True)
    """ms between two rounds of checks of undecided transactions."""
    transaction_check_max: int = setting(15, least=1, live=True)
    """Checks after which a transaction is given up."""
    transaction_op_batch_interval: int = setting(3_000, unit="ms", least=1, live=True)
    """ms between two op messages, which record decisions."""
    transaction_op_msg_max_size: int = setting(4_096, least=1, live=True)
    """Characters of an op message; a full one is written at once."""

    start_accept_send_request_time_stamp: int = setting(0, unit="ms", live=True, section="limits")
    """ms since 1970; sends before it are refused."""
    send_thread_pool_queue_capacity: int = setting(10_000, least=1, live=True)
    """Sends that may wait for their flush; further ones are answered SYSTEM_BUSY."""
    pull_thread_pool_queue_capacity: int = setting(100_000, least=1, live=True)
    """Pulls that may be parked."""
    pull_bytes_per_turn: int = setting(64 * 1024 * 1024, unit="bytes", least=1, live=True, ours=True)
    """Bytes that one connection may receive in one turn of the loop; further pulls are answered SYSTEM_BUSY."""
    max_client_table_bytes: int = setting(512 << 20, unit="bytes", least=1, live=True, ours=True)
    """Memory for client data from heartbeats; enough for some 200,000 clients in 100,000 groups."""
    max_topic_table_bytes: int = setting(256 << 20, unit="bytes", least=1, live=True, ours=True)
    """Topics with their settings; enough for some 200,000."""
    max_group_table_bytes: int = setting(128 << 20, unit="bytes", least=1, live=True, ours=True)
    """Groups with their settings, forbidden topics and request modes; enough for some 100,000 groups."""
    max_offset_table_bytes: int = setting(512 << 20, unit="bytes", least=1, live=True, ours=True)
    """Committed and pulled offsets of groups; enough for some 3,000,000 queues."""
    max_lock_table_bytes: int = setting(128 << 20, unit="bytes", least=1, live=True, ours=True)
    """Locks of queues."""
    max_parked_bytes: int = setting(256 << 20, unit="bytes", least=1, live=True, ours=True)
    """Filters and texts that parked pulls hold; parked pops and notifications may each hold as much."""
    max_pop_table_bytes: int = setting(256 << 20, unit="bytes", least=1, live=True, ours=True)
    """Messages handed out by POP that are not acknowledged yet."""
    max_half_table_bytes: int = setting(128 << 20, unit="bytes", least=1, ours=True)
    """Half messages of users who are not super, sent since the start and not decided yet; some 300,000 of all users."""
    max_schema_table_bytes: int = setting(64 << 20, unit="bytes", least=1, live=True, ours=True)
    """The schema registry: schemas, their subjects and versions."""
    max_statistics_bytes: int = setting(512 << 20, unit="bytes", least=1, live=True, ours=True)
    """Rates by topic and group; rows beyond the limit count only in the totals."""
    max_waiting_bytes: int = setting(32 << 20, unit="bytes", least=1, live=True, ours=True)
    """Answers that wait for a name server, for another broker or for a table to be saved; a limit for each."""
    max_tables_bytes: int = setting(0, unit="bytes", least=0, most=INT64_MAX, live=True, ours=True)
    """All tables above together; a table may also not be larger than what is left of it. 0: a quarter of the machine's
    memory or of the limit of its control group, and 64 MiB at least."""

    message_store_plug_in: str = setting("", section="extensions")
    """``name,name``: entry points of extensions that see what the store makes visible (StoreObserver)."""

    open_telemetry_enable: bool = setting(False, ours=True, section="log")
    """Whether a stored message that comes with a trace gets a span, which the process's SDK exports."""

    def tables_bound(self, memory_bytes: int) -> int:
        """``max_tables_bytes`` on a machine with this much memory."""
        return self.max_tables_bytes or max(memory_bytes // 4, MIN_TABLES_BYTES)

    def __post_init__(self) -> None:
        check_settings(self)
        parse_addresses(self.namesrv_addr or "", key="namesrvAddr")
        if self.enable_controller_mode and not parse_addresses(
            self.controller_addr or "", key="controllerAddr"
        ):
            raise ConfigError("setting enableControllerMode needs controllerAddr", key="controllerAddr")
        if self.broker_role is BrokerRole.SLAVE and self.broker_id <= 0:
            raise ConfigError(
                f"setting brokerId={self.broker_id} is a master's: a slave (brokerRole=SLAVE) needs one above 0",
                key="brokerId",
            )
        if self.enable_slave_acting_master and self.enable_controller_mode:
            raise ConfigError(
                "enableSlaveActingMaster cannot be combined with enableControllerMode: controllers replace a master",
                key="enableSlaveActingMaster",
            )
        if self.ha_master_address and not is_address(self.ha_master_address):
            raise ConfigError(
                f"setting haMasterAddress={self.ha_master_address} is not of the form host:port",
                key="haMasterAddress",
            )
        self.unproven_networks  # noqa: B018 - raises for what is no address

    @property
    def address(self) -> str:
        return f"{bracketed(self.broker_ip1)}:{self.listen_port}"

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
        return f"{bracketed(host)}:{port}"
