"""Calls the handler of a request and turns its outcome into a response. Shared by broker and name server.

A handler takes (session, command) and returns the response frame, or None when it answers later or never. A
handler whose work may be long is a generator (``slices``). It raises ``Refusal`` for every response code
other than success. One-way requests are handled but not answered.

Facts: docs/rocketmq/protocol.md#calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any

from mqspark.base.config import ForeignKeys, is_live, rocketmq_key
from mqspark.base.logs import sparing
from mqspark.errors import (
    ConfigError,
    IllegalName,
    InvalidMessage,
    MQError,
    NotNow,
    ProtocolError,
    is_shortage,
)
from mqspark.protocol.bodies.body import Body, encode_in_slices
from mqspark.protocol.codes import REASON_FIELD, Reason, RequestCode, ResponseCode
from mqspark.protocol.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Command,
    UnreadRequest,
    encode_response,
    encode_response_head,
)
from mqspark.protocol.headers.header import Header, to_ext
from mqspark.protocol.session import Session
from mqspark.protocol.slices import LongWork, Slices, Work

Handler = Callable[[Session, Command], bytes | Slices | None]

MAX_SETTINGS_BYTES = 256 * 1024
"""Limit of a request that changes settings. All existing settings together take 20 KB."""

_log = sparing(__name__)
_settings_log = sparing(f"{__name__}.settings", lines=20)
"""Allows more lines, so that an operator sees the ignored keys of each of several changes."""

_LOOK_UP_TOPIC = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.RECALL_MESSAGE,
    }
)
_LOOK_UP_GROUP = frozenset({RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG})
_LOOK_UP_BOTH = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)
"""Requests for which RocketMQ treats an illegal name as an unknown one."""

_SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)


class Refusal(MQError):
    """A request is answered with a code other than success. The text becomes the remark. ``reason``: what a program may
    want to know beyond the code."""

    def __init__(
        self,
        code: int,
        remark: str,
        header: Header | Mapping[str, str] | None = None,
        *,
        reason: Reason | None = None,
    ) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        if reason is not None:
            fields = to_ext(header) if isinstance(header, Header) else header or {}
            header = {**fields, REASON_FIELD: reason}
        self.header = header


def ok(
    command: Command,
    header: Header | Mapping[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
) -> bytes:
    return encode_response(command.opaque, ResponseCode.SUCCESS, header, body, remark)


def ok_in_slices(
    command: Command,
    body: Body,
    header: Header | Mapping[str, str] | None = None,
    members: Mapping[str, Sequence[bytes]] | None = None,
) -> Work[list[bytes]]:
    """``ok`` with a body whose tables may be large (``encode_in_slices``): the frame in pieces."""
    pieces = yield from encode_in_slices(body, members)
    return [
        encode_response_head(command.opaque, ResponseCode.SUCCESS, header, sum(map(len, pieces))),
        *pieces,
    ]


def merged(*tables: Mapping[int, Handler]) -> dict[int, Handler]:
    """One table of all handlers. Raises ValueError when two of them are for the same request code."""
    handlers: dict[int, Handler] = {}
    for table in tables:
        for code, handler in table.items():
            if code in handlers:
                raise ValueError(f"two handlers for request code {code!r}")
            handlers[code] = handler
    return handlers


def dispatch(
    handlers: Mapping[int, Handler],
    session: Session,
    commands: Iterable[Command],
    long_work: LongWork,
    answered: Callable[[Session, Command], None] | None = None,
    refused: Callable[[Command, bytes], None] | None = None,
) -> None:
    """Answer every command. An error of one handler reaches neither the caller nor other commands.

    ``answered`` receives the responses to requests of the server itself; without it they are dropped.
    ``refused`` learns of the answers to requests that failed.
    """
    for command in commands:
        if command.flag & RESPONSE_FLAG:
            if answered is not None:
                try:
                    answered(session, command)
                except Exception:
                    _log.exception("answer %d from %s failed", command.opaque, session.peer)
            continue
        handler = handlers.get(command.code)
        frame: bytes | Slices | None
        try:
            frame = _unserved(command) if handler is None else handler(session, command)
        except Exception as error:
            frame = failed = failure(session, command, error)
            if refused is not None:
                refused(command, failed)
        if frame is None:  # as for most sends and pulls, which are answered later
            continue
        if isinstance(frame, bytes):
            if not command.flag & ONEWAY_FLAG:
                session.send(frame)
        elif long_work.is_full:
            frame.close()
            if not command.flag & ONEWAY_FLAG:
                remark = "[OVERLOAD] too many requests that take long; retry later"
                session.send(encode_response(command.opaque, ResponseCode.SYSTEM_BUSY, remark=remark))
        else:
            long_work.begin(session, answer_later(session, command, frame))


def _unserved(command: Command) -> bytes:
    if isinstance(command, UnreadRequest):
        if command.asked in _SENDS:
            remark = f"the message is illegal, its properties take over 32 KB: {command.exceeded}"
            return encode_response(command.opaque, ResponseCode.MESSAGE_ILLEGAL, remark=remark)
        return encode_response(command.opaque, ResponseCode.SYSTEM_ERROR, remark=command.exceeded)
    return encode_response(
        command.opaque,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=f" request type {command.code} not supported",
    )


def answer_later(session: Session, command: Command, slices: Slices) -> Work[None]:
    """Long work that answers a request with what ``slices`` return or raise."""
    frame: bytes | list[bytes] | None
    try:
        frame = yield from slices
    except Exception as error:
        frame = failure(session, command, error)
    if frame is None or command.flag & ONEWAY_FLAG:
        return
    if isinstance(frame, bytes):
        session.send(frame)
    else:
        session.send(*frame)


def failure(session: Session, command: Command, error: Exception) -> bytes:
    """The answer to a request whose handler has failed."""
    if isinstance(error, Refusal):
        return encode_response(command.opaque, error.code, error.header, remark=error.remark)
    if isinstance(error, IllegalName):
        return encode_response(command.opaque, _illegal_name(command.code, error.what), remark=str(error))
    if isinstance(error, (ProtocolError, InvalidMessage)):
        return encode_response(command.opaque, ResponseCode.SYSTEM_ERROR, remark=str(error))
    if isinstance(error, NotNow) or (isinstance(error, OSError) and is_shortage(error)):
        _log.error("request %d from %s was refused: %s", command.code, session.peer, error)
        return encode_response(command.opaque, ResponseCode.SYSTEM_BUSY, remark=f"try again later: {error}")
    _log.error("request %d from %s failed", command.code, session.peer, exc_info=error)
    return encode_response(
        command.opaque,
        ResponseCode.SYSTEM_ERROR,
        remark=f"internal error: {type(error).__name__}: {error}",
    )


def _illegal_name(code: int, what: str) -> int:
    if what == "topic" and (code in _LOOK_UP_TOPIC or code in _LOOK_UP_BOTH):
        return ResponseCode.TOPIC_NOT_EXIST
    if what == "group" and (code in _LOOK_UP_GROUP or code in _LOOK_UP_BOTH):
        return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    return ResponseCode.INVALID_PARAMETER


def parse_properties(body: bytes | memoryview) -> dict[str, str]:
    """The ``key=value`` lines of codes 25 and 318 (MixAll.string2Properties). Raises Refusal."""
    if len(body) > MAX_SETTINGS_BYTES:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"settings of {len(body)} bytes, at most {MAX_SETTINGS_BYTES} are read"
        )
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError:
        raise Refusal(ResponseCode.SYSTEM_ERROR, "the settings are not UTF-8") from None
    properties = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith("#"):
            properties[key.strip()] = value.strip()
    return properties


def settings_to_change(
    body: bytes | memoryview,
    fields: Mapping[str, Field[Any]],
    black_list: Iterable[str],
    foreign_keys: ForeignKeys,
) -> dict[str, str]:
    """The changes of a properties file to these ``fields`` (``known_keys``), by RocketMQ's keys. Keys that
    have no effect here are logged. Raises Refusal when one of them may not be changed."""
    asked = parse_properties(body).items()
    changes = {rocketmq_key(fields[key]) if key in fields else key: value for key, value in asked}
    if not changes.keys().isdisjoint(black_list):
        raise Refusal(
            ResponseCode.NO_PERMISSION, "Can not update config in black list.", reason=Reason.FIXED_SETTING
        )
    foreign = {key: value for key, value in changes.items() if key not in fields}
    try:
        fixed = {*foreign_keys(foreign)}
    except ConfigError as error:
        raise Refusal(ResponseCode.SYSTEM_ERROR, str(error), reason=Reason.WRONG_VALUE) from None
    fixed.update(key for key in changes if key in fields and not is_live(fields[key]))
    if fixed:
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"Can not update config {min(fixed)}: it cannot change while the process runs",
            reason=Reason.FIXED_SETTING,
        )
    if foreign:
        _settings_log.info("settings without an effect here: %s", ", ".join(foreign))
    return {key: value for key, value in changes.items() if key in fields}
