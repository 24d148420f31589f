"""Show and change the broker's settings at run time (AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mqspark.base.config import ForeignKeys, change_settings, known_keys, to_properties
from mqspark.base.logs import shown_setting
from mqspark.broker.admin.change import KeepSettings
from mqspark.broker.config import BrokerConfig
from mqspark.broker.state.state import BrokerState
from mqspark.errors import ConfigError
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import DataVersion
from mqspark.protocol.codes import Reason, RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok, settings_to_change
from mqspark.protocol.session import Session


class SettingsProcessor:
    """``changed`` is called when the settings objects have new values. ``shell_settings``: what else is shown."""

    def __init__(
        self,
        state: BrokerState,
        changed: Callable[[], None],
        keep: KeepSettings,
        foreign_keys: ForeignKeys,
        shell_settings: Mapping[str, str],
    ) -> None:
        self._state = state
        self._changed = changed
        self._keep = keep
        self._foreign_keys = foreign_keys
        self._shell_settings = shell_settings
        self._version = DataVersion(timestamp=state.clock.now_ms())
        self.handlers: dict[int, Handler] = {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_settings,
            RequestCode.GET_BROKER_CONFIG: self.settings,
        }

    def update_settings(self, session: Session, command: Command) -> bytes | None:
        """Change all of the given keys or none. The changes go into the settings file; without one they last until
        the broker stops. Keys that have no effect in the file have none here."""
        state = self._state
        black_list = {
            "brokerConfigPath",
            "rocketmqHome",
            "configBlackList",
            *state.config.config_black_list.split(";"),
        }
        fields = known_keys(type(state.store_config)) | known_keys(BrokerConfig)
        changes = settings_to_change(command.body, fields, black_list, self._foreign_keys)
        permission = state.config.broker_permission
        try:
            kept = change_settings(changes, state.config, state.store_config)
        except ConfigError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error), reason=Reason.WRONG_VALUE) from None
        self._version = self._version.next(state.clock.now_ms())
        if state.config.broker_permission != permission:
            state.topics.touch()
        self._changed()
        return self._keep(session, command, kept)

    def settings(self, session: Session, command: Command) -> bytes:
        state = self._state
        config = state.config
        properties = {
            **self._shell_settings,
            "brokerIP2": config.broker_ip2 or config.broker_ip1,
            "haListenPort": config.ha_address.rpartition(":")[2],
            "namesrvAddr": "",
            "controllerAddr": "",
            "storePathCommitLog": ",".join(str(path) for path in state.store.paths.commit_logs.all),
            **to_properties(state.store_config),
            **to_properties(state.config),
        }
        text = "".join(f"{key}={shown_setting(value)}\n" for key, value in sorted(properties.items()))
        return ok(command, {"version": encode_body(self._version).decode()}, text.encode())
