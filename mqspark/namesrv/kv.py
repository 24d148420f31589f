"""The name server's key-value table (KVConfigManager): namespace → key → value, and its file.

Facts: docs/rocketmq/nameserver.md#key-value-configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mqspark.base.bounded import CONTAINER_BYTES, BoundedMap, Ledger, text_bytes
from mqspark.base.config import Bound
from mqspark.base.names import ID, sound_only
from mqspark.protocol import fastjson

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
"""Namespace of ordered topics: topic → ``brokerName:queues;…``."""

MAX_KV_BYTES = 32 << 20


class KVConfig:
    """The table. ``generation`` counts changes, so that a caller can tell whether they are saved."""

    def __init__(self, max_bytes: Bound = MAX_KV_BYTES) -> None:
        self.ledger = Ledger("kv", max_bytes)
        self._table: BoundedMap[str, BoundedMap[str, str]] = self.ledger.map(CONTAINER_BYTES)
        self.generation = 0

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises TableFull."""
        entries = self._table.get(namespace)
        if entries is None:
            entries = self._table.inner_map(0, text_bytes)
            self.ledger.admit(self._table.size_of(namespace, entries) + entries.size_of(key, value))
            self._table[namespace] = entries
        entries[key] = value
        self.generation += 1

    def get(self, namespace: str, key: str) -> str | None:
        entries = self._table.get(namespace)
        return None if entries is None else entries.get(key)

    def delete(self, namespace: str, key: str) -> None:
        entries = self._table.get(namespace)
        if entries is not None and entries.pop(key, None) is not None:
            self.generation += 1

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """A copy of a namespace; None when it never had a key."""
        table = self._table.get(namespace)
        return None if table is None else dict(table)

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        """Namespace, key and value of each entry."""
        for namespace, entries in self._table.items():
            for key, value in entries.items():
                yield namespace, key, value

    def load(self, data: bytes) -> None:
        """Load the content of ``kvConfig.json``. Raises ValueError when it is invalid."""
        document = fastjson.loads(data, fastjson.FILE)
        table = document.get("configTable") if isinstance(document, dict) else None
        if not isinstance(table, dict):
            raise ValueError("the key-value table is not a JSON object with a configTable")
        loaded = {
            namespace: {
                key: str(value) for key, value in _by_text("keys of a namespace", entries or {}).items()
            }
            for namespace, entries in _by_text("key-value table", table).items()
        }
        for present in self._table.values():
            present.clear()
        self._table.clear()
        for namespace, entries in loaded.items():
            made = self._table.inner_map(0, text_bytes)
            self._table.keep(namespace, made)
            made.refill(entries)

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """A function that encodes a copy of the table."""
        document = {"configTable": {namespace: dict(entries) for namespace, entries in self._table.items()}}
        return lambda: [fastjson.dumps_pretty(document).encode()]


def _by_text(what: str, table: dict[Any, Any]) -> dict[str, Any]:
    return sound_only(what, {str(key): value for key, value in table.items()}, ID)
