"""What operators change while a process runs goes into its settings file, and nothing else of the file changes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.base.config import is_live
from mqspark.errors import ConfigError
from mqspark_server.settings.declarations import settings_of
from mqspark_server.settings.settings import broker_settings, file_layer, values_in
from mqspark_server.settings.settingsfile import SettingsFile, edited, settings_file

CONF = """# my broker
brokerName = a\n! topics
 autoCreateTopicEnable : \\
   true
fileReservedTime=1
fileReservedTime=2"""
TOML = """# my broker
brokerName = "a"  # its name

[topics]
auto_create_topic_enable = true  # for now
messageDelayLevel = "1s 2s"

[store.files]
fileReservedTime = 2
"""


def test_properties_keep_everything_else() -> None:
    changed = {"autoCreateTopicEnable": False, "fileReservedTime": 48, "messageDelayLevel": "1s \\ 5s"}
    assert edited(CONF, changed, "broker.conf") == (
        "# my broker\nbrokerName = a\n! topics\nautoCreateTopicEnable=false\n"
        "fileReservedTime=1\nfileReservedTime=48\nmessageDelayLevel=1s \\\\ 5s\n"
    )


def test_toml_keeps_everything_else() -> None:
    changed = {"autoCreateTopicEnable": False, "fileReservedTime": 48, "traceTopicEnable": True}
    text = edited(TOML, changed, "broker.toml")
    assert text.replace("traceTopicEnable = true\n", "").replace("\n\n", "\n") == (
        TOML.replace("= true", "= false").replace("Time = 2", "Time = 48").replace("\n\n", "\n")
    )
    assert values_in(text, "broker.toml")["traceTopicEnable"] is True


@pytest.mark.parametrize(("name", "text"), [("b.conf", "brokerName=a\n"), ("b.toml", 'brokerName = "a"\n')])
def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8-sig")
    assert file_layer(path).values == {"brokerName": "a"}
    SettingsFile(path).save(msgspec.json.encode({"regionId": "R"}))
    assert path.read_text("utf-8").startswith("\ufeff" + text)
    assert file_layer(path).values == {"brokerName": "a", "regionId": "R"}
    path.write_text(text, "utf-16")
    with pytest.raises(ConfigError, match="UTF-16"):
        file_layer(path)


def test_a_file_that_is_not_utf_8_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "b.conf"
    comment = "# 存储路径\n".encode("gb18030")
    path.write_bytes(comment + b"brokerName=a\n")
    values = {"regionId": "杭州 \N{GRINNING FACE}"}
    SettingsFile(path).save(msgspec.json.encode(values))
    assert path.read_bytes().startswith(comment + b"brokerName=a\nregionId=\\u676d")
    assert file_layer(path).values == {"brokerName": "a", **values}


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(str.strip))
def test_any_text_survives(value: str) -> None:
    assert (
        values_in(edited(CONF, {"regionId": value}, "b.conf"), "b.conf")["regionId"].strip() == value.strip()
    )
    if value.isprintable():
        assert values_in(edited(TOML, {"regionId": value}, "b.toml"), "b.toml")["regionId"] == value


@pytest.mark.parametrize("name", ["broker.conf", "broker.toml"])
def test_a_start_reads_what_was_saved(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(TOML if name.endswith("toml") else CONF)
    path.chmod(0o640)
    link = tmp_path / f"link-{name}"
    link.symlink_to(path)
    file = settings_file(file_layer(link).path)
    assert file is not None
    file.save(msgspec.json.encode({"flushDiskType": "SYNC_FLUSH", "fileReservedTime": 5}))
    file.save(msgspec.json.encode({"fileReservedTime": 6}))
    settings = broker_settings({}, file_layer(link), use_environment=False)
    assert (settings.store.flush_disk_type.value, settings.store.file_reserved_time) == ("SYNC_FLUSH", 6)
    assert settings.broker.broker_name == "a"
    assert path.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert {each.name for each in tmp_path.iterdir()} == {name, link.name}


def test_a_file_that_has_become_unreadable_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("a = 1")
    file = SettingsFile(path)
    path.write_text("[half")
    with pytest.raises(ConfigError):
        file.save(b'{"fileReservedTime":6}')
    assert path.read_text() == "[half"


def test_without_a_file_nothing_is_kept() -> None:
    assert settings_file(None) is None


def test_every_spelling_of_a_setting_is_found() -> None:
    for each in (*settings_of("broker"), *settings_of("namesrv")):
        if is_live(each.field):
            assert edited(f"{each.field.name}=1\n", {each.key: 2}, "b.conf") == f"{each.field.name}=2\n"
            assert edited(f"[x]\n{each.key} = 1\n", {each.key: 2}, "b.toml") == f"[x]\n{each.key} = 2\n"
