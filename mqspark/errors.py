"""Every exception that this project raises on purpose.

    MQError
    ├── ConfigError              a setting is unknown, malformed or contradictory      (.key)
    │   └── NoNameServer         no address of a name server is given
    ├── InvalidMessage           a message, topic or group breaks a rule of the format (.field)
    ├── InvalidFilter            a SQL92 filter does not compile                       (.expression, .position)
    ├── FilterFailed             a filter has no value for these properties; counts as no match
    ├── InvalidSchema            a schema breaks a rule of its language                (.kind, .where)
    │   └── SchemaTooLarge       it exceeds a bound, before anything is done with it   (.limit)
    ├── ProtocolError            bytes on a connection are not the remoting protocol
    │   ├── FrameTooLarge        a length field exceeds its limit                      (.length, .limit)
    │   └── IllegalName          a topic, group, broker … has an illegal name          (.what)
    ├── StoreError               the disk part
    │   ├── StoreLocked          another process holds the directory                   (.path, .holder)
    │   ├── StoreCorrupt         a file does not match its name                        (.path, .offset)
    │   ├── StoreReadOnly        a write or sync failed; nothing more is acked         (.reason)
    │   ├── NotNow               nothing was changed, and a retry may succeed
    │   │   ├── DiskFull         no space for another segment step
    │   │   ├── NoResources      the process lacks descriptors, memory or a permission (.errno)
    │   │   ├── TooFewReplicas   fewer brokers in sync than minInSyncReplicas          (.in_sync, .needed)
    │   │   ├── TableFull        a table that peers can grow has no room for a key     (.table, .bound, .setting)
    │   │   └── StoreUnreadable  a read failed                                         (.errno)
    │   ├── TooManyAlike         a look-up by key meets too many other keys of the same hash
    │   └── MessageTooLarge      body, properties or record over a limit               (.size_bytes, .limit_bytes)
    └── ClientError              the client part
        ├── BrokerError          a server answered with a response code       (.code, .remark, .address, .reason)
        │   └── NotANameServer   a request for a name server was sent to a broker
        ├── RequestTimeout       no answer in time                                     (.address, .timeout_ms)
        ├── ConnectionLost       the connection ended before the answer                (.address)
        ├── NoRoute              no broker can be asked for the topic                  (.topic)
        │   └── NoSuchTopic      the name servers do not know it
        ├── BadRoute             the route of a topic is inconsistent                  (.topic)
        ├── NoSchemaRegistry     no broker, or several, keep a schema registry
        └── SchemaRefused        the schema registry answered with an error            (.status, .code)

Messages tell the user what to do; fields carry what a program needs. Each of them survives pickling: Spark's processes
pass on what happened to each other.

Must not import anything of mqspark.
"""

from __future__ import annotations

import errno
from typing import Any

MAX_MESSAGE = 4_000
"""Characters of what is said about a setting or a message."""


class Picklable(BaseException):
    """Mixed into exceptions whose constructors take other arguments than ``args``."""

    def __reduce__(self) -> tuple[Any, ...]:
        """By its texts and fields, not by its constructor."""
        fields = dict(self.__dict__)
        if isinstance(self, OSError) and self.errno is not None:
            fields["errno"] = self.errno
        return _revived, (type(self), self.args, fields)


def _revived(kind: type[Picklable], args: tuple[Any, ...], fields: dict[str, Any]) -> Picklable:
    error = kind.__new__(kind, *args)
    error.args = args
    for name, value in fields.items():
        setattr(error, name, value)
    return error


class MQError(Picklable, Exception):
    """Base of all exceptions of this project."""


class ConfigError(MQError):
    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(_shortened(message))
        self.key = key

    @classmethod
    def of(cls, key: str, problem: str) -> ConfigError:
        """Its text begins with the name of the setting."""
        return cls(f"{key}: {problem}", key=key)


class NoNameServer(ConfigError):
    def __init__(self, advice: str, *, key: str) -> None:
        super().__init__(f"no name server: {advice}", key=key)


class InvalidMessage(MQError, ValueError):
    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(_shortened(message))
        self.field = field


