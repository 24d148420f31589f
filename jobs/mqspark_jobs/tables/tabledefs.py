"""Live tables: what each is, in a directory that the command line and the job ``tables`` share.

NAME.json     the definition, replaced as a whole
NAME.state    what its query did last; written by the process that runs it
NAME.lock     held (flock) by that process
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mqspark.arrow.files.locations import read_bytes, write_bytes
from mqspark.base.clock import wall_ms
from mqspark.base.config import parse_addresses
from mqspark.base.names import path_below
from mqspark.errors import ConfigError, MQError
from mqspark.message import check_group, check_topic
from mqspark.protocol.headers.header import I64
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.optiontexts import SECRETS
from pyspark_pymq.payloadoptions import RAW

DEFAULT_DIRECTORY = "~/mqspark-tables"
MAX_TABLES = 1_000
_MAX_DEFINITION_BYTES = 4 << 20
"""Size of a definition, whose starts name every queue of its topic; as many as any file of this kind has."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_CATALOG_NAME = re.compile(r"[A-Za-z0-9_]{1,100}(\.[A-Za-z0-9_]{1,100}){0,2}")
_MANAGED = frozenset(
    [
        *("nameserver", "group", "columns", "includeproperties", "includeheaders"),
        *("key", "store", "tags", "sqlfilter", *(name.lower() for name in SECRETS)),
        *("mode", "columnnameofcorruptrecord"),
    ]
)
"""Options of the source that a definition has in fields of its own, that select rows, or that are secrets."""
_OF_SCHEMAS = frozenset(["payloadschema", "payloadschemafile", "schemaregistry"])
BODIES = re.compile("payload|schema|messageprefix", re.IGNORECASE)
"""Options that say how bodies are taken apart."""
TRIGGERS = re.compile("m(ax|in).*pertrigger|maxtriggerdelay", re.IGNORECASE)
"""Options that say how large batches are."""
_MANAGED_BEGINNINGS = ("topic", "subscribe", "assign", "starting", "ending")


class TableDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Delta table that follows a topic."""

    name: str
    identity: str
    """Chosen at random when the table was created: a later one of the same name is another."""
    topic: str
    nameserver: str
    url: str
    created_ms: I64
    starts: dict[str, I64] = {}
    """``broker:queue`` to its first offset in the table; queues that are not named begin at their first message."""
    is_upsert: bool = False
    """The table holds the newest message of each key; one without a body deletes its key."""
    is_paused: bool = False
    catalog_name: str = ""
    """What Spark's catalog calls the table, such as ``db.orders``; empty: it is not in the catalog."""
    options: dict[str, str] = {}
    """More options of the source: how bodies are decoded, limits of a batch, an archive."""

    @property
    def group(self) -> str:
        """The consumer group that shows how far the table is."""
        return f"mqspark-table-{self.name}"

    @property
    def is_typed(self) -> bool:
        """Whether the fields of bodies are columns; else bodies are the column ``value``."""
        return self._option("payloadFormat", RAW).lower() != RAW

    def own(self, name: str) -> str:
        """What the table calls a column of the message."""
        return self._option("messagePrefix", "") + name

    def _option(self, name: str, default: str) -> str:
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), default)

    @property
    def rejected_url(self) -> str:
        """Where rows go that cannot be in the table."""
        return f"{self.url.rstrip('/')}__rejected"


class TableState(msgspec.Struct, frozen=True):
    """What the query of a table did last."""

    batch: I64 = -1
    rows: I64 = 0
    """Rows of that batch."""
    at_ms: I64 = 0
    delay_ms: I64 | None = None
    """From when the oldest of them was stored until the table had it."""
    error: str = ""
    """Why the query ended; empty while it runs or after it was stopped."""
    rejected: I64 = 0
    """Messages that are beside the table, of all batches."""


def check_definition(definition: TableDefinition) -> None:
    """Raises ConfigError or IllegalName for what cannot be a table."""
    if _NAME.fullmatch(definition.name) is None:
        raise ConfigError.of("name", f"{definition.name!r} is not 1 to 100 of the characters A-Z a-z 0-9 _ -")
    check_topic(definition.topic)
    check_group(definition.group)
    parse_addresses(definition.nameserver, key="nameserver", required=True)
    if not definition.url.strip("/") or any(each in definition.url for each in "`\n\r\0"):
        raise ConfigError.of("to", f"{definition.url!r} is no place for a table")
    if definition.catalog_name and _CATALOG_NAME.fullmatch(definition.catalog_name) is None:
        raise ConfigError.of(
            "catalog_name",
            f"{definition.catalog_name[:400]!r} is not one to three names with dots between, each 1"
            " to 100 of the characters A-Z a-z 0-9 _",
        )
    for name in definition.options:
        low = name.lower()
        if low in _MANAGED or low.startswith(_MANAGED_BEGINNINGS):
            raise ConfigError.of(name, "is not an option of a table")
    parsed = ReadOptions.parse({**definition.options, **place_options(definition)}, streaming=True)
    if parsed.payload_is_arrow:
        raise ConfigError.of(
            "payloadFormat", "rows of Arrow messages have no offsets of their own, which a table needs"
        )
    if definition.is_typed and not any(name.lower() in _OF_SCHEMAS for name in definition.options):
        raise ConfigError.of("payloadSchema", "required, or payloadSchemaFile or schemaRegistry")


def place_options(definition: TableDefinition) -> dict[str, str]:
    """The options of the source that say what is read."""
    return {"nameserver": definition.nameserver, "topic": definition.topic}


