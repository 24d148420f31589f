"""The messages of a request, however their bytes are cut."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark_server.net.grpc.grpcwords import GrpcAbort, GrpcCode
from mqspark_server.net.grpc.messagereader import MessageReader, message_bytes

MOST = 1_000


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_cuts_change_nothing(messages: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(message_bytes, messages))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = MessageReader(MOST)
    found = [each for a, b in itertools.pairwise(places) for each in reader.read(data[a:b])]
    assert found == messages
    assert reader.held_bytes == 0


def test_what_is_not_complete_is_held() -> None:
    reader = MessageReader(MOST)
    assert reader.read(message_bytes(b"whole") + message_bytes(b"not yet")[:-1]) == [b"whole"]
    assert reader.held_bytes == 11
    assert reader.read(b"t") == [b"not yet"[:-1] + b"t"]


def test_a_length_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(GrpcAbort) as refused:
        MessageReader(MOST).read(struct.pack(">BI", 0, MOST + 1))
    assert refused.value.code == GrpcCode.RESOURCE_EXHAUSTED
    assert MessageReader(MOST).read(message_bytes(bytes(MOST))) == [bytes(MOST)]


def test_a_compressed_message_is_refused() -> None:
    with pytest.raises(GrpcAbort) as refused:
        MessageReader(MOST).read(struct.pack(">BI", 1, 3) + b"abc")
    assert refused.value.code == GrpcCode.UNIMPLEMENTED
