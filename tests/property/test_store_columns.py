"""Columns come back as they were packed, and take no more room than they need."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.store.recovery import columns

INTS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, 300),
    st.sampled_from([-(1 << 63), 0, (1 << 63) - 1]),
)
FRAMES = st.integers(0, 9).flatmap(
    lambda rows: st.lists(st.lists(INTS, min_size=rows, max_size=rows), min_size=1, max_size=3)
)


@given(st.lists(FRAMES, max_size=4))
def test_what_is_packed_is_read(frames: list[list[list[int]]]) -> None:
    file = BytesIO(b"".join(columns.pack([np.array(each, np.int64) for each in frame]) for frame in frames))
    for frame in frames:
        assert [column.tolist() for column in columns.read(file)] == frame
    with pytest.raises(EOFError):
        columns.read(file)


@pytest.mark.parametrize(
    ("values", "bytes_a_row"),
    [
        (np.arange(1000) * 272 + (1 << 40), 0),
        (np.arange(1000) * -3, 0),
        (np.full(1000, -7), 0),
        (np.arange(1000) % 256 + (1 << 50), 1),
        (np.arange(1000) % 257 - 5, 2),
        (np.arange(1000) ** 3, 4),
        (np.arange(1000) ** 3 * 1000, 8),
    ],
)
def test_a_column_is_as_wide_as_its_differences(values: columns.Ints, bytes_a_row: int) -> None:
    packed = columns.pack([values])
    assert len(packed) - len(columns.pack([values[:1]])) == bytes_a_row * 1000
    assert np.array_equal(columns.read(BytesIO(packed))[0], values)


def test_frames_are_gone_over_up_to_a_row() -> None:
    file = BytesIO(columns.pack([np.arange(5)]) + columns.pack([np.arange(5, 9)]))
    assert columns.skip(file, 3) == 3
    assert columns.skip(file, 7) == 2
    assert columns.read(file)[0].tolist() == [5, 6, 7, 8]
    file.seek(0)
    assert columns.skip(file, 9) == 0
    with pytest.raises(EOFError):
        columns.skip(file, 1)
