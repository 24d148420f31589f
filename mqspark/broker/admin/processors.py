"""The handlers of administration requests, assembled from the other modules of this package
(AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mqspark.base.config import ForeignKeys
from mqspark.broker.admin.change import Changes
from mqspark.broker.admin.coldadmin import ColdAdminProcessor
from mqspark.broker.admin.connections import ConnectionsProcessor
from mqspark.broker.admin.groupadmin import GroupAdminProcessor
from mqspark.broker.admin.housekeeping import HousekeepingProcessor
from mqspark.broker.admin.inspection import InspectionProcessor
from mqspark.broker.admin.lags import LagProcessor
from mqspark.broker.admin.settingsadmin import SettingsProcessor
from mqspark.broker.admin.topicadmin import TopicAdminProcessor
from mqspark.broker.admin.unsupported import UnsupportedProcessor
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.dispatch import Handler, merged


def admin_handlers(
    state: BrokerState,
    runtime_info: Callable[[], dict[str, str]],
    settings_changed: Callable[[], None],
    changes: Changes,
    gone: Callable[[str], None],
    foreign_keys: ForeignKeys,
    shell_settings: Mapping[str, str],
    knows_topics: Callable[[], bool],
) -> dict[int, Handler]:
    return merged(
        TopicAdminProcessor(state, changes.changed, changes.remapped, gone).handlers,
        GroupAdminProcessor(state, changes.changed).handlers,
        SettingsProcessor(
            state, settings_changed, changes.keep_settings, foreign_keys, shell_settings
        ).handlers,
        InspectionProcessor(state, runtime_info).handlers,
        LagProcessor(state).handlers,
        ConnectionsProcessor(state).handlers,
        HousekeepingProcessor(state, changes.changed, knows_topics).handlers,
        ColdAdminProcessor(state).handlers,
        UnsupportedProcessor(state).handlers,
    )
