"""Tag subscriptions: ``*``, ``TagA`` or ``TagA || TagB`` (FilterAPI, reference remoting-protocol §8.6).

The broker compares 32-bit hashes only, so whoever consumes compares the text again: ``Tags.matches``.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqspark.bounded import Memo
from mqspark.message import java_hash, split_tags

__all__ = ["Tags", "parse_tags", "tag_codes"]


@dataclass(frozen=True, slots=True)
class Tags:
    """A parsed expression; both sets are empty when it takes everything."""

    names: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this TAGS property is wanted."""
        return not self.names or tag in self.names


def parse_tags(expression: str | None) -> Tags:
    """None, the empty text and ``*`` take everything, and so does an expression that names no tag."""
    names = frozenset(split_tags(expression))
    return Tags(names, frozenset(map(java_hash, names)))


def _codes(expression: str | None) -> frozenset[int] | None:
    return parse_tags(expression).codes or None


tag_codes = Memo("filter.tagCodes", _codes, max_bytes=8 << 20)
"""The hashes that an expression takes; None for everything."""
