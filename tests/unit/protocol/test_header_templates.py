"""Headers from templates are those that the general encoder makes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.protocol.codes import Language
from mqspark.protocol.command import encode_request
from mqspark.protocol.headers.client_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    SendMessageRequestHeaderV2,
)
from mqspark.protocol.headers.header import Header, to_ext

TEXTS = st.text(max_size=12) | st.sampled_from(["100%", "%d", '"', "UNIQ_KEY\x01a\x02"])
NUMBERS = st.integers(-1, 5) | st.integers(-(1 << 63), (1 << 63) - 1)
FLAGS = st.none() | st.booleans()

SENDS = st.builds(
    SendMessageRequestHeaderV2,
    producer_group=TEXTS,
    topic=TEXTS,
    default_topic=TEXTS,
    default_topic_queue_nums=NUMBERS,
    queue_id=NUMBERS,
    sys_flag=NUMBERS,
    born_timestamp=NUMBERS,
    flag=NUMBERS,
    properties=st.none() | TEXTS,
    reconsume_times=st.none() | NUMBERS,
    unit_mode=FLAGS,
    batch=FLAGS,
    bname=st.none() | TEXTS,
)
ACKS = st.builds(
    AckMessageRequestHeader,
    consumer_group=TEXTS,
    topic=TEXTS,
    queue_id=NUMBERS,
    extra_info=TEXTS,
    offset=NUMBERS,
    lite_topic=st.none() | TEXTS,
)
CHANGES = st.builds(
    ChangeInvisibleTimeRequestHeader,
    consumer_group=TEXTS,
    topic=TEXTS,
    queue_id=NUMBERS,
    extra_info=TEXTS,
    offset=NUMBERS,
    invisible_time=NUMBERS,
    suspend=st.booleans(),
)


@given(
    st.one_of(SENDS, ACKS, CHANGES),
    st.integers(0, 400),
    st.integers(0, 0x7FFFFFFF),
    st.sampled_from(Language),
    st.binary(max_size=3),
)
def test_a_template_changes_nothing(
    header: Header, code: int, opaque: int, language: int, body: bytes
) -> None:
    more: dict[str, Any] = {"language": language}
    assert type(header).alike
    assert encode_request(code, opaque, header, body, **more) == encode_request(
        code, opaque, to_ext(header), body, **more
    )


@pytest.mark.parametrize("oneway", [False, True])
def test_requests_that_differ_in_the_rest(oneway: bool) -> None:
    for topic in ("T", "U", "T"):
        for language in (Language.JAVA, Language.GO):
            header = AckMessageRequestHeader(
                consumer_group="g", topic=topic, queue_id=1, extra_info="1 2", offset=3
            )
            made = encode_request(200051, 7, header, oneway=oneway, language=language)
            assert made == encode_request(200051, 7, to_ext(header), oneway=oneway, language=language)