def stream_options(definition: TableDefinition) -> dict[str, str]:
    """The options of a stream in which bodies stay as they are, but for the topic. Tables with the same ones share a
    query."""
    own = {name.lower(): value for name, value in definition.options.items() if not BODIES.match(name)}
    return {**dict(sorted(own.items())), "nameserver": definition.nameserver}


def raw_options(definition: TableDefinition) -> dict[str, str]:
    """The options of a batch read of the topic in which bodies stay as they are."""
    own = {name: value for name, value in stream_options(definition).items() if not TRIGGERS.match(name)}
    return {**own, "topic": definition.topic}


class TableDirectory:
    """Methods raise OSError when the disk fails, and MQError for a file that is none of theirs."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()

    def names(self) -> list[str]:
        try:
            found = sorted(each.stem for each in self.path.iterdir() if each.suffix == ".json")
        except FileNotFoundError:
            return []
        return [name for name in found if _NAME.fullmatch(name)]

    def all(self) -> list[TableDefinition]:
        return [self.load(name) for name in self.names()]

    def load(self, name: str) -> TableDefinition:
        """Raises ConfigError if there is no such table."""
        try:
            data = read_bytes(str(self._file(name, "json")), _MAX_DEFINITION_BYTES)
        except FileNotFoundError:
            raise ConfigError.of("name", f"there is no table {name} in {self.path}") from None
        try:
            found = msgspec.json.decode(data, type=TableDefinition)
            check_definition(found)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as error:
            raise MQError(f"{self._file(name, 'json')} is not the definition of a table: {error}") from error
        if found.name != name:
            raise MQError(f"{self._file(name, 'json')} is the definition of {found.name}")
        return found

    def add(self, definition: TableDefinition) -> None:
        """Raises ConfigError if the name or the place is taken."""
        check_definition(definition)
        with self._alone():
            names = self.names()
            if definition.name in names:
                raise ConfigError.of("name", f"there is a table {definition.name} already")
            if len(names) >= MAX_TABLES:
                raise ConfigError.of("name", f"{self.path} has {MAX_TABLES} tables, the most")
            for other in self.all():
                if _touches(definition, other):
                    raise ConfigError.of("to", f"{other.url} is the place of the table {other.name}")
            self._save(definition)

    def change(self, name: str, **fields: Any) -> TableDefinition:
        """Raises ConfigError if there is no such table."""
        with self._alone():
            definition = msgspec.structs.replace(self.load(name), **fields)
            self._save(definition)
            return definition

    def remove(self, name: str) -> TableDefinition:
        """Forget a table; its rows stay. Raises ConfigError if there is no such table."""
        with self._alone():
            definition = self.load(name)
            self._file(name, "json").unlink()
            self._file(name, "state").unlink(missing_ok=True)
            return definition

    def state(self, name: str) -> TableState:
        """An empty one if it has none that can be read."""
        try:
            return msgspec.json.decode(
                read_bytes(str(self._file(name, "state")), _MAX_DEFINITION_BYTES), type=TableState
            )
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MQError):
            return TableState()

    def save_state(self, name: str, state: TableState) -> None:
        """Does nothing for a table that was removed."""
        with self._alone():
            if self._file(name, "json").exists():
                write_bytes(str(self._file(name, "state")), msgspec.json.encode(state))

    def lock(self, name: str) -> int | None:
        """An open descriptor that holds the table's lock until it is closed; None if another process holds it."""
        return _locked(self._file(name, "lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_running(self, name: str) -> bool:
        """Whether a process on this host keeps the table."""
        fd = _locked(self._file(name, "lock"), fcntl.LOCK_SH | fcntl.LOCK_NB)
        if fd is None:
            return True
        os.close(fd)
        return False

    def condition(self, definition: TableDefinition) -> str:
        """What the table does: running, paused, failed or stopped."""
        if self.is_running(definition.name):
            return "running"
        if definition.is_paused:
            return "paused"
        return "failed" if self.state(definition.name).error else "stopped"

    def _save(self, definition: TableDefinition) -> None:
        write_bytes(str(self._file(definition.name, "json")), msgspec.json.encode(definition))

    def _file(self, name: str, kind: str) -> Path:
        return path_below(self.path, f"{name}.{kind}")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = _locked(self.path / ".lock", fcntl.LOCK_EX)
        try:
            yield
        finally:
            if fd is not None:
                os.close(fd)


def new_definition(
    name: str,
    topic: str,
    nameserver: str,
    url: str,
    *,
    starts: Mapping[str, int],
    is_upsert: bool,
    options: Mapping[str, str],
    catalog_name: str = "",
) -> TableDefinition:
    return TableDefinition(
        name=name,
        identity=secrets.token_hex(8),
        topic=topic,
        nameserver=nameserver,
        # A process that keeps the table may stand in another directory.
        url=str(Path(url).expanduser().absolute()) if url and "://" not in url else url,
        created_ms=wall_ms(),
        starts=dict(starts),
        is_upsert=is_upsert,
        catalog_name=catalog_name,
        options=dict(options),
    )


def _touches(one: TableDefinition, other: TableDefinition) -> bool:
    """Whether two tables share a place, or one lies in the other."""
    places = [[f"{url.rstrip('/')}/" for url in (each.url, each.rejected_url)] for each in (one, other)]
    return any(a.startswith(b) or b.startswith(a) for a in places[0] for b in places[1])


def _locked(path: Path, how: int) -> int | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd
