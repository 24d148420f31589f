"""Names that are checked together are those that are checked one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.base.names import MAX_NAME_LENGTH, are_plain, is_sound
from mqspark.errors import IllegalName
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.topic_bodies import TopicList
from mqspark.protocol.named import MANY

NAMES = st.lists(st.text(st.sampled_from("a.%|_- /\\@\n\x7f~\u00e4\u2028"), max_size=6), max_size=6)


@given(NAMES)
def test_plain_names_are_sound(names: list[str]) -> None:
    assert not are_plain(names) or all(map(is_sound, names))


@pytest.mark.parametrize(
    "name", [".", "..", "a/b", "a\\b", "a@b", "a\nb", "\x7f", "a" * (MAX_NAME_LENGTH + 1)]
)
def test_one_wrong_name_among_many_is_found(name: str) -> None:
    names = [f"T{number}" for number in range(2 * MANY)]
    assert are_plain(names)
    assert decode_body(TopicList, encode_body(TopicList(topic_list=names))).topic_list == names
    with pytest.raises(IllegalName):
        decode_body(TopicList, encode_body(TopicList(topic_list=[*names, name])))
