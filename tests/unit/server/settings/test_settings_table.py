"""Every setting of RocketMQ is honoured, has no effect for a stated reason, or is refused; and the page says which."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from mqspark.base.config import rocketmq_key
from mqspark.errors import ConfigError
from mqspark_server.settings.declarations import CLASSES, SERVERS, spellings_of
from mqspark_server.settings.rocketmq_keys import HONOURED, REFUSED, ROCKETMQ_KEYS, WITHOUT_EFFECT
from mqspark_server.settings.settings import Layer, broker_settings, values_in
from tests.unit.server.settings.settings_table import conf, markdown

DEFAULTS = Path("tests/golden/vectors/config_defaults.json")
"""What a RocketMQ 5.3.3 broker answers when asked for its settings."""


def test_every_key_has_one_meaning() -> None:
    """A key that is a field now has to leave the tables of those without an effect."""
    assert not known_everywhere() & (WITHOUT_EFFECT.keys() | REFUSED.keys())
    assert not WITHOUT_EFFECT.keys() & REFUSED.keys()
    assert len(ROCKETMQ_KEYS) >= 614


def known_everywhere() -> set[str]:
    return set().union(*map(spellings_of, SERVERS))


def test_every_honoured_key_is_in_a_test_of_its_effect() -> None:
    """At least one test names it, other than those that compare lists of names."""
    lists = {"settings_table.py", "test_settings_table.py", "test_reported_settings.py"}
    words = set[str]()
    for path in Path("tests").rglob("*.py"):
        if path.name not in lists:
            words.update(re.findall(r"tls\.[\w.]+|\w+", path.read_text(encoding="utf-8")))
    names = {rocketmq_key(field): field.name for cls in CLASSES for field in dataclasses.fields(cls)}
    assert {key for key in HONOURED if key not in words and names[key] not in words} == BY_OTHER_NAMES.keys()


BY_OTHER_NAMES = {
    "writeBufferHighWaterMark": (
        "high_water_bytes: integration/servers/test_server_tcp.py, security/sockets/test_unread.py"
    )
}
"""Honoured keys whose tests are of the part that gets their value."""


def test_the_settings_of_a_rocketmq_broker_are_all_known() -> None:
    for table, values in json.loads(DEFAULTS.read_text()).items():
        if isinstance(values, dict):
            assert values.keys() <= ROCKETMQ_KEYS, table


def test_the_defaults_of_rocketmq_ask_for_nothing_that_is_refused() -> None:
    for values in json.loads(DEFAULTS.read_text()).values():
        if isinstance(values, dict):
            refused = {key for key, value in values.items() if key in REFUSED and REFUSED[key].refuses(value)}
            assert not refused


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_a_promise_that_is_not_kept_stops_the_start(key: str) -> None:
    for harmless in REFUSED[key].harmless:
        settings = broker_settings({}, Layer("broker.conf", {key: harmless}), use_environment=False)
        assert settings.unused == [key]
    with pytest.raises(ConfigError, match=f"broker.conf: {key}=") as caught:
        broker_settings({}, Layer("broker.conf", {key: "2" if key in STRINGS else "true"}))
    assert caught.value.key == key


STRINGS = {key for key, refused in REFUSED.items() if "false" not in refused.harmless}


@pytest.mark.parametrize("value", ["TRUE", " true", "yes", True, 1])
def test_the_spelling_of_a_refused_value_does_not_matter(value: object) -> None:
    with pytest.raises(ConfigError):
        broker_settings({}, Layer("broker.toml", {"aclEnable": value}), use_environment=False)


def test_the_page_is_generated_from_the_code() -> None:
    assert Path("docs/settings.md").read_text(encoding="utf-8") == markdown()


@pytest.mark.parametrize("server", SERVERS)
def test_the_settings_file_is_generated_from_the_code(server: str) -> None:
    assert Path(f"conf/{server}.toml").read_text(encoding="utf-8") == conf(server)
    assert values_in(conf(server), "conf.toml").keys() <= spellings_of(server)
