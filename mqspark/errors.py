"""Every exception this project raises on purpose.

    MQError
    ├── ConfigError              a setting is unknown, malformed or contradictory      (.key)
    ├── InvalidMessage           a message, topic or group breaks a rule of the format (.field)
    ├── InvalidFilter            a SQL92 filter does not compile                       (.expression, .position)
    ├── FilterFailed             a filter has no value for these properties; counts as no match
    ├── ProtocolError            bytes on a connection are not the remoting protocol
    │   └── FrameTooLarge        a length field exceeds its bound                      (.length, .limit)
    ├── StoreError               the disk part
    │   ├── StoreLocked          another process owns the directory                    (.path)
    │   ├── StoreCorrupt         a file is not what its name says                      (.path, .offset)
    │   ├── StoreReadOnly        a write or sync failed once; nothing is acked again   (.reason)
    │   ├── DiskFull             no space for another segment step
    │   └── MessageTooLarge      body, properties or record over a limit               (.size_bytes, .limit_bytes)
    └── ClientError              the client part
        ├── BrokerError          a server answered with a response code                (.code, .remark, .address)
        ├── RequestTimeout       no answer in time                                     (.address, .timeout_ms)
        ├── ConnectionLost       the connection ended before the answer                (.address)
        ├── NoRoute              the name servers know no such topic                   (.topic)
        └── NotYet               a named feature that this version does not have

Messages tell the user what to do; fields carry what a program needs. Must not import anything of mqspark.
"""

from __future__ import annotations

__all__ = [
    "MQError",
    "ConfigError",
    "InvalidMessage",
    "InvalidFilter",
    "FilterFailed",
    "ProtocolError",
    "FrameTooLarge",
    "StoreError",
    "StoreLocked",
    "StoreCorrupt",
    "StoreReadOnly",
    "DiskFull",
    "MessageTooLarge",
    "ClientError",
    "BrokerError",
    "RequestTimeout",
    "ConnectionLost",
    "NoRoute",
    "NotYet",
]


class MQError(Exception):
    """Base of everything below."""


class ConfigError(MQError):
    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class InvalidMessage(MQError, ValueError):
    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidFilter(MQError, ValueError):
    """``position``: index of the character in ``expression`` where it goes wrong."""

    def __init__(self, problem: str, expression: str, position: int) -> None:
        near = expression[position : position + 20]
        where = f"at position {position}, near {near!r}" if near else "at its end"
        super().__init__(f"Invalid MessageSelector. {problem}, {where}")
        self.problem = problem
        self.expression = expression
        self.position = position


class FilterFailed(MQError, ValueError):
    pass


class ProtocolError(MQError):
    pass


class FrameTooLarge(ProtocolError):
    def __init__(self, what: str, length: int, limit: int) -> None:
        super().__init__(f"{what} of {length} bytes exceeds the limit of {limit}")
        self.length = length
        self.limit = limit


class StoreError(MQError):
    pass


class StoreLocked(StoreError):
    def __init__(self, path: str) -> None:
        super().__init__(f"store directory {path} is in use by another process (its 'lock' file is locked)")
        self.path = path


class StoreCorrupt(StoreError):
    def __init__(self, message: str, *, path: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class StoreReadOnly(StoreError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"the store accepts no writes: {reason}")
        self.reason = reason


class DiskFull(StoreError):
    pass


class MessageTooLarge(StoreError, InvalidMessage):
    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        InvalidMessage.__init__(
            self, f"{what} of {size_bytes} bytes exceeds the limit of {limit_bytes}", field=what
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class ClientError(MQError):
    pass


class BrokerError(ClientError):
    """A response whose code is not a success; ``code`` is one of ``mqspark.protocol.codes.ResponseCode``."""

    def __init__(self, code: int, remark: str | None, *, address: str | None = None) -> None:
        where = f" from {address}" if address else ""
        super().__init__(f"response code {code}{where}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address


class RequestTimeout(ClientError, TimeoutError):
    def __init__(self, address: str, timeout_ms: int) -> None:
        super().__init__(f"no answer from {address} within {timeout_ms} ms")
        self.address = address
        self.timeout_ms = timeout_ms


class ConnectionLost(ClientError, ConnectionError):
    def __init__(self, address: str, reason: str = "the peer closed it") -> None:
        super().__init__(f"connection to {address} was lost: {reason}")
        self.address = address


class NoRoute(ClientError):
    def __init__(self, topic: str, remark: str | None = None) -> None:
        super().__init__(
            f"no route for topic {topic!r}: create it, or turn on autoCreateTopicEnable"
            + (f" ({remark})" if remark else "")
        )
        self.topic = topic


class NotYet(ClientError, NotImplementedError):
    def __init__(self, feature: str) -> None:
        super().__init__(f"{feature} is not available yet in this version of mqspark")
        self.feature = feature
