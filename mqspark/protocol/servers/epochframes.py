"""The protocol between master and slave in controller mode, sans I/O (AutoSwitchHAConnection, AutoSwitchHAClient).

All integers are big-endian:

    slave -> master    i32 1, i16 syncFromLastFile, i16 asyncLearner, i64 broker id            once
                       i32 2, i64 position                                                    reports
    master -> slave    i32 1, i32 n, i64 end of the log, i32 last epoch, n bytes of epochs     once
                       i32 2, i32 n, i64 position, i32 epoch, i64 start of the epoch,
                       i64 confirmed position, n bytes of the log                              n = 0: only the heads

An epoch is i32 number, i64 start. Facts: docs/rocketmq/replication.md#stream.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from mqspark.base.config import INT64_MAX
from mqspark.errors import ProtocolError
from mqspark.protocol.servers.haframes import MAX_DATA_BYTES

HANDSHAKE, TRANSFER = 1, 2
"""Ordinals of HAConnectionState."""

_STATE = struct.Struct(">i")
_SLAVE_HELLO = struct.Struct(">ihhq")
_POSITION = struct.Struct(">iq")
_MASTER_HELLO = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_DATA = struct.Struct(">iiqiqq")

MAX_EPOCH_BYTES = 10_000 * _EPOCH.size
"""RocketMQ sends at most 1,000 epochs."""


class SlaveHello(NamedTuple):
    broker_id: int
    newest_segment_only: bool = False
    """Whether a slave without a log wants only the newest segment."""
    is_learner: bool = False
    """Whether it never counts as in sync."""


class MasterHello(NamedTuple):
    end: int
    epochs: tuple[tuple[int, int], ...]
    """(number, start)."""


class EpochData(NamedTuple):
    position: int
    part: memoryview
    epoch: int
    epoch_start: int
    confirmed: int


def encode_hello(hello: SlaveHello) -> bytes:
    return _SLAVE_HELLO.pack(HANDSHAKE, hello.newest_segment_only, hello.is_learner, hello.broker_id)


def encode_position(position: int) -> bytes:
    return _POSITION.pack(TRANSFER, position)


def encode_master_hello(end: int, epochs: Sequence[tuple[int, int]]) -> bytes:
    last = epochs[-1][0] if epochs else -1
    head = _MASTER_HELLO.pack(HANDSHAKE, len(epochs) * _EPOCH.size, end, last)
    return head + b"".join(_EPOCH.pack(*epoch) for epoch in epochs)


def epoch_data_head(position: int, size: int, epoch: tuple[int, int], confirmed: int) -> bytes:
    return _DATA.pack(TRANSFER, size, position, *epoch, confirmed)


class SlaveWords:
    """Parses what a slave sends."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def receive_data(self, data: bytes) -> list[SlaveHello | int]:
        """Handshakes and positions. Raises ProtocolError."""
        data, at = self._rest + data, 0
        found: list[SlaveHello | int] = []
        while len(data) - at >= _STATE.size:
            (state,) = _STATE.unpack_from(data, at)
            if state == HANDSHAKE:
                if len(data) - at < _SLAVE_HELLO.size:
                    break
                _, newest, learner, broker_id = _SLAVE_HELLO.unpack_from(data, at)
                if broker_id < 0:
                    raise ProtocolError(f"a slave says that its broker id is {broker_id}")
                found.append(SlaveHello(broker_id, newest == 1, learner == 1))
                at += _SLAVE_HELLO.size
            elif state == TRANSFER:
                if len(data) - at < _POSITION.size:
                    break
                position = _POSITION.unpack_from(data, at)[1]
                if position < 0:
                    raise ProtocolError(f"a slave says that it is at {position} of the log")
                found.append(position)
                at += _POSITION.size
            else:
                raise ProtocolError(
                    f"a slave is in state {state}: its enableControllerMode may differ from the one here"
                )
        self._rest = data[at:]
        return found


class EpochFrames:
    """Parses what a master sends. Bytes of the log are passed on as they come."""

    __slots__ = ("_head", "_left", "_now")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._now = EpochData(0, memoryview(b""), 0, 0, 0)

    def receive_data(self, data: bytes) -> list[MasterHello | EpochData]:
        """Raises ProtocolError."""
        found: list[MasterHello | EpochData] = []
        view, at = memoryview(data), 0
        while at < len(view):
            if self._left:
                part = view[at : at + self._left]
                found.append(self._now._replace(part=part))
                self._now = self._now._replace(position=self._now.position + len(part))
                self._left -= len(part)
                at += len(part)
                continue
            taken = view[at : at + self._head_length() - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) < self._head_length():
                continue
            head, self._head = self._head, b""
            if _STATE.unpack_from(head)[0] == HANDSHAKE:
                found.append(_master_hello(head))
            else:
                self._begin(head)
                if not self._left:
                    found.append(self._now)
        return found

    def _head_length(self) -> int:
        """Length of the head that is being received, as far as it is known. Raises ProtocolError."""
        if len(self._head) < _STATE.size:
            return _STATE.size
        (state,) = _STATE.unpack_from(self._head)
        if state == TRANSFER:
            return _DATA.size
        if state != HANDSHAKE:
            raise ProtocolError(
                f"a master is in state {state}: its enableControllerMode may differ from the one here"
            )
        if len(self._head) < _MASTER_HELLO.size:
            return _MASTER_HELLO.size
        size: int = _MASTER_HELLO.unpack_from(self._head)[1]
        if not 0 <= size <= MAX_EPOCH_BYTES or size % _EPOCH.size:
            raise ProtocolError(f"a master sent {size} bytes of epochs")
        return _MASTER_HELLO.size + size

    def _begin(self, head: bytes) -> None:
        _, self._left, position, epoch, epoch_start, confirmed = _DATA.unpack(head)
        # A master without a log says -1 for the position.
        if not 0 <= self._left <= MAX_DATA_BYTES or position < (0 if self._left else -1):
            raise ProtocolError(f"a master sent {self._left} bytes of the log at {position}")
        if epoch_start < 0 or position > INT64_MAX - self._left:
            raise ProtocolError(f"a master sent epoch {epoch} from {epoch_start} on at {position}")
        self._now = EpochData(position, memoryview(b""), epoch, epoch_start, confirmed)


def _master_hello(data: bytes) -> MasterHello:
    _, _, end, _ = _MASTER_HELLO.unpack_from(data)
    epochs = tuple(
        (number, start) for number, start in _EPOCH.iter_unpack(memoryview(data)[_MASTER_HELLO.size :])
    )
    if end < 0:
        raise ProtocolError(f"a master's log ends at {end}")
    return MasterHello(end, epochs)
