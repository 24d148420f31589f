"""Flow control of cold reads and the reading ahead of the log, for tools (AdminBrokerProcessor): 2001 to 2004."""

from __future__ import annotations

from mqspark.broker.admin.groupadmin import check_group_name
from mqspark.broker.state.state import BrokerState
from mqspark.message import MAX_GROUP_LENGTH, parse_number
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok, parse_properties
from mqspark.protocol.session import Session

_MODE_KEY = "READ_AHEAD_MODE"
_NORMAL, _RANDOM = 0, 1
"""Advice to the kernel, by Linux's numbers: normal reading ahead, or none."""


class ColdAdminProcessor:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.handlers: dict[int, Handler] = {
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: self.update,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: self.remove,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: self.info,
            RequestCode.SET_COMMITLOG_READ_MODE: self.set_read_mode,
        }

    def update(self, session: Session, command: Command) -> bytes:
        """Set thresholds of groups, in bytes per five seconds: all or none. (RocketMQ skips what is no number.)"""
        asked: dict[str, int] = {}
        for group, text in parse_properties(command.body).items():
            threshold = parse_number(text)
            if threshold is None:
                raise Refusal(
                    ResponseCode.INVALID_PARAMETER,
                    f"the threshold of group {group[:80]} is a number of bytes, not {text[:40]!r}",
                )
            check_group_name(group)
            asked[group] = threshold
        for group, threshold in asked.items():
            self._state.cold_reads.set_threshold(group, threshold)
        return ok(command)

    def remove(self, session: Session, command: Command) -> bytes:
        """The body is the group; one without a threshold is no error."""
        group = bytes(command.body[: MAX_GROUP_LENGTH * 2]).decode("utf-8", "replace")
        if group:
            check_group_name(group)
            self._state.cold_reads.remove_threshold(group)
        return ok(command)

    def info(self, session: Session, command: Command) -> bytes:
        return ok(command, None, encode_body(self._state.cold_reads.info()))

    def set_read_mode(self, session: Session, command: Command) -> bytes:
        """Until the end of the process; dataReadAheadEnable is the setting."""
        if not command.ext:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode param error")
        text = command.ext.get(_MODE_KEY) or ""
        mode = parse_number(text.removeprefix("-"))
        if mode is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode failed")
        if mode not in (_NORMAL, _RANDOM) or text[0] == "-":
            raise Refusal(ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error")
        self._state.store_config.data_read_ahead_enable = mode == _NORMAL
        self._state.store.refresh_settings()
        return ok(command, remark=f"set commitlog readahead mode success, mode: {mode}")
