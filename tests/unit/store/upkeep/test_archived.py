"""``mqspark.archived``: a number that is not sure lets retention delete nothing."""

from __future__ import annotations

import pytest

from mqspark.store.disk.notes.archivednote import decode_archived, encode_archived


@pytest.mark.parametrize("position", [0, 4096, 123_456_789_012])
def test_no_flipped_bit_moves_the_position(position: int) -> None:
    data = encode_archived(position)
    assert decode_archived(data) == position
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        assert decode_archived(bytes(flipped)) == 0
    for length in range(len(data) - 1):  # without its line end it is whole
        assert decode_archived(data[:length]) == 0


@pytest.mark.parametrize(
    "data", [None, b"", b"mqspark-archived-1 00000000000000004096\n", b"4096", bytes(45), b"\xff" * 45]
)
def test_what_is_no_sure_number_counts_as_none(data: bytes | None) -> None:
    assert decode_archived(data) == 0
