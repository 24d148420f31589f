"""Tag subscriptions: ``*``, ``TagA`` or ``TagA || TagB`` (FilterAPI).

The broker compares only 32-bit hashes, so consumers compare the text again: ``Tags.matches``.

Facts: docs/rocketmq/filter.md#tags.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqspark.base.bounded import Memo
from mqspark.message import java_hash, split_tags


@dataclass(frozen=True, slots=True)
class Tags:
    """A parsed expression. Both sets are empty when it matches everything."""

    names: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this TAGS property is wanted."""
        return not self.names or tag in self.names


def parse_tags(expression: str | None) -> Tags:
    """Parse an expression. None, the empty text, ``*``, and an expression without a tag match everything."""
    names = frozenset(split_tags(expression))
    return Tags(names, frozenset(map(java_hash, names)))


def _codes(expression: str | None) -> frozenset[int] | None:
    return parse_tags(expression).codes or None


tag_codes = Memo("filter.tagCodes", _codes, max_bytes=8 << 20)
"""Hashes of the tags of an expression; None when it matches everything."""
