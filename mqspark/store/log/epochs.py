"""The epochs of a log: which master's term wrote which part of it (EpochFileCache, CheckpointFile).

An epoch begins at a log position and ends where the next one begins; the last one ends with the log. The file is
RocketMQ's ``epochFileCheckpoint``: the number of entries, the CRC of their lines, and a line ``epoch-start`` for each.

Two logs are the same up to the end of the newest epoch that both have from the same position on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mqspark.base.config import INT32_MAX, INT64_MAX
from mqspark.base.crc import crc32
from mqspark.errors import StoreCorrupt
from mqspark.store.disk.configfile import ConfigFile

MAX_EPOCHS = 1_000
"""Entries that a master of RocketMQ can send (AutoSwitchHAConnection); the oldest ones are dropped."""


class Epoch(NamedTuple):
    number: int
    start: int
    """The log position at which it begins."""


EpochMark = tuple[int, int]
"""What identifies the epochs of a log: the number of the last one, and the checksum of all."""


def mark_of(epochs: Sequence[Epoch]) -> EpochMark:
    return (epochs[-1].number if epochs else -1), crc32(encode_epochs(epochs))


def extends(epochs: Sequence[Epoch], mark: EpochMark) -> bool:
    """Whether these are the epochs of the mark, or they and newer ones."""
    return mark_of([epoch for epoch in epochs if epoch.number <= mark[0]]) == mark


def encode_epochs(epochs: Sequence[Epoch]) -> bytes:
    lines = "".join(f"{epoch.number}-{epoch.start}\n" for epoch in epochs).encode()
    return b"%d\n%d\n" % (len(epochs), crc32(lines) & INT32_MAX) + lines


def decode_epochs(data: bytes) -> list[Epoch]:
    """Raises ValueError for a damaged file."""
    count, _, rest = data.partition(b"\n")
    crc, _, lines = rest.partition(b"\n")
    epochs = [Epoch(*map(_number, line.split(b"-"))) for line in lines.splitlines()]
    if len(epochs) != _number(count):
        raise ValueError(f"it has {len(epochs)} entries of {_number(count)}")
    if _number(crc) not in (0, crc32(lines) & INT32_MAX):  # 0: RocketMQ does not check it
        raise ValueError("its CRC is wrong")
    check_order(epochs)
    return epochs


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 19:
        raise ValueError("it has a line that is not EPOCH-POSITION")
    return int(text)


def check_order(epochs: Sequence[Epoch]) -> None:
    """Raises ValueError unless numbers grow and positions do not shrink."""
    before = Epoch(-1, 0)
    for epoch in epochs:
        if not before.number < epoch.number <= INT32_MAX or not before.start <= epoch.start <= INT64_MAX:
            raise ValueError(f"epoch {epoch.number} from {epoch.start} on follows {before.number}")
        before = epoch


def last_common(
    own: Sequence[Epoch], own_end: int, other: Sequence[Epoch], other_end: int
) -> tuple[Epoch, int] | None:
    """The newest epoch that two logs have from the same position on, and the position up to which they are the same;
    None if they have no epoch in common."""
    starts = [epoch.start for epoch in other[1:]]
    ends = dict(zip(other, [*starts, other_end], strict=False))
    end = own_end
    for epoch in reversed(own):
        if epoch in ends:
            return epoch, min(end, ends[epoch])
        end = epoch.start
    return None


class EpochFile:
    """The epochs of one log. Changes are on disk when a method returns. Raises StoreCorrupt for a file that cannot be
    read, OSError."""

    def __init__(
        self,
        file: ConfigFile,
        log_end: int,
        expect: Callable[[EpochMark, EpochMark], None] = lambda before, after: None,
    ) -> None:
        """Entries behind ``log_end`` are dropped: their part of the log was never stored, or is lost. ``expect`` is
        called with the marks of the old and the new entries before the file changes, and with the new one twice
        afterwards."""
        self._file = file
        self._expect = expect
        data = file.load(is_valid_epochs)
        if data is None and file.exists:
            raise StoreCorrupt(
                f"{file.path} and its .bak are damaged: move both away, and the log is compared with its master's"
                " byte for byte"
            )
        saved = decode_epochs(data) if data is not None else []
        self._mark = mark_of(saved)
        self._epochs = [epoch for epoch in saved if epoch.start <= log_end]

    @property
    def entries(self) -> tuple[Epoch, ...]:
        return tuple(self._epochs)

    @property
    def last(self) -> Epoch | None:
        return self._epochs[-1] if self._epochs else None

    @property
    def last_number(self) -> int:
        """-1 without an epoch."""
        return self._epochs[-1].number if self._epochs else -1

    def at(self, position: int) -> tuple[Epoch, int]:
        """The epoch of the byte at ``position``, and where it ends (INT64_MAX for the last one). What lies before the
        first epoch counts as part of it. Raises LookupError without an epoch."""
        end = INT64_MAX
        for epoch in reversed(self._epochs):
            if epoch.start <= position:
                return epoch, end
            end = epoch.start
        return self._epochs[0], (self._epochs[1].start if len(self._epochs) > 1 else INT64_MAX)

    def append(self, number: int, start: int) -> bool:
        """Note that an epoch begins. False for one that is not newer than the last.

        (RocketMQ also refuses one that begins where the last one does, so that two masters' records have the same
        epoch.)"""
        epoch = Epoch(number, start)
        last = self.last
        if last is not None and (number <= last.number or start < last.start):
            return False
        self._save([*self._epochs, epoch][-MAX_EPOCHS:])
        return True

    def cut_after(self, number: int) -> None:
        """Forget all epochs after this one."""
        kept = [epoch for epoch in self._epochs if epoch.number <= number]
        if len(kept) < len(self._epochs):
            self._save(kept)

    def cut_behind(self, log_end: int) -> None:
        """Forget epochs that begin behind the end of the log."""
        kept = [epoch for epoch in self._epochs if epoch.start <= log_end]
        if len(kept) < len(self._epochs):
            self._save(kept)

    def forget_before(self, position: int) -> None:
        """Forget epochs that end at or before ``position``, where the log now begins; never the last one."""
        kept = [epoch for epoch in self._epochs[:-1] if self.at(epoch.start)[1] > position]
        kept += self._epochs[-1:]
        if len(kept) < len(self._epochs):
            self._save(kept)

    def _save(self, epochs: list[Epoch]) -> None:
        data = encode_epochs(epochs)
        mark = mark_of(epochs)
        self._expect(self._mark, mark)
        self._file.save(data)
        self._expect(mark, mark)
        self._mark = mark
        self._epochs = epochs
        # The .bak gets the same content: without the last epoch, a master that is still in it would note a later begin,
        # and its slaves would take back what they have acknowledged.
        with contextlib.suppress(OSError):
            self._file.save(data)


def begin_term(epochs: EpochFile, number: int, log_end: int) -> None:
    """Note that this log's broker is the master from ``log_end`` on. A log without epochs, from before controller mode,
    is of epoch 0. Raises StoreCorrupt when the log has a newer epoch."""
    if number < epochs.last_number:
        raise StoreCorrupt(
            f"the controller is in epoch {number}, but the log here is in {epochs.last_number}: the state of the"
            " controller is older than this log; restore it, or move epochFileCheckpoint away if no other replica of"
            " this broker has more messages"
        )
    if epochs.last is None and log_end > 0 and number > 0:
        epochs.append(0, 0)
    epochs.append(number, log_end)  # not again, when the master of this epoch has been restarted


def is_valid_epochs(data: bytes) -> bool:
    try:
        decode_epochs(data)
    except (ValueError, TypeError):
        return False
    return True
