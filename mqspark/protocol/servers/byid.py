"""Fields of a header that say something of several replicas: ``1;3``, or ``1=20;3=40``. Extensions of this project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MAX_IDS = 64
MAX_TEXT_LENGTH = MAX_IDS * 300
MAX_ID_DIGITS = 18


def encode_ids(ids: Iterable[int]) -> str:
    return ";".join(map(str, sorted(ids)))


def decode_ids(text: str | None) -> frozenset[int]:
    """Empty if it is no such text."""
    texts = (text or "").split(";") if len(text or "") <= MAX_TEXT_LENGTH else []
    return frozenset(map(int, texts)) if len(texts) <= MAX_IDS and all(map(_is_id, texts)) else frozenset()


def encode_by_id(values: Mapping[int, object]) -> str:
    """The text of at most as many values as are read again."""
    return ";".join(f"{each}={values[each]}" for each in sorted(values)[:MAX_IDS])


def decode_by_id(text: str | None) -> dict[int, str]:
    """Empty if it is no such text."""
    if not text or len(text) > MAX_TEXT_LENGTH:
        return {}
    pairs = [each.partition("=") for each in text.split(";")]
    if len(pairs) > MAX_IDS or not all(_is_id(each) and sign for each, sign, _ in pairs):
        return {}
    return {int(each): value for each, _, value in pairs}


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS
