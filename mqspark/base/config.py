"""Settings classes and their two spellings: ``flush_disk_type`` here, ``flushDiskType`` in RocketMQ.

A settings class is a plain ``@dataclass`` with defaults. Each setting is declared once, at its field:

    slave_timeout: int = setting(3_000, unit="ms", least=1, live=True)

and the text below it says what it is. Checks, what may change at run time, the list of honoured keys, docs/settings.md,
the files in ``conf/`` and the console's page are derived from that. A field without more to say needs no ``setting``.
Values arrive as text (``broker.conf``,
``--set``, UPDATE_BROKER_CONFIG) or as TOML values and are converted to the field's type.

Must not read files.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypedDict, TypeVar, Unpack

from mqspark.errors import ConfigError, InvalidMessage, NoNameServer

INT32_MAX = 0x7FFFFFFF
INT64_MAX = 0x7FFFFFFFFFFFFFFF

MAX_PORT = 0xFFFF

T = TypeVar("T")

MAX_NAMES = 4_096
"""Size of the cache of spellings: all names are those of settings, some hundreds in all."""

MAX_CLASSES = 64
"""Size of the cache of types by settings class; there are about ten classes."""

ForeignKeys = Callable[[Mapping[str, str]], Collection[str]]
"""Called with settings that a core does not have. Returns the keys that belong to its process, which are
fixed while it runs; the others are RocketMQ's and have no effect here. Raises ConfigError for unknown keys
and for values that cannot be honoured."""


class Declared(TypedDict, total=False):
    """What a field says of a setting beside its name, type and default."""

    key: str
    """RocketMQ's name, where it is not the field's name in camel case."""
    alias: str
    """Another name of RocketMQ's for it."""
    unit: str
    least: int
    """The least number. Of a text: 1, when it must not be empty."""
    most: int
    """The greatest number when there is a least one; otherwise it is INT32_MAX, since nearly all are 32-bit integers in
    RocketMQ."""
    one_of: tuple[str, ...]
    """The texts that it may be."""
    needs: tuple[str, ...]
    """The fields that must be set when it is."""
    otherwise: str
    """How the error for a value out of bounds ends."""
    live: bool
    """Whether requests may change it while the process runs."""
    ours: bool
    """Whether RocketMQ has no such setting."""
    section: str
    """The header in the settings file under which this field and the following ones are."""
    sample: object
    """What the settings file shows when there is no default, or one that differs from host to host."""
    of: tuple[str, ...]
    """The kinds of servers that have it, where not all with its class do."""


def setting(default: T, *, secret: bool = False, **declared: Unpack[Declared]) -> T:
    """A field of a settings class. The value of a secret is never shown."""
    return dataclasses.field(default=default, repr=not secret, metadata=declared)


_PORT: Declared = {"least": 0, "most": MAX_PORT, "otherwise": "is not a port (0 to 65535)"}
_PERCENTAGE: Declared = {
    "unit": "percent",
    "least": 1,
    "most": 100,
    "otherwise": "is not a percentage of 1 to 100",
}


def port(default: T, **declared: Unpack[Declared]) -> T:
    return setting(default, **(_PORT | declared))


def percentage(default: T, **declared: Unpack[Declared]) -> T:
    return setting(default, **(_PERCENTAGE | declared))


