"""``mqspark.ends``: where every queue began and ended at the last clean stop. RocketMQ ignores it.

An entry missing at the end of a queue leaves no trace in the queue: its offset would be assigned again. So a
stop records the ends, and a start compares. The record counts with the checkpoint written together with it,
or with a later one of this project, because entries for what lies before its position stay.

    mqspark.ends    mqspark-ends-1 00000000000000004711          the position of that checkpoint
                    17 4711 3 TopicA                             begin, end, queue id, topic; one line per queue
                    9d0ad5c7                                     CRC-32 of everything before
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mqspark.store.disk.files import FileLayer
from mqspark.store.queue.batchqueue import BatchQueue, BatchTable
from mqspark.store.queue.consumequeue import ConsumeQueue, Doubt
from mqspark.store.queue.queuetable import QueueTable

__all__ = ["QueueEnds"]

_TITLE = b"mqspark-ends-1"
Key = tuple[str, int]


@dataclass(slots=True, frozen=True)
class QueueEnds:
    """Ends of the queues at log position ``position``."""

    position: int
    ranges: Mapping[Key, tuple[int, int]]
    """By topic and queue id, in offsets of messages."""

    @classmethod
    def of(cls, position: int, queues: Iterable[ConsumeQueue | BatchQueue]) -> QueueEnds:
        return cls(
            position,
            {
                (queue.topic, queue.queue_id): (queue.min_offset, max(queue.max_offset, queue.next_offset))
                for queue in queues
            },
        )

    def encode(self) -> bytes:
        lines = [b"%s %020d" % (_TITLE, self.position)]
        lines += [
            b"%d %d %d %s" % (begin, end, queue_id, topic.encode())
            for (topic, queue_id), (begin, end) in self.ranges.items()
        ]
        text = b"\n".join(lines) + b"\n"
        return text + b"%08x\n" % zlib.crc32(text)

    @classmethod
    def decode(cls, data: bytes | None) -> QueueEnds | None:
        """None when there is no file or its content is invalid."""
        text, _, crc = (data or b"").removesuffix(b"\n").rpartition(b"\n")
        text += b"\n"
        if crc != b"%08x" % zlib.crc32(text) or not text.startswith(_TITLE):
            return None
        title, *lines = text.decode().splitlines()
        ranges: dict[Key, tuple[int, int]] = {}
        for line in lines:
            begin, end, queue_id, topic = line.split(" ", 3)
            ranges[topic, int(queue_id)] = int(begin), int(end)
        return cls(int(title.split()[1]), ranges)

    @classmethod
    def load(cls, path: Path, files: FileLayer) -> QueueEnds | None:
        return cls.decode(files.read(path))

    def doubts(
        self,
        table: QueueTable,
        batch_table: BatchTable | None,
        deleted: Mapping[str, int],
        log_begin: int,
        *,
        exactly: bool,
    ) -> Iterator[tuple[ConsumeQueue, Doubt]]:
        """The queues that are shorter than before, and those that lack files at their beginning although the
        log has their records. With ``exactly`` (nothing has changed since) also the queues that are longer."""
        for key, (begin, end) in self.ranges.items():
            if self.position < deleted.get(key[0], 0):
                continue
            array = table.queues.get(key)
            batches = batch_table.batch_queues.get(key) if batch_table is not None and array is None else None
            if batches is not None:
                if batches.max_offset < end:
                    text = f"it ended at {end} before and ends at {batches.max_offset} now"
                    yield batches.array, Doubt(batches.array.max_offset, "queue.short", text)
            elif array is not None:
                now = array.max_offset
                first = array.file_starts[0] // table.entry_bytes if array.file_starts else 0
                if first > begin and (array.entry(first) or (0,))[0] > log_begin:
                    yield (
                        array,
                        Doubt(0, "queue.file-gone", f"it began at {begin} before and begins at {first} now"),
                    )
                elif now < end:
                    yield array, Doubt(now, "queue.short", f"it ended at {end} before and ends at {now} now")
                elif exactly and now > end:
                    yield array, Doubt(end, "queue.long", f"it ended at {end} before and ends at {now} now")

    def save(self, path: Path, files: FileLayer) -> None:
        """Write and sync. Blocking. Raises OSError."""
        data = self.encode()
        fd = files.open(path, create=True)
        try:
            files.set_length(fd, 0)
            files.write(fd, data, 0)
            files.sync(fd)
        finally:
            files.close(fd)
