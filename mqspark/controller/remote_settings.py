"""The settings of a controller over the wire: requests 1009 and 1010. Every controller answers them, leader or not."""

from __future__ import annotations

from mqspark.base.config import ForeignKeys, change_settings, known_keys, to_properties
from mqspark.base.logs import shown_setting
from mqspark.controller.config import ControllerConfig
from mqspark.errors import ConfigError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok, settings_to_change
from mqspark.protocol.session import Session

_PROTECTED_KEYS = frozenset({"configBlackList", "configStorePath", "rocketmqHome"})


def settings_handlers(config: ControllerConfig, foreign_keys: ForeignKeys) -> dict[int, Handler]:
    def update(session: Session, command: Command) -> bytes:
        """Change all given settings or none, until the process ends."""
        changes = settings_to_change(
            command.body,
            known_keys(ControllerConfig),
            {*_PROTECTED_KEYS, *config.config_black_list.split(";")},
            foreign_keys,
        )
        try:
            change_settings(changes, config)
        except ConfigError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return ok(command)

    def show(session: Session, command: Command) -> bytes:
        lines = (f"{key}={shown_setting(value)}\n" for key, value in sorted(to_properties(config).items()))
        return ok(command, None, "".join(lines).encode())

    return {RequestCode.UPDATE_CONTROLLER_CONFIG: update, RequestCode.GET_CONTROLLER_CONFIG: show}
