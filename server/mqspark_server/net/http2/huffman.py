"""The Huffman code of header blocks (RFC 7541, 5.2 and appendix B).

The code is canonical: the lengths of its words say all. A step of the decoder takes a byte, and is worked out, bit by
bit, when a string needs it for the first time.
"""

from __future__ import annotations

from mqspark.errors import ProtocolError

_LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)
"""In bits, of the words of all bytes and of the end of a string."""
_END = 256
_MAX_PADDING_BITS = 7


def _words() -> list[tuple[int, int]]:
    words = [(0, 0)] * len(_LENGTHS)
    word = length = 0
    for symbol in sorted(range(len(_LENGTHS)), key=lambda symbol: (_LENGTHS[symbol], symbol)):
        word <<= _LENGTHS[symbol] - length
        length = _LENGTHS[symbol]
        words[symbol] = word, length
        word += 1
    return words


WORDS = _words()
"""Number and length of each symbol's word."""


def _tree() -> list[list[int]]:
    """The inner nodes, the root first: where each bit leads, to another one or (below zero) to a symbol."""
    nodes = [[0, 0]]
    for symbol, (word, length) in enumerate(WORDS):
        at = 0
        for shift in range(length - 1, 0, -1):
            bit = word >> shift & 1
            if not nodes[at][bit]:
                nodes.append([0, 0])
                nodes[at][bit] = len(nodes) - 1
            at = nodes[at][bit]
        nodes[at][word & 1] = ~symbol
    return nodes


_NODES = _tree()


class _Steps(dict[int, "tuple[str, _Steps]"]):
    """The steps from one node: what a byte completes there, and the steps from where it leads."""

    __slots__ = ("_node",)

    def __init__(self, node: int) -> None:
        self._node = node

    def __missing__(self, octet: int) -> tuple[str, _Steps]:
        at, symbols = self._node, ""
        for shift in range(7, -1, -1):
            at = _NODES[at][octet >> shift & 1] if at >= 0 else at
            if at == ~_END:  # no string contains it: all further steps lead here
                at = _NOWHERE
            elif at < 0 and at != _NOWHERE:
                symbols, at = symbols + chr(~at), 0
        step = self[octet] = symbols, _STEPS[at]
        return step


_NOWHERE = -1 - len(WORDS)
_STEPS = {node: _Steps(node) for node in (*range(len(_NODES)), _NOWHERE)}
"""By node."""


def _ends() -> frozenset[int]:
    """The nodes in which a string may end: behind the first bits of the word for its end, less than a byte of them."""
    at, ends = 0, {0}
    for _ in range(_MAX_PADDING_BITS):
        at = _NODES[at][1]
        ends.add(at)
    return frozenset(ends)


_MAY_END = frozenset(id(_STEPS[node]) for node in _ends())


def huffman_decoded(data: bytes) -> str:
    """In Latin-1: a letter a byte. Raises ProtocolError."""
    out = []
    steps = _STEPS[0]
    for octet in data:
        symbols, steps = steps[octet]
        out.append(symbols)
    if id(steps) not in _MAY_END:
        raise ProtocolError("a Huffman code that is none")
    return "".join(out)
