"""Searches of the property string find what every reader's map has."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqspark.base.propertystring import (
    Properties,
    decode_properties,
    encode_stored_properties,
    find_property,
    item,
    joined,
    mark,
)
from mqspark.message import KEYS, SHARDING_KEY, TAGS, UNIQ_KEY, WAIT

NAMES = (UNIQ_KEY, TAGS, KEYS, WAIT, SHARDING_KEY, "own", "X" + TAGS, "MY" + UNIQ_KEY)
PARTS = st.sampled_from((*NAMES, "\x01", "\x02", "\x01\x02", "v", "_", "é", "DELAY", *map(mark, NAMES)))
STRINGS = st.lists(PARTS, max_size=12).map("".join) | st.lists(
    st.builds(item, st.sampled_from(NAMES), st.sampled_from(("", "v", "w", "a_b", "é"))), max_size=8
).map("".join)


@given(STRINGS)
@example("")
@example("\x02")
@example("UNIQ_KEY\x01")
@example("TAGS\x01a\x02TAGS\x01")
@example("UNIQ_KEY\x01u\x02UNIQ_KEY\x01\x02TAGS\x01t")
def test_the_last_value_that_is_not_empty_counts(text: str) -> None:
    wanted = decode_properties(text)
    properties = Properties.of(text)
    assert properties.decoded() == wanted
    assert {name: properties.last(mark(name)) for name in NAMES} == {
        name: wanted.get(name, "") for name in NAMES
    }
    assert (properties.unique_id, properties.tags) == (wanted.get(UNIQ_KEY, ""), wanted.get(TAGS, ""))
    assert all(properties.has(mark(name)) for name in NAMES if name in wanted)
    assert decode_properties(properties.encoded()) == wanted
    if any("_" in name or "DELAY" in name for name in wanted.keys() - {UNIQ_KEY}):
        assert properties.may_be_special


@given(STRINGS, st.sampled_from(NAMES))
def test_without_a_name_the_others_are_as_before(text: str, name: str) -> None:
    wanted = decode_properties(text)
    wanted.pop(name, None)
    kept = Properties.of(text).without(name)
    assert kept.decoded() == wanted
    assert kept.last(mark(name)) == ""


@given(STRINGS)
def test_an_id_is_added_at_the_end(text: str) -> None:
    properties = Properties.of(text).without(UNIQ_KEY).plus_id("an_id")
    assert properties.unique_id == properties.last(mark(UNIQ_KEY)) == "an_id"
    assert properties.encoded().endswith(item(UNIQ_KEY, "an_id").encode())
    assert properties.encoded("more\x01m\x02").endswith(b"\x02more\x01m\x02")


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(("v", "a_b", "é"))), st.booleans())
def test_bytes_are_found_in_what_a_broker_stores(found: dict[str, str], closed: bool) -> None:
    stored = encode_stored_properties(found)
    stored = stored if closed else stored.removesuffix(b"\x02")
    for name in NAMES:
        value = find_property(stored, name.encode())
        assert (None if value is None else value.decode()) == found.get(name)
    assert decode_properties(joined(stored, item("more", "m").encode())) == {**found, "more": "m"}


@pytest.mark.parametrize(
    ("text", "special"),
    [
        ("", False),
        ("UNIQ_KEY\x01u\x02WAIT\x01true\x02TAGS\x01t\x02", False),
        ("UNIQ_KEY\x01u_v\x02", False),
        ("a_b\x01c\x02UNIQ_KEY\x01u\x02", True),
        ("UNIQ_KEY\x01u\x02a_b\x01c\x02", True),
        ("CLUSTER\x01c\x02", True),
        ("UNIQ_KEY\x01u\x02DELAY\x013\x02", True),
    ],
)
def test_only_a_few_strings_may_concern_a_broker(text: str, special: bool) -> None:
    assert Properties.of(text).may_be_special is special
