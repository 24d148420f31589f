"""The clients' constructors: settings as values and as keywords, the same for both APIs, and known to type checkers."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mqspark
import mqspark.testing
from mqspark import aio
from mqspark.client.consumer import consumer_settings as consuming
from mqspark.client.producer import producer_settings as producing
from mqspark.client.remoting import client_options
from mqspark.errors import ConfigError
from mqspark.testing import pytest_plugin
from tests.support.processes import run_to_end

ROOT = Path(__file__).parents[3]
CLIENTS = (
    "Producer",
    "TransactionProducer",
    "PushConsumer",
    "PopConsumer",
    "LitePullConsumer",
    "AdminClient",
)
ARGUMENTS: dict[str, dict[str, Any]] = {
    "Producer": {"group": "g"},
    "TransactionProducer": {"group": "g", "check": print},
    "PushConsumer": {"group": "g", "listener": print},
    "PopConsumer": {"group": "g", "listener": print},
    "LitePullConsumer": {"group": "g"},
    "AdminClient": {},
}
VALUES = [
    (client_options.ClientOptions, client_options.ClientKeywords),
    (producing.ProducerSettings, producing.ProducerKeywords),
    (consuming.ConsumerSettings, consuming.ConsumerKeywords),
    (consuming.PullSettings, consuming.PullKeywords),
    (consuming.PushConsumerSettings, consuming.PushConsumerKeywords),
    (consuming.PopConsumerSettings, consuming.PopConsumerKeywords),
    (consuming.LitePullConsumerSettings, consuming.LitePullConsumerKeywords),
]


@pytest.mark.parametrize("name", CLIENTS)
def test_both_apis_take_the_same_arguments(name: str) -> None:
    assert inspect.signature(getattr(mqspark, name)) == inspect.signature(getattr(aio, name))


@pytest.mark.parametrize("name", CLIENTS)
def test_the_signature_names_every_setting(name: str) -> None:
    parameters = inspect.signature(getattr(mqspark, name)).parameters
    assert not [one for one in parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD]
    for field in dataclasses.fields(client_options.ClientOptions):
        assert parameters[field.name].default == getattr(client_options.ClientOptions(), field.name)


@pytest.mark.parametrize(("settings", "keywords"), VALUES, ids=lambda kind: kind.__name__)
def test_keywords_are_the_fields(settings: type, keywords: type) -> None:
    hints = typing.get_type_hints(settings)
    fields = {each.name: hints[each.name] for each in dataclasses.fields(settings)}
    if settings is not client_options.ClientOptions:
        fields |= typing.get_type_hints(client_options.ClientOptions)
    assert typing.get_type_hints(keywords) == fields


@pytest.mark.parametrize("settings", [settings for settings, _ in VALUES], ids=lambda kind: kind.__name__)
def test_settings_are_values(settings: type) -> None:
    assert settings() == settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(settings(), dataclasses.fields(settings)[0].name, None)


@pytest.mark.parametrize("api", [mqspark, aio], ids=lambda api: api.__name__)
@pytest.mark.parametrize("name", CLIENTS)
def test_an_unknown_keyword_is_refused(api: ModuleType, name: str) -> None:
    with pytest.raises(TypeError, match="'heartbeat_intervall_ms'; did you mean 'heartbeat_interval_ms'"):
        getattr(api, name)("127.0.0.1:9", **ARGUMENTS[name], heartbeat_intervall_ms=1)


@pytest.mark.parametrize("api", [mqspark, aio], ids=lambda api: api.__name__)
def test_keywords_change_values(api: Any) -> None:
    settings = mqspark.ProducerSettings(retries=5, send_timeout_ms=1_000)
    producer = api.Producer("127.0.0.1:9", group="g", settings=settings, retries=0, max_in_flight=7)
    assert producer.settings == mqspark.ProducerSettings(retries=0, send_timeout_ms=1_000, max_in_flight=7)
    assert settings.retries == 5
    consumer = api.LitePullConsumer("127.0.0.1:9", group="g", consume_from="CONSUME_FROM_FIRST_OFFSET")
    assert consumer.settings.consume_from is mqspark.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.mark.parametrize(
    ("settings", "value", "text"),
    [
        (mqspark.ProducerSettings, {"retries": -1}, "retries=-1 is negative"),
        (mqspark.ProducerSettings, {"max_in_flight": 0}, "max_in_flight=0 must be positive"),
        (mqspark.ProducerSettings, {"compress_level": 10}, "compress_level=10 is not between 0 and 9"),
        (mqspark.PushConsumerSettings, {"pull_interval_ms": 65_536}, "not between 0 and 65535"),
        (mqspark.PushConsumerSettings, {"auto_commit": False}, "auto_commit=False is for ordered"),
        (mqspark.PushConsumerSettings, {"max_reconsume_times": -1}, "max_reconsume_times=-1 is negative"),
        (mqspark.PopConsumerSettings, {"pop_batch_size": 33}, "pop_batch_size=33 is not between 1 and 32"),
        (mqspark.PopConsumerSettings, {"invisible_ms": 999}, "invisible_ms=999 is not between 1000 and"),
        (mqspark.LitePullConsumerSettings, {"suspend_ms": 0}, "suspend_ms=0 must be positive"),
        (
            mqspark.LitePullConsumerSettings,
            {"message_model": "x"},
            "message_model='x' is none of BROADCASTING",
        ),
    ],
)
def test_a_value_out_of_range_is_refused(settings: Any, value: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        settings(**value)
    assert caught.value.key == next(iter(value))


@pytest.mark.slow("a run of mypy; test_pyright_takes_the_examples is the fast twin")
def test_type_checkers_see_every_argument(tmp_path: Path) -> None:
    """One run of mypy over calls with a mistake each, and one right call."""
    wrong = [
        ("mqspark.PushConsumer('h:1', group='g', listner=print)", '"listner"'),
        ("aio.PushConsumer('h:1', group='g', listner=print)", '"listner"'),
        ("mqspark.Producer('h:1', group='g', retrys=1)", '"retrys"'),
        ("mqspark.Producer('h:1', group='g', retries='1')", '"retries"'),
        ("mqspark.TransactionProducer('h:1', group='g')", '"check"'),
        ("mqspark.PopConsumer('h:1', group='g', listener=print, pull_batch_size=1)", '"pull_batch_size"'),
        ("mqspark.LitePullConsumer('h:1', group='g', settings=mqspark.ProducerSettings())", '"settings"'),
        ("mqspark.AdminClient('h:1', timeout=1)", '"timeout"'),
        ("clients.producer(retrys=1)", '"retrys"'),
        ("clients.push_consumer('t', print, concurency=1)", '"concurency"'),
    ]
    head = "import mqspark\nfrom mqspark import aio\nfrom mqspark.testing import Clients\nclients = Clients('h:1')\n"
    right = "mqspark.PushConsumer('h:1', group='g', listener=print, concurrency=4, instance_name='i')\n"
    snippet = tmp_path / "snippet.py"
    snippet.write_text(head + right + "".join(f"{call}\n" for call, _ in wrong))
    run = run_to_end(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(snippet)], cwd=ROOT
    )
    found = [line for line in run.stdout.splitlines() if ": error: " in line]
    first = head.count("\n") + 2
    assert [line.split(":")[1] for line in found] == [str(first + place) for place in range(len(wrong))], (
        run.stdout
    )
    for line, (_, name) in zip(found, wrong, strict=True):
        assert name in line


# --- docstrings -----------------------------------------------------------------------------------------


def undescribed(names: dict[str, Any]) -> list[str]:
    """The classes and functions, and the public methods of the classes, that ``help`` says nothing about."""
    missing = []
    for name, thing in names.items():
        if not inspect.getdoc(thing):
            missing.append(name)
        if inspect.isclass(thing):
            for key in (key for key in dir(thing) if not key.startswith("_")):
                value = inspect.getattr_static(thing, key)
                described = isinstance(value, (property, classmethod, staticmethod)) or inspect.isfunction(
                    value
                )
                if described and not inspect.getdoc(getattr(thing, key)):
                    missing.append(f"{name}.{key}")
    return missing


@pytest.mark.parametrize("module", [mqspark, aio, mqspark.testing], ids=lambda module: module.__name__)
def test_everything_public_has_a_docstring(module: ModuleType) -> None:
    names = {name: getattr(module, name) for name in module.__all__}
    assert len(names) > 3
    assert undescribed(names) == []


def test_fixtures_have_docstrings() -> None:
    assert len(pytest_plugin.__all__) == 5
    missing = [name for name in pytest_plugin.__all__ if not _fixture_text(name)]
    assert missing == []


def _fixture_text(name: str) -> str | None:
    tree = ast.parse(Path(pytest_plugin.__file__).read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.get_docstring(function)


@pytest.mark.parametrize("module", [client_options, producing, consuming], ids=lambda module: module.__name__)
def test_every_setting_is_described(module: ModuleType) -> None:
    """A text follows each field."""
    missing = []
    for kind in ast.parse(inspect.getsource(module)).body:
        public = isinstance(kind, ast.ClassDef) and kind.name.endswith(("Settings", "Options"))
        if not public or not isinstance(kind, ast.ClassDef) or kind.name == "GroupSettings":
            continue
        for place, node in enumerate(kind.body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                after = kind.body[place + 1] if place + 1 < len(kind.body) else None
                text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if not text:
                    missing.append(f"{kind.name}.{node.target.id}")
    assert missing == []
