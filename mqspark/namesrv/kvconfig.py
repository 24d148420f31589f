"""The name server's key-value table (KVConfigManager): namespace → key → value, and its file.

Facts: docs/rocketmq/nameserver.md#key-value-configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mqspark.base.bounded import CONTAINER_BYTES, BoundedMap, Ledger, text_bytes
from mqspark.base.config import Bound
from mqspark.base.logs import printable, sparing
from mqspark.base.names import ID, sound_only
from mqspark.protocol import fastjson
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
"""Namespace of ordered topics: topic → ``brokerName:queues;…``."""

MAX_KV_BYTES = 32 << 20
MAX_NAMESPACE_BYTES = 4 << 20
"""Limit of a namespace as JSON: one answer has it, and every broker gets ORDER_TOPICS whenever it registers. With an
answer that is longer than a frame its connection would end, and its routes with it."""
MAX_ANSWERED_BYTES = 15 << 20
"""A longer namespace, of a file that was not written here, stays in the table and is in no answer: a frame has room for
16 MiB."""

_log = sparing(__name__, lines=20)


class _Namespace:
    """``json_bytes``: the size of its entries in an answer."""

    __slots__ = ("entries", "json_bytes")

    def __init__(self, entries: BoundedMap[str, str]) -> None:
        self.entries = entries
        self.json_bytes = 0

    @property
    def bounded(self) -> tuple[BoundedMap[str, str]]:
        return (self.entries,)


class KVConfig:
    """The table. ``generation`` counts changes, so that a caller can tell whether they are saved."""

    def __init__(self, max_bytes: Bound = MAX_KV_BYTES) -> None:
        self.ledger = Ledger("kv", max_bytes)
        self._table: BoundedMap[str, _Namespace] = self.ledger.map(CONTAINER_BYTES)
        self.generation = 0

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises TableFull."""
        found = self._table.get(namespace)
        room = found or self._new_namespace()
        json_bytes = room.json_bytes + _json_bytes(key, value) - _json_bytes(key, room.entries.get(key))
        if json_bytes > max(MAX_NAMESPACE_BYTES, room.json_bytes):
            of = f", namespace {printable(namespace, 80)}"
            raise self.ledger.refuse(room.json_bytes, MAX_NAMESPACE_BYTES, of=of, unit="bytes of JSON")
        if found is None:
            self.ledger.admit(self._table.size_of(namespace, room) + room.entries.size_of(key, value))
            self._table[namespace] = room
        room.entries[key] = value
        room.json_bytes = json_bytes
        self.generation += 1

    def _new_namespace(self) -> _Namespace:
        return _Namespace(self._table.inner_map(0, text_bytes))

    def get(self, namespace: str, key: str) -> str | None:
        """Raises Refusal for a value that no answer has room for."""
        found = self._table.get(namespace)
        value = None if found is None else found.entries.get(key)
        if found is not None and found.json_bytes > MAX_ANSWERED_BYTES:
            _check_length(
                f"the value of {printable(key, 80)} in namespace", namespace, _json_bytes(key, value)
            )
        return value

    def delete(self, namespace: str, key: str) -> None:
        found = self._table.get(namespace)
        if found is not None and (value := found.entries.pop(key, None)) is not None:
            found.json_bytes -= _json_bytes(key, value)
            self.generation += 1

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """A copy of a namespace; None when it never had a key. Raises Refusal when no answer has room for it."""
        found = self._table.get(namespace)
        if found is None:
            return None
        _check_length("namespace", namespace, found.json_bytes)
        return dict(found.entries)

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        """Namespace, key and value of each entry."""
        for namespace, found in self._table.items():
            for key, value in found.entries.items():
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
            present.entries.clear()
        self._table.clear()
        for namespace, entries in loaded.items():
            made = self._new_namespace()
            self._table.keep(namespace, made)
            made.entries.refill(entries)
            made.json_bytes = sum(_json_bytes(*entry) for entry in entries.items())
            try:
                _check_length("namespace", namespace, made.json_bytes)
            except Refusal as problem:
                _log.error("the key-value table: %s", problem)

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """A function that encodes a copy of the table."""
        document = {
            "configTable": {namespace: dict(found.entries) for namespace, found in self._table.items()}
        }
        return lambda: [fastjson.dumps_pretty(document).encode()]


def _check_length(what: str, namespace: str, json_bytes: int) -> None:
    if json_bytes > MAX_ANSWERED_BYTES:
        remark = (
            f"{what} {printable(namespace, 80)} has {json_bytes} bytes as JSON, and an answer has room for"
            f" {MAX_ANSWERED_BYTES}: delete keys of it"
        )
        raise Refusal(ResponseCode.SYSTEM_ERROR, remark)


def _json_bytes(key: str, value: str | None) -> int:
    """0 for no value."""
    return 0 if value is None else len(fastjson.encode_sorted({key: value}))


def _by_text(what: str, table: dict[Any, Any]) -> dict[str, Any]:
    return sound_only(what, {str(key): value for key, value in table.items()}, ID)
