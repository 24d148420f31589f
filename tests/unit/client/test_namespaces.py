"""Names within a namespace."""

import pytest

from mqspark.client.remoting.namespaces import Namespace
from mqspark.errors import ConfigError
from mqspark.message import MessageQueue


@pytest.mark.parametrize(
    ("plain", "wrapped"),
    [
        ("Orders", "NS%Orders"),
        ("%RETRY%G", "%RETRY%NS%G"),
        ("%DLQ%G", "%DLQ%NS%G"),
        ("Other%Orders", "NS%Other%Orders"),
        ("TBW102", "TBW102"),
        ("rmq_sys_X", "rmq_sys_X"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_there_and_back(plain: str, wrapped: str) -> None:
    space = Namespace("NS")
    assert space.wrap(plain) == wrapped
    assert space.wrap(wrapped) == wrapped
    assert space.unwrap(wrapped) == plain
    assert space.unwrap(plain) == plain


def test_names_of_other_namespaces_stay() -> None:
    assert Namespace("A").unwrap("B%Orders") == "B%Orders"
    assert Namespace("A").unwrap("%RETRY%B%G") == "%RETRY%B%G"


def test_none_changes_nothing() -> None:
    space = Namespace()
    assert not space
    assert space.wrap("T") == space.unwrap("T") == "T"
    assert space.wrap_queue(MessageQueue("T", "b", 1)) == MessageQueue("T", "b", 1)


@pytest.mark.parametrize("name", ["a b", "N%S", "x" * 200])
def test_names_that_no_namespace_has(name: str) -> None:
    with pytest.raises(ConfigError):
        Namespace(name)
