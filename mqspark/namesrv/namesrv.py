"""The name server's core: takes commands of sessions, and returns frames and blocking jobs
(DefaultRequestProcessor, ClientRequestProcessor).

All requests are answered at once from the tables. ``tick`` unregisters silent brokers; ``jobs`` saves the
key-value table.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mqspark.auth.access import NoFacts
from mqspark.base.bounded import Memo, Tables
from mqspark.base.clock import Clock, Standstill
from mqspark.base.config import (
    ForeignKeys,
    Limit,
    change_settings,
    known_keys,
    no_foreign_keys,
    to_properties,
)
from mqspark.base.crc import crc32
from mqspark.base.logs import printable, shown_setting, sparing
from mqspark.base.names import check
from mqspark.errors import ConfigError
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.kvconfig import ORDER_TOPICS, KVConfig
from mqspark.namesrv.routes import BrokerIdentity, RouteTable, keep_zone
from mqspark.namesrv.saves import Saves
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.topic_bodies import (
    BrokerMemberGroup,
    DataVersion,
    GetBrokerMemberGroupResponseBody,
    KVTable,
    TopicList,
    TopicRouteData,
)
from mqspark.protocol.codes import FAQ, Reason, RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, dispatch, ok, ok_in_slices, settings_to_change
from mqspark.protocol.extending import Extensions, TappedSession
from mqspark.protocol.headers.cluster_headers import (
    AddWritePermOfBrokerRequestHeader,
    BrokerHeartbeatRequestHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    GetKVConfigRequestHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicRequestHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)
from mqspark.protocol.servers.registration import SMALL_BYTES, read_registration
from mqspark.protocol.session import Session
from mqspark.protocol.slices import LongWork, Slices, Work
from mqspark.protocol.zones import ZONE_MODE, ZONE_NAME
from mqspark.record.record import BODY_CRC_MASK
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.diskjobs import Job
from mqspark.store.disk.savedtables import ChangedSettings, SavedTable

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority

_log = sparing(__name__, lines=20)
_kv_log = logging.getLogger(f"{__name__}.kv")
_watermark = logging.getLogger("mqspark.watermark")

T = TypeVar("T")

TICK_MS = 1_000
FIRST_KV_PRINT_MS, KV_PRINT_INTERVAL_MS = 60_000, 600_000
"""RocketMQ's (NamesrvController.startScheduleService)."""
MAX_SMALL_BODY_BYTES = 256 * 1024
"""Limit of a body that is read at once: the queues of a topic at two thousand brokers."""
SUMMED_AT_ONCE = 1 << 20
"""Bytes of a registration whose checksum is computed in one slice."""

MAX_PRINTED = 100
"""Entries of the key-value table in the log."""

_PROTECTED_KEYS = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


