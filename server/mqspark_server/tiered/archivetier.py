"""The messages of an archive for a broker's store: read from a local cache, which another process fills.

Runs on the broker's loop and never blocks it. If a message is not in the cache, the process (``archivefetch``) is asked
for it and the read raises NotAtHand; ``fetched`` is called when the fetch has succeeded or failed. A failure is
remembered for a moment, so that readers get the reason. A message that cannot be read is never skipped.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mqspark.base.clock import Clock
from mqspark.base.logs import printable, sparing, without_secrets
from mqspark.errors import ConfigError, StoreCorrupt, StoreUnreadable
from mqspark.message import is_system_topic
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.messages.fetch import GetResult, GetStatus
from mqspark.store.oldermessages import NotAtHand
from mqspark.store.queue.consumequeue import ENTRY_BYTES
from mqspark.store.store import MessageStore
from mqspark_server.process.diskwork import Worker
from mqspark_server.tiered.archivechunks import ArchiveChunk

log = sparing("mqspark.archive", lines=5)

CATALOG = ("catalog",)
"""The key of a request to refresh the catalog."""
MAX_UNDER_WAY = 256
MAX_CHUNKS = 2_000
"""Limit of mapped chunks. Each takes two memory maps; a process may have some 65,000."""
MOST_OVERLAPS = 4
"""Chunks of one queue that are searched: truncated ones overlap others."""
MAX_FLOORS = 200_000
"""Limit of deleted topics that are remembered, the latest ones; the same as the store's limit."""
MAX_FAILED = 1_000
MAX_FOUND = 10_000
"""Limit of cached answers of the process, besides its chunks."""
FAILED_MS = 3_000
RESTART_MS = 1_000
LONGEST_RESTART_MS = 30_000
HANGS_MS = 120_000
"""The process is ended when a request takes longer: its storage hangs."""
READ_AHEAD = 0.5
"""Fraction of a queue's messages in a chunk after which the next chunk is fetched."""

Queue = tuple[str, int]
Fetched = Callable[[Hashable, Sequence[Queue]], None]


class TierSettings(msgspec.Struct, frozen=True):
    url: str
    broker: str
    cache_directory: Path
    cache_bytes: int
    refresh_interval_ms: int
    fetch_memory_bytes: int


class _UnderWay:
    __slots__ = ("floor", "key", "queues", "request", "since_ms")

    def __init__(self, key: Hashable, request: dict[str, Any], since_ms: int, floor: int = 0) -> None:
        """``floor``: the floor of the request's topic."""
        self.floor = floor
        self.key = key
        self.request = request
        self.queues: set[Queue] = set()
        self.since_ms = since_ms


