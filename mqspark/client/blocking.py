"""A small client without an event loop, for processes that have none: Spark's planners, runners and workers.

One thread, blocking sockets, many requests in flight per connection. Requests that are safe to repeat (all except
sends) are retried until ``retry_ms`` is over, on each name server in turn. A send is repeated by its caller, who
knows the consequence of a duplicate. Must not be shared between threads or used after a fork: keep one per
process.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from mqspark.base.config import parse_addresses
from mqspark.base.logs import Outages, escaping
from mqspark.base.names import is_address
from mqspark.client.consumer.commits import commit_waves
from mqspark.client.remoting.blockingconnection import DEFAULT_TIMEOUT_MS, BlockingConnection
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.firstanswers import FirstAnswers
from mqspark.client.remoting.indexwalk import EVER_MS, IndexWalk
from mqspark.client.remoting.pullanswers import committed_in
from mqspark.client.remoting.tls import Tls, tls_context
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import (
    BadRoute,
    BrokerError,
    ClientError,
    ConnectionLost,
    NoRoute,
    NoSuchTopic,
    NotANameServer,
    ProtocolError,
    RequestTimeout,
)
from mqspark.message import (
    CLIENT_TOPIC_QUEUES,
    DEFAULT_TOPIC,
    MASTER_ID,
    PERM_WRITE,
    MessageQueue,
    QueueOffset,
    no_such_topic,
)
from mqspark.protocol.bodies.admin_bodies import (
    MAX_QUEUES_ASKED,
    OffsetsOfQueues,
    QueuesOfTopic,
    QueuesOfTopics,
)
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.topic_bodies import (
    ClusterInfo,
    KVTable,
    TopicConfig,
    TopicConfigAndQueueMapping,
    TopicList,
    TopicQueueMappingDetail,
    TopicRouteData,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    pull_header,
)
from mqspark.protocol.headers.cluster_headers import (
    GetKVConfigRequestHeader,
    GetRouteInfoRequestHeader,
    PutKVConfigRequestHeader,
)
from mqspark.protocol.headers.header import Header

log = escaping(__name__)

FIRST_CONTACT_MS = 3500
"""The time a planner waits for name servers that have never answered. A wrong address is more common than a short
outage, and a user is waiting."""
_NAMES_LIFE_S = 5.0
_ROUTES_AT_ONCE = 500
"""Requests in one write to a name server."""
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.05, 2.0
_REPORT_S = 3.0
"""The time after which a line tells of retries; another one tells when they are over."""
_MOST_NAMES = 4_096
"""Broker addresses whose names a client keeps."""
_KEYS_AT_ONCE = 64
"""Messages of one answer to a look-up by key: maxMsgsNumBatch of brokers."""
T = TypeVar("T")
BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY})
"""Transient refusals: by an overloaded broker, by a slave that was the master before, or by a server that is about to
stop."""
SYSTEM_ERRORS = 5
"""Repetitions after SYSTEM_ERROR, which is transient (a file cannot be made, a store is being closed) or permanent (an
illegal queue id)."""
NOT_READY = "name server not ready"
"""The remark of a name server that waits for brokers to register first (ClientRequestProcessor)."""


def is_final(error: BrokerError, system_errors: int) -> bool:
    """Whether the same request would be refused again, after so many answers with SYSTEM_ERROR."""
    if error.code != ResponseCode.SYSTEM_ERROR:
        return error.code not in BUSY
    return system_errors > SYSTEM_ERRORS and error.remark != NOT_READY


class _Retries:
    """The pauses between the attempts at ``what``, one request."""

    def __init__(self, what: str, retry_ms: int, sleep: Callable[[float], None], outages: Outages) -> None:
        self._what = what
        self._retry_s = retry_ms / 1000
        self._since = time.monotonic()
        self._until = self._since + self._retry_s
        self._sleep = sleep
        self._backoff_s = _FIRST_BACKOFF_S
        self._outages = outages
        self._system_errors = 0

    def pause(self, failure: ClientError) -> None:
        """Raises ``failure`` when the time is over, and at once if it is a refusal that is final."""
        now = time.monotonic()
        if isinstance(failure, BrokerError):
            self._system_errors += failure.code == ResponseCode.SYSTEM_ERROR
            if is_final(failure, self._system_errors):
                raise failure
        if now + self._backoff_s > self._until:
            if self._retry_s:
                failure.add_note(f"Tried for {self._retry_s:.0f} s.")
            raise failure
        if now - self._since >= _REPORT_S:
            text = "%s; trying again, for %.0f s more"
            self._outages.failed(self._what, None, text, failure, self._until - now)
        self._sleep(self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, _LAST_BACKOFF_S)

    def over(self, text: str) -> None:
        """There is an answer."""
        self._outages.over(self._what, text, self._what)


class BlockingClient:
    """Routes, offsets and pulls over cached connections.

    ``first_contact_ms``: how long to wait for the first answer from a name server; None: ``retry_ms``, as for any
    other request. ``credentials`` sign all requests and ``tls`` encrypts the connections; None: according to the
    environment. Raises NotANameServer when a broker answers in a name server's place.
    """

    def __init__(
        self,
        nameservers: str,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        retry_ms: int = 30_000,
        first_contact_ms: int | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._nameservers = parse_addresses(nameservers, key="nameserver", required=True)
        self._timeout_ms = timeout_ms
        self._credentials = credentials
        self._tls = tls_context(tls) or False
        self._retry_ms = retry_ms
        self._first_contact_ms = first_contact_ms
        """None once a name server has answered."""
        self._sleep = sleep
        self._outages = Outages(log)
        self._connections: dict[str, BlockingConnection] = {}
        self._one_by_one: set[str] = set()
        """Brokers that answer for one queue per request only."""
        self._known_routes: dict[str, tuple[bytes, TopicRoute]] = {}
        """The answers to the last call of ``routes``."""
        self._names: list[str] = []
        self._names_at = time.monotonic() - _NAMES_LIFE_S
        """For errors: names of topics, and when they were asked for."""
        self._places: dict[str, tuple[str, str]] = {}
        """Addresses in the routes of the last calls, to the names of their brokers and of a topic there."""

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def connection(self, address: str, *, timeout_ms: int | None = None) -> BlockingConnection:
        """The cached connection to ``address``, created if necessary. Raises ConnectionLost."""
        connection = self._connections.get(address)
        if connection is not None and connection.fileno() < 0:
            connection = None
        if connection is None:
            connection = self._connections[address] = BlockingConnection(
                address,
                connect_timeout_ms=timeout_ms or self._timeout_ms,
                credentials=self._credentials,
                tls=self._tls,
            )
        return connection

    def forget_closed(self) -> None:
        """Close the connections that their servers have closed. For a client that was idle."""
        for address, connection in list(self._connections.items()):
            try:
                connection.receive_ready()
            except (ConnectionLost, ProtocolError):
                self.forget(address)

    def forget(self, address: str) -> None:
        """Close the cached connection to ``address``."""
        self._one_by_one.discard(address)
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def request(
        self,
        address: str,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        accept: Sequence[int] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """One repeatable request. Raises BrokerError for a code that is not in ``accept``."""

        def once(address: str) -> Command:
            connection = self.connection(address)
            answer = self._answer(connection, connection.send(code, header, body))
            self._check(address, answer, accept)
            return answer

        return self._retrying(address, once)

    def request_all(
        self,
        address: str,
        code: int,
        headers: Sequence[Header],
        *,
        accept: Sequence[int] = (ResponseCode.SUCCESS,),
    ) -> list[Command]:
        """One repeatable request per header, all in flight at once."""

        def once(address: str) -> list[Command]:
            connection = self.connection(address)
            opaques = connection.send_all([(code, header) for header in headers])
            answers = [self._answer(connection, opaque) for opaque in opaques]
            for answer in answers:
                self._check(address, answer, accept)
            return answers

        return self._retrying(address, once)

    def _answer(self, connection: BlockingConnection, opaque: int) -> Command:
        return connection.wait(opaque, self._timeout_ms, if_silent=self._leave_replaced)

    def _leave_replaced(self, address: str) -> None:
        """Raises ConnectionLost if another broker is the master of the name that a route had at this address: one that
        is frozen or cut off ends no connection."""
        place = self._places.get(address)
        master = self.master_of(*place) if place is not None else None
        if place is not None and master is not None and master != address:
            raise ConnectionLost(address, f"it is silent, and {master} is the master of {place[0]} now")

    def _check(self, address: str, answer: Command, accept: Sequence[int]) -> None:
        if answer.code not in accept:
            raise BrokerError(answer.code, answer.remark, address=address, reason=answer.reason)

    def _retrying(self, address: str, once: Callable[[str], T]) -> T:
        """The outcome of ``once`` at this address, or at the one of the broker's new master."""
        retries = _Retries(address, self._retry_ms, self._sleep, self._outages)
        while True:
            try:
                answer = once(address)
                retries.over("%s answers again")
                return answer
            except (ConnectionLost, RequestTimeout) as error:
                self.forget(address)
                retries.pause(error)
            except BrokerError as error:
                if error.code == ResponseCode.GO_AWAY:
                    self.forget(address)
                retries.pause(error)
            address = self._successor(address)

    def _successor(self, address: str) -> str:
        """The current address of the master of the broker that a route had at ``address``; ``address`` if unknown."""
        place = self._places.get(address)
        master = self.master_of(*place) if place is not None else None
        if place is None or master is None:
            return address
        self._places[master] = place
        return master

    def master_of(self, broker_name: str, topic: str) -> str | None:
        """The address of the master of this name, asked once; None if no name server knows it or none answers.
        ``topic``: as for ``masters``."""
        with self.without_retries():
            try:
                return self.masters([topic]).get(broker_name)
            except (ClientError, ProtocolError):
                return None  # whoever asks goes on at the address that it has

    def bridged(self, look_up: Callable[[], T]) -> T:
        """The outcome of ``look_up`` for a topic that is known to exist: name servers forget its route while all
        its brokers are away, so NoRoute is retried, too; each time at the next one, as one may be cut off from them."""

        def once() -> T:
            try:
                return look_up()
            except NoRoute:
                self._nameservers.append(self._nameservers.pop(0))
                raise

        return self._repeated("what had no route", once, NoRoute)

    def answered(self, ask: Callable[[], T]) -> T:
        """The outcome of ``ask``, whose requests are each tried once and which looks up anew whom it asks."""
        return self._repeated("what had no answer", ask, ConnectionLost, RequestTimeout, BrokerError)

    def _repeated(self, what: str, once: Callable[[], T], *failures: type[ClientError]) -> T:
        retries = _Retries(what, self._retry_ms, self._sleep, self._outages)
        while True:
            try:
                found = once()
                retries.over("%s has one again")
                return found
            except failures as error:
                retries.pause(error)

    @contextmanager
    def without_retries(self) -> Iterator[None]:
        """Requests inside are tried once: at each name server, or at the broker."""
        retry_ms, self._retry_ms = self._retry_ms, 0
        try:
            yield
        finally:
            self._retry_ms = retry_ms

    # --- notes at name servers ---

    def note(self, namespace: str, key: str, value: str) -> None:
        """Store a value at every name server that answers (PUT_KV_CONFIG). Raises the last failure if none did."""
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        self._ask_every_nameserver(RequestCode.PUT_KV_CONFIG, header, (ResponseCode.SUCCESS,))

    def notes(self, namespace: str, key: str) -> set[str]:
        """The values that the name servers that answer have. Raises the last failure if none answered."""
        header = GetKVConfigRequestHeader(namespace=namespace, key=key)
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answers = self._ask_every_nameserver(RequestCode.GET_KV_CONFIG, header, accept)
        found = (each.ext.get("value") for each in answers if each.code == ResponseCode.SUCCESS)
        return {value for value in found if value is not None}

    def _ask_every_nameserver(self, code: int, header: Header, accept: Sequence[int]) -> list[Command]:
        answers: list[Command] = []
        failure: ClientError | None = None
        with self.without_retries():
            for address in list(self._nameservers):
                try:
                    answers.append(self.request(address, code, header, accept=accept))
                except ClientError as error:
                    failure = error
        if not answers and failure is not None:
            raise failure
        return answers

    # --- name servers -----------------------------------------------------------------------------------------

    def _ask_nameserver(
        self, code: int, header: Header | None, accept: Sequence[int] = (ResponseCode.SUCCESS,)
    ) -> Command:
        (answer,) = self._ask_nameserver_all(code, [header], accept)
        return answer

    def _ask_nameserver_all(
        self, code: int, headers: Sequence[Header | None], accept: Sequence[int] = (ResponseCode.SUCCESS,)
    ) -> list[Command]:
        """Ask the name servers by the rule of ``NameServers``; who answers stays first. All requests are in flight at
        once."""

        def connect(address: str, within_ms: int) -> BlockingConnection:
            return self.connection(address, timeout_ms=within_ms)

        def check(address: str, answers: list[Command]) -> None:
            for answer in answers:
                self._check_nameserver(address, answer, accept)

        def failed(address: str, error: ClientError | ProtocolError) -> None:
            is_broker = isinstance(error, NotANameServer)
            if isinstance(error, BrokerError) and is_final(error, 0) and not is_broker:
                raise error
            self.forget(address)

        def once(_: str) -> list[Command]:
            order = list(self._nameservers)
            requests = [(code, header) for header in headers]
            address, answers = FirstAnswers(connect, check, failed).find(order, requests, self._timeout_ms)
            self._prefer(address)
            return answers

        if self._first_contact_ms is not None:
            self.meet(self._first_contact_ms)
        return self._retrying(";".join(self._nameservers), once)

    def _prefer(self, address: str) -> None:
        place = self._nameservers.index(address)
        self._nameservers = [*self._nameservers[place:], *self._nameservers[:place]]

    def _check_nameserver(self, address: str, answer: Command, accept: Sequence[int]) -> None:
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NotANameServer(address, answer.remark)
        self._check(address, answer, accept)

    def meet(self, within_ms: int) -> None:
        """Wait for the first answer of a name server. Raises ConnectionLost if none arrives in time,
        NotANameServer."""
        header = GetRouteInfoRequestHeader(topic=DEFAULT_TOPIC, accept_standard_json_only=True)
        deadline = time.monotonic() + within_ms / 1000
        backoff_s = _FIRST_BACKOFF_S
        while True:
            failure: Exception | None = None
            for place, address in enumerate(list(self._nameservers)):
                # Each gets its share of the remaining time, so that a silent one leaves time for the others.
                share_ms = (deadline - time.monotonic()) * 1000 / (len(self._nameservers) - place)
                timeout_ms = max(1, min(self._timeout_ms, int(share_ms)))
                try:
                    connection = self.connection(address, timeout_ms=timeout_ms)
                    opaque = connection.send(
                        RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_ms=timeout_ms
                    )
                    answer = connection.wait(opaque, timeout_ms)
                except (ConnectionLost, RequestTimeout, ProtocolError) as error:
                    self.forget(address)
                    failure = error
                else:
                    self._check_nameserver(address, answer, (answer.code,))
                    self._first_contact_ms = None
                    self._prefer(address)
                    return
            if isinstance(failure, ProtocolError) or time.monotonic() + backoff_s > deadline:
                is_only = len(self._nameservers) == 1
                why = failure.reason if isinstance(failure, ConnectionLost) and is_only else failure
                raise ConnectionLost(
                    ";".join(self._nameservers),
                    f"no name server answers ({why}); is one running there? the option nameserver says where",
                    made=False,
                ) from None
            self._sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    def route(self, topic: str) -> TopicRoute:
        """Raises NoRoute."""
        answer = self._route_answer(topic)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise self._no_such_topic(topic)
        return self._learned(_route_of(topic, answer.body))

    def _no_such_topic(self, topic: str) -> NoSuchTopic:
        """The error, with similar names as far as the name server tells them now."""
        now = time.monotonic()
        if now - self._names_at >= _NAMES_LIFE_S:
            self._names_at = now
            with self.without_retries():
                try:
                    self._names = [name for name in self.topics() if not name.startswith("%")]
                except (ClientError, ProtocolError) as error:
                    log.info("no similar names: %s", error)
                    self._names = []
        return no_such_topic(topic, self._names)

    def _learned(self, route: TopicRoute) -> TopicRoute:
        if len(self._places) > _MOST_NAMES:
            self._places.clear()
        for name, addresses in route.brokers.items():
            self._places.update(dict.fromkeys(addresses.values(), (name, route.topic)))
        return route

    def routes(self, topics: Sequence[str]) -> dict[str, TopicRoute]:
        """The routes of many topics; those that have none are left out. A route that has not changed since the last
        call is not parsed again."""
        accept = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        known, self._known_routes = self._known_routes, {}
        for first in range(0, len(topics), _ROUTES_AT_ONCE):
            names = topics[first : first + _ROUTES_AT_ONCE]
            headers = [
                GetRouteInfoRequestHeader(topic=name, accept_standard_json_only=True) for name in names
            ]
            answers = self._ask_nameserver_all(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers, accept)
            for name, answer in zip(names, answers, strict=True):
                if answer.code == ResponseCode.SUCCESS:
                    body = bytes(answer.body)
                    before = known.get(name)
                    if before is None or before[0] != body:
                        before = body, self._learned(_route_of(name, body))
                    self._known_routes[name] = before
        return {name: route for name, (_, route) in self._known_routes.items()}

    def publish_route(self, topic: str, *, default_queues: int = CLIENT_TOPIC_QUEUES) -> TopicRoute:
        """The route for sends: the topic's, or that of the template from which it will be created. Raises
        NoRoute."""
        answer = self._route_answer(topic)
        if answer.code == ResponseCode.SUCCESS:
            return self._learned(_route_of(topic, answer.body))
        template = self._route_answer(DEFAULT_TOPIC)
        if template.code != ResponseCode.SUCCESS:
            raise self._no_such_topic(topic)
        return self._learned(_route_of(topic, template.body, max_queues=default_queues))

    def _route_answer(self, topic: str) -> Command:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        accept = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        return self._ask_nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, accept)

    def masters(self, topics: Iterable[str] = ()) -> dict[str, str]:
        """The addresses of the masters that are registered, by broker name. To a user who may not look at the cluster
        they are those in the routes of ``topics``; without topics such a user is refused."""
        names = sorted(set(topics))
        try:
            answer = self._ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO, None)
        except BrokerError as error:
            if error.code != ResponseCode.NO_PERMISSION or not names:
                raise
            return {name: address for topic in names for name, address in self._masters_of(topic).items()}
        table = decode_body(ClusterInfo, answer.body).broker_addr_table
        found = {name: data.broker_addrs.get(MASTER_ID) for name, data in table.items()}
        return {name: address for name, address in found.items() if address and is_address(address)}

    def _masters_of(self, topic: str) -> dict[str, str]:
        """Those in the route of the topic, if it has one. In the place of a master there may be a slave that acts for
        it, which is in no route that allows writing."""
        answer = self._route_answer(topic)
        if answer.code != ResponseCode.SUCCESS:
            return {}
        data = _route_data(topic, answer.body)
        route = self._learned(TopicRoute.of(topic, data))
        acting = {each.broker_name for each in data.broker_datas if each.enable_acting_master}
        acting -= {queue.broker_name for queue in data.queue_datas if queue.perm & PERM_WRITE}
        return {name: address for name, address in route.masters.items() if name not in acting}

    def topics(self) -> list[str]:
        answer = self._ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)
        return sorted(decode_body(TopicList, answer.body).topic_list)

    def topic_mapping(self, address: str, topic: str) -> TopicQueueMappingDetail | None:
        """What the broker knows of a static topic: the parts of its logic queues; None if it knows no such topic."""
        accept = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        header = {"topic": topic, "lo": "true"}
        answer = self.request(address, RequestCode.GET_TOPIC_CONFIG, header, accept=accept)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return decode_body(TopicConfigAndQueueMapping, answer.body).mapping_detail

    # --- offsets ----------------------------------------------------------------------------------------------
    # ``lo`` is False for physical queues of a static topic: without it they would be taken for logic queues.

    def max_offsets(
        self, address: str, queues: Sequence[MessageQueue], *, lo: bool | None = None
    ) -> list[QueueOffset]:
        """The next offset to be written in each queue."""
        return self._bounds(address, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader, queues, lo)

    def min_offsets(
        self, address: str, queues: Sequence[MessageQueue], *, lo: bool | None = None
    ) -> list[QueueOffset]:
        """The smallest readable offset of each queue."""
        return self._bounds(address, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader, queues, lo)

    def _bounds(
        self,
        address: str,
        code: int,
        header_type: type[GetMaxOffsetRequestHeader | GetMinOffsetRequestHeader],
        queues: Sequence[MessageQueue],
        lo: bool | None,
    ) -> list[QueueOffset]:
        """0 where brokers return -1, for BatchCQ queues that never had a message (BatchConsumeQueue)."""
        offsets = self._offsets_of_many(address, code, header_type, queues, lo)
        if offsets is None:
            headers = [header_type(topic=queue.topic, queue_id=queue.queue_id, lo=lo) for queue in queues]
            answers = self.request_all(address, code, headers)
            offsets = [answer.header(GetMaxOffsetResponseHeader).offset for answer in answers]
        return [QueueOffset(max(0, offset)) for offset in offsets]

    def _offsets_of_many(
        self,
        address: str,
        code: int,
        header_type: type[GetMaxOffsetRequestHeader | GetMinOffsetRequestHeader],
        queues: Sequence[MessageQueue],
        lo: bool | None,
    ) -> list[int] | None:
        """The offsets, by one request for many queues; None if the broker answers for one only, as all do for static
        topics."""
        if len(queues) < 2 or address in self._one_by_one or lo is not None:
            return None
        offsets: list[int] = []
        for first in range(0, len(queues), MAX_QUEUES_ASKED):
            part = queues[first : first + MAX_QUEUES_ASKED]
            by_topic = itertools.groupby(part, operator.attrgetter("topic"))
            body = QueuesOfTopics(
                [QueuesOfTopic(topic, [each.queue_id for each in of]) for topic, of in by_topic]
            )
            header = header_type(topic=part[0].topic, queue_id=part[0].queue_id, mqspark_queues=True)
            answer = self.request(address, code, header, encode_body(body))
            if not len(answer.body):
                self._one_by_one.add(address)
                return None
            found = decode_body(OffsetsOfQueues, answer.body).offsets
            if len(found) != len(part):
                raise ProtocolError(f"{address} gives {len(found)} offsets of {len(part)} queues")
            offsets += found
        return offsets

    def offsets_by_timestamp(
        self,
        address: str,
        queues: Sequence[MessageQueue],
        timestamps_ms: Sequence[int],
        *,
        lo: bool | None = None,
    ) -> list[QueueOffset]:
        """The offset of the first message stored at or after the time; the max offset where all are older."""
        headers = [
            SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp, lo=lo)
            for queue, timestamp in zip(queues, timestamps_ms, strict=True)
        ]
        answers = self.request_all(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, headers)
        return [QueueOffset(max(0, answer.header(SearchOffsetResponseHeader).offset)) for answer in answers]

    def group_offsets(
        self, address: str, group: str, queues: Sequence[MessageQueue], *, lo: bool | None = None
    ) -> list[QueueOffset | None]:
        """The group's committed offsets; None where there is none."""
        headers = [
            QueryConsumerOffsetRequestHeader(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                set_zero_if_not_found=False,
                lo=lo,
            )
            for queue in queues
        ]
        none = ResponseCode.QUERY_NOT_FOUND
        answers = self.request_all(
            address, RequestCode.QUERY_CONSUMER_OFFSET, headers, accept=(ResponseCode.SUCCESS, none)
        )
        found = [None if answer.code == none else committed_in(answer) for answer in answers]
        return [None if offset is None else QueueOffset(offset) for offset in found]

    def make_topic(self, topic: str, addresses: Iterable[str]) -> None:
        """Create a topic of one queue at these brokers unless it exists, such as ``%RETRY%group``, which a consumer's
        first heartbeat creates. ``mqadmin consumerProgress`` finds groups by that topic (DefaultMQAdminExtImpl)."""
        if self._route_answer(topic).code == ResponseCode.SUCCESS:
            return
        config = TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
        header = config.creation()
        for address in addresses:
            self.request(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def commit_group_offsets(
        self, address: str, group: str, offsets: Mapping[MessageQueue, int], *, lo: bool | None = None
    ) -> None:
        """Store the offsets. A group that the broker does not know is registered by a pull."""
        code, unknown = RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        for queues in commit_waves(offsets):
            headers = [
                UpdateConsumerOffsetRequestHeader(
                    consumer_group=group,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    commit_offset=offsets[queue],
                    lo=lo,
                )
                for queue in queues
            ]
            answers = self.request_all(address, code, headers, accept=(ResponseCode.SUCCESS, unknown))
            if any(answer.code == unknown for answer in answers):
                # One past the end matches no message, so the answer is empty.
                header = pull_header(group, queues[0], offsets[queues[0]], max_messages=1, lo=lo)
                connection = self.connection(address)
                self._answer(connection, connection.send(RequestCode.PULL_MESSAGE, header))
                self.request_all(address, code, headers)

    # --- messages ---------------------------------------------------------------------------------------------

    def messages_by_key(self, address: str, topic: str, key: str) -> Iterator[bytes]:
        """Records of all messages with that key: answer after answer, the newest first, each concatenated. RocketMQ
        compares hashes, so the caller compares topics and keys."""
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=_KEYS_AT_ONCE, begin_timestamp=0, end_timestamp=EVER_MS
        )
        walk = IndexWalk(header, address)
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        while walk.header is not None:
            answer = self.request(address, RequestCode.QUERY_MESSAGE, walk.header, accept=accept)
            if page := walk.take(answer.body if answer.code == ResponseCode.SUCCESS else b""):
                yield page

    # --- brokers ----------------------------------------------------------------------------------------------

    def runtime_info(self, address: str, *, challenge: str | None = None) -> dict[str, str]:
        """The broker's runtime info (code 28). An mqspark broker also answers a ``challenge``."""
        header = {"mqsparkChallenge": challenge} if challenge is not None else None
        answer = self.request(address, RequestCode.GET_BROKER_RUNTIME_INFO, header)
        return decode_body(KVTable, answer.body).table


def meet(nameservers: str, credentials: Credentials | None = None) -> None:
    """Check that a name server answers, within five seconds. Raises ConnectionLost, NotANameServer."""
    client = BlockingClient(nameservers, credentials=credentials)
    try:
        client.meet(FIRST_CONTACT_MS)
    finally:
        client.close()


def _route_of(topic: str, body: bytes | memoryview, *, max_queues: int | None = None) -> TopicRoute:
    """Raises BadRoute."""
    return TopicRoute.of(topic, _route_data(topic, body), max_queues=max_queues)


def _route_data(topic: str, body: bytes | memoryview) -> TopicRouteData:
    """Raises BadRoute."""
    try:
        return decode_body(TopicRouteData, body)
    except ProtocolError as error:
        raise BadRoute(topic, str(error)) from None
