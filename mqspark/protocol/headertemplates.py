"""JSON headers of requests, by templates.

The sends of a producer and the acknowledgements of a consumer differ in the few fields that layouts know as such
(``mqspark.protocol.layouts``). So the rest of their headers is encoded once.

Must not know what requests mean, nor commands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import astuple

from mqspark.base.bounded import Memo
from mqspark.protocol.headers.header import Header, to_ext, value_types
from mqspark.protocol.layouts import NUMBERS, PROPERTIES, TEXTS

_DIFFERING = NUMBERS | PROPERTIES | TEXTS
_encode_json = msgspec.json.encode

_Values = tuple[Any, ...]
_Key = tuple[int, int, str, int, type[Header], _Values]
"""Code, flag, language, version, and of the header its type and the values of all other fields."""


def header_text(
    code: int, fields: str, flag: int, language: str, opaque: str, words: str, version: int
) -> str:
    """``fields`` and ``words`` are members, each with a comma behind it."""
    return (
        f'{{"code":{code:d},{fields}"flag":{flag},"language":"{language}",'
        f'"opaque":{opaque},{words}"serializeTypeCurrentRPC":"JSON","version":{version}}}'
    )


def from_template(
    code: int, flag: int, opaque: int, header: Header, language: str, version: int
) -> bytes | None:
    """The whole header of a request. None: it has to be encoded as any other."""
    same, differing = places_of(type(header))
    values = astuple(header)
    template = _templates[code, flag, language, version, type(header), same(values)]
    parts = [_encode_json(each) if type(each) is str else each for each in differing(values)]
    try:
        return template % (*parts, opaque)
    except TypeError:  # a field without a value
        return None


@functools.cache
def places_of(header_type: type[Header]) -> tuple[Callable[[_Values], _Values], Callable[[_Values], _Values]]:
    """What takes the values that are the same, and those that differ, of all in the order of the fields. Both are
    several: of one, an itemgetter returns no tuple."""
    names = header_type.__struct_encode_fields__
    differing = [at for at, name in enumerate(names) if name in _DIFFERING]
    return itemgetter(*[at for at in range(len(names)) if at not in differing]), itemgetter(*differing)


def _template(key: _Key) -> bytes:
    code, flag, language, version, header_type, same = key
    names = header_type.__struct_encode_fields__
    types, left = value_types(header_type), iter(same)
    slots = {name: b"%b" if types[name][1] is str else b'"%d"' for name in names if name in _DIFFERING}
    values = [None if name in slots else next(left) for name in names]
    model: dict[str, Any] = dict(zip(header_type.__struct_fields__, values, strict=True))
    ext = to_ext(header_type(**model))
    members = [
        b"%b:%b" % (_escaped(name), slots.get(name) or _escaped(ext[name]))
        for name in names
        if name in slots or name in ext
    ]
    whole = header_text(code, "{}", flag, language, "%d", "", version)
    before, after = whole.encode().split(b"{}")
    return b'%b"extFields":{%b},%b' % (before, b",".join(members), after)


def _escaped(text: str) -> bytes:
    return _encode_json(text).replace(b"%", b"%%")


def _bytes(key: _Key, template: bytes) -> int:
    return 1_000 + 4 * len(template)


_templates: Memo[_Key, bytes] = Memo("protocol.headerTemplates", _template, weigh=_bytes, max_bytes=1 << 20)