def _shortened(message: str) -> str:
    """With both ends: it may quote what was given, which has any length."""
    if len(message) <= MAX_MESSAGE:
        return message
    half = MAX_MESSAGE // 2 - 50
    return f"{message[:half]}... ({len(message)} characters) ...{message[-half:]}"


class InvalidFilter(MQError, ValueError):
    """``position``: index in ``expression`` of the character where the error is."""

    def __init__(self, problem: str, expression: str, position: int) -> None:
        near = expression[position : position + 20]
        where = f"at position {position}, near {near!r}" if near else "at its end"
        super().__init__(f"Invalid MessageSelector. {problem}, {where}")
        self.problem = problem
        self.expression = expression
        self.position = position


class FilterFailed(MQError, ValueError):
    pass


class InvalidSchema(MQError, ValueError):
    """``kind``: AVRO, JSON or PROTOBUF; ``where``: a path or a line in the schema, or the empty text."""

    def __init__(self, problem: str, *, kind: str, where: str = "") -> None:
        super().__init__(_shortened(f"Invalid schema of type {kind}{where and f' at {where}'}: {problem}"))
        self.problem = _shortened(problem)
        self.kind = kind
        self.where = where


class SchemaTooLarge(InvalidSchema):
    def __init__(self, what: str, limit: int, *, kind: str, where: str = "") -> None:
        super().__init__(f"{what}: the limit is {limit}", kind=kind, where=where)
        self.limit = limit


class ProtocolError(MQError):
    pass


class FrameTooLarge(ProtocolError):
    def __init__(self, what: str, length: int, limit: int) -> None:
        super().__init__(f"{what} of {length} bytes exceeds the limit of {limit}")
        self.length = length
        self.limit = limit


