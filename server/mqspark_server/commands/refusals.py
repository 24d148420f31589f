"""How commands fail: exit codes, and errors that say what to do next.

0 success; 1 a server refused or cannot be reached; 2 the command or its settings are wrong; 3 a named thing does not
exist, or a check found something wrong; 130 interrupted.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

import click

from mqspark.base.config import did_you_mean
from mqspark.base.logs import printable
from mqspark.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    InvalidMessage,
    MQError,
    NoNameServer,
    NotANameServer,
    Picklable,
    RequestTimeout,
)
from mqspark.message import no_such_topic
from mqspark.protocol.codes import ResponseCode
from mqspark_server.actions.operating import NotDone, Why
from mqspark_server.shown.nouns import MAX_NAME

FAILED, WRONG, MISSING, INTERRUPTED = 1, 2, 3, 130
MAX_TEXT = 2000
_NAMES = ("topic", "group", "queue", "offset", "resource", "user", "setting")
_CHANGE = {"topic": "topic update {}", "group": "group create {}", "user": "user password {}"}


class CommandFailed(Picklable, click.ClickException):
    """The command failed."""

    exit_code = FAILED


class Missing(CommandFailed):
    """The named thing does not exist. ``known``: the existing names."""

    exit_code = MISSING

    def __init__(self, what: str, name: str, known: Iterable[str] = (), advice: str = "") -> None:
        hint = did_you_mean(name, known)
        then = f"; {advice}" if advice and not hint else ""
        super().__init__(f"there is no {what} {printable(name, MAX_NAME)!r}{hint}{then}")


class MissingTopic(Missing):
    """A topic that could be created."""

    def __init__(self, topic: str, known: Iterable[str]) -> None:
        CommandFailed.__init__(self, str(no_such_topic(topic, known)))


class MissingGroup(Missing):
    def __init__(self, group: str, known: Iterable[str]) -> None:
        super().__init__("consumer group", group, known, "mqspark group list shows all")


def exit_code_of(error: Exception) -> int:
    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error, InvalidMessage) and error.field in _NAMES:
        return WRONG  # what no server accepts
    if isinstance(error, NotDone) and error.why == Why.ABSENT:
        return MISSING
    return WRONG if isinstance(error, ConfigError) else FAILED


def describe(error: Exception) -> str:
    """One line: what is wrong, and what to do."""
    if isinstance(error, click.ClickException):
        return printable(error.format_message(), MAX_TEXT)
    if isinstance(error, MQError):
        return printable(str(error), MAX_TEXT) + _next_step(error)
    if isinstance(error, OSError):
        return printable(_describe_os(error), MAX_TEXT)
    return printable(f"{type(error).__name__}: {error}", MAX_TEXT)


def _next_step(error: MQError) -> str:
    if isinstance(error, NotANameServer):
        return ""
    if isinstance(error, NotDone) and error.why == Why.EXISTS:
        return f"; mqspark {_CHANGE[error.noun].format(error.name)} changes it"
    if isinstance(error, NoNameServer) and error.key == "namesrv":
        return "; or on the command line: --nameserver HOST:PORT, or mqspark context add NAME --nameserver HOST:PORT"
    if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION and error.reason is None:
        return "; a cluster with access control needs --credentials FILE or MQSPARK_ACCESS_KEY and MQSPARK_SECRET_KEY"
    if isinstance(error, (ConnectionLost, RequestTimeout)):
        return "; mqspark doctor finds the reason"
    return ""


def _describe_os(error: OSError) -> str:
    text = error.strerror or str(error)
    if error.filename is not None:
        text = f"{error.filename}: {text}"
    if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EPERM):
        return f"{text} (errno {errno.errorcode[error.errno]})"
    return text
