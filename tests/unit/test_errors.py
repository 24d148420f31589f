"""Every exception of this project survives pickling, and the texts that several parts share."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

import mqspark
import mqspark_jobs
import mqspark_server
import pyspark_pymq
from mqspark.errors import MAX_MESSAGE, ConfigError, InvalidMessage, NoRoute, NoSuchTopic
from mqspark_server.actions.operating import Why
from mqspark_server.net.grpc.grpcwords import GrpcCode
from mqspark_server.net.http2.http2frames import Http2Code
from tests.support.draws import some

PACKAGES = (mqspark, mqspark_jobs, mqspark_server, pyspark_pymq)
VALUES = {
    "Why": st.sampled_from(Why),
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "str": st.text(max_size=20),
    "bool": st.booleans(),
    "pb.Code": st.integers(0, 60_000),
    "GrpcCode": st.sampled_from(GrpcCode),
    "Http2Code": st.sampled_from(Http2Code),
    "Exception": st.sampled_from([OSError(28, "full"), MemoryError(), ValueError("no")]),
    "BaseException": st.sampled_from([OSError(28, "full"), MemoryError(), ValueError("no")]),
    "Iterable[str]": st.lists(st.text(max_size=5), max_size=3),
    "Hashable": st.tuples(st.text(max_size=5), st.integers()),
    "list[int]": st.lists(st.integers(), max_size=3),
    "Mapping[str, str]": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    "float": st.floats(0, 1000),
}
DELAYS = st.sampled_from([None, 1, 0.5, "30s"])
"""Delays of RetryAfter: a text says a time."""


def exceptions() -> list[type[Exception]]:
    found: set[type[Exception]] = set()
    for package in PACKAGES:
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not each.name.endswith("__main__"):
                module = importlib.import_module(each.name)
                found |= {
                    kind
                    for kind in vars(module).values()
                    if inspect.isclass(kind)
                    and issubclass(kind, Exception)
                    and kind.__module__ == module.__name__
                }
    return sorted(found, key=lambda kind: (kind.__module__, kind.__qualname__))


def arguments(kind: type[Exception], data: st.DataObject) -> tuple[list[Any], dict[str, Any]]:
    """Arguments that its constructor takes, chosen by the types that it declares."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    if kind.__init__ in (Exception.__init__, OSError.__init__):
        return [data.draw(st.text(max_size=20))], named
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        texts = [text.strip() for text in str(parameter.annotation).split("|")]
        if parameter.name == "delay":
            positional.append(data.draw(DELAYS))
            continue
        known = [VALUES[text] for text in texts if text in VALUES] + [st.none()] * ("None" in texts)
        value = data.draw(st.one_of(known))
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            positional.append(value)
    return positional, named


def fields(error: BaseException) -> dict[str, Any]:
    return {**vars(error), "args": error.args, "errno": getattr(error, "errno", None)}


@pytest.mark.parametrize(
    "kind", some(exceptions(), 24), ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}"
)
@settings(max_examples=10)
@given(st.data())
def test_it_survives_pickling(kind: type[Exception], data: st.DataObject) -> None:
    positional, named = arguments(kind, data)
    error = kind(*positional, **named)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert type(again) is kind
        assert str(again) == str(error)
        assert repr(fields(again)) == repr(fields(error))


def test_they_survive_sparks_pickling_too() -> None:
    error = NoSuchTopic("T", "; did you mean 'U'?")
    assert str(pickle.loads(cloudpickle.dumps(error))) == "there is no topic 'T'; did you mean 'U'?"  # noqa: S301


@pytest.mark.parametrize("length", [MAX_MESSAGE, MAX_MESSAGE + 1, 1_000_000])
@pytest.mark.parametrize("kind", [ConfigError, InvalidMessage])
def test_what_was_given_may_be_long_and_the_error_is_not(kind: type[Exception], length: int) -> None:
    text = f"minPartitions: a whole number, not {'9' * (length - 45)}; see docs"
    said = str(kind(text))
    assert len(said) <= MAX_MESSAGE
    assert said.startswith("minPartitions: a whole number, not 999")
    assert said.endswith("999; see docs")
    assert (said == text) == (len(text) <= MAX_MESSAGE)
    assert str(pickle.loads(pickle.dumps(kind(text)))) == said  # noqa: S301


def test_a_missing_topic_is_said_once_for_all() -> None:
    assert (
        str(NoSuchTopic("Ordrs", "; did you mean 'Orders'?"))
        == "there is no topic 'Ordrs'; did you mean 'Orders'?"
    )
    assert str(NoSuchTopic("New")) == "there is no topic 'New'; mqspark topic create New creates it"
    assert str(NoSuchTopic("%DLQ%g")) == "there is no topic '%DLQ%g'"
    assert issubclass(NoSuchTopic, NoRoute)
    assert NoSuchTopic("New").topic == "New"