class NameServer:
    """The core. Raises StoreCorrupt when the key-value file cannot be read."""

    def __init__(
        self,
        config: NamesrvConfig,
        clock: Clock,
        *,
        outbox: list[Session] | None = None,
        config_file: Callable[[Path], ConfigFile] = ConfigFile,
        foreign_keys: ForeignKeys = no_foreign_keys,
        shell_settings: Mapping[str, str] | None = None,
        authority: Authority | None = None,
        settings_file: ConfigFile | None = None,
        extensions: Extensions | None = None,
    ) -> None:
        """``authority``: None means no access control. ``shell_settings``: what GET_NAMESRV_CONFIG shows besides
        ``config``. ``settings_file`` merges changed settings into its content; None: changes last until the process
        ends."""
        self.config = config
        self._authority = authority
        self._foreign_keys = foreign_keys
        self._shell_settings = shell_settings or {}
        self.outbox: list[Session] = outbox if outbox is not None else []
        self._clock = clock
        self.routes = RouteTable(config, clock)
        self.kv = KVConfig(Limit(config, "max_kv_table_bytes"))
        self._saves = Saves(clock)
        self._saved_kv: SavedTable | None = None
        if config.kv_config_path:
            file = config_file(Path(config.kv_config_path))
            self._saved_kv = SavedTable(self.kv, file, self._saves.answer_due)
            self._saved_kv.load()
            self._saves.add(self._saved_kv)
        self._changed_settings = ChangedSettings()
        self._saved_settings: SavedTable | None = None
        if settings_file is not None:
            self._saved_settings = SavedTable(self._changed_settings, settings_file, self._saves.answer_due)
            self._saves.add(self._saved_settings)
        self._sweeps = False
        self._reads_large = False
        """Whether a large registration is being read."""
        self._route_cache: Memo[str, bytes] = Memo(
            "routes",
            self._route,
            max_bytes=config.max_route_cache_bytes,
            holds=("NameServer._route_cache",),
        )
        self._zone_cache: Memo[tuple[str, str], bytes] = Memo(
            "zoneRoutes",
            lambda key: self._route(*key),
            max_bytes=config.max_route_cache_bytes,
            holds=("NameServer._zone_cache",),
        )
        self.tables = Tables(
            self.kv.ledger,
            self.routes.ledger,
            self._saves.ledger,
            self._route_cache,
            self._zone_cache,
            *(() if extensions is None else (extensions.ledger,)),
            *(() if authority is None else (authority.users.ledger, authority.ledger)),
        )
        self._cached_generation = -1
        self._next_scan_ms = clock.monotonic_ms() + config.scan_not_active_broker_interval
        self._standstill = Standstill(clock, TICK_MS)
        self._next_print_ms = clock.monotonic_ms() + FIRST_KV_PRINT_MS
        self._long_work = LongWork()
        self.handlers = self._own_handlers()
        self.extensions = extensions
        if extensions is not None:
            self.handlers = extensions.around(self.handlers, self._user_name)
        if authority is not None:
            self.handlers = authority.guard(self.handlers, _Routed(self.routes))
            authority.bound_connections()

    def _own_handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self.broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.member_group,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: partial(self.unit_topics, unit=True),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(self.unit_topics, unit_sub=True),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(
                self.unit_topics, unit=False, unit_sub=True
            ),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.kv_list,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_settings,
            RequestCode.GET_NAMESRV_CONFIG: self.settings,
        }

    # --- Core ---

    def connected(self, session: Session) -> None:
        """Nothing to do: most connections only request routes."""

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        dispatch(self.handlers, session, commands, self._long_work)

    @property
    def work_waits(self) -> bool:
        return bool(self._long_work.running)

    def work(self) -> bool:
        return self._long_work.step()

    def _user_name(self, session: Session) -> str:
        return "" if self._authority is None else self._authority.user_name(session)

    def disconnected(self, session: Session) -> None:
        if isinstance(session, TappedSession):
            session.forget()
        if self._authority is not None:
            self._authority.left(session)
        self.routes.disconnected(session)
        self._sweep()

    def _sweep(self) -> None:
        if self.routes.sweep_waits and not self._sweeps:
            self._sweeps = True
            self._long_work.begin(None, self._sweep_routes())

    def _sweep_routes(self) -> Work[None]:
        yield from self.routes.sweep()
        self._sweeps = False

    def turn(self) -> None:
        """Nothing waits for the end of a turn."""

    def tick(self) -> int:
        now_ms = self._clock.monotonic_ms()
        missed_ms = self._standstill.missed_ms(now_ms)
        if missed_ms:
            self.routes.pardon(missed_ms)
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + self.config.scan_not_active_broker_interval
            for live in self.routes.expire():
                if live.session is not None:
                    live.session.close()
            self._sweep()
        if now_ms >= self._next_print_ms:
            self._next_print_ms = now_ms + KV_PRINT_INTERVAL_MS
            self._print_kv()
        _watermark.debug("[WATERMARK] %d requests wait for a slice of their work", len(self._long_work))
        self._saves.answer_due()
        return min(TICK_MS, self.config.scan_not_active_broker_interval)

    def _print_kv(self) -> None:
        """The key-value table (KVConfigManager.printAllPeriodically)."""
        entries = list(self.kv)
        for namespace, key, value in entries[:MAX_PRINTED]:
            _kv_log.info("key-value table: %s %s = %s", *map(printable, (namespace, key, value)))
        if len(entries) > MAX_PRINTED:
            _kv_log.info("key-value table: and %d more entries", len(entries) - MAX_PRINTED)

    @property
    def jobs_due(self) -> bool:
        """Whether ``jobs`` should run at once, because an operator changed something."""
        is_auth_due = self._authority is not None and self._authority.jobs_due
        return is_auth_due or self._saves.behind

    def jobs(self) -> list[Job]:
        """The jobs that are due, for a worker thread. Called about once a second, and not again before they
        are done."""
        return self._saves.jobs() + ([] if self._authority is None else self._authority.jobs())

    def shutdown(self) -> list[Job]:
        """The last jobs, which save the table."""
        return self.jobs()

    # --- routes ---

    def route(self, session: Session, command: Command) -> bytes:
        topic = command.header(GetRouteInfoRequestHeader).topic
        if self._cached_generation != self.routes.generation:
            self._cached_generation = self.routes.generation
            self._route_cache.clear()
            self._zone_cache.clear()
        zone = command.ext.get(ZONE_NAME, "")
        if zone.strip() and command.ext.get(ZONE_MODE, "").lower() == "true":
            check("zone", zone)
            return ok(command, None, self._zone_cache[topic, zone.lower()])
        return ok(command, None, self._route_cache[topic])

    def _route(self, topic: str, zone: str = "") -> bytes:
        route = self.routes.route(topic)
        if route is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}{FAQ}",
            )
        if self.config.order_message_enable:
            with contextlib.suppress(Refusal):  # the log says that it is too long
                route.order_topic_conf = self.kv.get(ORDER_TOPICS, topic)
        if zone:
            keep_zone(route, zone)
        return encode_body(route)

    def cluster_info(self, session: Session, command: Command) -> Slices:
        return ok_in_slices(command, self.routes.cluster_info())

    def member_group(self, session: Session, command: Command) -> bytes:
        header = command.header(GetBrokerMemberGroupRequestHeader)
        data = self.routes.broker_data(header.broker_name)
        group = BrokerMemberGroup(cluster=header.cluster_name, broker_name=header.broker_name)
        if data is not None:
            group.broker_addrs = data.broker_addrs
        return ok(command, None, encode_body(GetBrokerMemberGroupResponseBody(broker_member_group=group)))

    # --- brokers ---

    def register_broker(self, session: Session, command: Command) -> Slices:
        header = command.header(RegisterBrokerRequestHeader)
        if header.body_crc32 and (yield from _crc32(command.body)) != header.body_crc32:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        large = len(command.body) > SMALL_BYTES
        while large and self._reads_large:
            yield  # only one registration at a time may hold its topics in memory twice
        self._reads_large = self._reads_large or large
        try:
            return (yield from self._register_broker(session, command, header))
        except Refusal as refusal:
            _log.warning("registration of broker %s from %s: %s", header.broker_name, session.peer, refusal)
            raise
        finally:
            if large:
                self._reads_large = False

    def _register_broker(
        self, session: Session, command: Command, header: RegisterBrokerRequestHeader
    ) -> Slices:
        body = yield from read_registration(command.body, command.version, self.config.max_register_body_size)
        wrapper = body.topic_config_serialize_wrapper
        zone = command.ext.get(ZONE_NAME)
        if zone:
            check("zone", zone)
        result = yield from self.routes.register(
            BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr),
            wrapper.topic_config_table,
            wrapper.data_version,
            mappings=wrapper.topic_queue_mapping_info_map,
            ha_address=header.ha_server_addr,
            session=session,
            timeout_ms=header.heartbeat_timeout_millis,
            acting_master=header.enable_acting_master,
            zone=zone,
        )
        self._sweep()
        ordered_topics = b""
        if self.config.return_order_topic_config_to_broker:
            with contextlib.suppress(Refusal):  # the log says that it is too long
                if ordered := self.kv.namespace(ORDER_TOPICS):
                    ordered_topics = encode_body(KVTable(table=ordered))
        answer = RegisterBrokerResponseHeader(
            ha_server_addr=result.ha_address, master_addr=result.master_address
        )
        return ok(command, answer, ordered_topics)

    def unregister_broker(self, session: Session, command: Command) -> bytes:
        header = command.header(UnRegisterBrokerRequestHeader)
        self.routes.leave(
            BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr),
            session,
        )
        self._sweep()
        return ok(command)

    def broker_heartbeat(self, session: Session, command: Command) -> bytes:
        header = command.header(BrokerHeartbeatRequestHeader)
        self.routes.refresh(header.cluster_name, header.broker_addr, session)
        return ok(command)

    def query_data_version(self, session: Session, command: Command) -> bytes:
        header = command.header(QueryDataVersionRequestHeader)
        asked = _small(DataVersion, command) if command.body else None
        known = self.routes.data_version(header.cluster_name, header.broker_addr)
        changed = known is None or asked != known
        self.routes.refresh(header.cluster_name, header.broker_addr, session)
        return ok(
            command,
            {"changed": "true" if changed else "false"},
            b"" if known is None else encode_body(known),
        )

    def wipe_write_perm(self, session: Session, command: Command) -> Slices:
        count = yield from self.routes.wipe_write_perm(
            command.header(WipeWritePermOfBrokerRequestHeader).broker_name
        )
        return ok(command, {"wipeTopicCount": str(count)})

    def add_write_perm(self, session: Session, command: Command) -> Slices:
        count = yield from self.routes.add_write_perm(
            command.header(AddWritePermOfBrokerRequestHeader).broker_name
        )
        return ok(command, {"addTopicCount": str(count)})

    # --- topics ---

    def all_topics(self, session: Session, command: Command) -> Slices:
        if not self.config.enable_all_topic_list:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "disable")
        return _topic_list(command, self.routes.all_topics())

    def topics_by_cluster(self, session: Session, command: Command) -> Slices:
        self._check_topic_list()
        return _topic_list(
            command, self.routes.topics_of_cluster(command.header(GetTopicsByClusterRequestHeader).cluster)
        )

    def system_topics(self, session: Session, command: Command) -> bytes:
        names, address = self.routes.system_topics()
        return ok(command, None, encode_body(TopicList(topic_list=names, broker_addr=address)))

    def unit_topics(
        self, session: Session, command: Command, *, unit: bool | None = None, unit_sub: bool | None = None
    ) -> Slices:
        self._check_topic_list()
        return _topic_list(command, self.routes.unit_topics(unit=unit, unit_sub=unit_sub))

    def _check_topic_list(self) -> None:
        if not self.config.enable_topic_list:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "disable")

    def delete_topic(self, session: Session, command: Command) -> bytes:
        header = command.header(DeleteTopicFromNamesrvRequestHeader)
        self.routes.delete_topic(header.topic, header.cluster_name)
        return ok(command)

    def register_topic(self, session: Session, command: Command) -> bytes:
        header = command.header(RegisterTopicRequestHeader)
        if command.body:
            self.routes.merge_topic(header.topic, _small(TopicRouteData, command).queue_datas)
        return ok(command)

    # --- key-value table ---

    def put_kv(self, session: Session, command: Command) -> bytes | None:
        header = command.header(PutKVConfigRequestHeader)
        self.kv.put(header.namespace, header.key, header.value)
        self._cached_generation = -1
        return self._saves.answer(session, command, self._saved_kv)

    def get_kv(self, session: Session, command: Command) -> bytes:
        header = command.header(GetKVConfigRequestHeader)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            raise Refusal(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
                {},
            )
        return ok(command, {"value": value})

    def delete_kv(self, session: Session, command: Command) -> bytes | None:
        header = command.header(DeleteKVConfigRequestHeader)
        self.kv.delete(header.namespace, header.key)
        self._cached_generation = -1
        return self._saves.answer(session, command, self._saved_kv)

    def kv_list(self, session: Session, command: Command) -> bytes:
        namespace = command.header(GetKVListByNamespaceRequestHeader).namespace
        table = self.kv.namespace(namespace)
        if table is None:
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return ok(command, None, encode_body(KVTable(table=table)))

    # --- settings ---

    def update_settings(self, session: Session, command: Command) -> bytes | None:
        """Change all given settings or none. The changes are written to the settings file; without one they last until
        the process ends. A setting that has no effect in a file has none here either."""
        changes = settings_to_change(
            command.body,
            known_keys(NamesrvConfig),
            {*_PROTECTED_KEYS, *self.config.config_black_list.split(";")},
            self._foreign_keys,
        )
        try:
            kept = change_settings(changes, self.config)
        except ConfigError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error), reason=Reason.WRONG_VALUE) from None
        self._cached_generation = -1
        self._changed_settings.note(kept)
        return self._saves.answer(session, command, self._saved_settings)

    def settings(self, session: Session, command: Command) -> bytes:
        shown = {**self._shell_settings, "kvConfigPath": "", **to_properties(self.config)}
        lines = (f"{key}={shown_setting(value)}\n" for key, value in sorted(shown.items()))
        return ok(command, None, "".join(lines).encode())


class _Routed(NoFacts):
    def __init__(self, routes: RouteTable) -> None:
        self._routes = routes

    def cluster_of(self, broker_name: str) -> str | None:
        data = self._routes.broker_data(broker_name)
        return None if data is None else data.cluster


def _small(body_type: type[T], command: Command) -> T:
    """The decoded body. Raises Refusal, ProtocolError, IllegalName."""
    if len(command.body) > MAX_SMALL_BODY_BYTES:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"a body of {len(command.body)} bytes, at most {MAX_SMALL_BODY_BYTES} are read",
        )
    return decode_body(body_type, command.body)


def _crc32(body: bytes | memoryview) -> Work[int]:
    """As ``message.crc32``."""
    found = crc32(body[:SUMMED_AT_ONCE])
    for start in range(SUMMED_AT_ONCE, len(body), SUMMED_AT_ONCE):
        yield
        found = crc32(body[start : start + SUMMED_AT_ONCE], found)
    return found & BODY_CRC_MASK


def _topic_list(command: Command, names: Work[list[str]]) -> Slices:
    body = TopicList(topic_list=(yield from names))
    return (yield from ok_in_slices(command, body))
