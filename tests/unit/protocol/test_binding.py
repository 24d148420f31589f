"""What a client says of a request that it signs, and how it is read."""

from __future__ import annotations

import pytest

from mqspark.errors import InvalidMessage
from mqspark.protocol.binding import BINDING, Binder, description_of, endpoint, shape_of
from mqspark.protocol.signature import Signer, content_of

SIGNER = Signer("alice", "secret")


def binder(dialled: str = "broker-a.example.com:10911", peer: object = ("10.0.0.5", 10911)) -> Binder:
    return Binder(SIGNER, dialled, peer, "c1", lambda: 1_700_000_000_123)  # type: ignore[arg-type]


def test_a_request_is_described_and_signed_as_rocketmq_signs() -> None:
    ext = binder().signed(215, {"topic": "T", "empty": ""}, "bödy".encode())
    assert ext[BINDING] == (
        "mqspark-bound-1 215 broker-a.example.com:10911 10.0.0.5:10911 c1 1 1700000000123 5"
        " AccessKey,empty,topic=5,0,1;"
    )
    assert content_of(ext).startswith(ext[BINDING].encode()), "no field comes before it"
    assert ext["Signature"] == SIGNER.signature(content_of(ext), "bödy".encode())


def test_each_request_of_a_connection_has_a_higher_number() -> None:
    one = binder()
    found = [description_of(one.signed(1, {})[BINDING]) for _ in range(3)]
    assert [each.number for each in found if each] == [1, 2, 3]


def test_a_description_is_read_as_it_was_written() -> None:
    found = description_of(
        binder("[FE80::1%eth0]:1", ("fe80::1%eth0", 1, 0, 3)).signed(11, {"a": "1;2=3,4 "})[BINDING]
    )
    assert found is not None
    assert found == (11, "", "[fe80::1]:1", "c1", 1, 1_700_000_000_123, 0, "AccessKey,a=5,8")


@pytest.mark.parametrize("dialled", ["", "host with spaces:1", "a;b:1", 'a"b:1', "ö:1", "x" * 261 + ":1"])
def test_an_address_of_another_form_is_none(dialled: str) -> None:
    found = description_of(binder(dialled, None).signed(11, {})[BINDING])
    assert found is not None
    assert (found.dialled, found.peer) == ("", "")


@pytest.mark.parametrize("name", ["", "a,b", "a;b", "a=b", "!", " x"])
def test_a_field_that_cannot_be_described_is_not_signed(name: str) -> None:
    with pytest.raises(InvalidMessage, match="name cannot be signed"):
        binder().signed(11, {name: "1", "z": "2"})


GOOD = "mqspark-bound-1 11 h:1 1.2.3.4:1 c1 7 1700000000123 5 AccessKey,a=5,1;"


@pytest.mark.parametrize(
    "value",
    [
        GOOD[:-1],
        GOOD + " ",
        GOOD + ";",
        GOOD.removeprefix("mqspark"),
        GOOD.replace("bound-1", "bound-2"),
        GOOD.replace(" 7 ", " x "),
        GOOD.replace(" 7 ", " " + "9" * 5_000 + " "),
        GOOD.replace(" c1 ", f" {'c' * 65} "),
        "mqspark-bound-1 11 h:1;",
        "mqspark-bound-1 ;",
        "",
    ],
)
def test_anything_else_is_no_description(value: str) -> None:
    assert description_of(GOOD) is not None
    assert description_of(value) is None


def test_shapes_tell_borders_and_names_apart() -> None:
    shapes = {
        shape_of(tuple(name for name, _ in fields), tuple(value for _, value in fields))
        for fields in (
            [("a", "bc"), ("d", "")],
            [("a", "b"), ("d", "c")],
            [("a", "bc"), ("e", "")],
            [("a", "bc")],
            [("a", ""), ("d", "bc")],
        )
    }
    assert len(shapes) == 5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (("10.0.0.5", 1), "10.0.0.5:1"),
        (("::ffff:10.0.0.5", 1, 0, 0), "10.0.0.5:1"),
        (("fe80::1%eth0", 1, 0, 3), "[fe80::1]:1"),
        ("", ""),
        (None, ""),
    ],
)
def test_both_ends_write_an_address_alike(name: object, text: str) -> None:
    assert endpoint(name) == text  # type: ignore[arg-type]