class IllegalName(ProtocolError):
    """``what``: the kind of name, for example "topic" or "group"."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


class StoreError(MQError):
    pass


class StoreLocked(StoreError):
    def __init__(self, path: str, holder: str = "") -> None:
        """``holder``: " by process ...", if known."""
        super().__init__(
            f"store directory {path} is in use{holder or ' by another process'}: it or its 'lock' file is locked"
        )
        self.path = path
        self.holder = holder or " by another process"


class StoreCorrupt(StoreError):
    def __init__(self, message: str, *, path: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class StoreReadOnly(StoreError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"the store accepts no writes: {reason}")
        self.reason = reason


class NotNow(StoreError):
    pass


class DiskFull(NotNow):
    pass


class TableFull(NotNow):
    def __init__(
        self,
        table: str,
        size: int,
        bound: int,
        setting: str = "",
        *,
        unit: str = "bytes",
        of_all: int | None = None,
    ) -> None:
        """``of_all``: the size of all tables together, when ``bound`` is theirs."""
        if of_all is None:
            text = f"is full: {size} of {bound} {unit}"
        else:
            text = f"may not grow: it has {size} {unit}, and all tables together {of_all} of {bound}"
        more = f"; {setting} sets that" if setting else ""
        super().__init__(f"[OVERLOAD] the table {table} {text}{more}")
        self.table = table
        self.bound = bound
        self.setting = setting


class TooFewReplicas(NotNow):
    def __init__(self, in_sync: int, needed: int) -> None:
        super().__init__(f"in-sync replicas not enough: {in_sync} of minInSyncReplicas={needed}")
        self.in_sync = in_sync
        self.needed = needed


class NoResources(NotNow):
    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(f"{what}: {error!r}" if isinstance(error, MemoryError) else f"{what}: {error}")
        self.errno = error.errno if isinstance(error, OSError) else errno.ENOMEM


class StoreUnreadable(NotNow, OSError):
    def __init__(self, message: str, error: Exception) -> None:
        super().__init__(message)
        self.errno = error.errno if isinstance(error, OSError) else errno.ENOMEM


class TooManyAlike(StoreError, InvalidMessage):
    def __init__(self, topic: str, compared: int) -> None:
        InvalidMessage.__init__(
            self,
            f"over {compared} records have keys of the same hash as this one of topic {topic}: ask for a shorter time",
            field="key",
        )


class MessageTooLarge(StoreError, InvalidMessage):
    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        InvalidMessage.__init__(
            self, f"{what} of {size_bytes} bytes exceeds the limit of {limit_bytes}", field=what
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class ClientError(MQError):
    pass


_HINTS = {
    2: "the broker is overloaded: retry later, or send less at once",
    16: "check the permissions of the topic and of the broker (brokerPermission)",
    17: "create the topic (mqspark topic create, AdminClient.create_topic), or turn on autoCreateTopicEnable",
    24: "all members of a group must subscribe to the same topics, with the same filters",
    25: "all members of a group must subscribe to the same topics, with the same filters",
    26: "create the group (AdminClient.create_group, mqadmin updateSubGroup), or turn on autoCreateSubscriptionGroup",
}
"""Advice by ``mqspark.protocol.codes.ResponseCode``: SYSTEM_BUSY, NO_PERMISSION, TOPIC_NOT_EXIST,
SUBSCRIPTION_NOT_EXIST, SUBSCRIPTION_NOT_LATEST, SUBSCRIPTION_GROUP_NOT_EXIST."""


class BrokerError(ClientError):
    """A response whose code is not a success; ``code`` is one of ``mqspark.protocol.codes.ResponseCode``, ``reason``
    one of its ``Reason`` if the server gave one."""

    def __init__(
        self, code: int, remark: str | None, *, address: str | None = None, reason: str | None = None
    ) -> None:
        where = f" from {address}" if address else ""
        hint = _HINTS.get(code)
        super().__init__(
            f"response code {code}{where}: {remark or 'no remark'}" + (f" [{hint}]" if hint else "")
        )
        self.code = code
        self.remark = remark
        self.address = address
        self.reason = reason


class NotANameServer(BrokerError):
    def __init__(self, address: str, remark: str | None) -> None:
        super().__init__(3, remark, address=address)

    def __str__(self) -> str:
        return (
            f"nameserver {self.address}: that is a broker, not a name server; give the name server's address, whose"
            " default port is 9876"
        )


class RequestTimeout(ClientError, TimeoutError):
    def __init__(self, address: str, timeout_ms: int) -> None:
        super().__init__(f"no answer from {address} within {timeout_ms} ms")
        self.address = address
        self.timeout_ms = timeout_ms


class ConnectionLost(ClientError, ConnectionError):
    """``made`` is False when the connection was never established."""

    def __init__(self, address: str, reason: str = "the peer closed it", *, made: bool = True) -> None:
        what = f"connection to {address} was lost" if made else f"cannot connect to {address}"
        super().__init__(f"{what}: {reason}")
        self.address = address
        self.reason = reason
        self.made = made


class NoRoute(ClientError):
    def __init__(self, topic: str, remark: str | None = None) -> None:
        super().__init__(f"no route for topic {topic!r}{f': {remark}' if remark else ''}")
        self.topic = topic


class NoSuchTopic(NoRoute):
    """``hint``: similar names, as ``mqspark.base.config.did_you_mean`` gives them."""

    def __init__(self, topic: str, hint: str = "") -> None:
        # Topics of groups, whose names begin so, are made by brokers.
        advice = "" if topic.startswith("%") else f"; mqspark topic create {topic} creates it"
        ClientError.__init__(self, f"there is no topic {topic!r}{hint or advice}")
        self.topic = topic


class BadRoute(ClientError):
    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"the route of topic {topic} is inconsistent: {reason}")
        self.topic = topic


class NoSchemaRegistry(ClientError):
    pass


class SchemaRefused(ClientError):
    """``status`` and ``code`` are those of Confluent's Schema Registry, for example 409 and 409, or 404 and 40401."""

    def __init__(self, message: str, status: int, code: int) -> None:
        super().__init__(f"the schema registry refuses ({code}): {message}")
        self.status = status
        self.code = code


_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.EPERM)


def is_shortage(error: Exception) -> bool:
    """Whether the process lacked a descriptor, memory, a mapping or a permission. The operation was not started, and
    the disk is not at fault."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORTAGES)
