"""Which text bytes are: UTF-8, UTF-16 or UTF-32, GB18030, or windows-1252; None for what is no text.

It is a guess, from the bytes alone: a mark at the beginning, then what decodes without an error and without control
characters.
"""

from __future__ import annotations

import codecs
import re

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark begins it
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x9f\ufffe\uffff\ue000-\uf8ff]")
_PAIRS = re.compile(rb"[\xa1-\xfe][\xa1-\xfe]")
_HIGH = re.compile(rb"[\x80-\xff]")
_MOSTLY = 0.9
_FEWEST = 2
"""Characters of UTF-16 without a mark: a single zero says nothing."""
NAMES = {"utf-8-sig": "UTF-8", "utf-8": "UTF-8", "gb18030": "GB18030", "cp1252": "windows-1252"}


def charset_of(body: bytes, *, is_whole: bool = True) -> str | None:
    """Its codec. ``is_whole``: whether no character is cut at the end."""
    found = unicode_of(body, is_whole=is_whole)
    if found is not None:
        return found
    pairs, high = len(_PAIRS.findall(body)), len(_HIGH.findall(body))
    # Chinese comes in pairs of high bytes; in western texts they stand alone, between letters.
    order = ("gb18030", "cp1252") if 2 * pairs >= _MOSTLY * high else ("cp1252",)
    return next((each for each in order if _is_text(body, each, is_whole=is_whole)), None)


def unicode_of(body: bytes, *, is_whole: bool = True) -> str | None:
    for mark, codec in _MARKS:
        if body.startswith(mark):
            return codec if _is_text(body, codec, is_whole=is_whole) else None
    if _is_text(body, "utf-8", is_whole=is_whole):
        return "utf-8"
    half = max(1, len(body) // 2)
    for codec, zeros in (("utf-16-le", body[1::2]), ("utf-16-be", body[::2])):
        if half >= _FEWEST and zeros.count(0) >= _MOSTLY * half and _is_text(body, codec, is_whole=is_whole):
            return codec
    return None


def decoded(body: bytes, codec: str, *, is_whole: bool = True) -> str:
    """What cannot be decoded is replaced."""
    return codecs.getincrementaldecoder(codec)("replace").decode(body, final=is_whole)


def _is_text(body: bytes, codec: str, *, is_whole: bool) -> bool:
    try:
        text = codecs.getincrementaldecoder(codec)("strict").decode(body, final=is_whole)
    except (UnicodeDecodeError, UnicodeError):
        return False
    return _CONTROL.search(text) is None
