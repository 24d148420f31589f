"""The blocking classes, which forward to the asyncio classes. Made by tests/unit/client/blocking_classes.py.

What is more than a call that is forwarded is in ``producers``, ``consumers`` and ``facade``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, Unpack

from mqspark.base.valuetypes import NonNegativeInt, PositiveInt, checked
from mqspark.client import admin
from mqspark.client.admin import GroupOffset, QueueRead, SchemaAnswer
from mqspark.client.consumer import subscriber
from mqspark.client.consumer.consumer_settings import (
    LitePullConsumerKeywords,
    LitePullConsumerSettings,
    PopConsumerKeywords,
    PopConsumerSettings,
    PushConsumerKeywords,
    PushConsumerSettings,
)
from mqspark.client.consumer.queuewatch import QueuesListener
from mqspark.client.delivery.delivery import BatchListener, Listener
from mqspark.client.delivery.results import SendResult
from mqspark.client.lite import litepull
from mqspark.client.pop import pop
from mqspark.client.producer import producer, transaction
from mqspark.client.producer.outgoing import QueueSelector
from mqspark.client.producer.producer_settings import ProducerKeywords, ProducerSettings
from mqspark.client.producer.transaction import Check, Execute
from mqspark.client.push import push
from mqspark.client.remoting.client_options import ClientKeywords, ClientOptions
from mqspark.client.remoting.indexwalk import EVER_MS
from mqspark.client.remoting.keywords import NAMES, spelled_out
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.client.sync.consumers import PollingFacade
from mqspark.client.sync.facade import Facade
from mqspark.client.sync.producers import SendingFacade, TransactionFacade
from mqspark.message import (
    CLIENT_TOPIC_QUEUES,
    PERM_READ,
    PERM_WRITE,
    TOOLS_GROUP,
    Message,
    MessageExt,
    MessageQueue,
)
from mqspark.protocol.bodies.admin_bodies import BrokerStatsData, ConsumerRunningInfo, TopicOffset
from mqspark.protocol.bodies.client_bodies import ConsumerConnection, ProducerConnection, ProducerInfo
from mqspark.protocol.bodies.replica_bodies import HARuntimeInfo
from mqspark.protocol.bodies.topic_bodies import ClusterInfo, SubscriptionGroupConfig, TopicConfig
from mqspark.protocol.command import Command, Fields


@checked()
class AdminClient(Facade):
    """The blocking ``mqspark.aio.AdminClient``; takes the same arguments."""

    _aio: admin.AdminClient

    @spelled_out(ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout_ms: PositiveInt = 5000,
        options: ClientOptions | None = None,
        **changes: Unpack[ClientKeywords],
    ) -> None:
        """``timeout_ms`` is the limit of each request. Every field of ``ClientOptions`` may also be given as a
        keyword, which takes precedence. Raises ConfigError, TypeError for an unknown keyword.
        """
        self._adopt(admin.AdminClient(namesrv, timeout_ms=timeout_ms, options=options, **changes))

    def cluster_info(self) -> ClusterInfo:
        """All clusters and brokers that the name server knows, with the addresses of masters (id 0) and slaves.

        >>> info = admin.cluster_info()
        >>> info.broker_addr_table["broker-a"].broker_addrs[0]
        '10.0.0.1:10911'
        """
        return self._call(self._aio.cluster_info)

    def broker_runtime_info(self, address: str) -> dict[str, str]:
        """The values that ``mqadmin brokerStatus`` shows."""
        return self._call(self._aio.broker_runtime_info, address)

    def broker_config(self, address: str) -> dict[str, str]:
        """The broker's settings under RocketMQ's names."""
        return self._call(self._aio.broker_config, address)

    def update_broker_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of the broker at ``address`` (``host:port``), by RocketMQ's names. Raises BrokerError for
        settings that the broker does not take while it runs.
        """
        self._call(self._aio.update_broker_config, address, settings)

    def broker_stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        """One counter of a broker over the last minute, hour and day. ``name`` is RocketMQ's, e.g. TOPIC_PUT_NUMS with
        a topic as ``key`` or GROUP_GET_NUMS with ``topic@group``. Raises BrokerError for a counter without a value.
        """
        return self._call(self._aio.broker_stats, address, name, key)

    def ha_status(self, address: str) -> HARuntimeInfo:
        """The replication state of the broker at ``address``: the slaves and their positions, or a slave's own."""
        return self._call(self._aio.ha_status, address)

    def clean_up(self, address: str, what: Literal["queues", "topics", "log"]) -> None:
        """Make a broker remove expired queue files, unused topics or expired files of the log now."""
        self._call(self._aio.clean_up, address, what)

    def set_writable(self, broker_name: str, *, writable: bool) -> int:
        """Allow or forbid sends to the broker, at every name server; returns the number of its topics. While it is
        not writable, producers avoid the broker and consumers read what it still has.
        """
        return self._call(self._aio.set_writable, broker_name, writable=writable)

    @property
    def namesrv(self) -> list[str]:
        """The addresses of the name servers."""
        return self._aio.namesrv

    def namesrv_config(self, address: str) -> dict[str, str]:
        """The settings of the name server at ``address``, under RocketMQ's names."""
        return self._call(self._aio.namesrv_config, address)

    def update_namesrv_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of the name server at ``address``. Raises BrokerError for those that it does not take."""
        self._call(self._aio.update_namesrv_config, address, settings)

    def ask_schemas(
        self,
        operation: str,
        *,
        subject: str | None = None,
        version: str | int | None = None,
        schema_id: int | str | None = None,
        options: str | Mapping[str, str] = "",
        body: bytes = b"",
    ) -> SchemaAnswer:
        """The answer of the schema registry to an operation (a name of ``protocol.schemaoperations.OPERATIONS``), as
        its HTTP API gives it, also when that is an error. A slave answers what only reads when its master is down.

        Raises ConfigError for an operation that does not exist, NoSchemaRegistry when no broker keeps a registry, or
        several do.

        >>> answer = admin.ask_schemas("list_versions", subject="Orders-value")
        """
        return self._call(
            self._aio.ask_schemas,
            operation,
            subject=subject,
            version=version,
            schema_id=schema_id,
            options=options,
            body=body,
        )

    def create_topic(
        self,
        topic: str,
        *,
        queues: PositiveInt = CLIENT_TOPIC_QUEUES,
        read_queues: PositiveInt | None = None,
        write_queues: PositiveInt | None = None,
        cluster: str | None = None,
        brokers: Collection[str] | None = None,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicRoute:
        """Create or change a topic on all masters (of ``cluster``, or those named in ``brokers``).

        ``queues`` is the number of its queues on each broker, unless ``read_queues`` or ``write_queues`` says
        otherwise for one of the two; ``perm`` is 2 (write), 4 (read) or their sum;
        ``attributes`` are those of RocketMQ, e.g. ``{"message.type": "FIFO"}``. Returns once the name server has its
        route there. Raises InvalidMessage for a name that no topic can have, ConfigError for an unknown cluster or
        broker, RequestTimeout if the route does not come.

        >>> admin.create_topic("Orders", queues=8)
        """
        return self._call(
            self._aio.create_topic,
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            cluster=cluster,
            brokers=brokers,
            perm=perm,
            order=order,
            attributes=attributes,
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the topic from all brokers (of ``cluster``), then from all name servers. A topic that does not exist
        is no error. Raises ConfigError for an unknown cluster.
        """
        self._call(self._aio.delete_topic, topic, cluster=cluster)

    def topic_list(self, *, cluster: str | None = None) -> list[str]:
        """All topics that the name server knows, or those of ``cluster``; system topics included."""
        return self._call(self._aio.topic_list, cluster=cluster)

    def topic_route(self, topic: str) -> TopicRoute:
        """The brokers and queues of a topic, as the name server knows them now. Raises NoRoute."""
        return self._call(self._aio.topic_route, topic)

    def topic_config(self, topic: str, address: str) -> TopicConfig:
        """Queue counts, permissions and attributes of a topic at the broker at ``address`` (``host:port``). Raises
        BrokerError TOPIC_NOT_EXIST.
        """
        return self._call(self._aio.topic_config, topic, address)

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Minimum and maximum offset and last store time (ms since the epoch) of every queue. Raises NoRoute."""
        return self._call(self._aio.topic_stats, topic)

    def topic_groups(self, topic: str) -> list[str]:
        """The consumer groups that have an offset in the topic or a live member that subscribes to it. Raises
        NoRoute.
        """
        return self._call(self._aio.topic_groups, topic)

    def topic_producers(self, topic: str, group: str) -> ProducerConnection:
        """The live producers of ``group``. Raises NoRoute for an unknown topic, BrokerError if there is none."""
        return self._call(self._aio.topic_producers, topic, group)

    def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        """All live producers of the broker at ``address``, by producer group."""
        return self._call(self._aio.producers, address)

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message that was stored at or after the time; the end of the queue if all are
        older. Raises NoRoute.
        """
        return self._call(self._aio.offset_at, queue, timestamp_ms)

    def queue_bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset of a queue, and the one after its last message. Raises NoRoute."""
        return self._call(self._aio.queue_bounds, queue)

    def read(
        self,
        queue: MessageQueue,
        offset: NonNegativeInt,
        *,
        max_messages: PositiveInt = 32,
        expression: str = "*",
        expression_type: str = "TAG",
        wait_ms: NonNegativeInt = 0,
        group: str = TOOLS_GROUP,
    ) -> QueueRead:
        """Messages of a queue from ``offset`` on, without being a member of a group and without committing.

        ``expression`` filters by tags, or with ``expression_type="SQL92"`` by properties. ``wait_ms``: how long the
        broker may wait for a message where there is none. Raises NoRoute, BrokerError.
        """
        return self._call(
            self._aio.read,
            queue,
            offset,
            max_messages=max_messages,
            expression=expression,
            expression_type=expression_type,
            wait_ms=wait_ms,
            group=group,
        )

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        max_messages: PositiveInt = 32,
        begin_ms: int = 0,
        end_ms: int = EVER_MS,
    ) -> list[MessageExt]:
        """Messages with that key, oldest first; with ``unique`` those with that unique id. Each broker gives the newest
        ``max_messages``, by as many requests as it takes. Raises NoRoute.
        """
        return self._call(
            self._aio.messages_by_key,
            topic,
            key,
            unique=unique,
            max_messages=max_messages,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )

    def messages_by_tag(
        self,
        topic: str,
        tag: str,
        *,
        max_messages: PositiveInt = 32,
        begin_ms: int = 0,
        end_ms: int = EVER_MS,
    ) -> list[MessageExt]:
        """Messages with that tag, oldest first, by the brokers' index. Each broker gives the newest
        ``max_messages``, by as many requests as it takes. A RocketMQ before 5.5 finds none. Raises NoRoute.
        """
        return self._call(
            self._aio.messages_by_tag, topic, tag, max_messages=max_messages, begin_ms=begin_ms, end_ms=end_ms
        )

    def message_by_offset_id(self, message_id: str) -> MessageExt:
        """The message with the id that its broker gave it, which contains the broker's address and the place in its
        log. Raises InvalidMessage for text that is no such id, BrokerError if there is no such message.
        """
        return self._call(self._aio.message_by_offset_id, message_id)

    def groups(self, names: Collection[str] | None = None) -> dict[str, SubscriptionGroupConfig]:
        """All consumer groups of all masters, those of the brokers themselves included, or those of ``names`` that are
        there.
        """
        return self._call(self._aio.groups, names)

    def group_names(self) -> list[str]:
        """The names of all consumer groups of all masters, in order, those of the brokers themselves included."""
        return self._call(self._aio.group_names)

    def group_config(self, group: str, address: str) -> SubscriptionGroupConfig:
        """The settings of a group at the broker at ``address``. Raises BrokerError if it has no such group; a broker
        that creates groups by itself creates it.
        """
        return self._call(self._aio.group_config, group, address)

    def create_group(
        self, group: str, *, cluster: str | None = None, config: SubscriptionGroupConfig | None = None
    ) -> None:
        """Create or change a consumer group on all masters. ``config``'s group name is overwritten."""
        self._call(self._aio.create_group, group, cluster=cluster, config=config)

    def set_consume_mode(
        self,
        topic: str,
        group: str,
        mode: str,
        *,
        share_queues: NonNegativeInt = 0,
        cluster: str | None = None,
    ) -> None:
        """Set how consumers that leave the mode to the brokers consume the topic: by ``PULL`` or by ``POP``. With
        POP, each consumer shares the queues of ``share_queues`` neighbours (0: all share all).
        """
        self._call(self._aio.set_consume_mode, topic, group, mode, share_queues=share_queues, cluster=cluster)

    def delete_group(self, group: str, *, cluster: str | None = None, clean_offsets: bool = True) -> None:
        """Delete a consumer group from all masters (of ``cluster``), with its committed offsets if
        ``clean_offsets``.
        """
        self._call(self._aio.delete_group, group, cluster=cluster, clean_offsets=clean_offsets)

    def group_members(self, group: str) -> ConsumerConnection:
        """The live consumers of a group. Raises BrokerError CONSUMER_NOT_ONLINE if there are none."""
        return self._call(self._aio.group_members, group)

    def running_info(self, group: str, client_id: str, *, with_stacks: bool = False) -> ConsumerRunningInfo:
        """The state of a live consumer as ``mqadmin consumerStatus`` shows it: its settings, queues and rates,
        ``with_stacks`` of its threads. ``client_id`` is one of ``group_members``. Raises BrokerError if no broker has a
        connection to it.
        """
        return self._call(self._aio.running_info, group, client_id, with_stacks=with_stacks)

    def group_offsets(self, group: str, topic: str | None = None) -> dict[MessageQueue, GroupOffset]:
        """The progress of a group, in one topic or in all topics for which its brokers have offsets.

        Raises NoRoute for a topic that does not exist, BrokerError SUBSCRIPTION_GROUP_NOT_EXIST for a group that does
        not.
        """
        return self._call(self._aio.group_offsets, group, topic)

    def group_lag(self, group: str, topic: str | None = None) -> int:
        """Messages that the group has not committed yet. Raises what ``group_offsets`` does."""
        return self._call(self._aio.group_lag, group, topic)

    def consumed_topics(self, group: str) -> set[str]:
        """The topics that the group subscribes to, or has offsets for."""
        return self._call(self._aio.consumed_topics, group)

    def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The offset that the group has committed; None if none."""
        return self._call(self._aio.query_offset, group, queue)

    def update_offset(self, group: str, queue: MessageQueue, offset: NonNegativeInt) -> None:
        """Set the group's committed offset. Live consumers continue from their own positions."""
        self._call(self._aio.update_offset, group, queue, offset)

    def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Move a group to the time in every queue of a topic, forward or back, live members included; returns the new
        offsets. 0 is the beginning, -1 the end. Raises NoRoute, BrokerError.
        """
        return self._call(self._aio.reset_offsets, group, topic, timestamp_ms)

    def reset_offset(self, group: str, queue: MessageQueue, offset: NonNegativeInt) -> None:
        """Move a group to an offset of one queue, live members included. Brokers with ``useServerSideResetOffset``
        (the default) can do that; others move all queues, so check first. Raises NoRoute, BrokerError.
        """
        self._call(self._aio.reset_offset, group, queue, offset)

    def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Give the group ``target`` the committed offsets of ``source`` in a topic. Raises NoRoute, BrokerError."""
        self._call(self._aio.clone_offsets, source, target, topic)

    def ask(self, address: str, code: int, header: Fields = None, body: bytes = b"") -> Command:
        """The answer of the server at ``address`` to any request (``mqspark.protocol.codes``), for requests without a
        method here. Raises BrokerError when the server refuses.
        """
        return self._call(self._aio.ask, address, code, header, body)


