"""The name server's key-value table (KVConfigManager): namespace → key → value, and its file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqspark.names import ID, sound_only
from mqspark.protocol import fastjson

__all__ = ["KVConfig", "ORDER_TOPICS"]

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
"""Namespace of ordered topics: topic → ``brokerName:queues;…``."""

Table = dict[str, dict[str, str]]


class KVConfig:
    """``generation`` counts changes, so that a caller can tell whether they are saved."""

    def __init__(self) -> None:
        self._table: Table = {}
        self.generation = 0

    def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value
        self.generation += 1

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self.generation += 1

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """A copy; None when nothing was ever put there."""
        table = self._table.get(namespace)
        return None if table is None else dict(table)

    def load(self, data: bytes) -> None:
        """From ``kvConfig.json``. Raises ValueError when it is not that file."""
        document = fastjson.loads(data, fastjson.FILE)
        table = document.get("configTable") if isinstance(document, dict) else None
        if not isinstance(table, dict):
            raise ValueError("the key-value table is not a JSON object with a configTable")
        self._table = {
            namespace: {
                key: str(value) for key, value in _by_text("keys of a namespace", entries or {}).items()
            }
            for namespace, entries in _by_text("key-value table", table).items()
        }

    def snapshot(self) -> Callable[[], bytes]:
        """What encodes the file, from a copy."""
        document = {"configTable": {namespace: dict(entries) for namespace, entries in self._table.items()}}
        return lambda: fastjson.dumps_pretty(document).encode()


def _by_text(what: str, table: dict[Any, Any]) -> dict[str, Any]:
    return sound_only(what, {str(key): value for key, value in table.items()}, ID)
