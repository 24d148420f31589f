"""The brokers of one host by the settings of one file: what each has for itself, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.config import MIN_TABLES_BYTES
from mqspark.errors import ConfigError
from mqspark.store.disk.files import usable_memory_bytes
from mqspark_server.hosting.hostplan import HostPlan
from mqspark_server.settings.settings import Layer
from tests.support.store_tools import flush, opened, put

PROFILE = {"brokerName": "a", "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1"}


def plan(
    count: int, store: Path | str = "/data", /, page_port: int | None = None, **settings: Any
) -> HostPlan:
    return HostPlan(count, PROFILE, [Layer("a.toml", settings)], store=str(store), page_port=page_port)


def store_with(root: Path, messages: int) -> None:
    store = opened(root)
    for number in range(messages):
        put(store, "T", 0, b"%d" % number)
    flush(store)
    store.close()


def test_names_ports_and_directories_go_by_number() -> None:
    made = plan(3)
    assert [each.name for each in made.brokers] == ["a-0", "a-1", "a-2"]
    assert [each.settings.broker.listen_port for each in made.brokers] == [10911, 10921, 10931]
    assert [str(each.directory) for each in made.brokers] == [
        "/data/broker-0",
        "/data/broker-1",
        "/data/broker-2",
    ]
    assert made.page_port == 10916
    for each in made.brokers:
        assert "httpPort" not in each.own  # the default goes with listenPort
        assert "haListenPort" not in each.own


def test_given_ports_go_by_number_too_and_free_ports_stay_free() -> None:
    second = plan(2, listenPort=20000, haListenPort=20001, httpPort=20007).brokers[1].settings
    ports = second.broker.listen_port, second.broker.ha_listen_port, second.server.http_port
    assert ports == (20010, 20011, 20017)
    free = plan(2, listenPort=0, httpPort=0)
    assert free.page_port == 0
    assert [each.own["listenPort"] for each in free.brokers] == [0, 0]


def test_what_only_one_process_can_have_is_made_of_a_shared_path() -> None:
    settings = {
        "storePathCommitLog": "/fast/log,/more/log",
        "readOnlyCommitLogStorePaths": "/old",
        "archiveCachePath": "/cache",
        "authConfigPath": "/auth",
        "auditLogPath": "/var/log/audit.log",
    }
    own = plan(2, **settings).brokers[1].own
    assert {key: own[key] for key in settings} == {
        "storePathCommitLog": "/fast/log/broker-1,/more/log/broker-1",
        "readOnlyCommitLogStorePaths": "/old/broker-1",
        "archiveCachePath": "/cache/broker-1",
        "authConfigPath": "/auth/broker-1",
        "auditLogPath": "/var/log/audit-1.log",
    }


def test_the_memory_of_tables_is_shared() -> None:
    quarter = usable_memory_bytes() // 4
    for count in (1, 2, 200):
        bound = max(quarter // count, MIN_TABLES_BYTES)
        assert {each.settings.broker.max_tables_bytes for each in plan(count).brokers} == {bound}
    (given,) = {each.settings.broker.max_tables_bytes for each in plan(3, maxTablesBytes=1 << 30).brokers}
    assert given == 1 << 30


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noSuchKey": 1}, "a.toml: unknown setting 'noSuchKey'"),
        ({"listenPort": 65530}, "broker 1 of this host: setting listenPort=65540"),
        ({"haMasterAddress": "10.0.0.1:10912"}, "haMasterAddress is the master of one broker"),
        ({"httpPort": 10921}, "port 10921 would be used twice"),
        ({"haListenPort": 10904}, "port 10914 would be used twice"),
        ({"page_port": 10911}, "port 10911 would be used twice"),
    ],
)
def test_settings_that_do_not_fit_several_brokers(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(2, **settings)


def test_a_page_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no port 65537 for the page"):
        plan(1, listenPort=65532, httpPort=0)


def test_an_empty_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        plan(2, "")


def test_a_store_of_one_broker_is_not_left_behind(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(ConfigError, match="is the store of one broker"):
        plan(2, tmp_path).check_directory(leave_out=True)


def test_messages_of_a_removed_broker_are_not_left_unserved_unless_said(tmp_path: Path) -> None:
    """Broker 2 had messages, broker 3 never got any, and something else has a similar name."""
    store_with(tmp_path / "broker-2", 5)
    store_with(tmp_path / "broker-3", 0)
    (tmp_path / "broker-04").mkdir()
    (tmp_path / "broker-5").mkdir()  # it never was a store
    with pytest.raises(ConfigError, match=r"broker-2 has \d+ bytes of messages.*--brokers 3.*--leave-out"):
        plan(2, tmp_path).check_directory(leave_out=False)
    plan(2, tmp_path).check_directory(leave_out=True)
    plan(3, tmp_path).check_directory(leave_out=False)
    plan(6, tmp_path).check_directory(leave_out=False)


def test_the_log_of_a_removed_broker_may_be_elsewhere(tmp_path: Path) -> None:
    store_with(tmp_path / "broker-1", 5)
    (tmp_path / "fast").mkdir()
    (tmp_path / "broker-1" / "commitlog").rename(tmp_path / "fast" / "broker-1")
    elsewhere = {"storePathCommitLog": str(tmp_path / "fast")}
    with pytest.raises(ConfigError, match="broker-1 has"):
        plan(1, tmp_path, **elsewhere).check_directory(leave_out=False)


def test_a_new_host_has_no_directory_yet(tmp_path: Path) -> None:
    plan(2, tmp_path / "new").check_directory(leave_out=False)
