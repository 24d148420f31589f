"""Lines to batches, however the body is cut."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.record.batchitems import encode_bodies, encode_items, split_batch
from mqspark_server.web.problems import Problem
from mqspark_server.web.v1 import ingest
from mqspark_server.web.v1.ingest import Lines

LINE = st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"x"))


@given(st.lists(LINE, max_size=30), st.sampled_from([b"", b"TAGS\x01a\x02"]))
def test_bodies_of_equal_properties_are_items_as_others(lines: list[bytes], properties: bytes) -> None:
    body, wanted = encode_bodies(lines, properties), [(0, line, properties) for line in lines]
    assert body == encode_items(wanted)
    assert split_batch(body) == wanted


@given(st.lists(LINE, max_size=30), st.lists(st.integers(1, 50), max_size=40), st.booleans())
def test_lines_are_found_however_the_body_is_cut(lines: list[bytes], cuts: list[int], ends: bool) -> None:
    body = b"\n".join(lines) + (b"\n" if ends else b"")
    found, at = Lines(100), 0
    batches: list[list[bytes]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "BATCH_BYTES", 64)
        patch.setattr(ingest, "BATCH_LINES", 5)
        for cut in [*cuts, len(body)]:
            batches += found.receive(body[at : at + cut])
            at += cut
        batches += found.finish()
    assert all(sum(map(len, batch)) <= 64 or len(batch) == 1 for batch in batches)
    assert all(1 <= len(batch) <= 5 for batch in batches)
    assert list(chain(*batches)) == list(filter(None, lines))


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_a_line_that_is_too_long_is_refused_before_it_is_in_memory(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(ingest, "BATCH_BYTES", 64)
    lines, taken = Lines(100), 0

    def receive() -> None:
        nonlocal taken
        for _ in range(0, 10_000, step):
            lines.receive(b"x" * step)
            taken += step

    with pytest.raises(Problem, match="a line has more than 100 bytes"):
        receive()
    assert taken <= 100 + step
