"""The part of the log that is assumed to be in the page cache: its end, as large as a share of the machine's memory."""

from __future__ import annotations

from mqspark.record.recordlayout import record_position
from mqspark.store.config import StoreConfig
from mqspark.store.store import MessageStore


class LogMemory:
    def __init__(self, store: MessageStore, config: StoreConfig, machine_bytes: int) -> None:
        self._store = store
        self._config = config
        self.machine_bytes = machine_bytes
        """The memory of this machine."""

    def has(self, position: int) -> bool:
        """Whether a position is in it (DefaultMessageStore.checkInDiskByCommitOffset)."""
        window_bytes = self.machine_bytes * self._config.access_message_in_memory_max_ratio // 100
        return self._store.log.position - position <= window_bytes

    def has_all_of(self, topic: str, queue_id: int) -> bool:
        """Whether the queue is young: message 0 still exists and is in memory. New groups always consume such a queue
        from its start."""
        if self._store.offsets.log_bounds(topic, queue_id)[0] != 0:
            return False
        first = self._store.reads.get(topic, queue_id, 0, 1, 1, None)
        return bool(first.buffers) and self.has(record_position(first.buffers[0]))
