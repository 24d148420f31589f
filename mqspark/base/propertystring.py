"""The property string of a message: ``name 0x01 value 0x02`` repeated, in UTF-8; the last 0x02 may be missing.

Every reader builds a map of it: the last of several values of a name counts, and an item without a separator, a name
or a value counts for nobody (MessageDecoder.string2messageProperties). A header has the string as text, which
``Properties`` searches and extends without a map; a record has it as bytes, for which the functions with ``bytes`` are.

Must not know which names there are (``mqspark.message``) or where a record has its string (``mqspark.record.record``).

Facts: docs/rocketmq/messages.md#properties.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from mqspark.errors import InvalidMessage

NAME_END, ITEM_END = "\x01", "\x02"


def mark(name: str) -> str:
    """What is before a value of this name. No name or value contains it."""
    return f"\x02{name}\x01"


def item(name: str, value: str) -> str:
    return f"{name}\x01{value}\x02"


# --- as text ------------------------------------------------------------------------------------------------


UNIQ_KEY, TAGS = "UNIQ_KEY", "TAGS"
_UNIQ_KEY, _TAGS = mark(UNIQ_KEY), mark(TAGS)
_EMPTY = frozenset({_UNIQ_KEY[1:], _TAGS[1:]})


class Properties(Struct, frozen=True, gc=False):
    """The string as text, to search and extend, with what every send asks of it. Empty unique ids and tags, which count
    for no reader, are left out. A search takes the ``mark`` of a name.

    Measured: the call of a method costs more than the search, and three times as much as ``in``. So ``of`` finds
    everything in one go: values by ``partition``, other names by ``in`` in what is around the unique id.
    """

    text: str
    """With 0x02 before each item and after each."""
    unique_id: str
    tags: str
    may_be_special: bool
    """Whether a name besides UNIQ_KEY has an underscore, or is one of the two without it that concern a broker; or a
    value besides the unique id looks so."""

    @staticmethod
    def of(text: str | None) -> Properties:
        """``text``: as a header has it."""
        if not text:
            return _NONE
        text = f"\x02{text}" if text[-1] == "\x02" else f"\x02{text}\x02"
        if "\x01\x02" in text:
            text = "\x02".join(each for each in text.split("\x02") if each not in _EMPTY)
        # The text begins with 0x02: a value that is not there is empty.
        before, _, rest = text.rpartition(_UNIQ_KEY)
        unique_id, _, after = rest.partition("\x02")
        around = f"{before}\x02{after}"
        may_be_special = "_" in around or "CLUSTER" in around or "DELAY" in around
        tags = text.rpartition(_TAGS)[2].partition("\x02")[0] if _TAGS in text else ""
        return Properties(text, unique_id, tags, may_be_special)

    def has(self, marked: str) -> bool:
        """Whether there is an item of that name, which may be empty."""
        return marked in self.text

    def last(self, marked: str) -> str:
        """The value of the name that counts; empty without one."""
        text = self.text
        start = text.rfind(marked)
        while start >= 0:
            value, _, _ = text[start + len(marked) :].partition("\x02")
            if value:
                return value
            start = text.rfind(marked, 0, start)
        return ""

    def without(self, name: str) -> Properties:
        start = f"{name}\x01"
        return Properties.of(
            "\x02".join(each for each in self.text[1:].split("\x02") if not each.startswith(start))
        )

    def plus_id(self, unique_id: str) -> Properties:
        """With a unique id, for a string that has none."""
        return Properties(
            f"{self.text}UNIQ_KEY\x01{unique_id}\x02", unique_id, self.tags, self.may_be_special
        )

    def encoded(self, suffix: str = "") -> bytes:
        """As a record has it, with more properties at its end."""
        return (self.text[1:] + suffix).encode()

    def around_id(self, suffix: str = "") -> tuple[bytes, bytes]:
        """What ``encoded`` has before and after the unique id."""
        before, marked, rest = self.text.rpartition(_UNIQ_KEY)
        return (before + marked)[1:].encode(), (rest[len(self.unique_id) :] + suffix).encode()

    def decoded(self) -> dict[str, str]:
        return decode_properties(self.text)


_NONE = Properties("\x02", "", "", False)


# --- as bytes -----------------------------------------------------------------------------------------------


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """The last value of a name; None if there is none, or it is empty."""
    return find_marked(properties, b"\x02%b\x01" % name) or None


def find_marked(properties: bytes, marked: bytes) -> bytes:
    """The last value after this encoded ``mark``; empty without one."""
    start = properties.rfind(marked)
    if start >= 0:
        start += len(marked)
    elif properties.startswith(marked[1:]):
        start = len(marked) - 1
    else:
        return b""
    end = properties.find(b"\x02", start)
    return properties[start:] if end < 0 else properties[start:end]


def joined(properties: bytes, more: bytes) -> bytes:
    """Both, one after the other, with the 0x02 that may be missing between them."""
    return properties + more if not properties or properties[-1] == 2 else b"%b\x02%b" % (properties, more)


# --- from and to maps ---------------------------------------------------------------------------------------


def text_of(properties: Mapping[str, str]) -> str:
    """The text of a map, with whatever its names and values hold. Raises InvalidMessage for one that is no text: its
    ``str`` would be stored as if it were one."""
    parts: list[str] = []
    for name, value in properties.items():
        parts += (name, "\x01", value, "\x02")
    try:
        return "".join(parts)
    except TypeError:
        for name, value in properties.items():
            if not isinstance(name, str):
                raise InvalidMessage(
                    f"a property name is text, not {type(name).__name__}", field="property name"
                ) from None
            if not isinstance(value, str):
                raise InvalidMessage(
                    f"the property {name} is text, not {type(value).__name__}", field=name
                ) from None
        raise


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The string of a map. Raises InvalidMessage for a separator or an unpaired surrogate in a name or value, and for
    one that is no text."""
    text = text_of(properties)
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        raise InvalidMessage("a property name or value holds the separator 0x01 or 0x02", field="properties")
    return _encoded(text)


def encode_stored_properties(properties: Mapping[str, str]) -> bytes:
    """``encode_properties`` for properties that other clients have chosen: a value may hold 0x01, which RocketMQ's
    clients send and every reader takes for a part of the value."""
    text = text_of(properties)
    if text.count("\x02") != len(properties) or (
        text.count("\x01") != len(properties) and any("\x01" in name for name in properties)
    ):
        raise InvalidMessage("a property name holds 0x01, or a name or value 0x02", field="properties")
    return _encoded(text)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"a property name or value is not valid text: {error.reason}", field="properties"
        ) from None


def decode_properties(text: str | bytes | memoryview) -> dict[str, str]:
    """The map of a string, as tolerant as MessageDecoder."""
    if not isinstance(text, str):
        text = str(text, "utf-8", "replace")
    properties: dict[str, str] = {}
    for each in text.split("\x02"):
        name, _, value = each.partition("\x01")
        if name and value:
            properties[name] = value
    return properties