@checked(own=NAMES)
class Producer(SendingFacade):
    """The blocking ``mqspark.aio.Producer``; takes the same arguments. Safe to use from many threads."""

    _aio: producer.Producer

    @property
    def group(self) -> str:
        """The producer group, under the cluster's name."""
        return self._aio.group

    @property
    def settings(self) -> ProducerSettings:
        """In effect, keywords included."""
        return self._aio.settings

    @spelled_out(ProducerSettings, ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        settings: ProducerSettings | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[ProducerKeywords],
    ) -> None:
        """``group`` names the application; brokers ask any producer of the group about its transactions.

        Every field of ``ProducerSettings`` and ``ClientOptions`` may also be given as a keyword, which takes
        precedence. Raises ConfigError, TypeError for an unknown keyword.
        """
        self._adopt(producer.Producer(namesrv, group=group, settings=settings, options=options, **changes))

    @property
    def client_id(self) -> str:
        """The id by which brokers know this producer. Raises ClientError unless it is started."""
        return self._aio.client_id

    def request(
        self,
        message: Message,
        timeout_ms: NonNegativeInt = 3000,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | int | None = None,
        selector: QueueSelector | None = None,
    ) -> MessageExt:
        """Send a message and wait for the reply of its consumer (``reply``); ``timeout_ms`` covers both. Raises
        like ``send``, and RequestTimeout if the message is stored but no reply arrives.
        """
        return self._call(
            self._aio.request, message, timeout_ms, queue=queue, hash_key=hash_key, selector=selector
        )

    def reply(
        self, request: MessageExt, body: bytes | str, *, timeout_ms: NonNegativeInt | None = None
    ) -> SendResult:
        """Answer a consumed request; returns when the waiting client has the reply. Raises InvalidMessage if the
        message is not a request, BrokerError if no client waits any more.
        """
        return self._call(self._aio.reply, request, body, timeout_ms=timeout_ms)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a message to ``topic`` can currently be sent to. Raises NoRoute."""
        return self._call(self._aio.queues, topic)

    def recall(self, topic: str, handle: str, *, timeout_ms: NonNegativeInt | None = None) -> str:
        """Cancel a timed message that is not delivered yet, by its ``recall_handle``. Returns its message id.

        Raises InvalidMessage for a malformed handle, BrokerError if it is too late or recall is disabled at the
        broker (recallMessageEnable).
        """
        return self._call(self._aio.recall, topic, handle, timeout_ms=timeout_ms)


@checked(own=NAMES)
class TransactionProducer(TransactionFacade, Producer):
    """The blocking ``mqspark.aio.TransactionProducer``; takes the same arguments. Safe to use from many threads.

    An ``execute`` that is a function runs in the thread that calls ``send_in_transaction``, where its connections
    to databases are; a ``check`` that is a function in threads of its own; coroutine functions on the background
    loop.
    """

    _aio: transaction.TransactionProducer

    @spelled_out(ProducerSettings, ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        check: Check,
        execute: Execute | None = None,
        concurrency: PositiveInt = 4,
        topics: Iterable[str] = (),
        settings: ProducerSettings | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[ProducerKeywords],
    ) -> None:
        """``topics``: topics whose brokers learn of this producer at start, so that they can check earlier
        messages even if it sends none. Brokers that create topics automatically always learn of it. Settings,
        keywords and errors are those of ``Producer``.
        """
        self._adopt(
            transaction.TransactionProducer(
                namesrv,
                group=group,
                check=check,
                execute=execute,
                concurrency=concurrency,
                topics=topics,
                settings=settings,
                options=options,
                **changes,
            )
        )

    def stop(self, timeout_ms: NonNegativeInt = 30000) -> None:
        """Wait up to ``timeout_ms`` for running local transactions and checks, and for sends as in ``Producer``."""
        self._end(self._aio.stop, timeout_ms)


@checked(own=NAMES)
class _Consumer(Facade):
    """What all blocking consumers have of ``Subscriber``."""

    _aio: subscriber.Subscriber

    @property
    def group(self) -> str:
        """The consumer group, under the cluster's name."""
        return self._aio.group

    @property
    def client_id(self) -> str:
        """The id by which brokers know this consumer. Raises ClientError before the start."""
        return self._aio.client_id

    def subscribe(self, topic: str, tags: str | Iterable[str] = "*", *, sql: str | None = None) -> None:
        """Subscribe to a topic, before or after the start. All members of a group must have the same
        subscriptions.

        By ``tags``, as text or one by one, or by a SQL92 filter over properties, which the broker applies when it has
        enablePropertyFilter=true. Raises InvalidMessage for a name that no topic can have, ConfigError for ``tags``
        with ``sql``. ``start`` raises ClientError when the broker refuses the filter; after the start that is logged.

        >>> consumer.subscribe("Orders", "created || paid")
        >>> consumer.subscribe("Payments", sql="amount > 3 AND currency IS NOT NULL")
        """
        self._do(self._aio.subscribe, topic, tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic, before or after the start; its queues go to other members. An unknown topic is
        not an error.
        """
        self._do(self._aio.unsubscribe, topic)


@checked(own=NAMES)
class _Listening(_Consumer):
    """What all blocking consumers have of ``Listening``."""

    _aio: subscriber.Listening

    def stop(self, timeout_ms: NonNegativeInt = 30000) -> None:
        """Fetch no more, wait up to ``timeout_ms`` for running listeners, then leave the group. Called by a listener,
        it returns at once: the end waits for the listener and counts its outcome.
        """
        self._end(self._aio.stop, timeout_ms)

    def suspend(self) -> None:
        """Stop fetching until ``resume``; messages that have already arrived are still consumed."""
        self._do(self._aio.suspend)

    def resume(self) -> None:
        """Fetch again after ``suspend``."""
        self._do(self._aio.resume)


@checked(own=NAMES)
class PushConsumer(_Listening):
    """The blocking ``mqspark.aio.PushConsumer``; takes the same arguments. Safe to use from many threads.

    A listener that is a function runs in threads of its own, a coroutine function on the background loop.
    """

    _aio: push.PushConsumer

    @property
    def settings(self) -> PushConsumerSettings:
        """In effect, keywords included."""
        return self._aio.settings

    @spelled_out(PushConsumerSettings, ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        listener: Listener | None = None,
        batch_listener: BatchListener | None = None,
        settings: PushConsumerSettings | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[PushConsumerKeywords],
    ) -> None:
        """Takes either ``listener`` or ``batch_listener``. Every field of ``PushConsumerSettings`` and
        ``ClientOptions`` may also be given as a keyword, which takes precedence. Raises ConfigError, TypeError for an
        unknown keyword.
        """
        self._adopt(
            push.PushConsumer(
                namesrv,
                group=group,
                listener=listener,
                batch_listener=batch_listener,
                settings=settings,
                options=options,
                **changes,
            )
        )

    def stop(self, timeout_ms: NonNegativeInt = 30000) -> None:
        """Stops pulling, waits up to ``timeout_ms`` for running listeners, commits, leaves the group. Called by a
        listener, it returns at once: the end waits for the listener and counts its outcome.

        Messages that no listener has started are redelivered, here or elsewhere.
        """
        self._end(self._aio.stop, timeout_ms)

    def assignment(self) -> list[MessageQueue]:
        """The queues currently assigned, including those of the retry topic."""
        return self._do(self._aio.assignment)

    def progress(self) -> dict[MessageQueue, int]:
        """For each queue, the offset up to which it is consumed, as in the next commit."""
        return self._do(self._aio.progress)


@checked(own=NAMES)
class PopConsumer(_Listening):
    """The blocking ``mqspark.aio.PopConsumer``; takes the same arguments. Safe to use from many threads.

    A listener that is a function runs in threads of its own, a coroutine function on the background loop.
    """

    _aio: pop.PopConsumer

    @property
    def settings(self) -> PopConsumerSettings:
        """In effect, keywords included."""
        return self._aio.settings

    @spelled_out(PopConsumerSettings, ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        listener: Listener,
        settings: PopConsumerSettings | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[PopConsumerKeywords],
    ) -> None:
        """Every field of ``PopConsumerSettings`` and ``ClientOptions`` may also be given as a keyword, which takes
        precedence. Raises ConfigError, TypeError for an unknown keyword.
        """
        self._adopt(
            pop.PopConsumer(
                namesrv, group=group, listener=listener, settings=settings, options=options, **changes
            )
        )

    def stop(self, timeout_ms: NonNegativeInt = 30000) -> None:
        """Stop popping, wait up to ``timeout_ms`` for running listeners, acknowledge their messages, and release
        messages that no listener has started. Called by a listener, it returns at once: the end waits for the listener
        and counts its outcome.
        """
        self._end(self._aio.stop, timeout_ms)

    def assignment(self) -> list[MessageQueue]:
        """The queues this member pops from; queue id -1 means all queues of a broker."""
        return self._do(self._aio.assignment)


@checked(own=NAMES)
class LitePullConsumer(PollingFacade, _Consumer):
    """The blocking ``mqspark.aio.LitePullConsumer``; takes the same arguments. For one thread at a time.

    A listener of ``on_queues_changed`` is called on the background loop.
    """

    _aio: litepull.LitePullConsumer

    @property
    def settings(self) -> LitePullConsumerSettings:
        """In effect, keywords included."""
        return self._aio.settings

    @spelled_out(LitePullConsumerSettings, ClientOptions)
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        settings: LitePullConsumerSettings | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[LitePullConsumerKeywords],
    ) -> None:
        """Every field of ``LitePullConsumerSettings`` and ``ClientOptions`` may also be given as a keyword, which takes
        precedence. Raises ConfigError, TypeError for an unknown keyword.
        """
        self._adopt(
            litepull.LitePullConsumer(namesrv, group=group, settings=settings, options=options, **changes)
        )

    def subscribe(self, topic: str, tags: str | Iterable[str] = "*", *, sql: str | None = None) -> None:
        """As with every consumer. Raises ConfigError after ``assign``."""
        self._do(self._aio.subscribe, topic, tags, sql=sql)

    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._do(self._aio.assignment)

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, from the name server. Raises NoRoute."""
        return self._call(self._aio.fetch_message_queues, topic)

    def on_queues_changed(self, topic: str, listener: QueuesListener | None) -> None:
        """Call ``listener`` when the readable queues of ``topic`` differ from those at the time of this call;
        None stops that. For programs that assign queues; subscribed consumers follow changes by themselves.
        """
        self._do(self._aio.on_queues_changed, topic, listener)

    def pause(self, *queues: MessageQueue) -> None:
        """Stop fetching these queues; cached messages are still delivered."""
        self._do(self._aio.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Fetch these queues again after ``pause``."""
        self._do(self._aio.resume, *queues)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at ``offset``, which must be within the queue (its end included). Raises ClientError."""
        self._call(self._aio.seek, queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the first message that the broker still has. Raises ClientError for a queue that is not
        assigned.
        """
        self._call(self._aio.seek_to_begin, queue)

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue behind the last message: only new ones are read. Raises ClientError for a queue that is not
        assigned.
        """
        self._call(self._aio.seek_to_end, queue)

    def seek_to_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message stored at or after that time (ms since the epoch)."""
        self._call(self._aio.seek_to_timestamp, queue, timestamp_ms)

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after that time (ms since the epoch), or the end of the
        queue. Raises NoRoute, BrokerError.
        """
        return self._call(self._aio.offset_for_timestamp, queue, timestamp_ms)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, None if there is none."""
        return self._call(self._aio.committed, queue)
