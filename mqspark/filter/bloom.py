"""RocketMQ's Bloom filter (BloomFilter): which bits stand for a key. Its hash is MurmurHash3, as Guava has it."""

from __future__ import annotations

import math


class BloomFilter:
    """``error_percent``: chance that a key which was not added counts as added. ``keys``: how many it is made for."""

    def __init__(self, error_percent: int, keys: int) -> None:
        error = error_percent / 100
        self.hashes = math.ceil(math.log(error) / math.log(0.5))
        bits = math.ceil(keys * (math.log(1 / error) / math.log(2)) * (1 / math.log(2)))
        self.bits = 8 * math.ceil(bits / 8)

    def positions(self, key: bytes) -> list[int]:
        """The bits that stand for ``key``."""
        low, high = murmur3(key)
        found = []
        for number in range(1, self.hashes + 1):
            combined = (low + number * high) & 0xFFFFFFFF
            if combined & 0x80000000:  # negative in Java
                combined = ~combined & 0xFFFFFFFF
            found.append(combined % self.bits)
        return found


def murmur3(data: bytes) -> tuple[int, int]:
    """The first 64 bits of MurmurHash3 x64 128 with seed 0, as their low and high 32 bits."""
    first = second = 0
    whole = len(data) & ~15
    for start in range(0, whole, 16):
        first ^= _mixed(int.from_bytes(data[start : start + 8], "little"), _C1, 31, _C2)
        first = (_rotated(first, 27) + second) * 5 + 0x52DCE729 & _MASK
        second ^= _mixed(int.from_bytes(data[start + 8 : start + 16], "little"), _C2, 33, _C1)
        second = (_rotated(second, 31) + first) * 5 + 0x38495AB5 & _MASK
    rest = data[whole:]
    second ^= _mixed(int.from_bytes(rest[8:], "little"), _C2, 33, _C1)
    first ^= _mixed(int.from_bytes(rest[:8], "little"), _C1, 31, _C2)
    first ^= len(data)
    second ^= len(data)
    first = first + second & _MASK
    second = second + first & _MASK
    first = _finished(first) + _finished(second) & _MASK
    return first & 0xFFFFFFFF, first >> 32


_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _mixed(word: int, before: int, bits: int, after: int) -> int:
    return _rotated(word * before & _MASK, bits) * after & _MASK


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33
