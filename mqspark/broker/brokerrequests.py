"""The requests that a broker answers: a handler for each code, with all that stands around handlers.

Must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mqspark.base.config import ForeignKeys
from mqspark.broker.admin.coldadmin import ColdAdminProcessor
from mqspark.broker.admin.connections import ConnectionsProcessor
from mqspark.broker.admin.groupadmin import GroupAdminProcessor
from mqspark.broker.admin.housekeeping import HousekeepingProcessor
from mqspark.broker.admin.inspection import InspectionProcessor
from mqspark.broker.admin.lags import LagProcessor
from mqspark.broker.admin.relays import RelayProcessor
from mqspark.broker.admin.settingsadmin import SettingsProcessor
from mqspark.broker.admin.topicadmin import TopicAdminProcessor
from mqspark.broker.admin.unsupported import UnsupportedProcessor
from mqspark.broker.brokerservices import BrokerServices
from mqspark.broker.brokertables import BrokerTables
from mqspark.broker.changeanswers import ChangeAnswers
from mqspark.broker.group.membership import MembershipProcessor
from mqspark.broker.hooked import BrokerHooks
from mqspark.broker.pop.assignment import AssignmentProcessor
from mqspark.broker.pop.cluster_routes import KnownRoutes
from mqspark.broker.pop.foreignchecks import ForeignChecks
from mqspark.broker.pull.lookups import LookupProcessor
from mqspark.broker.pull.pull import PullProcessor
from mqspark.broker.pull.waiting_reads import WaitingReads
from mqspark.broker.replication.role import Role
from mqspark.broker.send.fastfail import FastFail
from mqspark.broker.send.replies import ReplyProcessor
from mqspark.broker.send.send import SendProcessor
from mqspark.broker.send.sendback import SendBackProcessor
from mqspark.broker.state.acks import Acks
from mqspark.broker.timer.recall import RecallProcessor
from mqspark.broker.touched import Touched
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.dispatch import Handler, merged
from mqspark.protocol.extending import Extensions
from mqspark.protocol.session import Session

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority

_UNTIMED = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }
)
"""Requests whose answers are counted where they are sent."""
ACK = int(RequestCode.ACK_MESSAGE)


def _nobody(session: Session) -> str:
    """The user name where users do not log in."""
    return ""


class BrokerRequests:
    """``handlers``, once ``serve`` was called."""

    def __init__(
        self,
        shared: BrokerTables,
        acks: Acks,
        role: Role,
        services: BrokerServices,
        lookups: LookupProcessor,
        *,
        all_wait: bool,
    ) -> None:
        """``all_wait``: as of ``SendProcessor``."""
        self._state = state = shared.state
        self._acks = acks
        self._role = role
        self._services = services
        self._lookups = lookups
        self._modes = shared.modes
        self.pulls = PullProcessor(state, role)
        self.changes = ChangeAnswers(state, shared.changes, shared.saved, acks, self.pulls.remapped)
        self.sends = SendProcessor(
            state, acks, state.store.store_host, self.changes.once_known, all_wait=all_wait
        )
        if state.config.schema_registry_enable or state.config.namesrv_addr:
            self.sends.guard.schemas = services.schemas.parsed
        if state.config.enable_slave_acting_master:
            self.sends.foreign = ForeignChecks(state)
        self.routes = KnownRoutes(state)
        self.overload = FastFail(state.config)
        self.waiting_reads = WaitingReads(state)
        self.hooks: BrokerHooks | None = None
        self.handlers: dict[int, Handler] = {}
        self.plain_ack: Handler | None = None
        """The handler of ACK_MESSAGE if nothing stands around it but a clock: no users, no extensions, no role."""

    def serve(
        self,
        runtime_info: Callable[[], dict[str, str]],
        foreign_keys: ForeignKeys,
        shell_settings: Mapping[str, str],
        more: Mapping[int, Handler],
        extensions: Extensions | None,
        authority: Authority | None,
    ) -> None:
        """``runtime_info``: the table of code 28. ``more``: the handlers of the shell. The others are parameters of
        ``BrokerCore``."""
        state = self._state
        plain = merged(self._own(), self._of_tools(runtime_info, foreign_keys, shell_settings))
        handlers = merged(self._role.govern(plain), more)
        if state.store.reads.older is not None:
            handlers = self.waiting_reads.wrap(handlers)
        if extensions is not None:
            self._services.transactions.listeners = extensions.transactions
            user_name = authority.user_name if authority is not None else _nobody
            self.hooks = BrokerHooks(extensions, state.store, state.config.broker_name, user_name)
            handlers = self.hooks.around(handlers)
        is_plain = authority is None and handlers.get(ACK) is self._services.pop.handlers[ACK]
        handlers = state.stats.rpc.timed(handlers, _UNTIMED)
        self.plain_ack = handlers[ACK] if is_plain else None
        if authority is not None:
            handlers = authority.guard(handlers, Touched(state))
            authority.bound_connections()
            state.permits = authority.may
            state.grant = authority.grant
            state.clients.may_replace = authority.is_same_user
            state.subscriptions.limited_user = authority.limited_user
        self.handlers = handlers

    def _of_tools(
        self,
        runtime_info: Callable[[], dict[str, str]],
        foreign_keys: ForeignKeys,
        shell_settings: Mapping[str, str],
    ) -> dict[int, Handler]:
        """The handlers of administration requests (AdminBrokerProcessor)."""
        state, changes = self._state, self.changes
        return merged(
            TopicAdminProcessor(state, changes.changed, changes.remapped, self._topic_gone).handlers,
            GroupAdminProcessor(state, changes.changed).handlers,
            SettingsProcessor(
                state, self.refresh_settings, changes.keep_settings, foreign_keys, shell_settings
            ).handlers,
            InspectionProcessor(state, runtime_info).handlers,
            LagProcessor(state).handlers,
            ConnectionsProcessor(state).handlers,
            HousekeepingProcessor(state, changes.changed, self._role.knows_topics).handlers,
            ColdAdminProcessor(state).handlers,
            UnsupportedProcessor(state).handlers,
        )

    def _own(self) -> dict[int, Handler]:
        state, acks, services = self._state, self._acks, self._services
        return merged(
            self._lookups.handlers,
            MembershipProcessor(state).handlers,
            self.pulls.handlers,
            RelayProcessor(state, state.calls, self._was_reset).handlers,
            self.sends.handlers,
            SendBackProcessor(state, acks).handlers,
            RecallProcessor(state, acks).handlers,
            services.transactions.handlers,
            ReplyProcessor(state, self.sends, state.store.store_host).handlers,
            services.pop.handlers,
            services.lite.handlers,
            services.schemas.handlers,
            services.delays.handlers,
            services.timers.handlers,
            AssignmentProcessor(state, self._modes, self.routes, self.changes.mode_changed).handlers,
        )

    def _was_reset(self, group: str, topic: str) -> None:
        self.pulls.answer_resets(group, topic)
        self._services.lite.was_reset(group, topic)

    def _topic_gone(self, topic: str) -> None:
        self.pulls.topic_gone(topic)
        self._services.pop.topic_gone(topic)

    def refresh_settings(self) -> None:
        """Apply changes of the settings to the values that are cached beside them."""
        self.sends.refresh_settings()
        self.overload.refresh_settings()
        self._state.store.refresh_settings()
        self._state.topics.follow_auto_create_setting()