class ArchivedMessages:
    """``OlderMessages`` of one store. ``fetched(key, queues)`` is called on the loop."""

    def __init__(
        self,
        settings: TierSettings,
        store: MessageStore,
        clock: Clock,
        floors: ConfigFile,
        worker: Worker,
        fetched: Fetched,
    ) -> None:
        """``floors``: the file with the log position per topic before which its records belong to a deleted topic of
        the same name. ``worker`` saves it."""
        self._worker = worker
        self._settings = settings
        self._store = store
        self._clock = clock
        self._fetched = fetched
        self._floors_file = floors
        self._floors: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._bounds: dict[Queue, tuple[int, int]] | None = None
        self._known_to = 0
        """The begin of the log at the last refresh: messages before it are in the catalog, or nowhere."""
        self._next_refresh_ms = 0
        self._under_way: dict[int, _UnderWay] = {}
        self._keys: dict[Hashable, _UnderWay] = {}
        self._failed: OrderedDict[Hashable, tuple[str, int]] = OrderedDict()
        self._found: OrderedDict[Hashable, int | None] = OrderedDict()
        """(topic, queue id, offset) → the next archived offset; ("time", ...) → an offset."""
        self._chunks: OrderedDict[str, tuple[str, ArchiveChunk]] = OrderedDict()
        """Name → (topic, chunk), the most recently used last."""
        self._places: dict[Queue, list[tuple[int, int, str]]] = {}
        """Queue → (first offset, end, name) of its chunks."""
        self._process: subprocess.Popen[bytes] | None = None
        self._restart_at_ms = 0
        self._restart_ms = RESTART_MS
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self.problem: str | None = None
        """Why the last refresh of the catalog failed; None if it succeeded."""
        self.cached_bytes = self.messages_out = self.fetches = self.failures = 0

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises OSError when the cache directory cannot be created, ConfigError for an unreadable file of floors."""
        self._floors = _load_floors(self._floors_file)
        directory = self._settings.cache_directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in directory.iterdir():
            if path.name.startswith("chunk-") or path.name == "bounds.json":
                path.unlink()
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        for _, chunk in self._chunks.values():
            chunk.remove()

    @property
    def process_id(self) -> int | None:
        """The id of the process that reads the archive."""
        return None if self._process is None else self._process.pid

    def _tick(self) -> None:
        self._timer = self._loop.call_later(1.0, self._tick)
        now_ms = self._clock.monotonic_ms()
        process = self._process
        if process is not None and any(
            now_ms - each.since_ms > HANGS_MS for each in self._under_way.values()
        ):
            process.kill()
        if now_ms >= self._next_refresh_ms:
            self._refresh()

    # --- OlderMessages ----------------------------------------------------------------------------------------

    def begin(self, topic: str, queue_id: int, log_begin: int) -> int:
        bounds = None if self._bounds is None else self._bounds.get((topic, queue_id))
        return log_begin if bounds is None else min(bounds[0], log_begin)

    def sure_begin(self, topic: str, queue_id: int, log_begin: int) -> int:
        self._bounds_for(topic, queue_id, log_begin)
        return self.begin(topic, queue_id, log_begin)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        log_begin: int,
        max_offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        bounds = self._bounds_for(topic, queue_id, log_begin)
        low = min(bounds[0], log_begin)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, max_offset)
        if offset >= bounds[1]:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, log_begin, low, max_offset)
        found = self._chunk_at(topic, queue_id, offset)
        if found is None:
            key = (topic, queue_id, offset)
            if key not in self._found:
                self._fetch(
                    key, topic, queue_id, {"do": "fetch", "topic": topic, "queue": queue_id, "offset": offset}
                )
            following = self._found[key]
            # A gap: its messages were damaged, or their range was never archived.
            next_offset = log_begin if following is None or following >= log_begin else following
            return GetResult(GetStatus.MESSAGE_WAS_REMOVING, next_offset, low, max_offset)
        examined = self._store.config.max_filter_message_size // ENTRY_BYTES
        result, read = found.get(
            queue_id, offset, low, max_offset, max(1, max_messages), max_bytes, examined, tag_codes
        )
        self.messages_out += result.count
        if read >= READ_AHEAD:
            self._read_ahead(topic, queue_id, found.offsets(queue_id)[1], min(bounds[1], log_begin))
        return result

    def forget(self, topic: str, position: int) -> None:
        self._raise_floors({topic: position})
        self._found.clear()
        for name in [name for name, (of, _) in self._chunks.items() if of == topic]:
            self._drop(name)
        if self._bounds is not None:
            for queue in [queue for queue in self._bounds if queue[0] == topic]:
                del self._bounds[queue]

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, log_begin: int) -> int:
        bounds = self._bounds_for(topic, queue_id, log_begin)
        if bounds[0] >= log_begin:
            return log_begin
        key = ("time", topic, queue_id, time_ms, log_begin)
        if key not in self._found:
            request = {"do": "since", "topic": topic, "queue": queue_id, "time": time_ms, "before": log_begin}
            self._fetch(key, topic, queue_id, request)
        found = self._found[key]
        return log_begin if found is None else found

    def _bounds_for(self, topic: str, queue_id: int, log_begin: int) -> tuple[int, int]:
        """The archived offsets of the queue. Raises NotAtHand while the archive may have more than the catalog. System
        topics are read by services that do not wait, and therefore only from the log."""
        if is_system_topic(topic):
            return log_begin, log_begin
        bounds = None if self._bounds is None else self._bounds.get((topic, queue_id))
        if self._bounds is None or (
            (bounds is None or bounds[1] < log_begin) and self._known_to < self._store.log.min_offset
        ):
            self._refresh()
            raise self._not_at_hand(CATALOG, topic, queue_id)
        return bounds if bounds is not None else (log_begin, log_begin)

    def _chunk_at(self, topic: str, queue_id: int, offset: int) -> ArchiveChunk | None:
        places = self._places.get((topic, queue_id), [])
        place = bisect.bisect_right(places, offset, key=lambda each: each[0])
        for first, end, name in reversed(places[max(0, place - MOST_OVERLAPS) : place]):
            if first <= offset < end:
                self._chunks.move_to_end(name)
                return self._chunks[name][1]
        return None

    def _read_ahead(self, topic: str, queue_id: int, offset: int, end: int) -> None:
        key = (topic, queue_id, offset)
        if offset >= end or key in self._found or self._chunk_at(topic, queue_id, offset) is not None:
            return
        with contextlib.suppress(StoreUnreadable):  # a reader that gets there sees the error
            self._fetch(
                key, topic, queue_id, {"do": "fetch", "topic": topic, "queue": queue_id, "offset": offset}
            )

    # --- fetching ---------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if CATALOG in self._keys:
            return
        failed = self._failed.get(CATALOG)
        if failed is not None and now_ms < failed[1]:
            return
        self._next_refresh_ms = now_ms + self._settings.refresh_interval_ms
        positions = self._store.deletions.positions
        newer = {topic: at for topic, at in positions.items() if at > self._floors.get(topic, 0)}
        if newer:
            self._raise_floors(newer)
        known_to = self._store.log.min_offset
        request = {"do": "refresh", "floors": dict(self._floors), "known_to": known_to}
        try:
            self._send(_UnderWay(CATALOG, request, now_ms))
        except OSError as error:
            self._note_failure(CATALOG, str(error))

    def _fetch(self, key: Hashable, topic: str, queue_id: int, request: dict[str, Any]) -> None:
        """Fetch unless a fetch is in progress. Raises NotAtHand, or StoreUnreadable with the reason of the last
        failure."""
        under_way = self._keys.get(key)
        if under_way is None:
            self._raise_failure(key)
            if len(self._under_way) >= MAX_UNDER_WAY:
                raise _unreadable(f"{MAX_UNDER_WAY} reads of the archive are in progress")
            try:
                floor = self._floors.get(topic, 0)
                self._send(_UnderWay(key, request, self._clock.monotonic_ms(), floor))
            except OSError as error:
                self._note_failure(key, str(error))
                self._raise_failure(key)
        raise self._not_at_hand(key, topic, queue_id)

    def _not_at_hand(self, key: Hashable, topic: str, queue_id: int) -> StoreUnreadable:
        under_way = self._keys.get(key)
        if under_way is None:
            self._raise_failure(key)
            raise _unreadable("the archive cannot be read at the moment")
        under_way.queues.add((topic, queue_id))
        return NotAtHand(key)

    def _raise_failure(self, key: Hashable) -> None:
        failed = self._failed.get(key)
        if failed is not None and self._clock.monotonic_ms() < failed[1]:
            raise _unreadable(failed[0])

    def _note_failure(self, key: Hashable, error: str) -> None:
        url = without_secrets(self._settings.url)
        text = f"the archive {url} cannot be read: {without_secrets(error)}"
        if key == CATALOG:
            self.problem = text
        self.failures += 1
        log.warning("%s", text)
        self._failed[key] = (
            told_to_clients(error, self._settings.url),
            self._clock.monotonic_ms() + FAILED_MS,
        )
        self._failed.move_to_end(key)
        while len(self._failed) > MAX_FAILED:
            self._failed.popitem(last=False)

    def _send(self, under_way: _UnderWay) -> None:
        """Raises OSError when there is no process and none can be started yet."""
        process = self._process or self._spawn()
        self._numbers += 1
        number = self._numbers
        line = json.dumps({"id": number, **under_way.request}) + "\n"
        _write(process, line)
        self._under_way[number] = under_way
        self._keys[under_way.key] = under_way
        self.fetches += 1

    def _spawn(self) -> subprocess.Popen[bytes]:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._restart_at_ms:
            raise OSError("the process that reads it has ended and will be restarted in a moment")
        settings = self._settings
        self._restart_at_ms = now_ms + self._restart_ms
        self._restart_ms = min(2 * self._restart_ms, LONGEST_RESTART_MS)
        process = subprocess.Popen(
            [sys.executable, "-m", "mqspark_server.tiered.archivefetch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Arrow's other allocators take more memory than is requested.
            env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"},
            start_new_session=True,
        )
        hello = {
            "url": settings.url,
            "broker": settings.broker,
            "directory": str(settings.cache_directory),
            "chunk": max(1 << 20, settings.cache_bytes // 8),
            "memory": settings.fetch_memory_bytes,
            "host": self._store.store_host.hex(),
        }
        _write(process, json.dumps(hello) + "\n")
        self._process = process
        log.info("process %s reads the archive %s", self.process_id, without_secrets(settings.url))
        threading.Thread(target=self._read, args=(process,), name="mqspark-archive", daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread: read the answers of the process, until it ends."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has stopped
            if process.stdout is not None:
                with contextlib.suppress(ValueError):  # a process that was killed may leave half a line
                    for line in process.stdout:
                        self._loop.call_soon_threadsafe(self._answered, json.loads(line))
                process.stdout.close()
                process.kill()
            code = process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            self._loop.call_soon_threadsafe(self._process_ended, process, code)

    def _process_ended(self, process: subprocess.Popen[bytes], code: int) -> None:
        if process is not self._process:
            return
        self._process = None
        under_way = list(self._under_way)
        for number in under_way:
            self._answered({"id": number, "error": f"the process that reads it ended with code {code}"})

    def _answered(self, answer: Mapping[str, Any]) -> None:
        under_way = self._under_way.pop(answer["id"], None)
        if under_way is None:
            return
        del self._keys[under_way.key]
        error = answer.get("error")
        if error is None:
            self._restart_ms = RESTART_MS
            try:
                self._take(under_way, answer)
                self._failed.pop(under_way.key, None)
            except (OSError, StoreCorrupt, msgspec.MsgspecError, ValueError) as problem:
                error = str(problem)
        if error is not None:
            self._note_failure(under_way.key, error)
        self._fetched(under_way.key, sorted(under_way.queues))

    def _take(self, under_way: _UnderWay, answer: Mapping[str, Any]) -> None:
        request = under_way.request
        if request["do"] == "refresh":
            data = (self._settings.cache_directory / answer["bounds"]).read_bytes()
            rows = msgspec.json.decode(data, type=list[tuple[str, int, int, int]])
            floors = request["floors"]
            self._bounds = {
                (topic, queue_id): (first, end)
                for topic, queue_id, first, end in rows
                if floors.get(topic) == self._floors.get(topic) and not is_system_topic(topic)
            }
            self._known_to = request["known_to"]
            self._found.clear()
            self.problem = None
            return
        if under_way.floor != self._floors.get(request["topic"], 0):
            for path in self._settings.cache_directory.glob(f"{answer.get('chunk')}.*"):
                path.unlink()
            raise ValueError(f"topic {request['topic']} was deleted meanwhile")
        if request["do"] == "since":
            self._remember(under_way.key, answer["offset"])
            return
        topic, offset = request["topic"], request["offset"]
        if answer["chunk"] is None:
            self._remember(under_way.key, None)
            return
        if answer["first"] != offset:
            self._remember(under_way.key, answer["first"])
        self._add(topic, answer["chunk"])

    def _remember(self, key: Hashable, offset: int | None) -> None:
        self._found[key] = offset
        while len(self._found) > MAX_FOUND:
            self._found.popitem(last=False)

    def _add(self, topic: str, name: str) -> None:
        chunk = ArchiveChunk(self._settings.cache_directory, name)
        self._chunks[name] = (topic, chunk)
        self.cached_bytes += chunk.size_bytes
        for queue_id in chunk.rows:
            first, end = chunk.offsets(queue_id)
            bisect.insort(self._places.setdefault((topic, queue_id), []), (first, end, name))
        while len(self._chunks) > MAX_CHUNKS or (
            self.cached_bytes > self._settings.cache_bytes and len(self._chunks) > 1
        ):
            self._drop(next(iter(self._chunks)))

    def _drop(self, name: str) -> None:
        topic, chunk = self._chunks.pop(name)
        self.cached_bytes -= chunk.size_bytes
        for queue_id in chunk.rows:
            kept = [place for place in self._places[topic, queue_id] if place[2] != name]
            if kept:
                self._places[topic, queue_id] = kept
            else:
                del self._places[topic, queue_id]
        chunk.remove()

    # --- floors -----------------------------------------------------------------------------------------------

    def _raise_floors(self, newer: Mapping[str, int]) -> None:
        self._floors |= newer
        if len(self._floors) > MAX_FLOORS:
            newest = sorted(self._floors, key=self._floors.__getitem__)[-MAX_FLOORS:]
            self._floors = {topic: self._floors[topic] for topic in newest}
        self._save_floors(dict(self._floors))

    def _save_floors(self, floors: dict[str, int]) -> None:
        """Save the floors. Without them, messages of a deleted topic could reappear once the log has forgotten the
        deletion. The store keeps the deletion for hours, so a failed save is repeated."""

        def done(error: BaseException | None) -> None:
            if error is not None:
                self._floors = {topic: at for topic, at in self._floors.items() if topic not in floors}
                log.error("%s cannot be saved: %s", self._floors_file.path, error)

        self._worker.submit(lambda: self._floors_file.save(json.dumps(floors).encode()), done)


def _write(process: subprocess.Popen[bytes], line: str) -> None:
    """Raises OSError when the process has ended."""
    if process.stdin is not None:
        process.stdin.write(line.encode())
        process.stdin.flush()


def _load_floors(file: ConfigFile) -> dict[str, int]:
    data = file.load()
    if data is None:
        return {}
    try:
        return msgspec.json.decode(data, type=dict[str, int])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file.path} cannot be read: {error}; restore it", key="archiveUrl") from None


def told_to_clients(error: str, url: str) -> str:
    """Why a read of the archive failed, without the archive's location: any consumer may get this text."""
    place = url.partition("://")[2].strip("/") or url
    if place and place in error:
        return "the archive cannot be read; see the broker's log for the reason"
    return f"the archive cannot be read: {printable(without_secrets(error))}"


def _unreadable(text: str) -> StoreUnreadable:
    return StoreUnreadable(text, BlockingIOError())
