"""The handlers of administration requests, assembled from the other modules of this package
(AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable

from mqspark.broker.admin.change import Change
from mqspark.broker.admin.connections import Connections
from mqspark.broker.admin.groupadmin import GroupAdmin
from mqspark.broker.admin.housekeeping import Housekeeping
from mqspark.broker.admin.inspection import Inspection
from mqspark.broker.admin.lags import Lags
from mqspark.broker.admin.settings import SettingsAdmin
from mqspark.broker.admin.topicadmin import TopicAdmin
from mqspark.broker.admin.unsupported import Absent
from mqspark.broker.state.state import BrokerState
from mqspark.config import ForeignKeys
from mqspark.protocol.dispatch import Handler, merged

__all__ = ["admin_handlers"]


def admin_handlers(
    state: BrokerState,
    runtime_info: Callable[[], dict[str, str]],
    settings_changed: Callable[[], None],
    change: Change,
    foreign_keys: ForeignKeys,
) -> dict[int, Handler]:
    return merged(
        TopicAdmin(state, change).handlers,
        GroupAdmin(state, change).handlers,
        SettingsAdmin(state, settings_changed, foreign_keys).handlers,
        Inspection(state, runtime_info).handlers,
        Lags(state).handlers,
        Connections(state).handlers,
        Housekeeping(state).handlers,
        Absent(state).handlers,
    )