@functools.lru_cache(MAX_NAMES)
def camel_case(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def rocketmq_key(field: dataclasses.Field[Any]) -> str:
    """The key of this field in ``broker.conf`` and in the bodies of codes 25 and 26."""
    key = field.metadata.get("key")
    return key if isinstance(key, str) else camel_case(field.name)


class Limit:
    """A number among settings, which may change while the process runs: read whenever it is needed."""

    __slots__ = ("key", "read")

    def __init__(self, settings: Any, field: str) -> None:
        """Raises KeyError for a field that ``settings`` do not have."""
        self.key = rocketmq_key(settings.__dataclass_fields__[field])
        """How operators know it."""
        self.read: Callable[[], int] = functools.partial(getattr, settings, field)


Bound = Limit | Callable[[], int] | int
"""How much there may be: of settings, computed, or always the same."""


def reader(bound: Bound) -> Callable[[], int]:
    if isinstance(bound, Limit):
        return bound.read
    return bound if callable(bound) else functools.partial(int, bound)


def key_of(bound: Bound | None) -> str:
    """How operators know it, if they can set it."""
    return bound.key if isinstance(bound, Limit) else ""


def is_live(field: dataclasses.Field[Any]) -> bool:
    """Whether requests may change the setting while the process runs."""
    return bool(field.metadata.get("live"))


def known_keys(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The fields by all of their spellings."""
    keys: dict[str, dataclasses.Field[Any]] = {}
    for field in dataclasses.fields(cls):
        for key in (field.name, rocketmq_key(field), field.metadata.get("alias")):
            if key is not None:
                keys[key] = field
    return keys


@functools.lru_cache(MAX_CLASSES)
def _types_of(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def parse_settings(cls: type[T], values: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """Build ``cls`` from the keys it knows. Returns it and the remaining keys.

    Raises ConfigError (with ``.key``) when a value does not fit its field.
    """
    keys = known_keys(cls)
    hints = _types_of(typing.cast(Any, cls))
    chosen: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for key, value in values.items():
        field = keys.get(key)
        if field is None:
            unknown[key] = value
        else:
            chosen[field.name] = _convert(key, value, hints[field.name])
    return cls(**chosen), unknown


def no_foreign_keys(changes: Mapping[str, str]) -> Collection[str]:
    """The ForeignKeys of a core without a process around it: every key is unknown."""
    for key in changes:
        raise ConfigError(f"unknown setting {key!r}", key=key)
    return ()


def set_setting(settings: Any, key: str, value: Any) -> None:
    """Assign one key, in either spelling. Raises ConfigError for an unknown key or an invalid value."""
    field = known_keys(type(settings)).get(key)
    if field is None:
        raise ConfigError(f"unknown setting {key!r}", key=key)
    setattr(
        settings, field.name, _convert(key, value, _types_of(typing.cast(Any, type(settings)))[field.name])
    )


def change_settings(changes: Mapping[str, Any], *parts: Any) -> dict[str, bool | int | float | str]:
    """Assign each key in the first of the settings objects that has it: all of them or none. Returns the values as a
    settings file has them. Raises ConfigError."""
    copies = [copy.copy(part) for part in parts]
    owners = {key: [key in known_keys(type(part)) for part in parts].index(True) for key in changes}
    for key, value in changes.items():
        set_setting(copies[owners[key]], key, value)
    for each in copies:
        each.__post_init__()
    for key, value in changes.items():
        set_setting(parts[owners[key]], key, value)
    return {key: value_of(parts[owner], key) for key, owner in owners.items()}


def check_settings(settings: Any) -> None:
    """Raise ConfigError (with ``.key``) for the first value out of its bounds, which None never is, or without what it
    needs."""
    for field in dataclasses.fields(settings):
        value, least, key = getattr(settings, field.name), field.metadata.get("least"), rocketmq_key(field)
        needs = field.metadata.get("needs", ())
        if value and not all(getattr(settings, each) for each in needs):
            raise ConfigError(f"setting {key} needs {' and '.join(map(camel_case, needs))}", key=key)
        if (texts := field.metadata.get("one_of")) and value not in texts:
            raise ConfigError(f"setting {key}={value!r} is not {' or '.join(texts)}", key=key)
        if value is None or least is None:
            continue
        most = field.metadata.get("most", INT32_MAX)
        if isinstance(value, str):
            if len(value) < least:
                raise ConfigError(f"setting {key} must not be empty", key=key)
        elif not least <= value <= most:
            wanted = field.metadata.get("otherwise") or _wanted(value, least, most)
            raise ConfigError(f"setting {key}={value} {wanted}", key=key)


def _wanted(value: int, least: int, most: int) -> str:
    if value > most:
        return f"must be at most {most}"
    return {0: "must not be negative", 1: "must be positive"}.get(least, f"must be at least {least}")


_SEPARATORS = str.maketrans("", "", "_-.")
"""People take one for another."""
_FEWEST_IN_COMMON = 0.7
_ALSO_CLOSE = 0.05


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'a' or 'b'?`` with the closest of ``known``; nothing when none is close."""
    import difflib  # imported only to report a mistake

    folded = {_folded(each): each for each in sorted(known)}
    wanted = _folded(name)
    close = difflib.get_close_matches(wanted, folded, 3, _FEWEST_IN_COMMON)
    ratios = [difflib.SequenceMatcher(None, each, wanted).ratio() for each in close]
    named = [
        repr(folded[each])
        for each, ratio in zip(close, ratios, strict=True)
        if ratio > ratios[0] - _ALSO_CLOSE
    ]
    return f"; did you mean {' or '.join(named)}?" if named else ""


def _folded(name: str) -> str:
    return name.translate(_SEPARATORS).lower()


def parse_addresses(text: str, *, key: str, required: bool = False) -> list[str]:
    """The name servers in ``host:port;host:port``; commas are accepted as separators, too. Raises ConfigError (with
    ``key``)."""
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
            raise ConfigError(f"name server {address!r} is not of the form host:port", key=key)
    if required and not addresses:
        raise NoNameServer("give host:port, several separated by ';'", key=key)
    return addresses


@contextlib.contextmanager
def told_of(key: str, name: str = "") -> Iterator[None]:
    """Within, what is wrong with a value is said of this setting, which people know as ``name``."""
    try:
        yield
    except (ConfigError, InvalidMessage) as error:
        raise ConfigError(f"{name or key}: {error}", key=key) from None


def to_properties(settings: Any) -> dict[str, str]:
    """RocketMQ key → text, in field order, without fields that are None."""
    properties: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is None:
            continue
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, enum.Enum):
            text = str(value.value)
        else:
            text = str(value)
        properties[rocketmq_key(field)] = text
    return properties


def value_of(settings: Any, key: str) -> bool | int | float | str:
    """The value of one key as a settings file has it; "" for None."""
    value = getattr(settings, known_keys(type(settings))[key].name)
    if value is None:
        return ""
    result: bool | int | float | str = value.value if isinstance(value, enum.Enum) else value
    return result


_KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _convert(key: str, value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        options = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if value is None or value == "":
            return None
        return _convert(key, value, options[0])
    try:
        if hint is bool:
            return _boolean(value)
        if hint is int:
            if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
                raise ValueError
            return int(value)
        if hint is float:
            return float(value)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return hint(value)
        if hint is str:
            return str(value)
    except (ValueError, TypeError):
        kind = _KINDS.get(hint, str(hint))
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            kind = "one of " + ", ".join(str(member.value) for member in hint)
        raise ConfigError(f"setting {key}={value!r} is not {kind}", key=key) from None
    raise ConfigError(f"setting {key} cannot be given as {value!r}", key=key)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    raise ValueError(value)
